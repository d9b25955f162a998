//! inotify: what is told, to which watch, and what is left when watches end.
#![cfg(not(shuttle))]

mod notes;
#[path = "../../vfs/tests/support/mod.rs"]
mod support;
#[path = "../../vfs/tests/support_names/mod.rs"]
mod support_names;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use cred::Charge;
use hal::uio::IoBuf;
use ipc::inotify::{self, MAX_EVENTS, MAX_INSTANCES, MAX_WATCHES, Request, flag, make, remove};
use notes::*;
use support::Calls;
use support_names::{free_all, inode, mount_plain, umount};
use task::current::current;
use vfs::dynamic::{DynFile, Dynamic, Text};
use vfs::error::FsError;
use vfs::exec::ExecFile;
use vfs::exec_cache::{self, OFTEN};
use vfs::file::{FileRef, o};
use vfs::inode::Inode;
use vfs::notify::event::ev;
use vfs::poll::PollMask;
use vfs::rename::RenameMode::{Exchange, Replace};
use vm_host::heap::{self, Heap};

#[global_allocator]
static HEAP: Heap = Heap;

#[test]
fn a_file_that_nothing_watches_has_no_mark() {
    on(1, || {
        let calls = Calls::of_root();
        calls.mkdir("/d").unwrap();
        calls.create("/d/f").unwrap();
        let (d, f) = (
            calls.find("/d").unwrap().dentry,
            calls.find("/d/f").unwrap().dentry,
        );
        assert!(!d.may_be_watched() && !f.may_be_watched());
        let n = instance();
        let wd = add(&n, "/d", ev::OPEN).unwrap();
        assert!(d.may_be_watched() && f.may_be_watched());
        assert!(d.inode.is_watched() && !f.inode.is_watched());
        remove(&n, wd).unwrap();
        // The name finds out with the next operation.
        assert!(!d.may_be_watched() && f.may_be_watched());
        calls.open("/d/f", o::RDONLY).unwrap();
        assert!(!f.may_be_watched());
        assert_eq!(events(&n), [event(wd, ev::IGNORED, "")]);
    });
}

#[test]
fn the_mode_does_not_show_a_watch_and_keeps_it() {
    on(1, || {
        let calls = Calls::of_root();
        calls.create("/f").unwrap();
        let n = instance();
        let wd = add(&n, "/f", ev::ALL).unwrap();
        let before = inode("/f").mode();
        assert_eq!(before, 0o100_644);
        support_names::set_mode("/f", 0o4711);
        assert_eq!(inode("/f").mode(), 0o104_711);
        assert!(inode("/f").is_watched());
        remove(&n, wd).unwrap();
        assert_eq!(inode("/f").mode(), 0o104_711);
    });
}

#[test]
fn names_that_come_later_are_told() {
    on(1, || {
        let calls = Calls::of_root();
        calls.mkdir("/d").unwrap();
        calls.create("/x").unwrap();
        let n = instance();
        let d = add(&n, "/d", ev::ALL & !ev::CLOSE_WRITE).unwrap();
        calls.create("/d/f").unwrap();
        assert_eq!(
            events(&n),
            [event(d, ev::CREATE, "f"), event(d, ev::OPEN, "f")]
        );
        calls.rename("/x", "/d/y", Replace).unwrap();
        calls.write("/d/y", 0, b"z").unwrap();
        assert_eq!(
            events(&n),
            [ev::MOVED_TO, ev::OPEN, ev::MODIFY].map(|mask| event(d, mask, "y"))
        );
        calls.rename("/d/y", "/x", Replace).unwrap();
        calls.write("/x", 0, b"z").unwrap();
        assert_eq!(events(&n), [event(d, ev::MOVED_FROM, "y")]);
        // The bit is stale there, and goes.
        let x = calls.find("/x").unwrap().dentry;
        assert!(!x.may_be_watched());
    });
}

/// More names than are marked in one hold of the directory's lock.
#[test]
fn all_names_of_a_large_directory_are_marked() {
    on(1, || {
        let calls = Calls::of_root();
        calls.mkdir("/d").unwrap();
        let names: Vec<_> = (0..600).map(|i| format!("/d/{i}")).collect();
        for name in &names {
            calls.create(name).unwrap();
        }
        let n = instance();
        add(&n, "/d", ev::OPEN).unwrap();
        let marked = |name: &String| calls.find(name).unwrap().dentry.may_be_watched();
        assert!(names.iter().all(marked));
    });
}

#[test]
fn a_swap_is_told_as_two_renames() {
    on(1, || {
        let calls = Calls::of_root();
        calls.mkdir("/a").unwrap();
        calls.create("/f").unwrap();
        let n = instance();
        let (root, a) = (
            add(&n, "/", ev::ALL).unwrap(),
            add(&n, "/a", ev::MOVE_SELF).unwrap(),
        );
        calls.rename("/f", "/a", Exchange).unwrap();
        let all = told(&n);
        let plain: Vec<_> = all.iter().map(|t| (t.0, t.1, t.2.as_str())).collect();
        assert_eq!(
            plain,
            [
                (root, ev::MOVED_FROM, "f"),
                (root, ev::MOVED_TO, "a"),
                (root, ev::MOVED_FROM | ev::ISDIR, "a"),
                (root, ev::MOVED_TO | ev::ISDIR, "f"),
                (a, ev::MOVE_SELF, ""),
            ]
        );
        assert!(all[0].3 != 0 && all[0].3 == all[1].3);
        assert!(all[2].3 == all[3].3 && all[2].3 != all[0].3);
    });
}

/// What is watched goes when its last name and its last open file have gone, and nothing keeps it then.
#[test]
fn a_file_that_is_gone_is_kept_by_no_watch() {
    on(1, || {
        let calls = Calls::of_root();
        calls.create("/f").unwrap();
        calls.link("/f", "/g").unwrap();
        let n = instance();
        let wd = add(&n, "/f", ev::DELETE_SELF).unwrap();
        let weak = Arc::downgrade(&inode("/f"));
        let open = calls.open("/f", o::RDONLY).unwrap();
        calls.unlink("/f").unwrap();
        calls.unlink("/g").unwrap();
        assert_eq!(events(&n), []);
        drop(open);
        assert_eq!(
            events(&n),
            [event(wd, ev::DELETE_SELF, ""), event(wd, ev::IGNORED, "")]
        );
        assert_eq!(held(), (1, 0));
        free_all();
        assert!(weak.upgrade().is_none());
        assert_eq!(remove(&n, wd), Err(FsError::Invalid));
    });
}

/// A watch that begins after the last name has gone, by an open file.
#[test]
fn a_file_without_a_name_is_watched_until_its_close() {
    on(1, || {
        let calls = Calls::of_root();
        let open = calls.open("/f", o::RDWR | o::CREAT).unwrap();
        let place = open.path.clone().unwrap();
        calls.unlink("/f").unwrap();
        let n = instance();
        let wish = ipc::inotify::Request::new(ev::ALL).unwrap();
        let wd = ipc::inotify::add(&n, &place.dentry.inode, wish).unwrap();
        assert_eq!(open.write(&mut IoBuf::Drain(b"x")), Ok(1));
        assert_eq!(events(&n), [event(wd, ev::MODIFY, "")]);
        drop(open);
        assert_eq!(
            events(&n),
            [ev::CLOSE_WRITE, ev::DELETE_SELF, ev::IGNORED].map(|mask| event(wd, mask, ""))
        );
        // One that is gone is watched for no time.
        let wd = ipc::inotify::add(&n, &place.dentry.inode, wish).unwrap();
        assert_eq!(
            events(&n),
            [ev::DELETE_SELF, ev::IGNORED].map(|mask| event(wd, mask, ""))
        );
        assert_eq!(held(), (1, 0));
    });
}

#[test]
fn an_unmount_ends_the_watches_of_its_files_alone() {
    on(2, || {
        let calls = Calls::of_root();
        calls.mkdir("/m").unwrap();
        calls.mkdir("/other").unwrap();
        mount_plain("/m").unwrap();
        calls.create("/m/f").unwrap();
        let n = instance();
        let (m, f) = (
            add(&n, "/m", ev::OPEN).unwrap(),
            add(&n, "/m/f", ev::OPEN).unwrap(),
        );
        let other = add(&n, "/other", ev::DELETE_SELF).unwrap();
        let weak = Arc::downgrade(&inode("/m/f"));
        umount("/m", false).unwrap();
        free_all();
        let mut all = events(&n);
        all.sort();
        assert_eq!(
            all,
            [
                event(m, ev::IGNORED, ""),
                event(m, ev::UNMOUNT | ev::ISDIR, ""),
                event(f, ev::UNMOUNT, ""),
                event(f, ev::IGNORED, ""),
            ]
        );
        assert!(weak.upgrade().is_none());
        assert_eq!(held(), (1, 1));
        calls.rmdir("/other").unwrap();
        assert_eq!(
            events(&n),
            [ev::DELETE_SELF, ev::IGNORED].map(|mask| event(other, mask, ""))
        );
    });
}

#[test]
fn a_close_leaves_nothing() {
    on(1, || {
        let calls = Calls::of_root();
        calls.create("/f").unwrap();
        calls.create("/g").unwrap();
        let before = current().payer().held(Charge::Memory);
        let n = instance();
        for path in ["/", "/f", "/g"] {
            add(&n, path, ev::ALL).unwrap();
        }
        for i in 0..50 {
            calls.create(&format!("/{i}")).unwrap();
        }
        assert_eq!(held(), (1, 3));
        assert!(current().payer().held(Charge::Memory) > before);
        drop(n);
        assert_eq!(held(), (0, 0));
        assert!(!inode("/").is_watched() && !inode("/f").is_watched());
        for i in 0..50 {
            calls.unlink(&format!("/{i}")).unwrap();
        }
        free_all();
        assert_eq!(current().payer().held(Charge::Memory), before);
    });
}

#[test]
fn limits_are_told_and_nothing_is_charged_beyond() {
    on(1, || {
        let calls = Calls::of_root();
        calls.create("/f").unwrap();
        let (instances, watches) = (MAX_INSTANCES.load(SeqCst), MAX_WATCHES.load(SeqCst));
        assert_eq!(instances, 128);
        assert!(watches >= 8192);
        MAX_INSTANCES.store(1, SeqCst);
        MAX_WATCHES.store(1, SeqCst);
        let n = instance();
        assert_eq!(make(0).err(), Some(FsError::TooManyFiles));
        let wd = add(&n, "/", ev::OPEN).unwrap();
        assert_eq!(add(&n, "/f", ev::OPEN), Err(FsError::NoSpace));
        // A change needs no other.
        assert_eq!(add(&n, "/", ev::CREATE), Ok(wd));
        assert_eq!(held(), (1, 1));
        assert!(!inode("/f").is_watched());
        remove(&n, wd).unwrap();
        assert_eq!(add(&n, "/f", ev::OPEN), Ok(wd + 1));
        drop(n);
        assert_eq!(held(), (0, 0));
    });
}

#[test]
fn a_full_queue_says_so_once_and_goes_on() {
    on(1, || {
        let calls = Calls::of_root();
        MAX_EVENTS.store(3, SeqCst);
        let n = instance();
        let wd = add(&n, "/", ev::CREATE).unwrap();
        for name in ["/a", "/b", "/c", "/d", "/e"] {
            calls.create(name).unwrap();
        }
        let lost = event(-1, ev::Q_OVERFLOW, "");
        let first = ["a", "b", "c"].map(|name| event(wd, ev::CREATE, name));
        assert_eq!(
            events(&n),
            [first.as_slice(), std::slice::from_ref(&lost)].concat()
        );
        calls.create("/f").unwrap();
        remove(&n, wd).unwrap();
        assert_eq!(
            events(&n),
            [event(wd, ev::CREATE, "f"), event(wd, ev::IGNORED, "")]
        );
        // The end is lost like any other event.
        let wd = add(&n, "/", ev::CREATE).unwrap();
        for name in ["/g", "/h", "/i"] {
            calls.create(name).unwrap();
        }
        remove(&n, wd).unwrap();
        assert_eq!(events(&n).last(), Some(&lost));
        assert_eq!(held(), (1, 0));
    });
}

#[test]
fn equal_events_are_merged_and_an_end_is_not() {
    on(1, || {
        let calls = Calls::of_root();
        calls.create("/f").unwrap();
        let n = instance();
        let wd = add(&n, "/f", ev::MODIFY).unwrap();
        for _ in 0..3 {
            calls.write("/f", 0, b"x").unwrap();
        }
        assert_eq!(events(&n), [event(wd, ev::MODIFY, "")]);
        assert_eq!(n.poll(None), PollMask::NONE);
        calls.write("/f", 0, b"x").unwrap();
        assert_eq!(n.poll(None), PollMask::READ);
        let small = n.read(&mut IoBuf::Fill(&mut [0; 15]));
        assert_eq!(small, Err(FsError::Invalid));
        assert_eq!(n.read(&mut IoBuf::Fill(&mut [0; 16])), Ok(16));
    });
}

fn opens(file: &FileRef, path: &str) -> usize {
    Calls::of_root().open(path, o::RDONLY).unwrap();
    events(file).len()
}

#[test]
fn one_shot_is_for_one_event() {
    on(1, || {
        let calls = Calls::of_root();
        calls.create("/f").unwrap();
        let n = instance();
        let wd = add(&n, "/", ev::OPEN | flag::ONESHOT).unwrap();
        // Its own event and its end, under no lock of the directory.
        assert_eq!(opens(&n, "/f"), 2);
        assert_eq!(opens(&n, "/f"), 0);
        assert_eq!(held(), (1, 0));
        // Under it.
        let wd2 = add(&n, "/", ev::CREATE | flag::ONESHOT).unwrap();
        assert!(wd2 > wd);
        calls.create("/g").unwrap();
        calls.create("/h").unwrap();
        assert_eq!(
            events(&n),
            [event(wd2, ev::CREATE, "g"), event(wd2, ev::IGNORED, "")]
        );
    });
}

#[test]
fn each_instance_is_told() {
    on(1, || {
        let calls = Calls::of_root();
        calls.create("/f").unwrap();
        let all: Vec<_> = (0..5).map(|_| instance()).collect();
        for n in &all {
            assert_eq!(add(n, "/", ev::OPEN), Ok(1));
        }
        calls.open("/f", o::RDONLY).unwrap();
        for n in &all {
            assert_eq!(events(n), [event(1, ev::OPEN, "f")]);
        }
        remove(&all[2], 1).unwrap();
        assert!(inode("/").is_watched());
        calls.open("/f", o::RDONLY).unwrap();
        let counts: Vec<_> = all.iter().map(|n| events(n).len()).collect();
        assert_eq!(counts, [1, 1, 1, 1, 1]);
    });
}

/// Whether the exec cache keeps the program `/p`.
fn is_kept() -> bool {
    let place = Calls::of_root().follow("/p").unwrap();
    exec_cache::find(&ksync::pin(), &place.mount, &place.dentry).is_some()
}

/// Opens the program `/p` for execution.
fn run() -> ExecFile {
    ExecFile::open(vfs::FsContext::boot().context(), b"/p").unwrap()
}

/// One that nothing watches when it begins may end unheard; but what comes into the cache and leaves it is nobody's open and close.
#[test]
fn watches_are_told_of_each_execution_of_a_program_that_the_cache_keeps() {
    on(1, || {
        Calls::of_root().create("/p").unwrap();
        support_names::set_mode("/p", 0o755);
        let n = instance();
        let wd = add(&n, "/", ev::OPEN | ev::CLOSE_NOWRITE).unwrap();
        let [open, close] = [ev::OPEN, ev::CLOSE_NOWRITE].map(|mask| [event(wd, mask, "p")]);
        for time in 0..2 * OFTEN {
            let program = run();
            assert_eq!(events(&n), open, "execution {time}");
            // As by fork(2).
            let other = program.clone();
            drop(program);
            free_all();
            assert_eq!(events(&n), [], "execution {time}");
            drop(other);
            free_all();
            assert_eq!(events(&n), close, "execution {time}");
        }
        assert!(is_kept(), "a watch keeps no program out");
        exec_cache::forget(|_| true);
        free_all();
        assert_eq!(events(&n), []);
    });
}

#[test]
fn a_program_that_was_kept_before_the_watch_is_closed_for_nobody() {
    on(1, || {
        Calls::of_root().create("/p").unwrap();
        support_names::set_mode("/p", 0o755);
        (0..2 * OFTEN).for_each(|_| drop(run()));
        assert!(is_kept());
        let n = instance();
        let wd = add(&n, "/p", ev::OPEN | ev::CLOSE_NOWRITE).unwrap();
        drop(run());
        free_all();
        let told = [ev::OPEN, ev::CLOSE_NOWRITE].map(|mask| event(wd, mask, ""));
        assert_eq!(events(&n), told);
        assert!(is_kept());
        exec_cache::forget(|_| true);
        free_all();
        assert_eq!(events(&n), []);
    });
}

/// A file that is made on demand: by each lookup another one, which nobody is charged for.
struct Made;

impl DynFile for Made {
    fn print(&self, _: &mut Text) -> Result<(), FsError> {
        Ok(())
    }
}

/// Marks of so many inodes take at most what the user is charged for them, with what else is kept by nothing but them.
#[test]
fn a_mark_is_charged_for_all_that_it_takes() {
    const MANY: u32 = 500;
    on(1, || {
        let calls = Calls::of_root();
        (0..MANY).for_each(|i| calls.create(&format!("/{i}")).unwrap());
        let files = |i: u32| inode(&format!("/{i}"));
        let made = |i: u32| Dynamic::File(Box::new(Made)).inode(9, i.into(), 0o444, (0, 0));
        let kinds: [&dyn Fn(u32) -> Arc<Inode>; 2] = [&files, &made];
        for inode_of in kinds {
            let n = instance();
            let held = || current().payer().held(Charge::Memory) as isize;
            let (live, before) = (heap::live(), held());
            for i in 0..MANY {
                inotify::add(&n, &inode_of(i), Request::new(ev::OPEN).unwrap()).unwrap();
            }
            let (took, charged) = (heap::live() - live, held() - before);
            let each = (took / MANY as isize, charged / MANY as isize);
            assert!((took..4 * took).contains(&charged), "{each:?}");
            drop(n);
            free_all();
        }
    });
}
