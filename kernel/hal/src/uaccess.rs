//! Values that a user program gave us, kept in types of their own until they are checked.
//!
//! Holding a [`UserPtr`] or a [`UserRange`] proves nothing: the memory may be absent, read-only
//! or the kernel's.  Only the copies of [`user`] decide, and they say [`UserFault`] for
//! whatever cannot be reached.  With preemption off (inside an epoch section) a copy never
//! sleeps: it fails at once where the page is not mapped, and the caller retries outside
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
    /// Takes a raw argument for a pointer; nothing is checked.
    pub const fn new(addr: u64) -> Self {
        UserPtr {
            addr,
            _of: PhantomData,
        }
    }

    /// Whether the program gave no pointer.
    pub const fn is_null(self) -> bool {
        self.addr == 0
    }

    /// The pointer `n` elements on.  A wrap-around is caught by the copy.
    pub const fn add(self, n: usize) -> Self {
        UserPtr::new(
            self.addr
                .wrapping_add((n as u64).wrapping_mul(size_of::<T>() as u64)),
        )
    }
}

impl<T: FromBytes + IntoBytes> UserPtr<T> {
    /// Copies the value in.  May fault the page in, and so sleep.
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

    /// Copies the value out unless the program gave no pointer.
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
    /// Takes two raw arguments; nothing is checked.
    pub const fn new(addr: u64, len: usize) -> Self {
        UserRange { addr, len }
    }

    /// Drops the first `n` bytes.
    pub fn skip(&mut self, n: usize) {
        let n = n.min(self.len);
        self.addr += n as u64;
        self.len -= n;
    }

    /// Makes the page of the first byte reachable, for reading or for writing, or says that it
    /// cannot be.  Sleeps; the answer may be stale as soon as it is given.
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

/// The longest path, its final NUL included (Linux's PATH_MAX).
pub const PATH_MAX: usize = 4096;

/// Why a string could not be taken from user memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrError {
    /// The memory cannot be read.
    Fault,
    /// No NUL within the limit.
    TooLong,
    /// The kernel has no memory to hold it.
    NoMemory,
}

/// Copies a NUL-terminated string of fewer than `max` bytes; the NUL is not kept.
pub fn read_cstr(addr: u64, max: usize) -> Result<Vec<u8>, StrError> {
    // Most strings are short: begin with little and double, so that a path costs one small
    // allocation and not a page.
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
