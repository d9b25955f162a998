//! Descriptors that every round has.

use user::sys;

/// Opens descriptors of several kinds, so that small numbers are open descriptors.
pub fn open_some() {
    let _ = sys::pipe(libc::O_NONBLOCK);
    for (name, flags) in [
        (".", 0),
        ("/dev/zero", libc::O_RDWR),
        ("f", libc::O_RDWR | libc::O_CREAT),
    ] {
        let _ = sys::open(name, flags, 0o600);
    }
    let _ = open_pseudo_terminal();
    // Writes to standard output would print garbage on the console, and an ioctl might stop the console's output. An earlier round
    // may have removed the device.
    for fd in 0..3 {
        if let Ok(null) = sys::open("/dev/null", libc::O_RDWR, 0) {
            let _ = sys::call(libc::SYS_dup2, &[null as u64, fd]);
            let _ = sys::close(null);
        } else {
            let _ = sys::close(fd as i32);
        }
    }
}

/// Opens both ends of a pseudo-terminal, if there is room for them: the master, and the slave if it opens.
pub fn open_pseudo_terminal() -> Option<(i32, Result<u64, sys::Errno>)> {
    const TIOCGPTPEER: u64 = 0x5441;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK;
    let master = sys::open("/dev/ptmx", flags, 0).ok()?;
    let unlocked = 0i32;
    let at = &raw const unlocked as u64;
    let _ = sys::call(libc::SYS_ioctl, &[master as u64, libc::TIOCSPTLCK, at]);
    let args = [master as u64, TIOCGPTPEER, flags as u64];
    Some((master, sys::call(libc::SYS_ioctl, &args)))
}
