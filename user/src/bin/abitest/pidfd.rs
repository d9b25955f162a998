//! Processes as files.

use crate::harness::*;
use user::sys;

fn open(pid: u64, flags: i32) -> Result<i32, i32> {
    sc!(SYS_pidfd_open, pid, flags).map(|fd| fd as i32)
}

fn send(fd: i32, signal: i32) -> Result<u64, i32> {
    sc!(SYS_pidfd_send_signal, fd, signal, 0, 0)
}

fn ready(fd: i32, ms: i64) -> Result<bool, i32> {
    let mut list = [u64::from(fd as u32) | (libc::POLLIN as u64) << 32];
    sc!(SYS_poll, list.as_mut_ptr(), 1, ms).map(|n| n == 1)
}

/// Starts a child that ends with status 7 after a while.
fn child(us: u64) -> Result<u64, i32> {
    let pid = sys::fork()?;
    if pid == 0 {
        nap_us(us);
        sys::exit(7);
    }
    Ok(pid)
}

/// waitid(2) of a descriptor: the signal number, the pid and the status of the siginfo.
fn wait(fd: i32, options: i32) -> Result<(i32, i32, i32), i32> {
    let mut info = [0i32; 32];
    sc!(SYS_waitid, libc::P_PIDFD, fd, info.as_mut_ptr(), options, 0)?;
    Ok((info[0], info[4], info[6]))
}

tests! { "pidfd";
    a_process_that_ends_is_ready {
        let pid = ok!(child(50_000));
        let fd = ok!(open(pid, 0));
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFD)), 1);
        is!(ok!(ready(fd, 0)), false);
        is!(ok!(ready(fd, 5000)), true);
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 7 << 8));
        is!(ok!(ready(fd, 0)), true);
        fails!(send(fd, 0), ESRCH);
        fails!(send(fd, libc::SIGTERM), ESRCH);
    }
    an_epoll_waits_for_the_end {
        let e = ok!(sc!(SYS_epoll_create1, 0));
        let pid = ok!(child(50_000));
        let fd = ok!(open(pid, 0));
        let event = [libc::EPOLLIN as u32, 7, 0];
        ok!(sc!(SYS_epoll_ctl, e, libc::EPOLL_CTL_ADD, fd, event.as_ptr()));
        let mut found = [0u32; 3];
        is!(ok!(sc!(SYS_epoll_wait, e, found.as_mut_ptr(), 1, 0)), 0);
        is!(ok!(sc!(SYS_epoll_wait, e, found.as_mut_ptr(), 1, 5000)), 1);
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 7 << 8));
    }
    an_open_file_of_the_process_is_had {
        let memory = ok!(sc!(SYS_memfd_create, path("shared"), 0)) as i32;
        let pid = ok!(sys::fork());
        if pid == 0 {
            let own = sc!(SYS_memfd_create, path("own"), 0).unwrap_or(0) as i32;
            let _ = sys::write(own, b"theirs");
            let _ = sc!(SYS_dup2, own, 200);
            let _ = sys::write(memory, b"x");
            nap_us(20_000_000);
            sys::exit(0);
        }
        let mut one = [0];
        while ok!(sc!(SYS_pread64, memory, one.as_mut_ptr(), 1, 0)) == 0 {
            nap_us(1000);
        }
        let fd = ok!(open(pid, 0));
        let theirs = ok!(sc!(SYS_pidfd_getfd, fd, 200, 0)) as i32;
        is!(ok!(sc!(SYS_fcntl, theirs, libc::F_GETFD)), 1);
        // It is the same open file, with its position.
        is!(ok!(sc!(SYS_lseek, theirs, 0, libc::SEEK_CUR)), 6);
        let mut bytes = [0u8; 6];
        ok!(sc!(SYS_pread64, theirs, bytes.as_mut_ptr(), 6, 0));
        is!(&bytes, b"theirs");
        fails!(sc!(SYS_pidfd_getfd, fd, 201, 0), EBADF);
        fails!(sc!(SYS_pidfd_getfd, fd, -1i64, 0), EBADF);
        fails!(sc!(SYS_pidfd_getfd, fd, 200, 1), EINVAL);
        fails!(sc!(SYS_pidfd_getfd, theirs, 200, 0), EBADF);
        let asked = || sc!(SYS_pidfd_getfd, fd, 200, 0);
        is!(crate::privileges::as_child(crate::privileges::become_user, asked), Err(libc::EPERM));
        ok!(send(fd, libc::SIGKILL));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 9));
        fails!(sc!(SYS_pidfd_getfd, fd, 200, 0), ESRCH);
    }
    signals_reach_the_process {
        let pid = ok!(child(20_000_000));
        let fd = ok!(open(pid, 0));
        ok!(send(fd, 0));
        fails!(send(fd, 99), EINVAL);
        fails!(sc!(SYS_pidfd_send_signal, fd, libc::SIGTERM, 0, 0x100), EINVAL);
        fails!(sc!(SYS_pidfd_send_signal, fd, libc::SIGTERM, 8, 0), EFAULT);
        let mut info = [0u64; 16];
        info[0] = libc::SIGUSR1 as u64;
        info[1] = u64::from(-1i32 as u32);
        fails!(sc!(SYS_pidfd_send_signal, fd, libc::SIGTERM, info.as_ptr(), 0), EINVAL);
        ok!(sc!(SYS_pidfd_send_signal, fd, libc::SIGUSR1, info.as_ptr(), 0));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, libc::SIGUSR1));
    }
    a_directory_of_proc_stands_for_the_process {
        let dir = |path: &str| sys::open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0);
        let pid = ok!(child(20_000_000));
        let fd = ok!(dir(&format!("/proc/{pid}")));
        ok!(send(fd, 0));
        fails!(send(fd, 99), EINVAL);
        let of_thread = ok!(dir(&format!("/proc/{pid}/task/{pid}")));
        fails!(send(of_thread, 0), EBADF);
        fails!(send(ok!(dir("/proc")), 0), EBADF);
        let path = ok!(sys::open(&format!("/proc/{pid}"), libc::O_PATH, 0));
        fails!(send(path, 0), EBADF);
        // A descriptor from pidfd_open alone can be waited for.
        fails!(wait(fd, libc::WEXITED), EBADF);
        ok!(send(fd, libc::SIGTERM));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, libc::SIGTERM));
        fails!(send(fd, 0), ESRCH);
        fails!(send(fd, libc::SIGTERM), ESRCH);
    }
    waits_are_for_the_process {
        let pid = ok!(child(30_000));
        let fd = ok!(open(pid, 0));
        let exited = libc::WEXITED;
        is!(ok!(wait(fd, exited | libc::WNOHANG)).0, 0);
        is!(ok!(wait(fd, exited)).0, libc::SIGCHLD);
        fails!(wait(fd, exited), ECHILD);
        let pid = ok!(child(200_000));
        let fd = ok!(open(pid, libc::O_NONBLOCK));
        fails!(wait(fd, exited), EAGAIN);
        is!(ok!(ready(fd, 5000)), true);
        is!(ok!(wait(fd, exited)), (libc::SIGCHLD, pid as i32, 7));
        let (from, _) = ok!(sys::pipe(0));
        fails!(wait(from, exited), EBADF);
        fails!(wait(999, exited), EBADF);
    }
    arguments {
        let me = u64::from(std::process::id());
        fails!(open(me, 1), EINVAL);
        fails!(open(0, 0), EINVAL);
        fails!(open(u64::MAX, 0), EINVAL);
        fails!(open(4_000_000, 0), ESRCH);
        fails!(send(-1, 0), EBADF);
        let (from, _) = ok!(sys::pipe(0));
        fails!(send(from, 0), EBADF);
        let fd = ok!(open(me, 0));
        ok!(send(fd, 0));
        is!(ok!(ready(fd, 0)), false);
        fails!(sys::read(fd, &mut [0; 8]), EINVAL);
        fails!(sys::write(fd, &[0; 8]), EINVAL);
    }
}
