//! Futexes with priority inheritance, as futex(2) describes them: locks whose owner the kernel knows.
#![cfg(not(shuttle))]

mod futex_waiters;
mod programs;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use futex_waiters::locks::{OWNER_DIED, Order, WAITERS, lock, priority, set_priority, unlock};
use futex_waiters::{Results, waiter, wake};
use hal::uaccess::UserRange;
use mem::vm;
use proc::futex::{self, ANY, FutexError, pi};
use proc::signal::{SigInfo, send_thread, sig};
use proc::wait4::Children;
use proc::{UserThreadExt, ids, with_space};
use programs::{
    MEMORY, MS, PAGE, SHARED, catch, join, load, share_memory, store, store_long, take, thread,
    until, until_asleep, with_memory,
};
use support::{PAGES_GO, exited, fork, kill, nap, wait};
use task::current::current;
use task::park::Deadline;
use vm::MapProt;

/// Words of locks.
const A: u64 = MEMORY;
const B: u64 = MEMORY + 64;
const C: u64 = MEMORY + 128;

/// Starts a thread that locks, tells its name and its word, and unlocks; it waits when this returns.
fn locker(addr: u64, name: u32, priority: u32, order: &Order) -> u32 {
    let order = order.clone();
    let tid = thread(move || {
        set_priority(&current(), priority);
        assert_eq!(lock(addr), Ok(()));
        order.lock().unwrap().push(name);
        assert_eq!(load(addr), Some(current().tid() | WAITERS));
        assert_eq!(unlock(addr), Ok(()));
    });
    until_asleep(tid);
    tid
}

#[test]
fn a_free_lock_is_taken_and_given_back() {
    with_memory(1, || {
        let tid = current().tid();
        for take in [lock, |addr| pi::try_lock(addr, false)] {
            assert_eq!(take(A), Ok(()));
            assert_eq!(load(A), Some(tid));
            assert_eq!(unlock(A), Ok(()));
            assert_eq!(load(A), Some(0));
        }
        // That the last owner died is left to the program; that threads wait is not true any more.
        store(A, OWNER_DIED | WAITERS);
        assert_eq!(lock(A), Ok(()));
        assert_eq!(load(A), Some(OWNER_DIED | tid));
        assert_eq!(unlock(A), Ok(()));
        assert_eq!(load(A), Some(0));
    });
}

#[test]
fn what_is_no_lock_of_the_caller_is_refused() {
    with_memory(2, || {
        let tid = current().tid();
        store(A, tid);
        assert_eq!(lock(A), Err(FutexError::Deadlock));
        assert_eq!(pi::try_lock(A, false), Err(FutexError::Deadlock));
        for word in [0, tid + 1, OWNER_DIED] {
            store(B, word);
            assert_eq!(unlock(B), Err(FutexError::NotPermitted));
            assert_eq!(load(B), Some(word));
        }
        // No thread has such a tid.
        store(B, 0x3fff_0000);
        assert_eq!(lock(B), Err(FutexError::NoOwner));
        assert_eq!(load(B), Some(0x3fff_0000 | WAITERS));
        assert_eq!(pi::try_lock(B, false), Err(FutexError::NoOwner));
        for addr in [A + 1, A + 2] {
            assert_eq!(lock(addr), Err(FutexError::Invalid));
            assert_eq!(unlock(addr), Err(FutexError::NotPermitted));
        }
        for addr in [0, MEMORY + 16 * PAGE, hal::USER_END] {
            assert_eq!(lock(addr), Err(FutexError::Fault));
            assert_eq!(pi::try_lock(addr, true), Err(FutexError::Fault));
            assert_eq!(unlock(addr), Err(FutexError::Fault));
        }
        let page = MEMORY + PAGE;
        store(page, 0);
        let forbid = |prot| with_space(|space| space.protect(vm(), page, PAGE, prot));
        assert_eq!(forbid(MapProt::READ), Some(Ok(())));
        assert_eq!(lock(page), Err(FutexError::Fault));
        assert_eq!(load(page), Some(0));
    });
}

#[test]
fn a_lock_is_handed_over_in_the_order_of_arrival() {
    with_memory(2, || {
        let order = Order::default();
        assert_eq!(lock(A), Ok(()));
        let all: Vec<u32> = (0..5).map(|name| locker(A, name, 0, &order)).collect();
        assert_eq!(load(A), Some(current().tid() | WAITERS));
        assert_eq!(pi::try_lock(A, false), Err(FutexError::Deadlock));
        assert_eq!(unlock(A), Ok(()));
        all.into_iter().for_each(join);
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(load(A), Some(0));
    });
}

#[test]
fn the_highest_priority_comes_first() {
    with_memory(2, || {
        let order = Order::default();
        assert_eq!(lock(A), Ok(()));
        let names = [(0, 3), (1, 0), (2, 7), (3, 3), (4, 99), (5, 0)];
        let all = names.map(|(name, priority)| locker(A, name, priority, &order));
        assert_eq!(unlock(A), Ok(()));
        all.into_iter().for_each(join);
        assert_eq!(*order.lock().unwrap(), [4, 2, 0, 3, 1, 5]);
    });
}

#[test]
fn an_owner_is_lent_the_priority_of_those_that_wait() {
    with_memory(2, || {
        let (order, me) = (Order::default(), current().tid());
        set_priority(&current(), 5);
        assert_eq!((lock(A), lock(B)), (Ok(()), Ok(())));
        let low = locker(A, 0, 3, &order);
        assert_eq!(priority(me), 5);
        let high = locker(A, 1, 9, &order);
        assert_eq!(priority(me), 9);
        let other = locker(B, 2, 7, &order);
        assert_eq!(priority(me), 9);
        // The waiter's priority changes while it waits.
        set_priority(&ids::find_thread(high).unwrap(), 2);
        assert_eq!(priority(me), 7);
        set_priority(&ids::find_thread(low).unwrap(), 20);
        assert_eq!(priority(me), 20);
        assert_eq!(unlock(A), Ok(()));
        assert_eq!(priority(me), 7);
        assert_eq!(unlock(B), Ok(()));
        assert_eq!(priority(me), 5);
        [low, high, other].into_iter().for_each(join);
        let mut order = order.lock().unwrap().clone();
        order.retain(|&name| name != 2);
        assert_eq!(order, [0, 1]);
    });
}

#[test]
fn a_priority_is_lent_from_owner_to_owner() {
    with_memory(2, || {
        let (order, me) = (Order::default(), current().tid());
        assert_eq!(lock(A), Ok(()));
        let first = locker(A, 0, 4, &order);
        let named = order.clone();
        let middle = thread(move || {
            assert_eq!(lock(B), Ok(()));
            assert_eq!(lock(A), Ok(()));
            named.lock().unwrap().push(1);
            assert_eq!((unlock(A), unlock(B)), (Ok(()), Ok(())));
            assert_eq!(pi::priority_of(&current()), 0);
        });
        until_asleep(middle);
        assert_eq!(priority(me), 4);
        let late = locker(B, 2, 8, &order);
        // The middle one overtakes the first.
        assert_eq!((priority(middle), priority(me)), (8, 8));
        let impatient = thread(|| {
            set_priority(&current(), 50);
            let end = pi::lock(B, false, Deadline::after(30 * MS));
            assert_eq!(end, Err(FutexError::Timeout));
        });
        until(|| priority(me) == 50);
        join(impatient);
        assert_eq!((priority(middle), priority(me)), (8, 8));
        assert_eq!(unlock(A), Ok(()));
        assert_eq!(priority(me), 0);
        [first, middle, late].into_iter().for_each(join);
        assert_eq!(order.lock().unwrap()[0], 1);
    });
}

#[test]
fn a_ring_of_owners_is_refused_to_the_last() {
    with_memory(2, || {
        let words = [A, B, C];
        assert_eq!(lock(words[2]), Ok(()));
        let threads: Vec<u32> = (0..2)
            .map(|n| {
                let tid = thread(move || {
                    assert_eq!(lock(words[n]), Ok(()));
                    nap(20);
                    // Each waits for the next one, the last for this test's first thread.
                    assert_eq!(lock(words[n + 1]), Ok(()));
                    assert_eq!((unlock(words[n + 1]), unlock(words[n])), (Ok(()), Ok(())));
                });
                until(|| load(words[n]) == Some(tid));
                tid
            })
            .collect();
        threads.iter().copied().for_each(until_asleep);
        until(|| load(C) == Some(current().tid() | WAITERS));
        until(|| load(B) == Some(threads[1] | WAITERS));
        assert_eq!(lock(A), Err(FutexError::Deadlock));
        assert_eq!(lock(B), Err(FutexError::Deadlock));
        assert_eq!(unlock(C), Ok(()));
        threads.into_iter().for_each(join);
        assert_eq!(words.map(load), [Some(0); 3]);
    });
}

#[test]
fn a_wait_that_ends_by_its_time_leaves_nothing() {
    with_memory(2, || {
        assert_eq!(lock(A), Ok(()));
        let me = current().tid();
        let end = thread(|| {
            set_priority(&current(), 9);
            let late = pi::lock(A, false, Deadline::after(20 * MS));
            assert_eq!(late, Err(FutexError::Timeout));
            // At once, and none is left of it.
            let late = pi::lock(A, false, Deadline::now());
            assert_eq!(late, Err(FutexError::Timeout));
            assert_eq!(pi::try_lock(A, false), Err(FutexError::Changed));
        });
        join(end);
        assert_eq!(priority(me), 0);
        assert_eq!(load(A), Some(me | WAITERS));
        assert_eq!(unlock(A), Ok(()));
        assert_eq!(load(A), Some(0));
    });
}

#[test]
fn a_signal_ends_a_wait_and_kills_leave_the_others() {
    with_memory(2, || {
        catch(sig::INT);
        let order = Order::default();
        assert_eq!(lock(A), Ok(()));
        let tid = thread(|| {
            assert_eq!(lock(A), Err(FutexError::Signal));
            assert!(take(sig::INT).is_some());
        });
        until_asleep(tid);
        let next = locker(A, 1, 0, &order);
        let target = ids::find_thread(tid).unwrap();
        assert_eq!(send_thread(&target, SigInfo::kernel(sig::INT)), Ok(()));
        drop(target);
        join(tid);
        assert_eq!(unlock(A), Ok(()));
        join(next);
        assert_eq!(*order.lock().unwrap(), [1]);
    });
}

#[test]
fn locks_and_waits_for_wakes_do_not_mix() {
    with_memory(2, || {
        let woken = Results::default();
        let plain = waiter(B, 1, &woken);
        assert_eq!(lock(B), Err(FutexError::Invalid));
        store(B, current().tid());
        assert_eq!(unlock(B), Err(FutexError::Invalid));
        store(B, 0);
        assert_eq!(wake(B, 1), 1);
        join(plain);
        let order = Order::default();
        assert_eq!(lock(A), Ok(()));
        let tid = locker(A, 1, 0, &order);
        assert_eq!(futex::wake(A, false, 1, ANY), Err(FutexError::Invalid));
        let moved = futex::requeue(A, B, false, 1, 1, None);
        assert_eq!(moved, Err(FutexError::Invalid));
        let op = futex::wake_op((A, 1), (B, 1), false, |old| old, |_| true);
        assert_eq!(op, Err(FutexError::Invalid));
        assert_eq!(unlock(A), Ok(()));
        join(tid);
    });
}

#[test]
fn a_word_that_contradicts_the_kernel_is_refused() {
    with_memory(2, || {
        let (order, me) = (Order::default(), current().tid());
        assert_eq!(lock(A), Ok(()));
        let tid = locker(A, 1, 0, &order);
        for word in [0, tid, OWNER_DIED | tid, WAITERS | 0x3fff_0000] {
            store(A, word);
            let other = thread(|| {
                let word = load(A).unwrap();
                let want = match word & !OWNER_DIED == current().tid() {
                    true => FutexError::Deadlock,
                    false => FutexError::Invalid,
                };
                assert_eq!(lock(A), Err(want));
                assert_eq!(load(A), Some(word));
            });
            join(other);
        }
        // An owner that is not the one that the kernel knows.
        let thief = thread(|| {
            store(A, current().tid());
            assert_eq!(unlock(A), Err(FutexError::Invalid));
        });
        join(thief);
        store(A, me);
        assert_eq!(unlock(A), Ok(()));
        join(tid);
    });
}

#[test]
fn an_owner_that_ends_leaves_its_locks_to_the_first_waiters() {
    with_memory(2, || {
        let go = Arc::new(AtomicU32::new(0));
        let end = go.clone();
        let owner = thread(move || {
            assert_eq!((lock(A), lock(B)), (Ok(()), Ok(())));
            until(|| end.load(SeqCst) == 1);
        });
        until(|| load(B) == Some(owner));
        let heirs = [A, A, B].map(|addr| {
            let order = go.clone();
            let tid = thread(move || {
                assert_eq!(lock(addr), Ok(()));
                let word = load(addr).unwrap();
                let first = current().tid() | WAITERS | OWNER_DIED;
                // Only the first one is told; it clears the bit by unlocking.
                assert!(word == first || addr == A && word == first & !OWNER_DIED);
                if word == first {
                    order.fetch_add(10, SeqCst);
                }
                assert_eq!(unlock(addr), Ok(()));
            });
            until_asleep(tid);
            tid
        });
        go.fetch_add(1, SeqCst);
        heirs.into_iter().for_each(join);
        assert_eq!(go.load(SeqCst), 21);
        assert_eq!([A, B].map(load), [Some(0); 2]);
    });
}

#[test]
fn a_robust_lock_is_marked_for_the_next_one() {
    with_memory(2, || {
        const HEAD: u64 = MEMORY + 0x400;
        const ENTRY: u64 = MEMORY + 0x500;
        const PENDING: u64 = MEMORY + 0x600;
        let owner = thread(|| {
            assert_eq!((lock(ENTRY + 16), lock(PENDING + 16)), (Ok(()), Ok(())));
            // Bit 0: with priority inheritance.
            store_long(HEAD, ENTRY | 1);
            store_long(ENTRY, HEAD);
            store_long(HEAD + 8, 16);
            store_long(HEAD + 16, PENDING | 1);
            current().set_robust_list(HEAD);
        });
        join(owner);
        for word in [ENTRY + 16, PENDING + 16] {
            assert_eq!(load(word), Some(OWNER_DIED));
            assert_eq!(lock(word), Ok(()));
            assert_eq!(load(word), Some(OWNER_DIED | current().tid()));
        }
    });
}

#[test]
fn processes_hand_a_shared_lock_over_also_when_they_are_killed() {
    with_memory(2, || {
        share_memory();
        let take = |addr| pi::lock(addr, true, Deadline::Never);
        let owner = fork(move || {
            assert_eq!(take(SHARED), Ok(()));
            // The owner may have lost the word by then.
            let gone = with_space(|space| space.unmap(vm(), SHARED, PAGE));
            assert!(matches!(gone, Some(Ok(_))));
            nap(10_000);
            1
        });
        until(|| load(SHARED) == Some(owner));
        let killed = fork(move || u8::from(take(SHARED) != Ok(())));
        until_asleep(killed);
        let heir = fork(move || {
            assert_eq!(take(SHARED), Ok(()));
            let word = load(SHARED).unwrap();
            assert_eq!(word, current().tid() | WAITERS | OWNER_DIED);
            u8::from(pi::unlock(SHARED, true) == Ok(()))
        });
        until_asleep(heir);
        let status = u32::from(sig::KILL);
        for pid in [killed, owner] {
            assert!(kill(pid, sig::KILL));
            assert_eq!(wait(Children::Pid(pid)), Ok((pid, status)));
        }
        assert_eq!(wait(Children::Pid(heir)), Ok((heir, exited(1))));
        assert_eq!(load(SHARED), Some(0));
    });
}

#[test]
fn an_heir_that_is_killed_leaves_the_lock_to_the_next() {
    with_memory(1, || {
        share_memory();
        let take = || pi::lock(SHARED, true, Deadline::Never);
        assert_eq!(take(), Ok(()));
        let heir = fork(move || u8::from(take() == Ok(())));
        until_asleep(heir);
        let next = fork(move || {
            assert_eq!(take(), Ok(()));
            assert_eq!(load(SHARED), Some(current().tid() | WAITERS | OWNER_DIED));
            3
        });
        until_asleep(next);
        {
            // The heir does not run in between.
            let _pin = ksync::pin();
            assert!(kill(heir, sig::KILL));
            assert_eq!(pi::unlock(SHARED, true), Ok(()));
        }
        let status = u32::from(sig::KILL);
        assert_eq!(wait(Children::Pid(heir)), Ok((heir, status)));
        assert_eq!(wait(Children::Pid(next)), Ok((next, exited(3))));
    });
}

/// Many threads, some of which give up, take turns at two locks.
#[test]
fn many_threads_exclude_one_another() {
    with_memory(4, || {
        let inside = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let threads: Vec<u32> = (0..12u32)
            .map(|n| {
                let inside = inside.clone();
                thread(move || {
                    for round in 0..40u32 {
                        let which = ((n + round) % 2) as usize;
                        let addr = [A, B][which];
                        set_priority(&current(), (n * 7 + round) % 5);
                        let until = match (n + round) % 3 {
                            0 => Deadline::after(u64::from(round) * 20_000),
                            _ => Deadline::Never,
                        };
                        match pi::lock(addr, false, until) {
                            Ok(()) => {}
                            Err(FutexError::Timeout) => continue,
                            Err(why) => panic!("{why:?}"),
                        }
                        assert_eq!(inside[which].fetch_add(1, SeqCst), 0);
                        assert_eq!(
                            load(addr).map(|word| word & !WAITERS),
                            Some(current().tid())
                        );
                        inside[which].fetch_sub(1, SeqCst);
                        assert_eq!(unlock(addr), Ok(()));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(join);
        assert_eq!([A, B].map(load), [Some(0); 2]);
        futex::drain();
    });
}

/// Calls that begin again when a page has gone, or a word has changed, do not do so for ever where they are to be killed.
#[test]
fn a_kill_ends_a_call_that_begins_again_and_again() {
    let calls: [fn() -> Result<(), FutexError>; 3] = [
        || lock(A),
        || pi::try_lock(A, false),
        || pi::wait_requeue(B, 0, A, false, Deadline::Never),
    ];
    for call in calls {
        with_memory(2, move || {
            let ended = Arc::new(AtomicU32::new(0));
            let theirs = ended.clone();
            let child = fork(move || {
                PAGES_GO.store(true, SeqCst);
                assert_eq!(UserRange::new(A, 4).fault_in(true), Ok(()));
                let result = call();
                PAGES_GO.store(false, SeqCst);
                assert_eq!(result, Err(FutexError::Signal));
                theirs.store(1, SeqCst);
                0
            });
            nap(5);
            assert_eq!(ended.load(SeqCst), 0);
            assert!(kill(child, sig::KILL));
            assert_eq!(wait(Children::Pid(child)), Ok((child, sig::KILL.into())));
            assert_eq!(ended.load(SeqCst), 1);
        });
    }
}
