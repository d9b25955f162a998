//! The operations on address spaces that processes use.

use alloc::sync::Arc;

use ksync::CpuPin;
use vm::{ObjectRef, Space, VmError};

use crate::machine::vm;

/// Identifies the word of a futex, whichever process maps it at whichever address: for a shared word the object and the
/// offset in it, for a private one the space and the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FutexKey {
    /// Identity of the object, or address of the space's structure.
    pub base: u64,
    /// Byte offset in the object, or virtual address.
    pub offset: u64,
}

/// A word that threads may sleep on. No other word gets its key as long as this value or a clone of it exists.
#[derive(Clone)]
pub struct FutexWord {
    /// The word's key.
    pub key: FutexKey,
    /// A reference to the object of a shared word: without it the object could go, and another one get its identity.
    object: Option<ObjectRef>,
}

impl FutexWord {
    /// The private word at `addr` of the space whose identity is `space`. The caller keeps the space alive.
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

/// The word at `addr` of `space`: a shared word if a shared mapping is there, and a private one otherwise. `None` if nothing
/// is mapped there. May sleep for the map's lock while the map changes.
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

/// Switches this CPU to the space `new`, or with `None` to the kernel's page tables alone. `_old` is the space that the CPU
/// has run so far; the caller holds a reference to it.
pub fn activate(pin: &CpuPin, _old: Option<&Arc<Space>>, new: Option<&Arc<Space>>) {
    // This drop does not free the space: the caller holds a reference, `_old`.
    drop(hal::spaces::enter(vm(), pin, new.cloned()));
}

/// Removes all mappings of a space that no process uses any more. Returns the KiB that were resident. Sleeps.
pub fn clear(space: &Arc<Space>) -> u64 {
    space.clear(vm()) * (hal::PAGE_SIZE as u64 / 1024)
}

/// The space of a forked child. Takes the map's lock, and sleeps.
///
/// # Errors
/// No memory; the parent is as before, except that a later write may find a page marked for a copy without cause.
pub fn fork(space: &Arc<Space>) -> Result<Arc<Space>, VmError> {
    space.fork(vm())
}

/// Writes `bytes` at `addr` of a space, which need not be the one that this CPU runs. Returns whether all of them were
/// written; if not, some may have been. Takes the map's lock and faults pages in, and so may sleep.
pub fn write_at(space: &Arc<Space>, addr: u64, bytes: &[u8]) -> bool {
    matches!(space.write_at(vm(), addr, bytes), Ok(n) if n == bytes.len())
}

/// KiB that are resident now. getrusage(2) shows them as the maximum, because peaks are not recorded.
pub fn max_rss_kib(space: &Arc<Space>) -> u64 {
    space.usage(vm()).resident * (hal::PAGE_SIZE as u64 / 1024)
}
