//! Listings of directories: which names they have while names come and go, their positions, and directories made on demand.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cred::Cred;
use hal::uio::IoBuf;
use support::{Calls, on, threads};
use support_names::{
    Record, USER, View, bind, free_all, ino, inode, mount_new, mount_plain, names, read_rest,
    read_some, set_mode, umount, user,
};
use vfs::dentry::Dentry;
use vfs::dynamic::{DynLink, Dynamic, Fixed, FixedDir, Target, Text};
use vfs::error::FsError::{
    self, Access, BadFd, Exists, Invalid, IsDir, Loop, NotDir, NotFound, Perm,
};
use vfs::error::Result;
use vfs::file::{FileRef, Whence, o};
use vfs::mount;
use vfs::place::flag;
use vfs::rename::RenameMode::{Exchange, Replace};
use vfs::superblock::{FsKind, Super};
use vfs::tmpfs::Settings;
use vm_host::Random;

/// A directory `/d` with files of these names in it, opened.
fn with_files(count: usize, check: impl FnOnce(&Calls, FileRef) + Send + 'static) {
    on(1, move || {
        let root = Calls::of_root();
        root.mkdir("/d").unwrap();
        for n in 0..count {
            root.create(&format!("/d/{n}")).unwrap();
        }
        let dir = root.open("/d", o::RDONLY).unwrap();
        check(&root, dir);
    });
}

#[test]
fn a_listing_has_dots_and_each_name_once() {
    with_files(100, |_, dir| {
        for bytes in [280, 300, 1000, 5000, 100_000] {
            dir.seek(0, Whence::Set).unwrap();
            let records = read_rest(&dir, bytes).unwrap();
            let dots: Vec<&str> = records[..2].iter().map(|r| r.name.as_str()).collect();
            assert_eq!(dots, [".", ".."]);
            assert_eq!((records[0].ino, records[1].ino), (ino("/d"), ino("/")));
            let all: BTreeSet<String> = (0..100).map(|n| n.to_string()).collect();
            let listed: BTreeSet<String> = names(&records).iter().map(|n| (*n).into()).collect();
            assert_eq!((records.len(), &listed), (102, &all), "{bytes}");
            for record in &records[2..] {
                assert_eq!(record.ino, ino(&format!("/d/{}", record.name)));
            }
            assert_eq!(read_some(&dir, bytes), Ok(vec![]), "the end stays the end");
        }
    });
}

#[test]
fn a_record_says_what_kind_of_file_it_names() {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/d").unwrap();
        root.create("/f").unwrap();
        root.symlink("d", "/l").unwrap();
        root.mkfifo("/p").unwrap();
        let dir = root.open("/", o::RDONLY).unwrap();
        let kinds: Vec<(String, u8)> = read_rest(&dir, 1000)
            .unwrap()
            .into_iter()
            .map(|r| (r.name, r.kind))
            .collect();
        for (name, kind) in [(".", 4), ("..", 4), ("d", 4), ("f", 8), ("l", 10), ("p", 1)] {
            assert!(kinds.contains(&(name.into(), kind)), "{name}");
        }
    });
}

#[test]
fn a_buffer_that_is_too_small_for_one_record_is_refused() {
    with_files(3, |root, dir| {
        let len = fscore::dirent::record_len(1);
        assert_eq!(read_some(&dir, len - 1), Err(Invalid));
        assert_eq!(read_some(&dir, 0), Err(Invalid));
        for name in [".", "..", "0", "1", "2"] {
            let records = read_some(&dir, len).unwrap();
            assert_eq!((records.len(), records[0].name.as_str()), (1, name));
        }
        assert_eq!(
            read_some(&dir, 0),
            Ok(vec![]),
            "nothing is left to be refused"
        );
        let long = "n".repeat(255);
        root.create(&format!("/d/{long}")).unwrap();
        let len = fscore::dirent::record_len(255);
        assert_eq!(read_some(&dir, len - 1), Err(Invalid));
        assert_eq!(read_some(&dir, len).unwrap()[0].name, long);
    });
}

#[test]
fn a_listing_goes_on_from_each_position_that_it_has_told() {
    with_files(20, |_, dir| {
        let records = read_rest(&dir, 300).unwrap();
        for (n, record) in records.iter().enumerate() {
            let at = i64::try_from(record.next).unwrap();
            assert_eq!(dir.seek(at, Whence::Set), Ok(record.next));
            assert_eq!(read_rest(&dir, 300).unwrap(), records[n + 1..]);
        }
        dir.seek(0, Whence::Set).unwrap();
        assert_eq!(read_rest(&dir, 300).unwrap(), records);
        dir.seek(0, Whence::Set).unwrap();
        let some = read_some(&dir, 100).unwrap();
        let at = some.last().unwrap().next;
        assert_eq!(
            dir.seek(0, Whence::Cur),
            Ok(at),
            "lseek(2) tells the position"
        );
    });
}

#[test]
fn each_open_directory_has_a_position_of_its_own() {
    with_files(10, |root, dir| {
        let other = root.open("/d", o::RDONLY).unwrap();
        let first = read_some(&dir, 120).unwrap();
        assert_eq!(read_rest(&other, 1000).unwrap().len(), 12);
        assert_eq!(first.len() + read_rest(&dir, 1000).unwrap().len(), 12);
    });
}

#[test]
fn a_directory_has_no_data_and_holes_to_seek() {
    with_files(1, |_, dir| {
        assert_eq!(dir.seek(0, Whence::Data), Err(Invalid));
        assert_eq!(dir.seek(0, Whence::Hole), Err(Invalid));
        assert_eq!(dir.seek(-1, Whence::Set), Err(Invalid));
    });
}

/// A directory in memory has no end to seek from, as in Linux's dcache_dir_lseek.
#[test]
fn the_end_of_a_directory_is_no_position() {
    with_files(1, |_, dir| {
        assert_eq!(dir.seek(0, Whence::End), Err(Invalid));
    });
}

#[test]
fn a_directory_is_listed_and_neither_read_nor_written() {
    with_files(1, |root, dir| {
        let mut bytes = [0; 100];
        assert_eq!(dir.read(&mut IoBuf::Fill(&mut bytes)), Err(IsDir));
        assert_eq!(dir.write(&mut IoBuf::Drain(b"x")), Err(BadFd));
        let place = root.open("/d", o::PATH).unwrap();
        assert_eq!(read_some(&place, 100), Err(BadFd));
        let file = root.open("/d/0", o::RDONLY).unwrap();
        assert_eq!(read_some(&file, 100), Err(NotDir));
    });
}

#[test]
fn a_user_lists_what_he_may_read() {
    with_files(2, |_, _| {
        let user = Calls::of(user(USER, &[]));
        set_mode("/d", 0o711);
        assert_eq!(user.open("/d", o::RDONLY).err(), Some(Access));
        set_mode("/d", 0o744);
        let dir = user.open("/d", o::RDONLY).unwrap();
        assert_eq!(names(&read_rest(&dir, 300).unwrap()), ["0", "1"]);
        assert_eq!(user.find("/d/0").err(), Some(Access));
    });
}

#[test]
fn a_removed_directory_has_no_listing() {
    with_files(0, |root, dir| {
        read_some(&dir, 24).unwrap();
        root.rmdir("/d").unwrap();
        assert_eq!(read_some(&dir, 1000), Err(NotFound));
        root.mkdir("/d").unwrap();
        root.create("/d/f").unwrap();
        assert_eq!(read_some(&dir, 1000), Err(NotFound), "another directory");
    });
}

#[test]
fn a_name_that_is_removed_meanwhile_takes_no_other_with_it() {
    with_files(30, |root, dir| {
        let mut seen: Vec<String> = Vec::new();
        // The name just listed, the next one, and one further on.
        for gone in [vec![3, 4, 5], vec![6, 7, 20], vec![0, 29]] {
            let records = read_some(&dir, 100).unwrap();
            seen.extend(names(&records).iter().map(|n| String::from(*n)));
            for n in gone {
                root.unlink(&format!("/d/{n}")).unwrap();
            }
        }
        let records = read_rest(&dir, 100).unwrap();
        seen.extend(names(&records).iter().map(|n| String::from(*n)));
        let stay = (0..30).filter(|n| ![3, 4, 5, 6, 7, 20, 0, 29].contains(n));
        for n in stay {
            let count = seen.iter().filter(|name| **name == n.to_string()).count();
            assert_eq!(count, 1, "{n}");
        }
        assert!(!seen.contains(&String::from("29")) && !seen.contains(&String::from("20")));
    });
}

#[test]
fn a_rewound_listing_shows_what_is_there_now() {
    with_files(3, |root, dir| {
        read_rest(&dir, 300).unwrap();
        root.create("/d/new").unwrap();
        root.unlink("/d/1").unwrap();
        root.rename("/d/0", "/d/zero", Replace).unwrap();
        root.rename("/d/2", "/d/new", Exchange).unwrap();
        dir.seek(0, Whence::Set).unwrap();
        let records = read_rest(&dir, 300).unwrap();
        let listed: BTreeSet<&str> = names(&records).into_iter().collect();
        assert_eq!(listed, BTreeSet::from(["2", "new", "zero"]));
        for record in &records[2..] {
            assert_eq!(record.ino, ino(&format!("/d/{}", record.name)));
        }
    });
}

/// readdir(3): a name that is there from the begin of a listing to its end is listed once, whatever else comes and goes.
#[test]
fn names_that_stay_are_listed_once_beside_random_changes() {
    for seed in [0x1111_2222_3333_4444, 0x0bad_cafe_0000_0001, 77] {
        with_files(60, move |root, dir| {
            let mut random = Random(seed);
            for _ in 0..40 {
                dir.seek(0, Whence::Set).unwrap();
                let start: BTreeSet<String> = root.list("/d").unwrap().into_iter().collect();
                let (mut gone, mut seen) = (BTreeSet::new(), Vec::new());
                loop {
                    let part = read_some(&dir, 280 + random.below(300)).unwrap();
                    if part.is_empty() {
                        break;
                    }
                    seen.extend(names(&part).iter().map(|n| String::from(*n)));
                    for _ in 0..random.below(6) {
                        change(root, &mut random, &mut gone);
                    }
                }
                for name in start.difference(&gone) {
                    let count = seen.iter().filter(|n| *n == name).count();
                    assert_eq!(count, 1, "{name}");
                }
            }
        });
    }
}

/// Removes, renames or makes a name of few, and records those that did not stay.
fn change(root: &Calls, random: &mut Random, gone: &mut BTreeSet<String>) {
    let (name, other) = (random.below(80).to_string(), random.below(80).to_string());
    let (path, to) = (format!("/d/{name}"), format!("/d/{other}"));
    match random.below(5) {
        0 if root.unlink(&path).is_ok() => drop(gone.insert(name)),
        // The other name stays, if it was there.
        1 if root.rename(&path, &to, Replace).is_ok() && name != other => drop(gone.insert(name)),
        4 => drop(root.rename(&path, &to, Exchange)),
        2 | 3 => drop(root.create(&path)),
        _ => {}
    }
}

/// A file that gets another name in its directory is listed under one of the two.
#[test]
fn a_file_that_is_renamed_meanwhile_is_listed_once() {
    with_files(12, |root, dir| {
        let mut seen = read_some(&dir, 200).unwrap();
        let listed = seen.last().unwrap().name.clone();
        let later = (0..12).map(|n| n.to_string()).find(|name| {
            let is_it = |record: &Record| record.name == *name;
            !seen.iter().any(is_it)
        });
        for name in [listed, later.unwrap()] {
            let renamed = root.rename(&format!("/d/{name}"), &format!("/d/new{name}"), Replace);
            assert_eq!(renamed, Ok(()));
        }
        seen.extend(read_rest(&dir, 200).unwrap());
        let files: BTreeSet<u64> = seen.iter().map(|record| record.ino).collect();
        assert_eq!((seen.len(), files.len()), (14, 14));
    });
}

#[test]
fn names_that_stay_are_listed_once_beside_other_threads() {
    on(3, || {
        let root = Calls::of_root();
        root.mkdir("/d").unwrap();
        for n in 0..50 {
            root.create(&format!("/d/{n}")).unwrap();
        }
        let stop = Arc::new(AtomicBool::new(false));
        for worker in 0..2 {
            let stop = stop.clone();
            threads::spawn(Some(1 + worker), move || {
                let calls = Calls::of_root();
                let mut n = 0;
                while !stop.load(SeqCst) {
                    let (a, b) = (format!("/d/{worker}.{n}"), format!("/d/{worker}-{n}"));
                    calls.create(&a).unwrap();
                    calls.rename(&a, &b, Replace).unwrap();
                    calls.unlink(&b).unwrap();
                    n = (n + 1) % 7;
                }
            });
        }
        for _ in 0..20 {
            let dir = root.open("/d", o::RDONLY).unwrap();
            let records = read_rest(&dir, 300).unwrap();
            let mut stay = names(&records);
            stay.retain(|name| !name.contains(['.', '-']));
            stay.sort_by_key(|name| name.parse::<u32>().unwrap());
            let all: Vec<String> = (0..50).map(|n| n.to_string()).collect();
            assert_eq!(stay, all);
        }
        stop.store(true, SeqCst);
        threads::wait_for_ends(2);
        assert_eq!(root.list("/d").unwrap().len(), 50);
    });
}

/// A table of names that ended at 196,608 of them did so because it was one allocation.
#[test]
fn a_directory_holds_more_than_two_hundred_thousand_names() {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/m").unwrap();
        mount_plain("/m").unwrap();
        root.create("/m/f").unwrap();
        let place = root.find("/m").unwrap();
        let file = inode("/m/f");
        const MANY: usize = 200_000;
        for n in 0..MANY {
            let name = n.to_string();
            let made = vfs::tmpfs::link(root.cred(), &file, &place, name.as_bytes(), true);
            assert_eq!(made, Ok(()), "{n}");
        }
        assert_eq!(file.nlink() as usize, MANY + 1);
        for n in (0..MANY).step_by(997).chain([196_607, 196_608, 196_609]) {
            assert!(root.find(&format!("/m/{n}")).is_ok(), "{n}");
        }
        let dir = root.open("/m", o::RDONLY).unwrap();
        assert_eq!(read_rest(&dir, 1 << 20).unwrap().len(), MANY + 3);
        for n in 0..MANY {
            root.unlink(&format!("/m/{n}")).unwrap();
        }
        assert_eq!((root.list("/m"), file.nlink()), (Ok(vec!["f".into()]), 1));
        drop((place, dir));
        free_all();
    });
}

#[test]
fn a_listing_is_an_access_unless_the_mount_says_otherwise() {
    on(1, || {
        let root = Calls::of_root();
        for dir in ["/d", "/m"] {
            root.mkdir(dir).unwrap();
        }
        mount_new("/m", Settings::new(0o755), flag::NODIRATIME).unwrap();
        for (path, flags, touches) in [
            ("/d", o::RDONLY, true),
            ("/d", o::RDONLY | o::NOATIME, false),
            ("/m", o::RDONLY, false),
        ] {
            let dir = root.open(path, flags).unwrap();
            root.create(&format!("{path}/f{flags}")).unwrap();
            let before = inode(path).attr();
            read_rest(&dir, 300).unwrap();
            let after = inode(path).attr();
            assert_eq!(after.atime > before.atime, touches, "{path} {flags:o}");
            assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime));
        }
    });
}

/// A link that leads to an open file or a directory, as those in /proc/PID do.
struct Magic(fn() -> Target);

impl DynLink for Magic {
    fn target(&self) -> Result<Target> {
        Ok((self.0)())
    }
    fn text(&self, out: &mut Text) -> Result<()> {
        out.push(b"magic");
        Ok(())
    }
}

fn place_of(path: &str) -> Target {
    Target::Place(Calls::of_root().follow(path).unwrap())
}

/// A directory whose names are magic links.
struct Links;

impl vfs::dynamic::DynDir for Links {
    fn lookup(&self, this: &vfs::inode::Inode, name: &[u8]) -> Result<Arc<vfs::inode::Inode>> {
        let target: fn() -> Target = match name {
            b"dir" => || place_of("/d"),
            b"file" => || place_of("/d/f"),
            b"text" => || Target::Text(b"/d".to_vec()),
            b"near" => || Target::Text(b"setting".to_vec()),
            b"ring" => || Target::Text(b"ring".to_vec()),
            _ => return Err(NotFound),
        };
        let link = Dynamic::Link(Box::new(Magic(target)));
        Ok(link.inode(this.dev, 77, 0o777, (0, 0)))
    }
    fn list(&self, _: &vfs::inode::Inode, _: u64, _: &mut vfs::dynamic::Emit) -> Result<()> {
        Ok(())
    }
}

static TREE: &[(&str, Fixed)] = &[
    ("setting", Fixed::Setting(|out| put(out, b"7"), |_| Ok(()))),
    (
        "sub",
        Fixed::Dir(&[("one", Fixed::File(|out| put(out, b"1")))]),
    ),
    (
        "private",
        Fixed::Private(&[("two", Fixed::File(|out| put(out, b"2")))]),
    ),
    ("link", Fixed::Link("sub/one")),
    ("magic", Fixed::Made(|| Box::new(Links))),
];

fn put(out: &mut Text, bytes: &[u8]) -> Result<()> {
    out.push(bytes);
    Ok(())
}

/// The tree above mounted on `/p`, and a directory `/d` with a file.
fn with_made(check: impl FnOnce(&Calls) + Send + 'static) {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/p").unwrap();
        root.mkdir("/d").unwrap();
        root.create("/d/f").unwrap();
        root.write("/d/f", 0, b"text").unwrap();
        let dev = mount::new_dev();
        let top = Dynamic::Dir(Box::new(FixedDir(TREE))).inode(dev, 1, 0o555, (0, 0));
        let top = Dentry::new(None, b"", top, cred::Payer::NOBODY);
        let fs = Arc::new(Super {
            kind: FsKind::Proc,
            dev,
            root: top.clone(),
            quota: None,
            inodes: None,
        });
        let over = root.follow("/p").unwrap();
        mount::attach(fs, top, Some(over), String::from("made"), 0).unwrap();
        check(&root);
    });
}

#[test]
fn a_directory_made_on_demand_is_listed_from_each_position() {
    with_made(|root| {
        let dir = root.open("/p", o::RDONLY).unwrap();
        let records: Vec<Record> = read_rest(&dir, 80).unwrap();
        assert_eq!(
            names(&records),
            ["setting", "sub", "private", "link", "magic"]
        );
        for (n, record) in records.iter().enumerate() {
            dir.seek(record.next as i64, Whence::Set).unwrap();
            assert_eq!(read_rest(&dir, 80).unwrap(), records[n + 1..]);
            if n >= 2 {
                assert_eq!(record.ino, ino(&format!("/p/{}", record.name)));
            }
        }
    });
}

#[test]
fn paths_lead_through_directories_made_on_demand() {
    with_made(|root| {
        assert_eq!(root.read("/p/sub/../sub/./one"), Ok(b"1".to_vec()));
        assert_eq!(root.read("/p/link"), Ok(b"1".to_vec()));
        assert_eq!(ino("/p/sub/../.."), ino("/"));
        assert_eq!(root.find("/p/absent").err(), Some(NotFound));
        assert_eq!(root.find("/p/setting/").err(), Some(NotDir));
        assert_eq!(root.find("/p/setting/x").err(), Some(NotDir));
        assert_eq!(root.find("/p/link/").err(), Some(NotDir));
        assert_eq!(
            root.open("/p/link", o::RDONLY | o::NOFOLLOW).err(),
            Some(Loop)
        );
        assert_eq!(root.open("/p/sub", o::RDONLY | o::DIRECTORY).err(), None);
        assert_eq!(
            root.open("/p/setting", o::RDONLY | o::DIRECTORY).err(),
            Some(NotDir)
        );
        let view = View::of(Cred::root());
        view.chdir("/p/sub").unwrap();
        assert_eq!(view.cwd(), Ok((String::from("/p/sub"), true)));
        assert!(view.open("../link", o::RDONLY).is_ok());
    });
}

#[test]
fn magic_links_lead_to_places_and_to_paths() {
    with_made(|root| {
        let at = |path: &str| root.follow(path).map(|place| place.dentry.inode.ino);
        for link in ["dir", "text"] {
            let path = format!("/p/magic/{link}");
            assert_eq!(at(&path), Ok(ino("/d")));
            assert_eq!(at(&format!("{path}/")), Ok(ino("/d")));
            assert_eq!(at(&format!("{path}/f")), Ok(ino("/d/f")));
            assert_eq!(at(&format!("{path}/../d/f")), Ok(ino("/d/f")));
            assert_eq!(root.find(&path).unwrap().dentry.inode.ino, 77, "the link");
            assert_eq!(root.create(&format!("{path}/{link}")), Ok(()));
        }
        assert_eq!(
            root.list("/d"),
            Ok(vec!["dir".into(), "f".into(), "text".into()])
        );
        assert_eq!(root.read("/p/magic/file"), Ok(b"text".to_vec()));
        assert_eq!(at("/p/magic/file/"), Err(NotDir));
        assert_eq!(at("/p/magic/file/x"), Err(NotDir));
        assert_eq!(
            at("/p/magic/near"),
            Err(NotFound),
            "it is a path from its directory"
        );
        assert_eq!(at("/p/magic/ring"), Err(Loop));
        assert_eq!(at("/p/magic/absent"), Err(NotFound));
        // Plain links lead to magic ones and back.
        root.symlink("p/magic/text", "/l").unwrap();
        root.symlink("/l/f", "/m").unwrap();
        assert_eq!(at("/m"), Ok(ino("/d/f")));
        let created = root.open("/p/magic/file", o::WRONLY | o::CREAT);
        assert_eq!(created.unwrap().inode().unwrap().ino, ino("/d/f"));
    });
}

#[test]
fn nothing_is_made_or_removed_in_a_directory_made_on_demand() {
    with_made(|root| {
        assert_eq!(root.mkdir("/p/new"), Err(NotFound));
        assert_eq!(root.unlink("/p/setting"), Err(Perm));
        assert_eq!(root.rmdir("/p/sub"), Err(Perm));
        assert_eq!(root.link("/d/f", "/p/new"), Err(NotFound));
        assert_eq!(root.rename("/p/setting", "/p/sub/one", Replace), Err(Perm));
        for to in ["/p/new", "/p/link"] {
            assert_eq!(root.rename("/p/absent", to, Replace), Err(NotFound));
        }
        assert_eq!(root.rename("/p/link", "/p/new", Replace), Err(NotFound));
        let create = |path| root.open(path, o::WRONLY | o::CREAT | o::EXCL).err();
        assert_eq!(create("/p/setting"), Some(Exists));
        assert_eq!(create("/p/new"), Some(NotFound));
        assert_eq!(root.read("/p/sub/one"), Ok(b"1".to_vec()));
    });
}

#[test]
fn a_name_made_on_demand_exists_and_another_does_not() {
    with_made(|root| {
        assert_eq!(root.mkdir("/p/sub"), Err(Exists));
        assert_eq!(root.link("/d/f", "/p/setting"), Err(Exists));
        assert_eq!(root.unlink("/p/absent"), Err(NotFound));
        assert_eq!(root.rmdir("/p/absent"), Err(NotFound));
        assert_eq!(root.rmdir("/p/setting"), Err(NotDir));
        assert_eq!(root.unlink("/p/sub"), Err(IsDir));
    });
}

#[test]
fn a_directory_made_on_demand_is_a_mount_point() {
    with_made(|root| {
        bind("/d", "/p/sub", 0).unwrap();
        assert_eq!(root.read("/p/sub/f"), Ok(b"text".to_vec()));
        assert_eq!(ino("/p/sub/.."), ino("/p"));
        bind("/d/f", "/p/private/two", 0).unwrap();
        assert_eq!(root.read("/p/private/two"), Ok(b"text".to_vec()));
        for (place, file, text) in [
            ("/p/sub", "/p/sub/one", b"1"),
            ("/p/private/two", "/p/private/two", b"2"),
        ] {
            assert_eq!(umount(place, false), Ok(()));
            assert_eq!(root.read(file), Ok(text.to_vec()));
        }
    });
}

#[test]
fn a_printed_file_is_read_by_parts_and_written_at_once() {
    with_made(|root| {
        let user = Calls::of(user(USER, &[]));
        assert_eq!(user.read("/p/sub/one"), Ok(b"1".to_vec()));
        assert_eq!(user.read("/p/private/two").err(), Some(Access));
        assert_eq!(user.open("/p/private", o::RDONLY).err(), Some(Access));
        assert_eq!(root.read("/p/private/two"), Ok(b"2".to_vec()));
        assert_eq!(user.open("/p/setting", o::WRONLY).err(), Some(Access));
        assert_eq!(root.write("/p/setting", 0, b"8"), Ok(1));
        assert_eq!(root.write("/p/setting", 0, &[b'8'; 4097]), Err(Invalid));
        assert_eq!(root.write("/p/sub/one", 0, b"8"), Err(FsError::Invalid));
        let file = root.open("/p/setting", o::RDWR).unwrap();
        let mut byte = [0];
        assert_eq!(file.read(&mut IoBuf::Fill(&mut byte)), Ok(1));
        assert_eq!(file.read(&mut IoBuf::Fill(&mut byte)), Ok(0));
        assert_eq!(file.seek(0, Whence::Set), Ok(0));
        assert_eq!(
            (file.read(&mut IoBuf::Fill(&mut byte)), byte),
            (Ok(1), *b"7")
        );
    });
}
