//! /dev/mem: physical addresses, for holders of CAP_SYS_RAWIO.
//!
//! Guarantee: no byte of RAM is read, changed or mapped through this device, so it reveals and damages no memory of
//! the kernel or of a process. RAM from 1 MiB up fails with EPERM. RAM below 1 MiB reads as zeroes and ignores
//! writes; mapping it fails with EPERM. All other addresses, those of device registers and ROM, are mapped as they
//! are; read and write reach them below the end of RAM and fail with EFAULT beyond it. This is Linux with strict
//! checks, except that Linux also lets RAM below 1 MiB be mapped.
//!
//! Mechanism: a mapping is an object of frames ([`vm::object::Frames`]). It is uncached, except in the ROM area below
//! 1 MiB where the file was opened without O_SYNC and O_DSYNC.

use alloc::sync::Arc;
use core::ops::Range;

use hal::uio::IoBuf;
use hal::{PAGE_SIZE, physical};
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps, o};
use vfs::regular::FileTag;
use vm::object::{Cache, Frames};
use vm::{ObjectRef, Pfn};

const PAGE: u64 = PAGE_SIZE as u64;
const MIB: u64 = 1 << 20;
/// First address of the machine's ROM area, which ends at 1 MiB.
const ROM: u64 = 0xc_0000;

/// The file operations of /dev/mem.
pub struct PhysicalMemory;

/// How read and write treat a physical page.
#[derive(PartialEq, Eq)]
enum Rule {
    /// No byte of it is RAM: read and written as it is.
    Free,
    /// It has RAM and lies below 1 MiB: reads as zeroes, ignores writes.
    Hidden,
    /// It has RAM at or above 1 MiB: EPERM.
    Refused,
}

fn rule(page: u64) -> Rule {
    if !physical::touches_ram(page, page + PAGE - 1) {
        Rule::Free
    } else if page < MIB {
        Rule::Hidden
    } else {
        Rule::Refused
    }
}

/// Splits a transfer at page borders and calls `step` with each part's address and a buffer of its length. Ends when
/// `step` moves less than that length. Returns the number of bytes moved.
///
/// # Errors
/// `Fault` if the transfer reaches beyond the end of RAM, or if the first part faults; `NoMemory`; `step`'s other errors as
/// they are, even after parts have been moved.
fn by_pages(
    buf: &mut IoBuf,
    pos: u64,
    mut step: impl FnMut(&mut IoBuf, u64, &mut [u8]) -> Result<usize>,
) -> Result<usize> {
    let end = pos.checked_add(buf.remaining() as u64);
    if end.is_none_or(|end| end > physical::ram_end()) {
        return Err(FsError::Fault);
    }
    let mut bytes = vfs::regular::page_buffer()?;
    let mut done = 0;
    while buf.remaining() > 0 {
        let at = pos + done as u64;
        let len = ((PAGE - at % PAGE) as usize).min(buf.remaining());
        let moved = match step(buf, at, &mut bytes[..len]) {
            Err(FsError::Fault) if done > 0 => break,
            moved => moved?,
        };
        done += moved;
        if moved < len {
            break;
        }
    }
    Ok(done)
}

impl FileOps for PhysicalMemory {
    fn pollable(&self) -> bool {
        false
    }

    fn read(&self, _: &File, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        by_pages(buf, pos, |buf, at, bytes| {
            match rule(at & !(PAGE - 1)) {
                Rule::Refused => return Err(FsError::Perm),
                Rule::Hidden => bytes.fill(0),
                Rule::Free => physical::read(at, bytes),
            }
            Ok(buf.put(bytes)?)
        })
    }

    fn write(&self, _: &File, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        by_pages(buf, pos, |buf, at, bytes| {
            let rule = rule(at & !(PAGE - 1));
            if rule == Rule::Refused {
                return Err(FsError::Perm);
            }
            let n = buf.take(bytes)?;
            if rule == Rule::Free {
                physical::write(at, &bytes[..n]);
            }
            Ok(n)
        })
    }

    fn object(&self, file: &File, range: Range<u64>) -> Result<ObjectRef> {
        if !physical::is_valid(range.end - 1) {
            return Err(FsError::Invalid);
        }
        let frame = |address: u64| u32::try_from(address / PAGE).map_err(|_| FsError::Invalid);
        let (first, end) = (frame(range.start)?, frame(range.end)?);
        if physical::touches_ram(range.start, range.end - 1) {
            return Err(FsError::Perm);
        }
        let as_rom = range.start >= ROM && range.end <= MIB && file.flags() & o::SYNC == 0;
        let frames = Frames {
            index: first,
            first: Pfn(first),
            count: end - first,
            cache: if as_rom {
                Cache::WriteBack
            } else {
                Cache::Uncached
            },
        };
        let object = ObjectRef::new_device(mem::vm(), frames).map_err(|_| FsError::NoMemory)?;
        if let Some(path) = &file.path {
            object.set_tag(Arc::new(FileTag::of(&path.dentry)));
        }
        Ok(object)
    }
}
