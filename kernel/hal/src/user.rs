//! Copies to and from user memory.
//!
//! Guarantee: any address and length may be given. If the memory is not user memory, or cannot be made present, the copy
//! fails with [`UserFault`]; it never ends in a kernel fault. With preemption on, a missing page is brought in through
//! [`Upcalls::page_fault`](crate::upcalls::Upcalls::page_fault) and the copy continues, so a copy may sleep; with preemption
//! off it fails at once.
//!
//! Mechanism: the module `user_copy` accesses the memory. The range is checked before, so it cannot reach kernel
//! memory.

use fscore::bytes;

use crate::limits::USER_END;

pub use crate::user_copy::{atomic_cmpxchg_u32, copy_in_partial, copy_out_partial, load_u32};
pub use crate::user_fault::UserFault;

/// Whether `len` bytes at `address` lie in the addresses that user mappings may have.
#[inline]
pub fn in_range(address: u64, len: usize) -> bool {
    (len as u64) <= USER_END && address <= USER_END - len as u64
}

#[inline]
pub(crate) fn check(address: u64, len: usize) -> Result<(), UserFault> {
    if in_range(address, len) {
        Ok(())
    } else {
        Err(UserFault)
    }
}

/// Reads user memory at `from` into all of `to`.
///
/// # Errors
/// [`UserFault`]; part of `to` may have been written.
#[inline]
pub fn copy_in(to: &mut [u8], from: u64) -> Result<(), UserFault> {
    if copy_in_partial(to, from) == to.len() {
        Ok(())
    } else {
        Err(UserFault)
    }
}

/// Writes all of `from` to user memory at `to`.
///
/// # Errors
/// [`UserFault`]; part of it may have been written.
#[inline]
pub fn copy_out(to: u64, from: &[u8]) -> Result<(), UserFault> {
    if copy_out_partial(to, from) == from.len() {
        Ok(())
    } else {
        Err(UserFault)
    }
}

/// Copies the user's string at `from` into `to`, up to its terminating zero, and returns its length without the zero.
/// `Ok(None)` means that there is no zero within `to.len()` bytes.
///
/// # Errors
/// [`UserFault`] if the string reaches memory that cannot be read.
pub fn strncpy_in(to: &mut [u8], from: u64) -> Result<Option<usize>, UserFault> {
    /// Pieces end at multiples of this, so none touches a page behind the end of the string.
    const PIECE: usize = 64;
    let mut done = 0;
    while done < to.len() {
        let at = from.checked_add(done as u64).ok_or(UserFault)?;
        let room = PIECE - (at as usize & (PIECE - 1));
        let end = to.len().min(done + room);
        let piece = &mut to[done..end];
        copy_in(piece, at)?;
        if let Some(len) = bytes::find(piece, 0) {
            return Ok(Some(done + len));
        }
        done = end;
    }
    Ok(None)
}

pub(crate) fn check_word(address: u64) -> Result<(), UserFault> {
    check(address, 4)?;
    if address.is_multiple_of(4) {
        Ok(())
    } else {
        Err(UserFault)
    }
}
