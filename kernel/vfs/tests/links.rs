//! Symbolic links and hard links: where they lead, how many are followed, and which are refused.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use cred::{Cap, CapSet, Cred};
use support::{Calls, on};
use support_names::{
    OTHER, USER, View, bits, give, ino, inode, mount_plain, nlink, set_mode, user,
};
use vfs::error::FsError::{
    self, Access, CrossDevice, Exists, Loop, NameTooLong, NotDir, NotFound, Perm,
};
use vfs::file::o;
use vfs::inode::mode;
use vfs::protect;
use vfs::rename::RenameMode::Replace;
use vfs::tmpfs;
use vfs::walk::Want;

/// Root's calls and those of a user, with a directory that all may write, `/all`, and one that is sticky as well, `/tmp`.
fn with(check: impl FnOnce(&Calls, &Calls) + Send + 'static) {
    on(1, || {
        let root = Calls::of_root();
        for (dir, bits) in [("/all", 0o777), ("/tmp", 0o1777)] {
            root.mkdir(dir).unwrap();
            set_mode(dir, bits);
        }
        check(&root, &Calls::of(user(USER, &[])));
    });
}

/// The inode number at a path; a link at its end is followed.
fn found(calls: &Calls, path: &str) -> Result<u64, FsError> {
    calls.follow(path).map(|place| place.dentry.inode.ino)
}

#[test]
fn a_link_begins_at_its_directory_or_at_the_root() {
    with(|root, _| {
        root.mkdir("/d").unwrap();
        root.mkdir("/d/e").unwrap();
        for file in ["/f", "/d/f", "/d/e/f"] {
            root.create(file).unwrap();
        }
        for (text, leads_to) in [
            ("f", "/d/e/f"),
            ("./f", "/d/e/f"),
            ("../f", "/d/f"),
            ("/f", "/f"),
            ("/d/f", "/d/f"),
            ("..", "/d"),
            (".", "/d/e"),
            ("/", "/"),
            ("../../..", "/"),
        ] {
            root.symlink(text, "/d/e/l").unwrap();
            assert_eq!(found(root, "/d/e/l"), Ok(ino(leads_to)), "{text}");
            let view = View::of(Cred::root());
            view.chdir("/d").unwrap();
            assert_eq!(view.ino("e/l"), Ok(ino(leads_to)), "{text}");
            root.unlink("/d/e/l").unwrap();
        }
    });
}

#[test]
fn a_link_in_the_middle_is_always_followed() {
    with(|root, _| {
        root.mkdir("/d").unwrap();
        root.create("/d/f").unwrap();
        root.symlink("d", "/l").unwrap();
        let place = root.find("/l/f").unwrap();
        assert_eq!(place.dentry.inode.ino, ino("/d/f"));
        let link = root.find("/l").unwrap();
        assert_eq!(link.dentry.inode.kind(), mode::LNK);
        // Dots after a link belong to where it leads.
        root.mkdir("/d/e").unwrap();
        root.symlink("d/e", "/m").unwrap();
        assert_eq!(found(root, "/m/.."), Ok(ino("/d")));
        assert_eq!(found(root, "/m/../f"), Ok(ino("/d/f")));
    });
}

#[test]
fn links_in_a_ring_are_not_followed_for_ever() {
    with(|root, _| {
        root.symlink("self", "/self").unwrap();
        root.symlink("/b", "/a").unwrap();
        root.symlink("a", "/b").unwrap();
        root.symlink("longer/x", "/longer").unwrap();
        for path in ["/self", "/a", "/b", "/self/x", "/longer", "/self/"] {
            assert_eq!(found(root, path), Err(Loop), "{path}");
            assert_eq!(root.open(path, o::RDONLY).err(), Some(Loop), "{path}");
        }
        for path in ["/self", "/a"] {
            let created = root.open(path, o::WRONLY | o::CREAT).err();
            assert_eq!(created, Some(Loop), "{path}");
            assert!(root.find(path).is_ok(), "{path} is a link");
            assert_eq!(root.unlink(path), Ok(()), "{path}");
        }
    });
}

/// path_resolution(7): the most links that one lookup follows is 40.
#[test]
fn forty_links_at_the_end_are_followed_and_no_more() {
    with(|root, _| {
        root.create("/l0").unwrap();
        for n in 1..=41 {
            root.symlink(&format!("l{}", n - 1), &format!("/l{n}"))
                .unwrap();
        }
        assert_eq!(found(root, "/l40"), Ok(ino("/l0")));
        assert_eq!(found(root, "/l41"), Err(Loop));
        let open = |path| root.open(path, o::WRONLY | o::CREAT).map(drop);
        assert_eq!(open("/l40"), Ok(()));
        assert_eq!(open("/l41"), Err(Loop));
        assert!(root.find("/l41").is_ok(), "the link itself");
    });
}

#[test]
fn forty_links_on_the_way_are_followed_and_no_more() {
    with(|root, _| {
        root.create("/f").unwrap();
        root.symlink(".", "/l").unwrap();
        root.symlink("/", "/m").unwrap();
        for link in ["l", "m"] {
            let path = |n: usize| format!("/{}f", format!("{link}/").repeat(n));
            assert_eq!(found(root, &path(40)), Ok(ino("/f")));
            assert_eq!(found(root, &path(41)), Err(Loop));
            assert!(root.find(&path(40)).is_ok());
            assert!(root.find(&path(41)).is_err());
            let made = |n: usize| root.mkdir(&format!("{}{n}", path(n)));
            assert_eq!(made(40), Ok(()));
            assert_eq!(made(41), Err(Loop));
            root.rmdir("/f40").unwrap();
        }
    });
}

/// The links before the last component and those at it are one sum.
#[test]
fn an_open_that_creates_follows_forty_links_in_all() {
    with(|root, _| {
        root.symlink(".", "/here").unwrap();
        root.symlink("here/here/f1", "/f0").unwrap();
        let text = format!("{}f", "here/".repeat(38));
        root.symlink(&text, "/f1").unwrap();
        // 2 on the way, 38 on the way, and the two links at the end.
        assert_eq!(found(root, "/f0"), Err(Loop));
        let made = root.open("/f0", o::WRONLY | o::CREAT).map(drop);
        assert_eq!(made, Err(Loop));
    });
}

/// A lookup keeps a few texts; with more of them it begins anew in between.
#[test]
fn links_may_lie_in_the_texts_of_links() {
    with(|root, _| {
        let mut path = String::new();
        for depth in 0..=30 {
            path.push_str("/d");
            root.mkdir(&path).unwrap();
            root.create(&format!("{path}/{depth}")).unwrap();
        }
        // Each link leads one directory deeper than the one before, by its text.
        root.symlink("d", "/l0").unwrap();
        root.symlink("/d", "/m0").unwrap();
        for n in 1..=30 {
            root.symlink(&format!("l{}/d", n - 1), &format!("/l{n}"))
                .unwrap();
            root.symlink(&format!("/m{}//d/", n - 1), &format!("/m{n}"))
                .unwrap();
        }
        for n in 0..=30 {
            let dir = "/d".repeat(n + 1);
            for link in ["l", "m"] {
                let path = format!("/{link}{n}");
                assert_eq!(found(root, &path), Ok(ino(&dir)), "{path}");
                assert_eq!(found(root, &format!("{path}/")), Ok(ino(&dir)), "{path}/");
                let (file, more) = (format!("{path}/{n}"), format!("{path}/{n}/"));
                assert_eq!(found(root, &file), Ok(ino(&format!("{dir}/{n}"))));
                assert_eq!(found(root, &more), Err(NotDir), "{more}");
                assert_eq!(found(root, &format!("{path}/absent")), Err(NotFound));
            }
        }
    });
}

#[test]
fn the_text_of_a_link_has_4095_bytes_and_no_more() {
    with(|root, _| {
        root.create("/f").unwrap();
        let text = format!("{}f", "./".repeat(2047));
        assert_eq!(text.len(), 4095);
        assert_eq!(root.symlink(&text, "/l"), Ok(()));
        assert_eq!(root.readlink("/l"), Ok(text.clone()));
        assert_eq!(inode("/l").size(), 4095);
        assert_eq!(found(root, "/l"), Ok(ino("/f")));
        assert_eq!(root.symlink(&format!("/{text}"), "/m"), Err(NameTooLong));
        assert_eq!(found(root, "/m"), Err(NotFound));
        // Forty of them, one after another.
        root.symlink(&format!("{}.", "./".repeat(2047)), "/h")
            .unwrap();
        let path = format!("/{}f", "h/".repeat(40));
        assert_eq!(found(root, &path), Ok(ino("/f")));
    });
}

#[test]
fn a_creating_open_makes_what_a_link_names() {
    with(|root, _| {
        root.mkdir("/d").unwrap();
        root.symlink("../made", "/d/l").unwrap();
        root.symlink("d/l", "/m").unwrap();
        root.symlink("none/f", "/d/n").unwrap();
        let open = |path, flags| root.open(path, o::WRONLY | o::CREAT | flags).map(drop);
        assert_eq!(open("/m", o::EXCL), Err(Exists));
        assert_eq!(open("/m", o::NOFOLLOW), Err(Loop));
        assert_eq!(found(root, "/made"), Err(NotFound));
        assert_eq!(open("/m", 0), Ok(()));
        assert_eq!(found(root, "/m"), Ok(ino("/made")));
        assert_eq!(open("/d/n", 0), Err(NotFound));
        // A relative text begins at the directory of its link.
        root.symlink("near", "/d/k").unwrap();
        assert_eq!(open("/d/k", 0), Ok(()));
        assert_eq!(found(root, "/d/k"), Ok(ino("/d/near")));
        assert_eq!(root.readlink("/d/l"), Ok(String::from("../made")));
        // mkdir(2) and the like do not look where a link leads.
        root.unlink("/made").unwrap();
        assert_eq!(root.mkdir("/m"), Err(Exists));
        assert_eq!(root.symlink("x", "/m"), Err(Exists));
        assert_eq!(root.link("/d/l", "/m"), Err(Exists));
    });
}

#[test]
fn the_names_of_a_file_are_counted() {
    with(|root, _| {
        root.create("/f").unwrap();
        root.write("/f", 0, b"text").unwrap();
        for n in 1..=5 {
            assert_eq!(nlink("/f"), n);
            root.link("/f", &format!("/all/{n}")).unwrap();
            assert_eq!(ino(&format!("/all/{n}")), ino("/f"));
        }
        root.unlink("/f").unwrap();
        assert_eq!(
            (nlink("/all/1"), root.read("/all/3")),
            (5, Ok(b"text".to_vec()))
        );
        root.rename("/all/1", "/all/2", Replace).unwrap();
        assert_eq!(
            nlink("/all/1"),
            5,
            "two names of one file: nothing is renamed"
        );
        root.create("/g").unwrap();
        root.rename("/g", "/all/1", Replace).unwrap();
        assert_eq!((nlink("/all/1"), nlink("/all/2")), (1, 4));
        for n in 2..=4 {
            root.unlink(&format!("/all/{n}")).unwrap();
        }
        assert_eq!(
            (nlink("/all/5"), root.read("/all/5")),
            (1, Ok(b"text".to_vec()))
        );
    });
}

#[test]
fn a_directory_has_a_link_for_each_directory_in_it() {
    with(|root, _| {
        root.mkdir("/d").unwrap();
        assert_eq!(nlink("/d"), 2);
        root.mkdir("/d/a").unwrap();
        root.mkdir("/d/b").unwrap();
        root.create("/d/f").unwrap();
        root.symlink("a", "/d/l").unwrap();
        assert_eq!((nlink("/d"), nlink("/d/a")), (4, 2));
        root.rmdir("/d/a").unwrap();
        assert_eq!(nlink("/d"), 3);
        let gone = inode("/d/b");
        root.rename("/d/b", "/b", Replace).unwrap();
        assert_eq!((nlink("/d"), gone.nlink()), (2, 2));
        root.rmdir("/b").unwrap();
        assert_eq!(gone.nlink(), 0);
    });
}

#[test]
fn a_directory_gets_no_second_name() {
    with(|root, user| {
        root.mkdir("/d").unwrap();
        assert_eq!(root.link("/d", "/e"), Err(Perm));
        assert_eq!(root.link("/d", "/d/e"), Err(Perm));
        assert_eq!(root.link("/", "/d/e"), Err(Perm));
        assert_eq!(user.link("/d", "/all/e"), Err(Perm));
        assert_eq!((nlink("/d"), nlink("/all")), (2, 2));
        assert_eq!(root.list("/d"), Ok(vec![]));
        assert_eq!(
            root.link("/d", "/all"),
            Err(Exists),
            "the name is looked at first"
        );
    });
}

#[test]
fn a_link_to_a_link_is_one_more_name_of_it() {
    with(|root, _| {
        root.symlink("nowhere", "/l").unwrap();
        root.link("/l", "/m").unwrap();
        assert_eq!((ino("/l"), nlink("/l")), (ino("/m"), 2));
        assert_eq!(root.readlink("/m"), Ok(String::from("nowhere")));
        assert_eq!(root.link("/absent", "/n"), Err(NotFound));
        root.mkfifo("/p").unwrap();
        root.link("/p", "/q").unwrap();
        assert_eq!(nlink("/q"), 2);
    });
}

#[test]
fn a_link_changes_the_times_of_the_file_and_of_the_directory() {
    with(|root, _| {
        root.mkdir("/d").unwrap();
        root.create("/f").unwrap();
        let times = |path| (inode(path).attr().ctime, inode(path).attr().mtime);
        let (file, dir) = (times("/f"), times("/d"));
        root.link("/f", "/d/g").unwrap();
        assert!(
            times("/f").0 > file.0,
            "the number of links is an attribute"
        );
        assert_eq!(times("/f").1, file.1);
        assert!(times("/d").0 > dir.0 && times("/d").1 > dir.1);
        let (file, dir) = (times("/f"), times("/d"));
        root.unlink("/d/g").unwrap();
        assert!(times("/f").0 > file.0);
        assert!(times("/d").1 > dir.1);
        let dir = times("/d");
        assert_eq!(root.link("/f", "/d/x/y"), Err(NotFound));
        assert_eq!(root.unlink("/d/x"), Err(NotFound));
        assert_eq!(times("/d"), dir, "nothing has happened");
    });
}

/// proc(5), `protected_hardlinks`: only to files that the caller owns, or could read and write, and that are safe.
#[test]
fn a_user_links_to_his_own_files_and_to_harmless_ones() {
    with(|root, user| {
        root.create("/f").unwrap();
        root.mkfifo("/p").unwrap();
        let try_file = |bits| {
            set_mode("/f", bits);
            let made = user.link("/f", "/all/new");
            let _gone = root.unlink("/all/new");
            made
        };
        for (bits, allowed) in [
            (0o644, false),
            (0o642, false),
            (0o666, true),
            (0o4666, false),
            (0o2676, false),
            // Without the group's permission to execute it is no privilege.
            (0o2666, true),
            (0o1666, true),
        ] {
            give("/f", 0, 0);
            assert_eq!(try_file(bits).is_ok(), allowed, "{bits:o}");
            give("/f", USER, USER);
            assert_eq!(try_file(bits), Ok(()), "{bits:o}: his own");
        }
        set_mode("/p", 0o666);
        assert_eq!(user.link("/p", "/all/p"), Err(Perm), "no regular file");
        give("/f", 0, 0);
        protect::HARDLINKS.set(0).unwrap();
        assert_eq!(try_file(0o4700), Ok(()));
        assert_eq!(user.link("/p", "/all/p"), Ok(()));
    });
}

#[test]
fn the_capability_of_an_owner_makes_hard_links() {
    with(|root, _| {
        root.create("/f").unwrap();
        set_mode("/f", 0o4700);
        let mut cred = user(USER, &[]);
        cred.caps.effective = CapSet::of(&[Cap::Fowner]);
        assert_eq!(Calls::of(cred).link("/f", "/all/f"), Ok(()));
        let mut cred = user(USER, &[]);
        cred.caps.effective = CapSet::of(&[Cap::DacOverride]);
        assert_eq!(Calls::of(cred).link("/f", "/all/g"), Err(Perm));
    });
}

/// proc(5), `protected_symlinks`: in a sticky directory that all may write a link is followed only by its owner, or if the
/// directory's owner has made it.
#[test]
fn a_planted_link_is_not_followed() {
    with(|root, user| {
        root.create("/f").unwrap();
        set_mode("/f", 0o666);
        let other = Calls::of(support_names::user(OTHER, &[]));
        for (dir_bits, dir_owner, link_owner, caller, allowed) in [
            (0o1777, 0, OTHER, user, false),
            (0o1777, 0, OTHER, root, false),
            (0o1777, 0, OTHER, &other, true),
            (0o1777, OTHER, OTHER, user, true),
            (0o1777, 0, 0, user, true),
            (0o777, 0, OTHER, user, true),
            (0o1775, 0, OTHER, user, true),
        ] {
            root.symlink("/f", "/tmp/l").unwrap();
            give("/tmp", dir_owner, dir_owner);
            set_mode("/tmp", dir_bits);
            give("/tmp/l", link_owner, link_owner);
            let case = (bits("/tmp"), dir_owner, link_owner, allowed);
            let may = if allowed { Ok(ino("/f")) } else { Err(Access) };
            assert_eq!(found(caller, "/tmp/l"), may, "{case:?}");
            let opened = caller.open("/tmp/l", o::WRONLY | o::CREAT);
            assert_eq!(opened.is_ok(), allowed, "{case:?}");
            assert!(caller.find("/tmp/l").is_ok(), "not followed");
            root.unlink("/tmp/l").unwrap();
        }
    });
}

#[test]
fn a_planted_link_in_the_middle_of_a_path_is_followed() {
    with(|root, user| {
        root.mkdir("/d").unwrap();
        root.create("/d/f").unwrap();
        set_mode("/d", 0o777);
        root.symlink("/d", "/tmp/l").unwrap();
        give("/tmp/l", OTHER, OTHER);
        assert_eq!(found(user, "/tmp/l"), Err(Access));
        assert_eq!(found(user, "/tmp/l/"), Err(Access));
        assert_eq!(found(user, "/tmp/l/f"), Ok(ino("/d/f")));
        assert_eq!(user.create("/tmp/l/new"), Ok(()));
        assert_eq!(user.unlink("/tmp/l/new"), Ok(()));
        // At the end of another link's text it is at the end of the path.
        root.symlink("/tmp/l", "/m").unwrap();
        assert_eq!(found(user, "/m"), Err(Access));
        assert_eq!(found(user, "/m/f"), Ok(ino("/d/f")));
        protect::SYMLINKS.set(0).unwrap();
        assert_eq!(found(user, "/tmp/l"), Ok(ino("/d")));
    });
}

/// proc(5), `protected_regular` and `protected_fifos`.
#[test]
fn an_open_that_may_create_does_not_take_what_others_have_laid() {
    with(|root, _| {
        let user = Calls::of(support_names::user(USER, &[0]));
        let take = |name: &str| {
            let flags = o::RDWR | o::NONBLOCK | o::CREAT;
            user.open(&format!("/tmp/{name}"), flags).map(drop)
        };
        for (regular, fifos, dir_bits, takes_file, takes_fifo) in [
            (0, 0, 0o1777, true, true),
            (1, 0, 0o1777, false, true),
            (0, 1, 0o1777, true, false),
            (1, 1, 0o1775, true, true),
            (2, 1, 0o1775, false, true),
            (1, 2, 0o1775, true, false),
            (2, 2, 0o775, true, true),
            (2, 2, 0o1755, true, true),
        ] {
            protect::REGULAR.set(regular).unwrap();
            protect::FIFOS.set(fifos).unwrap();
            root.create("/tmp/f").unwrap();
            root.mkfifo("/tmp/p").unwrap();
            for name in ["/tmp/f", "/tmp/p"] {
                set_mode(name, 0o666);
                give(name, OTHER, OTHER);
            }
            set_mode("/tmp", dir_bits);
            let case = (regular, fifos, dir_bits);
            assert_eq!(take("f").is_ok(), takes_file, "{case:?}");
            assert_eq!(take("p").is_ok(), takes_fifo, "{case:?}");
            assert!(user.open("/tmp/f", o::RDWR).is_ok(), "without O_CREAT");
            give("/tmp/f", 0, 0);
            assert_eq!(take("f"), Ok(()), "the directory's owner has made it");
            give("/tmp/f", USER, USER);
            assert_eq!(take("f"), Ok(()), "his own");
            root.unlink("/tmp/f").unwrap();
            root.unlink("/tmp/p").unwrap();
        }
    });
}

#[test]
fn a_setting_has_no_value_beyond_its_highest() {
    with(|_, _| {
        for (level, most) in [
            (&protect::SYMLINKS, 1),
            (&protect::HARDLINKS, 1),
            (&protect::REGULAR, 2),
            (&protect::FIFOS, 2),
        ] {
            assert_eq!(level.set(most), Ok(()));
            assert_eq!(level.set(most + 1), Err(FsError::Invalid));
            assert_eq!(level.get(), most);
        }
    });
}

#[test]
fn a_lookup_that_follows_no_link_finds_the_link_by_each_flag() {
    with(|root, _| {
        root.create("/f").unwrap();
        root.symlink("f", "/l").unwrap();
        let place = root.open("/l", o::PATH | o::NOFOLLOW).unwrap();
        assert_eq!(place.inode().unwrap().ino, ino("/l"));
        assert_ne!(ino("/l"), ino("/f"));
        let followed = root.open("/l", o::PATH).unwrap();
        assert_eq!(followed.inode().unwrap().ino, ino("/f"));
        let view = View::of(Cred::root());
        let strict = Want {
            follow: false,
            directory: true,
        };
        assert_eq!(view.find("/l", strict).err(), Some(NotDir));
    });
}

/// A descriptor's link leads to a pipe without a name by way of the mount of the root: the pipe is of another device.
#[test]
fn a_file_of_another_device_gets_no_name() {
    with(|root, _| {
        root.mkdir("/m").unwrap();
        mount_plain("/m").unwrap();
        root.create("/m/f").unwrap();
        let (file, top) = (inode("/m/f"), root.find("/").unwrap());
        for same_mount in [true, false] {
            let made = tmpfs::link(root.cred(), &file, &top, b"f", same_mount);
            assert_eq!(made, Err(CrossDevice));
        }
        assert_eq!((file.nlink(), found(root, "/f")), (1, Err(NotFound)));
    });
}
