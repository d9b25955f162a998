//! Flushes that are due.
//!
//! *Guarantee.* If an operation finds an entry emptied or restricted while a CPU may still use the old translation, it
//! finds the entry's address in its pmap's list. Listed ranges do not affect operations on other addresses.
//!
//! *Mechanism.* An operation that takes translations away lists its range before it changes the first entry, and
//! unlists it after its flush. The change of the entry is a release and reading it an acquire, so a reader of the
//! changed entry sees the listed range, unless the flush is over. Usually nothing is listed, which one load shows. The
//! list has seven places; an operation that finds none free is only counted, and overlaps every range. `doc/vm-pmap.md`
//! says which operations ask, and why.

use core::ops::Range;

use ksync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::page::PAGE_SHIFT;

/// Places in the list: together with the count, they fill a cache line.
const PLACES: usize = 7;

/// What a CPU with a stale translation may still do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Loss {
    /// Use rights that were withdrawn; the translation still leads to the right frame.
    Rights,
    /// Use a frame that was removed; another frame may be entered at the address.
    Frames,
}

/// An operation in the list, until [`Pending::lower`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Listed(u8);

/// The [`Listed`] of an operation without a place.
const UNPLACED: u8 = PLACES as u8;

impl Listed {
    /// The operation's contribution to the count.
    fn weight(&self) -> u64 {
        if self.0 == UNPLACED {
            ONE | ONE_UNPLACED
        } else {
            ONE
        }
    }
}

/// The count's unit: one operation.
const ONE: u64 = 1;
/// The unit of the count's upper half: one operation without a place.
const ONE_UNPLACED: u64 = 1 << 32;

/// Operations between change and flush.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Pending {
    /// Number of operations; in the upper half, the number of those without a place. Atomic.
    count: AtomicU64,
    /// Ranges, encoded; 0 for a free place. Atomic; an operation takes a free place and then owns it.
    places: [AtomicU64; PLACES],
}

impl Pending {
    /// Lists an operation on a range. The entry changes that follow publish the listing.
    pub(crate) fn raise(&self, range: &Range<u64>, loss: Loss) -> Listed {
        let word = encode(range, loss);
        // Relaxed: if another operation's place or count is reused here, a reader of the new value synchronises with
        // that operation's release as well, because a read-modify-write continues its release sequence.
        let take = |place: &AtomicU64| {
            place.load(Relaxed) == 0 && place.compare_exchange(0, word, Relaxed, Relaxed).is_ok()
        };
        let listed = Listed(self.places.iter().position(take).unwrap_or(PLACES) as u8);
        self.count.fetch_add(listed.weight(), Relaxed);
        listed
    }

    /// Extends a listed operation to `range`.
    #[cold]
    pub(crate) fn widen(&self, listed: &Listed, range: &Range<u64>, loss: Loss) {
        if let Some(place) = self.places.get(usize::from(listed.0)) {
            let (now, before) = decode(place.load(Relaxed));
            let hull = now.start.min(range.start)..now.end.max(range.end);
            if hull != now || loss > before {
                // A read-modify-write for the same reason as in `raise`.
                place.swap(encode(&hull, loss.max(before)), Relaxed);
            }
        }
    }

    /// Takes an operation that has flushed out of the list.
    pub(crate) fn lower(&self, listed: Listed) {
        if let Some(place) = self.places.get(usize::from(listed.0)) {
            place.store(0, Release);
        }
        self.count.fetch_sub(listed.weight(), Release);
    }

    /// Whether an operation other than `own`, of at least this loss, is between change and flush in a part of `range`.
    /// To be called after the entries were read.
    #[inline(always)]
    pub(crate) fn overlaps(&self, own: Option<&Listed>, range: &Range<u64>, loss: Loss) -> bool {
        let count = self.count.load(Acquire);
        count != own.map_or(0, Listed::weight) && self.search(count, own, range, loss)
    }

    #[cold]
    #[inline(never)]
    fn search(&self, count: u64, own: Option<&Listed>, range: &Range<u64>, loss: Loss) -> bool {
        let own_place = own.map_or(PLACES, |listed| usize::from(listed.0));
        if count / ONE_UNPLACED > own.map_or(0, Listed::weight) / ONE_UNPLACED {
            return true;
        }
        self.places.iter().enumerate().any(|(n, place)| {
            let word = place.load(Acquire);
            if word == 0 || n == own_place {
                return false;
            }
            let (listed, takes) = decode(word);
            takes >= loss && listed.start < range.end && range.start < listed.end
        })
    }
}

const START_BITS: u32 = 35;
const LEN_BITS: u32 = 23;
const FRAMES: u64 = 1 << (START_BITS + LEN_BITS);
const SCALE_SHIFT: u32 = START_BITS + LEN_BITS + 1;

/// Encodes a range as a word that is not 0: its first page, its length in units of 2^scale pages, rounded up, the
/// scale, and the loss.
fn encode(range: &Range<u64>, loss: Loss) -> u64 {
    debug_assert!(range.start < range.end && range.end <= 1 << (START_BITS + PAGE_SHIFT));
    let start = range.start >> PAGE_SHIFT;
    let pages = ((range.end - 1) >> PAGE_SHIFT) + 1 - start;
    // One bit is left over, so that rounding up does not carry out of the field.
    let scale = (u64::BITS - pages.leading_zeros()).saturating_sub(LEN_BITS - 1);
    let len = pages.div_ceil(1 << scale);
    let frames = if loss == Loss::Frames { FRAMES } else { 0 };
    start | len << START_BITS | frames | u64::from(scale) << SCALE_SHIFT
}

/// Decodes a word to the loss and a range that contains the encoded one. The rounding of the length never reaches
/// beyond the last address that can be encoded.
fn decode(word: u64) -> (Range<u64>, Loss) {
    let start = word & ((1 << START_BITS) - 1);
    let len = (word >> START_BITS) & ((1 << LEN_BITS) - 1);
    let end = (start + (len << (word >> SCALE_SHIFT))).min(1 << START_BITS);
    let loss = if word & FRAMES == 0 {
        Loss::Rights
    } else {
        Loss::Frames
    };
    (start << PAGE_SHIFT..end << PAGE_SHIFT, loss)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::pmap::USER_END;

    const PAGE: u64 = 1 << PAGE_SHIFT;

    fn page(n: u64) -> Range<u64> {
        n * PAGE..(n + 1) * PAGE
    }

    #[test]
    fn a_range_is_never_encoded_as_a_smaller_one() {
        let ends = [1, 2, 511, 1 << 22, (1 << 22) + 1, (1 << 30) - 1, 1 << 35];
        for (start, pages) in ends.iter().flat_map(|&n| [(0, n), (5, n), (1 << 34, n)]) {
            let end = (start + pages).min(1 << 35);
            let range = start * PAGE..end * PAGE;
            for loss in [Loss::Rights, Loss::Frames] {
                let (got, takes) = decode(encode(&range, loss));
                assert_eq!((got.start, takes), (range.start, loss));
                assert!(got.end >= range.end, "{range:x?} became {got:x?}");
                let slack = (end - start) >> (LEN_BITS - 2);
                assert!(got.end <= range.end + slack * PAGE, "{got:x?}");
            }
        }
    }

    #[test]
    fn only_what_overlaps_and_loses_as_much_counts() {
        let pending = Pending::default();
        let ask = |n, loss| pending.overlaps(None, &page(n), loss);
        assert!(!ask(3, Loss::Rights));
        let rights = pending.raise(&(2 * PAGE..4 * PAGE), Loss::Rights);
        assert!(ask(2, Loss::Rights) && ask(3, Loss::Rights));
        assert!(!ask(1, Loss::Rights) && !ask(4, Loss::Rights));
        assert!(!ask(3, Loss::Frames));
        assert!(!pending.overlaps(Some(&rights), &page(3), Loss::Rights));
        pending.widen(&rights, &page(6), Loss::Frames);
        assert!(ask(6, Loss::Frames) && ask(2, Loss::Frames) && !ask(7, Loss::Rights));
        pending.lower(rights);
        assert!(!ask(3, Loss::Rights));
    }

    /// The operation starts in the middle, and is extended downwards and upwards to the ends of user space.
    #[test]
    fn an_operation_widens_to_all_of_user_space() {
        let pending = Pending::default();
        let pages = USER_END >> PAGE_SHIFT;
        let listed = pending.raise(&page(pages / 2 + 1), Loss::Frames);
        let reached = [pages - 2, pages / 2 - 1, 0x100, 1, 0, pages - 1];
        for (n, at) in (1..).zip(reached) {
            pending.widen(&listed, &page(at), Loss::Frames);
            for at in &reached[..n] {
                assert!(pending.overlaps(None, &page(*at), Loss::Frames), "{at:#x}");
            }
        }
        pending.lower(listed);
        assert!(!pending.overlaps(None, &(0..USER_END), Loss::Rights));
    }

    #[test]
    fn what_finds_no_place_overlaps_everything() {
        let pending = Pending::default();
        let placed: rust_alloc::vec::Vec<Listed> = (0..PLACES as u64)
            .map(|n| pending.raise(&page(n), Loss::Rights))
            .collect();
        let far = USER_END - PAGE..USER_END;
        assert!(!pending.overlaps(None, &far, Loss::Rights));
        let unplaced = pending.raise(&page(100), Loss::Rights);
        assert!(pending.overlaps(None, &far, Loss::Frames));
        assert!(!pending.overlaps(Some(&unplaced), &far, Loss::Rights));
        assert!(pending.overlaps(Some(&unplaced), &page(1), Loss::Rights));
        assert!(pending.overlaps(Some(&placed[1]), &page(1), Loss::Rights));
        pending.lower(unplaced);
        assert!(!pending.overlaps(Some(&placed[1]), &page(1), Loss::Rights));
        placed.into_iter().for_each(|listed| pending.lower(listed));
        assert!(!pending.overlaps(None, &(0..USER_END), Loss::Rights));
    }
}
