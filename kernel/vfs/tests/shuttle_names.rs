//! Names, mounts and limits changed by two CPUs at once, with a switch possible at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vfs --release --test shuttle_names`; `PANTALA_SCHEDULES` says how many schedules each
//! test tries.
#![cfg(shuttle)]

mod support;
mod support_names;

use hal::uio::IoBuf;
use support::threads::{Stopped, everywhere, stop_everywhere};
use support::{Calls, on};
use support_names::{
    bind, both, give, ino, mount_plain, names, nlink, read_rest, set_mode, umount, user,
};
use vfs::error::FsError::{self, Busy, Exists, Invalid, NotEmpty, NotFound, Perm};
use vfs::exec::ExecFile;
use vfs::file::o;
use vfs::full_name::full_name;
use vfs::mount;
use vfs::place::Path;
use vfs::rename::RenameMode::{Exchange, Replace};
use vfs::setattr::chmod;

/// The inode number that a lookup finds.
fn found(calls: &Calls, path: &str) -> Result<u64, FsError> {
    calls.follow(path).map(|place| place.dentry.inode.ino)
}

#[test]
fn a_file_has_not_two_names_while_it_is_renamed() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/old").unwrap();
            calls.create("/new").unwrap();
            let (moved, replaced) = (ino("/old"), ino("/new"));
            let (renamed, (new, old)) = both(
                |calls| calls.rename("/old", "/new", Replace),
                |calls| (found(calls, "/new"), found(calls, "/old")),
            );
            assert_eq!(renamed, Ok(()));
            match new {
                // In this order: the file that has its new name has its old one no more.
                Ok(file) if file == moved => assert_eq!(old, Err(NotFound)),
                _ => assert_eq!(new, Ok(replaced)),
            }
            assert!(old == Ok(moved) || old == Err(NotFound));
        });
    });
}

#[test]
fn a_lookup_finds_the_file_that_has_the_name_or_had_it() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.mkdir("/d").unwrap();
            calls.create("/d/a").unwrap();
            calls.create("/d/b").unwrap();
            let (a, b) = (ino("/d/a"), ino("/d/b"));
            let (_, seen) = both(
                |calls| {
                    calls.rename("/d/a", "/d/c", Replace).unwrap();
                    calls.rename("/d/b", "/d/a", Replace).unwrap();
                    calls.unlink("/d/a").unwrap();
                },
                |calls| ["/d/a", "/d/b", "/d/c"].map(|path| found(calls, path)),
            );
            assert!([Ok(a), Ok(b), Err(NotFound)].contains(&seen[0]), "{seen:?}");
            assert!([Ok(b), Err(NotFound)].contains(&seen[1]), "{seen:?}");
            assert!([Ok(a), Err(NotFound)].contains(&seen[2]), "{seen:?}");
            // Once b has lost its own name, a has got its last one.
            assert!(seen[1].is_ok() || seen[2] == Ok(a), "{seen:?}");
            assert_eq!(calls.list("/d"), Ok(vec!["c".into()]));
        });
    });
}

#[test]
fn a_directory_that_is_made_again_is_another_one() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.mkdir("/d").unwrap();
            let before = ino("/d");
            let (again, (dir, made)) = both(
                |calls| match calls.rmdir("/d") {
                    Ok(()) => calls.mkdir("/d").map(|()| true),
                    Err(NotEmpty) => Ok(false),
                    Err(error) => Err(error),
                },
                |calls| (found(calls, "/d"), calls.create("/d/f")),
            );
            let again = again.expect("nothing else happens to it");
            assert_eq!(again, ino("/d") != before);
            assert!(dir == Ok(before) || again, "{dir:?}");
            match made {
                Ok(()) => assert_eq!(calls.list("/d"), Ok(vec!["f".into()])),
                Err(error) => {
                    assert_eq!((error, again), (NotFound, true));
                    assert_eq!(calls.list("/d"), Ok(vec![]));
                }
            }
            assert_eq!(nlink("/"), 3);
        });
    });
}

#[test]
fn two_directories_do_not_move_into_each_other() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.mkdir("/a").unwrap();
            calls.mkdir("/b").unwrap();
            let (one, other) = both(
                |calls| calls.rename("/a", "/b/a", Replace),
                |calls| calls.rename("/b", "/a/b", Replace),
            );
            let lost = |result| matches!(result, Err(NotFound | Invalid));
            assert!(one.is_ok() && lost(other) || other.is_ok() && lost(one));
            let (top, below) = if one.is_ok() { ("b", "a") } else { ("a", "b") };
            assert_eq!(calls.list("/"), Ok(vec![top.into()]));
            assert_eq!(calls.list(&format!("/{top}")), Ok(vec![below.into()]));
            assert_eq!((nlink("/"), nlink(&format!("/{top}"))), (3, 3));
        });
    });
}

/// Both look for the ancestor that the other one's rename makes.
#[test]
fn directories_further_apart_do_not_move_into_each_other() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            for dir in ["/a", "/a/c", "/b", "/b/d"] {
                calls.mkdir(dir).unwrap();
            }
            let (one, other) = both(
                |calls| calls.rename("/a", "/b/d/a", Replace),
                |calls| calls.rename("/b", "/a/c/b", Replace),
            );
            assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
            let path = match one {
                Ok(()) => "/b/d/a/c",
                Err(_) => "/a/c/b/d",
            };
            assert_eq!(calls.list(path), Ok(vec![]));
            assert_eq!(nlink("/"), 3);
        });
    });
}

#[test]
fn of_two_that_rename_one_file_one_fails() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            for dir in ["/x", "/y"] {
                calls.mkdir(dir).unwrap();
            }
            calls.create("/f").unwrap();
            let (one, other) = both(
                |calls| calls.rename("/f", "/x/f", Replace),
                |calls| calls.rename("/f", "/y/f", Replace),
            );
            assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
            let there = |dir| calls.list(dir).unwrap().len();
            assert_eq!(
                (there("/x"), there("/y")),
                (one.is_ok().into(), other.is_ok().into())
            );
        });
    });
}

#[test]
fn nothing_moves_into_a_directory_that_is_being_removed() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.mkdir("/d").unwrap();
            calls.mkdir("/e").unwrap();
            let (removed, moved) = both(
                |calls| calls.rmdir("/d"),
                |calls| calls.rename("/e", "/d/e", Replace),
            );
            match removed {
                Ok(()) => assert_eq!((moved, found(&calls, "/e").is_ok()), (Err(NotFound), true)),
                Err(error) => {
                    assert_eq!((error, moved), (NotEmpty, Ok(())));
                    assert_eq!(calls.list("/d"), Ok(vec!["e".into()]));
                }
            }
        });
    });
}

/// One locks the directory and its parent, in which the other removes the directory.
#[test]
fn a_rename_up_from_a_directory_that_is_being_removed_ends() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.mkdir("/d").unwrap();
            calls.create("/d/f").unwrap();
            let (moved, removed) = both(
                |calls| calls.rename("/d/f", "/f", Replace),
                |calls| calls.rmdir("/d"),
            );
            assert_eq!(moved, Ok(()));
            let left = calls.list("/").unwrap();
            match removed {
                Ok(()) => assert_eq!(left, ["f"]),
                Err(error) => assert_eq!((error, left.len()), (NotEmpty, 2)),
            }
        });
    });
}

/// The file's directory leaves another one, which then moves, and both come back in the other order.
fn move_two_directories(calls: &Calls) {
    // How often the other thread makes a step afterwards, if it is the one that is stopped: so it sees the two now here, now there,
    // whether it looks at each step or at each second one.
    for (from, to, steps) in [
        ("/a/x/d", "/d", 0),
        ("/a/x", "/b/x", 1),
        ("/b/x", "/a/x", 0),
        ("/d", "/a/x/d", 2),
    ] {
        calls.rename(from, to, Replace).unwrap();
        (0..steps).for_each(|_| hal::cpu::relax());
    }
}

/// A name is asked for while directories move: once they have been seen to move, they do so no more until it is complete.
#[test]
fn a_full_name_was_that_of_the_file_at_one_moment() {
    stop_everywhere(Stopped::Other, || {
        on(2, || {
            let calls = Calls::of_root();
            for dir in ["/a", "/b", "/a/x", "/a/x/d"] {
                calls.mkdir(dir).unwrap();
            }
            calls.create("/a/x/d/f").unwrap();
            let (root, file) = (calls.find("/").unwrap(), calls.find("/a/x/d/f").unwrap());
            let ((name, reached), ()) = both(
                move |_| full_name(&root, &file).unwrap(),
                |calls| (0..20).for_each(|_| move_two_directories(calls)),
            );
            let name = String::from_utf8(name).unwrap();
            assert!(["/a/x/d/f", "/d/f"].contains(&&*name), "{name}");
            assert!(reached);
        });
    });
}

#[test]
fn the_parent_is_one_of_the_two_while_a_directory_moves() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            for dir in ["/a", "/b", "/a/d"] {
                calls.mkdir(dir).unwrap();
            }
            let (a, b) = (ino("/a"), ino("/b"));
            let (moved, parents) = both(
                |calls| calls.rename("/a/d", "/b/d", Replace),
                |calls| ["/a/d/..", "/b/d/.."].map(|path| found(calls, path)),
            );
            assert_eq!(moved, Ok(()));
            // A lookup may have found the old name before the move, and the parent after it; and rename(2) allows both names to
            // exist for a moment.
            for parent in parents {
                assert!([Ok(a), Ok(b), Err(NotFound)].contains(&parent));
            }
            assert!(parents[0].is_ok() || parents[1].is_ok(), "{parents:?}");
        });
    });
}

/// `Place` in dentry.rs: one name ends when the other begins.
#[test]
fn exchanged_files_keep_their_links_and_their_directories() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            for dir in ["/a", "/b", "/a/d"] {
                calls.mkdir(dir).unwrap();
            }
            calls.create("/b/f").unwrap();
            let (d, f) = (ino("/a/d"), ino("/b/f"));
            let (swapped, seen) = both(
                |calls| calls.rename("/a/d", "/b/f", Exchange),
                |calls| [found(calls, "/a/d"), found(calls, "/b/f")],
            );
            assert_eq!(swapped, Ok(()));
            for file in seen {
                assert!([Ok(d), Ok(f), Err(NotFound)].contains(&file), "{seen:?}");
            }
            assert_eq!(
                (found(&calls, "/a/d"), found(&calls, "/b/f")),
                (Ok(f), Ok(d))
            );
            assert_eq!((nlink("/a"), nlink("/b")), (2, 3));
        });
    });
}

/// The bit is set by the owner, before the file is given away, or not at all.
#[test]
fn a_chown_leaves_no_bit_that_the_owner_sets_meanwhile() {
    everywhere(|| {
        on(2, || {
            Calls::of_root().create("/f").unwrap();
            give("/f", 1000, 1000);
            set_mode("/f", 0o755);
            let (set, ()) = both(
                |_| chmod(&user(1000, &[]), &support_names::inode("/f"), 0o4755),
                |_| give("/f", 1001, 1001),
            );
            assert!(matches!(set, Ok(()) | Err(Perm)), "{set:?}");
            assert_eq!(support_names::bits("/f"), 0o755);
        });
    });
}

#[test]
fn a_link_is_made_before_the_last_name_goes_or_not_at_all() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/f").unwrap();
            calls.write("/f", 0, b"text").unwrap();
            let (linked, removed) =
                both(|calls| calls.link("/f", "/g"), |calls| calls.unlink("/f"));
            assert_eq!(removed, Ok(()));
            match linked {
                Ok(()) => {
                    assert_eq!((calls.read("/g"), nlink("/g")), (Ok(b"text".to_vec()), 1));
                }
                Err(error) => {
                    assert_eq!((error, calls.list("/")), (NotFound, Ok(vec![])));
                }
            }
        });
    });
}

/// The last close frees the contents, and a link keeps them.
#[test]
fn a_nameless_file_that_is_closed_gets_a_name_with_its_contents_or_none() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            let file = calls.open("/", o::RDWR | o::TMPFILE).unwrap();
            file.write(&mut IoBuf::Drain(b"text")).unwrap();
            let own = file.inode().unwrap().clone();
            let (_, linked) = both(
                move |_| drop(file),
                |calls| {
                    let dir = calls.find("/").unwrap();
                    vfs::tmpfs::link(calls.cred(), &own, &dir, b"f", true)
                },
            );
            match linked {
                Ok(()) => assert_eq!(calls.read("/f"), Ok(b"text".to_vec())),
                Err(error) => assert_eq!((error, calls.list("/")), (NotFound, Ok(vec![]))),
            }
        });
    });
}

#[test]
fn names_that_stay_are_listed_beside_one_that_goes_and_one_that_comes() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            for name in ["/a", "/b", "/c"] {
                calls.create(name).unwrap();
            }
            let dir = calls.open("/", o::RDONLY).unwrap();
            let (_, records) = both(
                |calls| {
                    calls.unlink("/b").unwrap();
                    calls.create("/d").unwrap();
                    calls.rename("/c", "/e", Replace).unwrap();
                },
                |_| read_rest(&dir, 280).unwrap(),
            );
            let listed = names(&records);
            let times = |name| listed.iter().filter(|n| **n == name).count();
            assert_eq!(times("a"), 1);
            assert!(times("b") <= 1 && times("d") <= 1, "{listed:?}");
            assert!(times("c") + times("e") >= 1, "the file was always there");
        });
    });
}

/// getdents64(2) reads names under the lock of the directory in Linux.
#[test]
fn a_name_is_listed_once_while_it_comes() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/c").unwrap();
            let dir = calls.open("/", o::RDONLY).unwrap();
            let (_, records) = both(
                |calls| calls.rename("/c", "/e", Replace).unwrap(),
                |_| read_rest(&dir, 280).unwrap(),
            );
            let listed = names(&records);
            assert!(
                listed.iter().filter(|n| **n == "e").count() <= 1,
                "{listed:?}"
            );
        });
    });
}

#[test]
fn nothing_is_mounted_on_a_directory_that_is_removed() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.mkdir("/m").unwrap();
            let (mounted, removed) = both(|_| bind("/", "/m", 0), |calls| calls.rmdir("/m"));
            match mounted {
                Ok(()) => assert_eq!((removed, ino("/m")), (Err(Busy), ino("/"))),
                Err(error) => assert_eq!((error, removed), (NotFound, Ok(()))),
            }
        });
    });
}

/// What the unmounting of `/m` and a lookup below it have answered.
fn unmount_beside_a_lookup() -> (Result<(), FsError>, Result<Path, FsError>) {
    let calls = Calls::of_root();
    calls.mkdir("/m").unwrap();
    calls.create("/m/below").unwrap();
    mount_plain("/m").unwrap();
    calls.create("/m/f").unwrap();
    both(|_| umount("/m", false), |calls| calls.find("/m/f"))
}

/// A list holds references to mounts, so a mount that is not in use otherwise stays until the list has ended, or is not listed.
#[test]
fn a_mount_stays_while_it_is_listed() {
    stop_everywhere(Stopped::Other, || {
        on(2, || {
            let calls = Calls::of_root();
            calls.mkdir("/m").unwrap();
            mount_plain("/m").unwrap();
            let mount = calls.follow("/m").unwrap().mount;
            let id = mount.id;
            let (gone, listed) = both(
                move |_| mount::detach(&mount, 1, false),
                |_| {
                    // The other call waits for the end of a grace period before it counts references.
                    mem::epoch().synchronize();
                    mount::for_each(|mount| {
                        for _ in 0..if mount.id == id { 100 } else { 0 } {
                            assert!(!mount.is_killed(), "it has left the tree");
                            hal::cpu::relax();
                        }
                        Ok(())
                    })
                },
            );
            assert!(matches!(gone, Ok(()) | Err(Busy)), "{gone:?}");
            assert_eq!(listed, Ok(()));
        });
    });
}

#[test]
fn a_mount_that_is_busy_is_never_away() {
    everywhere(|| {
        on(2, || {
            let (gone, place) = unmount_beside_a_lookup();
            let calls = Calls::of_root();
            let left = calls.list("/m").unwrap();
            if gone == Err(Busy) {
                assert_eq!((place.err(), left), (None, vec!["f".into()]));
            } else {
                assert_eq!((gone, left), (Ok(()), vec!["below".into()]));
                assert!(matches!(place.err(), None | Some(NotFound)));
            }
        });
    });
}

#[test]
fn of_two_that_unmount_one_mount_one_succeeds() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.mkdir("/m").unwrap();
            bind("/", "/m", 0).unwrap();
            let (one, other) = both(|_| umount("/m", true), |_| umount("/m", true));
            let lost = |result| matches!(result, Err(Invalid));
            assert!(one.is_ok() && lost(other) || other.is_ok() && lost(one));
            assert_eq!(calls.rmdir("/m"), Ok(()));
        });
    });
}

#[test]
fn the_last_file_of_a_file_system_is_made_once() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            let quota = calls.find("/").unwrap().mount.fs.inodes.unwrap();
            quota.resize(quota.used() + 1).unwrap();
            let (one, other) = both(|calls| calls.create("/a"), |calls| calls.create("/b"));
            let made = usize::from(one.is_ok()) + usize::from(other.is_ok());
            assert!(made <= 1, "more than there is room for");
            assert_eq!(calls.list("/").unwrap().len(), made);
            // A unit on its way between two CPUs may be missed, but is not lost.
            let again = calls.create("/c");
            assert_eq!(again.is_ok(), made == 0, "{again:?}");
        });
    });
}

#[test]
fn a_name_is_made_once_by_whatever_call() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/f").unwrap();
            let (linked, made) = both(|calls| calls.link("/f", "/n"), |calls| calls.mkdir("/n"));
            match linked {
                Ok(()) => assert_eq!((made, nlink("/f")), (Err(Exists), 2)),
                Err(error) => assert_eq!((error, made, nlink("/f")), (Exists, Ok(()), 1)),
            }
        });
    });
}

#[test]
fn a_program_that_loses_its_name_is_not_kept() {
    stop_everywhere(Stopped::Other, || {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/p").unwrap();
            chmod(calls.cred(), &support_names::inode("/p"), 0o755).unwrap();
            let place = calls.find("/p").unwrap();
            for _ in 1..vfs::exec_cache::OFTEN {
                drop(ExecFile::at(place.clone()).unwrap());
            }
            let own = place.clone();
            let (ran, removed) = both(
                move |_| ExecFile::at(own).map(drop),
                |calls| calls.unlink("/p"),
            );
            assert!(matches!(ran, Ok(()) | Err(NotFound)), "{ran:?}");
            assert_eq!(removed, Ok(()));
            let pin = ksync::pin();
            let kept = vfs::exec_cache::find(&pin, &place.mount, &place.dentry);
            assert!(kept.is_none());
        });
    });
}
