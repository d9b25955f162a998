//! Conditions whose waiters are moved to a lock with priority inheritance.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::spawn;

use crate::harness::*;
use crate::pi::{
    ALARMS, CMP_REQUEUE, LOCK, PRIVATE, REALTIME, Sleeper, UNLOCK, WAIT, WAITERS, WAKE, after,
    alarm, asleep, load, own, ring, sleeper, tid,
};

const WAIT_REQUEUE: u64 = 11;

fn requeue(cond: u64, lock: u64, wake: i32, moves: i32, value: u32) -> Result<u64, i32> {
    sc!(
        SYS_futex,
        cond,
        CMP_REQUEUE | PRIVATE,
        wake as i64,
        moves as i64,
        lock,
        value
    )
}

fn wait_requeue(cond: u64, value: u32, lock: u64, at: Option<[u64; 2]>) -> Result<u64, i32> {
    let time = at.as_ref().map_or(0, |at| at.as_ptr() as u64);
    sc!(
        SYS_futex,
        cond,
        WAIT_REQUEUE | PRIVATE,
        value,
        time,
        lock,
        0
    )
}

/// What a wait for a condition answered, and what the lock's word was then.
type Answer = (Result<u64, i32>, u32);

/// A thread that waits for the condition, and returns the answer and what the lock's word was then; it waits when this returns.
fn conditional(cond: u64, lock: u64) -> Result<Sleeper<Answer>, String> {
    sleeper(move || {
        let got = wait_requeue(cond, 0, lock, None);
        let seen = load(lock);
        if got.is_ok() {
            let _ = own(UNLOCK, lock);
        }
        (got, seen)
    })
}

tests! { "pi";
    waiters_of_a_condition_are_moved_to_its_lock {
        let (cond, lock) = { let at = ok!(anon(1)); (at, at + 64) };
        is!(ok!(requeue(cond, lock, 1, 5, 0)), 0);
        let waiting = [conditional(cond, lock)?, conditional(cond, lock)?, conditional(cond, lock)?];
        ok!(own(LOCK, lock));
        is!(ok!(requeue(cond, lock, 1, 0, 0)), 1);
        is!(load(lock), tid() | WAITERS);
        is!(ok!(requeue(cond, lock, 1, i32::MAX, 0)), 2);
        is!(ok!(requeue(cond, lock, 1, i32::MAX, 0)), 0);
        nap_us(20_000);
        holds!(waiting.iter().all(|(_, tid)| asleep(*tid)));
        is!(ok!(own(UNLOCK, lock)), 0);
        for (handle, tid) in waiting { is!(handle.join().ok(), Some((Ok(0), tid | WAITERS))); }
        is!(load(lock), 0);
    }
    a_free_lock_goes_to_the_first_waiter_of_the_condition {
        let (cond, lock) = { let at = ok!(anon(1)); (at, at + 64) };
        let (handle, tid) = conditional(cond, lock)?;
        is!(ok!(requeue(cond, lock, 1, 0, 0)), 1);
        is!(handle.join().ok(), Some((Ok(0), tid)));
        let waiting = [conditional(cond, lock)?, conditional(cond, lock)?, conditional(cond, lock)?];
        is!(ok!(requeue(cond, lock, 1, 1, 0)), 2);
        is!(ok!(requeue(cond, lock, 1, 1, 0)), 1);
        for (handle, _) in waiting { holds!(handle.join().is_ok_and(|(end, _)| end == Ok(0))); }
        is!(load(lock), 0);
    }
    requeues_that_do_not_fit_are_refused {
        let (cond, lock) = { let at = ok!(anon(1)); (at, at + 64) };
        fails!(requeue(cond, cond, 1, 1, 0), EINVAL);
        fails!(requeue(cond, lock, 0, 1, 0), EINVAL);
        fails!(requeue(cond, lock, 2, 1, 0), EINVAL);
        fails!(requeue(cond, lock, -1, 1, 0), EINVAL);
        fails!(requeue(cond, lock, 1, -1, 0), EINVAL);
        fails!(requeue(cond, lock + 1, 1, 1, 0), EINVAL);
        fails!(requeue(8, lock, 1, 1, 0), EFAULT);
        fails!(requeue(cond, lock, 1, 1, 7), EAGAIN);
        fails!(wait_requeue(cond, 0, cond, None), EINVAL);
        fails!(wait_requeue(cond, 7, lock, None), EAGAIN);
        fails!(wait_requeue(cond, 0, lock + 2, None), EINVAL);
        fails!(wait_requeue(8, 0, lock, None), EFAULT);
        fails!(wait_requeue(cond, 0, lock, Some([0, 1 << 40])), EINVAL);
        fails!(wait_requeue(cond, 0, lock, Some([1, 0])), ETIMEDOUT);
        let (handle, _) = conditional(cond, lock)?;
        fails!(requeue(cond, lock + 64, 1, 1, 0), EINVAL);
        fails!(sc!(SYS_futex, cond, WAKE | PRIVATE, 1), EINVAL);
        fails!(sc!(SYS_futex, cond, libc::FUTEX_CMP_REQUEUE as u64 | PRIVATE, 1, 1, lock, 0), EINVAL);
        is!(ok!(requeue(cond, lock, 1, 0, 0)), 1);
        holds!(handle.join().is_ok_and(|(end, _)| end == Ok(0)));
        let (handle, _) = sleeper(move || sc!(SYS_futex, cond, WAIT | PRIVATE, 0, 0))?;
        fails!(requeue(cond, lock, 1, 1, 0), EINVAL);
        is!(ok!(sc!(SYS_futex, cond, WAKE | PRIVATE, 1)), 1);
        is!(handle.join().ok(), Some(Ok(0)));
    }
    a_waiter_that_was_moved_may_time_out_or_be_interrupted {
        let (cond, lock) = { let at = ok!(anon(1)); (at, at + 64) };
        let (held, mover) = (Arc::new(AtomicU32::new(0)), lock);
        let done = held.clone();
        let owner = spawn(move || {
            let _ = own(LOCK, mover);
            while done.load(SeqCst) < 2 {
                let _ = requeue(cond, mover, 1, 5, 0);
                nap_us(1000);
            }
            own(UNLOCK, mover)
        });
        holds!(soon(|| load(lock) != 0));
        fails!(wait_requeue(cond, 0, lock, Some(after(libc::CLOCK_MONOTONIC, 60))), ETIMEDOUT);
        held.fetch_add(1, SeqCst);
        ok!(alarm());
        // Before it is moved the call begins again, and the next alarm interrupts it.
        ok!(ring([0, 30_000, 0, 30_000]));
        fails!(wait_requeue(cond, 0, lock, None), EAGAIN);
        ok!(ring([0; 4]));
        holds!(ALARMS.load(SeqCst) > 0);
        held.fetch_add(1, SeqCst);
        is!(owner.join().ok(), Some(Ok(0)));
        is!(load(lock), 0);
    }
    a_wait_for_a_condition_goes_on_after_a_handler {
        let (cond, lock) = { let at = ok!(anon(1)); (at, at + 64) };
        let end = after(libc::CLOCK_REALTIME, 120);
        ok!(alarm());
        fails!(sc!(SYS_futex, cond, WAIT_REQUEUE | PRIVATE | REALTIME, 0, end.as_ptr(), lock, 0), ETIMEDOUT);
        is!(ALARMS.load(SeqCst), 1);
        ok!(alarm());
        let waker = spawn(move || { nap_us(100_000); within(4, || requeue(cond, lock, 1, 0, 0) == Ok(1)) });
        is!(ok!(wait_requeue(cond, 0, lock, None)), 0);
        is!(ALARMS.load(SeqCst), 1);
        is!(load(lock), tid());
        is!(waker.join().ok(), Some(true));
    }
    a_waiter_that_would_wait_for_itself_is_not_moved {
        let (cond, lock, other) = { let at = ok!(anon(1)); (at, at + 64, at + 128) };
        let (holder, _) = sleeper(move || {
            let _ = own(LOCK, other);
            let end = wait_requeue(cond, 0, lock, Some(after(libc::CLOCK_MONOTONIC, 500)));
            let _ = own(UNLOCK, other);
            end
        })?;
        let (owner, _) = sleeper(move || {
            [own(LOCK, lock), own(LOCK, other), own(UNLOCK, other), own(UNLOCK, lock)]
        })?;
        fails!(requeue(cond, lock, 1, 1, 0), EDEADLK);
        is!(holder.join().ok(), Some(Err(libc::ETIMEDOUT)));
        is!(owner.join().ok(), Some([Ok(0); 4]));
        let (greedy, _) = sleeper(move || {
            let _ = own(LOCK, lock);
            let end = wait_requeue(cond, 0, lock, Some(after(libc::CLOCK_MONOTONIC, 200)));
            (end, own(UNLOCK, lock))
        })?;
        fails!(requeue(cond, lock, 1, 1, 0), EDEADLK);
        is!(greedy.join().ok(), Some((Err(libc::ETIMEDOUT), Ok(0))));
    }
}
