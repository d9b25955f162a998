//! futex_waitv: waits on several words.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use crate::harness::*;
use user::sys;

const WAITV: i64 = 449;
const FUTEX_32: u64 = 2;
const PRIVATE: u64 = libc::FUTEX_PRIVATE_FLAG as u64;
const OWN: u64 = FUTEX_32 | PRIVATE;

/// A struct futex_waitv.
type Wanted = [u64; 3];

fn wait(list: &[Wanted], until: Option<[u64; 2]>, clock: i32) -> Result<u64, i32> {
    let time = until.as_ref().map_or(0, |time| time.as_ptr() as u64);
    sys::call(
        WAITV,
        &[
            list.as_ptr() as u64,
            list.len() as u64,
            0,
            time,
            clock as u64,
        ],
    )
}

/// Waits at most for five seconds.
fn wait_some(list: &[Wanted]) -> Result<u64, i32> {
    let until = sys::now_ns() / 1_000_000_000 + 5;
    wait(list, Some([until, 0]), libc::CLOCK_MONOTONIC)
}

fn wake(word: u64, flags: u64, count: u32) -> Result<u64, i32> {
    sc!(
        SYS_futex,
        word,
        libc::FUTEX_WAKE as u64 | flags & PRIVATE,
        count
    )
}

/// Words of private memory that hold 0.
fn words<const N: usize>() -> Result<[u64; N], i32> {
    let base = anon(1)?;
    Ok(core::array::from_fn(|i| base + 4 * i as u64))
}

/// Wakes the waiter of `word` as soon as it waits.
fn wake_soon(word: u64, flags: u64) -> std::thread::JoinHandle<bool> {
    std::thread::spawn(move || within(4, || wake(word, flags, 1) == Ok(1)))
}

tests! { "waitv";
    the_word_that_was_woken_is_told {
        let list: [u64; 3] = ok!(words());
        for (i, &word) in list.iter().enumerate() {
            let waker = wake_soon(word, PRIVATE);
            is!(ok!(wait_some(&list.map(|word| [0, word, OWN]))), i as u64);
            holds!(waker.join().unwrap_or(false));
            // Nothing is left on the other queues.
            for other in list {
                is!(ok!(wake(other, PRIVATE, 9)), 0);
            }
        }
    }
    of_several_that_were_woken_the_last_is_told {
        static DONE: AtomicU32 = AtomicU32::new(0);
        let [first, second] = ok!(words());
        // A requeue moves the entry; the wait goes on under the same index.
        let waker = std::thread::spawn(move || {
            let moved = within(4, || {
                sc!(SYS_futex, first, libc::FUTEX_REQUEUE as u64 | PRIVATE, 0, 5, second + 4) == Ok(1)
            });
            DONE.store(1, SeqCst);
            nap_us(50_000);
            moved && wake(first, PRIVATE, 5) == Ok(0) && wake(second + 4, PRIVATE, 5) == Ok(1)
        });
        is!(ok!(wait_some(&[[0, second, OWN], [0, first, OWN]])), 1);
        is!(DONE.load(SeqCst), 1);
        holds!(waker.join().unwrap_or(false));
        is!(ok!(wake(second, PRIVATE, 9)), 0);
    }
    one_word_several_times_and_as_many_as_there_may_be {
        let [word] = ok!(words());
        let list = [[0, word, OWN]; 128];
        let waker = wake_soon(word, PRIVATE);
        ok!(wait_some(&list));
        holds!(waker.join().unwrap_or(false));
        is!(ok!(wake(word, PRIVATE, 200)), 0);
        let list = [[0, word, OWN]; 129];
        fails!(wait_some(&list), EINVAL);
        fails!(wait_some(&[]), EINVAL);
    }
    a_shared_word_beside_a_private_one {
        let shared = ok!(sys::mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0));
        let [own] = ok!(words());
        let pid = ok!(sys::fork());
        if pid == 0 {
            let woken = within(4, || wake(shared, 0, 1) == Ok(1));
            sys::exit(i32::from(!woken));
        }
        is!(ok!(wait_some(&[[0, own, OWN], [0, shared, FUTEX_32]])), 1);
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
    }
    another_value_ends_it_at_once {
        let [first, second] = ok!(words());
        fails!(wait_some(&[[0, first, OWN], [1, second, OWN]]), EAGAIN);
        fails!(wait_some(&[[1, first, OWN], [0, second, OWN]]), EAGAIN);
        is!(ok!(wake(first, PRIVATE, 9)), 0);
    }
    times_and_signals_end_it {
        let list = ok!(words::<2>()).map(|word| [0, word, OWN]);
        let end = sys::now_ns() + 20_000_000;
        let until = [end / 1_000_000_000, end % 1_000_000_000];
        fails!(wait(&list, Some(until), libc::CLOCK_MONOTONIC), ETIMEDOUT);
        holds!(sys::now_ns() >= end);
        fails!(wait(&list, Some([1, 0]), libc::CLOCK_REALTIME), ETIMEDOUT);
        fails!(wait(&list, Some([1, 0]), libc::CLOCK_BOOTTIME), EINVAL);
        fails!(wait(&list, Some([0, 1_000_000_000]), libc::CLOCK_MONOTONIC), EINVAL);
        fails!(sys::call(WAITV, &[list.as_ptr() as u64, 2, 0, 8, 1]), EFAULT);
        ok!(sys::on_signal(libc::SIGALRM, on_alarm as *const () as usize, 0));
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0i64, 0, 0, 20_000].as_ptr(), 0));
        fails!(wait_some(&list), EINTR);
        is!(ok!(wake(list[0][1], PRIVATE, 9)), 0);
    }
    arguments {
        let [word] = ok!(words());
        let entry = [0, word, OWN];
        fails!(sys::call(WAITV, &[entry.as_ptr() as u64, 1, 1, 0, 0]), EINVAL);
        fails!(sys::call(WAITV, &[0, 1, 0, 0, 0]), EINVAL);
        fails!(sys::call(WAITV, &[8, 1, 0, 0, 0]), EFAULT);
        fails!(wait_some(&[[0, word, PRIVATE]]), EINVAL);
        fails!(wait_some(&[[0, word, OWN | 64]]), EINVAL);
        fails!(wait_some(&[[0, word, OWN | 1 << 32]]), EINVAL);
        fails!(wait_some(&[[0, word + 1, OWN]]), EINVAL);
        fails!(wait_some(&[[0, 8, OWN]]), EFAULT);
        fails!(wait_some(&[[0, word, OWN], [0, 1 << 63, OWN]]), EFAULT);
    }
}

extern "C" fn on_alarm(_: i32) {}
