//! eventfd.

use crate::harness::*;
use user::sys;

fn counter(count: u32, flags: i32) -> Result<i32, i32> {
    sc!(SYS_eventfd2, count, flags).map(|fd| fd as i32)
}

fn take(fd: i32) -> Result<u64, i32> {
    let mut word = [0; 8];
    let n = sys::read(fd, &mut word)?;
    if n == 8 {
        Ok(u64::from_le_bytes(word))
    } else {
        Err(libc::EIO)
    }
}

fn add(fd: i32, more: u64) -> Result<usize, i32> {
    sys::write(fd, &more.to_le_bytes())
}

/// The events that poll returns without waiting.
fn ready(fd: i32) -> u64 {
    let mut list = [u64::from(fd as u32) | u64::from((libc::POLLIN | libc::POLLOUT) as u16) << 32];
    let _ = sc!(SYS_poll, list.as_mut_ptr(), 1, 0);
    list[0] >> 48
}

const IN: u64 = libc::POLLIN as u64;
const OUT: u64 = libc::POLLOUT as u64;

tests! { "event";
    counts_add_up_and_go_at_once {
        let fd = ok!(counter(3, libc::EFD_NONBLOCK));
        is!(ok!(add(fd, 4)), 8);
        is!(ready(fd), IN | OUT);
        is!(ok!(take(fd)), 7);
        fails!(take(fd), EAGAIN);
        is!(ready(fd), OUT);
    }
    semaphores_go_one_by_one {
        let fd = ok!(counter(2, libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE));
        is!([ok!(take(fd)), ok!(take(fd))], [1, 1]);
        fails!(take(fd), EAGAIN);
    }
    arguments {
        fails!(counter(0, 0x77), EINVAL);
        let fd = ok!(counter(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC));
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFD)), 1);
        fails!(sys::read(fd, &mut [0; 7]), EINVAL);
        fails!(sys::write(fd, &[0; 7]), EINVAL);
        fails!(add(fd, u64::MAX), EINVAL);
        fails!(sc!(SYS_write, fd, 8, 8), EFAULT);
        fails!(sc!(SYS_pread64, fd, [0u64].as_mut_ptr(), 8, 0), ESPIPE);
        ok!(add(fd, u64::MAX - 1));
        is!(ready(fd), IN);
        fails!(add(fd, 1), EAGAIN);
        ok!(add(fd, 0));
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        is!(link.map(|to| to.display().to_string()).unwrap_or_default(), "anon_inode:[eventfd]");
        is!(ok!(sc!(SYS_eventfd, 5)), fd as u64 + 1);
    }
    readers_and_writers_wait {
        let fd = ok!(counter(0, 0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            nap_us(20_000);
            let filled = add(fd, u64::MAX - 1).is_ok() && add(fd, 9).is_ok();
            sys::exit(i32::from(!filled));
        }
        is!(ok!(take(fd)), u64::MAX - 1);
        is!(ok!(take(fd)), 9);
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
    }
    a_signal_ends_a_wait {
        let fd = ok!(counter(0, 0));
        is!(in_child(|| {
            let _ = sys::on_signal(libc::SIGALRM, on_nothing as *const () as usize, 0);
            let _ = sc!(SYS_setitimer, 0, [0u64, 20_000, 0, 20_000].as_ptr(), 0);
            i32::from(take(fd) != Err(libc::EINTR))
        })?, 0);
    }
}

extern "C" fn on_nothing(_: i32) {}
