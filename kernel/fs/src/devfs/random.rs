//! The devices random and urandom.

use drivers::random::{PIECE, fill};
use hal::uio::IoBuf;
use vfs::error::Result;
use vfs::file::{File, FileOps};

/// Copies random bytes to `buf`.
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

/// random and urandom: both never wait, for the seed is there before the first program.
pub struct Random;

impl FileOps for Random {
    fn read(&self, _: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        fill_buf(buf)
    }
    /// What is written is accepted and stirs nothing: it would be credited with no entropy.
    fn write(&self, _: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        let n = buf.remaining();
        buf.advance(n);
        Ok(n)
    }
    fn seeks_in_vain(&self) -> bool {
        true
    }
}
