//! Watches that begin and end beside events, removals, closes and the end of what is watched, with a switch possible at every access to
//! an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p ipc --release --test shuttle_inotify`.
#![cfg(shuttle)]

mod notes;
#[path = "../../vfs/tests/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::sync::Arc;

use ipc::inotify::{Request, flag, remove};
use notes::*;
use support::Calls;
use support::threads::{everywhere, explore, spawn, wait_for_ends};
use vfs::error::FsError;
use vfs::file::{FileRef, o};
use vfs::inode::Inode;
use vfs::notify::event::ev;
use vfs::rename::RenameMode::Replace;

fn inode(path: &str) -> Arc<Inode> {
    let place = Calls::of_root().find(path).expect("a path that exists");
    place.dentry.inode.clone()
}

/// Runs `test` on three CPUs, and on two as `everywhere` does.
fn on_three(test: impl Fn() + Send + Sync + Copy + 'static) {
    explore(move || on(3, test));
    everywhere(move || on(2, test));
}

/// After the end of a watch comes nothing of it, and the end comes once. Returns the watches that have ended.
fn check_ends(n: &FileRef) -> BTreeSet<i32> {
    let mut ended = BTreeSet::new();
    for (wd, mask, _) in events(n) {
        assert!(!ended.contains(&wd), "{mask:x} after the end of {wd}");
        if mask & ev::IGNORED != 0 {
            ended.insert(wd);
        }
    }
    ended
}

/// A watch is removed while one thread makes events, and another removes the file.
#[test]
fn a_watch_ends_once() {
    on_three(|| {
        let calls = Calls::of_root();
        calls.create("/f").unwrap();
        let n = instance();
        let wd = add(&n, "/f", ev::ALL).unwrap();
        let file = inode("/f");
        spawn(None, || {
            let _ = Calls::of_root().open("/f", o::RDONLY);
        });
        spawn(None, || Calls::of_root().unlink("/f").unwrap());
        let removed = remove(&n, wd);
        assert!(matches!(removed, Ok(()) | Err(FsError::Invalid)));
        wait_for_ends(2);
        assert_eq!(check_ends(&n), BTreeSet::from([wd]));
        assert_eq!(held(), (1, 0));
        assert!(!file.is_watched());
    });
}

/// The instance is closed while one thread makes events under the directory's lock, and another removes the directory.
#[test]
fn a_close_beside_events_leaves_nothing() {
    on_three(|| {
        let calls = Calls::of_root();
        calls.mkdir("/d").unwrap();
        let n = instance();
        add(&n, "/", ev::ALL).unwrap();
        add(&n, "/d", ev::ALL | flag::ONESHOT).unwrap();
        let (root, dir) = (inode("/"), inode("/d"));
        spawn(None, || {
            let _ = Calls::of_root().mkdir("/d/e");
        });
        spawn(None, || {
            let _ = Calls::of_root().rmdir("/d");
        });
        drop(n);
        wait_for_ends(2);
        assert_eq!(held(), (0, 0));
        assert!(!root.is_watched() && !dir.is_watched());
    });
}

/// A watch of a directory begins beside names that come to it: each is told from then on.
#[test]
fn a_name_that_comes_meanwhile_leads_to_the_watch() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.mkdir("/d").unwrap();
            calls.create("/d/a").unwrap();
            calls.create("/x").unwrap();
            let n = instance();
            spawn(None, || {
                let calls = Calls::of_root();
                calls.create("/d/b").unwrap();
                calls.rename("/x", "/d/a", Replace).unwrap();
            });
            let wd = add(&n, "/d", ev::OPEN).unwrap();
            wait_for_ends(1);
            events(&n);
            for name in ["a", "b"] {
                calls.open(&format!("/d/{name}"), o::RDONLY).unwrap();
                assert_eq!(events(&n), [event(wd, ev::OPEN, name)]);
            }
        });
    });
}

/// A name's bit is cleared as stale while a watch of its directory begins.
#[test]
fn a_stale_bit_is_not_cleared_beside_a_new_watch() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/f").unwrap();
            let (n, m) = (instance(), instance());
            let wd = add(&n, "/", ev::OPEN).unwrap();
            remove(&n, wd).unwrap();
            spawn(None, || {
                Calls::of_root().open("/f", o::RDONLY).unwrap();
            });
            let wd = add(&m, "/", ev::OPEN).unwrap();
            wait_for_ends(1);
            events(&m);
            calls.open("/f", o::RDONLY).unwrap();
            assert_eq!(events(&m), [event(wd, ev::OPEN, "f")]);
        });
    });
}

/// Two instances begin to watch a directory, and neither call returns before the names lead to it.
#[test]
fn the_second_watch_does_not_return_before_the_first_is_whole() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/f").unwrap();
            let (n, m) = (instance(), instance());
            spawn(None, move || {
                add(&n, "/", ev::OPEN).unwrap();
            });
            let wd = add(&m, "/", ev::OPEN).unwrap();
            calls.open("/f", o::RDONLY).unwrap();
            assert_eq!(events(&m), [event(wd, ev::OPEN, "f")]);
            wait_for_ends(1);
        });
    });
}

/// Watches `gone` while so many threads end it: the watch is told, and ends.
fn ends_with(n: &FileRef, gone: &Arc<Inode>, ends: u32) {
    let wish = Request::new(ev::DELETE_SELF).unwrap();
    let wd = ipc::inotify::add(n, gone, wish).unwrap();
    wait_for_ends(ends);
    let told = [ev::DELETE_SELF, ev::IGNORED].map(|mask| event(wd, mask, ""));
    assert_eq!(events(n), told);
    assert_eq!(held(), (1, 0));
    assert!(!gone.is_watched());
}

/// A watch begins while the last name goes, and while the last open file is closed: it ends by itself.
#[test]
fn a_watch_of_what_goes_meanwhile_ends() {
    on_three(|| {
        let calls = Calls::of_root();
        let open = calls.open("/f", o::RDWR | o::CREAT).unwrap();
        let file = inode("/f");
        let n = instance();
        spawn(None, || Calls::of_root().unlink("/f").unwrap());
        spawn(None, move || drop(open));
        ends_with(&n, &file, 2);
    });
}

/// As before, for a file that counts no opens.
#[test]
fn a_watch_of_a_directory_that_goes_meanwhile_ends() {
    everywhere(|| {
        on(2, || {
            Calls::of_root().mkdir("/d").unwrap();
            let dir = inode("/d");
            let n = instance();
            spawn(None, || Calls::of_root().rmdir("/d").unwrap());
            ends_with(&n, &dir, 1);
        });
    });
}

/// Two events beside a one-shot watch: one is told, and its end.
#[test]
fn one_shot_is_for_one_of_two_events() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/f").unwrap();
            calls.create("/g").unwrap();
            let n = instance();
            let wd = add(&n, "/", ev::OPEN | flag::ONESHOT).unwrap();
            spawn(None, || {
                Calls::of_root().open("/f", o::RDONLY).unwrap();
            });
            calls.open("/g", o::RDONLY).unwrap();
            wait_for_ends(1);
            let all = events(&n);
            assert_eq!(all.len(), 2, "{all:?}");
            assert_eq!((all[0].1, &all[1]), (ev::OPEN, &event(wd, ev::IGNORED, "")));
            assert_eq!(held(), (1, 0));
        });
    });
}

/// A mark that has just ended is not changed by a call for the same inode: that makes a new one.
#[test]
fn a_watch_that_ends_is_not_changed() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/f").unwrap();
            let n = instance();
            let first = add(&n, "/f", ev::OPEN).unwrap();
            let removes = n.clone();
            spawn(None, move || remove(&removes, first).unwrap());
            let second = add(&n, "/f", ev::OPEN).unwrap();
            wait_for_ends(1);
            assert_eq!(events(&n), [event(first, ev::IGNORED, "")]);
            calls.open("/f", o::RDONLY).unwrap();
            let told = events(&n);
            match second == first {
                // It was changed, and ended then.
                true => assert_eq!(told, []),
                false => assert_eq!(told, [event(second, ev::OPEN, "")]),
            }
            assert_eq!(held(), (1, u64::from(second != first)));
        });
    });
}

/// A watch whose end was read is another one when its inode is watched again.
#[test]
fn a_watch_whose_end_was_read_is_not_returned() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/f").unwrap();
            let n = instance();
            let first = add(&n, "/f", ev::OPEN).unwrap();
            let removes = n.clone();
            spawn(None, move || remove(&removes, first).unwrap());
            let ended = !events(&n).is_empty();
            let second = add(&n, "/f", ev::OPEN).unwrap();
            assert!(!ended || second != first);
            wait_for_ends(1);
        });
    });
}

/// Names change on two CPUs: a program that follows the events has the names that are there.
#[test]
fn events_of_names_come_in_the_order_of_the_changes() {
    everywhere(|| {
        on(2, || {
            let calls = Calls::of_root();
            calls.create("/a").unwrap();
            let n = instance();
            let wanted = ev::CREATE | ev::DELETE | ev::MOVED_FROM | ev::MOVED_TO;
            add(&n, "/", wanted).unwrap();
            spawn(None, || {
                let calls = Calls::of_root();
                let _ = calls.rename("/a", "/b", Replace);
                let _ = calls.create("/a");
            });
            let _ = calls.unlink("/a");
            let _ = calls.unlink("/b");
            wait_for_ends(1);
            let mut names = BTreeSet::from([String::from("a")]);
            for (_, mask, name) in events(&n) {
                let new = mask & (ev::CREATE | ev::MOVED_TO) != 0;
                let changed = if new {
                    names.insert(name)
                } else {
                    names.remove(&name)
                };
                assert!(changed, "{mask:x}");
            }
            let there: BTreeSet<_> = calls.list("/").unwrap().into_iter().collect();
            assert_eq!(names, there);
        });
    });
}
