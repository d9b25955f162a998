//! A bit for each entry of a chunk of reverse-map entries, which says whether it is free.
//!
//! Guarantee: a thread that finds an entry free sees all that its last user did with it. Bits are cleared under a lock of the caller's, by one
//! thread at a time, and set by one instruction without a lock, which is the last access to the entry.

// Chunks lie in frames, where shuttle's atomics cannot be; loom's model has a set of its own.
#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(loom)]
use ksync::atomic::AtomicU64;

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// Entries that one word stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The number of the word.
    pub word: u8,
    /// Their bits.
    pub bits: u64,
}

impl Part {
    /// The entry with a number.
    pub const fn one(slot: u8) -> Part {
        Part {
            word: slot / WORD as u8,
            bits: 1 << (slot as usize % WORD),
        }
    }
}

/// The bits of some entries, in `WORDS` words. Memory of zeros says that none is free. Atomic.
#[repr(transparent)]
pub struct FreeBits<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Default for FreeBits<WORDS> {
    /// None is free.
    fn default() -> Self {
        FreeBits(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const WORDS: usize> FreeBits<WORDS> {
    /// Makes the first so many entries free. Nobody else has them yet.
    pub fn fill(&self, entries: usize) {
        for (n, word) in self.0.iter().enumerate() {
            let bits = entries.saturating_sub(n * WORD).min(WORD) as u32;
            word.store(
                u64::MAX.checked_shr(WORD as u32 - bits).unwrap_or(0),
                Relaxed,
            );
        }
    }

    /// Reserves up to `entries` entries of one word; `None` if there is no free one. The caller's lock is held.
    pub fn reserve(&self, entries: usize) -> Option<Part> {
        let (word, free) = (self.0.iter().enumerate())
            .map(|(n, word)| (n, word.load(Relaxed)))
            .find(|(_, free)| *free != 0)?;
        let (mut rest, mut taken) = (free, 0);
        while rest != 0 && taken < entries {
            rest &= rest - 1;
            taken += 1;
        }
        let bits = free & !rest;
        // Acquire: the entries' last users are done with them.
        self.0[word].fetch_and(!bits, Acquire);
        let word = word as u8;
        Some(Part { word, bits })
    }

    /// Makes reserved entries free. The caller uses nothing of them afterwards.
    pub fn give_back(&self, what: Part) {
        let before = self.0[usize::from(what.word)].fetch_or(what.bits, Release);
        debug_assert!(before & what.bits == 0, "an entry is free already");
    }

    /// Number of free entries. Their last users are done with them.
    pub fn count(&self) -> usize {
        let ones = |word: &AtomicU64| word.load(Acquire).count_ones() as usize;
        self.0.iter().map(ones).sum()
    }

    /// Whether an entry is free; then its last user is done with it.
    pub fn is_free(&self, slot: usize) -> bool {
        self.0[slot / WORD].load(Acquire) >> (slot % WORD) & 1 != 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn entries_are_reserved_word_by_word_and_come_back() {
        let bits = FreeBits::<3>::default();
        assert_eq!((bits.count(), bits.reserve(1)), (0, None));
        bits.fill(130);
        assert_eq!(bits.count(), 130);
        let first = bits.reserve(63).expect("free");
        assert_eq!((first.word, first.bits), (0, u64::MAX >> 1));
        // The rest of a word, though more is asked for.
        assert_eq!(
            bits.reserve(9),
            Some(Part {
                word: 0,
                bits: 1 << 63
            })
        );
        assert_eq!(
            bits.reserve(100),
            Some(Part {
                word: 1,
                bits: u64::MAX
            })
        );
        assert_eq!(bits.reserve(9), Some(Part { word: 2, bits: 3 }));
        assert_eq!((bits.reserve(1), bits.count()), (None, 0));
        bits.give_back(Part::one(129));
        assert!(bits.is_free(129) && !bits.is_free(128) && !bits.is_free(63));
        bits.give_back(Part::one(63));
        assert_eq!((bits.reserve(1), bits.count()), (Some(Part::one(63)), 1));
    }
}
