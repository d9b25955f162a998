//! Requests to a terminal: tty_ioctl(4).

use alloc::sync::Arc;
use ksync::atomic::Ordering;

use fscore::ldisc::{Termios, cc, lflag};
use hal::uaccess::UserPtr;
use proc::UserThreadExt;
use proc::signal::sig;
use task::current::current;
use vfs::error::{FsError, Result};

use super::file::TtyFile;
use super::line::{Line, Wire};
use super::master::Master;
use super::pty::MasterFile;
use super::terminal::Tty;

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
    pub const TIOCSTI: u32 = 0x5412;
    pub const TIOCGWINSZ: u32 = 0x5413;
    pub const TIOCSWINSZ: u32 = 0x5414;
    pub const FIONREAD: u32 = 0x541b;
    pub const TIOCPKT: u32 = 0x5420;
    pub const TIOCNOTTY: u32 = 0x5422;
    pub const TCSBRKP: u32 = 0x5425;
    pub const TIOCGSID: u32 = 0x5429;
    pub const TIOCSPTLCK: u32 = 0x4004_5431;
    pub const TIOCSIG: u32 = 0x4004_5436;
    pub const TIOCGPTN: u32 = 0x8004_5430;
    pub const TIOCGPKT: u32 = 0x8004_5438;
    pub const TIOCGPTLCK: u32 = 0x8004_5439;
    pub const TIOCGEXCL: u32 = 0x8004_5440;
}

/// The end of a terminal that a request came through.
#[derive(Clone, Copy)]
enum End<'a> {
    File(&'a TtyFile),
    Master(&'a MasterFile),
}

impl End<'_> {
    fn tty(&self) -> &Arc<Tty> {
        match self {
            End::File(file) => &file.tty,
            End::Master(file) => &file.tty,
        }
    }

    fn file(&self) -> Option<&TtyFile> {
        match self {
            End::File(file) => Some(file),
            End::Master(_) => None,
        }
    }

    fn is_cut_off(&self, line: &Line) -> bool {
        self.file().is_some_and(|file| file.is_cut_off(line))
    }
}

/// Serves a request to the terminal of `file`; `readable` says whether the file is open for reading. May sleep.
///
/// # Errors
/// I/O, and for TIOCSPGRP not a terminal as in Linux: the file is cut off, or the caller's group is orphaned. I/O for TIOCSTI: there is no
/// input but from the wire. Invalid: TCXONC or TCFLSH do not know `arg`. Not
/// a terminal: an unknown request, or one for job control, and this is not the caller's controlling terminal. Those of
/// [`Tty::job_control`], of the requests, and of the program's memory.
pub(super) fn ioctl(file: &TtyFile, readable: bool, request: u32, arg: u64) -> Result<u64> {
    let tty = &file.tty;
    if file.is_cut_off(&tty.line.lock()) {
        return Err(match request {
            nr::TIOCSPGRP => FsError::NotTty,
            _ => FsError::Io,
        });
    }
    match request {
        // What a program sends is on its way at once; a break cannot be sent.
        nr::TCSBRK | nr::TCSBRKP => tty.job_control(sig::TTOU)?,
        nr::TCXONC => {
            tty.job_control(sig::TTOU)?;
            hold_or_send(file, arg)?;
        }
        nr::TCFLSH => {
            tty.job_control(sig::TTOU)?;
            flush(file, arg)?;
        }
        nr::FIONREAD => put_int(arg, tty.line.lock().ldisc.queued())?,
        nr::TIOCEXCL | nr::TIOCNXCL => set_exclusive(file, request == nr::TIOCEXCL)?,
        nr::TIOCGEXCL => put_int(arg, tty.exclusive.load(Ordering::Relaxed).into())?,
        _ => return of_pair(End::File(file), readable, request, arg),
    }
    Ok(0)
}

/// Serves a request to a master, as [`ioctl`].
///
/// # Errors
/// Invalid: TCXONC, TCFLSH or TIOCSIG do not know `arg`. Those of [`ioctl`].
pub(super) fn of_master(file: &MasterFile, readable: bool, request: u32, arg: u64) -> Result<u64> {
    let tty = &file.tty;
    match request {
        nr::TIOCGPTN => put_int(arg, file.index() as usize)?,
        nr::TIOCSPTLCK => {
            let locked = UserPtr::<i32>::new(arg).read()? != 0;
            file.set_locked(locked)?;
        }
        nr::TIOCGPTLCK => put_int(arg, file.with(|master| master.locked)?.into())?,
        nr::TIOCPKT => {
            let packet = UserPtr::<i32>::new(arg).read()? != 0;
            file.with(|master| master.set_packet(packet))?;
        }
        nr::TIOCGPKT => put_int(arg, file.with(|master| master.packet)?.into())?,
        // As in Linux, of the number the lower half counts.
        nr::TIOCSIG => match u8::try_from(arg as u32) {
            Ok(signo @ (sig::INT | sig::QUIT | sig::TSTP)) => tty.signal_foreground(signo),
            _ => return Err(FsError::Invalid),
        },
        nr::TCSBRK | nr::TCSBRKP => {}
        nr::TCXONC => match arg {
            0 | 1 => {
                file.with(|master| master.held = arg == 0)?;
                tty.let_master_write();
            }
            2 | 3 => {
                tty.arrive(&[FLOW[arg as usize - 2]]);
            }
            _ => return Err(FsError::Invalid),
        },
        nr::TCFLSH => match arg {
            0 | 2 => {
                file.with(Master::drop_all)?;
                tty.writers.wake_all();
            }
            // What was written to the master has been taken.
            1 => {}
            _ => return Err(FsError::Invalid),
        },
        nr::FIONREAD => put_int(arg, file.with(|master| master.len())?)?,
        nr::TIOCEXCL | nr::TIOCNXCL => {
            file.with(|master| master.exclusive = request == nr::TIOCEXCL)?;
        }
        nr::TIOCGEXCL => put_int(arg, file.with(|master| master.exclusive)?.into())?,
        // No master controls a session.
        nr::TIOCNOTTY => return Err(FsError::NotTty),
        _ => return of_pair(End::Master(file), readable, request, arg),
    }
    Ok(0)
}

/// The characters STOP and START of a master, which has no settings of its own.
const FLOW: [u8; 2] = [0x13, 0x11];

fn put_int(arg: u64, value: usize) -> Result<()> {
    Ok(UserPtr::<i32>::new(arg).write(&(value as i32))?)
}

/// The requests that do the same through both ends.
fn of_pair(end: End, readable: bool, request: u32, arg: u64) -> Result<u64> {
    let tty = end.tty();
    match request {
        nr::TCGETS => {
            let bytes = tty.line.lock().ldisc.termios().to_bytes();
            UserPtr::<[u8; Termios::SIZE]>::new(arg).write(&bytes)?;
        }
        nr::TCSETS | nr::TCSETSW | nr::TCSETSF => set_attributes(end, request, arg)?,
        nr::TIOCGWINSZ => {
            let size = tty.size.load(Ordering::Relaxed);
            UserPtr::<u64>::new(arg).write(&size)?;
        }
        nr::TIOCSWINSZ => tty.resize(UserPtr::<u64>::new(arg).read()?),
        // Output is never queued before the other end.
        nr::TIOCOUTQ => put_int(arg, 0)?,
        nr::TIOCSTI => return Err(FsError::Io),
        nr::TIOCSCTTY => tty.set_controlling(end.file(), readable, arg == 1)?,
        _ => return control(end, request, arg),
    }
    Ok(0)
}

/// TCXONC: stops output or lets it go on, or sends STOP or START to the other end.
fn hold_or_send(file: &TtyFile, arg: u64) -> Result<()> {
    let tty = &file.tty;
    let mut wire = Wire::new(tty.wire);
    match arg {
        0 | 1 => {
            change(file, |line| line.set_stopped(arg == 0))?;
            tty.writers.wake_all();
        }
        2 | 3 => change(file, |line| {
            let flow = [cc::VSTOP, cc::VSTART][arg as usize - 2];
            let byte = line.ldisc.termios().cc[flow];
            if byte != 0 {
                line.work(&mut wire, |_, out| out(byte));
            }
        })?,
        _ => return Err(FsError::Invalid),
    }
    wire.flush();
    tty.tell_master();
    Ok(())
}

/// TCFLSH: drops input, output or both.
fn flush(file: &TtyFile, arg: u64) -> Result<()> {
    let tty = &file.tty;
    if arg > 2 {
        return Err(FsError::Invalid);
    }
    change(file, |line| {
        if arg != 1 {
            line.drop_input();
        }
        if arg != 0 {
            line.drop_output();
        }
    })?;
    tty.writers.wake_all();
    tty.tell_master();
    tty.let_master_write();
    Ok(())
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
/// may go on. A flag that is not supported is not set, as reading the settings shows. Nothing has changed if it fails: by job control, the
/// program's memory, or with I/O because the file is cut off.
fn set_attributes(end: End, request: u32, arg: u64) -> Result<()> {
    let tty = end.tty();
    tty.job_control(sig::TTOU)?;
    let mut new = Termios::from_bytes(&UserPtr::<[u8; Termios::SIZE]>::new(arg).read()?);
    new.lflag &= !lflag::EXTPROC;
    let mut line = tty.line.lock();
    if end.is_cut_off(&line) {
        return Err(FsError::Io);
    }
    if request == nr::TCSETSF {
        line.drop_input();
    }
    line.set_termios(new);
    drop(line);
    tty.readers.wake_all();
    tty.writers.wake_all();
    tty.tell_master();
    tty.let_master_write();
    Ok(())
}

/// Requests for job control. Not a terminal: this is not the controlling terminal of the caller's session. Through a master, any process
/// may ask which group and session the terminal controls.
fn control(end: End, request: u32, arg: u64) -> Result<u64> {
    let (tty, me) = (end.tty(), current());
    let p = me.process();
    match request {
        nr::TIOCGPGRP if end.file().is_none() || tty.controls(p) => {
            let pgid = tty.control.lock().foreground();
            UserPtr::<u32>::new(arg).write(&pgid)?;
        }
        nr::TIOCGSID if end.file().is_none() || tty.controls(p) => {
            let sid = tty.control.lock().sid();
            if sid == 0 {
                return Err(FsError::NotTty);
            }
            UserPtr::<u32>::new(arg).write(&sid)?;
        }
        _ if !tty.controls(p) => return Err(FsError::NotTty),
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
        nr::TIOCNOTTY => tty.disassociate(p),
        _ => return Err(FsError::NotTty),
    }
    Ok(0)
}
