//! One page-table page: its 512 words, its lock and its counts.
//!
//! The words are in the frame, everything else in the frame's [`Page`]:
//!
//! - `lock` serialises all changes that fill an empty entry, all changes of directory entries, and unlinking. A
//!   directory's lock is taken before the locks of tables below it.
//! - `live` counts entries that are not empty, as an upper bound: it is raised before an entry is filled and lowered
//!   after it is emptied. So if it is zero under the lock, the table is empty and stays so while the lock is held.
//!   Scans empty entries without the lock, so it is atomic.
//! - `DEAD`, in the same word, says that the table is unlinked. It is set under the lock; a CPU that has locked a dead
//!   table walks again from the root. A dead table of level 1 is empty, and stays so; or a leaf of 2 MiB has taken its
//!   place, and its 512 entries are frozen for good, or never were filled and count as 512.
//! - `groups` has one bit for each eight entries (one cache line). A clear bit means eight empty entries. The bit is
//!   set under the lock before an entry of the group is filled, and cleared under the lock by an operation that finds
//!   all eight empty. Walks over ranges skip empty groups, so that the cost of a sparse table depends on its entries.

use core::convert::Infallible;

use ksync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed, Release, SeqCst},
    fence,
};
use ksync::{LockClass, RawSpinGuard, lock_class};

use super::pte::Pte;
use crate::page::{Page, Pfn, TablePart};
use crate::{Machine, Vm};

lock_class!(
    /// Tables of level 2 and above. Held while the lock of a table below is taken; two directories are locked top down.
    pub DirectoryLock, "page directory", rank = 100
);
lock_class!(
    /// Tables of level 1.
    pub LeafLock, "page table", rank = 102
);

/// Entries of a table.
pub const ENTRIES: usize = 512;
/// Entries of a group: one cache line.
const GROUP: usize = 8;
/// Level of the root.
pub const ROOT_LEVEL: u8 = 4;

/// log2 of the bytes that one entry of a table of this level covers.
pub const fn entry_shift(level: u8) -> u32 {
    12 + 9 * (level as u32 - 1)
}

/// The entry of `va` in its table of this level.
#[inline]
pub const fn slot(va: u64, level: u8) -> usize {
    (va >> entry_shift(level)) as usize & (ENTRIES - 1)
}

/// First address that a table of this level around `va` covers.
pub const fn table_base(va: u64, level: u8) -> u64 {
    va & !((1 << entry_shift(level + 1)) - 1)
}

/// A table that cannot be freed as long as this is used: the holder owns it, is pinned since it found it, or holds the
/// lock of a table above.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    /// The frame.
    pub pfn: Pfn,
    words: &'a [AtomicU64; ENTRIES],
    page: &'a Page,
}

impl<'a> Table<'a> {
    /// The table in frame `pfn`. The caller chooses the lifetime and must ensure the condition of the type.
    #[inline]
    pub(super) fn at<M: Machine>(vm: &'a Vm<M>, pfn: Pfn) -> Table<'a> {
        Table {
            pfn,
            words: vm.machine.table_words(pfn),
            page: vm.pages.get(pfn),
        }
    }

    #[inline]
    fn part(&self) -> &'a TablePart {
        self.page.table()
    }

    /// Initialises the lock and the counts of a new table without user entries. The caller owns it.
    pub(super) fn init(&self) {
        self.part().init();
    }

    /// Locks a directory when no table above it is locked.
    pub fn lock_directory(&self) -> RawSpinGuard<'a, DirectoryLock> {
        self.part().lock.lock()
    }

    /// Locks a directory below a locked one.
    pub fn lock_lower_directory(&self) -> RawSpinGuard<'a, DirectoryLock> {
        self.part().lock.lock_nested()
    }

    /// Locks a level-1 table.
    #[inline]
    pub fn lock_leaf(&self) -> RawSpinGuard<'a, LeafLock> {
        self.part().lock.lock()
    }

    /// Reads an entry. Sequentially consistent, which costs nothing on x86: a walk that finds a new table sees all that
    /// preceded its link, even if a third CPU linked it.
    #[inline]
    pub fn get(&self, slot: usize) -> Pte {
        Pte(self.words[slot].load(SeqCst))
    }

    /// Replaces `old` by `new` if the entry still is `old`; else returns the entry. If it was emptied, the operation
    /// that did so has listed its flush. A caller that takes a translation away has listed its own flush, and does not
    /// rely on another operation's.
    #[inline]
    pub fn compare_exchange(&self, slot: usize, old: Pte, new: Pte) -> Result<(), Pte> {
        self.words[slot]
            .compare_exchange(old.0, new.0, AcqRel, Relaxed)
            .map(drop)
            .map_err(Pte)
    }

    /// Fills an empty slot by a plain store. The caller holds the lock and has called [`grow`](Table::grow).
    ///
    /// No atomic swap is needed: an empty entry changes only under the lock, hardware writes only to present entries,
    /// and scans only to entries that carry their frame.
    #[inline]
    pub fn fill(&self, slot: usize, pte: Pte) {
        debug_assert!(self.get(slot).is_empty());
        self.words[slot].store(pte.0, Release);
    }

    /// Counts and fills an empty slot of a directory with the link to a new table. The caller holds the lock.
    ///
    /// A full fence follows: see `next_leaf`.
    pub fn link(&self, slot: usize, pte: Pte) {
        debug_assert!(self.get(slot).is_empty());
        let part = self.part();
        part.live.fetch_add(1, Relaxed);
        let groups = part.groups.load(Relaxed) | 1 << (slot / GROUP);
        // The store of the entry publishes it.
        part.groups.store(groups, Relaxed);
        self.words[slot].store(pte.0, Release);
        fence(SeqCst);
    }

    /// Empties a slot that only the caller may change: a busy entry of its own, or a directory entry under the lock.
    /// [`shrink`](Table::shrink) follows.
    pub fn clear(&self, slot: usize) {
        self.words[slot].store(0, Release);
    }

    /// Replaces an entry that only the caller may change: one that it has frozen, one of a new table, or, under the
    /// lock, the link to a table.
    pub fn put(&self, slot: usize, pte: Pte) {
        self.words[slot].store(pte.0, Release);
    }

    /// Empties a slot and returns the entry; empty if a scan was faster. The caller holds the lock, and calls
    /// [`shrink`](Table::shrink) if there was an entry.
    pub fn take(&self, slot: usize) -> Pte {
        Pte(self.words[slot].swap(0, Release))
    }

    /// Clears bits of an entry, whatever hardware or a scan changes in it meanwhile. The caller holds the lock.
    pub fn mask(&self, slot: usize, bits: u64) {
        self.words[slot].fetch_and(!bits, Release);
    }

    /// Sets bits of a directory entry. The caller holds the lock. A CPU that sees them sees the rights cleared below
    /// before.
    pub fn allow(&self, slot: usize, bits: u64) {
        self.words[slot].fetch_or(bits, Release);
    }

    /// Counts one more leaf and marks its group. Called under the lock, before the entry is filled.
    #[inline]
    pub fn grow(&self, slot: usize) {
        let part = self.part();
        part.live.fetch_add(1, Relaxed);
        let groups = part.groups.load(Relaxed);
        let bit = 1 << (slot / GROUP);
        if groups & bit == 0 {
            // Read under the lock alone, so its order relative to the entry does not matter.
            part.groups.store(groups | bit, Relaxed);
        }
    }

    /// As [`grow`](Table::grow), for `count` neighbours; the caller subtracts those that it does not fill by
    /// [`shrink`](Table::shrink).
    pub fn grow_many(&self, first: usize, count: usize) {
        debug_assert!(count > 0 && first + count <= ENTRIES);
        let part = self.part();
        part.live.fetch_add(count as u32, Relaxed);
        let (low, high) = (first / GROUP, (first + count - 1) / GROUP);
        let bits = (!0_u64 << low) & (!0 >> (63 - high));
        let groups = part.groups.load(Relaxed);
        if groups & bits != bits {
            part.groups.store(groups | bits, Relaxed);
        }
    }

    /// Subtracts `n` entries, after they were emptied. Returns whether the table may be empty; an operation that wants
    /// to unlink it must check again under the locks.
    pub fn shrink(&self, n: u32) -> bool {
        // Relaxed: an operation that finds zero and unlinks the table reads no entry. The frame is reused after a grace
        // period, which waits for the CPU that emptied the entry, because that CPU is pinned or holds the lock.
        n != 0 && self.part().live.fetch_sub(n, Relaxed) & !TablePart::DEAD == n
    }

    /// Number of entries that are not empty, or are about to be filled, or have just been emptied. Under the lock,
    /// which orders everything that raises it, it is an upper bound.
    pub fn live(&self) -> usize {
        (self.part().live.load(Relaxed) & !TablePart::DEAD) as usize
    }

    /// Whether the table is unlinked. Stable under the lock.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.part().live.load(Relaxed) & TablePart::DEAD != 0
    }

    /// Whether a leaf of 2 MiB has taken the place of this level-1 table, so that an operation looks at the address
    /// again. Else a dead table is empty. Stable under the lock.
    pub fn is_replaced(&self) -> bool {
        self.is_dead() && self.live() != 0
    }

    /// Marks the table unlinked. The caller holds its lock.
    pub fn set_dead(&self) {
        self.part().live.fetch_or(TablePart::DEAD, Relaxed);
    }

    /// The next slot in `from..to` whose entry is not empty; read without the lock.
    pub fn next(&self, from: usize, to: usize) -> Option<usize> {
        let groups = self.part().groups.load(SeqCst);
        let mut at = from;
        while at < to {
            let rest = groups >> (at / GROUP);
            if rest == 0 {
                return None;
            }
            let skip = rest.trailing_zeros() as usize;
            if skip > 0 {
                at = (at / GROUP + skip) * GROUP;
            }
            let end = (at / GROUP + 1) * GROUP;
            let words = self.words.get(at..end.min(to)).unwrap_or(&[]);
            // In a range that was not touched, a group usually has entries outside the range only.
            let any = words.iter().fold(0, |any, word| any | word.load(SeqCst));
            if any != 0 {
                let filled = |word: &AtomicU64| !Pte(word.load(SeqCst)).is_empty();
                if let Some(skip) = words.iter().position(filled) {
                    return Some(at + skip);
                }
            }
            at = end;
        }
        None
    }

    /// Calls `visit` for each entry in `from..to` that is not empty, and clears the bits of groups that are empty
    /// afterwards. The caller holds the lock.
    #[inline]
    pub fn for_each_locked(&self, from: usize, to: usize, mut visit: impl FnMut(usize, Pte)) {
        let all: Result<(), Infallible> = self.try_each_locked(from, to, |at, pte| {
            visit(at, pte);
            Ok(())
        });
        match all {
            Ok(()) => {}
            Err(never) => match never {},
        }
    }

    /// As `for_each_locked`, up to the first error.
    ///
    /// # Errors
    /// That of `visit`.
    #[inline]
    pub fn try_each_locked<E>(
        &self,
        from: usize,
        to: usize,
        mut visit: impl FnMut(usize, Pte) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut all = Ok(());
        let mut groups = self.part().groups.load(Relaxed);
        let before = groups;
        let mut at = from;
        'groups: while at < to {
            let rest = groups >> (at / GROUP);
            if rest == 0 {
                break;
            }
            let skip = rest.trailing_zeros() as usize;
            if skip > 0 {
                at = (at / GROUP + skip) * GROUP;
                continue;
            }
            let group = at / GROUP;
            while at < to.min((group + 1) * GROUP) {
                let pte = self.get(at);
                if !pte.is_empty()
                    && let Err(why) = visit(at, pte)
                {
                    all = Err(why);
                    break 'groups;
                }
                at += 1;
            }
            if (group * GROUP..(group + 1) * GROUP).all(|slot| self.get(slot).is_empty()) {
                groups &= !(1 << group);
            }
        }
        if groups != before {
            self.part().groups.store(groups, Release);
        }
        all
    }
}

const _: () = {
    assert!(DirectoryLock::RANK < LeafLock::RANK);
    assert!(ENTRIES / GROUP == 64);
};
