//! The record of an aligned run of frames.

use ksync::Spin;
use ksync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use super::place::{Place, RUN_ORDER};

ksync::lock_class!(pub RunLock, "reserved run", rank = 126);

/// No run: ends chains and queues.
pub(super) const NO_RUN: u32 = u32::MAX;

/// See the module above. The record of a run without an owner says nothing, and is in no chain and no queue.
#[repr(C)]
pub(super) struct Run {
    /// Identity of the owning object, 0 if there is none. Changed under the lock; a hint without it.
    object: AtomicUsize,
    /// Number of the object's block. As `object`.
    block: AtomicU32,
    /// Next run of the chain. Changed under the lock of the owner's chain; a hint without it.
    pub(super) chain: AtomicU32,
    /// Number of frames that are taken. The lock guards the marks of the frames, too.
    pub(super) taken: Spin<u32, RunLock>,
    /// Neighbours in the queue. Guarded by the queue's lock.
    pub(super) older: AtomicU32,
    pub(super) newer: AtomicU32,
}

// Model checkers bring larger atomics.
const _: () = assert!(cfg!(any(loom, shuttle)) || size_of::<Run>() <= 32);

impl Run {
    pub(super) fn new() -> Run {
        Run {
            object: AtomicUsize::new(0),
            block: AtomicU32::new(0),
            chain: AtomicU32::new(NO_RUN),
            taken: Spin::new(0),
            older: AtomicU32::new(NO_RUN),
            newer: AtomicU32::new(NO_RUN),
        }
    }

    /// Whether it is reserved for the block of `place`.
    pub(super) fn is_for(&self, place: Place) -> bool {
        self.object.load(Relaxed) == place.object && self.block.load(Relaxed) == place.block()
    }

    /// The first place of the owner's block.
    pub(super) fn owner(&self) -> Option<Place> {
        let object = self.object.load(Relaxed);
        let index = self.block.load(Relaxed) << RUN_ORDER;
        (object != 0).then_some(Place { object, index })
    }

    /// Makes a place's block the owner. The lock is held.
    pub(super) fn own(&self, place: Place) {
        debug_assert!(place.object != 0 && self.owner().is_none());
        self.block.store(place.block(), Relaxed);
        self.object.store(place.object, Relaxed);
    }

    /// Takes the owner away. The lock is held.
    pub(super) fn disown(&self) {
        self.object.store(0, Relaxed);
    }
}
