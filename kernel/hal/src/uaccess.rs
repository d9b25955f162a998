//! Addresses that a user program has passed, in types of their own until they are checked.
//!
//! A [`UserPtr`] or a [`UserRange`] proves nothing: the memory may be absent, read-only or the kernel's. Only the copies of
//! [`user`] check it, and they fail with [`UserFault`] if it cannot be accessed. With preemption off (inside an epoch
//! section) a copy never sleeps: it fails at once if the page is not mapped, and the caller tries again outside the section,
//! after [`UserRange::fault_in`].

use alloc::vec::Vec;
use core::marker::PhantomData;

use zerocopy::{FromBytes, IntoBytes};

use crate::user;

pub use crate::user::UserFault;

/// A pointer to a `T` in user memory.
#[repr(transparent)]
pub struct UserPtr<T> {
    addr: u64,
    _of: PhantomData<fn() -> T>,
}

impl<T> Clone for UserPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for UserPtr<T> {}

impl<T> UserPtr<T> {
    /// Makes a pointer of a raw argument, without a check.
    pub const fn new(addr: u64) -> Self {
        UserPtr {
            addr,
            _of: PhantomData,
        }
    }

    /// Whether the program passed a null pointer.
    pub const fn is_null(self) -> bool {
        self.addr == 0
    }

    /// The pointer `n` elements further. If it wraps around, the copy fails.
    pub const fn add(self, n: usize) -> Self {
        UserPtr::new(
            self.addr
                .wrapping_add((n as u64).wrapping_mul(size_of::<T>() as u64)),
        )
    }
}

impl<T: FromBytes + IntoBytes> UserPtr<T> {
    /// Copies the value in. May fault the page in, and so sleep.
    pub fn read(self) -> Result<T, UserFault> {
        let mut value = T::new_zeroed();
        user::copy_in(value.as_mut_bytes(), self.addr)?;
        Ok(value)
    }
}

impl<T: IntoBytes + zerocopy::Immutable> UserPtr<T> {
    /// Copies the value out.  May fault the page in, and so sleep.
    pub fn write(self, value: &T) -> Result<(), UserFault> {
        user::copy_out(self.addr, value.as_bytes())
    }

    /// Copies the value out, unless the program passed a null pointer.
    pub fn write_if_some(self, value: &T) -> Result<(), UserFault> {
        if self.is_null() {
            Ok(())
        } else {
            self.write(value)
        }
    }
}

/// A range of user memory: start and length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRange {
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub len: usize,
}

impl UserRange {
    /// Makes a range of two raw arguments, without a check.
    pub const fn new(addr: u64, len: usize) -> Self {
        UserRange { addr, len }
    }

    /// Removes the first `n` bytes from the range.
    pub fn skip(&mut self, n: usize) {
        let n = n.min(self.len);
        self.addr += n as u64;
        self.len -= n;
    }

    /// Makes the page of the first byte accessible, for reading or with `write` for writing; fails if that is impossible.
    /// Sleeps. The page may be gone again when this returns.
    pub fn fault_in(self, write: bool) -> Result<(), UserFault> {
        if self.len == 0 {
            return Ok(());
        }
        if !user::in_range(self.addr, 1) {
            return Err(UserFault);
        }
        crate::upcalls::symbols::fault_in(self.addr, write)
    }
}

/// The longest path in bytes, its final NUL included (Linux's PATH_MAX).
pub const PATH_MAX: usize = 4096;

/// Why a string could not be copied from user memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrError {
    /// The memory cannot be read.
    Fault,
    /// There is no NUL within the limit.
    TooLong,
    /// The kernel has no memory for the string.
    NoMemory,
}

/// Copies a NUL-terminated string of fewer than `max` bytes, and returns it without the NUL. May sleep.
pub fn read_cstr(addr: u64, max: usize) -> Result<Vec<u8>, StrError> {
    // Most strings are short. The buffer begins small and is doubled, so a path costs one small allocation instead of a page.
    const FIRST: usize = 64;
    let mut buf: Vec<u8> = Vec::with_capacity(FIRST);
    let mut chunk = FIRST;
    loop {
        let have = buf.len();
        let want = chunk.min(max - have);
        if want == 0 {
            return Err(StrError::TooLong);
        }
        if have > 0 {
            buf.try_reserve_exact(want)
                .map_err(|_| StrError::NoMemory)?;
        }
        buf.resize(have + want, 0);
        let from = addr.wrapping_add(have as u64);
        if let Some(len) = user::strncpy_in(&mut buf[have..], from).map_err(|_| StrError::Fault)? {
            buf.truncate(have + len);
            return Ok(buf);
        }
        chunk = (chunk * 2).min(1024);
    }
}
