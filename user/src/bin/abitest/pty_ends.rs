//! The calls of the tests of pseudo-terminals.

use user::sys::{self, Errno};

pub const TIOCGPTPEER: u64 = 0x5441;
pub const TIOCGPTLCK: u64 = 0x8004_5439;
pub const TIOCGPKT: u64 = 0x8004_5438;
pub const TIOCSIG: u64 = 0x4004_5436;

pub fn ioctl(fd: i32, request: u64, arg: u64) -> Result<u64, Errno> {
    sc!(SYS_ioctl, fd, request, arg)
}

/// The number that a request writes.
pub fn asked(fd: i32, request: u64) -> Result<i32, Errno> {
    let mut n = -1i32;
    ioctl(fd, request, &raw mut n as u64)?;
    Ok(n)
}

pub fn set(fd: i32, request: u64, value: i32) -> Result<u64, Errno> {
    ioctl(fd, request, &raw const value as u64)
}

/// A master whose terminal is unlocked, and the name of that.
pub fn master(flags: i32) -> Result<(i32, String), Errno> {
    let m = sys::open("/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY | flags, 0)?;
    set(m, libc::TIOCSPTLCK, 0)?;
    Ok((m, format!("/dev/pts/{}", asked(m, libc::TIOCGPTN)?)))
}

pub fn slave(name: &str) -> Result<i32, Errno> {
    sys::open(name, libc::O_RDWR | libc::O_NOCTTY, 0)
}

/// A master and its terminal.
pub fn pair() -> Result<(i32, i32), Errno> {
    let (m, name) = master(0)?;
    Ok((m, slave(&name)?))
}

pub fn attributes(fd: i32) -> Result<libc::termios, Errno> {
    let mut t: libc::termios = zeroed();
    ioctl(fd, libc::TCGETS, &raw mut t as u64)?;
    Ok(t)
}

pub fn zeroed() -> libc::termios {
    libc::termios {
        c_iflag: 0,
        c_oflag: 0,
        c_cflag: 0,
        c_lflag: 0,
        c_line: 0,
        c_cc: [0; 32],
        c_ispeed: 0,
        c_ospeed: 0,
    }
}

/// Changes the settings.
pub fn change(fd: i32, edit: impl FnOnce(&mut libc::termios)) -> Result<u64, Errno> {
    let mut t = attributes(fd)?;
    edit(&mut t);
    ioctl(fd, libc::TCSETS, &raw const t as u64)
}

/// No echo, no editing, no signals, no processing of output.
pub fn make_raw(fd: i32) -> Result<u64, Errno> {
    change(fd, |t| {
        t.c_iflag = 0;
        t.c_oflag = 0;
        t.c_lflag = 0;
        t.c_cc[libc::VMIN] = 1;
        t.c_cc[libc::VTIME] = 0;
    })
}

/// What one read gets.
pub fn read(fd: i32) -> Result<Vec<u8>, Errno> {
    let mut buf = [0; 256];
    let n = sys::read(fd, &mut buf)?;
    Ok(buf[..n].to_vec())
}

/// What reads get until there are so many bytes.
pub fn read_all(fd: i32, len: usize) -> Result<Vec<u8>, Errno> {
    let mut all = Vec::new();
    while all.len() < len {
        let mut buf = vec![0; len - all.len()];
        let n = sys::read(fd, &mut buf)?;
        if n == 0 {
            break;
        }
        all.extend_from_slice(&buf[..n]);
    }
    Ok(all)
}

pub fn set_nonblocking(fd: i32) -> Result<u64, Errno> {
    sc!(
        SYS_fcntl,
        fd,
        libc::F_SETFL,
        libc::O_RDWR | libc::O_NONBLOCK
    )
}

/// The events that poll(2) finds within so many milliseconds.
pub fn events(fd: i32, events: i16, timeout: i32) -> Result<i16, Errno> {
    let mut p = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    sc!(SYS_poll, &raw mut p, 1, timeout)?;
    Ok(p.revents)
}

pub const ALL: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLPRI;
