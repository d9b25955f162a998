//! Sessions that pseudo-terminals control: credentials(7), tty_ioctl(4), signals of a hang-up, job control.

use crate::harness::*;
use crate::pty_ends::*;
use user::sys::{self, Errno};

/// A child in a session of its own, with the terminal as its controlling one, that runs `f`.
fn session(s: i32, f: impl FnOnce() -> i32) -> Result<u64, Errno> {
    match sys::fork()? {
        0 => {
            let _ = sc!(SYS_setsid);
            let ready = ioctl(s, libc::TIOCSCTTY, 0).is_ok();
            sys::exit(if ready { f() } else { 99 })
        }
        pid => Ok(pid),
    }
}

fn exited(status: i32) -> i32 {
    status << 8
}

/// The pids of a session's leader and of processes it has made, as bits of what went wrong, go through this pipe.
fn tell(to: i32, byte: u8) {
    let _ = sys::write(to, &[byte]);
}

fn hear(from: i32) -> Option<u8> {
    let mut byte = [0];
    (sys::read(from, &mut byte) == Ok(1)).then_some(byte[0])
}

/// The signals of a set that came, taken one after the other within a second each.
fn taken(signals: &[i32]) -> Vec<i32> {
    let set: u64 = signals.iter().map(|s| 1u64 << (s - 1)).sum();
    let second = libc::timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    let mut all = Vec::new();
    while all.len() < signals.len() {
        match sc!(SYS_rt_sigtimedwait, &raw const set, 0, &raw const second, 8) {
            Ok(signal) => all.push(signal as i32),
            Err(_) => break,
        }
    }
    all.sort_unstable();
    all
}

fn block(signals: &[i32]) {
    let set: u64 = signals.iter().map(|s| 1u64 << (s - 1)).sum();
    let _ = sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const set, 0, 8);
}

tests! { "pty";
    a_session_gets_its_terminal_by_the_first_open {
        let (m, name) = ok!(master(0));
        let (from, to) = ok!(sys::pipe(0));
        let pid = match ok!(sys::fork()) {
            0 => {
                let _ = sc!(SYS_setsid);
                let mut wrong = 0u8;
                wrong |= u8::from(sys::open("/dev/tty", libc::O_RDWR, 0) != Err(libc::ENXIO));
                let quiet = slave(&name);
                wrong |= u8::from(sys::open("/dev/tty", libc::O_RDWR, 0) != Err(libc::ENXIO)) << 1;
                let s = sys::open(&name, libc::O_RDWR, 0).unwrap_or(-1);
                wrong |= u8::from(sys::open("/dev/tty", libc::O_RDWR, 0).is_err()) << 2;
                let me = std::process::id() as i32;
                wrong |= u8::from(asked(s, libc::TIOCGSID) != Ok(me)) << 3;
                wrong |= u8::from(asked(s, libc::TIOCGPGRP) != Ok(me)) << 4;
                wrong |= u8::from(asked(m, libc::TIOCGPGRP) != Ok(me)) << 5;
                wrong |= u8::from(asked(m, libc::TIOCGSID) != Ok(me)) << 6;
                wrong |= u8::from(quiet.is_err()) << 7;
                tell(to, wrong);
                sys::exit(0);
            }
            pid => pid,
        };
        is!(hear(from), Some(0));
        ok!(sys::wait(pid as i64, 0));
        // The leader's end takes the terminal from the session.
        fails!(asked(m, libc::TIOCGSID), ENOTTY);
        is!(asked(m, libc::TIOCGPGRP), Ok(0));
        let s = ok!(slave(&name));
        fails!(asked(s, libc::TIOCGPGRP), ENOTTY);
        fails!(asked(s, libc::TIOCGSID), ENOTTY);
        fails!(ioctl(s, libc::TIOCNOTTY, 0), ENOTTY);
        fails!(ioctl(m, libc::TIOCNOTTY, 0), ENOTTY);
    }
    the_end_of_a_leader_does_not_hang_up_a_pseudo_terminal {
        let (m, s) = ok!(pair());
        let (from, to) = ok!(sys::pipe(0));
        let (go_from, go_to) = ok!(sys::pipe(0));
        let leader = ok!(session(s, || {
            block(&[libc::SIGHUP, libc::SIGCONT]);
            match sys::fork() {
                Ok(0) => {
                    tell(to, 1);
                    let got = taken(&[libc::SIGHUP, libc::SIGCONT]);
                    // SIGCONT comes with SIGHUP only if the group is stopped or the terminal is given up.
                    tell(to, u8::from(got == [libc::SIGHUP]));
                    tell(to, u8::from(sys::write(s, b"alive") == Ok(5)));
                    sys::exit(0);
                }
                _ => {
                    hear(go_from);
                    0
                }
            }
        }));
        is!(hear(from), Some(1));
        tell(go_to, 0);
        is!(sys::wait(leader as i64, 0), Ok((leader, 0)));
        is!(hear(from), Some(1));
        is!(hear(from), Some(1));
        is!(read_all(m, 5), Ok(b"alive".to_vec()));
    }
    a_leader_learns_of_the_hangup_and_its_foreground_group_of_the_leaders_end {
        let (m, s) = ok!(pair());
        let (from, to) = ok!(sys::pipe(0));
        let leader = ok!(session(s, || {
            block(&[libc::SIGHUP, libc::SIGCONT]);
            let _ = sys::close(m);
            if sys::fork() == Ok(0) {
                tell(to, 10);
                let got = taken(&[libc::SIGHUP, libc::SIGCONT]);
                tell(to, u8::from(got == [libc::SIGCONT, libc::SIGHUP] || got == [libc::SIGHUP, libc::SIGCONT]));
                sys::exit(0);
            }
            let got = taken(&[libc::SIGHUP, libc::SIGCONT]);
            tell(to, 20 + u8::from(got == [libc::SIGHUP, libc::SIGCONT]));
            tell(to, 30 + u8::from(sys::open("/dev/tty", libc::O_RDWR, 0) == Err(libc::ENXIO)));
            0
        }));
        is!(hear(from), Some(10));
        ok!(sys::close(m));
        is!(hear(from), Some(21));
        is!(hear(from), Some(31));
        is!(sys::wait(leader as i64, 0), Ok((leader, 0)));
        is!(hear(from), Some(1));
    }
    characters_and_the_master_signal_the_foreground_group {
        let (m, s) = ok!(pair());
        let (from, to) = ok!(sys::pipe(0));
        let wanted = [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP, libc::SIGWINCH];
        let leader = ok!(session(s, || {
            block(&wanted);
            tell(to, 0);
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTSTP, libc::SIGWINCH, libc::SIGWINCH, libc::SIGINT] {
                let got = taken(&[signal]);
                tell(to, got.first().map_or(0, |&s| s as u8));
            }
            0
        }));
        is!(hear(from), Some(0));
        for (byte, signal) in [(3u8, libc::SIGINT), (0x1c, libc::SIGQUIT), (0x1a, libc::SIGTSTP)] {
            is!(sys::write(m, &[byte]), Ok(1));
            is!(hear(from), Some(signal as u8));
        }
        let size = [9u16, 9, 0, 0];
        ok!(ioctl(m, libc::TIOCSWINSZ, &raw const size as u64));
        is!(hear(from), Some(libc::SIGWINCH as u8));
        // The same size is no change.
        ok!(ioctl(m, libc::TIOCSWINSZ, &raw const size as u64));
        let size = [8u16, 9, 0, 0];
        ok!(ioctl(s, libc::TIOCSWINSZ, &raw const size as u64));
        is!(hear(from), Some(libc::SIGWINCH as u8));
        ok!(ioctl(m, TIOCSIG, libc::SIGINT as u64));
        is!(hear(from), Some(libc::SIGINT as u8));
        fails!(ioctl(m, TIOCSIG, libc::SIGHUP as u64), EINVAL);
        is!(sys::wait(leader as i64, 0), Ok((leader, 0)));
    }
    a_background_group_is_stopped {
        let (m, s) = ok!(pair());
        let leader = ok!(session(s, || {
            let stopped = |signal: i32| signal << 8 | 0x7f;
            let behind = |f: &dyn Fn() -> i32| {
                let pid = sys::fork().unwrap_or(0);
                if pid == 0 {
                    let _ = sc!(SYS_setpgid, 0, 0);
                    sys::exit(f());
                }
                let _ = sc!(SYS_setpgid, pid, pid);
                pid
            };
            let reads = behind(&|| i32::from(read(s) != Ok(b"go\n".to_vec())));
            if sys::wait(reads as i64, libc::WUNTRACED) != Ok((reads, stopped(libc::SIGTTIN))) {
                return 1;
            }
            // In the foreground it goes on.
            let _ = set(s, libc::TIOCSPGRP, reads as i32);
            let _ = sc!(SYS_kill, reads, libc::SIGCONT);
            let _ = sys::write(m, b"go\n");
            if sys::wait(reads as i64, 0) != Ok((reads, 0)) {
                return 2;
            }
            let _ = sys::on_signal(libc::SIGTTOU, libc::SIG_IGN, 0);
            let _ = set(s, libc::TIOCSPGRP, std::process::id() as i32);
            let _ = sys::default_signal(libc::SIGTTOU);
            // Writes are allowed without TOSTOP.
            let writes = behind(&|| i32::from(sys::write(s, b"x") != Ok(1)));
            if sys::wait(writes as i64, libc::WUNTRACED) != Ok((writes, 0)) {
                return 3;
            }
            let _ = change(s, |t| t.c_lflag |= libc::TOSTOP);
            let writes = behind(&|| i32::from(sys::write(s, b"x") != Ok(1)));
            if sys::wait(writes as i64, libc::WUNTRACED) != Ok((writes, stopped(libc::SIGTTOU))) {
                return 4;
            }
            let _ = sc!(SYS_kill, writes, libc::SIGKILL);
            let _ = sys::wait(writes as i64, 0);
            // A blocked SIGTTIN is an error.
            let blocks = behind(&|| {
                block(&[libc::SIGTTIN]);
                i32::from(read(s) != Err(libc::EIO))
            });
            if sys::wait(blocks as i64, libc::WUNTRACED) != Ok((blocks, 0)) {
                return 5;
            }
            // So is an orphaned group.
            let (from, to) = sys::pipe(0).unwrap_or((-1, -1));
            let parent = behind(&|| {
                if sys::fork() == Ok(0) {
                    nap_us(100_000);
                    tell(to, u8::from(read(s) == Err(libc::EIO)));
                    sys::exit(0);
                }
                0
            });
            let _ = sys::wait(parent as i64, 0);
            if hear(from) != Some(1) {
                return 6;
            }
            0
        }));
        is!(sys::wait(leader as i64, 0), Ok((leader, exited(0))));
    }
    a_leader_gives_its_terminal_up {
        let (m, s) = ok!(pair());
        let leader = ok!(session(s, || {
            block(&[libc::SIGHUP, libc::SIGCONT]);
            if ioctl(s, libc::TIOCNOTTY, 0).is_err() {
                return 1;
            }
            if taken(&[libc::SIGHUP, libc::SIGCONT]) != [libc::SIGHUP, libc::SIGCONT] {
                return 2;
            }
            if sys::write(s, b"x") != Ok(1) || asked(s, libc::TIOCGPGRP) != Err(libc::ENOTTY) {
                return 3;
            }
            i32::from(ioctl(m, libc::TIOCSCTTY, 0).is_err()) * 4
        }));
        is!(sys::wait(leader as i64, 0), Ok((leader, exited(0))));
    }
    vhangup_cuts_the_terminal_off_and_leaves_the_master {
        let (m, name) = ok!(master(0));
        let s = ok!(slave(&name));
        ok!(make_raw(s));
        let leader = ok!(session(s, || {
            block(&[libc::SIGHUP, libc::SIGCONT]);
            if sc!(SYS_vhangup).is_err() {
                return 1;
            }
            if read(s) != Ok(vec![]) || sys::write(s, b"x") != Err(libc::EIO) {
                return 2;
            }
            let again = slave(&name).unwrap_or(-1);
            // The settings are fresh.
            i32::from(attributes(again).map(|t| t.c_lflag) != Ok(0o105073)) * 3
        }));
        is!(sys::wait(leader as i64, 0), Ok((leader, exited(0))));
        is!(sys::write(m, b"x"), Ok(1));
    }
}
