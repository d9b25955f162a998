//! Open files of a terminal.

use alloc::sync::Arc;

use fscore::ldisc::{cc, lflag};
use hal::uio::IoBuf;
use proc::UserThreadExt;
use proc::ids::Id;
use proc::signal::sig;
use task::current::current;
use task::park::{Deadline, Interruptible, ParkError, Step, park};
use task::wait::Waiter;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps};
use vfs::poll::PollMask;

use super::line::{Line, Wire};
use super::master::Master;
use super::terminal::Tty;
use super::{ioctl, pty};

/// Most bytes moved between the line discipline and a program in one hold of the lock.
pub(super) const PIECE: usize = 256;
/// The unit of VTIME in nanoseconds.
const TENTH: u64 = 100_000_000;

/// The state of an open file of a terminal.
pub(super) struct TtyFile {
    /// The terminal. Const.
    pub tty: Arc<Tty>,
    /// How often the terminal had been hung up when the file was opened. Const.
    hangups: u32,
    /// For a file that was opened as the console: the session of the process that opened it. Such a file can still
    /// write messages after the terminal has been hung up. Const.
    console: Option<Option<Id>>,
}

impl TtyFile {
    /// A file that is being opened now. [`close`](FileOps::close) must follow.
    ///
    /// # Errors
    /// Busy: the terminal is exclusive (TIOCEXCL), and the caller is not privileged. I/O: a pseudo-terminal's master is closed, or has locked
    /// it.
    pub fn open(tty: Arc<Tty>) -> Result<TtyFile> {
        tty.admit()?;
        let mut line = tty.line.lock();
        if let Some(master) = &mut line.master {
            master.open_slave()?;
        }
        let hangups = line.hangups;
        drop(line);
        Ok(TtyFile {
            tty,
            hangups,
            console: None,
        })
    }

    /// A file that is being opened as the console now. Errors: those of [`TtyFile::open`].
    pub fn console(tty: Arc<Tty>) -> Result<TtyFile> {
        let session = current().process().session();
        let mut file = TtyFile::open(tty)?;
        file.console = Some(session.map(|s| s.id().clone()));
        Ok(file)
    }

    /// Whether the terminal has been hung up since the file was opened.
    pub fn is_from_before(&self, line: &Line) -> bool {
        line.hangups != self.hangups
    }

    /// Whether the file is cut off: reads find the end of file, writes and requests fail.
    pub fn is_cut_off(&self, line: &Line) -> bool {
        self.is_from_before(line) && self.console.is_none()
    }

    /// Whether the caller gets no input through this file, because the terminal has been hung up since the file was
    /// opened. A file of the console still gets input in two sessions: that of the process that opened it, and the one
    /// that the terminal controls now.
    fn is_deaf(&self, line: &Line) -> bool {
        if !self.is_from_before(line) {
            return false;
        }
        let Some(opener) = &self.console else {
            return true;
        };
        let me = current();
        let p = me.process();
        let opened_it = opener.as_ref().is_some_and(|id| id.number() == p.sid());
        !opened_it && !self.tty.controls(p)
    }

    /// Waits while output is stopped (STOP character, TCXONC), or a master has much to read, and the file is not cut off.
    ///
    /// # Errors
    /// `WouldBlock` instead of the wait, with `nonblocking`; `Interrupted` if a signal came first.
    fn wait_for_output(&self, nonblocking: bool) -> Result<()> {
        if !self.is_held() {
            return Ok(());
        }
        if nonblocking {
            return Err(FsError::WouldBlock);
        }
        let mut file = self;
        park(&mut file, Deadline::Never, Interruptible::Yes, |file, w| {
            w.listen(&file.tty.writers);
            if file.is_held() {
                Step::Wait
            } else {
                Step::Done(())
            }
        })
        .map_err(|_| FsError::Interrupted)
    }

    /// Whether output has to wait. Takes the terminal's lock.
    fn is_held(&self) -> bool {
        let line = self.tty.line.lock();
        !line.can_send() && !self.is_cut_off(&line)
    }

    /// Sends bytes of a program, as many as can be sent now; returns their number. Takes the terminal's lock.
    ///
    /// # Errors
    /// I/O: the file is cut off, or the master is closed.
    fn send(&self, bytes: &[u8]) -> Result<usize> {
        let mut wire = Wire::new(self.tty.wire);
        let mut line = self.tty.line.lock();
        if self.is_cut_off(&line) || line.is_alone() {
            return Err(FsError::Io);
        }
        let mut sent = 0;
        while sent < bytes.len() && line.can_send() {
            let byte = [bytes[sent]];
            line.work(&mut wire, |ldisc, out| ldisc.output(&byte, out));
            sent += 1;
        }
        drop(line);
        wire.flush();
        self.tty.tell_master();
        Ok(sent)
    }
}

/// One read(2) from a terminal, by the thread that owns this value.
struct Reading<'a, 'b> {
    file: &'a TtyFile,
    /// Where the bytes go; the read was of at least one.
    buf: &'a mut IoBuf<'b>,
    /// Bytes moved so far.
    done: usize,
    /// With so many bytes the read is satisfied; 0 if none need be there.
    min: usize,
    /// What is on its way from the line discipline to the program.
    piece: [u8; PIECE],
}

impl Reading<'_, '_> {
    /// Reads with O_NONBLOCK: takes what is there. With VTIME alone, which `waits` says, a read of nothing would wait; with
    /// neither VMIN nor VTIME it has read nothing, as in Linux. The caller holds no lock.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing, where a read without O_NONBLOCK would wait; that of the program's memory.
    fn try_read(&mut self, waits: bool) -> Result<usize> {
        match self.step() {
            Step::Done(Ok(0)) if waits && !self.file.is_deaf(&self.file.tty.line.lock()) => {
                Err(FsError::WouldBlock)
            }
            Step::Done(result) => result,
            Step::Wait if self.done > 0 => Ok(self.done),
            Step::Wait => Err(FsError::WouldBlock),
        }
    }

    /// Reads without O_NONBLOCK: sleeps until the read is satisfied, the terminal is hung up, a signal comes, or VTIME
    /// is over, which is `time` nanoseconds, 0 for no limit. With VTIME alone the timer runs from the start of the
    /// read, and one byte ends it; with VMIN as well, it runs from each byte on. The caller holds no lock.
    ///
    /// # Errors
    /// `Interrupted` if a signal came before any byte; that of the program's memory.
    fn read(&mut self, time: u64) -> Result<usize> {
        let from_start = time > 0 && self.min == 0;
        if from_start {
            self.min = 1;
        }
        loop {
            let deadline = if from_start || time > 0 && self.done > 0 {
                Deadline::after(time)
            } else {
                Deadline::Never
            };
            let before = self.done;
            let ended = park(self, deadline, Interruptible::Yes, |r, w| {
                w.listen(&r.file.tty.readers);
                let had = r.done;
                match r.step() {
                    // A byte came: the timer between bytes starts again.
                    Step::Wait if r.done > had => Step::Done(Err(FsError::WouldBlock)),
                    step => step,
                }
            });
            match ended {
                Ok(Err(FsError::WouldBlock)) if self.done > before => continue,
                Ok(result) => return result,
                Err(_) if self.done > 0 => return Ok(self.done),
                Err(ParkError::Timeout) => return Ok(0),
                Err(ParkError::Signal) => return Err(FsError::Interrupted),
            }
        }
    }

    /// Moves the bytes that are available. `Done` once the read is satisfied, at the end of a line or of the file, or if
    /// the terminal has been hung up or the program's memory fails, which loses the bytes of the piece. Takes the
    /// terminal's lock for one piece at a time, and does not hold it while it writes to the program's memory.
    fn step(&mut self) -> Step<Result<usize>> {
        loop {
            let want = self.buf.remaining().min(PIECE);
            let taken = {
                let mut line = self.file.tty.line.lock();
                if self.file.is_deaf(&line) {
                    // As in Linux, a read that waits when the master is closed fails; a later one finds the end of the file.
                    let failed = line.is_alone() && self.done == 0;
                    return Step::Done(if failed {
                        Err(FsError::Io)
                    } else {
                        Ok(self.done)
                    });
                }
                let had_room = line.ldisc.has_room();
                let taken = line.ldisc.take(&mut self.piece[..want]);
                let frees = !had_room && line.ldisc.has_room();
                drop(line);
                if frees {
                    self.file.tty.let_master_write();
                }
                taken
            };
            let Some((n, ended)) = taken else {
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
            if self.buf.remaining() == 0 || ended {
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

impl FileOps for TtyFile {
    /// 0 after a hang-up, before job control is asked, and at the end of the file. The errors are those of
    /// `Tty::job_control`, `try_read` and `Reading::read`.
    fn read(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        if buf.remaining() == 0 {
            return Ok(0);
        }
        let t = {
            let line = self.tty.line.lock();
            if self.is_deaf(&line) {
                return Ok(0);
            }
            *line.ldisc.termios()
        };
        self.tty.job_control(sig::TTIN)?;
        let (min, time) = if t.canonical() {
            (1, 0)
        } else {
            let min = usize::from(t.cc[cc::VMIN]).min(buf.remaining());
            (min, u64::from(t.cc[cc::VTIME]) * TENTH)
        };
        let mut r = Reading {
            file: self,
            buf,
            done: 0,
            min,
            piece: [0; PIECE],
        };
        if file.nonblocking() {
            r.try_read(min == 0 && time > 0)
        } else {
            r.read(time)
        }
    }

    /// Bytes are sent at once, a piece at a time, so pieces of several writers may alternate. An error, only if nothing was
    /// sent: I/O if the file is cut off, those of `Tty::job_control` (with TOSTOP) and `wait_for_output`, and that of the
    /// program's memory.
    fn write(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        let held_back = {
            let line = self.tty.line.lock();
            if self.is_cut_off(&line) {
                return Err(FsError::Io);
            }
            line.ldisc.termios().lflag & lflag::TOSTOP != 0
        };
        if held_back {
            self.tty.job_control(sig::TTOU)?;
        }
        let mut piece = [0; PIECE];
        let mut done = 0;
        while buf.remaining() > 0 {
            if let Err(e) = self.wait_for_output(file.nonblocking()) {
                return if done > 0 { Ok(done) } else { Err(e) };
            }
            let n = match buf.take(&mut piece) {
                Ok(n) => n,
                Err(e) if done == 0 => return Err(e.into()),
                Err(_) => break,
            };
            let mut sent = 0;
            while sent < n {
                let more = self.send(&piece[sent..n]);
                sent += more.unwrap_or(0);
                let waited = match more {
                    Ok(_) if sent < n => self.wait_for_output(file.nonblocking()),
                    more => more.map(|_| ()),
                };
                match waited {
                    Err(e) if done + sent == 0 => return Err(e),
                    Err(_) => return Ok(done + sent),
                    Ok(()) => {}
                }
            }
            done += n;
        }
        Ok(done)
    }

    fn seekable(&self) -> bool {
        false
    }

    fn poll(&self, _: &File, waiter: Option<&mut Waiter>) -> PollMask {
        if let Some(w) = waiter {
            // A hang-up wakes both queues.
            w.listen(&self.tty.readers);
            if w.wants(PollMask::WRITE.0) {
                w.listen(&self.tty.writers);
            }
        }
        let line = self.tty.line.lock();
        if self.is_cut_off(&line) {
            return PollMask::ALWAYS | PollMask::ERR | PollMask::HUP;
        }
        let mut mask = PollMask::NONE;
        if line.ldisc.is_readable() || self.is_deaf(&line) {
            mask |= PollMask::READ;
        }
        if !line.ldisc.stopped() && line.master.as_ref().is_none_or(Master::has_room) {
            mask |= PollMask::WRITE;
        }
        mask
    }

    fn close(&self, _: &File) {
        pty::close_slave(&self.tty);
    }

    fn sends_signals(&self) -> bool {
        true
    }

    /// A hang-up ends it, as in Linux.
    fn listen_for_signals(&self, _: &File, waiter: &mut Waiter) {
        waiter.listen(&self.tty.readers);
    }

    /// The foreground group; without one, the caller.
    fn default_owner(&self) -> Option<i32> {
        let group = self.tty.control.lock().foreground() as i32;
        Some(if group > 0 {
            -group
        } else {
            current().process().pid() as i32
        })
    }

    fn ioctl(&self, file: &File, request: u32, arg: u64) -> Result<u64> {
        ioctl::ioctl(self, file.readable(), request, arg)
    }
}
