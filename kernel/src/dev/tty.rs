//! The console terminal.
//!
//! A kernel thread takes bytes from the serial line and runs the line
//! discipline ([`fscore::ldisc`]): it echoes, edits, and sends signals to the foreground process
//! group, none of which an interrupt handler may do. Readers wait for the discipline to have
//! something for them. Job control follows termios(3) and tty_ioctl(4).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fscore::ldisc::{Ldisc, Termios, TtySignal, cc, lflag};
use ksync::Mutex;

use crate::arch::console;
use crate::fs::error::{FsError, Result};
use crate::fs::file::{File, FileOps, Kind, o};
use crate::fs::poll::PollMask;
use crate::kern::group::Terminal;
use crate::kern::park::{Deadline, Interruptible, Step, park};
use crate::kern::process::Process;
use crate::kern::signal::{self, sig};
use crate::kern::wait::{WaitQueue, Waiter};
use crate::kern::{current, ids};
use crate::uaccess::UserPtr;
use crate::uio::IoBuf;

ksync::lock_class!(pub TtyLock, "terminal", rank = 56);

/// The handler of an ignored signal.
const SIG_IGN: u64 = 1;

/// The console terminal.
struct Tty {
    ldisc: Mutex<Ldisc, TtyLock>,
    /// Foreground process group, 0 for none. Atomic.
    foreground: AtomicU32,
    /// Session that it controls, 0 for none. Atomic.
    session: AtomicU32,
    /// Rows, columns, and pixels, as struct winsize. Atomic.
    size: AtomicU64,
    readers: WaitQueue,
    /// Writers while output is stopped.
    writers: WaitQueue,
}

static TTY: Tty = Tty {
    ldisc: Mutex::new(Ldisc::new()),
    foreground: AtomicU32::new(0),
    session: AtomicU32::new(0),
    size: AtomicU64::new(24 | 80 << 16),
    readers: WaitQueue::new(),
    writers: WaitQueue::new(),
};

/// Bytes gathered for one write to the wire.
struct Wire {
    bytes: [u8; 128],
    len: usize,
}

impl Wire {
    const fn new() -> Self {
        Wire {
            bytes: [0; 128],
            len: 0,
        }
    }

    fn push(&mut self, b: u8) {
        if self.len == self.bytes.len() {
            self.flush();
        }
        self.bytes[self.len] = b;
        self.len += 1;
    }

    fn flush(&mut self) {
        console::write_bytes(&self.bytes[..self.len]);
        self.len = 0;
    }
}

/// Takes a byte from the serial line; called by the console's thread, which may sleep.
pub fn input(byte: u8) {
    TTY.arrive(byte);
}

impl Tty {
    /// Runs the discipline on one byte from the wire.
    fn arrive(&self, byte: u8) {
        let mut wire = Wire::new();
        let mut ldisc = self.ldisc.lock();
        let was_stopped = ldisc.stopped();
        let raised = ldisc.input(byte, &mut |b| wire.push(b));
        let ready = ldisc.available() > 0;
        let released = was_stopped && !ldisc.stopped();
        drop(ldisc);
        wire.flush();
        if let Some(s) = raised {
            let signo = match s {
                TtySignal::Interrupt => sig::INT,
                TtySignal::Quit => sig::QUIT,
                TtySignal::Stop => sig::TSTP,
            };
            self.signal_foreground(signo);
        }
        if ready {
            self.readers.wake_all();
        }
        if released {
            self.writers.wake_all();
        }
    }

    fn signal_foreground(&self, signo: u8) {
        let pgid = self.foreground.load(Ordering::Acquire);
        if pgid != 0 {
            signal::signal_pgrp(pgid, signo);
        }
    }

    /// Whether the terminal controls the session of `p`.
    fn controls(&self, p: &Process) -> bool {
        let sid = self.session.load(Ordering::Acquire);
        sid != 0 && sid == p.sid()
    }

    /// Stops a background process that uses its terminal, unless it is not to be stopped.
    ///
    /// `signo` is SIGTTIN or SIGTTOU. `Ok` if the process may go on.
    fn job_control(&self, signo: u8) -> Result<()> {
        let me = current();
        let p = me.process();
        let front = self.foreground.load(Ordering::Acquire);
        if !self.controls(p) || front == 0 || p.pgid() == front {
            return Ok(());
        }
        let quiet = me.blocked().has(signo) || signal::action(p, signo).handler == SIG_IGN;
        let Some(group) = p.group() else {
            return Err(FsError::Io);
        };
        if signo == sig::TTIN {
            if quiet || group.is_orphaned() {
                return Err(FsError::Io);
            }
        } else {
            if quiet {
                return Ok(());
            }
            if group.is_orphaned() {
                return Err(FsError::Io);
            }
        }
        signal::signal_pgrp(group.pgid(), signo);
        Err(FsError::Interrupted)
    }

    /// Takes input for a reader who wants `min` bytes in raw mode.
    fn take(&self, out: &mut [u8]) -> Option<usize> {
        self.ldisc.lock().take(out)
    }

    /// Makes the terminal the controlling one of the caller's session, as `TIOCSCTTY`.
    fn set_controlling(&self, steal: bool) -> Result<()> {
        let me = current();
        let p = me.process();
        if p.sid() != p.pid() {
            return Err(FsError::Perm);
        }
        let session = p.session().ok_or(FsError::Perm)?;
        if self.controls(p) {
            return Ok(());
        }
        if session.terminal().is_some() {
            return Err(FsError::Perm);
        }
        let free = self
            .session
            .compare_exchange(0, p.sid(), Ordering::AcqRel, Ordering::Acquire);
        if free.is_err() {
            let gone = ids::find_process(self.session.load(Ordering::Acquire)).is_none();
            if !(gone || steal && p.cred().privileged()) {
                return Err(FsError::Perm);
            }
            self.session.store(p.sid(), Ordering::Release);
        }
        self.foreground.store(p.pgid(), Ordering::Release);
        session.set_terminal(Some(handle()));
        Ok(())
    }
}

/// What a session holds of its controlling terminal.
struct Handle;

fn handle() -> Terminal {
    Arc::new(Handle)
}

/// The leader of the session that has this terminal has exited: the foreground group is told by
/// SIGHUP and SIGCONT, and the terminal is free.
pub fn session_leader_exited(_terminal: &Terminal, sid: u32) {
    if TTY
        .session
        .compare_exchange(sid, 0, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
    {
        TTY.signal_foreground(sig::HUP);
        TTY.signal_foreground(sig::CONT);
        TTY.foreground.store(0, Ordering::Release);
    }
}

/// Gives the terminal up, as `TIOCNOTTY`. Only a leader's wish has an effect for the session.
fn disassociate(p: &Process) {
    if p.pid() == p.sid()
        && let Some(session) = p.session()
        && let Some(terminal) = session.set_terminal(None)
    {
        session_leader_exited(&terminal, p.sid());
    }
}

/// The foreground group and device number for /proc/PID/stat: -1 and 0 without a terminal.
pub fn shown_to(p: &Process) -> (u64, i64) {
    if TTY.controls(p) {
        (
            super::number(4, 64),
            i64::from(TTY.foreground.load(Ordering::Relaxed)),
        )
    } else {
        (0, -1)
    }
}

/// Opens the console. A session leader without a terminal gets it, unless `O_NOCTTY` is given.
pub fn open_console(flags: u32) -> Kind {
    if flags & o::NOCTTY == 0 {
        // Not being entitled to it is no error of open.
        let _ = TTY.set_controlling(false);
    }
    Kind::Device(&Console)
}

/// Opens the caller's controlling terminal.
pub fn open_own() -> Result<Kind> {
    if TTY.controls(current().process()) {
        Ok(Kind::Device(&Console))
    } else {
        Err(FsError::NoDevAddr)
    }
}

/// The operations of the console's files.
struct Console;

/// Bytes moved between the discipline and a program in one hold of the lock.
const PIECE: usize = 256;

struct Reading<'a, 'b> {
    buf: &'a mut IoBuf<'b>,
    done: usize,
    min: usize,
    piece: [u8; PIECE],
}

impl Reading<'_, '_> {
    /// Moves what is there; `Done` once the read is satisfied.
    fn step(&mut self) -> Step<Result<usize>> {
        loop {
            let want = self.buf.remaining().min(PIECE);
            let Some(n) = TTY.take(&mut self.piece[..want]) else {
                break;
            };
            if n == 0 {
                return Step::Done(Ok(self.done));
            }
            match self.buf.put(&self.piece[..n]) {
                Ok(put) => self.done += put,
                Err(e) if self.done == 0 => return Step::Done(Err(e.into())),
                Err(_) => return Step::Done(Ok(self.done)),
            }
            let line = TTY.ldisc.lock().termios().canonical();
            if self.buf.remaining() == 0 || line && (n < want || self.piece[n - 1] == b'\n') {
                return Step::Done(Ok(self.done));
            }
        }
        if self.done >= self.min {
            Step::Done(Ok(self.done))
        } else {
            Step::Wait
        }
    }
}

impl FileOps for Console {
    fn read(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        if buf.remaining() == 0 {
            return Ok(0);
        }
        TTY.job_control(sig::TTIN)?;
        let t = *TTY.ldisc.lock().termios();
        let (min, time) = (t.cc[cc::VMIN] as usize, u64::from(t.cc[cc::VTIME]));
        let min = if t.canonical() {
            1
        } else {
            min.min(buf.remaining())
        };
        // With VTIME alone the timer runs from the start; with VMIN too, from each byte on.
        let tenth = 100_000_000;
        let mut r = Reading {
            buf,
            done: 0,
            min,
            piece: [0; PIECE],
        };
        if file.nonblocking() {
            return match r.step() {
                Step::Done(Ok(0)) if !t.canonical() => Err(FsError::WouldBlock),
                Step::Done(result) => result,
                Step::Wait if r.done > 0 => Ok(r.done),
                Step::Wait => Err(FsError::WouldBlock),
            };
        }
        loop {
            let timed = !t.canonical() && time > 0 && (min == 0 || r.done > 0);
            let deadline = if timed {
                Deadline::after(time * tenth)
            } else {
                Deadline::Never
            };
            let before = r.done;
            if timed && min == 0 {
                r.min = 1;
            }
            let ended = park(&mut r, deadline, Interruptible::Yes, |r, w| {
                w.listen(&TTY.readers);
                let had = r.done;
                match r.step() {
                    // A byte came: the timer between bytes starts again.
                    Step::Wait if r.done > had => Step::Done(Err(FsError::WouldBlock)),
                    step => step,
                }
            });
            match ended {
                Ok(Err(FsError::WouldBlock)) if r.done > before => continue,
                Ok(result) => return result,
                Err(_) if r.done > 0 => return Ok(r.done),
                Err(crate::kern::park::ParkError::Timeout) => return Ok(0),
                Err(crate::kern::park::ParkError::Signal) => return Err(FsError::Interrupted),
            }
        }
    }

    fn write(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        if TTY.ldisc.lock().termios().lflag & lflag::TOSTOP != 0 {
            TTY.job_control(sig::TTOU)?;
        }
        let mut piece = [0; PIECE];
        let mut done = 0;
        while buf.remaining() > 0 {
            if let Err(e) = wait_for_output(file.nonblocking()) {
                return if done > 0 { Ok(done) } else { Err(e) };
            }
            let n = match buf.take(&mut piece) {
                Ok(n) => n,
                Err(e) if done == 0 => return Err(e.into()),
                Err(_) => break,
            };
            let mut wire = Wire::new();
            TTY.ldisc.lock().output(&piece[..n], &mut |b| wire.push(b));
            wire.flush();
            done += n;
        }
        Ok(done)
    }

    fn seekable(&self) -> bool {
        false
    }

    fn poll(&self, _: &File, waiter: Option<&mut Waiter>) -> PollMask {
        if let Some(w) = waiter {
            w.listen(&TTY.readers);
            w.listen(&TTY.writers);
        }
        let l = TTY.ldisc.lock();
        let mut mask = PollMask::NONE;
        if l.available() > 0 {
            mask |= PollMask::READ;
        }
        if !l.stopped() {
            mask |= PollMask::WRITE;
        }
        mask
    }

    fn ioctl(&self, _: &File, request: u32, arg: u64) -> Result<u64> {
        ioctl(request, arg)
    }
}

/// Waits while output is held by STOP.
fn wait_for_output(nonblocking: bool) -> Result<()> {
    if !TTY.ldisc.lock().stopped() {
        return Ok(());
    }
    if nonblocking {
        return Err(FsError::WouldBlock);
    }
    park(&mut (), Deadline::Never, Interruptible::Yes, |(), w| {
        w.listen(&TTY.writers);
        if TTY.ldisc.lock().stopped() {
            Step::Wait
        } else {
            Step::Done(())
        }
    })
    .map_err(|_| FsError::Interrupted)
}

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
}

fn ioctl(request: u32, arg: u64) -> Result<u64> {
    match request {
        nr::TCGETS => {
            let bytes = TTY.ldisc.lock().termios().to_bytes();
            UserPtr::<[u8; Termios::SIZE]>::new(arg).write(&bytes)?;
        }
        nr::TCSETS | nr::TCSETSW | nr::TCSETSF => {
            TTY.job_control(sig::TTOU)?;
            let new = Termios::from_bytes(&UserPtr::<[u8; Termios::SIZE]>::new(arg).read()?);
            let mut ldisc = TTY.ldisc.lock();
            if request == nr::TCSETSF {
                ldisc.flush();
            }
            ldisc.set_termios(new);
            drop(ldisc);
            TTY.readers.wake_all();
            TTY.writers.wake_all();
        }
        // Output is written as it comes, so it has always drained; no break can be sent.
        nr::TCSBRK | nr::TCSBRKP => TTY.job_control(sig::TTOU)?,
        nr::TCXONC => match arg {
            0 | 1 => {
                TTY.ldisc.lock().set_stopped(arg == 0);
                TTY.writers.wake_all();
            }
            2 | 3 => {}
            _ => return Err(FsError::Invalid),
        },
        nr::TCFLSH => match arg {
            0 | 2 => TTY.ldisc.lock().flush(),
            1 => {}
            _ => return Err(FsError::Invalid),
        },
        nr::TIOCGWINSZ => {
            let size = TTY.size.load(Ordering::Relaxed);
            UserPtr::<u64>::new(arg).write(&size)?;
        }
        nr::TIOCSWINSZ => {
            let new = UserPtr::<u64>::new(arg).read()?;
            if TTY.size.swap(new, Ordering::Relaxed) != new {
                TTY.signal_foreground(sig::WINCH);
            }
        }
        nr::FIONREAD => {
            let n = TTY.ldisc.lock().available() as i32;
            UserPtr::<i32>::new(arg).write(&n)?;
        }
        nr::TIOCOUTQ => UserPtr::<i32>::new(arg).write(&0)?,
        nr::TIOCEXCL | nr::TIOCNXCL => {}
        _ => return control(request, arg),
    }
    Ok(0)
}

/// The requests of job control.
fn control(request: u32, arg: u64) -> Result<u64> {
    let me = current();
    let p = me.process();
    match request {
        nr::TIOCSCTTY => TTY.set_controlling(arg == 1)?,
        _ if !TTY.controls(p) => return Err(FsError::NotTty),
        nr::TIOCGPGRP => {
            let pgid = TTY.foreground.load(Ordering::Acquire);
            UserPtr::<u32>::new(arg).write(&pgid)?;
        }
        nr::TIOCSPGRP => {
            TTY.job_control(sig::TTOU)?;
            let pgid = UserPtr::<i32>::new(arg).read()?;
            let pgid = u32::try_from(pgid).map_err(|_| FsError::Invalid)?;
            let group = ids::find_group(pgid).ok_or(FsError::NoProcess)?;
            if group.session().sid() != p.sid() {
                return Err(FsError::Perm);
            }
            TTY.foreground.store(pgid, Ordering::Release);
        }
        nr::TIOCGSID => {
            let sid = TTY.session.load(Ordering::Acquire);
            UserPtr::<u32>::new(arg).write(&sid)?;
        }
        nr::TIOCNOTTY => disassociate(p),
        _ => return Err(FsError::NotTty),
    }
    Ok(0)
}
