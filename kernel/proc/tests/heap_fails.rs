//! Calls that get no memory from the kernel's heap: they fail, and nothing has changed.
#![cfg(not(shuttle))]

mod futex_waiters;
mod programs;
mod support;

use abi::raw::general as raw;
use cred::SetIds;
use futex_waiters::{Results, names, waiter, wake};
use hal::UserFrame;
use proc::exec::{self, ExecFailed};
use proc::futex::{self, ANY, FutexError};
use proc::signal::{self, SendError, SigFields, SigInfo, SigSet};
use proc::wait4::Children;
use proc::{SignalExt, ids, with_files};
use programs::{MEMORY, after_exec, create, load, loaded, store, with_memory};
use support::{clone, exited, fork, nap, wait};
use task::current::current;
use task::park::Deadline;
use vm_host::heap::{Heap, learn, refuse_none, refuse_once};

#[global_allocator]
static HEAP: Heap = Heap;

/// Runs `act` with the next block refused that is like one that was learnt.
fn refused<R>(act: impl FnOnce() -> R) -> R {
    refuse_once(1);
    let result = act();
    assert!(refuse_none(), "no block was asked for");
    result
}

#[test]
fn an_execve_without_memory_for_the_descriptors_leaves_the_caller_as_it_was() {
    with_memory(1, || {
        let file = create("/file", 0o600);
        let added = with_files(|files| files.add(file, true, 0, 100));
        assert!(matches!(added, Some(Ok(0))));
        let child = clone(raw::CLONE_FILES.into(), || {
            store(MEMORY, 7);
            let copied = learn(|| with_files(|files| files.fork().is_ok()));
            assert_eq!(copied, Some(true));
            let (program, after) = (loaded(), after_exec(SetIds::default()));
            let mut frame = UserFrame::default();
            let done = refused(|| exec::commit(program, b"plain", after, &mut frame));
            assert_eq!(done, Err(ExecFailed::NoMemory));
            assert_eq!(load(MEMORY), Some(7));
            assert_eq!(with_files(|files| files.get(0).is_ok()), Some(true));
            0
        });
        let child = child.expect("memory for a process");
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
    });
}

/// A wait on a word whose bucket has no room, which ends at once.
fn short_wait() -> Result<(), FutexError> {
    futex::drain();
    futex::wait(MEMORY, false, 0, ANY, Deadline::after(0))
}

#[test]
fn a_wait_without_memory_for_the_list_of_waiters_fails() {
    with_memory(1, || {
        store(MEMORY, 0);
        assert_eq!(learn(short_wait), Err(FutexError::Timeout));
        assert_eq!(refused(short_wait), Err(FutexError::NoMemory));
        assert_eq!(short_wait(), Err(FutexError::Timeout));
    });
}

#[test]
fn a_wait_for_a_lock_without_memory_for_the_list_of_waiters_fails() {
    with_memory(1, || {
        // Init owns it.
        store(MEMORY, 1);
        let short_lock = || {
            futex::drain();
            futex::pi::lock(MEMORY, false, Deadline::now())
        };
        assert_eq!(learn(short_lock), Err(FutexError::Timeout));
        assert_eq!(refused(short_lock), Err(FutexError::NoMemory));
        assert_eq!(short_lock(), Err(FutexError::Timeout));
        let free = MEMORY + 4;
        // One that is free needs none, but the room for the wait that may follow.
        assert_eq!(futex::pi::try_lock(free, false), Ok(()));
        assert_eq!(load(free), Some(current().tid()));
        assert_eq!(futex::pi::unlock(free, false), Ok(()));
    });
}

#[test]
fn a_requeue_without_memory_for_the_list_of_waiters_moves_none() {
    with_memory(1, || {
        store(MEMORY, 0);
        assert_eq!(learn(short_wait), Err(FutexError::Timeout));
        futex::drain();
        let results = Results::default();
        waiter(MEMORY, 1, &results);
        let requeue = |to| futex::requeue(MEMORY, to, false, 0, 1, None);
        // Words that are listed with the first one need no memory.
        refuse_once(1);
        let to = (1..20).map(|n| MEMORY + 4 * n);
        let refused = to.clone().find(|&to| match requeue(to) {
            Ok(moved) => {
                assert_eq!((moved, requeue_back(to)), ((0, 1), (0, 1)));
                false
            }
            Err(error) => error == FutexError::NoMemory,
        });
        assert!(refuse_none());
        let to = refused.expect("a word of another list");
        assert_eq!([wake(to, 1), wake(MEMORY, 0)], [0, 0]);
        assert_eq!(requeue(to), Ok((0, 1)));
        assert_eq!(wake(to, 1), 1);
        assert_eq!(names(&results, 1), [1]);
    });
}

#[test]
fn a_requeue_within_one_list_of_waiters_needs_no_memory() {
    with_memory(1, || {
        let (results, other) = (Results::default(), MEMORY + 64);
        // Two lists that are full, one of which grows.
        for name in 0..4 {
            for word in [MEMORY, other] {
                waiter(word, name, &results);
            }
        }
        let wait = || futex::wait(other, false, 0, ANY, Deadline::after(0));
        assert_eq!(learn(wait), Err(FutexError::Timeout));
        refuse_once(1);
        let moved = futex::requeue(MEMORY, MEMORY, false, 0, 4, None);
        assert_eq!((moved, refuse_none()), (Ok((0, 4)), false));
        assert_eq!([wake(MEMORY, 9), wake(other, 9)], [4, 4]);
        assert_eq!(names(&results, 8).len(), 8);
    });
}

fn requeue_back(from: u64) -> (u32, u32) {
    futex::requeue(from, MEMORY, false, 0, 1, None).expect("two words of one list")
}

#[test]
fn a_signal_without_memory_for_its_information_is_refused() {
    const RT: u8 = 40;
    with_memory(1, || {
        let fields = SigFields::Sender {
            pid: support::me().pid(),
            uid: 0,
            value: 7,
        };
        let info = SigInfo {
            signo: RT,
            code: -1,
            fields,
        };
        current().set_blocked(SigSet::one(RT));
        assert_eq!(
            learn(|| signal::queue_process(&support::me(), info)),
            Ok(())
        );
        let child = fork(|| {
            nap(1000);
            u8::from(signal::take(&current(), SigSet::one(RT)).is_none())
        });
        let process = ids::find_process(child).expect("a child");
        let send = || signal::queue_process(&process, info);
        assert_eq!(refused(send), Err(SendError::Full));
        assert_eq!(send(), Ok(()));
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
    });
}
