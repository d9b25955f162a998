//! Filling entries.

use ksync::CpuPin;
use ksync::atomic::{Ordering::SeqCst, fence};

use super::pte::Pte;
use super::table::{ENTRIES, Table, slot};
use super::{Pmap, Prot, USER_END};
use crate::page::{PAGE_SIZE, Pfn};
use crate::tlb::Gather;
use crate::{Machine, NoMemory, Vm};

/// What an enter did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entered {
    /// The slot was empty.
    New,
    /// The frame was there with all that was asked for: a spurious fault, or another thread was faster.
    Same,
    /// The frame was there with fewer rights. No other CPU needs a flush: rights only grew, and a CPU that still has
    /// fewer faults once and forgets them.
    Upgraded,
    /// The frame to be replaced was there, as this entry, whose A and D are now the caller's. Its address is in the
    /// gather.
    Replaced(Pte),
}

/// Why nothing was entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EnterError {
    /// A table page could not be had.
    NoTable(NoMemory),
    /// The caller's check failed, or the pmap was released: start again from the map.
    Stale,
    /// Another frame is there.
    Occupied(Pte),
    /// The page is being taken away, or is not what it was: look it up again.
    Retry,
}

impl From<NoMemory> for EnterError {
    fn from(cause: NoMemory) -> EnterError {
        EnterError::NoTable(cause)
    }
}

/// Most pages of one [`Pmap::enter_around`].
pub const AROUND: usize = 16;

const _: () = assert!(AROUND <= u32::BITS as usize);

impl Pmap {
    /// Enters a leaf into an empty slot, for a page that the caller holds busy. `check` is as for
    /// [`enter`](Pmap::enter), which serves slots that are not empty.
    ///
    /// # Errors
    ///
    /// All of [`EnterError`] but `Retry`; `Occupied` for any entry that is there. Nothing has changed then.
    #[inline(always)]
    pub fn enter_new<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        leaf: Pte,
        check: impl FnOnce() -> bool,
    ) -> Result<Entered, EnterError> {
        let (table, _guard) = self.locked_leaf(vm, pin, va, leaf.is_writable())?;
        if !check() {
            return Err(EnterError::Stale);
        }
        let at = slot(va, 1);
        let old = table.get(at);
        if !old.is_empty() {
            return Err(EnterError::Occupied(old));
        }
        table.grow(at);
        table.fill(at, leaf);
        Ok(Entered::New)
    }

    /// Enters a leaf for a page that the caller holds busy, so that no scan can be after it.
    ///
    /// `check` runs under the lock of the table, just before the entry is filled: it says whether the map entry still
    /// is as the caller saw it, by a sequentially consistent load. Whoever changes a map entry does so before it
    /// touches tables, so either `check` fails or the change finds the new leaf.
    ///
    /// `replace` names a frame whose entry may be replaced (copy-on-write); its address goes to `gather`, and its page
    /// must not be reused before that is finished.
    ///
    /// # Errors
    ///
    /// All of [`EnterError`] but `Retry`; nothing has changed then.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "who, where, what, and what to make sure of"
    )]
    pub fn enter<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        leaf: Pte,
        replace: Option<Pfn>,
        gather: &mut Gather<'p>,
        check: impl FnOnce() -> bool,
    ) -> Result<Entered, EnterError> {
        let (table, _guard) = self.locked_leaf(vm, pin, va, leaf.is_writable())?;
        if !check() {
            return Err(EnterError::Stale);
        }
        let at = slot(va, 1);
        if table.get(at).is_empty() {
            table.grow(at);
            table.fill(at, leaf);
            return Ok(Entered::New);
        }
        self.enter_occupied(table, va, leaf, replace, gather)
    }

    /// The rest of `enter`, for a slot that was not empty. The table is locked.
    #[inline(never)]
    fn enter_occupied<'p>(
        &'p self,
        table: Table,
        va: u64,
        leaf: Pte,
        replace: Option<Pfn>,
        gather: &mut Gather<'p>,
    ) -> Result<Entered, EnterError> {
        let at = slot(va, 1);
        loop {
            let old = table.get(at);
            debug_assert!(
                old.is_empty() || old.is_present(),
                "claimed and busy entries live under the lock"
            );
            let (new, done) = if old.is_empty() {
                // A scan took it out meanwhile.
                table.grow(at);
                table.fill(at, leaf);
                return Ok(Entered::New);
            } else if old.pfn() == leaf.pfn() {
                let merged = merge(old, leaf);
                if merged == old {
                    return Ok(Entered::Same);
                }
                (merged, Entered::Upgraded)
            } else if Some(old.pfn()) == replace {
                gather.record(self, va);
                (leaf, Entered::Replaced(old))
            } else {
                return Err(EnterError::Occupied(old));
            };
            if table.compare_exchange(at, old, new).is_ok() {
                return Ok(done);
            }
        }
    }

    /// Enters a leaf for a page that was found without a lock and that the caller does not hold.
    ///
    /// The slot is claimed, then `identity` says whether the page still is what it was and is not hard-busy. A scan
    /// makes the page hard-busy before it visits the slot, with a full fence between, as there is one here: one of the two
    /// sees the other. `check` is as for [`enter`](Pmap::enter).
    ///
    /// # Errors
    ///
    /// All of [`EnterError`]; nothing has changed then.
    pub fn enter_resident<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        leaf: Pte,
        check: impl FnOnce() -> bool,
        identity: impl FnOnce() -> bool,
    ) -> Result<Entered, EnterError> {
        let (table, _guard) = self.locked_leaf(vm, pin, va, leaf.is_writable())?;
        if !check() {
            return Err(EnterError::Stale);
        }
        let at = slot(va, 1);
        loop {
            let old = table.get(at);
            if old.is_empty() {
                claim(&table, at, leaf);
                fence(SeqCst);
                return if settle(&table, at, leaf, identity()) {
                    Ok(Entered::New)
                } else {
                    Err(EnterError::Retry)
                };
            }
            if old.pfn() != leaf.pfn() {
                return Err(EnterError::Occupied(old));
            }
            let merged = merge(old, leaf);
            if merged == old {
                return Ok(Entered::Same);
            }
            // A scan that withdraws rights may have been here already, so growing needs a claim too, on the live entry.
            // No fence: a scan swaps the entry as well, whatever it finds in it. A swap before this one says that the page
            // is busy, for this one has read its result; one after it takes the claim away.
            let claimed = old.with(Pte::CLAIMED);
            if table.compare_exchange(at, old, claimed).is_ok() {
                return if upgrade(&table, at, claimed, leaf, identity()) {
                    Ok(Entered::Upgraded)
                } else {
                    Err(EnterError::Retry)
                };
            }
        }
    }

    /// Enters leaves for up to [`AROUND`] neighbouring pages found without locks, in one hold of the table's lock and
    /// with one fence. `page(n)` gives the frame for `va + n` pages, if there is one, to be entered with `prot` and not
    /// marked accessed; occupied slots are left alone. `identity(n, frame)` is as for [`enter_resident`](Pmap::enter_resident).
    /// The range must lie in one table. Returns the number entered.
    ///
    /// # Errors
    ///
    /// [`EnterError::Stale`] if `check` fails, [`EnterError::NoTable`].
    #[expect(
        clippy::too_many_arguments,
        reason = "one place and three questions to the caller"
    )]
    pub fn enter_around<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        count: usize,
        prot: Prot,
        check: impl FnOnce() -> bool,
        mut page: impl FnMut(usize) -> Option<Pfn>,
        mut identity: impl FnMut(usize, Pfn) -> bool,
    ) -> Result<usize, EnterError> {
        let first = slot(va, 1);
        debug_assert!(count <= AROUND && first + count <= ENTRIES);
        debug_assert!(va + (count * PAGE_SIZE) as u64 <= USER_END);
        let (table, _guard) = self.locked_leaf(vm, pin, va, prot.write)?;
        if !check() {
            return Err(EnterError::Stale);
        }
        // All are counted at once, and those that come to nothing taken back in the end.
        table.grow_many(first, count);
        let leaf = |pfn| Pte::user(pfn, prot).untouched();
        // One bit for each claim; the frames stand in the claims themselves.
        let mut claims = 0_u32;
        for n in 0..count {
            if table.get(first + n).is_empty()
                && let Some(pfn) = page(n)
            {
                table.fill(first + n, leaf(pfn).claimed());
                claims |= 1 << n;
            }
        }
        fence(SeqCst);
        let (claimed, mut entered) = (claims.count_ones() as usize, 0);
        while claims != 0 {
            let n = claims.trailing_zeros() as usize;
            claims &= claims - 1;
            let claim = table.get(first + n);
            // A scan that emptied it has counted it.
            if !claim.is_empty() {
                let pfn = claim.pfn();
                entered += usize::from(settle(&table, first + n, leaf(pfn), identity(n, pfn)));
            }
        }
        table.shrink((count - claimed) as u32);
        Ok(entered)
    }
}

/// Claims an empty slot. The caller holds the lock, and puts a full fence after one or more claims.
#[inline]
fn claim(table: &Table, at: usize, leaf: Pte) {
    table.grow(at);
    table.fill(at, leaf.claimed());
}

/// Turns a claim into the leaf if the page is `good` and no scan took the claim; else empties the slot.
#[inline]
fn settle(table: &Table, at: usize, leaf: Pte, good: bool) -> bool {
    let new = if good { leaf } else { Pte::EMPTY };
    match table.compare_exchange(at, leaf.claimed(), new) {
        Ok(()) if good => true,
        Ok(()) => {
            table.shrink(1);
            false
        }
        // The scan that emptied it has counted it.
        Err(_) => false,
    }
}

/// Gives a live entry that carries a claim the rights of `leaf`, if the page is `good` and no scan took the claim away.
fn upgrade(table: &Table, at: usize, claimed: Pte, leaf: Pte, good: bool) -> bool {
    if !good {
        table.mask(at, Pte::CLAIMED);
        return false;
    }
    let mut seen = claimed;
    // Hardware may set A and D meanwhile; only a scan removes the claim.
    while seen.any(Pte::CLAIMED) {
        match table.compare_exchange(at, seen, merge(seen, leaf).without(Pte::CLAIMED)) {
            Ok(()) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

/// The entry with the rights of both: `old` is legitimate, for whoever withdraws rights changes the entry itself.
fn merge(old: Pte, leaf: Pte) -> Pte {
    let grown = old.with(leaf.0 & (Pte::W | Pte::A | Pte::D | Pte::WIRED));
    if leaf.is_executable() {
        grown.without(Pte::NX)
    } else {
        grown
    }
}
