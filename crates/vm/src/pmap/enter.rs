//! Filling entries.

use ksync::CpuPin;
use ksync::atomic::{Ordering::SeqCst, fence};

use super::pte::Pte;
use super::table::{ENTRIES, Table, slot};
use super::{Loss, Pmap, Prot, USER_END};
use crate::page::{PAGE_SIZE, Pfn};
use crate::tlb::{self, Gather};
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
    /// Another frame was there, as this entry, whose A and D are now the caller's. Its translations are gone.
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
    /// Another frame was there, and a CPU may still use it.
    FlushDue,
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
    /// All of [`EnterError`] but `Retry`; `Occupied` for any entry that is there, `FlushDue` where another frame's translation
    /// may be left. Nothing has changed then.
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
        if self.is_frame_due(va, va + PAGE_SIZE as u64) {
            return Err(EnterError::FlushDue);
        }
        table.grow(at);
        table.fill(at, leaf);
        Ok(Entered::New)
    }

    /// Enters a leaf for a page that the caller holds busy, so that no scan can be after it.
    ///
    /// `check` runs under the lock of the table, just before the entry is filled: it says whether the map entry still
    /// is as the caller saw it, by a sequentially consistent load. Whoever changes a map entry does so before it
    /// touches tables, so either `check` fails or the change finds the new leaf. It may run several times.
    ///
    /// No other frame's translation is left at `va` when the entry is filled. The flush that this may take is made without a lock.
    ///
    /// # Errors
    ///
    /// All of [`EnterError`] but `Retry` and `FlushDue`; nothing has changed then.
    pub fn enter<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        leaf: Pte,
        mut check: impl FnMut() -> bool,
    ) -> Result<Entered, EnterError> {
        self.enter_flushed(vm, pin, va, leaf, false, &mut check)
    }

    /// As [`enter`](Pmap::enter); another frame's entry gives way, and is gone for every CPU before the new one comes. Its page must
    /// not be reused before this returns.
    ///
    /// # Errors
    ///
    /// All of [`EnterError`] but `Retry`, `FlushDue` and `Occupied`; another frame's entry may be gone then.
    pub fn enter_over<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        leaf: Pte,
        mut check: impl FnMut() -> bool,
    ) -> Result<Entered, EnterError> {
        self.enter_flushed(vm, pin, va, leaf, true, &mut check)
    }

    /// Enters a leaf where no other frame's translation is left, if need be after a flush.
    ///
    /// A flush counts for the next hold of the lock alone: what was taken out before it is gone everywhere, and between the two
    /// holds nothing but this leaf's frame can have come to the address, or `check` fails.
    #[inline(never)]
    fn enter_flushed<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        leaf: Pte,
        over: bool,
        check: &mut dyn FnMut() -> bool,
    ) -> Result<Entered, EnterError> {
        let (at, end) = (slot(va, 1), va + PAGE_SIZE as u64);
        let (mut flushed, mut replaced) = (false, None);
        loop {
            let (table, guard) = self.locked_leaf(vm, pin, va, leaf.is_writable())?;
            if !check() {
                return Err(EnterError::Stale);
            }
            let old = table.get(at);
            debug_assert!(
                old.is_empty() || old.is_present(),
                "claimed and busy entries live under the lock"
            );
            if old.is_empty() {
                if flushed || !self.is_frame_due(va, end) {
                    table.grow(at);
                    table.fill(at, leaf);
                    return Ok(replaced.map_or(Entered::New, Entered::Replaced));
                }
                drop(guard);
                tlb::flush_page(vm, self, va);
                flushed = true;
            } else if old.pfn() == leaf.pfn() {
                let merged = merge(old, leaf);
                if merged == old {
                    return Ok(Entered::Same);
                }
                if table.compare_exchange(at, old, merged).is_ok() {
                    return Ok(Entered::Upgraded);
                }
            } else if over {
                let mut gather = Gather::new();
                gather.over(self, va..end, Loss::Frames);
                gather.record(self, va);
                let taken = table.take(at);
                if !taken.is_empty() {
                    table.shrink(1);
                    replaced = Some(taken);
                }
                drop(guard);
                gather.finish(vm);
                flushed = true;
            } else {
                return Err(EnterError::Occupied(old));
            }
        }
    }

    /// Enters a leaf for a page that was found without a lock and that the caller does not hold.
    ///
    /// The slot is claimed, then `identity` says whether the page still is what it was and is not hard-busy. A scan
    /// makes the page hard-busy before it visits the slot, with a full fence between, as there is one here: one of the two
    /// sees the other. `check` is as for [`enter`](Pmap::enter), and so is what is promised of other frames' translations: a page with the
    /// same identity before and after a flush has had it all the time, for the caller is pinned.
    ///
    /// # Errors
    ///
    /// All of [`EnterError`] but `FlushDue`; nothing has changed then.
    pub fn enter_resident<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        leaf: Pte,
        mut check: impl FnMut() -> bool,
        mut identity: impl FnMut() -> bool,
    ) -> Result<Entered, EnterError> {
        match self.try_resident(vm, pin, va, leaf, false, &mut check, &mut identity) {
            Err(EnterError::FlushDue) => {
                tlb::flush_page(vm, self, va);
                self.try_resident(vm, pin, va, leaf, true, check, identity)
            }
            entered => entered,
        }
    }

    /// As `enter_resident`, in one hold of the table's lock: where a flush is due and was not made just before, nothing is done.
    ///
    /// # Errors
    /// All of [`EnterError`].
    #[inline(always)]
    #[expect(
        clippy::too_many_arguments,
        reason = "those of enter_resident, and whether it has flushed"
    )]
    pub(crate) fn try_resident<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        leaf: Pte,
        flushed: bool,
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
                if !flushed && self.is_frame_due(va, va + PAGE_SIZE as u64) {
                    return Err(EnterError::FlushDue);
                }
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
            // A scan that withdraws rights may have been here already, so growing needs a claim too, on the live entry. It finds the
            // claim, or the page is seen to be busy: a full barrier lies between claim and look, as in the scan, which does not
            // write to an entry that is as it is to be.
            let claimed = old.with(Pte::CLAIMED);
            if table.compare_exchange(at, old, claimed).is_ok() {
                ksync::fence_after_rmw();
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
    /// marked accessed; occupied slots are left alone, and all are where another frame's translation may be left. `identity(n, frame)` is as for [`enter_resident`](Pmap::enter_resident).
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
        let due = self.is_frame_due(va, va + (count * PAGE_SIZE) as u64);
        let (claimed, mut entered) = (claims.count_ones() as usize, 0);
        while claims != 0 {
            let n = claims.trailing_zeros() as usize;
            claims &= claims - 1;
            let claim = table.get(first + n);
            // A scan that emptied it has counted it.
            if !claim.is_empty() {
                let pfn = claim.pfn();
                entered += usize::from(settle(
                    &table,
                    first + n,
                    leaf(pfn),
                    !due && identity(n, pfn),
                ));
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
