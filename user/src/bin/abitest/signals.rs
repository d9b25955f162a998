//! Delivery, masks, queues, alternate stacks, restarting.

use crate::harness::*;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};
use user::sys;

static COUNT: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);
static VALUES: AtomicU64 = AtomicU64::new(0);
static STACK: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(signal: i32) {
    COUNT.fetch_add(1, SeqCst);
    LAST.store(signal, SeqCst);
}

extern "C" fn note_value(_: i32, info: *const [i32; 32]) {
    let mut words = [0u8; 4];
    for (i, byte) in words.iter_mut().enumerate() {
        *byte = sys::peek(info as u64 + 24 + i as u64); // si_value of a queued signal
    }
    VALUES.store(
        VALUES.load(SeqCst) * 10 + u64::from(u32::from_ne_bytes(words)),
        SeqCst,
    );
    COUNT.fetch_add(1, SeqCst);
}

extern "C" fn note_stack(_: i32) {
    let here = 0u8;
    STACK.store(&raw const here as u64, SeqCst);
}

/// Waits until the first thread of the process sleeps.
fn asleep() {
    let is = || std::fs::read_to_string("/proc/self/stat").is_ok_and(|stat| stat.contains(") S "));
    while !is() {
        nap_us(100);
    }
}

fn handle(signal: i32, flags: i32) -> Result<(), i32> {
    sys::on_signal(signal, count as *const () as usize, flags)
}

fn kill_me(signal: i32) -> Result<u64, i32> {
    sc!(SYS_kill, sc!(SYS_getpid)?, signal)
}

fn mask(how: i32, signals: &[i32]) -> Result<u64, i32> {
    let set = signals
        .iter()
        .fold(0u64, |set, signal| set | 1 << (signal - 1));
    let mut old = 0u64;
    sc!(SYS_rt_sigprocmask, how, &raw const set, &raw mut old, 8).map(|_| old)
}

/// A child sends the caller `signal` after `ms`.
fn later(ms: u64, signal: i32) -> Result<u64, i32> {
    let me = sc!(SYS_getpid)?;
    match sys::fork()? {
        0 => {
            nap_us(ms * 1000);
            let _ = sc!(SYS_kill, me, signal);
            sys::exit(0)
        }
        pid => Ok(pid),
    }
}

tests! { "signal";
    handler_runs {
        ok!(handle(libc::SIGUSR1, 0));
        ok!(kill_me(libc::SIGUSR1));
        is!([COUNT.load(SeqCst), LAST.load(SeqCst) as u64], [1, libc::SIGUSR1 as u64]);
    }
    handler_runs_once_with_resethand {
        ok!(handle(libc::SIGUSR1, libc::SA_RESETHAND));
        ok!(kill_me(libc::SIGUSR1));
        is!(in_child(|| { let _ = kill_me(libc::SIGUSR1); 0 })?, libc::SIGUSR1);
    }
    ignored_signals_do_nothing {
        ok!(sys::on_signal(libc::SIGTERM, libc::SIG_IGN, 0));
        ok!(kill_me(libc::SIGTERM));
    }
    default_actions {
        is!(in_child(|| { let _ = kill_me(libc::SIGTERM); 0 })?, libc::SIGTERM);
        is!(in_child(|| { let _ = kill_me(libc::SIGCHLD); let _ = kill_me(libc::SIGWINCH); 5 })?, 5 << 8);
        is!(in_child(|| { let _ = kill_me(libc::SIGABRT); 0 })? & 0x7f, libc::SIGABRT);
    }
    blocked_signals_wait {
        ok!(handle(libc::SIGUSR1, 0));
        ok!(mask(libc::SIG_BLOCK, &[libc::SIGUSR1]));
        ok!(kill_me(libc::SIGUSR1));
        ok!(kill_me(libc::SIGUSR1));
        is!(COUNT.load(SeqCst), 0);
        let mut pending = 0u64;
        ok!(sc!(SYS_rt_sigpending, &raw mut pending, 8));
        is!(pending, 1 << (libc::SIGUSR1 - 1));
        ok!(mask(libc::SIG_UNBLOCK, &[libc::SIGUSR1]));
        is!(COUNT.load(SeqCst), 1);
    }
    kill_and_stop_cannot_be_blocked_or_caught {
        ok!(mask(libc::SIG_BLOCK, &[libc::SIGKILL, libc::SIGSTOP, libc::SIGUSR1]));
        is!(ok!(mask(libc::SIG_BLOCK, &[])), 1 << (libc::SIGUSR1 - 1));
        fails!(handle(libc::SIGKILL, 0), EINVAL);
        fails!(handle(libc::SIGSTOP, 0), EINVAL);
    }
    realtime_signals_queue_in_order {
        let first = 40;
        ok!(sys::on_signal(first, note_value as *const () as usize, libc::SA_SIGINFO));
        ok!(mask(libc::SIG_BLOCK, &[first]));
        let me = ok!(sc!(SYS_getpid));
        for value in 1..=3 {
            let mut info = [0i32; 32];
            (info[0], info[2], info[6]) = (first, -1, value); // SI_QUEUE
            ok!(sc!(SYS_rt_sigqueueinfo, me, first, info.as_ptr()));
        }
        ok!(mask(libc::SIG_UNBLOCK, &[first]));
        is!([COUNT.load(SeqCst), VALUES.load(SeqCst)], [3, 123]);
    }
    what_may_not_be_queued_comes_without_details_or_not_at_all {
        let (real_time, standard) = (40, libc::SIGUSR1);
        let me = ok!(sc!(SYS_getpid));
        ok!(mask(libc::SIG_BLOCK, &[real_time, standard]));
        ok!(sc!(SYS_prlimit64, 0, libc::RLIMIT_SIGPENDING, [0u64, 0].as_ptr(), 0));
        let queue = |signal: i32| {
            let mut info = [0i32; 32];
            (info[0], info[2], info[4]) = (signal, -1, 77); // SI_QUEUE
            sc!(SYS_rt_sigqueueinfo, me, signal, info.as_ptr())
        };
        let to_thread = |signal: i32| sc!(SYS_tgkill, me, me, signal);
        // Checks `si_code`, and the sender's pid and uid.
        let take = |signal: i32| {
            let (set, mut info) = (1u64 << (signal - 1), [9i32; 32]);
            let taken = sc!(SYS_rt_sigtimedwait, &raw const set, info.as_mut_ptr(), [0u64; 2].as_ptr(), 8);
            let info = std::hint::black_box(info);
            taken.map(|_| (info[2], info[4] as u64, info[5]))
        };
        fails!(queue(real_time), EAGAIN);
        fails!(to_thread(real_time), EAGAIN);
        is!(take(real_time), Err(libc::EAGAIN));
        ok!(kill_me(real_time));
        ok!(kill_me(real_time));
        is!([take(real_time), take(real_time)], [Ok((0, 0, 0)), Err(libc::EAGAIN)]);
        ok!(queue(standard));
        is!(take(standard), Ok((0, 0, 0)));
        ok!(to_thread(standard));
        is!(take(standard), Ok((0, 0, 0)));
        ok!(kill_me(standard));
        is!(take(standard), Ok((0, me, 0)));
    }
    no_sender_loses_the_room_for_its_signal_to_another {
        // Four threads send at once to a process whose queue is new and grows: for each signal there must be room.
        const SENDERS: u64 = 4;
        const EACH: u64 = 60;
        let signal = 40;
        let me = ok!(sc!(SYS_getpid));
        ok!(mask(libc::SIG_BLOCK, &[signal, libc::SIGUSR1]));
        static TARGET: AtomicU64 = AtomicU64::new(0);
        static ROUND: AtomicU64 = AtomicU64::new(0);
        static DONE: AtomicU64 = AtomicU64::new(0);
        static REFUSED: AtomicU64 = AtomicU64::new(0);
        for sender in 0..SENDERS {
            std::thread::spawn(move || for round in 1.. {
                for looks in 1.. {
                    if ROUND.load(SeqCst) == round { break; }
                    // Those that only spin begin together; with few CPUs they must not keep the others from running.
                    if looks % 10_000 == 0 { std::thread::yield_now(); }
                }
                let mut info = [0i32; 32];
                (info[0], info[2], info[4]) = (signal, -1, me as i32); // SI_QUEUE, si_pid
                for _ in 0..EACH {
                    let sent = match sender % 2 {
                        0 => sc!(SYS_kill, TARGET.load(SeqCst), signal),
                        _ => sc!(SYS_rt_sigqueueinfo, TARGET.load(SeqCst), signal, info.as_ptr()),
                    };
                    REFUSED.fetch_add(u64::from(sent.is_err()), SeqCst);
                }
                DONE.fetch_add(1, SeqCst);
            });
        }
        // Takes a signal, for at most so many seconds; gives its sender.
        let take = |signal: i32, seconds: u64| {
            let (set, mut info) = (1u64 << (signal - 1), [0i32; 32]);
            let taken = sc!(SYS_rt_sigtimedwait, &raw const set, info.as_mut_ptr(), [seconds, 0].as_ptr(), 8);
            taken.map(|_| std::hint::black_box(info)[4] as u64)
        };
        let began = sys::now_ns();
        for round in 1.. {
            let pid = ok!(sys::fork());
            if pid == 0 {
                let told = take(libc::SIGUSR1, 10);
                let count = (0..SENDERS * EACH).take_while(|_| take(signal, 0) == Ok(me)).count();
                sys::exit(i32::from(told.is_err() || count as u64 != SENDERS * EACH));
            }
            TARGET.store(pid, SeqCst);
            ROUND.store(round, SeqCst);
            while DONE.load(SeqCst) != SENDERS * round { std::thread::yield_now(); }
            ok!(sc!(SYS_kill, pid, libc::SIGUSR1));
            is!((round, REFUSED.load(SeqCst)), (round, 0));
            is!((round, ok!(sys::wait(pid as i64, 0))), (round, (pid, 0)));
            if sys::now_ns() - began > 1_000_000_000 { break; }
        }
    }
    handler_blocks_its_own_signal {
        extern "C" fn nested(_: i32) {
            let depth = COUNT.fetch_add(1, SeqCst);
            if depth == 0 {
                let _ = kill_me(libc::SIGUSR1);
                LAST.store(COUNT.load(SeqCst) as i32, SeqCst);
            }
        }
        ok!(sys::on_signal(libc::SIGUSR1, nested as *const () as usize, 0));
        ok!(kill_me(libc::SIGUSR1));
        is!([COUNT.load(SeqCst), LAST.load(SeqCst) as u64], [2, 1]);
    }
    handler_with_nodefer_nests {
        extern "C" fn nested(_: i32) {
            if COUNT.fetch_add(1, SeqCst) == 0 {
                let _ = kill_me(libc::SIGUSR1);
                LAST.store(COUNT.load(SeqCst) as i32, SeqCst);
            }
        }
        ok!(sys::on_signal(libc::SIGUSR1, nested as *const () as usize, libc::SA_NODEFER));
        ok!(kill_me(libc::SIGUSR1));
        is!([COUNT.load(SeqCst), LAST.load(SeqCst) as u64], [2, 2]);
    }
    alternate_stack {
        let base = ok!(anon(8));
        let stack = [base, 0, 8 * PAGE];
        ok!(sc!(SYS_sigaltstack, stack.as_ptr(), 0));
        ok!(sys::on_signal(libc::SIGUSR1, note_stack as *const () as usize, libc::SA_ONSTACK));
        ok!(kill_me(libc::SIGUSR1));
        holds!((base..base + 8 * PAGE).contains(&STACK.load(SeqCst)));
        let mut old = [0u64; 3];
        ok!(sc!(SYS_sigaltstack, 0, old.as_mut_ptr()));
        is!([old[0], old[2]], [base, 8 * PAGE]);
        fails!(sc!(SYS_sigaltstack, [base, 0, 100].as_ptr(), 0), ENOMEM);
        fails!(sc!(SYS_sigaltstack, [base, 0x77, 8 * PAGE].as_ptr(), 0), EINVAL);
        fails!(sc!(SYS_sigaltstack, 8, 0), EFAULT);
    }
    registers_survive_a_handler {
        ok!(handle(libc::SIGALRM, libc::SA_RESTART));
        let timer = [0u64, 2000, 0, 2000];
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, timer.as_ptr(), 0));
        let (mut a, mut f) = (1u64, 1.0f64);
        for _ in 0..3_000_000u64 {
            a = std::hint::black_box(a.wrapping_mul(6364136223846793005).wrapping_add(1));
            f = std::hint::black_box(f * 1.000_000_1);
        }
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64; 4].as_ptr(), 0));
        let (mut b, mut g) = (1u64, 1.0f64);
        for _ in 0..3_000_000u64 {
            b = std::hint::black_box(b.wrapping_mul(6364136223846793005).wrapping_add(1));
            g = std::hint::black_box(g * 1.000_000_1);
        }
        is!(a, b);
        is!(f.to_bits(), g.to_bits());
        holds!(COUNT.load(SeqCst) > 0);
    }
    slow_calls_are_interrupted {
        ok!(handle(libc::SIGUSR1, 0));
        let (from, _to) = ok!(sys::pipe(0));
        ok!(later(30, libc::SIGUSR1));
        fails!(sys::read(from, &mut [0]), EINTR);
        is!(COUNT.load(SeqCst), 1);
    }
    slow_calls_are_restarted_on_request {
        ok!(handle(libc::SIGUSR1, libc::SA_RESTART));
        let (from, to) = ok!(sys::pipe(0));
        ok!(later(30, libc::SIGUSR1));
        if ok!(sys::fork()) == 0 {
            nap_us(120_000);
            let _ = sys::write(to, b"x");
            sys::exit(0);
        }
        is!(ok!(sys::read(from, &mut [0])), 1);
        is!(COUNT.load(SeqCst), 1);
    }
    nanosleep_tells_what_was_left {
        ok!(handle(libc::SIGUSR1, libc::SA_RESTART));
        ok!(later(30, libc::SIGUSR1));
        let (ask, mut left) = ([5u64, 0], [0u64; 2]);
        fails!(sc!(SYS_nanosleep, ask.as_ptr(), left.as_mut_ptr()), EINTR);
        holds!(left[0] == 4);
    }
    sigsuspend_opens_the_mask_and_closes_it {
        ok!(handle(libc::SIGUSR1, 0));
        ok!(mask(libc::SIG_BLOCK, &[libc::SIGUSR1]));
        ok!(kill_me(libc::SIGUSR1));
        let none = 0u64;
        fails!(sc!(SYS_rt_sigsuspend, &raw const none, 8), EINTR);
        is!(COUNT.load(SeqCst), 1);
        is!(ok!(mask(libc::SIG_BLOCK, &[])), 1 << (libc::SIGUSR1 - 1));
    }
    sigtimedwait_or_enosys {
        ok!(mask(libc::SIG_BLOCK, &[libc::SIGUSR1]));
        let (set, short) = (1u64 << (libc::SIGUSR1 - 1), [0u64, 1_000_000]);
        match sc!(SYS_rt_sigtimedwait, &raw const set, 0, short.as_ptr(), 8) {
            Err(libc::ENOSYS) => return Err("skip: rt_sigtimedwait is not there".into()),
            answer => is!(answer, Err(libc::EAGAIN)),
        }
        ok!(kill_me(libc::SIGUSR1));
        is!(ok!(sc!(SYS_rt_sigtimedwait, &raw const set, 0, short.as_ptr(), 8)), libc::SIGUSR1 as u64);
    }
    sigtimedwait_gets_what_would_be_ignored {
        // SIGUSR1 is ignored explicitly, the others by default; all are blocked except while the thread waits.
        ok!(sys::on_signal(libc::SIGUSR1, libc::SIG_IGN, 0));
        for signal in [libc::SIGCHLD, libc::SIGWINCH, libc::SIGCONT, libc::SIGUSR1] {
            ok!(mask(libc::SIG_BLOCK, &[signal]));
            let pid = ok!(later(30, signal));
            let (set, long) = (1u64 << (signal - 1), [5u64, 0]);
            is!(ok!(sc!(SYS_rt_sigtimedwait, &raw const set, 0, long.as_ptr(), 8)), signal as u64);
            ok!(sys::wait(pid as i64, 0));
            is!(ok!(mask(libc::SIG_UNBLOCK, &[signal])) & set, set);
            // Outside of the wait the signal is discarded.
            ok!(kill_me(signal));
            ok!(mask(libc::SIG_BLOCK, &[signal]));
            fails!(sc!(SYS_rt_sigtimedwait, &raw const set, 0, [0u64, 1000].as_ptr(), 8), EAGAIN);
        }
    }
    a_thread_number_stands_for_its_process {
        ok!(handle(libc::SIGUSR1, 0));
        let (from, to) = ok!(sys::pipe(0));
        let tid = std::sync::Arc::new(AtomicU64::new(0));
        let its = tid.clone();
        let thread = std::thread::spawn(move || {
            its.store(sc!(SYS_gettid).unwrap_or(0), SeqCst);
            while sys::read(from, &mut [0]).is_err() {}
        });
        holds!(soon(|| tid.load(SeqCst) != 0));
        let tid = tid.load(SeqCst);
        ok!(sc!(SYS_kill, tid, 0));
        ok!(sc!(SYS_kill, tid, libc::SIGUSR1));
        holds!(soon(|| COUNT.load(SeqCst) == 1));
        let mut info = [0i32; 32];
        (info[0], info[2]) = (libc::SIGUSR1, -1); // SI_QUEUE
        ok!(sc!(SYS_rt_sigqueueinfo, tid, libc::SIGUSR1, info.as_ptr()));
        holds!(soon(|| COUNT.load(SeqCst) == 2));
        // A thread may queue a siginfo that claims to come from the kernel or kill(2) only to itself.
        info[2] = 0;
        fails!(sc!(SYS_rt_sigqueueinfo, tid, libc::SIGUSR1, info.as_ptr()), EPERM);
        ok!(sc!(SYS_rt_sigqueueinfo, ok!(sc!(SYS_gettid)), libc::SIGUSR1, info.as_ptr()));
        holds!(soon(|| COUNT.load(SeqCst) == 3));
        ok!(sys::close(to));
        holds!(thread.join().is_ok());
    }
    kill_arguments {
        fails!(kill_me(65), EINVAL);
        fails!(kill_me(-1), EINVAL);
        ok!(kill_me(0));
        fails!(sc!(SYS_kill, 3_999_999, 0), ESRCH);
        fails!(sc!(SYS_kill, -3_999_999i64, 0), ESRCH);
    }
    tgkill_and_tkill {
        ok!(handle(libc::SIGUSR1, 0));
        let me = ok!(sc!(SYS_getpid));
        ok!(sc!(SYS_tgkill, me, me, libc::SIGUSR1));
        is!(COUNT.load(SeqCst), 1);
        fails!(sc!(SYS_tgkill, me, 0, libc::SIGUSR1), EINVAL);
        fails!(sc!(SYS_tgkill, me, 3_999_999, libc::SIGUSR1), ESRCH);
        fails!(sc!(SYS_tgkill, me, me, 99), EINVAL);
    }
    kill_a_group {
        let (from, to) = ok!(sys::pipe(0));
        let mut group = 0;
        for _ in 0..3 {
            let pid = ok!(sys::fork());
            if pid == 0 {
                let _ = sc!(SYS_setpgid, 0, group);
                let _ = sys::write(to, b"x");
                loop { nap_us(1_000_000); }
            }
            let _ = sc!(SYS_setpgid, pid, if group == 0 { pid } else { group });
            group = if group == 0 { pid } else { group };
            is!(ok!(sys::read(from, &mut [0])), 1);
        }
        ok!(sc!(SYS_kill, -(group as i64), libc::SIGKILL));
        for _ in 0..3 { is!(ok!(sys::wait(-1, 0)).1, libc::SIGKILL); }
    }
    sigchld_tells_of_a_child {
        ok!(handle(libc::SIGCHLD, 0));
        let pid = ok!(sys::fork());
        if pid == 0 { sys::exit(0); }
        holds!(soon(|| COUNT.load(SeqCst) == 1));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
    }
    ignored_sigchld_leaves_no_zombie {
        ok!(sys::on_signal(libc::SIGCHLD, libc::SIG_IGN, 0));
        let pid = ok!(sys::fork());
        if pid == 0 { sys::exit(0); }
        fails!(sys::wait(pid as i64, 0), ECHILD);
    }
    a_signal_that_one_thread_waits_for_is_not_ignored_by_another {
        // The other thread does not block the signal and, since it sends the signal, is the first candidate.
        ok!(mask(libc::SIG_BLOCK, &[libc::SIGWINCH]));
        let turns = std::sync::Arc::new(AtomicU64::new(0));
        let sent = turns.clone();
        let sender = std::thread::spawn(move || {
            let _ = mask(libc::SIG_UNBLOCK, &[libc::SIGWINCH]);
            for turn in 0..100 {
                while sent.load(SeqCst) < turn { nap_us(100); }
                asleep();
                let _ = kill_me(libc::SIGWINCH);
            }
        });
        let set = 1u64 << (libc::SIGWINCH - 1);
        for turn in 0..100 {
            turns.store(turn, SeqCst);
            let time = [5u64, 0];
            is!(sc!(SYS_rt_sigtimedwait, &raw const set, 0, time.as_ptr(), 8), Ok(libc::SIGWINCH as u64));
        }
        holds!(sender.join().is_ok());
    }
    a_childs_end_is_for_the_thread_that_made_it {
        // The thread does not block the signal, whose default action is to ignore it: that another thread waits for it
        // does not matter.
        ok!(mask(libc::SIG_BLOCK, &[libc::SIGCHLD, libc::SIGUSR1]));
        let maker = std::thread::spawn(|| {
            let _ = mask(libc::SIG_UNBLOCK, &[libc::SIGCHLD]);
            asleep();
            let ended = in_child(|| 7);
            let _ = kill_me(libc::SIGUSR1);
            ended
        });
        let set = 1u64 << (libc::SIGCHLD - 1) | 1 << (libc::SIGUSR1 - 1);
        let wait = |seconds: u64| sc!(SYS_rt_sigtimedwait, &raw const set, 0, [seconds, 0].as_ptr(), 8);
        is!(wait(10), Ok(libc::SIGUSR1 as u64));
        holds!(matches!(maker.join(), Ok(Ok(0x700))));
        is!(wait(0), Err(libc::EAGAIN));
    }
    mask_is_inherited_pending_is_not {
        ok!(handle(libc::SIGUSR1, 0));
        ok!(mask(libc::SIG_BLOCK, &[libc::SIGUSR1]));
        ok!(kill_me(libc::SIGUSR1));
        let status = in_child(|| {
            let mut pending = 0u64;
            let _ = sc!(SYS_rt_sigpending, &raw mut pending, 8);
            i32::from(pending != 0 || mask(libc::SIG_BLOCK, &[]) != Ok(1 << (libc::SIGUSR1 - 1)))
        })?;
        is!(status, 0);
    }
    stop_signals_and_continue {
        let pid = ok!(sys::fork());
        if pid == 0 {
            let _ = kill_me(libc::SIGTSTP);
            sys::exit(4);
        }
        is!(ok!(sys::wait(pid as i64, libc::WUNTRACED)), (pid, libc::SIGTSTP << 8 | 0x7f));
        ok!(sc!(SYS_kill, pid, libc::SIGCONT));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 4 << 8));
    }
    sigaction_arguments {
        fails!(sc!(SYS_rt_sigaction, 65, 0, 0, 8), EINVAL);
        fails!(sc!(SYS_rt_sigaction, 0, 0, 0, 8), EINVAL);
        fails!(sc!(SYS_rt_sigaction, libc::SIGUSR1, 0, 0, 4), EINVAL);
        fails!(sc!(SYS_rt_sigaction, libc::SIGUSR1, 8, 0, 8), EFAULT);
        fails!(sc!(SYS_rt_sigprocmask, 99, [0u64].as_ptr(), 0, 8), EINVAL);
        fails!(sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, [0u64].as_ptr(), 0, 4), EINVAL);
        fails!(sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, 8, 0, 8), EFAULT);
    }
    bad_signal_frame_kills {
        // A handler whose stack cannot be written to: the kernel cannot deliver, so SIGSEGV ends the process.
        let status = in_child(|| {
            let Ok(base) = anon(4) else { return 1 };
            let _ = sc!(SYS_sigaltstack, [base, 0, 4 * PAGE].as_ptr(), 0);
            let _ = sys::on_signal(libc::SIGUSR1, count as *const () as usize, libc::SA_ONSTACK);
            let _ = sys::munmap(base, 4 * PAGE);
            let _ = kill_me(libc::SIGUSR1);
            2
        })?;
        is!(status & 0x7f, libc::SIGSEGV);
    }
    // On Linux a request for a page of random bytes or less is never cut short.
    getrandom_is_not_cut_short_by_a_signal {
        ok!(sys::on_signal(libc::SIGALRM, count as *const () as usize, libc::SA_RESTART));
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64, 50, 0, 50].as_ptr(), 0));
        let mut bytes = [0u8; 4096];
        let began = sys::now_ns();
        while sys::now_ns() - began < 300_000_000 {
            for len in [256, 4096] {
                is!(ok!(sc!(SYS_getrandom, bytes.as_mut_ptr(), len, 0)), len);
            }
        }
        // A longer one ends after a page.
        let mut many = vec![0u8; 32 << 20];
        let got = ok!(sc!(SYS_getrandom, many.as_mut_ptr(), many.len(), 0));
        holds!(got < many.len() as u64 && got.is_multiple_of(4096));
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64; 4].as_ptr(), 0));
    }
}
