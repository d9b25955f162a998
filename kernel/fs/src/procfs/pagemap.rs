//! /proc/PID/pagemap: eight bytes for each page of the addresses of a process.
//!
//! Guarantee: what is said of a page was true at some moment of the read. A reader that had no CAP_SYS_ADMIN when it opened the file sees no frame's
//! number. No lock is held, and no CPU is kept, for longer than a look at sixteen pages takes.

use alloc::boxed::Box;

use cred::Cap;
use hal::PAGE_SIZE;
use hal::UserFault;
use hal::uio::IoBuf;
use mem::Space;
use proc::look::Image;
use task::current::current;
use vfs::dynamic::{DynFile, Text, Values};
use vfs::error::{FsError, Result};

use super::memory::MemoryFile;
use super::whom::Whom;

/// Bits of an entry, beside the number of the frame. The bit for pages written since the last reset (soft-dirty) is 0, as
/// in a Linux without CONFIG_MEM_SOFT_DIRTY.
const EXCLUSIVE: u64 = 1 << 56;
const FILE: u64 = 1 << 61;
const PRESENT: u64 = 1 << 63;

const ENTRY: u64 = size_of::<u64>() as u64;
const PAGE: u64 = PAGE_SIZE as u64;
/// Pages whose entries are copied to the reader at once.
const BATCH: usize = 64;
/// The end of the addresses of programs.
const END: u64 = (1 << 47) - PAGE;

/// The file, not open yet.
pub struct Pagemap(pub Whom);

/// The file, open.
struct Open {
    image: Image,
    shows_frames: bool,
}

impl DynFile for Pagemap {
    fn print(&self, _: &mut Text) -> Result<()> {
        Err(FsError::Invalid)
    }

    fn open(&self, _: u32) -> Result<Option<Box<dyn DynFile>>> {
        let mut image = MemoryFile::shown(&self.0)?;
        // See `MemoryFile::open`.
        image.program.exe = None;
        Ok(Some(Box::new(Open {
            image,
            shows_frames: current().cred().capable(Cap::SysAdmin),
        })))
    }

    fn pollable(&self) -> bool {
        false
    }
}

impl DynFile for Open {
    fn print(&self, _: &mut Text) -> Result<()> {
        Err(FsError::Invalid)
    }

    fn pollable(&self) -> bool {
        false
    }

    fn values(&self) -> Option<&dyn Values> {
        Some(self)
    }
}

impl Open {
    /// The entries of the pages from `start` to before `end`, which are no more than [`BATCH`].
    fn entries(&self, space: &Space, start: u64, end: u64) -> [u64; BATCH] {
        let mut entries = [0; BATCH];
        let mut at = start;
        while at < end {
            at = space.look_at_pages(mem::vm(), (at, end), &mut |page| {
                let frame = if self.shows_frames {
                    page.pfn.0.into()
                } else {
                    0
                };
                let bit = |is, bit| if is { bit } else { 0 };
                entries[((page.va - start) / PAGE) as usize] =
                    PRESENT | frame | bit(page.shared, FILE) | bit(page.sole, EXCLUSIVE);
            });
        }
        entries
    }
}

impl Values for Open {
    fn read_at(&self, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        // Memory of a process that has ended, or runs another program, has no mapping left.
        let space = self.image.space.as_ref().filter(|space| space.mapped() > 0);
        let Some(space) = space else {
            return Ok(0);
        };
        if !pos.is_multiple_of(ENTRY) || !(buf.remaining() as u64).is_multiple_of(ENTRY) {
            return Err(FsError::Invalid);
        }
        let mut at = (pos / ENTRY).saturating_mul(PAGE).min(END);
        let mut done = 0;
        while at < END && buf.remaining() > 0 {
            if current().kill_pending() {
                return if done > 0 {
                    Ok(done)
                } else {
                    Err(FsError::Interrupted)
                };
            }
            let pages = (buf.remaining() as u64 / ENTRY).min(BATCH as u64);
            let end = (at + pages * PAGE).min(END);
            let entries = self.entries(space, at, end);
            let mut bytes = [0; BATCH * ENTRY as usize];
            for (to, entry) in bytes.chunks_exact_mut(ENTRY as usize).zip(entries) {
                to.copy_from_slice(&entry.to_ne_bytes());
            }
            let len = ((end - at) / PAGE * ENTRY) as usize;
            // As in Linux nothing has been read where an entry cannot be written.
            if buf.put(&bytes[..len])? < len {
                return Err(UserFault.into());
            }
            done += len;
            at = end;
        }
        Ok(done)
    }
}
