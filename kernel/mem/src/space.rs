//! Address spaces as processes use them.

use alloc::sync::Arc;

use ksync::CpuPin;
use vm::{ObjectRef, Space, VmError};

use crate::machine::vm;

/// Which word a futex is, whoever maps it wherever: the object and the offset in it, or the space
/// and the address for private ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FutexKey {
    /// Identity of the object, or address of the space.
    pub base: u64,
    /// Byte offset in the object, or address.
    pub offset: u64,
}

/// A word that threads may sleep on. As long as it, or a clone of it, is held no other word gets its key.
#[derive(Clone)]
pub struct FutexWord {
    /// What names it.
    pub key: FutexKey,
    /// The object of a shared word, whose identity another one could get.
    object: Option<ObjectRef>,
}

impl FutexWord {
    /// The word at `addr` of the caller's own space, whose identity is `space`.
    pub fn private(space: u64, addr: u64) -> FutexWord {
        FutexWord {
            key: FutexKey {
                base: space,
                offset: addr,
            },
            object: None,
        }
    }
}

impl Drop for FutexWord {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            object.release(vm());
        }
    }
}

/// A word that several processes may share; a private page's is the space's own.
pub fn futex_word(space: &Arc<Space>, addr: u64) -> Option<FutexWord> {
    match space.shared_object(addr) {
        Some((object, offset)) => Some(FutexWord {
            key: FutexKey {
                base: object.identity() as u64,
                offset,
            },
            object: Some(object),
        }),
        None => {
            space.entry_at(addr)?;
            Some(FutexWord::private(Arc::as_ptr(space) as u64, addr))
        }
    }
}

/// Makes this CPU run `new`, or the kernel alone.  `_old` is what the caller thinks it ran.
pub fn activate(pin: &CpuPin, _old: Option<&Arc<Space>>, new: Option<&Arc<Space>>) {
    // What comes back is no last reference: the caller holds `_old` itself.
    drop(hal::spaces::enter(vm(), pin, new.cloned()));
}

/// Empties a space whose last process has left it, and returns the kibibytes that were resident.
/// Sleeps.
pub fn clear(space: &Arc<Space>) -> u64 {
    space.clear(vm()) * (hal::PAGE_SIZE as u64 / 1024)
}

/// A child's space.
///
/// # Errors
/// No memory.
pub fn fork(space: &Arc<Space>) -> Result<Arc<Space>, VmError> {
    space.fork(vm())
}

/// Writes to a space that need not be this CPU's; true if all went there.
pub fn write_at(space: &Arc<Space>, addr: u64, bytes: &[u8]) -> bool {
    matches!(space.write_at(vm(), addr, bytes), Ok(n) if n == bytes.len())
}

/// Kibibytes resident now: what rusage calls the maximum, for peaks are not recorded.
pub fn max_rss_kib(space: &Arc<Space>) -> u64 {
    space.usage(vm()).resident * (hal::PAGE_SIZE as u64 / 1024)
}
