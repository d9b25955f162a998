//! The open file of an instance.

use alloc::sync::Arc;
use core::any::Any;

use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use task::park::{Deadline, Interruptible, Step, park};
use task::wait::Waiter;
use vfs::anon_inode::AnonInode;
use vfs::dynamic::Text;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps};
use vfs::poll::PollMask;
use vfs::put;

use super::instance::Instance;
use super::queue::LONGEST;

/// FIONREAD of ioctl(2).
const FIONREAD: u32 = 0x541b;

/// The open file of an instance.
pub struct InotifyFile {
    pub(super) instance: Arc<Instance>,
    inode: AnonInode,
}

/// An event as it is read: its bytes, and how many there are.
type Bytes = ([u8; LONGEST], usize);

impl InotifyFile {
    pub(super) fn new(instance: Arc<Instance>) -> InotifyFile {
        InotifyFile {
            instance,
            inode: AnonInode::new(),
        }
    }

    /// Takes the first event, of at most `room` bytes, if there is one.
    fn look(&self, room: usize) -> Option<Result<Bytes>> {
        let mut bytes = [0; LONGEST];
        let taken = self.instance.queue.lock().take(room, &mut bytes)?;
        // What is dropped of it is dropped here, without the lock.
        Some(taken.map(|(len, _)| (bytes, len)))
    }

    /// Takes the first event; sleeps for one if `waits`.
    ///
    /// # Errors
    /// `Invalid` if it has more than `room` bytes; `WouldBlock`; `Interrupted`.
    fn take(&self, room: usize, waits: bool) -> Result<Bytes> {
        if let Some(taken) = self.look(room) {
            return taken;
        }
        if !waits {
            return Err(FsError::WouldBlock);
        }
        let mut state = (self, room);
        let (deadline, signals) = (Deadline::Never, Interruptible::Yes);
        park(&mut state, deadline, signals, |(me, room), w| {
            w.listen(&me.instance.readers);
            me.look(*room).map_or(Step::Wait, Step::Done)
        })
        .map_err(|_| FsError::Interrupted)?
    }
}

impl FileOps for InotifyFile {
    /// Reads as many events as fit and are there, at least one.
    fn read(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        let mut done = 0;
        loop {
            let waits = done == 0 && !file.nonblocking();
            let (bytes, len) = match self.take(buf.remaining(), waits) {
                Ok(taken) => taken,
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e),
            };
            // As in Linux, an event that cannot be copied is lost.
            if buf.put(&bytes[..len])? < len {
                return Err(FsError::Fault);
            }
            done += len;
        }
    }

    fn seekable(&self) -> bool {
        false
    }

    fn seeks_in_vain(&self) -> bool {
        true
    }

    fn poll(&self, _: &File, waiter: Option<&mut Waiter>) -> PollMask {
        if let Some(waiter) = waiter {
            waiter.listen(&self.instance.readers);
        }
        if self.instance.queue.lock().is_empty() {
            PollMask::NONE
        } else {
            PollMask::READ
        }
    }

    fn ioctl(&self, _: &File, request: u32, arg: u64) -> Result<u64> {
        if request != FIONREAD {
            return Err(FsError::NotTty);
        }
        let bytes = self.instance.queue.lock().bytes().min(i32::MAX as usize) as i32;
        UserPtr::<i32>::new(arg).write(&bytes)?;
        Ok(0)
    }

    fn sends_signals(&self) -> bool {
        true
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn anon_inode(&self) -> Option<&AnonInode> {
        Some(&self.inode)
    }

    /// A line for each watch, the newest first. The handle is that of Linux for a file system that has none of its own.
    fn print_info(&self, _: &File, out: &mut Text) -> Result<()> {
        let mut at = i32::MAX;
        while let Some(mark) = self.instance.before(at) {
            at = mark.wd;
            let inode = &mark.inode;
            let (wd, ino, dev, mask) = (mark.wd, inode.ino, inode.dev, mark.wanted());
            put!(
                out,
                "inotify wd:{wd:x} ino:{ino:x} sdev:{dev:x} mask:{mask:x} ignored_mask:0 "
            );
            put!(out, "fhandle-bytes:8 fhandle-type:1 f_handle:");
            for byte in [ino as u32, 0].iter().flat_map(|word| word.to_le_bytes()) {
                put!(out, "{byte:02x}");
            }
            put!(out, "\n");
        }
        Ok(())
    }

    fn label(&self) -> &'static str {
        "anon_inode:inotify"
    }

    fn close(&self, _: &File) {
        self.instance.close();
    }
}
