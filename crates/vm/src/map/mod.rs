//! The map of an address space: which ranges are mapped, with which properties, and by which layers.

mod entry;
mod holes;
mod node;
mod position;
mod prot;
mod tree;

#[cfg(test)]
mod tests;

use ksync::lock_class;

pub use self::entry::{EntryArgs, EntryState, GUARD_GAP, MapEntry};
pub use self::prot::{EntryFlags, Prot};
pub use self::tree::{Extent, Tree};

lock_class!(
    /// Serialises changes of a map: replacement of entries and chains, fork.
    pub MapLock, "vm map", rank = 60
);

/// Most entries of a map: Linux's default, so that programs meet the limit they know.
pub const MAX_ENTRIES: usize = 65530;
