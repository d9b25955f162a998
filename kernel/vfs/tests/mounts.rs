//! Mounts: what is seen at a mount point, where `..` leads, what is busy, and which calls the flags of a mount forbid.
#![cfg(not(shuttle))]

mod support;
mod support_names;

use std::sync::Arc;

use cred::Cred;
use support::{Calls, on};
use support_names::{
    Record, View, bind, free_all, ino, inode, mount_new, mount_plain, nlink, read_rest, set_mode,
    umount,
};
use vfs::error::FsError::{
    self, Access, Busy, CrossDevice, Exists, Invalid, NoSpace, NotFound, ReadOnly,
};
use vfs::exec::ExecFile;
use vfs::file::o;
use vfs::mount;
use vfs::place::flag;
use vfs::rename::RenameMode::Replace;
use vfs::superblock::FsKind;
use vfs::tmpfs::{self, Settings};

/// A directory `/m` with a file `/m/below`, on which a file system with a directory `/m/d` is mounted.
fn with_mount(check: impl FnOnce(&Calls) + Send + 'static) {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/m").unwrap();
        root.create("/m/below").unwrap();
        mount_plain("/m").unwrap();
        root.mkdir("/m/d").unwrap();
        check(&root);
    });
}

/// The number of mounts.
fn count() -> usize {
    let mut n = 0;
    mount::for_each(|_| {
        n += 1;
        Ok(())
    })
    .unwrap();
    n
}

#[test]
fn a_mount_hides_what_is_below_it_until_it_goes() {
    with_mount(|root| {
        assert_eq!(root.find("/m/below").err(), Some(NotFound));
        assert_eq!(root.list("/m"), Ok(vec!["d".into()]));
        assert_ne!(inode("/m").dev, inode("/").dev);
        root.create("/m/above").unwrap();
        assert_eq!(umount("/m", false), Ok(()));
        assert_eq!(root.list("/m"), Ok(vec!["below".into()]));
        assert_eq!(inode("/m").dev, inode("/").dev);
        assert_eq!(
            umount("/m", false),
            Err(Invalid),
            "nothing is mounted there"
        );
    });
}

#[test]
fn the_parent_of_a_mounts_root_is_that_of_its_mount_point() {
    with_mount(|root| {
        assert_eq!(ino("/m/.."), ino("/"));
        assert_eq!(ino("/m/d/.."), ino("/m"));
        assert_eq!(ino("/m/d/../.."), ino("/"));
        let view = View::of(Cred::root());
        view.chdir("/m/d").unwrap();
        assert_eq!(view.cwd(), Ok((String::from("/m/d"), true)));
        assert_eq!(view.ino(".."), Ok(ino("/m")));
        assert_eq!(view.ino("../../m/d"), Ok(ino("/m/d")));
        // A link to the parent of the mount's root leaves the mount, too.
        root.symlink("../m/../m/d", "/m/l").unwrap();
        assert_eq!(view.ino("../l"), Ok(ino("/m/d")));
    });
}

#[test]
fn a_root_that_is_a_mounts_root_is_not_left() {
    with_mount(|_| {
        let view = View::of(Cred::root());
        view.chroot("/m").unwrap();
        view.chdir("/").unwrap();
        for path in ["..", "/..", "d/../..", "/d/../../m/.."] {
            let expected = if path.ends_with("m/..") {
                Err(NotFound)
            } else {
                Ok(ino("/m"))
            };
            assert_eq!(view.ino(path), expected, "{path}");
        }
        assert_eq!(view.cwd(), Ok((String::from("/"), true)));
    });
}

#[test]
fn a_mount_lies_in_a_mount() {
    with_mount(|root| {
        mount_plain("/m/d").unwrap();
        root.mkdir("/m/d/e").unwrap();
        assert_eq!(ino("/m/d/e/../../.."), ino("/"));
        assert_eq!(umount("/m", false), Err(Busy));
        assert_eq!(root.rmdir("/m/d"), Err(Busy));
        assert_eq!(umount("/m/d", false), Ok(()));
        assert_eq!(root.list("/m/d"), Ok(vec![]));
        assert_eq!(umount("/m", false), Ok(()));
        assert_eq!(count(), 1);
    });
}

#[test]
fn detached_mounts_go_with_all_that_is_mounted_in_them() {
    with_mount(|root| {
        mount_plain("/m/d").unwrap();
        root.mkdir("/m/d/e").unwrap();
        mount_plain("/m/d/e").unwrap();
        let view = View::of(Cred::root());
        view.chdir("/m/d").unwrap();
        assert_eq!(count(), 4);
        assert_eq!(umount("/m", true), Ok(()));
        assert_eq!(count(), 1);
        assert_eq!(root.list("/m"), Ok(vec!["below".into()]));
        // The working directory is still there, but what was mounted in it is not.
        assert!(view.ino("e").is_ok());
        assert_eq!(view.open("new", o::WRONLY | o::CREAT).err(), None);
        assert_eq!(root.unlink("/m/below"), Ok(()));
        assert_eq!(root.rmdir("/m"), Ok(()), "it is a mount point no more");
    });
}

#[test]
fn of_two_mounts_on_one_place_the_later_is_seen() {
    with_mount(|root| {
        mount_plain("/m").unwrap();
        root.create("/m/second").unwrap();
        assert_eq!(root.list("/m"), Ok(vec!["second".into()]));
        assert_eq!(ino("/m/.."), ino("/"));
        assert_eq!(umount("/m", false), Ok(()));
        assert_eq!(root.list("/m"), Ok(vec!["d".into()]));
        assert_eq!(umount("/m", false), Ok(()));
        assert_eq!(root.list("/m"), Ok(vec!["below".into()]));
    });
}

/// Two calls of mount(2) at once find the place before either has covered it.
#[test]
fn a_place_found_before_it_was_covered_is_covered_once_more() {
    with_mount(|root| {
        root.mkdir("/p").unwrap();
        let mounts = ["first", "second"];
        let places = mounts.map(|_| root.find("/p").unwrap());
        for (name, over) in mounts.into_iter().zip(places) {
            let fs = tmpfs::new_super(FsKind::Tmpfs, Settings::new(0o755)).unwrap();
            let top = fs.root.clone();
            mount::attach(fs, top, Some(over), String::from(name), 0).unwrap();
            root.create(&format!("/p/{name}")).unwrap();
            assert_eq!(root.list("/p"), Ok(vec![name.into()]));
        }
        for left in [vec![String::from("first")], vec![]] {
            assert_eq!(root.rmdir("/p"), Err(Busy));
            assert_eq!(umount("/p", false), Ok(()));
            assert_eq!(root.list("/p"), Ok(left));
        }
        assert_eq!(root.rmdir("/p"), Ok(()));
    });
}

#[test]
fn a_mount_in_use_is_busy() {
    with_mount(|root| {
        root.create("/m/f").unwrap();
        let file = root.open("/m/f", o::RDONLY).unwrap();
        assert_eq!(umount("/m", false), Err(Busy));
        drop(file);
        let place = root.open("/m/d", o::PATH).unwrap();
        assert_eq!(umount("/m", false), Err(Busy));
        drop(place);
        let view = View::of(Cred::root());
        view.chdir("/m").unwrap();
        assert_eq!(umount("/m", false), Err(Busy));
        view.chdir("/").unwrap();
        view.chroot("/m/d").unwrap();
        assert_eq!(umount("/m", false), Err(Busy));
        drop(view);
        assert_eq!(umount("/m", false), Ok(()));
    });
}

#[test]
fn an_open_file_outlives_its_detached_mount() {
    with_mount(|root| {
        root.create("/m/f").unwrap();
        root.write("/m/f", 0, b"text").unwrap();
        let file = root.open("/m/f", o::RDONLY).unwrap();
        umount("/m", true).unwrap();
        let mut bytes = [0; 4];
        let read = file.read_at(&mut hal::uio::IoBuf::Fill(&mut bytes), 0);
        assert_eq!((read, &bytes), (Ok(4), b"text"));
    });
}

#[test]
fn a_mount_point_is_neither_removed_nor_renamed() {
    with_mount(|root| {
        root.mkdir("/other").unwrap();
        root.mkdir("/empty").unwrap();
        mount_plain("/empty").unwrap();
        assert_eq!(root.rmdir("/empty"), Err(Busy));
        assert_eq!(root.rename("/empty", "/new", Replace), Err(Busy));
        assert_eq!(root.rename("/other", "/empty", Replace), Err(Busy));
        let exchange = vfs::rename::RenameMode::Exchange;
        assert_eq!(root.rename("/other", "/empty", exchange), Err(Busy));
        umount("/empty", false).unwrap();
        assert_eq!(root.rename("/other", "/empty", Replace), Ok(()));
        assert_eq!(root.rmdir("/empty"), Ok(()));
    });
}

#[test]
fn a_directory_above_a_mount_point_may_be_renamed() {
    with_mount(|root| {
        root.mkdir("/a").unwrap();
        root.mkdir("/a/p").unwrap();
        mount_plain("/a/p").unwrap();
        root.create("/a/p/f").unwrap();
        let view = View::of(Cred::root());
        view.chdir("/a/p").unwrap();
        assert_eq!(root.rename("/a", "/b", Replace), Ok(()));
        assert!(root.find("/b/p/f").is_ok());
        assert_eq!(view.ino(".."), Ok(ino("/b")));
        assert_eq!(view.cwd(), Ok((String::from("/b/p"), true)));
    });
}

#[test]
fn a_file_is_a_mount_point_for_a_file() {
    with_mount(|root| {
        for (path, text) in [("/m/f", &b"bound"[..]), ("/g", b"own")] {
            root.create(path).unwrap();
            root.write(path, 0, text).unwrap();
        }
        bind("/m/f", "/g", 0).unwrap();
        assert_eq!(root.read("/g"), Ok(b"bound".to_vec()));
        let created = root.open("/g", o::WRONLY | o::CREAT).unwrap();
        assert_eq!(created.inode().unwrap().ino, ino("/m/f"));
        drop(created);
        assert_eq!(root.unlink("/g"), Err(Busy));
        assert_eq!(root.unlink("/m/f"), Ok(()), "only the mount point is busy");
        assert_eq!(nlink("/g"), 0);
        umount("/g", false).unwrap();
        assert_eq!(root.read("/g"), Ok(b"own".to_vec()));
        assert_eq!(root.unlink("/g"), Ok(()));
    });
}

#[test]
fn a_file_that_is_mounted_keeps_its_contents_without_a_name() {
    with_mount(|root| {
        for path in ["/f", "/g"] {
            root.create(path).unwrap();
        }
        let pages = || root.find("/").unwrap().mount.fs.quota.unwrap().used();
        let before = pages();
        root.write("/f", 0, b"bound").unwrap();
        bind("/f", "/g", 0).unwrap();
        root.unlink("/f").unwrap();
        assert_eq!(root.read("/g"), Ok(b"bound".to_vec()));
        assert_eq!(root.write("/g", 5, b"!"), Ok(1));
        assert_eq!((umount("/g", false), root.read("/g")), (Ok(()), Ok(vec![])));
        free_all();
        assert_eq!(pages(), before);
    });
}

/// The link in /proc/self/fd of such a descriptor leads to the file.
#[test]
fn a_file_opened_as_a_place_keeps_its_contents_without_a_name() {
    with_mount(|root| {
        root.create("/f").unwrap();
        let pages = || root.find("/").unwrap().mount.fs.quota.unwrap().used();
        let before = pages();
        root.write("/f", 0, b"kept").unwrap();
        set_mode("/f", 0o755);
        let file = root.open("/f", o::PATH).unwrap();
        root.unlink("/f").unwrap();
        let again = ExecFile::at(file.path.clone().unwrap()).unwrap();
        let mut bytes = [0; 4];
        assert_eq!((again.read_at(0, &mut bytes), &bytes), (Ok(4), b"kept"));
        drop((again, file));
        assert_eq!(pages(), before);
    });
}

#[test]
fn a_bound_directory_is_seen_at_both_places() {
    with_mount(|root| {
        for dir in ["/m/d/e", "/b"] {
            root.mkdir(dir).unwrap();
        }
        bind("/m/d", "/b", 0).unwrap();
        root.create("/b/f").unwrap();
        assert_eq!((ino("/b/f"), ino("/b")), (ino("/m/d/f"), ino("/m/d")));
        assert_eq!(ino("/b/.."), ino("/"));
        assert_eq!(ino("/b/e/.."), ino("/m/d"));
        // What is mounted at one place is not seen at the other.
        mount_plain("/b/e").unwrap();
        root.create("/b/e/new").unwrap();
        assert_eq!(root.list("/m/d/e"), Ok(vec![]));
        assert_eq!(root.rmdir("/m/d/e"), Err(Busy));
        assert_eq!(
            umount("/m", false),
            Ok(()),
            "the bound one is another mount"
        );
        assert!(root.find("/b/f").is_ok());
        assert_eq!(umount("/b", true), Ok(()));
        assert_eq!(root.list("/b"), Ok(vec![]));
    });
}

/// mount_namespaces(7) and path_resolution(7) know no such directory: it lies in no place that the mount shows.
#[test]
fn a_directory_that_left_a_bound_one_has_no_parent_there() {
    with_mount(|root| {
        for dir in ["/m/d/e", "/b"] {
            root.mkdir(dir).unwrap();
        }
        bind("/m/d", "/b", 0).unwrap();
        let view = View::of(Cred::root());
        view.chdir("/b").unwrap();
        view.chroot("/b").unwrap();
        view.chdir("e").unwrap();
        assert_eq!(view.ino(".."), Ok(ino("/b")));
        assert_eq!(view.cwd(), Ok((String::from("/e"), true)));
        root.rename("/m/d/e", "/m/left", Replace).unwrap();
        assert_eq!(view.ino(".."), Err(NotFound));
        assert_eq!(view.cwd(), Ok((String::from("/left"), false)));
    });
}

/// Without a lock a walk looks at a few ancestors only.
#[test]
fn the_parent_of_a_directory_deep_in_a_bound_one_is_found_until_it_leaves() {
    with_mount(|root| {
        root.mkdir("/b").unwrap();
        bind("/m/d", "/b", 0).unwrap();
        let mut path = String::new();
        for depth in 1..=70 {
            path.push_str("/e");
            root.mkdir(&format!("/m/d{path}")).unwrap();
            let bound = |path: &str| ino(&format!("/b{path}"));
            assert_eq!(bound(&format!("{path}/..")), bound(&path[2..]), "{depth}");
            assert_eq!(bound(&format!("{path}/../e")), bound(&path));
        }
        let view = View::of(Cred::root());
        view.chdir(&format!("/b{path}")).unwrap();
        view.chroot("/b").unwrap();
        assert_eq!(view.ino(&"../".repeat(69)), Ok(ino("/b/e")));
        assert_eq!(view.ino(&"../".repeat(100)), Ok(ino("/b")));
        root.rename("/m/d/e", "/m/e", Replace).unwrap();
        for ups in [1, 40, 68, 69, 100] {
            assert_eq!(view.ino(&"../".repeat(ups)), Err(NotFound), "{ups}");
        }
        root.rename("/m/e", "/m/d/e", Replace).unwrap();
        assert_eq!(view.ino(&"../".repeat(100)), Ok(ino("/b")));
    });
}

#[test]
fn nothing_is_mounted_on_what_is_gone() {
    with_mount(|root| {
        root.mkdir("/gone").unwrap();
        let (gone, in_mount) = (root.find("/gone").unwrap(), root.find("/m/d").unwrap());
        root.rmdir("/gone").unwrap();
        umount("/m", true).unwrap();
        let attach = |over| {
            let fs = tmpfs::new_super(FsKind::Tmpfs, Settings::new(0o755)).unwrap();
            let top = fs.root.clone();
            mount::attach(fs, top, Some(over), String::new(), 0).err()
        };
        assert_eq!(attach(gone), Some(NotFound));
        assert_eq!(attach(in_mount), Some(Invalid));
        assert_eq!(count(), 1);
    });
}

#[test]
fn the_first_mount_stays_and_each_other_goes_once() {
    with_mount(|root| {
        assert_eq!(umount("/", false), Err(Busy));
        assert_eq!(umount("/", true), Err(Busy));
        let mount = root.find("/m").unwrap().mount;
        assert_eq!(mount::detach(&mount, 1, true), Ok(()));
        assert_eq!(mount::detach(&mount, 1, true), Err(Invalid));
        assert_eq!(mount::detach(&mount, 1, false), Err(Invalid));
    });
}

#[test]
fn there_is_a_limit_on_mounts() {
    on(1, || {
        let root = Calls::of_root();
        root.mkdir("/m").unwrap();
        let most = 1024;
        for _ in count()..most {
            bind("/", "/m", 0).unwrap();
        }
        assert_eq!(bind("/", "/m", 0), Err(NoSpace));
        assert_eq!(mount_plain("/m"), Err(NoSpace));
        umount("/m", false).unwrap();
        assert_eq!(mount_plain("/m"), Ok(()));
        assert_eq!((bind("/", "/m", 0), count()), (Err(NoSpace), most));
    });
}

#[test]
fn mounts_are_listed_in_the_order_of_their_making() {
    with_mount(|root| {
        root.mkdir("/n").unwrap();
        bind("/m", "/n", flag::NODEV).unwrap();
        let mut all = Vec::new();
        mount::for_each(|m| {
            all.push((m.source.clone(), m.flags()));
            Ok(())
        })
        .unwrap();
        let is = |name: &str, flags| (String::from(name), flags);
        let expected = [is("rootfs", 0), is("test", 0), is("bind", flag::NODEV)];
        assert_eq!(all, expected);
        let mut calls = 0;
        let failed = mount::for_each(|_| {
            calls += 1;
            Err(Invalid)
        });
        assert_eq!((failed, calls), (Err(Invalid), 1));
    });
}

#[test]
fn a_read_only_mount_keeps_its_files_as_they_are() {
    with_mount(|root| {
        root.create("/m/f").unwrap();
        root.mkfifo("/m/p").unwrap();
        root.mkdir("/r").unwrap();
        bind("/m", "/r", flag::RDONLY).unwrap();
        let open = |path, flags| root.open(path, flags).err();
        assert_eq!(open("/r/f", o::RDONLY), None);
        assert_eq!(open("/r/f", o::WRONLY), Some(ReadOnly));
        assert_eq!(open("/r/f", o::RDWR), Some(ReadOnly));
        assert_eq!(open("/r/f", o::RDONLY | o::TRUNC), Some(ReadOnly));
        assert_eq!(open("/r/f", o::RDONLY | o::CREAT), None);
        assert_eq!(open("/r/f", o::WRONLY | o::CREAT | o::EXCL), Some(Exists));
        assert_eq!(open("/r/new", o::WRONLY | o::CREAT), Some(ReadOnly));
        assert_eq!(open("/r", o::RDWR | o::TMPFILE), Some(ReadOnly));
        assert_eq!(
            open("/r/p", o::RDWR | o::NONBLOCK),
            None,
            "no file is written"
        );
        assert_eq!(
            (root.mkdir("/r/n"), root.mkdir("/r/d")),
            (Err(ReadOnly), Err(Exists))
        );
        assert_eq!(root.symlink("f", "/r/n"), Err(ReadOnly));
        assert_eq!(root.link("/r/f", "/r/n"), Err(ReadOnly));
        assert_eq!(
            (root.unlink("/r/f"), root.unlink("/r/x")),
            (Err(ReadOnly), Err(ReadOnly))
        );
        assert_eq!(root.rmdir("/r/d"), Err(ReadOnly));
        // The file system itself is writable, by another mount.
        assert_eq!(root.write("/m/f", 0, b"x"), Ok(1));
        assert_eq!(root.read("/r/f"), Ok(b"x".to_vec()));
    });
}

#[test]
fn a_mount_may_become_read_only_and_writable_again() {
    with_mount(|root| {
        let place = root.find("/m").unwrap();
        mount::remount(&place.mount, flag::RDONLY | flag::NOEXEC | flag::REMOUNT);
        assert_eq!(place.mount.flags(), flag::RDONLY | flag::NOEXEC);
        assert!(place.mount.is_read_only());
        assert_eq!(root.create("/m/f"), Err(ReadOnly));
        assert_eq!(root.create("/f"), Ok(()), "another mount");
        mount::remount(&place.mount, flag::REMOUNT);
        assert_eq!((place.mount.flags(), root.create("/m/f")), (0, Ok(())));
    });
}

#[test]
fn a_hard_link_stays_in_one_mount() {
    with_mount(|root| {
        root.mkdir("/b").unwrap();
        bind("/m", "/b", 0).unwrap();
        root.create("/m/f").unwrap();
        let link = |from: &str, to: &str| {
            let view = View::of(Cred::root());
            let from = view.find(from, vfs::walk::Want::NOFOLLOW)?;
            let dir = view.find(to, vfs::walk::Want::DIRECTORY)?;
            let same = from.mount.id == dir.mount.id;
            tmpfs::link(root.cred(), &from.dentry.inode, &dir, b"new", same)
        };
        assert_eq!(
            link("/m/f", "/b"),
            Err(CrossDevice),
            "though it is one file system"
        );
        assert_eq!(link("/m/f", "/"), Err(CrossDevice));
        assert_eq!(link("/m/f", "/m/d"), Ok(()));
        assert_eq!(nlink("/b/f"), 2);
    });
}

#[test]
fn flags_of_a_mount_forbid_devices_programs_and_their_privileges() {
    with_mount(|root| {
        root.create("/m/f").unwrap();
        set_mode("/m/f", 0o6755);
        let dir = root.find("/m").unwrap();
        let what = tmpfs::What::Device(vfs::inode::mode::CHR, vfs::devices::number(1, 3));
        let new = vfs::setattr::NewMode::exact(0o666);
        tmpfs::create(root.cred(), &dir, b"null", &what, new).unwrap();
        let device = || root.open("/m/null", o::RDONLY).err();
        let run = || ExecFile::at(root.find("/m/f").unwrap());
        assert_eq!(device(), Some(FsError::NoDevAddr), "there is no driver");
        let ids = run().unwrap().set_ids();
        assert_eq!((ids.uid, ids.gid), (Some(0), Some(0)));
        mount::remount(&dir.mount, flag::NODEV | flag::NOSUID);
        assert_eq!(device(), Some(Access));
        assert_eq!(root.open("/m/null", o::PATH).err(), None);
        let ids = run().unwrap().set_ids();
        assert_eq!((ids.uid, ids.gid), (None, None));
        mount::remount(&dir.mount, flag::NOEXEC);
        assert_eq!(run().err(), Some(Access));
    });
}

#[test]
fn a_file_system_goes_with_its_last_mount() {
    with_mount(|root| {
        let mut settings = Settings::new(0o755);
        (settings.limit, settings.inodes) = (Some(100), Some(50));
        mount_new("/m/d", settings, 0).unwrap();
        root.mkdir("/b").unwrap();
        bind("/m/d", "/b", 0).unwrap();
        let fs = inode("/b").dev;
        for n in 0..20 {
            root.mkdir(&format!("/b/{n}")).unwrap();
        }
        root.create("/b/3/f").unwrap();
        root.write("/b/3/f", 0, &[7; 9000]).unwrap();
        let place = root.find("/b").unwrap();
        let (pages, files) = (
            place.mount.fs.quota.unwrap(),
            place.mount.fs.inodes.unwrap(),
        );
        drop(place);
        umount("/m/d", false).unwrap();
        free_all();
        assert_eq!((pages.used(), files.used(), inode("/b").dev), (3, 22, fs));
        umount("/b", false).unwrap();
        free_all();
        assert_eq!((pages.used(), files.used()), (0, 0));
    });
}

#[test]
fn listings_show_the_inode_numbers_below_mounts() {
    with_mount(|root| {
        let below = root.open("/", o::RDONLY).unwrap();
        let records = read_rest(&below, 4096).unwrap();
        let m: Vec<&Record> = records.iter().filter(|r| r.name == "m").collect();
        umount("/m", false).unwrap();
        assert_eq!(
            (m.len(), m[0].ino),
            (1, ino("/m")),
            "as readdir(3) has them"
        );
        assert!(Arc::ptr_eq(
            &below.path.as_ref().unwrap().dentry,
            &root.find("/").unwrap().dentry
        ));
    });
}
