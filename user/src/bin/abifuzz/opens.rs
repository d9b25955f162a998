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
    open_pseudo_terminal();
    // Writes to standard output would print garbage on the console.
    for fd in 0..3 {
        if let Ok(null) = sys::open("/dev/null", libc::O_RDWR, 0) {
            let _ = sys::call(libc::SYS_dup2, &[null as u64, fd]);
            let _ = sys::close(null);
        }
    }
}

/// Opens both ends of a pseudo-terminal, if there is room for them.
fn open_pseudo_terminal() {
    const TIOCGPTPEER: u64 = 0x5441;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK;
    let Ok(master) = sys::open("/dev/ptmx", flags, 0) else {
        return;
    };
    let unlocked = 0i32;
    let at = &raw const unlocked as u64;
    let _ = sys::call(libc::SYS_ioctl, &[master as u64, libc::TIOCSPTLCK, at]);
    let flags = flags as u64;
    let _ = sys::call(libc::SYS_ioctl, &[master as u64, TIOCGPTPEER, flags]);
}
