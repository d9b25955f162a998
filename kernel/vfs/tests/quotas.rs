//! Limits of file systems in memory and of users: what counts, what is given back when, and what is freed later.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use std::sync::Arc;

use cred::{Account, Charge, Cred, Payer};
use hal::uio::IoBuf;
use support::{Calls, on};
use support_names::{
    OTHER, USER, free_all, inode, mount_new, mount_plain, nlink, set_mode, umount, user,
};
use task::current::current;
use vfs::error::FsError::{self, Access, Exists, Invalid, NoSpace, NotDir, NotEmpty};
use vfs::eventfd::EventCounter;
use vfs::fdtable::FdTable;
use vfs::file::{File, Kind, o};
use vfs::quota;
use vfs::rename::RenameMode::{Exchange, Replace};
use vfs::tmpfs::Settings;
use vm::Quota;
use vm_host::Random;

/// A file system on `/m` with these limits of pages and of files, the root directory included. Returns its quotas.
fn limited(pages: u64, files: u64) -> (&'static Quota, &'static Quota) {
    let root = Calls::of_root();
    root.mkdir("/m").unwrap();
    let mut settings = Settings::new(0o777);
    (settings.limit, settings.inodes) = (Some(pages), Some(files));
    mount_new("/m", settings, 0).unwrap();
    let fs = root.find("/m").unwrap().mount.fs.clone();
    (fs.quota.unwrap(), fs.inodes.unwrap())
}

/// Makes a file of some kind at a path.
type Make<'a> = &'a dyn Fn(&str) -> Result<(), FsError>;

#[test]
fn each_kind_of_file_counts_and_so_does_each_further_name() {
    on(1, || {
        let root = Calls::of_root();
        let (_, files) = limited(100, 6);
        assert_eq!((files.limit(), files.used()), (6, 1), "the root directory");
        let make: [(&str, Make); 5] = [
            ("/m/file", &|path| root.create(path)),
            ("/m/dir", &|path| root.mkdir(path)),
            ("/m/link", &|path| root.symlink("x", path)),
            ("/m/fifo", &|path| root.mkfifo(path)),
            ("/m/name", &|path| root.link("/m/file", path)),
        ];
        for (n, (path, make)) in make.iter().enumerate() {
            assert_eq!(make(path), Ok(()), "{path}");
            assert_eq!(files.used(), n as u64 + 2, "{path}");
        }
        for (_, make) in &make {
            assert_eq!(make("/m/more"), Err(NoSpace));
        }
        assert_eq!((files.used(), nlink("/m"), nlink("/m/file")), (6, 3, 2));
        // Each of them gives its unit back, and any other can have it.
        for (path, make) in &make[1..] {
            let gone = match *path {
                "/m/dir" => root.rmdir(path),
                _ => root.unlink(path),
            };
            assert_eq!(gone, Ok(()));
            free_all();
            assert_eq!(files.used(), 5, "{path}");
            assert_eq!(make(path), Ok(()));
        }
    });
}

#[test]
fn a_file_counts_until_its_last_name_and_its_last_close() {
    on(1, || {
        let root = Calls::of_root();
        let (_, files) = limited(100, 10);
        root.create("/m/f").unwrap();
        root.link("/m/f", "/m/g").unwrap();
        assert_eq!(files.used(), 3);
        let open = root.open("/m/f", o::RDONLY).unwrap();
        root.unlink("/m/f").unwrap();
        assert_eq!(
            files.used(),
            2,
            "a further name counts as long as it is there"
        );
        root.unlink("/m/g").unwrap();
        free_all();
        assert_eq!(files.used(), 2, "the file is open");
        drop(open);
        free_all();
        assert_eq!(files.used(), 1);
    });
}

#[test]
fn a_file_without_a_name_counts_and_its_first_name_does_not() {
    on(1, || {
        let root = Calls::of_root();
        let (_, files) = limited(100, 3);
        let file = root.open("/m", o::RDWR | o::TMPFILE).unwrap();
        assert_eq!(files.used(), 2);
        let link = |name: &[u8]| {
            let dir = root.find("/m").unwrap();
            vfs::tmpfs::link(root.cred(), file.inode().unwrap(), &dir, name, true)
        };
        assert_eq!((link(b"a"), files.used()), (Ok(()), 2));
        assert_eq!((link(b"b"), files.used()), (Ok(()), 3));
        assert_eq!((link(b"c"), files.used()), (Err(NoSpace), 3));
        assert_eq!(nlink("/m/a"), 2);
        let tmpfile = root.open("/m", o::RDWR | o::TMPFILE).err();
        assert_eq!(tmpfile, Some(NoSpace));
        root.unlink("/m/a").unwrap();
        assert_eq!((link(b"c"), files.used()), (Ok(()), 3));
    });
}

#[test]
fn a_call_that_fails_takes_nothing() {
    on(1, || {
        let root = Calls::of_root();
        let (pages, files) = limited(100, 10);
        root.mkdir("/m/d").unwrap();
        root.create("/m/d/f").unwrap();
        let before = (pages.used(), files.used());
        let user = Calls::of(user(USER, &[]));
        let long = "x".repeat(4096);
        for _ in 0..20 {
            assert_eq!(root.create("/m/d/f"), Err(Exists));
            assert_eq!(root.mkdir("/m/d"), Err(Exists));
            assert_eq!(root.link("/m/d/f", "/m/d/f"), Err(Exists));
            assert_eq!(user.create("/m/d/g"), Err(Access));
            assert_eq!(user.link("/m/d/f", "/m/d/g"), Err(FsError::Perm));
            assert_eq!(root.symlink(&long, "/m/l"), Err(FsError::NameTooLong));
            assert_eq!(root.rmdir("/m/d"), Err(NotEmpty));
            assert_eq!(root.rename("/m/d", "/m/d/f", Replace), Err(Invalid));
            assert_eq!(root.rename("/m/d/f", "/m/d/f/x", Replace), Err(NotDir));
        }
        free_all();
        assert_eq!((pages.used(), files.used()), before);
    });
}

#[test]
fn a_rename_takes_nothing_and_gives_back_what_it_replaces() {
    on(1, || {
        let root = Calls::of_root();
        let (_, files) = limited(100, 5);
        for name in ["/m/a", "/m/b", "/m/c"] {
            root.create(name).unwrap();
        }
        root.link("/m/c", "/m/d").unwrap();
        assert_eq!(files.used(), 5);
        assert_eq!(root.rename("/m/a", "/m/new", Replace), Ok(()));
        assert_eq!(root.rename("/m/new", "/m/c", Exchange), Ok(()));
        assert_eq!(files.used(), 5);
        assert_eq!(root.rename("/m/b", "/m/d", Replace), Ok(()));
        free_all();
        assert_eq!(files.used(), 4, "one of two names");
        assert_eq!(root.rename("/m/d", "/m/new", Replace), Ok(()));
        free_all();
        assert_eq!(files.used(), 3, "a file and its last name");
    });
}

#[test]
fn a_limit_changes_but_not_below_what_is_in_use() {
    on(1, || {
        let root = Calls::of_root();
        let (pages, files) = limited(4, 3);
        root.create("/m/f").unwrap();
        root.write("/m/f", 0, &[1; 3 * 4096]).unwrap();
        root.create("/m/g").unwrap();
        assert_eq!(root.create("/m/h"), Err(NoSpace));
        assert_eq!(quota::resize(files, 2), Err(Invalid));
        assert_eq!(quota::resize(pages, 2), Err(Invalid));
        assert_eq!((files.limit(), pages.limit()), (3, 4));
        assert_eq!(quota::resize(files, 4), Ok(()));
        assert_eq!(
            (root.create("/m/h"), root.create("/m/i")),
            (Ok(()), Err(NoSpace))
        );
        assert_eq!(quota::resize(pages, 3), Ok(()));
        assert_eq!(root.write("/m/g", 0, b"x"), Err(NoSpace));
        root.truncate("/m/f", 4096).unwrap();
        assert_eq!(root.write("/m/g", 0, b"x"), Ok(1));
        assert_eq!((pages.used(), pages.left()), (2, 1));
    });
}

#[test]
fn the_last_page_is_written_and_no_other() {
    on(1, || {
        let root = Calls::of_root();
        let (pages, _) = limited(5, 100);
        root.create("/m/f").unwrap();
        assert_eq!(
            root.write("/m/f", 0, &[1; 7 * 4096]),
            Ok(5 * 4096),
            "a part"
        );
        assert_eq!(inode("/m/f").size(), 5 * 4096);
        assert_eq!(root.write("/m/f", 5 * 4096, b"x"), Err(NoSpace));
        assert_eq!(
            root.write("/m/f", 4096, b"x"),
            Ok(1),
            "a page that is there"
        );
        root.create("/m/g").unwrap();
        assert_eq!(root.write("/m/g", 0, b"x"), Err(NoSpace));
        assert_eq!(root.truncate("/m/g", 1 << 30), Ok(()), "a hole takes none");
        assert_eq!((pages.used(), inode("/m/g").attr().blocks), (5, 0));
        root.unlink("/m/f").unwrap();
        assert_eq!(pages.used(), 0);
        assert_eq!(root.write("/m/g", 1 << 29, b"x"), Ok(1));
        assert_eq!((pages.used(), inode("/m/g").attr().blocks), (1, 8));
    });
}

#[test]
fn an_open_file_without_a_name_keeps_its_pages() {
    on(1, || {
        let root = Calls::of_root();
        let (pages, _) = limited(3, 100);
        root.create("/m/f").unwrap();
        let open = root.open("/m/f", o::RDWR).unwrap();
        root.write("/m/f", 0, &[1; 3 * 4096]).unwrap();
        root.unlink("/m/f").unwrap();
        root.create("/m/g").unwrap();
        assert_eq!(root.write("/m/g", 0, b"x"), Err(NoSpace));
        let mut bytes = vec![0; 3 * 4096];
        assert_eq!(open.read(&mut IoBuf::Fill(&mut bytes)), Ok(3 * 4096));
        drop(open);
        free_all();
        assert_eq!((pages.used(), root.write("/m/g", 0, b"x")), (0, Ok(1)));
    });
}

#[test]
fn the_text_of_a_long_link_takes_a_page() {
    on(1, || {
        let root = Calls::of_root();
        let (pages, _) = limited(2, 100);
        root.symlink(&"x".repeat(127), "/m/short").unwrap();
        assert_eq!(pages.used(), 0);
        for name in ["/m/a", "/m/b"] {
            root.symlink(&"x".repeat(128), name).unwrap();
        }
        assert_eq!((pages.used(), inode("/m/a").attr().blocks), (2, 8));
        let files = root.find("/m").unwrap().mount.fs.inodes.unwrap();
        let before = files.used();
        assert_eq!(root.symlink(&"x".repeat(128), "/m/c"), Err(NoSpace));
        free_all();
        assert_eq!(files.used(), before, "its file is given back");
        root.unlink("/m/a").unwrap();
        free_all();
        assert_eq!(root.symlink(&"x".repeat(128), "/m/c"), Ok(()));
    });
}

#[test]
fn a_file_system_without_a_limit_has_no_quota() {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/m").unwrap();
        mount_plain("/m").unwrap();
        let fs = root.find("/m").unwrap().mount.fs.clone();
        assert!(fs.quota.is_none() && fs.inodes.is_none());
        let usual = quota::default_limit();
        for n in 0..usual + 100 {
            root.mkdir(&format!("/m/{n}")).unwrap();
        }
        let top = root.find("/").unwrap().mount.fs.inodes.unwrap();
        assert_eq!((top.limit(), top.used()), (usual, 2));
    });
}

#[test]
fn two_file_systems_do_not_share_a_limit() {
    on(1, || {
        let root = Calls::of_root();
        let (_, files) = limited(10, 4);
        for n in 0..3 {
            root.create(&format!("/m/{n}")).unwrap();
        }
        root.mkdir("/n").unwrap();
        let mut settings = Settings::new(0o755);
        settings.inodes = Some(2);
        mount_new("/n", settings, 0).unwrap();
        assert_eq!(root.create("/m/more"), Err(NoSpace));
        assert_eq!(
            (root.create("/n/f"), root.create("/n/g")),
            (Ok(()), Err(NoSpace))
        );
        assert_eq!(files.used(), 4);
    });
}

#[test]
fn a_quota_is_used_again_only_when_nothing_is_charged_to_it() {
    on(1, || {
        let first = quota::claim(10).unwrap();
        let second = quota::claim(10).unwrap();
        assert!(!std::ptr::eq(first, second));
        assert!(first.charge(&ksync::pin()));
        quota::release(first);
        let third = quota::claim(5).unwrap();
        assert!(
            !std::ptr::eq(third, first),
            "a mapping may still have a page of it"
        );
        first.give(&ksync::pin(), 1);
        let fourth = quota::claim(7).unwrap();
        assert!(std::ptr::eq(fourth, first));
        assert_eq!((fourth.limit(), fourth.left()), (7, 7));
        let fifth = quota::claim(1).unwrap();
        assert!(!std::ptr::eq(fifth, first) && !std::ptr::eq(fifth, second));
    });
}

#[test]
fn numbers_and_sizes_are_read_as_mount_options_are() {
    on(1, || {
        let number = quota::parse_number;
        assert_eq!(
            (number("0"), number("12"), number("3k")),
            (Some(0), Some(12), Some(3072))
        );
        assert_eq!((number("2M"), number("1g")), (Some(2 << 20), Some(1 << 30)));
        assert_eq!(
            (number("1t"), number("1P"), number("1e")),
            (Some(1 << 40), Some(1 << 50), Some(1 << 60))
        );
        for bad in [
            "",
            "k",
            "-1",
            "1kk",
            "0x10",
            "1 k",
            "16e",
            "99999999999999999999",
        ] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
        let size = |text: &str| quota::parse_size(text.as_bytes());
        assert_eq!(
            (size("0"), size("1"), size("4096"), size("4097")),
            (Some(0), Some(1), Some(1), Some(2))
        );
        assert_eq!(size("8k"), Some(2));
        assert_eq!(size("50%"), Some(quota::default_limit()));
        assert_eq!(size("100%"), Some(mem::vm().alloc.total_pages() as u64));
        assert_eq!(
            (size("%"), size("x%"), size(""), quota::parse_size(&[0xff])),
            (None, None, None, None)
        );
    });
}

/// A user whose names are charged to an account of his own.
fn payer(uid: u32) -> Cred {
    let mut cred = user(uid, &[]);
    let account = Box::leak(Box::new(Account::new(1, uid)));
    cred.payer = Payer::new(account);
    cred
}

/// The names of one user take a quarter of memory at most.
#[test]
fn a_user_makes_no_more_names_than_memory_allows() {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/m").unwrap();
        mount_plain("/m").unwrap();
        set_mode("/m", 0o777);
        let cred = payer(USER);
        let held = || cred.payer.held(Charge::Names);
        let user = Calls::of(cred.clone());
        user.create("/m/first").unwrap();
        let each = held();
        let mut n = 0;
        let full = loop {
            match user.create(&format!("/m/{n}")) {
                Ok(()) => n += 1,
                Err(error) => break error,
            }
            assert!(n < 100_000, "there is no limit");
        };
        let most = mem::vm().alloc.total_pages() as u64 / 4 * 4096;
        assert_eq!(full, NoSpace);
        assert!(
            held() <= most + (1 << 17) && held() + (1 << 17) >= most,
            "{}",
            held()
        );
        for made in [
            user.mkdir("/m/d"),
            user.symlink("x", "/m/l"),
            user.link("/m/first", "/m/k"),
        ] {
            assert_eq!(made, Err(NoSpace));
        }
        let tmpfile = user.open("/m", o::RDWR | o::TMPFILE).err();
        assert_eq!(tmpfile, Some(NoSpace));
        // Others, and root, are not concerned.
        assert_eq!(Calls::of(payer(OTHER)).create("/m/other"), Ok(()));
        assert_eq!(root.create("/m/root"), Ok(()));
        for n in 0..n {
            user.unlink(&format!("/m/{n}")).unwrap();
        }
        free_all();
        assert_eq!((held(), user.create("/m/again")), (each, Ok(())));
    });
}

#[test]
fn a_name_stays_charged_to_the_user_that_made_it() {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/m").unwrap();
        set_mode("/m", 0o777);
        let (one, two) = (payer(USER), payer(OTHER));
        let held = |cred: &Cred| cred.payer.held(Charge::Names);
        let user = Calls::of(one.clone());
        user.create("/m/f").unwrap();
        let before = held(&one);
        assert!(before > 0);
        support_names::give("/m/f", OTHER, OTHER);
        Calls::of(two.clone())
            .rename("/m/f", "/m/much-longer", Replace)
            .unwrap();
        free_all();
        assert_eq!(
            (held(&one), held(&two)),
            (before + 10, 0),
            "ten letters more"
        );
        Calls::of(two.clone())
            .link("/m/much-longer", "/m/f")
            .unwrap();
        assert!(held(&two) > 0);
        root.unlink("/m/much-longer").unwrap();
        root.unlink("/m/f").unwrap();
        free_all();
        assert_eq!((held(&one), held(&two)), (0, 0));
    });
}

#[test]
fn a_deep_tree_goes_with_its_file_system() {
    on(1, || {
        let root = Calls::of_root();
        let (pages, files) = limited(1000, 1000);
        let mut path = String::from("/m");
        for n in 0..300 {
            path.push_str("/d");
            root.mkdir(&path).unwrap();
            if n % 50 == 0 {
                root.create(&format!("{path}/f")).unwrap();
                root.write(&format!("{path}/f"), 0, &[1; 5000]).unwrap();
            }
        }
        assert_eq!((pages.used(), files.used()), (12, 307));
        umount("/m", true).unwrap();
        free_all();
        assert_eq!((pages.used(), files.used()), (0, 0));
        assert!(!vfs::leftover::finish(), "nothing is left");
    });
}

#[test]
fn a_removed_chain_of_directories_is_freed_when_the_last_one_is_left() {
    on(1, || {
        let root = Calls::of_root();
        let (_, files) = limited(1000, 1000);
        let mut paths = vec![String::from("/m")];
        for n in 0..200 {
            let path = format!("{}/d", paths[n]);
            root.mkdir(&path).unwrap();
            paths.push(path);
        }
        let deepest = root.open(&paths[200], o::PATH).unwrap();
        for path in paths[1..].iter().rev() {
            root.rmdir(path).unwrap();
        }
        free_all();
        assert_eq!(
            files.used(),
            201,
            "each is the parent of one that is in use"
        );
        drop(deepest);
        free_all();
        assert_eq!(files.used(), 1);
    });
}

#[test]
fn random_changes_leave_the_quota_with_what_is_there() {
    for seed in [0x1234_5678, 0xfeed_f00d_0001] {
        on(1, move || random_changes(seed));
    }
}

fn random_changes(seed: u64) {
    let (root, mut random) = (Calls::of_root(), Random(seed));
    let (_, files) = limited(1000, 25);
    let dirs = ["/m", "/m/x", "/m/y"];
    root.mkdir(dirs[1]).unwrap();
    root.mkdir(dirs[2]).unwrap();
    let mut open = Vec::new();
    for n in 0..2000 {
        let path = |random: &mut Random| format!("{}/{}", dirs[random.below(3)], random.below(12));
        let (a, b) = (path(&mut random), path(&mut random));
        let result = match random.below(9) {
            0 | 1 => root.create(&a),
            2 => root.mkdir(&a),
            3 => root.link(&a, &b),
            4 => root.unlink(&a),
            5 => root.rmdir(&a),
            6 => root.rename(&a, &b, if n % 2 == 0 { Replace } else { Exchange }),
            7 if open.len() < 4 => root.open(&a, o::RDONLY).map(|file| open.push(file)),
            _ => {
                open.clear();
                Ok(())
            }
        };
        let full = files.left() == 0;
        assert!(result != Err(NoSpace) || full, "there was room");
        if n % 50 == 0 {
            open.clear();
            free_all();
            assert_eq!(files.used(), count(&root, "/m"), "after {n}");
        }
    }
}

/// The units of what lies below a directory: one for itself, one for each name.
fn count(root: &Calls, dir: &str) -> u64 {
    let names = root.list(dir).unwrap();
    let below = names.iter().map(|name| {
        let path = format!("{dir}/{name}");
        if inode(&path).is_dir() {
            count(root, &path)
        } else {
            1
        }
    });
    1 + below.sum::<u64>()
}

#[test]
fn what_the_file_systems_hold_is_counted_once() {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/d").unwrap();
        root.create("/d/f").unwrap();
        root.write("/d/f", 0, &[1; 9000]).unwrap();
        root.link("/d/f", "/g").unwrap();
        root.create("/empty").unwrap();
        let (pages, _) = limited(100, 100);
        root.create("/m/f").unwrap();
        root.write("/m/f", 0, b"x").unwrap();
        support_names::bind("/m", "/d", 0).unwrap();
        let held = vfs::account::holdings().unwrap();
        // Below the root: d, d/f, g, empty, m; and m/f in the other file system.
        assert_eq!((held.names, held.files, held.frames), (6, 2, 4));
        assert_eq!(pages.used(), 1);
    });
}

/// What the kernel keeps for each of two users with one table of descriptors that the first has made large, when the second has
/// put a file into it as well.
#[test]
fn a_large_table_of_descriptors_is_charged_to_the_user_that_made_it_grow() {
    on(1, || {
        let table = FdTable::new();
        let held = [(USER, 0), (USER, 5000), (OTHER, 1)].map(|(uid, fd)| {
            let cred = payer(uid);
            let payer = cred.payer;
            drop(current().replace_cred(Arc::new(cred)));
            let counter = Kind::Other(Box::new(EventCounter::new(0, false)));
            let file = File::open(None, counter, o::RDWR);
            assert_eq!(table.add(file, false, fd, u64::MAX), Ok(fd as i32));
            move || payer.held(Charge::Memory)
        });
        let [_, first, second] = held.map(|held| held());
        assert!(first >= 4096 && second < 4096, "{first} and {second}");
    });
}
