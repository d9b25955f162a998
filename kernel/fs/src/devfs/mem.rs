//! The devices null, zero and full.

use core::ops::Range;

use hal::uio::IoBuf;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps};
use vm::ObjectRef;

/// /dev/null: reads as an empty file, discards what is written.
pub struct Null;

impl FileOps for Null {
    fn pollable(&self) -> bool {
        false
    }
    fn read(&self, _: &File, _: &mut IoBuf, _: u64) -> Result<usize> {
        Ok(0)
    }
    fn write(&self, _: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        Ok(buf.discard())
    }
    fn seeks_in_vain(&self) -> bool {
        true
    }
}

static ZEROES: [u8; 4096] = [0; 4096];

/// Fills `buf` with zeroes; returns their number. A pending signal ends the call early, after a multiple of 4096 bytes.
///
/// # Errors
/// `Fault` if not even the first byte could be copied.
fn read_zeroes(buf: &mut IoBuf) -> Result<usize> {
    let mut done = 0;
    while buf.remaining() > 0 {
        match buf.put(&ZEROES) {
            Ok(n) => done += n,
            Err(e) if done == 0 => return Err(e.into()),
            Err(_) => break,
        }
        if task::current::current().signal_pending() {
            break;
        }
    }
    Ok(done)
}

/// /dev/zero: reads as zeroes, discards what is written.
pub struct Zero;

impl FileOps for Zero {
    fn pollable(&self) -> bool {
        false
    }
    fn read(&self, _: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        read_zeroes(buf)
    }
    fn write(&self, _: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        Ok(buf.discard())
    }
    fn seeks_in_vain(&self) -> bool {
        true
    }
    /// The pages of one shared mapping, which forked children inherit. mmap(2) replaces it by anonymous memory where
    /// the mapping is private.
    fn object(&self, _: &File, range: Range<u64>) -> Result<ObjectRef> {
        ObjectRef::new_shared(mem::vm(), range.end).map_err(|_| FsError::NoMemory)
    }
}

/// /dev/full: reads as zeroes; a write of any byte fails with `NoSpace`.
pub struct Full;

impl FileOps for Full {
    fn pollable(&self) -> bool {
        false
    }
    fn read(&self, _: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        read_zeroes(buf)
    }
    fn write(&self, _: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        if buf.remaining() == 0 {
            Ok(0)
        } else {
            Err(FsError::NoSpace)
        }
    }
    fn seeks_in_vain(&self) -> bool {
        true
    }
}
