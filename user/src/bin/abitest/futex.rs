//! futex wait, wake and bitsets, private and shared.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use crate::harness::*;
use user::sys;

const PRIVATE: i32 = libc::FUTEX_PRIVATE_FLAG;

fn shared_page() -> Result<u64, i32> {
    sys::mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
}

/// A child that waits on `word`; it sleeps (as far as that can be observed) when this function returns.
fn sleeper(word: u64, op: i32, bits: u32) -> Result<u64, i32> {
    let pid = sys::fork()?;
    if pid == 0 {
        let answer = sc!(SYS_futex, word, op, 0, 0, 0, bits);
        sys::exit(i32::from(answer != Ok(0)));
    }
    nap_us(30_000);
    Ok(pid)
}

tests! { "futex";
    wait_for_another_value { let word = ok!(anon(1)); fails!(sc!(SYS_futex, word, libc::FUTEX_WAIT | PRIVATE, 1, 0), EAGAIN); }
    wake_of_nobody { let word = ok!(anon(1)); is!(ok!(sc!(SYS_futex, word, libc::FUTEX_WAKE | PRIVATE, 1)), 0); }
    wait_times_out {
        let word = ok!(anon(1));
        let began = sys::now_ns();
        fails!(sc!(SYS_futex, word, libc::FUTEX_WAIT | PRIVATE, 0, [0u64, 20_000_000].as_ptr()), ETIMEDOUT);
        holds!(sys::now_ns() - began >= 20_000_000);
    }
    wait_bitset_until_an_absolute_time {
        let word = ok!(anon(1));
        let end = sys::now_ns() + 20_000_000;
        let time = [end / 1_000_000_000, end % 1_000_000_000];
        fails!(sc!(SYS_futex, word, libc::FUTEX_WAIT_BITSET | PRIVATE, 0, time.as_ptr(), 0, -1i64), ETIMEDOUT);
        holds!(sys::now_ns() >= end);
    }
    shared_wake_across_processes {
        let word = ok!(shared_page());
        let pids = [ok!(sleeper(word, libc::FUTEX_WAIT, 0)), ok!(sleeper(word, libc::FUTEX_WAIT, 0))];
        let woken = std::cell::Cell::new(0);
        holds!(soon(|| { woken.set(woken.get() + sc!(SYS_futex, word, libc::FUTEX_WAKE, 1).unwrap_or(0)); woken.get() == 2 }));
        for pid in pids { is!(ok!(sys::wait(pid as i64, 0)), (pid, 0)); }
    }
    a_shared_word_is_never_taken_for_one_that_has_gone {
        // A thread sleeps on a word whose memory is then unmapped; a word mapped there later is another futex.
        let gone = ok!(shared_page());
        let end = std::thread::spawn(move || sc!(SYS_futex, gone, libc::FUTEX_WAIT, 0, [1u64, 500_000_000].as_ptr()));
        nap_us(200_000);
        ok!(sys::munmap(gone, 4096));
        let mut woken = 0;
        for _ in 0..100 {
            let later = ok!(shared_page());
            woken += ok!(sc!(SYS_futex, later, libc::FUTEX_WAKE, 8));
            nap_us(5_000);
        }
        is!(woken, 0);
        is!(end.join().ok(), Some(Err(libc::ETIMEDOUT)));
    }
    requeue_wakes_one_and_moves_the_rest {
        let (from, to) = { let at = ok!(shared_page()); (at, at + 64) };
        is!(ok!(sc!(SYS_futex, from, libc::FUTEX_CMP_REQUEUE, 1, 1, to, 0)), 0);
        fails!(sc!(SYS_futex, from, libc::FUTEX_CMP_REQUEUE, 1, 1, to, 5), EAGAIN);
        let pids = [ok!(sleeper(from, libc::FUTEX_WAIT, 0)), ok!(sleeper(from, libc::FUTEX_WAIT, 0))];
        let seen = std::cell::Cell::new(0);
        holds!(soon(|| { seen.set(seen.get() + sc!(SYS_futex, from, libc::FUTEX_CMP_REQUEUE, 1 - seen.get().min(1), 1, to, 0).unwrap_or(0)); seen.get() == 2 }));
        holds!(soon(|| sc!(SYS_futex, to, libc::FUTEX_WAKE, 1) == Ok(1)));
        for pid in pids { is!(ok!(sys::wait(pid as i64, 0)), (pid, 0)); }
    }
    bitsets_choose_whom_to_wake {
        let word = ok!(shared_page());
        let one = ok!(sleeper(word, libc::FUTEX_WAIT_BITSET, 1));
        is!(ok!(sc!(SYS_futex, word, libc::FUTEX_WAKE_BITSET, 10, 0, 0, 2)), 0);
        holds!(soon(|| sc!(SYS_futex, word, libc::FUTEX_WAKE_BITSET, 10, 0, 0, 1) == Ok(1)));
        is!(ok!(sys::wait(one as i64, 0)), (one, 0));
    }
    many_waiters_are_woken_and_moved {
        const MANY: u64 = 120;
        let (from, to) = { let at = ok!(anon(1)); (at, at + 64) };
        let threads: Vec<_> = (0..MANY).map(|i| std::thread::spawn(move || {
            // Every third thread gives up after a timeout, on whichever word it waits then.
            let short = [0u64, 150_000_000];
            let time = if i % 3 == 0 { short.as_ptr() as u64 } else { 0 };
            sc!(SYS_futex, from, libc::FUTEX_WAIT | PRIVATE, 0, time)
        })).collect();
        // Some are requeued while others still start to wait, time out or are woken.
        let woken = std::cell::Cell::new(0);
        let over = || {
            let _ = sc!(SYS_futex, from, libc::FUTEX_CMP_REQUEUE | PRIVATE, 0, 1000, to, 0);
            woken.set(woken.get() + sc!(SYS_futex, to, libc::FUTEX_WAKE | PRIVATE, 7).unwrap_or(0));
            threads.iter().all(|thread| thread.is_finished())
        };
        holds!(soon(over) || soon(over) || soon(over));
        let answers: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        let ends = |wanted| answers.iter().filter(|&answer| matches!(answer, Ok(end) if *end == wanted)).count() as u64;
        is!(ends(Ok(0)) + ends(Err(libc::ETIMEDOUT)), MANY);
        is!(ends(Ok(0)), woken.get());
    }
    many_threads_wait_on_one_word_after_another {
        // Every list of waiters in the kernel becomes long once, and what it needed for that goes back: the final count of
        // the kernel's memory shows it.
        const THREADS: u32 = 40;
        const WORDS: usize = 400;
        let words: Arc<Vec<[AtomicU32; 2]>> = Arc::new((0..WORDS).map(|_| Default::default()).collect());
        let threads: Vec<_> = (0..THREADS).map(|_| words.clone()).map(|words| std::thread::spawn(move || for [go, arrived] in words.iter() {
            arrived.fetch_add(1, SeqCst);
            while go.load(SeqCst) == 0 {
                let _ = sc!(SYS_futex, go.as_ptr(), libc::FUTEX_WAIT | PRIVATE, 0, 0);
            }
        })).collect();
        for [go, arrived] in words.iter() {
            while arrived.load(SeqCst) < THREADS { nap_us(100); }
            go.store(1, SeqCst);
            ok!(sc!(SYS_futex, go.as_ptr(), libc::FUTEX_WAKE | PRIVATE, THREADS));
        }
        holds!(threads.into_iter().all(|thread| thread.join().is_ok()));
    }
    lists_that_a_requeue_empties_give_their_memory_back {
        // Many threads wait, and are moved from word to word: from each list of the kernel to another. Each list has been long
        // then, but only the last one is.
        const THREADS: u64 = 200;
        const WORDS: u64 = 700;
        let words = ok!(anon(2));
        let word = move |n: u64| words + 4 * n;
        for _ in 0..THREADS { std::thread::spawn(move || sc!(SYS_futex, word(0), libc::FUTEX_WAIT | PRIVATE, 0, 0)); }
        let moved = std::cell::Cell::new(0);
        holds!(within(10, || {
            moved.set(moved.get() + sc!(SYS_futex, word(0), libc::FUTEX_REQUEUE | PRIVATE, 0, THREADS, word(1)).unwrap_or(0));
            moved.get() == THREADS
        }));
        let slab = || user::proc::meminfo("Slab").unwrap_or(0);
        let before = slab();
        for n in 2..WORDS {
            is!(ok!(sc!(SYS_futex, word(n - 1), libc::FUTEX_REQUEUE | PRIVATE, 0, THREADS, word(n))), THREADS);
        }
        let grown = slab().saturating_sub(before);
        holds!(grown < 1 << 20);
    }
    different_mappings_of_one_file_are_one_futex {
        let fd = file_with(&[0; 4096])?;
        let first = ok!(sys::mmap(0, PAGE, RW, libc::MAP_SHARED, fd, 0));
        let second = ok!(sys::mmap(0, PAGE, RW, libc::MAP_SHARED, fd, 0));
        let pid = ok!(sleeper(first, libc::FUTEX_WAIT, 0));
        holds!(soon(|| sc!(SYS_futex, second, libc::FUTEX_WAKE, 1) == Ok(1)));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
    }
    private_futexes_of_two_processes_are_two {
        let word = ok!(anon(1));
        let pid = ok!(sleeper(word, libc::FUTEX_WAIT | PRIVATE, 0));
        is!(ok!(sc!(SYS_futex, word, libc::FUTEX_WAKE | PRIVATE, 10)), 0);
        ok!(sc!(SYS_kill, pid, libc::SIGKILL));
        ok!(sys::wait(pid as i64, 0));
    }
    a_signal_interrupts {
        extern "C" fn nothing(_: i32) {}
        ok!(sys::on_signal(libc::SIGALRM, nothing as *const () as usize, 0));
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64, 0, 0, 20_000].as_ptr(), 0));
        let word = ok!(anon(1));
        fails!(sc!(SYS_futex, word, libc::FUTEX_WAIT | PRIVATE, 0, 0), EINTR);
    }
    a_handler_ends_each_wait_with_a_timeout {
        extern "C" fn nothing(_: i32) {}
        ok!(sys::on_signal(libc::SIGALRM, nothing as *const () as usize, libc::SA_RESTART));
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64, 20_000, 0, 20_000].as_ptr(), 0));
        let word = ok!(anon(1));
        let later = [sys::now_ns() / 1_000_000_000 + 1000, 0];
        fails!(sc!(SYS_futex, word, libc::FUTEX_WAIT_BITSET | PRIVATE, 0, later.as_ptr(), 0, -1i64), EINTR);
        fails!(sc!(SYS_futex, word, libc::FUTEX_WAIT | PRIVATE, 0, [1000u64, 0].as_ptr()), EINTR);
    }
    arguments {
        let word = ok!(anon(1));
        fails!(sc!(SYS_futex, word + 1, libc::FUTEX_WAIT | PRIVATE, 0, 0), EINVAL);
        fails!(sc!(SYS_futex, 8, libc::FUTEX_WAIT | PRIVATE, 0, 0), EFAULT);
        fails!(sc!(SYS_futex, word, libc::FUTEX_WAIT_BITSET | PRIVATE, 0, 0, 0, 0), EINVAL);
        fails!(sc!(SYS_futex, word, libc::FUTEX_WAIT | PRIVATE, 0, [0u64, 2_000_000_000].as_ptr()), EINVAL);
        fails!(sc!(SYS_futex, word, 99, 0, 0), ENOSYS);
        fails!(sc!(SYS_futex, word, libc::FUTEX_WAIT | libc::FUTEX_CLOCK_REALTIME, 1, 0), ENOSYS);
        fails!(sc!(SYS_futex, word, libc::FUTEX_WAIT | PRIVATE, 0, 8), EFAULT);
    }
    both_forms_of_requeue_count_those_that_move {
        let words = ok!(shared_page());
        for op in [libc::FUTEX_REQUEUE, libc::FUTEX_CMP_REQUEUE] {
            let pid = ok!(sleeper(words, libc::FUTEX_WAIT, 0));
            holds!(soon(|| sc!(SYS_futex, words, op, 0, 1, words + 4, 0) == Ok(1)));
            is!(ok!(sc!(SYS_futex, words + 4, libc::FUTEX_WAKE, 1)), 1);
            is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        }
    }
    // The word that a waiter was requeued to is unmapped: a futex in memory mapped later must not wake it.
    a_waiter_of_memory_that_has_gone_takes_no_wake_up {
        let from = ok!(shared_page());
        let pid = ok!(sleeper(from, libc::FUTEX_WAIT, 0));
        let to = ok!(shared_page());
        holds!(soon(|| sc!(SYS_futex, from, libc::FUTEX_CMP_REQUEUE, 0, 1, to, 0) == Ok(1)));
        ok!(sys::munmap(to, PAGE));
        for _ in 0..100 {
            let later = ok!(shared_page());
            is!(ok!(sc!(SYS_futex, later, libc::FUTEX_WAKE, 1)), 0);
            nap_us(5000);
        }
        ok!(sc!(SYS_kill, pid, libc::SIGKILL));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, libc::SIGKILL));
    }
    a_program_that_begins_clears_the_word_of_its_thread {
        let word = ok!(anon(1));
        sys::poke64(word, 7);
        let argv = [c"sh".as_ptr(), c"-c".as_ptr(), c"exit 3".as_ptr(), std::ptr::null()];
        let pid = ok!(sys::clone_exec(libc::CLONE_CHILD_CLEARTID, word, c"/bin/sh", &argv, &[std::ptr::null()]));
        is!(sys::peek64(word), 0);
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 3 << 8));
    }
    mutexes_and_conditions_of_threads {
        let state = std::sync::Arc::new((std::sync::Mutex::new(0), std::sync::Condvar::new()));
        let threads: Vec<_> = (0..4).map(|i| {
            let state = state.clone();
            std::thread::spawn(move || for turn in 0..100 {
                let mut now = state.0.lock().unwrap();
                while *now != turn * 4 + i { now = state.1.wait(now).unwrap(); }
                *now += 1;
                state.1.notify_all();
            })
        }).collect();
        for thread in threads { holds!(thread.join().is_ok()); }
        is!(*state.0.lock().unwrap(), 400);
    }
}
