//! Listings of directories: which names they have while names come and go, and their positions.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use hal::uio::IoBuf;
use support::{Calls, on, threads};
use support_names::{
    Record, USER, free_all, ino, inode, mount_new, mount_plain, names, read_rest, read_some,
    set_mode, user,
};
use vfs::error::FsError::{Access, BadFd, Invalid, IsDir, NotDir, NotFound};
use vfs::file::{FileRef, Whence, o};
use vfs::place::flag;
use vfs::rename::RenameMode::{Exchange, Replace};
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
        root.mkdir("/empty").unwrap();
        let empty = root.open("/empty", o::RDONLY).unwrap();
        assert_eq!(read_some(&empty, len - 1), Err(Invalid), "it has dots");
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
