//! POSIX timers.

use crate::harness::*;
use user::sys;

/// A real-time signal that no library uses.
pub const SIGNAL: i32 = 40;
pub const MS: i64 = 1_000_000;
/// A user without any process.
const NOBODY: u32 = 42_020;

pub fn create(clock: i32, notify: i32, signal: i32, value: u64, tid: u64) -> Result<u32, i32> {
    let event = [
        value,
        signal as u64 | (notify as u64) << 32,
        tid,
        0,
        0,
        0,
        0,
        0,
    ];
    let mut id = u32::MAX;
    sc!(SYS_timer_create, clock, event.as_ptr(), &raw mut id)?;
    Ok(id)
}

/// Sets a timer, in nanoseconds: value and interval. The old setting.
pub fn set(id: u32, flags: i32, value: i64, interval: i64) -> Result<[i64; 4], i32> {
    let parts = |ns: i64| [ns / (1000 * MS), ns % (1000 * MS)];
    let ([is, ins], [vs, vns]) = (parts(interval), parts(value));
    let (new, mut old) = ([is, ins, vs, vns], [-1i64; 4]);
    sc!(SYS_timer_settime, id, flags, new.as_ptr(), old.as_mut_ptr())?;
    Ok(old)
}

pub fn get(id: u32) -> Result<[i64; 4], i32> {
    let mut now = [-1i64; 4];
    sc!(SYS_timer_gettime, id, now.as_mut_ptr())?;
    Ok(now)
}

pub fn block(signal: i32) -> Result<u64, i32> {
    let set = 1u64 << (signal - 1);
    sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const set, 0, 8)
}

/// Takes a signal, within a time: `si_signo`, `si_code`, timer, overrun, value.
pub fn take(signal: i32, ms: i64) -> Result<[u64; 5], i32> {
    let set = 1u64 << (signal - 1);
    let (mut info, time) = ([0u64; 16], [ms / 1000, ms % 1000 * MS]);
    sc!(
        SYS_rt_sigtimedwait,
        &raw const set,
        info.as_mut_ptr(),
        time.as_ptr(),
        8
    )?;
    Ok([
        info[0] as u32 as u64,
        info[1] as u32 as u64,
        info[2] as u32 as u64,
        info[2] >> 32,
        info[3],
    ])
}

pub extern "C" fn nothing(_: i32) {}

pub const TIMER: u64 = -2i32 as u32 as u64;

tests! { "timer";
    a_timer_sends_its_signal_with_its_value {
        ok!(block(SIGNAL));
        let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, SIGNAL, 0x1234_5678_9abc, 0));
        is!(ok!(get(id)), [0; 4]);
        let began = sys::now_ns();
        is!(ok!(set(id, 0, 30 * MS, 0)), [0; 4]);
        let [is, ins, vs, vns] = ok!(get(id));
        holds!((is, ins, vs) == (0, 0, 0) && vns > 0 && vns <= 30 * MS);
        is!(ok!(take(SIGNAL, 2000)), [SIGNAL as u64, TIMER, id.into(), 0, 0x1234_5678_9abc]);
        holds!(sys::now_ns() - began >= 30_000_000);
        is!(ok!(get(id)), [0; 4]);
        fails!(take(SIGNAL, 20), EAGAIN);
        // As long as it has not expired it can be taken off.
        ok!(set(id, 0, 20 * MS, 0));
        let old = ok!(set(id, 0, 0, 0));
        holds!(old[3] > 0);
        fails!(take(SIGNAL, 50), EAGAIN);
    }
    a_timer_has_one_signal_pending_and_counts_the_rest {
        ok!(block(SIGNAL));
        let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, SIGNAL, 1, 0));
        ok!(set(id, 0, 2 * MS, 2 * MS));
        nap_us(100_000);
        let first = ok!(take(SIGNAL, 1000));
        holds!((30..1000).contains(&first[3]));
        is!(ok!(sc!(SYS_timer_getoverrun, id)), first[3]);
        for _ in 0..3 { is!(ok!(take(SIGNAL, 1000))[..3], [SIGNAL as u64, TIMER, id.into()]); }
        let now = ok!(get(id));
        is!(now[1], 2 * MS);
        holds!(now[3] > 0 && now[3] <= 2 * MS);
        ok!(sc!(SYS_timer_delete, id));
        let _ = take(SIGNAL, 0);
        fails!(take(SIGNAL, 20), EAGAIN);
        fails!(get(id), EINVAL);
        fails!(sc!(SYS_timer_delete, id), EINVAL);
        fails!(sc!(SYS_timer_getoverrun, id), EINVAL);
        fails!(set(id, 0, 1, 0), EINVAL);
    }
    timers_of_one_standard_signal_have_one_each {
        ok!(block(libc::SIGUSR1));
        for value in [1, 2] {
            let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, libc::SIGUSR1, value, 0));
            ok!(set(id, 0, value as i64 * 2 * MS, 0));
        }
        nap_us(50_000);
        let me = ok!(sc!(SYS_getpid));
        ok!(sc!(SYS_kill, me, libc::SIGUSR1));
        is!(ok!(take(libc::SIGUSR1, 1000))[4], 1);
        is!(ok!(take(libc::SIGUSR1, 1000))[4], 2);
        fails!(take(libc::SIGUSR1, 20), EAGAIN);
    }
    many_timers_fire_at_once {
        ok!(block(SIGNAL));
        let ids: Result<Vec<u32>, i32> = (0..200)
            .map(|value| create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, SIGNAL, value, 0))
            .collect();
        let ids = ok!(ids);
        let at = sys::now_ns() as i64 + 30 * MS;
        for &id in &ids { ok!(set(id, libc::TIMER_ABSTIME, at, 0)); }
        let mut seen = [0; 200];
        for _ in &ids { seen[ok!(take(SIGNAL, 2000))[4] as usize] += 1; }
        holds!(seen == [1; 200]);
        fails!(take(SIGNAL, 20), EAGAIN);
    }
    timers_count_as_pending_signals_of_their_user {
        let status = in_child(|| {
            let most = [4u64; 2];
            let _ = sc!(SYS_prlimit64, 0, libc::RLIMIT_SIGPENDING, most.as_ptr(), 0);
            if sc!(SYS_setresuid, NOBODY, NOBODY, NOBODY).is_err() { return 1; }
            let new = || create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, SIGNAL, 0, 0);
            let ids: Vec<_> = (0..4).map_while(|_| new().ok()).collect();
            if ids.len() != 4 || new() != Err(libc::EAGAIN) { return 2; }
            // Another process of the user has none, either.
            if in_child(|| i32::from(new() != Err(libc::EAGAIN))) != Ok(0) { return 3; }
            let _ = sc!(SYS_timer_delete, ids[1]);
            i32::from(new().is_err()) * 4 + i32::from(new() != Err(libc::EAGAIN)) * 8
        })?;
        is!(status, 0);
    }
    times_may_be_absolute {
        ok!(block(SIGNAL));
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_BOOTTIME] {
            let id = ok!(create(clock, libc::SIGEV_SIGNAL, SIGNAL, 2, 0));
            let mut now = [0i64; 2];
            ok!(sc!(SYS_clock_gettime, clock, now.as_mut_ptr()));
            let at = now[0] * 1000 * MS + now[1] + 20 * MS;
            ok!(set(id, libc::TIMER_ABSTIME, at, 0));
            let left = ok!(get(id));
            holds!(left[2] == 0 && left[3] <= 20 * MS);
            is!(ok!(take(SIGNAL, 2000))[2], u64::from(id));
            ok!(sc!(SYS_clock_gettime, clock, now.as_mut_ptr()));
            holds!(now[0] * 1000 * MS + now[1] >= at);
            // A time that has passed comes at once.
            ok!(set(id, libc::TIMER_ABSTIME, at, 0));
            is!(ok!(take(SIGNAL, 2000))[2], u64::from(id));
            ok!(sc!(SYS_timer_delete, id));
        }
    }
    several_timers_expire_in_their_order {
        for signal in 41..44 { ok!(block(signal)); }
        let mut ids = Vec::new();
        for (i, ms) in [60, 20, 40].into_iter().enumerate() {
            let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, 41 + i as i32, i as u64, 0));
            ok!(set(id, 0, ms * MS, 0));
            ids.push(id);
        }
        is!(ok!(take(42, 2000))[4], 1);
        is!(ok!(take(43, 2000))[4], 2);
        is!(ok!(take(41, 2000))[4], 0);
        holds!(ids[0] != ids[1] && ids[1] != ids[2]);
    }
    a_timer_may_name_a_thread_or_nobody {
        ok!(block(SIGNAL));
        let (tx, rx) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            let _ = tx.send(sc!(SYS_gettid));
            take(SIGNAL, 2000)
        });
        let tid = ok!(rx.recv().map_err(|_| libc::EIO).and_then(|tid| tid));
        let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_THREAD_ID, SIGNAL, 3, tid));
        ok!(set(id, 0, 10 * MS, 0));
        is!(waiter.join().ok().and_then(Result::ok).map(|got| got[4]), Some(3));
        fails!(take(SIGNAL, 0), EAGAIN);
        // One of another process.
        fails!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_THREAD_ID, SIGNAL, 3, 1), EINVAL);
        let silent = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_NONE, 0, 0, 0));
        ok!(set(silent, 0, 5 * MS, 30 * MS));
        nap_us(20_000);
        let left = ok!(get(silent));
        holds!(left[1] == 30 * MS && left[3] > 0 && left[3] <= 30 * MS);
        is!(ok!(sc!(SYS_timer_getoverrun, silent)), 0);
    }
    an_ignored_signal_does_not_end_a_timer {
        ok!(sys::on_signal(SIGNAL, libc::SIG_IGN, 0));
        let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, SIGNAL, 5, 0));
        ok!(set(id, 0, 5 * MS, 5 * MS));
        nap_us(30_000);
        ok!(block(SIGNAL));
        ok!(sys::on_signal(SIGNAL, nothing as *const () as usize, 0));
        is!(ok!(take(SIGNAL, 2000))[4], 5);
    }
    without_an_event_it_is_the_alarm_signal {
        ok!(block(libc::SIGALRM));
        let mut id = 0u32;
        ok!(sc!(SYS_timer_create, libc::CLOCK_MONOTONIC, 0, &raw mut id));
        ok!(set(id, 0, MS, 0));
        let [_, code, shown, _, value] = ok!(take(libc::SIGALRM, 2000));
        is!((code, shown, value as u32), (TIMER, id.into(), id));
    }
    timers_end_with_the_program {
        let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, libc::SIGKILL, 0, 0));
        is!(in_child(|| i32::from(get(id) != Err(libc::EINVAL)))?, 0);
        // An execve deletes it; else the program would be killed.
        let status = in_child(|| {
            let id = create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, libc::SIGKILL, 0, 0);
            let Ok(id) = id else { return 2 };
            let _ = set(id, 0, 300 * MS, 0);
            let exe = path("/proc/self/exe");
            let (from, to) = sys::pipe(0).unwrap_or((0, 0));
            let _ = sc!(SYS_dup2, from, 0);
            // Nobody writes; the end comes by a child that holds the pipe for a while.
            if sys::fork() == Ok(0) { nap_us(600_000); sys::exit(0); }
            let _ = sys::close(to);
            let argv = [exe, path("--wait"), 0];
            let _ = sc!(SYS_execve, exe, argv.as_ptr(), [0u64].as_ptr());
            3
        })?;
        is!(status, 0);
    }
    arguments {
        fails!(create(99, libc::SIGEV_SIGNAL, SIGNAL, 0, 0), EINVAL);
        fails!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, 65, 0, 0), EINVAL);
        fails!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, 0, 0, 0), EINVAL);
        fails!(create(libc::CLOCK_MONOTONIC, 77, SIGNAL, 0, 0), EINVAL);
        fails!(sc!(SYS_timer_create, libc::CLOCK_MONOTONIC, 8, [0u32].as_mut_ptr()), EFAULT);
        fails!(sc!(SYS_timer_create, libc::CLOCK_MONOTONIC, 0, 8), EFAULT);
        let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_NONE, 0, 0, 0));
        fails!(sc!(SYS_timer_settime, id, 0, 0, 0), EINVAL);
        fails!(sc!(SYS_timer_settime, id, 0, [0i64, 0, 0, 1000 * MS].as_ptr(), 0), EINVAL);
        fails!(sc!(SYS_timer_settime, id, 0, [-1i64, 0, 0, 0].as_ptr(), 0), EINVAL);
        fails!(sc!(SYS_timer_gettime, id, 8), EFAULT);
        fails!(create(libc::CLOCK_MONOTONIC_COARSE, libc::SIGEV_NONE, 0, 0, 0), EOPNOTSUPP);
    }
}
