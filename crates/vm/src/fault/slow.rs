//! The part of faults that needs the map's lock.

use super::{FaultError, MAX_DEPTH, Slow};
use crate::alloc::NoMemory;
use crate::backing::{Backing, Chain, Relation};
use crate::map::{EntryFlags, Extent, GUARD_GAP, MapEntry};
use crate::space::{Locked, Space};
use crate::{Machine, Vm};

impl Space {
    /// Does `what` for the entry at `va`, if it still is to be done. Returns whether the fault is served.
    pub(super) fn slow<M: Machine>(
        &self,
        vm: &Vm<M>,
        va: u64,
        what: Slow,
    ) -> Result<bool, FaultError> {
        let mut map = self.lock();
        let Some(entry) = map.find(va).cloned() else {
            return self.grow_down(vm, &mut map, va);
        };
        match what {
            // Another thread was faster.
            Slow::GrowDown => {}
            Slow::MakeObject => self.make_object(vm, &entry)?,
            Slow::Shadow => {
                if entry.state().needs_copy() && !entry.is_shared() {
                    self.shadow(vm, &entry)?;
                }
            }
            Slow::Collapse => {
                // Without memory the chain stays long; the fault itself is served.
                let _folded = self.collapse_step(vm, &mut map, &entry);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives an anonymous entry its object.
    pub(crate) fn make_object<M: Machine>(
        &self,
        vm: &Vm<M>,
        entry: &MapEntry,
    ) -> Result<(), NoMemory> {
        if !entry.chain_slot().is_none() {
            return Ok(());
        }
        // What grows down counts from its top, so that indexes stay small and growth needs no new object.
        let relation = if entry.flags().contains(EntryFlags::GROWSDOWN) {
            Relation::down(entry.end())
        } else {
            Relation::up(entry.start(), 0)
        };
        let layer = Backing::attach_anon(vm, self.pmap_arc(), relation)?;
        entry.set_chain(vm, Some(Chain::of(layer)));
        Ok(())
    }

    /// Gives a private entry a front layer of its own.
    fn shadow<M: Machine>(&self, vm: &Vm<M>, entry: &MapEntry) -> Result<(), NoMemory> {
        let pin = ksync::pin();
        let Some(old) = entry.chain(&pin) else {
            entry.set_needs_copy(false);
            return Ok(());
        };
        vm.stats.get(&pin).shadows.add(1);
        if old.front().is_own() {
            // Whoever shared it is gone: nobody can come, for that takes a fork, which takes the map's lock.
            entry.set_needs_copy(false);
            return Ok(());
        }
        let front = Backing::attach_anon(vm, self.pmap_arc(), Relation::up(entry.start(), 0))?;
        let new = old.shadowed_by(front);
        // The chain before the state: a fault that sees the new state sees the new chain.
        entry.succeed(vm, &pin, old, new);
        entry.set_needs_copy(false);
        Ok(())
    }

    /// Extends a range that grows down to `va`.
    fn grow_down<M: Machine>(
        &self,
        vm: &Vm<M>,
        map: &mut Locked<'_>,
        va: u64,
    ) -> Result<bool, FaultError> {
        let above = map
            .tree()
            .first_ending_above(va)
            .filter(|e| e.flags().contains(EntryFlags::GROWSDOWN))
            .cloned();
        let Some(entry) = above else {
            return Err(FaultError::NotMapped);
        };
        let below = map
            .tree()
            .last_starting_below(entry.start())
            .map_or(0, |e| e.end());
        let too_long = entry.end() - va > self.stack_limit();
        if too_long || va < below.saturating_add(GUARD_GAP) || va < map.low() {
            return Err(FaultError::NotMapped);
        }
        let mut args = entry.args();
        args.start = va;
        map.replace_one(vm, &entry, args);
        Ok(false)
    }

    /// Folds a chain by one bounded step; see `collapse.rs`. For chains that are long enough.
    fn collapse_step<M: Machine>(
        &self,
        vm: &Vm<M>,
        map: &mut Locked<'_>,
        entry: &MapEntry,
    ) -> Result<bool, NoMemory> {
        let pin = ksync::pin();
        let long = entry
            .chain(&pin)
            .is_some_and(|chain| chain.layers().len() > MAX_DEPTH);
        drop(pin);
        if !long || entry.state().needs_copy() {
            return Ok(true);
        }
        self.collapse(vm, map, entry)
    }
}
