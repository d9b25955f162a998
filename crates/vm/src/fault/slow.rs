//! The part of faults that needs the map's lock.

use super::superpage::{BLOCK_BYTES, has_block, wants};
use super::{Access, FaultError, Slow, allows};
use crate::alloc::NoMemory;
use crate::backing::{Backing, Chain, LONGEST, Relation};
use crate::map::{EntryFlags, Extent, GUARD_GAP, MapEntry};
use crate::page::PAGE_SHIFT;
use crate::space::{Effort, Entries, Locked, Space, add_plain};
use crate::{Growth, Machine, Vm};

impl Space {
    /// Does `what` for the entry at `va`, if it is still needed, under the map's lock; or, if nothing is mapped there, lets a
    /// stack grow, whatever `what` is. Returns whether the fault is served; if not, the caller tries again.
    pub(super) fn slow<M: Machine>(
        &self,
        vm: &Vm<M>,
        va: u64,
        what: Slow,
    ) -> Result<bool, FaultError> {
        let mut map = self.lock();
        let Some(entry) = map.find(va) else {
            return self.grow_down(vm, &mut map, va);
        };
        match what {
            // Another thread was faster; or served elsewhere.
            Slow::GrowDown | Slow::Leaf | Slow::ReadSpecial => {}
            // The entry may be another one than when the fault began.
            Slow::MakeObject if entry.is_special() => {
                if allows(entry.prot(), Access::Write) {
                    self.attach_special(vm, &mut map, &entry)?;
                }
            }
            Slow::MakeObject => self.make_object(vm, &entry)?,
            Slow::Shadow => {
                if entry.state().needs_copy() && !entry.is_shared() {
                    self.shadow(vm, &entry)?;
                }
            }
            Slow::Collapse => {
                // Without memory the chain stays long; the fault itself is served.
                let _more = self.fold(vm, &entry, Effort::Step);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives an anonymous entry its object, if it has none. The map's lock is held.
    pub(crate) fn make_object<M: Machine>(
        &self,
        vm: &Vm<M>,
        entry: &MapEntry,
    ) -> Result<(), NoMemory> {
        if !entry.chain_slot().is_none() {
            return Ok(());
        }
        let layer = Backing::attach_anon(vm, self.pmap(), relation(vm, self, entry))?;
        entry.set_chain(vm, Some(Chain::of(layer)));
        Ok(())
    }

    /// Gives a private entry that needs a copy a front layer of its own, whose extent the entry does not bound; if its front
    /// is its own already, only clears the mark. Either begins a new generation, so that faults which saw the old state start
    /// again. Each call counts as one of `shadows`. The map's lock is held. On an error nothing else has changed.
    fn shadow<M: Machine>(&self, vm: &Vm<M>, entry: &MapEntry) -> Result<(), NoMemory> {
        let is_own = {
            let pin = ksync::pin();
            let Some(old) = entry.chain(&pin) else {
                // Without layers there is nothing to copy: see `MapEntry::new`.
                return Ok(());
            };
            vm.stats.get(&pin).shadows.add(1);
            old.front().is_own()
        };
        // If it is, the spaces that shared it have ended. No other can start to, because that takes a fork, which needs the
        // map's lock.
        if !is_own {
            let front = Backing::attach_anon(vm, self.pmap(), relation(vm, self, entry))?;
            // The chain is published before the state: a fault that sees the new state sees the new chain.
            if let Some(new) = entry.shadowed_by(front) {
                entry.succeed(vm, new);
            }
        }
        entry.set_needs_copy(false);
        Ok(())
    }

    /// Extends a range that grows down to `va`, where nothing is mapped. Enters no page: the result is false, and the caller
    /// tries again. The map's lock is held.
    ///
    /// # Errors
    /// `NotMapped`, with nothing changed: no such range is next above, less than a guard gap would be left above what is
    /// mapped below, a resource limit forbids it, or there is no memory or room for another entry.
    fn grow_down<M: Machine>(
        &self,
        vm: &Vm<M>,
        map: &mut Locked<'_>,
        va: u64,
    ) -> Result<bool, FaultError> {
        let above = map
            .tree()
            .first_ending_above(va)
            .filter(|e| e.flags().contains(EntryFlags::GROWSDOWN));
        let Some(entry) = above else {
            return Err(FaultError::NotMapped);
        };
        let below = map
            .tree()
            .last_starting_below(entry.start())
            .map_or(0, |e| e.end());
        let mut top = entry.end();
        while let Some(next) = map
            .find(top)
            .filter(|e| e.flags().contains(EntryFlags::GROWSDOWN))
        {
            top = next.end();
        }
        if va < below.saturating_add(GUARD_GAP) || va < map.low() {
            return Err(FaultError::NotMapped);
        }
        let more = entry.start() - va;
        let locked = entry.flags().contains(EntryFlags::LOCKED);
        let growth = Growth {
            stack: top - va,
            space: (map.pages() << PAGE_SHIFT) + more,
            locked: locked.then(|| (map.locked_pages() << PAGE_SHIFT) + more),
        };
        if !vm.machine.may_grow(&growth) {
            return Err(FaultError::NotMapped);
        }
        let mut args = entry.args();
        if !is_fresh(&entry, va) {
            // Pages of an unmapped part still exist because another space may reach them, or the range gets too long
            // for one object.
            (args.start, args.end) = (va, entry.start());
            let mut new = Entries::new();
            add_plain(&mut new, args)
                .and_then(|()| map.admit_more(new.len()))
                .map_err(|_| FaultError::NotMapped)?;
            map.insert(vm, new);
            return Ok(false);
        }
        args.start = va;
        map.replace_one(vm, &entry, args);
        Ok(false)
    }
}

/// The address relation of a new anonymous layer. A range that grows down counts from its top, so that indexes stay
/// small and growth needs no new object. Where superpages are wanted, indexes agree with page numbers modulo 512.
fn relation<M: Machine>(vm: &Vm<M>, space: &Space, entry: &MapEntry) -> Relation {
    if entry.flags().contains(EntryFlags::GROWSDOWN) {
        return Relation::down(entry.end());
    }
    let start = entry.start();
    let congruent = wants(vm, space, entry.flags()) && has_block(start, entry.end());
    let first = (start % BLOCK_BYTES) >> PAGE_SHIFT;
    Relation::up(start, if congruent { first } else { 0 })
}

/// Whether an entry may be extended down to `va`: each layer has indexes for the new range and has no page there, and
/// no other space can put pages there.
///
/// Folding in another space brings pages up into layers that this entry shares. Those in a range that was not mapped
/// here must not appear here.
fn is_fresh(entry: &MapEntry, va: u64) -> bool {
    let start = entry.start();
    let Some(chain) = entry.view() else {
        return entry.end() - va <= LONGEST;
    };
    chain.layers().iter().all(|layer| {
        let (first, last) = layer.relation().indexes(va, start);
        layer.relation().holds(va, start)
            && (!layer.is_anon() || layer.is_sole())
            && layer.is_empty(first, last)
    })
}
