//! signalfd(2): signals that are read as files.
//!
//! Guarantee: a read takes signals of the file's set that are pending for the calling thread or its process, as sigtimedwait(2) does, whichever process has opened
//! the file; poll(2) tells whether the caller has one. Mechanism: once such a file was looked at in a process, each
//! signal that becomes pending for it or one of its threads wakes a queue (`proc::signal::arrivals`).

use alloc::boxed::Box;
use core::any::Any;
use ksync::atomic::{AtomicU64, Ordering::Relaxed};

use hal::uio::IoBuf;
use proc::UserThreadExt;
use proc::signal::{self, SigFields, SigInfo, SigSet};
use task::current::current;
use task::park::{Deadline, Interruptible, Step, park};
use task::wait::Waiter;
use vfs::anon_inode::AnonInode;
use vfs::dynamic::Text;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps, FileRef, Kind, o};
use vfs::poll::PollMask;
use vfs::put;

/// Bytes of a struct signalfd_siginfo.
const LEN: usize = 128;

/// The open file of a set of signals.
pub struct SignalFile {
    /// Atomic.
    set: AtomicU64,
    inode: AnonInode,
}

/// Opens a file for the signals of `set`, with O_NONBLOCK if `flags` has that.
///
/// # Errors
/// `NoMemory`.
pub fn make(set: SigSet, flags: u32) -> Result<FileRef> {
    mem::admit().map_err(|_| FsError::NoMemory)?;
    let file = SignalFile {
        set: AtomicU64::new(set.0),
        inode: AnonInode::new(),
    };
    let flags = flags & o::NONBLOCK | o::RDWR;
    Ok(File::open(None, Kind::Other(Box::new(file)), flags))
}

/// Replaces the set of an open file. Wakes the readers of the calling process.
///
/// # Errors
/// `Invalid` if the file is of another kind.
pub fn set(file: &FileRef, set: SigSet) -> Result<()> {
    let file: &SignalFile = file.ops_as().ok_or(FsError::Invalid)?;
    file.set.store(set.0, Relaxed);
    signal::arrivals(current().process()).wake_all();
    Ok(())
}

/// A signal as a struct signalfd_siginfo.
fn bytes(info: SigInfo) -> [u8; LEN] {
    let mut raw = [0; LEN];
    let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &u32::from(info.signo).to_ne_bytes());
    put(8, &info.code.to_ne_bytes());
    match info.fields {
        SigFields::None => {}
        SigFields::Sender { pid, uid, value } => {
            put(12, &pid.to_ne_bytes());
            put(16, &uid.to_ne_bytes());
            put(44, &(value as u32).to_ne_bytes());
            put(48, &value.to_ne_bytes());
        }
        SigFields::Timer {
            id, overrun, value, ..
        } => {
            put(24, &id.to_ne_bytes());
            put(32, &overrun.to_ne_bytes());
            put(44, &(value as u32).to_ne_bytes());
            put(48, &value.to_ne_bytes());
        }
        SigFields::Child {
            pid,
            uid,
            status,
            utime,
            stime,
        } => {
            put(12, &pid.to_ne_bytes());
            put(16, &uid.to_ne_bytes());
            put(40, &status.to_ne_bytes());
            put(56, &utime.to_ne_bytes());
            put(64, &stime.to_ne_bytes());
        }
        SigFields::Poll { band, fd } => {
            put(20, &fd.to_ne_bytes());
            put(28, &(band as u32).to_ne_bytes());
        }
        SigFields::Fault { addr } => put(72, &addr.to_ne_bytes()),
    }
    raw
}

impl SignalFile {
    fn set(&self) -> SigSet {
        SigSet(self.set.load(Relaxed))
    }

    /// Takes a signal of the set; sleeps for one if `waits`.
    ///
    /// # Errors
    /// `WouldBlock`; `Interrupted` if another signal came first.
    fn take(&self, waits: bool) -> Result<SigInfo> {
        if let Some(info) = signal::take(&current(), self.set()) {
            return Ok(info);
        }
        if !waits {
            return Err(FsError::WouldBlock);
        }
        let mut me = self;
        let (deadline, signals) = (Deadline::Never, Interruptible::Yes);
        park(&mut me, deadline, signals, |me, w| {
            let caller = current();
            w.listen(signal::arrivals(caller.process()));
            signal::take(&caller, me.set()).map_or(Step::Wait, Step::Done)
        })
        .map_err(|_| FsError::Interrupted)
    }
}

impl FileOps for SignalFile {
    /// Reads as many signals as fit and are pending, at least one.
    fn read(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        if buf.remaining() < LEN {
            return Err(FsError::Invalid);
        }
        let mut done = 0;
        while buf.remaining() >= LEN {
            let info = match self.take(done == 0 && !file.nonblocking()) {
                Ok(info) => info,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            };
            // As in Linux, a signal that cannot be copied is lost.
            match buf.put(&bytes(info)) {
                Ok(LEN) => done += LEN,
                _ if done > 0 => break,
                _ => return Err(FsError::Fault),
            }
        }
        Ok(done)
    }

    fn seekable(&self) -> bool {
        false
    }

    fn seeks_in_vain(&self) -> bool {
        true
    }

    fn poll(&self, _: &File, waiter: Option<&mut Waiter>) -> PollMask {
        let me = current();
        if let Some(waiter) = waiter {
            waiter.listen(signal::arrivals(me.process()));
        }
        if signal::pending(&me).0 & self.set().0 != 0 {
            PollMask::READ
        } else {
            PollMask::NONE
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn anon_inode(&self) -> Option<&AnonInode> {
        Some(&self.inode)
    }

    fn print_info(&self, _: &File, out: &mut Text) -> Result<()> {
        put!(out, "sigmask:\t{:016x}\n", self.set().0);
        Ok(())
    }

    fn label(&self) -> &'static str {
        "anon_inode:[signalfd]"
    }
}
