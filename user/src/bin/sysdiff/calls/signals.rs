//! Signals.

use super::{Call, process};
use crate::actor::{Act, say};
use crate::normal;
use user::sys::{self, access};

/// See [`super::FAMILIES`].
pub const CALLS: &[Call] = &[
    (14, kill),
    (8, kill_thread),
    (7, queue),
    (14, action),
    (12, mask),
    (5, pending),
    (9, wait_now),
    (8, wait),
    (5, suspend),
    (1, pause),
];

/// The signals that programs use: not those of faults, since tried accesses use them.
const SIGNALS: &[i32] = &[
    libc::SIGUSR1,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCHLD,
    libc::SIGWINCH,
    libc::SIGURG,
    libc::SIGCONT,
    libc::SIGHUP,
    36,
    36,
    40,
];

/// A random one of them.
pub fn signal(act: &mut Act) -> i32 {
    act.dice.of_these(SIGNALS)
}

fn sent(act: &mut Act) -> i32 {
    match act.dice.below(40) {
        0 => libc::SIGKILL,
        1 => libc::SIGTERM,
        2 | 3 => 0,
        4 => 65,
        _ => signal(act),
    }
}

fn kill(act: &mut Act) {
    let (to, signal) = (process::somebody(act), sent(act));
    // For a group, an empty one: the referee's own group must not be signalled.
    let group = act.dice.chance(6);
    say!(act, "kill({}{to}, {signal})", if group { "-" } else { "" });
    let pid = if group {
        -process::pid(to)
    } else {
        process::pid(to)
    };
    act.leave_answer();
    let _ = act.call(libc::SYS_kill, &[pid as u64, signal as u64]);
}

fn kill_thread(act: &mut Act) {
    let (to, signal) = (process::somebody(act), sent(act));
    act.leave_answer();
    if act.dice.chance(70) {
        let of = if act.dice.chance(90) {
            to
        } else {
            process::somebody(act)
        };
        say!(act, "tgkill({of}, {to}, {signal})");
        let _ = act.call(
            libc::SYS_tgkill,
            &[
                process::pid(of) as u64,
                process::tid(to) as u64,
                signal as u64,
            ],
        );
    } else {
        say!(act, "tkill({to}, {signal})");
        let _ = act.call(libc::SYS_tkill, &[process::tid(to) as u64, signal as u64]);
    }
}

fn queue(act: &mut Act) {
    let (to, signal) = (process::somebody(act), sent(act));
    let value = act.dice.below(1000);
    let code = act.dice.of_these(&[
        libc::SI_QUEUE,
        libc::SI_QUEUE,
        libc::SI_QUEUE,
        libc::SI_USER,
        -60,
    ]);
    let me = sys::call(libc::SYS_getpid, &[]).unwrap_or(0);
    let uid = sys::call(libc::SYS_getuid, &[]).unwrap_or(0);
    // signo, errno, code, padding; pid and uid; value.
    let mut info = [0u64; 16];
    info[0] = signal as u64;
    info[1] = u64::from(code as u32);
    info[2] = me | uid << 32;
    info[3] = value;
    act.leave_answer();
    if act.dice.chance(70) {
        say!(act, "rt_sigqueueinfo({to}, {signal}, {code}, {value})");
        let _ = act.call(
            libc::SYS_rt_sigqueueinfo,
            &[process::pid(to) as u64, signal as u64, info.as_ptr() as u64],
        );
    } else {
        say!(act, "rt_tgsigqueueinfo({to}, {signal}, {code}, {value})");
        let args = [
            process::pid(to) as u64,
            process::tid(to) as u64,
            signal as u64,
            info.as_ptr() as u64,
        ];
        let _ = act.call(libc::SYS_rt_tgsigqueueinfo, &args);
    }
}

fn action(act: &mut Act) {
    let signal = signal(act);
    let flags = act.dice.bits(&[
        (libc::SA_RESTART, 50),
        (libc::SA_NODEFER, 15),
        (libc::SA_RESETHAND, 15),
        (libc::SA_NOCLDWAIT, 8),
        (libc::SA_NOCLDSTOP, 8),
    ]);
    let (name, handler) = act.dice.of_these(&[
        ("handler", access::handler()),
        ("handler", access::handler()),
        ("handler", access::handler()),
        ("ignore", libc::SIG_IGN),
        ("default", libc::SIG_DFL),
    ]);
    say!(act, "sigaction({signal}, {name}, {flags:#x})");
    let result = sys::on_signal(signal, handler, flags | libc::SA_SIGINFO);
    let _ = act.result(result.map(|()| 0));
}

/// A set of signals.
fn set(act: &mut Act) -> u64 {
    let count = 1 + act.dice.below(4);
    (0..count).fold(0, |set, _| set | 1 << (signal(act) - 1))
}

fn mask(act: &mut Act) {
    let (set, mut old) = (set(act), 0u64);
    let how = act.dice.of_these(&[
        libc::SIG_BLOCK,
        libc::SIG_BLOCK,
        libc::SIG_UNBLOCK,
        libc::SIG_UNBLOCK,
        libc::SIG_SETMASK,
    ]);
    say!(act, "sigprocmask({how}, {set:#x})");
    act.leave_answer();
    let args = [how as u64, &raw const set as u64, &raw mut old as u64, 8];
    if act.call(libc::SYS_rt_sigprocmask, &args).is_ok() {
        say!(act, " was {:#x}", std::hint::black_box(old));
    }
}

fn pending(act: &mut Act) {
    let mut set = 0u64;
    say!(act, "sigpending()");
    if act
        .call(libc::SYS_rt_sigpending, &[&raw mut set as u64, 8])
        .is_ok()
    {
        say!(act, " {:#x}", std::hint::black_box(set));
    }
}

fn wait_for(act: &mut Act, forever: bool) {
    let set = set(act);
    // signo, errno, code; pid and uid; value.
    let mut info = [0i32; 32];
    let zero = [0u64; 2];
    // POSIX leaves undefined what a signal does that is waited for and not blocked.
    let block = [libc::SIG_BLOCK as u64, &raw const set as u64, 0, 8];
    let _ = sys::call(libc::SYS_rt_sigprocmask, &block);
    say!(
        act,
        "sigtimedwait({set:#x}, {})",
        if forever { "for ever" } else { "0" }
    );
    let timeout = if forever { 0 } else { zero.as_ptr() as u64 };
    let args = [&raw const set as u64, info.as_mut_ptr() as u64, timeout, 8];
    if act.call(libc::SYS_rt_sigtimedwait, &args).is_ok() {
        let info = std::hint::black_box(info);
        say!(
            act,
            " code {} from {} uid {} value {}",
            info[2],
            normal::pid(info[4]),
            info[5],
            info[6]
        );
    }
}

fn wait_now(act: &mut Act) {
    wait_for(act, false);
}

fn wait(act: &mut Act) {
    let forever = !act.is_alone();
    wait_for(act, forever);
}

fn suspend(act: &mut Act) {
    if act.is_alone() {
        return pending(act);
    }
    let set = set(act);
    say!(act, "sigsuspend({set:#x})");
    let _ = act.call(libc::SYS_rt_sigsuspend, &[&raw const set as u64, 8]);
}

fn pause(act: &mut Act) {
    if act.is_alone() {
        return pending(act);
    }
    say!(act, "pause()");
    let _ = act.call(libc::SYS_pause, &[]);
}
