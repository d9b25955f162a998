//! Renames: what may take which name, what becomes of `..`, which rights each step needs, and that names are found afterwards.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use std::collections::BTreeMap;

use cred::Cred;
use support::{Calls, on};
use support_names::{OTHER, USER, View, give, ino, inode, nlink, read_rest, set_mode, user};
use vfs::error::FsError::{
    self, Access, Busy, Exists, Invalid, IsDir, NotDir, NotEmpty, NotFound, Perm,
};
use vfs::file::o;
use vfs::rename::RenameMode::{Exchange, NoReplace, Replace};
use vfs::rename::RenameStep;
use vm_host::Random;

/// Directories `/a/b/c` and `/d`, and files `/a/f`, `/d/f` and `/f`.
fn with_tree(check: impl FnOnce(&Calls) + Send + 'static) {
    on(1, || {
        let root = Calls::of_root();
        for dir in ["/a", "/a/b", "/a/b/c", "/d"] {
            root.mkdir(dir).unwrap();
        }
        for file in ["/a/f", "/d/f", "/f"] {
            root.create(file).unwrap();
        }
        check(&root);
    });
}

#[test]
fn a_directory_does_not_move_below_itself() {
    with_tree(|root| {
        for to in ["/a/x", "/a/b", "/a/b/x", "/a/b/c/x", "/a/b/c/../x"] {
            assert_eq!(root.rename("/a", to, Replace), Err(Invalid), "{to}");
        }
        for to in ["/a/x", "/a/b/c/x"] {
            assert_eq!(root.rename("/a", to, NoReplace), Err(Invalid), "{to}");
        }
        for to in ["/a/b", "/a/b/c", "/a/f"] {
            assert_eq!(root.rename("/a", to, Exchange), Err(Invalid), "{to}");
        }
        assert_eq!(root.list("/a"), Ok(vec!["b".into(), "f".into()]));
        assert_eq!(nlink("/a"), 3);
    });
}

#[test]
fn nothing_replaces_a_directory_that_it_lies_in() {
    with_tree(|root| {
        for from in ["/a/b", "/a/f", "/a/b/c"] {
            assert_eq!(root.rename(from, "/a", Replace), Err(NotEmpty), "{from}");
            assert_eq!(root.rename(from, "/a", NoReplace), Err(Exists), "{from}");
            assert_eq!(root.rename(from, "/a", Exchange), Err(Invalid), "{from}");
        }
        assert!(root.find("/a/b/c").is_ok());
    });
}

/// The way up is gone in sections of a few hundred directories.
#[test]
fn a_directory_does_not_move_below_itself_however_deep() {
    on(1, || {
        let root = Calls::of_root();
        let mut path = String::from("/top");
        root.mkdir("/top").unwrap();
        for _ in 0..600 {
            path.push_str("/d");
            root.mkdir(&path).unwrap();
        }
        let below = format!("{path}/x");
        assert_eq!(root.rename("/top", &below, Replace), Err(Invalid));
        assert_eq!(root.rename("/top/d", &below, Replace), Err(Invalid));
        assert_eq!(root.rename(&path, "/top", Replace), Err(NotEmpty));
        root.mkdir("/other").unwrap();
        assert_eq!(root.rename("/other", &below, Replace), Ok(()));
        assert_eq!(root.rename(&below, "/other", Replace), Ok(()));
    });
}

#[test]
fn a_name_that_exists_is_replaced_unless_the_caller_forbids_it() {
    with_tree(|root| {
        let f = ino("/f");
        assert_eq!(root.rename("/f", "/d/f", NoReplace), Err(Exists));
        assert_eq!(root.rename("/f", "/f", NoReplace), Err(Exists));
        assert_eq!(root.rename("/f", "/d/new", NoReplace), Ok(()));
        assert_eq!(ino("/d/new"), f);
        let gone = inode("/d/f");
        assert_eq!(root.rename("/d/new", "/d/f", Replace), Ok(()));
        assert_eq!((ino("/d/f"), gone.nlink()), (f, 0));
        assert_eq!(root.list("/d"), Ok(vec!["f".into()]));
        assert_eq!(root.rename("/absent", "/d/f", Replace), Err(NotFound));
        assert_eq!(root.rename("/absent", "/d/f", NoReplace), Err(NotFound));
        assert_eq!(root.rename("/d/f", "/x/f", Replace), Err(NotFound));
    });
}

#[test]
fn directories_replace_empty_directories_and_files_replace_files() {
    with_tree(|root| {
        root.mkdir("/empty").unwrap();
        root.symlink("/empty", "/l").unwrap();
        assert_eq!(root.rename("/f", "/empty", Replace), Err(IsDir));
        assert_eq!(root.rename("/d", "/f", Replace), Err(NotDir));
        assert_eq!(root.rename("/d", "/l", Replace), Err(NotDir));
        assert_eq!(root.rename("/d", "/a", Replace), Err(NotEmpty));
        assert_eq!(root.rename("/d", "/a/b", Replace), Err(NotEmpty));
        let (d, gone) = (ino("/d"), inode("/empty"));
        assert_eq!(root.rename("/d", "/empty", Replace), Ok(()));
        assert_eq!((ino("/empty"), gone.nlink()), (d, 0));
        assert_eq!(root.list("/empty"), Ok(vec!["f".into()]));
        assert_eq!(root.rename("/f", "/l", Replace), Ok(()), "the link goes");
        assert!(root.readlink("/l").is_err());
        assert_eq!(nlink("/"), 4);
    });
}

#[test]
fn nothing_can_be_made_in_a_directory_that_was_replaced() {
    with_tree(|root| {
        root.mkdir("/empty").unwrap();
        let view = View::of(Cred::root());
        view.chdir("/empty").unwrap();
        root.rename("/d", "/empty", Replace).unwrap();
        assert_eq!(view.open("new", o::WRONLY | o::CREAT).err(), Some(NotFound));
        assert_eq!(view.ino("f"), Err(NotFound));
        assert_eq!(root.list("/empty"), Ok(vec!["f".into()]));
    });
}

#[test]
fn two_names_are_exchanged_whatever_they_are() {
    with_tree(|root| {
        let (f, b, gone) = (ino("/f"), ino("/a/b"), inode("/a"));
        assert_eq!(root.rename("/f", "/a/b", Exchange), Ok(()));
        assert_eq!((ino("/f"), ino("/a/b")), (b, f));
        assert_eq!(root.list("/f"), Ok(vec!["c".into()]));
        assert_eq!((gone.nlink(), nlink("/")), (2, 5));
        assert_eq!(root.rename("/a", "/d", Exchange), Ok(()));
        assert_eq!(ino("/d"), gone.ino);
        assert_eq!(root.rename("/d", "/absent", Exchange), Err(NotFound));
        assert_eq!(root.rename("/absent", "/d", Exchange), Err(NotFound));
        assert_eq!(root.rename("/d", "/d", Exchange), Ok(()));
        // Two directories full of names, one below the other's parent.
        assert_eq!(root.rename("/a", "/d/b", Exchange), Ok(()));
        assert_eq!((root.list("/d/b").unwrap().len(), ino("/a")), (1, f));
    });
}

#[test]
fn the_parent_of_a_directory_is_where_its_name_is() {
    with_tree(|root| {
        let view = View::of(Cred::root());
        view.chdir("/a/b").unwrap();
        assert_eq!(view.ino(".."), Ok(ino("/a")));
        root.rename("/a/b", "/d/b", Replace).unwrap();
        assert_eq!(view.ino(".."), Ok(ino("/d")));
        assert_eq!(view.ino("../f"), Ok(ino("/d/f")));
        assert_eq!((nlink("/a"), nlink("/d")), (2, 3));
        root.rename("/d/b", "/a", Exchange).unwrap();
        assert_eq!(
            (view.ino(".."), ino("/d/b")),
            (Ok(ino("/")), ino("/a/../d/b"))
        );
        assert_eq!(ino("/d/b/.."), ino("/d"));
        let dir = root.open("/d/b", o::RDONLY).unwrap();
        let records = read_rest(&dir, 1000).unwrap();
        assert_eq!(
            (records[1].name.as_str(), records[1].ino),
            ("..", ino("/d"))
        );
    });
}

#[test]
fn two_names_of_one_file_stay_as_they_are() {
    with_tree(|root| {
        root.link("/f", "/d/g").unwrap();
        let before = inode("/d").attr().mtime;
        for mode in [Replace, Exchange] {
            assert_eq!(root.rename("/f", "/d/g", mode), Ok(()));
            assert_eq!(root.rename("/f", "/f", mode), Ok(()));
            assert_eq!((nlink("/f"), ino("/d/g")), (2, ino("/f")));
        }
        assert_eq!(root.rename("/f", "/d/g", NoReplace), Err(Exists));
        assert_eq!(inode("/d").attr().mtime, before);
    });
}

#[test]
fn a_slash_behind_a_name_stands_for_a_directory() {
    with_tree(|root| {
        assert_eq!(root.rename("/f/", "/new", Replace), Err(NotDir));
        assert_eq!(root.rename("/f", "/new/", Replace), Err(NotDir));
        assert_eq!(root.rename("/f", "/d/f/", Replace), Err(NotDir));
        assert_eq!(root.rename("/f", "/d/", Replace), Err(NotDir));
        assert_eq!(root.rename("/d", "/f/", Exchange), Err(NotDir));
        assert_eq!(root.rename("/f/", "/d", Exchange), Err(NotDir));
        assert_eq!(root.rename("/absent/", "/new", Replace), Err(NotFound));
        assert_eq!(root.rename("/d/", "/new/", Replace), Ok(()));
        assert_eq!(root.rename("/f", "/new/", Exchange), Ok(()));
        assert_eq!(root.list("/f"), Ok(vec!["f".into()]));
    });
}

#[test]
fn dots_and_the_root_are_not_renamed() {
    with_tree(|root| {
        for path in ["/", "/a/.", "/a/..", "/a/b/../"] {
            assert_eq!(root.rename(path, "/new", Replace), Err(Busy), "{path}");
            assert_eq!(root.rename("/f", path, Replace), Err(Busy), "{path}");
        }
    });
}

#[test]
fn a_rename_changes_the_times_of_what_it_changes() {
    with_tree(|root| {
        let times = |path| (inode(path).attr().ctime, inode(path).attr().mtime);
        let (f, a, d) = (times("/a/f"), times("/a"), times("/d"));
        root.rename("/a/f", "/d/g", Replace).unwrap();
        assert!(times("/d/g").0 > f.0 && times("/d/g").1 == f.1);
        assert!(times("/a").1 > a.1 && times("/d").1 > d.1);
        let (gone, now) = (inode("/d/f"), times("/d/f"));
        root.rename("/d/g", "/d/f", Replace).unwrap();
        assert!(gone.attr().ctime > now.0, "it has lost a name");
        let (a, d) = (times("/a"), times("/d"));
        assert_eq!(root.rename("/a/b", "/d/f", Replace), Err(NotDir));
        assert_eq!((times("/a"), times("/d")), (a, d));
    });
}

#[test]
fn an_open_file_stays_what_it_is_when_its_name_is_replaced() {
    with_tree(|root| {
        root.write("/f", 0, b"old").unwrap();
        root.write("/d/f", 0, b"new").unwrap();
        let open = root.open("/f", o::RDONLY).unwrap();
        root.rename("/d/f", "/f", Replace).unwrap();
        assert_eq!(root.read("/f"), Ok(b"new".to_vec()));
        let mut bytes = [0; 8];
        let read = open.read(&mut hal::uio::IoBuf::Fill(&mut bytes));
        assert_eq!((read, &bytes[..3]), (Ok(3), &b"old"[..]));
    });
}

/// What a user may rename, by the directories that he may write.
#[test]
fn both_directories_must_be_writable() {
    with_tree(|_| {
        let user = Calls::of(user(USER, &[]));
        for (from, to, allowed) in [
            (0o755, 0o755, false),
            (0o777, 0o755, false),
            (0o755, 0o777, false),
            (0o777, 0o776, false),
            (0o777, 0o777, true),
        ] {
            set_mode("/a", from);
            set_mode("/d", to);
            let expected = if allowed { Ok(()) } else { Err(Access) };
            assert_eq!(user.rename("/a/f", "/d/g", Replace), expected);
            let _back = Calls::of_root().rename("/d/g", "/a/f", Replace);
            assert_eq!(user.rename("/a/f", "/d/f", Replace), expected);
            if allowed {
                Calls::of_root().link("/d/f", "/a/f").unwrap();
            }
        }
    });
}

#[test]
fn an_exchange_changes_both_directories_and_both_parents() {
    with_tree(|root| {
        let user = Calls::of(user(USER, &[]));
        set_mode("/a", 0o777);
        set_mode("/d", 0o777);
        root.mkdir("/d/e").unwrap();
        assert_eq!(user.rename("/a/b", "/d/e", Exchange), Err(Access));
        set_mode("/a/b", 0o777);
        assert_eq!(
            user.rename("/a/b", "/d/e", Exchange),
            Err(Access),
            "`..` of e"
        );
        assert_eq!(user.rename("/d/e", "/a/b", Exchange), Err(Access));
        assert_eq!(
            user.rename("/a/b", "/d/f", Exchange),
            Ok(()),
            "a file has none"
        );
        set_mode("/d/e", 0o777);
        assert_eq!(user.rename("/d/f", "/d/e", Exchange), Ok(()));
        set_mode("/d/e", 0o755);
        assert_eq!(
            user.rename("/d/f", "/d/e", Exchange),
            Ok(()),
            "in one directory"
        );
    });
}

#[test]
fn a_sticky_directory_guards_the_old_name_and_the_new_one() {
    with_tree(|root| {
        let user = Calls::of(user(USER, &[]));
        set_mode("/a", 0o1777);
        set_mode("/d", 0o777);
        let own = |path| give(path, USER, USER);
        let theirs = |path| give(path, OTHER, OTHER);
        theirs("/a/f");
        own("/d/f");
        assert_eq!(user.rename("/a/f", "/d/x", Replace), Err(Perm));
        assert_eq!(user.rename("/d/f", "/a/f", Replace), Err(Perm));
        assert_eq!(user.rename("/d/f", "/a/f", Exchange), Err(Perm));
        assert_eq!(user.rename("/a/f", "/d/f", Exchange), Err(Perm));
        theirs("/a/b");
        set_mode("/a/b", 0o777);
        assert_eq!(user.rename("/a/b", "/a/new", Replace), Err(Perm));
        assert_eq!(
            user.rmdir("/a/b"),
            Err(Perm),
            "before it is looked whether it is empty"
        );
        own("/a/f");
        assert_eq!(user.rename("/d/f", "/a/f", Exchange), Ok(()));
        assert_eq!(user.rename("/a/f", "/d/x", Replace), Ok(()));
        own("/a/b");
        assert_eq!(user.rename("/a/b", "/d/b", Replace), Ok(()));
        assert_eq!(root.rename("/d/b", "/a/b", Replace), Ok(()));
    });
}

#[test]
fn a_name_that_exists_is_told_before_a_right_that_is_missing() {
    with_tree(|_| {
        let user = Calls::of(user(USER, &[]));
        assert_eq!(user.rename("/a/f", "/d/f", NoReplace), Err(Exists));
        assert_eq!(user.rename("/a/absent", "/d/f", Replace), Err(NotFound));
        assert_eq!(user.rename("/a", "/a/b/x", Replace), Err(Invalid));
        assert_eq!(user.rename("/a/b", "/a", Replace), Err(NotEmpty));
        assert_eq!(user.rename("/a/f", "/d/g", Replace), Err(Access));
        assert_eq!(user.mkdir("/a"), Err(Exists));
    });
}

/// Names share the leaves of a tree, which split as it grows and vanish as it shrinks.
#[test]
fn each_of_many_names_is_found_after_random_renames() {
    on(1, || {
        let (root, mut random) = (Calls::of_root(), Random(0x5eed_0001_0002_0003));
        let mut names: BTreeMap<String, u64> = BTreeMap::new();
        let dirs = ["/x", "/y"];
        for dir in dirs {
            root.mkdir(dir).unwrap();
        }
        let any = |random: &mut Random| {
            let dir = dirs[random.below(2)];
            format!("{dir}/{}", random.below(150))
        };
        for n in 0..6000 {
            let (from, to) = (any(&mut random), any(&mut random));
            let growing = n % 2000 < 1200;
            match random.below(if growing { 4 } else { 6 }) {
                0 | 1 if growing => {
                    let made = root.create(&from).is_ok();
                    assert_eq!(made, !names.contains_key(&from), "create {from}");
                    names.entry(from.clone()).or_insert_with(|| ino(&from));
                }
                0 | 4 | 5 => {
                    assert_eq!(root.unlink(&from).is_ok(), names.remove(&from).is_some());
                }
                1 => swap(&root, &mut names, &from, &to),
                _ => shift(&root, &mut names, &from, &to),
            }
            if n % 500 == 499 {
                compare(&root, &names, dirs);
            }
        }
    });
}

fn swap(root: &Calls, names: &mut BTreeMap<String, u64>, from: &str, to: &str) {
    let both = names.get(from).copied().zip(names.get(to).copied());
    let swapped = root.rename(from, to, Exchange).is_ok();
    assert_eq!(swapped, both.is_some(), "exchange {from} {to}");
    if let Some((old, new)) = both {
        names.insert(from.into(), new);
        names.insert(to.into(), old);
    }
}

fn shift(root: &Calls, names: &mut BTreeMap<String, u64>, from: &str, to: &str) {
    let moved = root.rename(from, to, Replace);
    let expected = names.get(from).map(|_| ()).ok_or(NotFound);
    assert_eq!(moved, expected, "rename {from} {to}");
    if let Some(file) = names.remove(from) {
        names.insert(to.into(), file);
    }
}

fn compare(root: &Calls, names: &BTreeMap<String, u64>, dirs: [&str; 2]) {
    for dir in dirs {
        for n in 0..150 {
            let path = format!("{dir}/{n}");
            let found = root.find(&path).map(|place| place.dentry.inode.ino);
            assert_eq!(found.ok(), names.get(&path).copied(), "{path}");
        }
        let below = format!("{dir}/");
        let mut there: Vec<String> = names
            .keys()
            .filter_map(|path| path.strip_prefix(&below).map(String::from))
            .collect();
        there.sort();
        assert_eq!(root.list(dir), Ok(there));
        let size = inode(dir).attr().size;
        let count = root.list(dir).unwrap().len() as u64;
        assert_eq!(size, 40 + 20 * count);
    }
}

#[test]
fn a_rename_in_a_removed_directory_finds_nothing() {
    with_tree(|root| {
        root.mkdir("/gone").unwrap();
        let place = root.find("/gone").unwrap();
        root.rmdir("/gone").unwrap();
        let file = root.find("/").unwrap();
        let side = |dir, name| vfs::rename::Side {
            dir,
            name,
            slash: false,
        };
        let moved = |from, to| vfs::rename::rename(from, to, Replace, &|_| Ok(())).err();
        let (root_dir, gone_dir) = (&file.dentry, &place.dentry);
        assert_eq!(
            moved(side(root_dir, b"f"), side(gone_dir, b"f")),
            Some(NotFound)
        );
        assert_eq!(
            moved(side(gone_dir, b"f"), side(root_dir, b"g")),
            Some(NotFound)
        );
        assert!(root.find("/f").is_ok());
    });
}

#[test]
fn a_right_that_is_missing_leaves_both_names() {
    with_tree(|root| {
        let place = root.find("/").unwrap();
        let refuse = |_: RenameStep| Err::<(), FsError>(Perm);
        let side = |name| vfs::rename::Side {
            dir: &place.dentry,
            name,
            slash: false,
        };
        let (a, d) = (ino("/a"), ino("/d"));
        for mode in [Replace, Exchange] {
            let result = vfs::rename::rename(side(b"a"), side(b"d"), mode, &refuse).err();
            assert_eq!(result, Some(Perm));
            assert_eq!((ino("/a"), ino("/d")), (a, d));
        }
    });
}
