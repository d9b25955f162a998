//! Pseudo-terminals: the open files of masters, and the opens of both ends.
//!
//! Guarantee: what the terminal sends is read from the master, in order; what is written to the master passes through the line discipline.
//! When the master is closed, the terminal loses its name and hangs up; when the last file of the terminal is closed, the master reads
//! what is left and then fails with an I/O error until the terminal is opened again. Mechanism: doc/terminals.md.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;

use cred::MemoryCharge;
use fscore::ldisc::Ldisc;
use hal::uio::IoBuf;
use proc::group::Terminal;
use task::current::current;
use task::park::{Deadline, Interruptible, ParkError, Step, park};
use task::wait::{WaitQueue, Waiter};
use vfs::dentry::Dentry;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps, FileRef, Kind, o};
use vfs::place::Path;
use vfs::poll::PollMask;

use super::file::PIECE;
use super::master::Master;
use super::pair::Pair;
use super::pts::Pts;
use super::terminal::Tty;
use super::{console, ioctl};

/// Bytes charged for a pseudo-terminal.
const BYTES: usize =
    size_of::<Tty>() + size_of::<Ldisc>() + Master::BYTES + size_of::<vfs::inode::Inode>();

/// Opens a new master among `pts`; its terminal is locked.
///
/// # Errors
/// `NoSpace` if there are too many; `NoMemory`.
pub fn open_master(pts: &Arc<Pts>) -> Result<Kind> {
    mem::admit().map_err(|_| FsError::NoMemory)?;
    let number = pts.claim()?;
    let (index, device) = (number.index, number.device());
    let pair = Pair {
        readers: WaitQueue::new(),
        writers: WaitQueue::new(),
        pts: pts.clone(),
        index,
        _memory: MemoryCharge::new(current().payer(), BYTES),
    };
    let tty = Tty::new(device, |_| (), Some(Master::new(number)?), Some(pair));
    let tty = Arc::new(tty.ok_or(FsError::NoMemory)?);
    tty.line
        .lock()
        .set_termios(fscore::ldisc::Termios::fresh_pseudo());
    pts.name(index, tty.clone(), &current().cred());
    Ok(Kind::Other(Box::new(MasterFile { tty })))
}

/// Opens the terminal among `pts` whose node is that of `path`, as [`console::open_line`].
///
/// # Errors
/// I/O: the master is closed, or has locked the terminal. Busy, as for [`console::open_line`].
pub fn open_slave(pts: &Pts, path: &Path, flags: u32) -> Result<Kind> {
    let tty: Arc<dyn Any + Send + Sync> = pts.terminal(&path.dentry.inode).ok_or(FsError::Io)?;
    console::open_file(tty.downcast().map_err(|_| FsError::Io)?, flags)
}

/// A file of the terminal has been closed.
pub(super) fn close_slave(tty: &Tty) {
    let mut line = tty.line.lock();
    let number = line.master.as_mut().and_then(Master::close_slave);
    drop(line);
    drop(number);
    tty.tell_master();
    tty.let_master_write();
}

/// The open file of a master.
pub struct MasterFile {
    /// Constant.
    pub(super) tty: Arc<Tty>,
}

/// The master of an open file, if it is one.
pub fn master(file: &FileRef) -> Option<&MasterFile> {
    file.ops_as()
}

impl MasterFile {
    /// The number of the terminal.
    pub(super) fn index(&self) -> u32 {
        self.tty.pair.as_ref().map_or(0, |pair| pair.index)
    }

    /// Forbids opens of the terminal, or allows them (TIOCSPTLCK). Takes the terminal's lock.
    ///
    /// # Errors
    /// None for a master.
    pub fn set_locked(&self, locked: bool) -> Result<()> {
        self.with(|master| master.locked = locked)
    }

    /// Opens the terminal (TIOCGPTPEER), whatever the permissions of its node. `root` is the root of a mount of a devpts, and `pts` are the
    /// terminals there.
    ///
    /// # Errors
    /// `NoDevice` if this is another devpts; `NoMemory`; those of [`open_slave`].
    pub fn open_peer(&self, root: &Path, pts: &Arc<Pts>, flags: u32) -> Result<FileRef> {
        let flags = flags & (o::ACCMODE | o::SETFL | o::NOCTTY);
        let pair = self.tty.pair.as_ref().ok_or(FsError::Io)?;
        mem::admit().map_err(|_| FsError::NoMemory)?;
        if !Arc::ptr_eq(pts, &pair.pts) {
            return Err(FsError::NoDevice);
        }
        let inode = pts.node(pair.index).ok_or(FsError::Io)?;
        let name = alloc::format!("{}", pair.index);
        let up = Some(root.dentry.clone());
        let dentry = Dentry::made(up, name.as_bytes(), inode, 0, current().payer());
        let path = Path {
            mount: root.mount.clone(),
            dentry,
        };
        let kind = open_slave(pts, &path, flags)?;
        Ok(File::open(Some(path), kind, flags))
    }

    /// Calls `f` with the state of the master, under the terminal's lock.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut Master) -> R) -> Result<R> {
        let mut line = self.tty.line.lock();
        Ok(f(line.master.as_mut().ok_or(FsError::Io)?))
    }

    /// Whether a write would not wait. Takes the terminal's lock.
    fn may_write(&self) -> bool {
        let line = self.tty.line.lock();
        line.ldisc.takes_input() && !line.master.as_ref().is_some_and(|m| m.held)
    }

    /// Waits until the terminal takes input.
    ///
    /// # Errors
    /// `WouldBlock` instead of the wait, with `nonblocking`; `Interrupted` if a signal came first.
    fn wait_for_room(&self, nonblocking: bool) -> Result<()> {
        if self.may_write() {
            return Ok(());
        }
        if nonblocking {
            return Err(FsError::WouldBlock);
        }
        let mut file = self;
        park(&mut file, Deadline::Never, Interruptible::Yes, |file, w| {
            if let Some(pair) = &file.tty.pair {
                w.listen(&pair.writers);
            }
            match file.may_write() {
                true => Step::Done(()),
                false => Step::Wait,
            }
        })
        .map_err(|_| FsError::Interrupted)
    }
}

/// One read(2) from a master, of at least one byte.
struct Reading<'a, 'b> {
    file: &'a MasterFile,
    buf: &'a mut IoBuf<'b>,
}

impl Reading<'_, '_> {
    /// The next bytes for the read, of which `done` have been moved; in packet mode the first one tells what follows. `None` if there is
    /// nothing to add. Takes the terminal's lock.
    fn next(&self, done: usize, piece: &mut [u8; PIECE]) -> Result<Option<(usize, bool)>> {
        let want = self.buf.remaining().min(PIECE);
        let mut line = self.file.tty.line.lock();
        let master = line.master.as_mut().ok_or(FsError::Io)?;
        if master.has_status() {
            if done > 0 {
                return Ok(None);
            }
            piece[0] = master.take_status();
            return Ok(Some((1, true)));
        }
        if master.len() == 0 {
            return match master.left && done == 0 {
                true => Err(FsError::Io),
                false => Ok(None),
            };
        }
        let header = usize::from(master.packet && done == 0);
        piece[..header].fill(0);
        let (n, frees) = master.take(&mut piece[header..want]);
        drop(line);
        if frees {
            self.file.tty.writers.wake_all();
        }
        Ok(Some((header + n, false)))
    }

    /// Moves what there is.
    fn step(&mut self) -> Step<Result<usize>> {
        let mut piece = [0; PIECE];
        let mut done = 0;
        while self.buf.remaining() > 0 {
            let (n, whole) = match self.next(done, &mut piece) {
                Ok(Some(next)) => next,
                Ok(None) if done == 0 => return Step::Wait,
                Ok(None) => break,
                Err(e) => return Step::Done(Err(e)),
            };
            match self.buf.put(&piece[..n]) {
                Ok(put) => done += put,
                Err(e) if done == 0 => return Step::Done(Err(e.into())),
                Err(_) => break,
            }
            if whole {
                break;
            }
        }
        Step::Done(Ok(done))
    }
}

impl FileOps for MasterFile {
    /// An error, only if nothing was read: I/O if no file of the terminal is open any more, `WouldBlock`, `Interrupted`, that of the
    /// program's memory, which loses a piece.
    fn read(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        if buf.remaining() == 0 {
            return Ok(0);
        }
        let mut reading = Reading { file: self, buf };
        if file.nonblocking() {
            return match reading.step() {
                Step::Done(result) => result,
                Step::Wait => Err(FsError::WouldBlock),
            };
        }
        let (deadline, signals) = (Deadline::Never, Interruptible::Yes);
        park(&mut reading, deadline, signals, |reading, w| {
            if let Some(pair) = &reading.file.tty.pair {
                w.listen(&pair.readers);
            }
            reading.step()
        })
        .map_err(|why| match why {
            ParkError::Signal | ParkError::Timeout => FsError::Interrupted,
        })?
    }

    /// An error, only if nothing was taken: `WouldBlock`, `Interrupted`, and that of the program's memory.
    fn write(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        let mut piece = [0; PIECE];
        let mut done = 0;
        while buf.remaining() > 0 {
            // A line that is being edited takes any number of bytes, so the loop may be long.
            if done > 0 && current().kill_pending() {
                break;
            }
            if let Err(e) = self.wait_for_room(file.nonblocking()) {
                return if done > 0 { Ok(done) } else { Err(e) };
            }
            let n = match buf.take(&mut piece) {
                Ok(n) => n,
                Err(e) if done == 0 => return Err(e.into()),
                Err(_) => break,
            };
            let mut taken = 0;
            while taken < n {
                let more = self.tty.arrive(&piece[taken..n]);
                taken += more;
                if more == 0
                    && let Err(e) = self.wait_for_room(file.nonblocking())
                {
                    return match done + taken {
                        0 => Err(e),
                        done => Ok(done),
                    };
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
        if let (Some(w), Some(pair)) = (waiter, &self.tty.pair) {
            w.listen(&pair.readers);
            if w.wants(PollMask::WRITE.0) {
                w.listen(&pair.writers);
            }
        }
        let line = self.tty.line.lock();
        let Some(master) = &line.master else {
            return PollMask::HUP;
        };
        let mut mask = PollMask::NONE;
        if master.len() > 0 {
            mask |= PollMask::READ;
        }
        if master.has_status() {
            mask |= PollMask::READ | PollMask::PRI;
        }
        if master.left {
            mask |= PollMask::HUP;
        }
        if line.ldisc.has_room() && !master.held {
            mask |= PollMask::WRITE;
        }
        mask
    }

    fn ioctl(&self, file: &File, request: u32, arg: u64) -> Result<u64> {
        ioctl::of_master(self, file.readable(), request, arg)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    /// The terminal loses its name, and hangs up.
    fn close(&self, _: &File) {
        if let Some(pair) = &self.tty.pair {
            pair.pts.withdraw(pair.index);
        }
        let number = self.tty.line.lock().master.as_mut().and_then(Master::close);
        self.tty.hang_up();
        // Not before: sessions and files name the terminal by its number until then.
        drop(number);
    }
}
