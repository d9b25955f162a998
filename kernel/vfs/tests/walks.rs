//! Paths: which place a path names, and which errors a lookup has, from any root and any working directory.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use cred::{Cap, CapSet, Cred};
use support::{Calls, on};
use support_names::{USER, View, bind, ino, set_mode, user};
use vfs::context::Origin;
use vfs::error::FsError::{
    self, Access, Busy, Exists, IsDir, Loop, NameTooLong, NotDir, NotEmpty, NotFound,
};
use vfs::file::o;
use vfs::walk::{Last, Walk, Want, child};

/// Directories `/a/b/c` with a file in each: `/a/f`, `/a/b/f`, `/a/b/c/f`; and another file, `/f`.
fn with_tree(check: impl FnOnce(&Calls) + Send + 'static) {
    on(1, || {
        let root = Calls::of_root();
        root.create("/f").unwrap();
        for dir in ["/a", "/a/b", "/a/b/c"] {
            root.mkdir(dir).unwrap();
            root.create(&format!("{dir}/f")).unwrap();
        }
        check(&root);
    });
}

/// The inode number at a path; a link at its end is followed.
fn found(calls: &Calls, path: &str) -> Result<u64, FsError> {
    calls.follow(path).map(|place| place.dentry.inode.ino)
}

#[test]
fn dots_and_further_slashes_change_nothing() {
    with_tree(|root| {
        let f = ino("/a/b/f");
        for path in [
            "//a///b/f",
            "/./a/./b/./f",
            "/a/b/c/../f",
            "/a/../a/b/../b/f",
            "/a/b/c/../../b/./f",
        ] {
            assert_eq!(found(root, path), Ok(f), "{path}");
        }
        assert_eq!(found(root, "/a/b/f/"), Err(NotDir));
        assert_eq!(found(root, "/a/b/..."), Err(NotFound));
    });
}

#[test]
fn the_parent_of_the_root_is_the_root() {
    with_tree(|root| {
        for path in ["/..", "/../..", "/a/../../..", "/../a/..", "////"] {
            assert_eq!(found(root, path), Ok(ino("/")), "{path}");
        }
        assert_eq!(found(root, "/../../a/f"), Ok(ino("/a/f")));
    });
}

#[test]
fn an_empty_path_names_nothing() {
    with_tree(|root| {
        let view = View::of(Cred::root());
        assert_eq!(view.find("", Want::FOLLOW).err(), Some(NotFound));
        assert_eq!(view.find("", Want::DIRECTORY).err(), Some(NotFound));
        assert_eq!(root.create("").err(), Some(NotFound));
        assert_eq!(root.mkdir("").err(), Some(NotFound));
        assert_eq!(root.unlink("").err(), Some(NotFound));
        assert_eq!(root.rmdir("").err(), Some(NotFound));
    });
}

#[test]
fn a_slash_at_the_end_asks_for_a_directory() {
    with_tree(|root| {
        root.symlink("/a", "/to_dir").unwrap();
        root.symlink("/f", "/to_file").unwrap();
        root.symlink("to_file", "/to_link").unwrap();
        root.symlink("nothing", "/to_nothing").unwrap();
        let view = View::of(Cred::root());
        for want in [Want::FOLLOW, Want::NOFOLLOW] {
            let at = |path| view.find(path, want).map(|place| place.dentry.inode.ino);
            assert_eq!(at("/a/"), Ok(ino("/a")));
            assert_eq!(at("/a///"), Ok(ino("/a")));
            // A slash makes a lookup follow the link even if it asked not to.
            assert_eq!(at("/to_dir/"), Ok(ino("/a")));
            assert_eq!(at("/to_file/"), Err(NotDir));
            assert_eq!(at("/to_link/"), Err(NotDir));
            assert_eq!(at("/to_nothing/"), Err(NotFound));
            assert_eq!(at("/f/"), Err(NotDir));
            assert_eq!(at("/absent/"), Err(NotFound));
        }
    });
}

#[test]
fn a_slash_at_the_end_of_a_links_text_asks_for_a_directory() {
    with_tree(|root| {
        root.symlink("a/", "/to_dir").unwrap();
        root.symlink("f/", "/to_file").unwrap();
        root.symlink("to_file", "/to_link").unwrap();
        root.symlink("to_dir/b", "/further").unwrap();
        assert_eq!(found(root, "/to_dir"), Ok(ino("/a")));
        assert_eq!(found(root, "/to_dir/f"), Ok(ino("/a/f")));
        assert_eq!(found(root, "/to_file"), Err(NotDir));
        assert_eq!(found(root, "/to_link"), Err(NotDir));
        assert_eq!(found(root, "/further/f"), Ok(ino("/a/b/f")));
    });
}

#[test]
fn nothing_is_found_below_a_file() {
    with_tree(|root| {
        for path in ["/f/x", "/f/.", "/f/..", "/f/./", "/a/f/../f", "/f/x/y"] {
            assert_eq!(found(root, path), Err(NotDir), "{path}");
        }
        assert_eq!(root.create("/f/x"), Err(NotDir));
        assert_eq!(root.mkdir("/f/x"), Err(NotDir));
        assert_eq!(root.unlink("/f/x"), Err(NotDir));
        assert_eq!(root.rmdir("/f/x"), Err(NotDir));
        assert_eq!(root.link("/f", "/f/x"), Err(NotDir));
        root.mkfifo("/p").unwrap();
        assert_eq!(found(root, "/p/x"), Err(NotDir));
    });
}

#[test]
fn what_is_missing_in_the_middle_is_not_found() {
    with_tree(|root| {
        for path in ["/x/y", "/a/x/../f", "/x/..", "/x/."] {
            assert_eq!(found(root, path), Err(NotFound), "{path}");
        }
        assert_eq!(root.mkdir("/x/y"), Err(NotFound));
        assert_eq!(root.symlink("f", "/x/y"), Err(NotFound));
    });
}

#[test]
fn a_relative_path_begins_at_the_working_directory() {
    with_tree(|_| {
        let view = View::of(Cred::root());
        view.chdir("a/b").unwrap();
        assert_eq!(view.ino("f"), Ok(ino("/a/b/f")));
        assert_eq!(view.ino("."), Ok(ino("/a/b")));
        assert_eq!(view.ino("../f"), Ok(ino("/a/f")));
        assert_eq!(view.ino("/f"), Ok(ino("/f")));
        view.chdir("c").unwrap();
        assert_eq!(view.ino("f"), Ok(ino("/a/b/c/f")));
        assert_eq!(view.chdir("f"), Err(NotDir));
    });
}

#[test]
fn a_name_has_255_bytes_and_no_more() {
    with_tree(|root| {
        let (longest, long) = ("n".repeat(255), "n".repeat(256));
        let path = format!("/a/{longest}");
        assert_eq!(root.create(&path), Ok(()));
        assert_eq!(found(root, &path), Ok(ino(&path)));
        assert_eq!(root.unlink(&path), Ok(()));
        assert_eq!(root.mkdir(&path), Ok(()));
        let path = format!("/a/{long}");
        assert_eq!(found(root, &path), Err(NameTooLong));
        assert_eq!(found(root, &format!("{path}/..")), Err(NameTooLong));
        assert_eq!(root.create(&path), Err(NameTooLong));
        assert_eq!(root.mkdir(&path), Err(NameTooLong));
        assert_eq!(root.symlink("f", &path), Err(NameTooLong));
        assert_eq!(root.unlink(&path), Err(NameTooLong));
        assert_eq!(root.rmdir(&path), Err(NameTooLong));
        assert_eq!(root.link("/f", &path), Err(NameTooLong));
        root.symlink(&long, "/l").unwrap();
        assert_eq!(found(root, "/l"), Err(NameTooLong));
    });
}

/// The name is looked at when its directory has been found.
#[test]
fn a_long_name_in_a_directory_that_is_not_found_is_not_found() {
    with_tree(|root| {
        let long = "n".repeat(256);
        assert_eq!(found(root, &format!("/x/{long}")), Err(NotFound));
        assert_eq!(found(root, &format!("/f/{long}")), Err(NotDir));
    });
}

#[test]
fn a_long_name_is_not_made_in_a_directory_that_is_not_found() {
    with_tree(|root| {
        let long = "n".repeat(256);
        assert_eq!(root.mkdir(&format!("/x/{long}")), Err(NotFound));
        assert_eq!(root.create(&format!("/f/{long}")), Err(NotDir));
        assert_eq!(root.unlink(&format!("/x/{long}")), Err(NotFound));
    });
}

/// A lookup goes a few hundred components in one section without preemption.
#[test]
fn a_path_may_have_thousands_of_components() {
    with_tree(|root| {
        let here = "./".repeat(2000);
        assert_eq!(found(root, &format!("/{here}f")), Ok(ino("/f")));
        assert_eq!(found(root, &format!("/a/{here}")), Ok(ino("/a")));
        assert_eq!(found(root, &format!("/f/{here}")), Err(NotDir));
        for n in 254..=259 {
            let round = "a/../".repeat(n);
            assert_eq!(found(root, &format!("/{round}a/f")), Ok(ino("/a/f")));
            let here = "./".repeat(n);
            assert_eq!(found(root, &format!("/{here}x")), Err(NotFound));
            assert_eq!(found(root, &format!("/{here}f")), Ok(ino("/f")));
            assert_eq!(found(root, &format!("/{here}f/")), Err(NotDir));
        }
    });
}

#[test]
fn directories_may_lie_six_hundred_deep() {
    on(1, || {
        let root = Calls::of_root();
        let mut path = String::new();
        for _ in 0..600 {
            path.push_str("/d");
            root.mkdir(&path).unwrap();
        }
        assert_eq!(found(&root, &path), Ok(ino(&path)));
        let up = "/..".repeat(600);
        assert_eq!(found(&root, &format!("{path}{up}")), Ok(ino("/")));
        let up = "/..".repeat(599);
        assert_eq!(found(&root, &format!("{path}{up}")), Ok(ino("/d")));
    });
}

#[test]
fn each_directory_on_the_way_must_be_searchable() {
    with_tree(|root| {
        root.symlink("/a/b", "/l").unwrap();
        let path = "/a/b/c/f";
        for (dir, through_link) in [("/", true), ("/a", true), ("/a/b", true), ("/a/b/c", true)] {
            let before = support_names::bits(dir);
            set_mode(dir, 0o666);
            let user = Calls::of(user(USER, &[]));
            assert_eq!(found(&user, path), Err(Access), "{dir}");
            assert_eq!(found(&user, "/l/c/f").is_err(), through_link, "{dir}");
            assert_eq!(found(root, path), Ok(ino(path)), "{dir}");
            set_mode(dir, before);
            assert_eq!(found(&user, path), Ok(ino(path)), "{dir}");
        }
    });
}

#[test]
fn the_right_to_search_is_asked_for_dots_too() {
    with_tree(|_| {
        set_mode("/a", 0o666);
        let user = Calls::of(user(USER, &[]));
        assert_eq!(found(&user, "/a"), Ok(ino("/a")));
        assert_eq!(found(&user, "/a/"), Ok(ino("/a")));
        assert_eq!(found(&user, "/a/."), Err(Access));
        assert_eq!(found(&user, "/a/.."), Err(Access));
        assert_eq!(found(&user, "/a/absent"), Err(Access));
    });
}

#[test]
fn a_call_on_a_name_searches_its_directory_first() {
    with_tree(|_| {
        set_mode("/a", 0o666);
        let user = Calls::of(user(USER, &[]));
        let open = |path| user.open(path, o::RDONLY | o::CREAT).err();
        assert_eq!(
            (open("/a/f"), open("/a/absent")),
            (Some(Access), Some(Access))
        );
        assert_eq!(user.unlink("/a/absent"), Err(Access));
        assert_eq!(user.rmdir("/a/absent"), Err(Access));
        assert_eq!(
            user.mkdir("/a/b"),
            Err(Access),
            "it does not tell what exists"
        );
        assert_eq!(user.link("/f", "/a/f"), Err(Access));
    });
}

#[test]
fn the_capability_to_read_and_search_opens_each_directory() {
    with_tree(|_| {
        set_mode("/a", 0);
        let mut cred = user(USER, &[]);
        cred.caps.effective = CapSet::of(&[Cap::DacReadSearch]);
        let reader = Calls::of(cred);
        assert_eq!(found(&reader, "/a/b/f"), Ok(ino("/a/b/f")));
        assert_eq!(reader.create("/a/new"), Err(Access));
    });
}

#[test]
fn a_root_of_ones_own_is_not_left() {
    with_tree(|root| {
        root.symlink("/f", "/a/b/absolute").unwrap();
        root.symlink("../../../../f", "/a/b/relative").unwrap();
        let view = View::of(Cred::root());
        view.chroot("/a").unwrap();
        view.chdir("/").unwrap();
        for path in [
            "/",
            "..",
            "../../..",
            "/..",
            "b/../..",
            "/b/c/../../../..",
            "/b/../../../.",
        ] {
            assert_eq!(view.ino(path), Ok(ino("/a")), "{path}");
        }
        assert_eq!(view.ino("/f"), Ok(ino("/a/f")));
        assert_eq!(view.ino("/b/absolute"), Ok(ino("/a/f")));
        assert_eq!(view.ino("/b/relative"), Ok(ino("/a/f")));
        assert_eq!(view.ino("/a"), Err(NotFound));
        assert_eq!(view.cwd(), Ok((String::from("/"), true)));
    });
}

/// As chroot(2) says, the call alone is no prison.
#[test]
fn a_working_directory_outside_of_the_root_leads_up_to_everything() {
    with_tree(|_| {
        let view = View::of(Cred::root());
        view.chdir("/a").unwrap();
        view.chroot("/a/b").unwrap();
        assert_eq!(view.ino(".."), Ok(ino("/")));
        assert_eq!(view.ino("../f"), Ok(ino("/f")));
        assert_eq!(view.ino("/f"), Ok(ino("/a/b/f")));
    });
}

#[test]
fn a_working_directory_above_the_root_is_not_below_it() {
    with_tree(|_| {
        let view = View::of(Cred::root());
        view.chdir("/a").unwrap();
        view.chroot("/a/b").unwrap();
        assert_eq!(view.cwd(), Ok((String::from("/a"), false)));
    });
}

#[test]
fn the_name_of_the_working_directory_follows_a_rename() {
    with_tree(|root| {
        let view = View::of(Cred::root());
        view.chdir("/a/b/c").unwrap();
        assert_eq!(view.cwd(), Ok((String::from("/a/b/c"), true)));
        root.rename("/a/b", "/else", vfs::rename::RenameMode::Replace)
            .unwrap();
        assert_eq!(view.cwd(), Ok((String::from("/else/c"), true)));
        assert_eq!(view.ino("../f"), Ok(ino("/else/f")));
        view.chroot("/else").unwrap();
        assert_eq!(view.cwd(), Ok((String::from("/c"), true)));
    });
}

#[test]
fn the_name_of_a_directory_is_shorter_than_a_page_or_an_error() {
    on(1, || {
        let view = View::of(Cred::root());
        let name = "n".repeat(255);
        // A slash and a name, 16 times: 4096 bytes, and none is left for the end of the text.
        for depth in 1..=16 {
            let made = view.walk(|walk| {
                let (dir, _) = walk.parent(name.as_bytes())?;
                let new = vfs::setattr::NewMode::exact(0o755);
                let what = vfs::tmpfs::What::Dir;
                vfs::tmpfs::create(&Cred::root(), &dir, name.as_bytes(), &what, new).map(drop)
            });
            assert_eq!(made, Ok(()));
            view.chdir(&name).unwrap();
            match depth {
                16 => assert_eq!(view.cwd(), Err(NameTooLong)),
                _ => assert_eq!(view.cwd().map(|(name, _)| name.len()), Ok(256 * depth)),
            }
        }
    });
}

#[test]
fn a_removed_directory_has_dots_and_nothing_else() {
    with_tree(|root| {
        root.mkdir("/a/gone").unwrap();
        let view = View::of(Cred::root());
        view.chdir("/a/gone").unwrap();
        let before = view.ino(".").unwrap();
        root.rmdir("/a/gone").unwrap();
        assert_eq!(view.ino("."), Ok(before));
        assert_eq!(view.ino(".."), Ok(ino("/a")));
        assert_eq!(view.ino("f"), Err(NotFound));
        assert_eq!(view.open("f", o::WRONLY | o::CREAT).err(), Some(NotFound));
        // Another one of the same name is not the one that is gone.
        root.mkdir("/a/gone").unwrap();
        root.create("/a/gone/f").unwrap();
        assert_eq!(view.ino("f"), Err(NotFound));
    });
}

#[test]
fn the_last_component_is_told_by_its_kind() {
    with_tree(|_| {
        let view = View::of(Cred::root());
        let last = |path: &str| {
            view.walk(|walk| {
                let (dir, last) = walk.parent(path.as_bytes())?;
                Ok((
                    dir.dentry.inode.ino,
                    match last {
                        Last::Name(name, slash) => {
                            format!("{}{}", String::from_utf8_lossy(name), u8::from(slash))
                        }
                        Last::Here => String::from("."),
                        Last::Up => String::from(".."),
                        Last::Root => String::from("/"),
                    },
                ))
            })
        };
        let is = |dir, what: &str| Ok((ino(dir), String::from(what)));
        assert_eq!(last("/a/b"), is("/a", "b0"));
        assert_eq!(last("/a/b///"), is("/a", "b1"));
        assert_eq!(last("/a/absent"), is("/a", "absent0"));
        assert_eq!(last("/a/."), is("/a", "."));
        assert_eq!(last("/a/b/.."), is("/a/b", ".."));
        assert_eq!(last("//"), is("/", "/"));
        assert_eq!(last("a"), is("/", "a0"));
        assert_eq!(last("/x/y").err(), Some(NotFound));
        assert_eq!(last("/f/y").err(), Some(NotDir));
    });
}

#[test]
fn dots_and_the_root_are_no_names_to_remove() {
    with_tree(|root| {
        assert_eq!(root.rmdir("/a/b/c/."), Err(FsError::Invalid));
        assert_eq!(root.rmdir("/a/b/.."), Err(NotEmpty));
        assert_eq!(root.rmdir("/"), Err(Busy));
        assert_eq!(root.unlink("/a/."), Err(IsDir));
        assert_eq!(root.unlink("/a/.."), Err(IsDir));
        assert_eq!(root.unlink("/"), Err(IsDir));
        assert_eq!(root.mkdir("/"), Err(Exists));
        assert_eq!(root.mkdir("/a/.."), Err(Exists));
        assert_eq!(root.mkdir("/a/."), Err(Exists));
    });
}

#[test]
fn unlink_and_rmdir_tell_files_from_directories() {
    with_tree(|root| {
        root.mkdir("/empty").unwrap();
        assert_eq!(root.unlink("/empty"), Err(IsDir));
        assert_eq!(root.unlink("/empty/"), Err(IsDir));
        assert_eq!(root.unlink("/f/"), Err(NotDir));
        assert_eq!(root.unlink("/absent/"), Err(NotFound));
        assert_eq!(root.rmdir("/f"), Err(NotDir));
        assert_eq!(root.rmdir("/a"), Err(NotEmpty));
        assert_eq!(root.rmdir("/absent"), Err(NotFound));
        assert_eq!(root.rmdir("/empty/"), Ok(()));
        assert_eq!(root.unlink("/f"), Ok(()));
        assert_eq!(found(root, "/f"), Err(NotFound));
    });
}

#[test]
fn a_link_to_a_directory_is_removed_as_a_file() {
    with_tree(|root| {
        root.mkdir("/empty").unwrap();
        root.symlink("/empty", "/l").unwrap();
        assert_eq!(root.rmdir("/l"), Err(NotDir));
        assert_eq!(root.unlink("/l"), Ok(()));
        assert_eq!(found(root, "/empty"), Ok(ino("/empty")));
    });
}

#[test]
fn open_says_which_flags_the_file_does_not_suit() {
    with_tree(|root| {
        root.symlink("/a", "/l").unwrap();
        let open = |path, flags| root.open(path, flags).err();
        assert_eq!(open("/a", o::WRONLY), Some(IsDir));
        assert_eq!(open("/a", o::RDWR), Some(IsDir));
        assert_eq!(open("/a", o::RDONLY | o::TRUNC), Some(IsDir));
        assert_eq!(open("/a", o::RDONLY | o::CREAT), Some(IsDir));
        assert_eq!(open("/a", o::RDONLY | o::CREAT | o::EXCL), Some(Exists));
        assert_eq!(open("/f", o::RDONLY | o::CREAT | o::EXCL), Some(Exists));
        assert_eq!(open("/f", o::RDONLY | o::DIRECTORY), Some(NotDir));
        let made = o::WRONLY | o::CREAT | o::DIRECTORY;
        assert_eq!(open("/f", made), Some(NotDir));
        assert_eq!(open("/l", o::RDONLY | o::NOFOLLOW), Some(Loop));
        assert_eq!(
            open("/l", o::RDONLY | o::NOFOLLOW | o::DIRECTORY),
            Some(NotDir)
        );
        assert_eq!(open("/new/", o::WRONLY | o::CREAT), Some(IsDir));
        assert_eq!(open("/a/.", o::WRONLY | o::CREAT), Some(IsDir));
        assert_eq!(open("/l", o::RDONLY | o::DIRECTORY), None);
        assert_eq!(open("/l/f", o::RDONLY | o::NOFOLLOW), None);
        assert_eq!(open("/l", o::PATH | o::NOFOLLOW), None);
    });
}

/// A lookup of a whole path, and lookups of its components one by one, each with a reference, must have one answer.
#[test]
fn a_path_leads_where_its_components_lead_one_by_one() {
    with_tree(|root| {
        for (n, path) in ["/a/b/c/f", "/a/b", "/a/f", "/a/x/f", "/f/x"]
            .into_iter()
            .enumerate()
        {
            let mut at = root.find("/");
            for name in path[1..].split('/') {
                at = at.and_then(|dir| child(&dir, name.as_bytes()));
            }
            let one_by_one = at.map(|place| place.dentry.inode.ino);
            assert_eq!(one_by_one, found(root, path), "{path}");
            assert_eq!(one_by_one.is_ok(), n < 3, "{path}");
        }
    });
}

#[test]
fn a_path_from_a_place_that_is_no_directory_has_no_parent() {
    with_tree(|root| {
        set_mode("/f", 0o777);
        let (top, file) = (root.find("/").unwrap(), root.find("/f").unwrap());
        let walk = Walk {
            cred: root.cred(),
            root: Origin::At(&top),
            base: Origin::At(&file),
        };
        assert_eq!(walk.parent(b"name").err(), Some(NotDir));
        assert_eq!(walk.find(b"name", Want::FOLLOW).err(), Some(NotDir));
    });
}

#[test]
fn the_root_bound_elsewhere_is_another_place() {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/m").unwrap();
        bind("/", "/m", 0).unwrap();
        let view = View::of(Cred::root());
        view.chdir("/m").unwrap();
        assert_eq!(view.cwd(), Ok((String::from("/m"), true)));
        view.chdir("/").unwrap();
        assert_eq!(view.cwd(), Ok((String::from("/"), true)));
    });
}
