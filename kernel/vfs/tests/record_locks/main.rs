//! Locks on files: record locks of processes and of open files, flock(2), waits, deadlocks, bounds; random calls as in an array
//! of bytes.
#![cfg(not(shuttle))]

#[path = "../bytes/mod.rs"]
mod bytes;
mod process;
mod reference;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use bytes::{open, open_as};
use cred::Charge;
use fscore::locks::{END, MOST};
use process::{
    EXCLUSIVE, MANY, Process, SHARED, as_user, flock, held, lock_by_file, locks, process, range,
};
use support::{on, threads};
use vfs::error::FsError::{Deadlock, NoLocks, WouldBlock};
use vfs::file::o;
use vfs::lock::{self, Family};
use vfs::pipe;

/// Locks of a file that are kept for callers beyond the limits of users.
const RESERVED: usize = 256;
/// The most locks of a user on all files.
const USER_MOST: usize = 1 << 16;

/// A thread that waits for a lock of `process`. It counts in `done` when it has it.
fn wait_for(process: &Process, bytes: (u64, u64), exclusive: bool, done: &Arc<AtomicU32>) {
    let (process, done) = (process.clone(), done.clone());
    threads::spawn(None, move || {
        assert_eq!(process.set(0, bytes, exclusive, true), Ok(()));
        done.fetch_add(1, SeqCst);
    });
    threads::nap(2);
}

#[test]
fn shared_locks_meet_and_exclusive_ones_exclude_all() {
    on(1, || {
        let ((a, _), (b, _)) = (process(), process());
        a.share(0, 0, 9).unwrap();
        assert_eq!(b.share(0, 5, 14), Ok(()));
        assert_eq!(b.lock(0, 9, 20), Err(WouldBlock));
        assert_eq!(b.lock(0, 10, 20), Ok(()), "beside it");
        assert_eq!(a.share(0, 20, 20), Err(WouldBlock));
        assert_eq!(a.lock(0, 21, END), Ok(()));
        assert_eq!(b.share(0, 1 << 50, END), Err(WouldBlock), "without an end");
    });
}

#[test]
fn a_conflict_is_reported_with_its_owner_and_range() {
    on(1, || {
        let ((a, file), (b, _)) = (process(), process());
        a.share(0, 100, 199).unwrap();
        a.lock(0, 300, END).unwrap();
        let ask = |from, to, exclusive| {
            let wanted = range(b.owner(), from, to, exclusive);
            lock::query(locks(&file), Family::Ranges, &wanted)
        };
        let (first, second) = (
            range(a.owner(), 100, 199, SHARED),
            range(a.owner(), 300, END, EXCLUSIVE),
        );
        assert_eq!(ask(150, 160, EXCLUSIVE), Some(first));
        assert_eq!(ask(0, END, EXCLUSIVE), Some(first), "the first one");
        assert_eq!(ask(0, END, SHARED), Some(second));
        assert_eq!(ask(200, 299, EXCLUSIVE), None);
        assert_eq!(ask(199, 299, SHARED), None);
        let own = range(a.owner(), 0, END, EXCLUSIVE);
        assert_eq!(lock::query(locks(&file), Family::Ranges, &own), None);
        assert_eq!(b.lock(0, 200, 299), Ok(()), "a question takes no lock");
    });
}

#[test]
fn an_unlock_in_the_middle_leaves_both_sides() {
    on(1, || {
        let ((a, file), (b, _)) = (process(), process());
        a.lock(0, 0, 99).unwrap();
        a.unlock(0, 40, 59).unwrap();
        assert_eq!(held(&file), [(0, 39, EXCLUSIVE), (60, 99, EXCLUSIVE)]);
        assert_eq!(b.lock(0, 40, 59), Ok(()));
        assert_eq!(b.share(0, 99, 99), Err(WouldBlock), "the right side");
        assert_eq!(b.share(0, 0, 0), Err(WouldBlock), "the left side");
    });
}

#[test]
fn an_unlock_over_an_end_leaves_the_rest() {
    on(1, || {
        let (a, file) = process();
        a.lock(0, 10, 29).unwrap();
        a.lock(0, 40, 59).unwrap();
        a.unlock(0, 20, 49).unwrap();
        assert_eq!(held(&file), [(10, 19, EXCLUSIVE), (50, 59, EXCLUSIVE)]);
        a.unlock(0, 0, 10).unwrap();
        a.unlock(0, 59, END).unwrap();
        assert_eq!(held(&file), [(11, 19, EXCLUSIVE), (50, 58, EXCLUSIVE)]);
        a.unlock(0, 0, END).unwrap();
        assert_eq!(held(&file), []);
        assert_eq!(a.unlock(0, 0, END), Ok(()), "there is none any more");
    });
}

#[test]
fn a_lock_of_the_other_kind_replaces_its_part() {
    on(1, || {
        let ((a, file), (b, _)) = (process(), process());
        a.lock(0, 0, 99).unwrap();
        a.share(0, 40, 59).unwrap();
        let three = [(0, 39, EXCLUSIVE), (40, 59, SHARED), (60, 99, EXCLUSIVE)];
        assert_eq!(held(&file), three);
        assert_eq!(b.share(0, 40, 59), Ok(()));
        b.unlock(0, 40, 59).unwrap();
        a.lock(0, 0, 99).unwrap();
        assert_eq!(held(&file), [(0, 99, EXCLUSIVE)]);
    });
}

#[test]
fn neighbours_of_one_kind_are_one_lock() {
    on(1, || {
        let (a, file) = process();
        a.lock(0, 20, 29).unwrap();
        a.lock(0, 0, 9).unwrap();
        assert_eq!(held(&file), [(0, 9, EXCLUSIVE), (20, 29, EXCLUSIVE)]);
        a.lock(0, 10, 19).unwrap();
        assert_eq!(held(&file), [(0, 29, EXCLUSIVE)]);
        a.share(0, 30, 39).unwrap();
        assert_eq!(held(&file), [(0, 29, EXCLUSIVE), (30, 39, SHARED)]);
        a.share(0, 35, END).unwrap();
        assert_eq!(held(&file), [(0, 29, EXCLUSIVE), (30, END, SHARED)]);
    });
}

#[test]
fn an_upgrade_that_fails_keeps_the_shared_lock() {
    on(1, || {
        let ((a, file), (b, _)) = (process(), process());
        a.share(0, 0, 9).unwrap();
        b.share(0, 9, 9).unwrap();
        assert_eq!(a.lock(0, 0, 9), Err(WouldBlock));
        assert_eq!(b.lock(0, 0, 0), Err(WouldBlock), "it is still there");
        assert_eq!(a.lock(0, 0, 8), Ok(()));
        b.unlock(0, 0, END).unwrap();
        assert_eq!(held(&file), [(0, 8, EXCLUSIVE), (9, 9, SHARED)]);
        assert_eq!(a.lock(0, 0, 9), Ok(()));
    });
}

#[test]
fn locks_of_one_file_are_not_those_of_another() {
    on(1, || {
        let ((a, _), (b, _)) = (process(), process());
        let (mine, theirs) = (a.open("/g"), b.open("/g"));
        a.lock(0, 0, END).unwrap();
        assert_eq!(b.lock(theirs, 0, END), Ok(()));
        assert_eq!(a.share(mine, 0, 0), Err(WouldBlock));
        b.close(theirs);
        assert_eq!(b.share(0, 0, 0), Err(WouldBlock));
        assert_eq!(a.share(mine, 0, 0), Ok(()));
    });
}

#[test]
fn closing_any_descriptor_of_a_file_ends_the_locks_of_the_process() {
    on(1, || {
        let ((a, file), (b, _)) = (process(), process());
        let (again, other) = (a.open("/f"), a.open("/g"));
        a.lock(0, 0, 9).unwrap();
        b.lock(0, 20, 29).unwrap();
        a.close(other);
        assert_eq!(held(&file).len(), 2, "another file");
        a.close(again);
        assert_eq!(held(&file), [(20, 29, EXCLUSIVE)], "those of others stay");
        assert!(a.0.get(0).is_ok());
    });
}

#[test]
fn each_way_to_close_a_descriptor_ends_the_locks() {
    let ways: [fn(&Process); 5] = [
        |a| a.0.dup_to(1, 0, false, MANY).map(drop).unwrap(),
        |a| a.0.close_range(0, 0, false),
        |a| {
            a.0.set_cloexec(0, true).unwrap();
            a.0.close_on_exec();
        },
        |a| a.0.undo(&[(0, &a.file(0))]),
        // A duplicate of the file's own descriptor, as POSIX has it.
        |a| {
            let fd = a.0.add(a.file(0), false, 5, MANY).unwrap();
            a.0.dup_to(0, fd, false, MANY).map(drop).unwrap();
        },
    ];
    on(1, move || {
        for (n, way) in ways.iter().enumerate() {
            let (a, file) = process();
            assert_eq!(a.open("/g"), 1);
            a.lock(0, 0, 9).unwrap();
            way(&a);
            assert_eq!(held(&file), [], "way {n}");
        }
        let (a, file) = process();
        a.lock(0, 0, 9).unwrap();
        a.0.close_range(0, 0, true);
        assert_eq!(held(&file).len(), 1, "a mark closes nothing");
        drop(a);
        assert_eq!(held(&file), [], "the end of the process");
    });
}

#[test]
fn a_child_has_no_locks_of_its_parent() {
    on(1, || {
        let (parent, file) = process();
        parent.lock(0, 0, 9).unwrap();
        let child = Process(parent.0.fork().unwrap());
        assert_eq!(child.share(0, 0, 0), Err(WouldBlock));
        child.lock(0, 10, 19).unwrap();
        child.close(0);
        assert_eq!(held(&file), [(0, 9, EXCLUSIVE)]);
        drop(child);
        assert_eq!(held(&file), [(0, 9, EXCLUSIVE)]);
    });
}

#[test]
fn a_lock_of_an_open_file_ends_with_its_last_descriptor() {
    on(1, || {
        let (a, file) = process();
        let copy = a.0.add(a.file(0), false, 0, MANY).unwrap();
        let again = a.open("/f");
        lock_by_file(&a.file(0), 0, 9).unwrap();
        assert_eq!(lock_by_file(&a.file(copy), 5, 20), Ok(()), "one owner");
        assert_eq!(lock_by_file(&a.file(again), 20, 20), Err(WouldBlock));
        assert_eq!(a.share(0, 0, 0), Err(WouldBlock), "a process is another");
        a.close(again);
        let child = Process(a.0.fork().unwrap());
        a.close(0);
        a.close(copy);
        child.close(copy);
        assert_eq!(held(&file), [(0, 20, EXCLUSIVE)]);
        child.close(0);
        assert_eq!(held(&file), []);
    });
}

#[test]
fn whole_file_locks_belong_to_open_files() {
    on(1, || {
        let (first, second) = (open("/f"), open_as("/f", o::RDONLY));
        let copy = first.clone();
        flock(&first, EXCLUSIVE).unwrap();
        assert_eq!(flock(&copy, EXCLUSIVE), Ok(()));
        assert_eq!(flock(&second, SHARED), Err(WouldBlock));
        assert_eq!(flock(&first, SHARED), Ok(()), "a conversion");
        assert_eq!(flock(&second, SHARED), Ok(()));
        assert_eq!(flock(&first, EXCLUSIVE), Err(WouldBlock));
        drop(second);
        assert_eq!(flock(&first, EXCLUSIVE), Ok(()));
        drop(first);
        let third = open("/f");
        assert_eq!(flock(&third, SHARED), Err(WouldBlock), "a copy is left");
        drop(copy);
        assert_eq!(flock(&third, EXCLUSIVE), Ok(()));
    });
}

#[test]
fn whole_file_locks_and_record_locks_do_not_meet() {
    on(1, || {
        let (a, file) = process();
        flock(&file, EXCLUSIVE).unwrap();
        assert_eq!(a.lock(0, 0, END), Ok(()));
        assert_eq!(flock(&open("/f"), SHARED), Err(WouldBlock));
        a.unlock(0, 0, END).unwrap();
        assert_eq!(flock(&open("/f"), SHARED), Err(WouldBlock));
    });
}

#[test]
fn a_wait_ends_when_the_last_lock_in_the_way_is_released() {
    on(1, || {
        let ((a, _), (b, _), (c, _)) = (process(), process(), process());
        let done = Arc::new(AtomicU32::new(0));
        a.lock(0, 0, 9).unwrap();
        b.share(0, 20, 29).unwrap();
        wait_for(&c, (5, 25), EXCLUSIVE, &done);
        a.unlock(0, 0, 4).unwrap();
        b.unlock(0, 20, 29).unwrap();
        threads::nap(2);
        assert_eq!(done.load(SeqCst), 0);
        a.unlock(0, 5, 9).unwrap();
        threads::wait_for_ends(1);
        assert_eq!(a.share(0, 5, 5), Err(WouldBlock), "it has the lock");
    });
}

#[test]
fn each_end_of_a_lock_ends_the_waits_for_it() {
    // Each returns the process, if it still exists: what it does must end the waits, and not its end.
    let ends: [fn(Process) -> Option<Process>; 4] = [
        |a| {
            a.close(0);
            Some(a)
        },
        |_| None,
        |a| a.share(0, 0, 9).ok().map(|()| a),
        |a| a.0.dup_to(1, 0, false, MANY).ok().map(|_| a),
    ];
    on(1, move || {
        let mut ended = 0;
        for end in ends {
            let ((a, _), (b, _), (c, _)) = (process(), process(), process());
            a.open("/g");
            let done = Arc::new(AtomicU32::new(0));
            a.lock(0, 0, 9).unwrap();
            wait_for(&b, (0, 0), SHARED, &done);
            wait_for(&c, (0, 9), SHARED, &done);
            assert_eq!(done.load(SeqCst), 0);
            let _still = end(a);
            ended += 2;
            threads::wait_for_ends(ended);
            assert_eq!(done.load(SeqCst), 2, "both waits");
        }
    });
}

#[test]
fn waits_in_a_circle_are_refused() {
    on(1, || {
        let ((a, _), (b, _), (c, _)) = (process(), process(), process());
        let done = Arc::new(AtomicU32::new(0));
        a.lock(0, 0, 0).unwrap();
        b.lock(0, 1, 1).unwrap();
        c.lock(0, 2, 2).unwrap();
        wait_for(&a, (1, 1), EXCLUSIVE, &done);
        wait_for(&b, (2, 2), EXCLUSIVE, &done);
        assert_eq!(c.set(0, (0, 0), SHARED, true), Err(Deadlock));
        assert_eq!(c.lock(0, 0, 0), Err(WouldBlock), "nobody would wait");
        assert_eq!(done.load(SeqCst), 0);
        c.unlock(0, 2, 2).unwrap();
        threads::nap(2);
        assert_eq!(done.load(SeqCst), 1, "b got it");
        b.unlock(0, 1, 1).unwrap();
        threads::wait_for_ends(2);
    });
}

#[test]
fn a_circle_over_two_files_is_refused() {
    on(1, || {
        let ((a, _), (b, _)) = (process(), process());
        let (_, theirs) = (a.open("/g"), b.open("/g"));
        let done = Arc::new(AtomicU32::new(0));
        a.lock(0, 0, 0).unwrap();
        b.lock(theirs, 0, 0).unwrap();
        wait_for(&b, (0, 0), EXCLUSIVE, &done);
        assert_eq!(a.set(1, (0, 0), EXCLUSIVE, true), Err(Deadlock));
        a.unlock(0, 0, 0).unwrap();
        threads::wait_for_ends(1);
    });
}

#[test]
fn a_wait_that_has_ended_is_part_of_no_circle() {
    on(1, || {
        let ((a, _), (b, _)) = (process(), process());
        let done = Arc::new(AtomicU32::new(0));
        a.lock(0, 0, 0).unwrap();
        wait_for(&b, (0, 0), EXCLUSIVE, &done);
        a.unlock(0, 0, 0).unwrap();
        threads::wait_for_ends(1);
        wait_for(&a, (0, 0), EXCLUSIVE, &done);
        b.close(0);
        threads::wait_for_ends(2);
        assert_eq!(done.load(SeqCst), 2);
    });
}

#[test]
fn the_last_locks_of_a_file_are_kept_for_the_administrator() {
    on(1, || {
        let ((a, file), (b, _)) = (process(), process());
        as_user(|payer| {
            for n in 0..(MOST - RESERVED) as u64 {
                assert_eq!(a.lock(0, 4 * n, 4 * n + 2), Ok(()), "{n}");
            }
            assert_eq!(payer.held(Charge::Locks), (MOST - RESERVED) as u64);
            let before = held(&file);
            assert_eq!(b.lock(0, 1 << 40, END), Err(NoLocks));
            assert_eq!(a.unlock(0, 1, 1), Err(NoLocks), "a split makes one more");
            assert_eq!(a.share(0, 1, 1), Err(NoLocks));
            assert!(held(&file) == before, "a refusal changes nothing");
            assert_eq!(a.unlock(0, 0, 1), Ok(()));
            assert_eq!(
                a.share(0, 2, 2),
                Ok(()),
                "a lock that is replaced counts not"
            );
        });
        for n in 0..RESERVED as u64 {
            assert_eq!(b.lock(0, (1 << 40) + 2 * n, (1 << 40) + 2 * n), Ok(()));
        }
        assert_eq!(b.lock(0, 1 << 41, END), Err(NoLocks));
        drop(a);
        assert_eq!(b.lock(0, 1 << 41, END), Ok(()));
    });
}

#[test]
fn a_user_has_a_most_of_locks_on_all_files() {
    on(1, || {
        let (a, file) = process();
        let other = a.open("/g");
        as_user(|payer| {
            payer.charge(Charge::Locks, USER_MOST - 2);
            a.lock(0, 0, 9).unwrap();
            assert_eq!(a.lock(other, 0, 9), Ok(()));
            assert_eq!(a.lock(other, 20, 29), Err(NoLocks));
            assert_eq!(a.unlock(0, 5, 5), Err(NoLocks));
            assert_eq!(held(&file), [(0, 9, EXCLUSIVE)]);
            a.unlock(other, 0, 9).unwrap();
            assert_eq!(a.unlock(0, 5, 5), Ok(()));
            payer.give_back(Charge::Locks, USER_MOST - 2);
        });
    });
}

#[test]
fn a_lock_that_ends_is_not_charged_any_more() {
    on(1, || {
        as_user(|payer| {
            let before = payer.held(Charge::Locks);
            let locks = || payer.held(Charge::Locks) - before;
            let (a, file) = process();
            a.lock(0, 0, 99).unwrap();
            a.lock(0, 50, 150).unwrap();
            assert_eq!(locks(), 1, "one that was merged");
            a.unlock(0, 10, 19).unwrap();
            flock(&file, SHARED).unwrap();
            assert_eq!(locks(), 3);
            assert_eq!(Process::new().0.size(), 0);
            let (b, _) = process();
            assert_eq!(b.lock(0, 0, 0), Err(WouldBlock));
            assert_eq!(locks(), 3, "one that was refused");
            drop(file);
            a.close(0);
            assert_eq!(locks(), 0);
        });
    });
}

/// GNU make with -O takes turns at its standard output in this way, be that a pipe or not.
#[test]
fn the_two_ends_of_a_pipe_have_their_locks_in_common() {
    on(1, || {
        let (from, to) = pipe::open_pair(0).unwrap();
        let (a, b) = (Process::new(), Process::new());
        for process in [&a, &b] {
            for end in [&from, &to] {
                process.0.add(end.clone(), false, 0, MANY).unwrap();
            }
        }
        a.lock(1, 0, 9).unwrap();
        assert_eq!(b.lock(1, 9, 9), Err(WouldBlock));
        assert_eq!(b.share(0, 5, 14), Err(WouldBlock));
        assert_eq!(held(&from), [(0, 9, true)]);
        a.close(0);
        assert_eq!(b.lock(1, 0, END), Ok(()), "a close of one end ends all");
        assert_eq!(flock(&to, EXCLUSIVE), Ok(()));
        assert_eq!(flock(&from, SHARED), Err(WouldBlock));
        let of_another = pipe::open_pair(0).unwrap();
        assert_eq!(flock(&of_another.0, EXCLUSIVE), Ok(()));
    });
}

#[test]
fn a_pipe_that_is_used_again_has_no_lock() {
    on(1, || {
        as_user(|payer| {
            for _ in 0..3 {
                let (from, to) = pipe::open_pair(0).unwrap();
                assert!(locks(&to).get().is_none());
                assert_eq!(flock(&to, EXCLUSIVE), Ok(()));
                assert_eq!(payer.held(Charge::Locks), 1);
                drop((from, to));
                let kinds = [Charge::Locks, Charge::Names, Charge::Memory];
                assert_eq!(kinds.map(|kind| payer.held(kind)), [0; 3]);
            }
        });
    });
}
