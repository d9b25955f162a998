//! The devices random and urandom.

use drivers::random::{PIECE, fill};
use hal::uio::IoBuf;
use vfs::error::Result;
use vfs::file::{File, FileOps};

/// Fills `buf` with random bytes; returns their number. A pending signal ends the call early at a multiple of 4096
/// bytes.
///
/// # Errors
/// `Fault` if not even the first byte could be copied.
pub fn fill_buf(buf: &mut IoBuf) -> Result<usize> {
    let mut piece = [0; PIECE];
    let mut done = 0;
    while buf.remaining() > 0 {
        let n = buf.remaining().min(PIECE);
        fill(&mut piece[..n]);
        match buf.put(&piece[..n]) {
            Ok(n) => done += n,
            Err(e) if done == 0 => return Err(e.into()),
            Err(_) => break,
        }
        if done % 4096 == 0 && task::current::current().signal_pending() {
            break;
        }
    }
    piece.fill(0);
    Ok(done)
}

/// The file operations of /dev/random and /dev/urandom. Neither ever waits, because the generator is seeded before
/// the first program runs.
pub struct Random;

impl FileOps for Random {
    fn read(&self, _: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        fill_buf(buf)
    }
    /// Accepts the bytes and discards them: they would add no entropy that may be relied on.
    fn write(&self, _: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        Ok(buf.discard())
    }
    fn seeks_in_vain(&self) -> bool {
        true
    }
}
