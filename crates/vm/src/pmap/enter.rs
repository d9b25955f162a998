//! Filling page-table entries.

use ksync::CpuPin;
use ksync::atomic::{Ordering::SeqCst, fence};

use super::pte::Pte;
use super::table::{ENTRIES, Table, slot};
use super::walk::Answer;
use super::{Loss, Pmap, Prot, USER_END};
use crate::page::{PAGE_SIZE, Pfn};
use crate::rmap::{self, Blocked, Held, Map, ReverseMap, Ticket};
use crate::tlb::{self, Gather};
use crate::{Machine, NoMemory, Vm};

/// Result of an enter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entered {
    /// The slot was empty.
    New,
    /// The slot maps the frame with all rights asked for: a spurious fault, or another thread was faster.
    Same,
    /// The slot mapped the frame with fewer rights. No other CPU needs a flush: rights only grew, and a CPU with the
    /// old translation takes at most one fault, which drops it.
    Upgraded,
    /// The slot mapped another frame, by this entry, whose D bit the caller hands on where the page could have been written by it. No CPU has a
    /// translation for it any more.
    Replaced(Pte),
}

/// Why nothing was entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EnterError {
    /// No memory for a table page.
    NoTable(NoMemory),
    /// The caller's check failed, or the pmap was released: the fault must start again from the map.
    Stale,
    /// The slot has another entry: this one.
    Occupied(Pte),
    /// The slot is empty, but a CPU may still use another frame's translation.
    FlushDue,
    /// The page is hard-busy, or has changed its identity: the fault must look it up again.
    Retry,
    /// The list of a page, of the new or of a replaced entry, is held: the fault waits, and starts again.
    Blocked(Blocked),
}

impl From<NoMemory> for EnterError {
    fn from(cause: NoMemory) -> EnterError {
        EnterError::NoTable(cause)
    }
}

impl From<Blocked> for EnterError {
    #[inline]
    fn from(blocked: Blocked) -> EnterError {
        EnterError::Blocked(blocked)
    }
}

/// Most pages of one call of [`Pmap::enter_around`].
pub const AROUND: usize = 16;

const _: () = assert!(AROUND <= u32::BITS as usize);

impl Pmap {
    /// Enters a leaf into an empty slot, for a page that the caller holds busy. `check` is as for
    /// [`enter`](Pmap::enter), which handles other slots.
    ///
    /// # Errors
    ///
    /// All of [`EnterError`] but `Retry`; `Occupied` for any entry in the slot, `FlushDue` if a translation of another
    /// frame may be cached. Nothing has changed then. `Same`, without a check, is the result only where a leaf of 2 MiB
    /// says all that `leaf` does.
    #[inline(always)]
    pub fn enter_new<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        ticket: &Ticket<'_>,
        va: u64,
        leaf: Pte,
        check: impl FnOnce() -> bool,
    ) -> Result<Entered, EnterError> {
        let (table, _guard) = match self.locked_leaf(vm, pin, va, leaf) {
            Ok(locked) => locked,
            Err(answer) => return answer,
        };
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
        fill_listed(vm, ticket, &table, va, leaf)?;
        Ok(Entered::New)
    }

    /// Enters a leaf for a page that the caller holds busy, so that no scan which takes entries out can be working on it.
    ///
    /// `check` runs under the table's lock, just before the entry is filled. It says, by a sequentially consistent
    /// load, whether the map entry still is as the caller saw it. An operation that changes a map entry does so before
    /// it touches page tables, so either `check` fails or that operation finds the new leaf. `check` may run several
    /// times.
    ///
    /// When the entry is filled, no CPU has a translation of another frame at `va`. The flush that may be needed for
    /// that is made without a lock held.
    ///
    /// # Errors
    ///
    /// All of [`EnterError`] but `Retry` and `FlushDue`; nothing has changed then.
    pub fn enter<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        ticket: &Ticket<'_>,
        va: u64,
        leaf: Pte,
        mut check: impl FnMut() -> bool,
    ) -> Result<Entered, EnterError> {
        self.enter_flushed(vm, pin, ticket, va, leaf, false, &mut check)
    }

    /// As [`enter`](Pmap::enter), but replaces another frame's entry, which is gone for every CPU before the new one is
    /// filled in. The replaced page must not be reused before this returns.
    ///
    /// # Errors
    ///
    /// All of [`EnterError`] but `Retry`, `FlushDue` and `Occupied`. Another frame's entry may have been removed then.
    pub fn enter_over<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        ticket: &Ticket<'_>,
        va: u64,
        leaf: Pte,
        mut check: impl FnMut() -> bool,
    ) -> Result<Entered, EnterError> {
        self.enter_flushed(vm, pin, ticket, va, leaf, true, &mut check)
    }

    /// Enters a leaf when no CPU has a translation of another frame any more, after a flush if need be.
    ///
    /// A flush counts for the next hold of the lock alone. Entries removed before it are gone everywhere; and between
    /// the two holds only this leaf's frame can have been entered at the address, or `check` fails.
    #[inline(never)]
    #[expect(
        clippy::too_many_arguments,
        reason = "those of enter, and whether it replaces"
    )]
    fn enter_flushed<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        ticket: &Ticket<'_>,
        va: u64,
        leaf: Pte,
        over: bool,
        check: &mut dyn FnMut() -> bool,
    ) -> Result<Entered, EnterError> {
        let (at, end) = (slot(va, 1), va + PAGE_SIZE as u64);
        let (mut flushed, mut replaced) = (false, None);
        loop {
            let (table, guard) = match self.locked_leaf(vm, pin, va, leaf) {
                Ok(locked) => locked,
                Err(answer) => return answer,
            };
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
                    fill_listed(vm, ticket, &table, va, leaf)?;
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
                let held = rmap::leave(vm, self, old, va)?;
                let mut gather = Gather::new();
                gather.over(self, va..end, Loss::Frames);
                gather.record(self, va);
                let taken = table.take(at);
                held.settle(!taken.is_empty());
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

    /// Enters a leaf for a page that was found without a lock and that the caller does not hold busy.
    ///
    /// The slot is claimed; then `identity` says whether the page still is what it was and is not hard-busy. A scan
    /// makes the page hard-busy before it visits the slot; both put a full fence in between, so one of the two sees the
    /// other. Where entries are listed, the page's list is held instead: the scan, which holds it too, comes before the
    /// question or after the fill. `check` is as for [`enter`](Pmap::enter), and so is the guarantee about other frames'
    /// translations: the caller is pinned, so a page with the same identity before and after a flush has had it all the
    /// time.
    ///
    /// # Errors
    ///
    /// All of [`EnterError`] but `FlushDue`; nothing has changed then.
    #[expect(
        clippy::too_many_arguments,
        reason = "one place and two questions to the caller"
    )]
    pub fn enter_resident<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        ticket: &Ticket<'_>,
        va: u64,
        leaf: Pte,
        mut check: impl FnMut() -> bool,
        mut identity: impl FnMut() -> bool,
    ) -> Result<Entered, EnterError> {
        match self.try_resident(vm, pin, ticket, va, leaf, false, &mut check, &mut identity) {
            Err(EnterError::FlushDue) => {
                tlb::flush_page(vm, self, va);
                self.try_resident(vm, pin, ticket, va, leaf, true, check, identity)
            }
            entered => entered,
        }
    }

    /// As `enter_resident`, in one hold of the table's lock; does nothing if a flush is due and `flushed` is false.
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
        ticket: &Ticket<'_>,
        va: u64,
        leaf: Pte,
        flushed: bool,
        check: impl FnOnce() -> bool,
        identity: impl FnOnce() -> bool,
    ) -> Result<Entered, EnterError> {
        let (table, _guard) = match self.locked_leaf(vm, pin, va, leaf) {
            Ok(locked) => locked,
            Err(answer) => return answer,
        };
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
                let held = rmap::list(vm, ticket, leaf, va)?;
                return if fill_if(&table, at, leaf, held, identity) {
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
            // A scan that withdraws rights may have visited this entry already, so adding rights needs a claim too, on
            // the live entry. Either the scan finds the claim, or this sees the busy page: each side has a full barrier
            // between its two steps. A scan does not write to an entry that already is as it should be.
            if Map::PER_PAGE {
                let held = rmap::hold(vm, old)?;
                return merge_if(&table, at, leaf, held, identity);
            }
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
    /// with one fence. `page(n)` returns the frame for `va + n` pages, if there is one; it is entered with `prot` and
    /// not marked accessed. Occupied slots are left alone, and so are all slots if a translation of another frame may
    /// be cached. `identity(n, frame)` is as for [`enter_resident`](Pmap::enter_resident). The range must lie in one
    /// table. Returns the number of pages entered.
    ///
    /// # Errors
    ///
    /// [`EnterError::Stale`] if `check` fails or the pmap was released, [`EnterError::NoTable`].
    #[expect(
        clippy::too_many_arguments,
        reason = "one place and three questions to the caller"
    )]
    pub fn enter_around<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        ticket: &Ticket<'_>,
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
        // A leaf of 2 MiB occupies all slots.
        let wanted = Pte(if prot.write { Pte::W } else { 0 });
        let (table, _guard) = match self.locked_leaf(vm, pin, va, wanted) {
            Ok(locked) => locked,
            Err(answer) => return answer.map(|_| 0),
        };
        if !check() {
            return Err(EnterError::Stale);
        }
        let leaf = |pfn| Pte::user(pfn, prot).untouched();
        if Map::PER_PAGE {
            let leaf = |n| page(n).map(leaf);
            return Ok(self.list_around(vm, ticket, &table, (va, count), leaf, identity));
        }
        // All slots are counted at once; those that stay empty are subtracted at the end.
        table.grow_many(first, count);
        // One bit for each claim; the claim itself holds the frame number.
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
            // A scan that emptied the slot has subtracted it.
            if !claim.is_empty() {
                let pfn = claim.pfn();
                let good = !due && identity(n, pfn);
                entered += usize::from(settle(&table, first + n, leaf(pfn), good));
            }
        }
        table.shrink((count - claimed) as u32);
        Ok(entered)
    }

    /// The part of `enter_around` where entries are listed. The table is locked. Here a slot is left alone by itself, if a
    /// translation of another frame may be cached there, its page's list is held, or there is no room for its entry.
    fn list_around<M: Machine>(
        &self,
        vm: &Vm<M>,
        ticket: &Ticket<'_>,
        table: &Table,
        (va, count): (u64, usize),
        mut leaf: impl FnMut(usize) -> Option<Pte>,
        mut identity: impl FnMut(usize, Pfn) -> bool,
    ) -> usize {
        vm.rmap.top_up(vm, ticket, count);
        let enter = |n: &usize| {
            let va = va + (n * PAGE_SIZE) as u64;
            let free = table.get(slot(va, 1)).is_empty();
            let may = free && !self.is_frame_due(va, va + PAGE_SIZE as u64);
            may.then(|| leaf(*n)).flatten().is_some_and(|leaf| {
                let good = || identity(*n, leaf.pfn());
                rmap::list(vm, ticket, leaf, va)
                    .is_ok_and(|held| fill_if(table, slot(va, 1), leaf, held, good))
            })
        };
        (0..count).filter(enter).count()
    }
}

/// Counts, fills and lists an empty slot of a locked table, for a page that the caller holds busy.
#[inline(always)]
fn fill_listed<M: Machine>(
    vm: &Vm<M>,
    ticket: &Ticket<'_>,
    table: &Table,
    va: u64,
    leaf: Pte,
) -> Result<(), Blocked> {
    let (held, at) = (rmap::list(vm, ticket, leaf, va)?, slot(va, 1));
    table.grow(at);
    table.fill(at, leaf);
    held.done();
    Ok(())
}

/// Fills an empty slot, whose list is held, if the page is good; under a claim where it is in no list. Returns whether the
/// slot has the leaf.
#[inline(always)]
fn fill_if(
    table: &Table,
    at: usize,
    leaf: Pte,
    held: Held<'_>,
    identity: impl FnOnce() -> bool,
) -> bool {
    if !Map::PER_PAGE {
        claim(table, at, leaf);
        fence(SeqCst);
        return settle(table, at, leaf, identity());
    }
    let good = identity();
    if good {
        table.grow(at);
        table.fill(at, leaf);
    }
    held.settle(good);
    good
}

/// Gives a live entry, whose list is held, the rights of `leaf`, if the page is good and the entry has not gone.
fn merge_if(
    table: &Table,
    at: usize,
    leaf: Pte,
    held: Held<'_>,
    identity: impl FnOnce() -> bool,
) -> Answer {
    let good = identity();
    let mut seen = table.get(at);
    let mut done = false;
    // Hardware may set A and D meanwhile.
    while good && !done && seen.is_present() {
        match table.compare_exchange(at, seen, merge(seen, leaf)) {
            Ok(()) => done = true,
            Err(now) => seen = now,
        }
    }
    // It stays listed as it was.
    held.undo();
    if done {
        Ok(Entered::Upgraded)
    } else {
        Err(EnterError::Retry)
    }
}

/// Claims an empty slot. The caller holds the lock, and puts a full fence after its claims.
#[inline]
fn claim(table: &Table, at: usize, leaf: Pte) {
    table.grow(at);
    table.fill(at, leaf.claimed());
}

/// Turns a claim into the leaf if the page is `good` and no scan has removed the claim; else empties the slot.
#[inline]
fn settle(table: &Table, at: usize, leaf: Pte, good: bool) -> bool {
    let new = if good { leaf } else { Pte::EMPTY };
    match table.compare_exchange(at, leaf.claimed(), new) {
        Ok(()) if good => true,
        Ok(()) => {
            table.shrink(1);
            false
        }
        // The scan that emptied the slot has subtracted it.
        Err(_) => false,
    }
}

/// Gives a claimed live entry the rights of `leaf`, if the page is `good` and no scan has removed the claim.
fn upgrade(table: &Table, at: usize, claimed: Pte, leaf: Pte, good: bool) -> bool {
    if !good {
        table.mask(at, Pte::CLAIMED);
        return false;
    }
    let mut seen = claimed;
    // Hardware may set A and D meanwhile. Only a scan removes the claim.
    while seen.any(Pte::CLAIMED) {
        match table.compare_exchange(at, seen, merge(seen, leaf).without(Pte::CLAIMED)) {
            Ok(()) => return true,
            Err(now) => seen = now,
        }
    }
    false
}

/// Whether `old` maps the frame of `leaf` with all of its rights, and is dirty if that is. Hardware sets A.
pub(super) fn says_all(old: Pte, leaf: Pte) -> bool {
    old.pfn() == leaf.pfn() && merge(old, leaf).without(Pte::A) == old.without(Pte::A)
}

/// The entry with the rights of both. The rights of `old` are still valid, because an operation that withdraws rights
/// changes the entry itself.
fn merge(old: Pte, leaf: Pte) -> Pte {
    let grown = old.with(leaf.0 & (Pte::W | Pte::A | Pte::D | Pte::WIRED));
    if leaf.is_executable() {
        grown.without(Pte::NX)
    } else {
        grown
    }
}
