//! Open files of procfs and sysfs, whose content is printed when it is read.
//!
//! An open file keeps the part of its content that was printed last, charged to the user that read it: all of it, unless the
//! file prints in [parts](DynFile::print_part). A read from position 0 prints anew; one behind the part prints the next.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use cred::MemoryCharge;
use hal::uio::IoBuf;
use ksync::Mutex;
use task::current::current;

use super::dynamic::{DynFile, Dynamic, Text};
use super::error::{FsError, Result};
use super::file::{File, FileOps};
use super::inode::{Inode, Node};

ksync::lock_class!(pub PrintLock, "printed file", rank = 41);

/// An open file.
pub(super) struct Printed {
    inode: Arc<Inode>,
    /// The file that the open returned, if its content was decided then.
    own: Option<Box<dyn DynFile>>,
    part: Mutex<Option<Part>, PrintLock>,
}

/// A part of the content.
struct Part {
    bytes: Vec<u8>,
    _charge: MemoryCharge,
    /// Position of the first byte.
    start: u64,
    /// From where the file prints the next part; `None` if this is the last.
    next: Option<u64>,
}

impl Part {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// The most bytes that one write to a setting may have.
const STORE_MAX: usize = 4096;

impl Printed {
    /// An open file of `inode`, which is a file that is made on demand. `own` is what its open returned.
    pub(super) fn new(inode: Arc<Inode>, own: Option<Box<dyn DynFile>>) -> Printed {
        Printed {
            inode,
            own,
            part: Mutex::new(None),
        }
    }

    fn content(&self) -> Result<&dyn DynFile> {
        match (&self.own, &self.inode.node) {
            (Some(own), _) => Ok(&**own),
            (None, Node::Dynamic(Dynamic::File(f))) => Ok(&**f),
            _ => Err(FsError::Invalid),
        }
    }

    /// Prints the part that the file begins at `from`, and whose first byte has position `start`.
    fn print(&self, from: u64, start: u64) -> Result<Part> {
        let mut out = Text::new();
        let next = self.content()?.print_part(from, &mut out)?;
        let (bytes, charge) = out.keep()?;
        Ok(Part {
            bytes,
            _charge: charge,
            start,
            next,
        })
    }
}

impl FileOps for Printed {
    fn read(&self, _: &File, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        if let Some(values) = self.content()?.values() {
            return values.read_at(buf, pos);
        }
        let mut slot = self.part.lock();
        let mut part = match slot.take() {
            Some(part) if pos != 0 && pos >= part.start => part,
            _ => self.print(0, 0)?,
        };
        while pos >= part.end()
            && let Some(next) = part.next
        {
            if current().kill_pending() {
                return Err(FsError::Interrupted);
            }
            let end = part.end();
            drop(part);
            part = self.print(next, end)?;
        }
        let part = slot.insert(part);
        let rest = usize::try_from(pos - part.start)
            .ok()
            .and_then(|p| part.bytes.get(p..))
            .unwrap_or(&[]);
        Ok(buf.put(rest)?)
    }

    fn write(&self, _: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        let len = buf.remaining();
        if len > STORE_MAX {
            return Err(FsError::Invalid);
        }
        let mut data = Vec::new();
        data.try_reserve_exact(len).map_err(|_| FsError::NoMemory)?;
        data.resize(len, 0);
        let n = buf.take(&mut data)?;
        self.content()?.store(&data[..n])?;
        Ok(n)
    }

    fn pollable(&self) -> bool {
        self.content().is_ok_and(DynFile::pollable)
    }

    fn end(&self, _: &File) -> Option<u64> {
        let measured = self
            .content()
            .is_ok_and(|content| content.values().is_none());
        // A text is not made to be measured.
        measured.then_some(0)
    }
}
