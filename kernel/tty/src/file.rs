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

use super::{Line, Tty, Wire, ioctl};

/// Most bytes moved between the line discipline and a program in one hold of the lock.
const PIECE: usize = 256;
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
    /// A file that is being opened now.
    pub fn new(tty: Arc<Tty>) -> TtyFile {
        let hangups = tty.line.lock().hangups;
        TtyFile {
            tty,
            hangups,
            console: None,
        }
    }

    /// A file that is being opened as the console now.
    pub fn console(tty: Arc<Tty>) -> TtyFile {
        let session = current().process().session();
        TtyFile {
            console: Some(session.map(|s| s.id().clone())),
            ..TtyFile::new(tty)
        }
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

    /// Waits while output is stopped (STOP character, TCXONC), and the file is not cut off.
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
        line.ldisc.stopped() && !self.is_cut_off(&line)
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
                    return Step::Done(Ok(self.done));
                }
                line.ldisc.take(&mut self.piece[..want])
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
            let mut wire = Wire::new(self.tty.wire);
            {
                let mut line = self.tty.line.lock();
                if self.is_cut_off(&line) {
                    return if done > 0 { Ok(done) } else { Err(FsError::Io) };
                }
                line.ldisc.output(&piece[..n], &mut |b| wire.push(b));
            }
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
        if line.ldisc.available() > 0 || self.is_deaf(&line) {
            mask |= PollMask::READ;
        }
        if !line.ldisc.stopped() {
            mask |= PollMask::WRITE;
        }
        mask
    }

    fn ioctl(&self, file: &File, request: u32, arg: u64) -> Result<u64> {
        ioctl::ioctl(self, file.readable(), request, arg)
    }
}
