//! Requests to a terminal: tty_ioctl(4).

use core::sync::atomic::Ordering;

use fscore::ldisc::Termios;
use hal::uaccess::UserPtr;
use proc::UserThreadExt;
use proc::signal::sig;
use task::current::current;
use vfs::error::{FsError, Result};

use super::Line;
use super::file::TtyFile;

/// Request numbers.
mod nr {
    pub const TCGETS: u32 = 0x5401;
    pub const TCSETS: u32 = 0x5402;
    pub const TCSETSW: u32 = 0x5403;
    pub const TCSETSF: u32 = 0x5404;
    pub const TCSBRK: u32 = 0x5409;
    pub const TCXONC: u32 = 0x540a;
    pub const TCFLSH: u32 = 0x540b;
    pub const TIOCEXCL: u32 = 0x540c;
    pub const TIOCNXCL: u32 = 0x540d;
    pub const TIOCSCTTY: u32 = 0x540e;
    pub const TIOCGPGRP: u32 = 0x540f;
    pub const TIOCSPGRP: u32 = 0x5410;
    pub const TIOCOUTQ: u32 = 0x5411;
    pub const TIOCGWINSZ: u32 = 0x5413;
    pub const TIOCSWINSZ: u32 = 0x5414;
    pub const FIONREAD: u32 = 0x541b;
    pub const TIOCNOTTY: u32 = 0x5422;
    pub const TCSBRKP: u32 = 0x5425;
    pub const TIOCGSID: u32 = 0x5429;
    pub const TIOCGEXCL: u32 = 0x8004_5440;
}

/// Serves a request to the terminal of `file`; `readable` says whether the file is open for reading. May sleep.
///
/// # Errors
/// I/O, and for TIOCSPGRP not a terminal as in Linux: the file is cut off, or the caller's group is orphaned. Invalid: TCXONC or TCFLSH do not know `arg`. Not
/// a terminal: an unknown request, or one for job control, and this is not the caller's controlling terminal. Those of
/// [`Tty::job_control`](super::Tty::job_control), of the requests, and of the program's memory.
pub(super) fn ioctl(file: &TtyFile, readable: bool, request: u32, arg: u64) -> Result<u64> {
    let tty = &file.tty;
    if file.is_cut_off(&tty.line.lock()) {
        return Err(match request {
            nr::TIOCSPGRP => FsError::NotTty,
            _ => FsError::Io,
        });
    }
    match request {
        nr::TCGETS => {
            let bytes = tty.line.lock().ldisc.termios().to_bytes();
            UserPtr::<[u8; Termios::SIZE]>::new(arg).write(&bytes)?;
        }
        nr::TCSETS | nr::TCSETSW | nr::TCSETSF => set_attributes(file, request, arg)?,
        // Output is written at once, so it has always drained; a break cannot be sent.
        nr::TCSBRK | nr::TCSBRKP => tty.job_control(sig::TTOU)?,
        nr::TCXONC => {
            tty.job_control(sig::TTOU)?;
            match arg {
                0 | 1 => {
                    change(file, |line| line.ldisc.set_stopped(arg == 0))?;
                    tty.writers.wake_all();
                }
                // Would send a STOP or START character to the other end; none is sent.
                2 | 3 => {}
                _ => return Err(FsError::Invalid),
            }
        }
        nr::TCFLSH => {
            tty.job_control(sig::TTOU)?;
            match arg {
                0 | 2 => change(file, |line| line.ldisc.flush())?,
                // Output is never queued.
                1 => {}
                _ => return Err(FsError::Invalid),
            }
        }
        nr::TIOCGWINSZ => {
            let size = tty.size.load(Ordering::Relaxed);
            UserPtr::<u64>::new(arg).write(&size)?;
        }
        nr::TIOCSWINSZ => tty.resize(UserPtr::<u64>::new(arg).read()?),
        nr::FIONREAD => {
            let n = tty.line.lock().ldisc.available() as i32;
            UserPtr::<i32>::new(arg).write(&n)?;
        }
        nr::TIOCOUTQ => UserPtr::<i32>::new(arg).write(&0)?,
        nr::TIOCEXCL | nr::TIOCNXCL => set_exclusive(file, request == nr::TIOCEXCL)?,
        nr::TIOCGEXCL => {
            let exclusive = tty.exclusive.load(Ordering::Relaxed);
            UserPtr::<i32>::new(arg).write(&i32::from(exclusive))?;
        }
        nr::TIOCSCTTY => tty.set_controlling(file, readable, arg == 1)?,
        _ => return control(file, request, arg),
    }
    Ok(0)
}

/// Changes the terminal under its lock, so that a hang-up, which undoes such changes, does not come in between. I/O, and nothing has
/// changed, if one came before.
fn change(file: &TtyFile, how: impl FnOnce(&mut Line)) -> Result<()> {
    let mut line = file.tty.line.lock();
    if file.is_cut_off(&line) {
        return Err(FsError::Io);
    }
    how(&mut line);
    Ok(())
}

/// TIOCEXCL and TIOCNXCL.
fn set_exclusive(file: &TtyFile, on: bool) -> Result<()> {
    change(file, |_| file.tty.exclusive.store(on, Ordering::Relaxed))
}

/// TCSETS, TCSETSW and TCSETSF, the last of which drops unread input. Wakes all sleepers, because the mode decides when they
/// may go on. Nothing has changed if it fails: by job control, the program's memory, or with I/O because the file is cut off.
fn set_attributes(file: &TtyFile, request: u32, arg: u64) -> Result<()> {
    let tty = &file.tty;
    tty.job_control(sig::TTOU)?;
    let new = Termios::from_bytes(&UserPtr::<[u8; Termios::SIZE]>::new(arg).read()?);
    let mut line = tty.line.lock();
    if file.is_cut_off(&line) {
        return Err(FsError::Io);
    }
    if request == nr::TCSETSF {
        line.ldisc.flush();
    }
    line.ldisc.set_termios(new);
    drop(line);
    tty.readers.wake_all();
    tty.writers.wake_all();
    Ok(())
}

/// Requests for job control. Not a terminal: this is not the controlling terminal of the caller's session.
fn control(file: &TtyFile, request: u32, arg: u64) -> Result<u64> {
    let (tty, me) = (&file.tty, current());
    let p = me.process();
    match request {
        _ if !tty.controls(p) => return Err(FsError::NotTty),
        nr::TIOCGPGRP => {
            let pgid = tty.control.lock().foreground();
            UserPtr::<u32>::new(arg).write(&pgid)?;
        }
        nr::TIOCSPGRP => {
            // As in Linux, an orphaned group gets another error than for other requests.
            tty.job_control(sig::TTOU).map_err(|why| match why {
                FsError::Io => FsError::NotTty,
                why => why,
            })?;
            let pgid = UserPtr::<i32>::new(arg).read()?;
            let pgid = u32::try_from(pgid).map_err(|_| FsError::Invalid)?;
            tty.set_foreground(p, pgid)?;
        }
        nr::TIOCGSID => {
            let sid = tty.control.lock().sid();
            UserPtr::<u32>::new(arg).write(&sid)?;
        }
        nr::TIOCNOTTY => tty.disassociate(p),
        _ => return Err(FsError::NotTty),
    }
    Ok(0)
}
