//! Names and pipes used by two CPUs at once, with a switch possible at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vfs --release --test shuttle_files`; `PANTALA_SCHEDULES` says how many schedules each
//! test tries.
#![cfg(shuttle)]

mod support;
mod support_names;

use std::sync::Arc;

use cred::Cred;
use hal::uio::IoBuf;
use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use support::threads::{Stopped, everywhere, nap, spawn, stop_everywhere, wait_for_ends};
use support::{Calls, on};
use support_names::{View, bind, mount_plain};
use vfs::error::FsError;
use vfs::file::o;
use vfs::mount;
use vfs::pipe;
use vfs::rename::RenameMode;

#[test]
fn a_renamed_file_is_found_by_one_of_its_names() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/old").expect("a free name");
            spawn(None, || {
                let calls = Calls::of_root();
                let renamed = calls.rename("/old", "/new", RenameMode::Replace);
                assert_eq!(renamed, Ok(()));
            });
            // In this order: a reader that misses the old name finds the new one.
            let (old, new) = (calls.find("/old"), calls.find("/new"));
            assert!(old.is_ok() || new.is_ok(), "neither name exists");
            wait_for_ends(1);
            assert_eq!(calls.list("/"), Ok(vec![String::from("new")]));
        });
    });
}

#[test]
fn a_name_that_is_replaced_always_exists() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/from").expect("a free name");
            calls.create("/to").expect("a free name");
            spawn(None, || {
                let calls = Calls::of_root();
                let renamed = calls.rename("/from", "/to", RenameMode::Replace);
                assert_eq!(renamed, Ok(()));
            });
            assert!(calls.find("/to").is_ok(), "the name was free for a moment");
            wait_for_ends(1);
        });
    });
}

#[test]
fn nothing_is_made_in_a_directory_that_is_being_removed() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.mkdir("/d").expect("a free name");
            let removed = Arc::new(AtomicU32::new(0));
            let theirs = removed.clone();
            spawn(None, move || {
                let result = Calls::of_root().rmdir("/d");
                assert!(
                    matches!(result, Ok(()) | Err(FsError::NotEmpty)),
                    "{result:?}"
                );
                theirs.store(1 + u32::from(result.is_ok()), SeqCst);
            });
            let made = calls.create("/d/f");
            wait_for_ends(1);
            match removed.load(SeqCst) {
                2 => assert_eq!(made, Err(FsError::NotFound)),
                _ => assert_eq!(
                    (made, calls.list("/d")),
                    (Ok(()), Ok(vec![String::from("f")]))
                ),
            }
        });
    });
}

/// The directory left the bound one first, and its new parent has never been in it; but each of its ancestors was, or is, below
/// the next one.
#[test]
fn a_directory_that_left_a_bound_one_has_no_parent_there_while_others_move() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            for dir in ["/bound", "/bound/d", "/b", "/x", "/x/y"] {
                calls.mkdir(dir).expect("a free name");
            }
            bind("/bound", "/b", 0).expect("a directory");
            let view = View::of(Cred::root());
            view.chdir("/b/d").expect("a directory");
            let moved = calls.rename("/bound/d", "/x/y/d", RenameMode::Replace);
            assert_eq!(moved, Ok(()));
            spawn(None, || {
                let calls = Calls::of_root();
                for (from, to) in [("/x/y", "/y"), ("/x", "/bound/x")] {
                    assert_eq!(calls.rename(from, to, RenameMode::Replace), Ok(()));
                }
            });
            assert_eq!(view.ino(".."), Err(FsError::NotFound));
            wait_for_ends(1);
        });
    });
}

/// A lookup finds the mount, and it is busy, or it does not find it any more.
#[test]
fn a_mount_that_is_gone_is_kept_by_no_lookup() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.mkdir("/m").expect("a free name");
            mount_plain("/m").expect("a directory");
            calls.mkdir("/m/d").expect("a free name");
            let mount = calls.find("/m").expect("a mount").mount;
            let id = mount.id;
            let gone = Arc::new(AtomicU32::new(0));
            let theirs = gone.clone();
            spawn(None, move || {
                let result = mount::detach(&mount, 1, false);
                assert!(matches!(result, Ok(()) | Err(FsError::Busy)), "{result:?}");
                theirs.store(u32::from(result.is_ok()), SeqCst);
            });
            let found = calls.find("/m/d");
            wait_for_ends(1);
            match gone.load(SeqCst) {
                1 => assert_eq!(found.err(), Some(FsError::NotFound)),
                _ => assert_eq!(found.map(|place| place.mount.id).ok(), Some(id)),
            }
        });
    });
}

#[test]
fn of_two_that_create_one_name_one_fails() {
    everywhere(|| {
        on(2, || {
            let made = Arc::new(AtomicU32::new(0));
            let theirs = made.clone();
            let create = |made: &AtomicU32| match Calls::of_root().create("/f") {
                Ok(()) => {
                    made.fetch_add(1, SeqCst);
                }
                Err(e) => assert_eq!(e, FsError::Exists),
            };
            spawn(None, move || create(&theirs));
            create(&made);
            wait_for_ends(1);
            assert_eq!(made.load(SeqCst), 1);
        });
    });
}

/// A name charges the quota for the files of its file system, but for the first of each file. The quota is full here, and
/// another file takes each unit that is given back.
#[test]
fn a_quota_gets_back_what_was_charged() {
    stop_everywhere(Stopped::Other, || {
        on(2, || {
            let calls = Calls::of_root();
            let root = calls.find("/").expect("a root");
            let quota = root.mount.fs.inodes.expect("a limit");
            for dir in ["/from", "/to"] {
                calls.mkdir(dir).expect("a free name");
            }
            let before = quota.used();
            calls.create("/from/old").expect("a free name");
            quota.resize(quota.used()).expect("no more is used");
            spawn(None, || {
                let linked = Calls::of_root().link("/from/old", "/to/new");
                assert!(linked != Err(FsError::Exists));
            });
            let _gone = calls.unlink("/from/old");
            let _full = calls.create("/from/other");
            wait_for_ends(1);
            for path in ["/from/other", "/to/new"] {
                let _gone = calls.unlink(path);
            }
            // Files are freed after a grace period.
            for _ in 0..5 {
                nap(1);
                mem::epoch().reclaim_all(&mut ksync::pin());
            }
            assert_eq!(quota.used(), before);
        });
    });
}

#[test]
fn a_reader_sees_the_byte_or_the_end() {
    everywhere(|| {
        on(2, || {
            let (from, to) = pipe::open_pair(0).expect("memory for a pipe");
            spawn(None, move || {
                assert_eq!(to.write(&mut IoBuf::Drain(b"x")), Ok(1));
                drop(to);
            });
            let mut all = Vec::new();
            loop {
                let mut byte = [0];
                match from.read(&mut IoBuf::Fill(&mut byte)) {
                    Ok(0) => break,
                    Ok(_) => all.push(byte[0]),
                    Err(e) => panic!("{e:?}"),
                }
            }
            assert_eq!(all, b"x");
        });
    });
}

#[test]
fn a_writer_does_not_wait_for_a_reader_that_closes() {
    everywhere(|| {
        on(2, || {
            let (from, to) = pipe::open_pair(0).expect("memory for a pipe");
            pipe_to_its_limit(&to);
            spawn(None, move || drop(from));
            let more = to.write(&mut IoBuf::Drain(b"x"));
            assert_eq!(more, Err(FsError::BrokenPipe));
        });
    });
}

fn pipe_to_its_limit(to: &vfs::file::FileRef) {
    let bytes = vec![0; 65_536];
    assert_eq!(to.write(&mut IoBuf::Drain(&bytes)), Ok(bytes.len()));
}

#[test]
fn the_opens_of_a_fifo_find_each_other() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.mkfifo("/f").expect("a free name");
            spawn(None, || {
                let to = Calls::of_root().open("/f", o::WRONLY);
                assert!(to.is_ok());
            });
            assert!(calls.open("/f", o::RDONLY).is_ok());
            wait_for_ends(1);
        });
    });
}
