//! The list of all local sockets, for /proc/net/unix.
//!
//! A socket that is made or closed takes the lock of one of sixteen shards. The number of a shard is that of the inode, and these
//! are handed out by CPU: sockets that different CPUs make are seldom in one shard.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use ksync::atomic::{AtomicU32, Ordering::Relaxed};
use ksync::{Once, Spin};

use crate::address::Name;
use crate::address::Type;

ksync::lock_class!(pub ShownLock, "shown sockets", rank = 89);

/// Shards of the list.
const SHARDS: usize = 16;

/// What a socket is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Use {
    /// It is neither connected nor does it listen.
    Nothing,
    /// It listens.
    Listening,
    /// It is connected.
    Connected,
}

/// What the list shows of a socket.
pub struct Shown {
    /// The inode's number.
    pub ino: u64,
    /// The type.
    pub kind: Type,
    /// The name.
    pub name: Once<Arc<Name>>,
    /// A [`Use`]. Atomic; changed with the socket's link locked.
    used: AtomicU32,
}

hal::machine_static! {
    static ALL: [Spin<BTreeMap<u64, Arc<Shown>>, ShownLock>; SHARDS] =
        [const { Spin::new(BTreeMap::new()) }; SHARDS];
}

impl Shown {
    /// Adds a socket.
    pub fn add(ino: u64, kind: Type) -> Arc<Shown> {
        let shown = Arc::new(Shown {
            ino,
            kind,
            name: Once::new(),
            used: AtomicU32::new(0),
        });
        ALL[ino as usize % SHARDS].lock().insert(ino, shown.clone());
        shown
    }

    /// Removes a socket.
    pub fn remove(&self) {
        let gone = ALL[self.ino as usize % SHARDS].lock().remove(&self.ino);
        drop(gone);
    }

    /// What the socket is used for now.
    pub fn used(&self) -> Use {
        match self.used.load(Relaxed) {
            0 => Use::Nothing,
            1 => Use::Listening,
            _ => Use::Connected,
        }
    }

    /// Sets that.
    pub fn set_used(&self, used: Use) {
        self.used.store(used as u32, Relaxed);
    }
}

/// Calls `f` with each socket, in order within a shard, with no lock held. One that is made or closed meanwhile may be missing. Without
/// memory for a copy of a shard, that one is left out.
pub fn each(mut f: impl FnMut(&Shown)) {
    for shard in ALL.iter() {
        let mut all: Vec<Arc<Shown>> = Vec::new();
        let list = shard.lock();
        if all.try_reserve(list.len()).is_ok() {
            all.extend(list.values().cloned());
        }
        drop(list);
        all.iter().for_each(|shown| f(shown));
    }
}
