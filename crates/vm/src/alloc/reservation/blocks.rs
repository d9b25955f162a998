//! Where an object may have reservations.

use ksync::atomic::{AtomicU64, Ordering::Relaxed};

use super::place::Place;

/// The lowest and the highest block of an object that were ever reserved. An object has one.
///
/// An index is noted before a reservation for it can be found, so that the end of an object, which changes the object's
/// size first, either finds the reservation or is seen by the operation that makes it:
///
/// ```text
///     reservation                             truncation, end of the object
///     -----------                             -----------------------------
///     blocks include this one                 size = new
///     owner = block; fence                    fence
///     read size: beyond? end it               for each of the blocks: end it
/// ```
#[derive(Debug)]
pub struct Blocks(
    /// One more than the highest block, and 32 bits below it the lowest; 0 if there is none. Atomic.
    AtomicU64,
);

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks(AtomicU64::new(0))
    }
}

impl Blocks {
    /// Includes the block of a place.
    pub(crate) fn include(&self, place: Place) {
        let block = place.block();
        let mut seen = self.0.load(Relaxed);
        loop {
            let new = match unpack(seen) {
                Some((low, high)) => pack(low.min(block), high.max(block)),
                None => pack(block, block),
            };
            if new == seen {
                return;
            }
            // Relaxed: the locks under which the reservation is published, and a fence, follow.
            match self.0.compare_exchange_weak(seen, new, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// The lowest and the highest block.
    pub(crate) fn range(&self) -> Option<(u32, u32)> {
        unpack(self.0.load(Relaxed))
    }
}

fn pack(low: u32, high: u32) -> u64 {
    (u64::from(high) + 1) << 32 | u64::from(low)
}

fn unpack(word: u64) -> Option<(u32, u32)> {
    let behind = (word >> 32) as u32;
    (behind != 0).then(|| (word as u32, behind - 1))
}
