//! Owners of open files and their signals: F_SETOWN, F_SETSIG, O_ASYNC.

use crate::harness::*;
use user::sys;

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
const F_GETOWNER_UIDS: i32 = 17;
const REAL_TIME: i32 = 40;
const IN: u64 = 0x41;
const OUT: u64 = 0x304;
const HANG_UP: u64 = 0x18;

fn fcntl(fd: i32, cmd: i32, arg: i64) -> Result<i64, i32> {
    sc!(SYS_fcntl, fd, cmd, arg).map(|value| value as i64)
}

/// A struct f_owner_ex.
fn owner(fd: i32) -> Result<(i32, i32), i32> {
    let mut owner = [-1i32; 2];
    sc!(SYS_fcntl, fd, F_GETOWN_EX, owner.as_mut_ptr())?;
    Ok((owner[0], owner[1]))
}

fn set_owner(fd: i32, is: i32, number: i32) -> Result<u64, i32> {
    sc!(SYS_fcntl, fd, F_SETOWN_EX, [is, number].as_ptr())
}

fn me() -> i32 {
    std::process::id() as i32
}

fn block(signals: &[i32]) -> Result<u64, i32> {
    let set = signals.iter().fold(0u64, |set, s| set | 1 << (s - 1));
    sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, [set].as_ptr(), 0, 8)
}

/// Takes a pending signal: its number, code, band and descriptor; 0 as the number if none comes within `ms`.
fn taken_in(ms: u64) -> (i32, i32, u64, i32) {
    let set = [1u64 << (libc::SIGIO - 1) | 1 << (REAL_TIME - 1) | 1 << (libc::SIGCHLD - 1)];
    let mut info = [0u64; 16];
    let time = [ms / 1000, ms % 1000 * 1_000_000];
    match sc!(
        SYS_rt_sigtimedwait,
        set.as_ptr(),
        info.as_mut_ptr(),
        time.as_ptr(),
        8
    ) {
        Ok(_) => (info[0] as i32, info[1] as i32, info[2], info[3] as i32),
        Err(_) => (0, 0, 0, 0),
    }
}

fn taken() -> (i32, i32, u64, i32) {
    taken_in(0)
}

const NONE: (i32, i32, u64, i32) = (0, 0, 0, 0);

/// Makes the caller the owner of a file, with signals that carry information.
fn ask(fd: i32) -> Result<(), i32> {
    block(&[libc::SIGIO, REAL_TIME])?;
    fcntl(fd, libc::F_SETOWN, me().into())?;
    fcntl(fd, F_SETSIG, REAL_TIME.into())?;
    let flags = fcntl(fd, libc::F_GETFL, 0)?;
    fcntl(fd, libc::F_SETFL, flags | i64::from(libc::O_ASYNC))?;
    Ok(())
}

fn pair(kind: i32) -> Result<(i32, i32), i32> {
    let mut fds = [0i32; 2];
    sc!(SYS_socketpair, libc::AF_UNIX, kind, 0, fds.as_mut_ptr())?;
    Ok((fds[0], fds[1]))
}

tests! { "owners";
    commands {
        let (from, _) = ok!(sys::pipe(0));
        is!(ok!(fcntl(from, libc::F_GETOWN, 0)), 0);
        is!(ok!(owner(from)), (0, 0));
        is!(ok!(fcntl(from, F_GETSIG, 0)), 0);
        ok!(fcntl(from, libc::F_SETOWN, me().into()));
        is!(ok!(fcntl(from, libc::F_GETOWN, 0)), i64::from(me()));
        is!(ok!(owner(from)), (1, me()));
        ok!(fcntl(from, libc::F_SETOWN, -i64::from(me())));
        is!(ok!(owner(from)), (2, me()));
        is!(fcntl(from, libc::F_GETOWN, 0).unwrap_or_else(|e| -i64::from(e)), -i64::from(me()));
        ok!(set_owner(from, 0, me()));
        is!(ok!(owner(from)), (0, me()));
        ok!(fcntl(from, libc::F_SETOWN, 0));
        is!(ok!(owner(from)), (1, 0));
        fails!(fcntl(from, libc::F_SETOWN, 4_000_000), ESRCH);
        fails!(fcntl(from, libc::F_SETOWN, -4_000_000), ESRCH);
        fails!(fcntl(from, libc::F_SETOWN, i64::from(i32::MIN)), EINVAL);
        fails!(set_owner(from, 3, me()), EINVAL);
        fails!(set_owner(from, 1, -1), ESRCH);
        fails!(sc!(SYS_fcntl, from, F_SETOWN_EX, 8), EFAULT);
        fails!(fcntl(from, F_SETSIG, 65), EINVAL);
        fails!(fcntl(from, F_SETSIG, -1), EINVAL);
        ok!(fcntl(from, F_SETSIG, 64));
        is!(ok!(fcntl(from, F_GETSIG, 0)), 64);
        let copy = ok!(sc!(SYS_dup, from)) as i32;
        is!(ok!(fcntl(copy, F_GETSIG, 0)), 64);
        // Files of all kinds have owners, but those with O_PATH.
        let file = file_with(b"x")?;
        ok!(fcntl(file, libc::F_SETOWN, me().into()));
        let place = ok!(sys::open("/", libc::O_PATH, 0));
        fails!(fcntl(place, libc::F_GETOWN, 0), EBADF);
    }
    requests {
        let (a, _) = ok!(pair(libc::SOCK_STREAM));
        let on = [1i32];
        // What nginx does before it starts its workers.
        ok!(sc!(SYS_ioctl, a, libc::FIOASYNC, on.as_ptr()));
        ok!(fcntl(a, libc::F_SETOWN, me().into()));
        holds!(ok!(fcntl(a, libc::F_GETFL, 0)) & i64::from(libc::O_ASYNC) != 0);
        let mut got = [0i32];
        for (set, get) in [(0x8901, 0x8903), (0x8902, 0x8904)] {
            ok!(sc!(SYS_ioctl, a, set, [-me()].as_ptr()));
            ok!(sc!(SYS_ioctl, a, get, got.as_mut_ptr()));
            is!(got[0], -me());
            fails!(sc!(SYS_ioctl, a, set, [4_000_000i32].as_ptr()), ESRCH);
        }
        fails!(sc!(SYS_ioctl, a, 0x8902, 8), EFAULT);
        let (from, _) = ok!(sys::pipe(0));
        fails!(sc!(SYS_ioctl, from, 0x8902, [me()].as_ptr()), ENOTTY);
        // A file of a kind that sends no signals.
        let file = file_with(b"x")?;
        fails!(sc!(SYS_ioctl, file, libc::FIOASYNC, on.as_ptr()), ENOTTY);
        ok!(sc!(SYS_ioctl, file, libc::FIOASYNC, [0i32].as_ptr()));
        ok!(fcntl(file, libc::F_SETFL, libc::O_ASYNC.into()));
        holds!(ok!(fcntl(file, libc::F_GETFL, 0)) & i64::from(libc::O_ASYNC) == 0);
    }
    a_pipe_tells_each_write_and_read {
        let (from, to) = ok!(sys::pipe(0));
        ok!(ask(from));
        is!(ok!(sys::write(to, b"ab")), 2);
        ok!(sys::write(to, b"c"));
        is!(taken(), (REAL_TIME, 1, IN, from));
        is!(taken(), (REAL_TIME, 1, IN, from));
        is!(taken(), NONE);
        ok!(ask(to));
        is!(ok!(sys::read(from, &mut [0; 1])), 1);
        is!(taken(), (REAL_TIME, 2, OUT, to));
        is!(taken(), NONE);
        // Off again.
        ok!(fcntl(from, libc::F_SETFL, 0));
        ok!(sys::write(to, b"d"));
        is!(taken(), NONE);
        ok!(ask(from));
        ok!(sys::close(to));
        is!(taken(), (REAL_TIME, 1, IN, from));
        is!(taken(), NONE);
    }
    without_a_signal_it_is_sigio {
        let (from, to) = ok!(sys::pipe(0));
        ok!(ask(from));
        ok!(fcntl(from, F_SETSIG, 0));
        ok!(sys::write(to, b"a"));
        ok!(sys::write(to, b"a"));
        is!(taken(), (libc::SIGIO, 0x80, 0, 0));
        is!(taken(), NONE);
        ok!(fcntl(from, F_SETSIG, libc::SIGIO.into()));
        ok!(sys::write(to, b"a"));
        is!(taken(), (libc::SIGIO, 1, IN, from));
        ok!(block(&[libc::SIGCHLD]));
        ok!(fcntl(from, F_SETSIG, libc::SIGCHLD.into()));
        ok!(sys::write(to, b"a"));
        is!(taken(), (libc::SIGCHLD, -5, IN, from));
        // It ends a process that does not expect it.
        let status = in_child(|| {
            let Ok((from, to)) = sys::pipe(0) else { return 2 };
            let set = [0u64];
            let _ = sc!(SYS_rt_sigprocmask, libc::SIG_SETMASK, set.as_ptr(), 0, 8);
            let _ = fcntl(from, libc::F_SETOWN, me().into());
            let _ = fcntl(from, libc::F_SETFL, libc::O_ASYNC.into());
            let _ = sys::write(to, b"a");
            3
        })?;
        is!(status, libc::SIGIO);
    }
    a_stream_socket_tells_bytes_room_and_the_end {
        let (a, b) = ok!(pair(libc::SOCK_STREAM | libc::SOCK_NONBLOCK));
        ok!(ask(a));
        ok!(sys::write(b, b"ab"));
        ok!(sys::write(b, b"c"));
        is!(taken(), (REAL_TIME, 1, IN, a));
        is!(taken(), (REAL_TIME, 1, IN, a));
        // The own writes, and reads of the peer, are no news but after a write that found no room.
        ok!(sys::write(a, b"x"));
        ok!(sys::read(b, &mut [0; 10]));
        is!(taken(), NONE);
        while sys::write(a, &[0; 4096]).is_ok() {}
        while sys::read(b, &mut [0; 65536]).is_ok_and(|n| n > 0) {}
        is!(taken(), (REAL_TIME, 2, OUT, a));
        while taken() != NONE {}
        ok!(sc!(SYS_shutdown, b, 1));
        is!(taken(), (REAL_TIME, 1, IN, a));
        ok!(sys::close(b));
        is!(taken(), (REAL_TIME, 6, HANG_UP, a));
        is!(taken(), NONE);
    }
    datagrams_and_connections_are_told {
        let (a, b) = ok!(pair(libc::SOCK_DGRAM));
        ok!(ask(a));
        ok!(sys::write(b, b"ab"));
        is!(taken(), (REAL_TIME, 1, IN, a));
        ok!(sys::close(b));
        let listener = ok!(sc!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0)) as i32;
        // Before it listens.
        ok!(ask(listener));
        while taken() != NONE {}
        ok!(sc!(SYS_bind, listener, [1u16].as_ptr(), 2));
        let mut name = [0u16; 55];
        let mut len = [110u32];
        ok!(sc!(SYS_getsockname, listener, name.as_mut_ptr(), len.as_mut_ptr()));
        ok!(sc!(SYS_listen, listener, 5));
        let client = ok!(sc!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0)) as i32;
        ok!(sc!(SYS_connect, client, name.as_ptr(), len[0]));
        is!(taken(), (REAL_TIME, 1, IN, listener));
        is!(taken(), NONE);
    }
    a_group_and_a_thread_as_owners {
        let (from, to) = ok!(sys::pipe(0));
        ok!(ask(from));
        ok!(fcntl(from, libc::F_SETOWN, -i64::from(me())));
        let (go, ready) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            let _ = sys::write(ready, b"r");
            sys::exit(i32::from(taken_in(5000) != (REAL_TIME, 1, IN, from)));
        }
        ok!(sys::read(go, &mut [0]));
        ok!(sys::write(to, b"a"));
        is!(taken(), (REAL_TIME, 1, IN, from));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        ok!(set_owner(from, 0, me()));
        ok!(sys::write(to, b"a"));
        let other = std::thread::spawn(taken).join().map_err(|_| "a thread has failed")?;
        is!(other, NONE);
        is!(taken(), (REAL_TIME, 1, IN, from));
        // An owner that has ended gets nothing, and is not shown.
        let pid = ok!(sys::fork());
        if pid == 0 {
            sys::exit(0);
        }
        ok!(fcntl(from, libc::F_SETOWN, pid as i64));
        ok!(sys::wait(pid as i64, 0));
        is!(ok!(fcntl(from, libc::F_GETOWN, 0)), 0);
        ok!(sys::write(to, b"a"));
        is!(taken(), NONE);
    }
    the_user_that_named_the_owner_must_be_allowed_to_signal_it {
        let (from, to) = ok!(sys::pipe(0));
        ok!(ask(from));
        let parent = me();
        let status = in_child(|| {
            if sys::become_user(4321, &[]).is_err() {
                return 2;
            }
            // No call fails: the signal does not come.
            i32::from(fcntl(from, libc::F_SETOWN, parent.into()).is_err())
        })?;
        is!(status, 0);
        ok!(sys::write(to, b"a"));
        is!(taken(), NONE);
        is!(ok!(fcntl(from, libc::F_GETOWN, 0)), i64::from(parent));
        let mut uids = [0u32; 2];
        ok!(sc!(SYS_fcntl, from, F_GETOWNER_UIDS, uids.as_mut_ptr()));
        is!(uids, [4321, 4321]);
        ok!(fcntl(from, libc::F_SETOWN, parent.into()));
        ok!(sys::write(to, b"a"));
        is!(taken(), (REAL_TIME, 1, IN, from));
    }
    beyond_the_limit_of_queued_signals_it_is_sigio {
        let status = in_child(|| {
            let Ok((from, to)) = sys::pipe(0) else { return 2 };
            // Root has no limit here.
            if sys::become_user(4322, &[]).is_err() || ask(from).is_err() {
                return 3;
            }
            let _ = sc!(SYS_setrlimit, libc::RLIMIT_SIGPENDING, [3u64, 3].as_ptr());
            for _ in 0..6 {
                let _ = sys::write(to, b"a");
            }
            let mut real_time = 0;
            let mut plain = 0;
            loop {
                match taken() {
                    (libc::SIGIO, 0x80, ..) => plain += 1,
                    (REAL_TIME, ..) => real_time += 1,
                    _ => break,
                }
            }
            i32::from(!(1..=3).contains(&real_time) || plain != 1)
        })?;
        is!(status, 0);
    }
}
