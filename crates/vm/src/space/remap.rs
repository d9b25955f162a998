//! mremap.

use rust_alloc::sync::Arc;
use smallvec::smallvec;

use super::edit::{Entries, Locked, is_short};
use super::mmap::{find_hole, range_end, round_up};
use super::{Space, VmError};
use crate::backing::{Backing, Chain, Layers, Relation};
use crate::map::{EntryArgs, EntryFlags, Extent, MapEntry};
use crate::{Machine, Vm};

/// Where the mapping may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemapTarget {
    /// It stays.
    Stay,
    /// Anywhere, if it cannot stay.
    MayMove,
    /// There, replacing what is there.
    Fixed(u64),
}

/// A mapping to be moved or resized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemapArgs {
    /// Its address.
    pub old: u64,
    /// Its length; 0 makes a second mapping of a shared one.
    pub old_len: u64,
    /// The length to be.
    pub new_len: u64,
    /// Where it may go.
    pub target: RemapTarget,
    /// Leave the old range mapped. Where it is private it is as when it was first mapped.
    pub keep_old: bool,
}

impl Space {
    /// Moves or resizes a mapping; returns its address.
    ///
    /// # Errors
    /// - `NotMapped`: the old range is not mapped throughout;
    /// - `Invalid`: alignment, overlap of a fixed target, or `keep_old` for a device;
    /// - `NoMemory`: it cannot grow where it is and may not move, or no room.
    pub fn remap<M: Machine>(&self, vm: &Vm<M>, args: &RemapArgs) -> Result<u64, VmError> {
        let mut map = self.lock();
        let old_end = range_end(&map, args.old, args.old_len)?;
        let new_len = round_up(args.new_len)
            .filter(|&len| len > 0)
            .ok_or(VmError::Invalid)?;
        let old_len = old_end - args.old;
        if old_len == 0 {
            return self.duplicate(vm, &mut map, args, new_len);
        }
        if !map.covers(args.old, old_end) {
            return Err(VmError::NotMapped);
        }
        if new_len > old_len && self.shows_device(&map, args.old, old_end) {
            // As in Linux: what a device shows is what it was asked for.
            return Err(VmError::NotMapped);
        }
        if args.keep_old && self.shows_device(&map, args.old, old_end) {
            return Err(VmError::Invalid);
        }
        if let RemapTarget::Fixed(at) = args.target {
            let end = range_end(&map, at, new_len)?;
            if at < map.low() || (at < old_end && args.old < end) {
                return Err(VmError::Invalid);
            }
            map.unmap(vm, at, end)?;
            return self.relocate(vm, &mut map, args, old_len, at, new_len);
        }
        if new_len <= old_len && !args.keep_old {
            if new_len < old_len {
                map.unmap(vm, args.old + new_len, old_end)?;
            }
            return Ok(args.old);
        }
        let grown_end = args
            .old
            .checked_add(new_len)
            .filter(|&end| end <= map.high());
        if let (false, Some(end)) = (args.keep_old, grown_end)
            && self.ends_entry(&map, old_end)
            && map.is_free(old_end, end)
        {
            self.extend(vm, &mut map, old_end, end)?;
            return Ok(args.old);
        }
        if args.target == RemapTarget::Stay {
            return Err(VmError::NoMemory);
        }
        let offset = map
            .find(args.old)
            .map_or(0, |entry| entry.file_offset(args.old).unwrap_or(0));
        let at = find_hole(&map, new_len, offset)?;
        self.relocate(vm, &mut map, args, old_len, at, new_len)
    }

    fn ends_entry(&self, map: &Locked<'_>, at: u64) -> bool {
        map.find(at - 1).is_some_and(|entry| entry.end() == at)
    }

    /// Maps `start..end`, which is free, as the continuation of the entry that ends at `start`.
    fn extend<M: Machine>(
        &self,
        vm: &Vm<M>,
        map: &mut Locked<'_>,
        start: u64,
        end: u64,
    ) -> Result<(), VmError> {
        let Some(entry) = map.find(start - 1) else {
            return Err(VmError::NotMapped);
        };
        let args = EntryArgs {
            start,
            end,
            ..entry.args()
        };
        let bottom = {
            let pin = ksync::pin();
            entry
                .chain(&pin)
                .map(|chain| chain.layers()[chain.layers().len() - 1].clone())
        };
        // What continues is what everybody shares: a file, or shared memory. Private memory goes on as zeroes.
        let shared = entry.is_shared() || args.flags.contains(EntryFlags::FILE);
        let chain = match bottom {
            Some(layer) if shared => {
                let object = layer.object_ref().ok_or(VmError::NotMapped)?;
                let relation = Relation::up(start, u64::from(layer.index(start)));
                let attached = Backing::attach(&object, self.pmap_arc(), relation, start, end);
                object.release(vm);
                Some(Chain::of(attached?))
            }
            _ => None,
        };
        let needs_copy = chain.is_some() && !entry.is_shared();
        map.insert(vm, smallvec![MapEntry::new(args, chain, needs_copy)]);
        map.merge_between(vm, start, end);
        Ok(())
    }

    /// Maps the old range at `at`, which is free, and unmaps it where it was. Pages stay in their objects; those that are
    /// mapped are mapped at the new address before they go at the old one.
    fn relocate<M: Machine>(
        &self,
        vm: &Vm<M>,
        map: &mut Locked<'_>,
        args: &RemapArgs,
        old_len: u64,
        at: u64,
        new_len: u64,
    ) -> Result<u64, VmError> {
        map.admit_entry()?;
        let moved = old_len.min(new_len);
        let (start, end) = (args.old, args.old + moved);
        let distance = at.wrapping_sub(start);
        let old = map.overlapping(vm, start, end)?;
        let mut new = Entries::new();
        new.try_reserve_exact(old.len())
            .map_err(|_| VmError::NoMemory)?;
        for entry in old {
            if is_short(vm, new.len()) {
                new.iter().for_each(|copy| copy.end_shared(vm));
                return Err(VmError::NoMemory);
            }
            match self.moved_entry(&entry, start, end, distance) {
                Ok(copy) => new.push(copy),
                Err(why) => {
                    new.iter().for_each(|copy| copy.end_shared(vm));
                    return Err(why);
                }
            }
        }
        map.insert(vm, new);
        self.carry(vm, start, end, distance);
        if args.keep_old {
            // What is private starts afresh; the pages are the new range's.
            self.replace_fresh(vm, map, start, args.old + old_len)?;
        } else {
            self.unmap_moved(vm, map, start, args.old + old_len)?;
        }
        if new_len > moved {
            self.extend(vm, map, at + moved, at + new_len)?;
        }
        Ok(at)
    }

    /// As `unmap`; the pages in the range have another attachment, so none is freed that was moved.
    fn unmap_moved<M: Machine>(
        &self,
        vm: &Vm<M>,
        map: &mut Locked<'_>,
        start: u64,
        end: u64,
    ) -> Result<(), VmError> {
        map.unmap(vm, start, end)
    }

    fn moved_entry(
        &self,
        entry: &MapEntry,
        start: u64,
        end: u64,
        distance: u64,
    ) -> Result<Arc<MapEntry>, VmError> {
        let args = entry.args();
        let args = EntryArgs {
            start: args.start.max(start).wrapping_add(distance),
            end: args.end.min(end).wrapping_add(distance),
            ..args
        };
        let layers = {
            let pin = ksync::pin();
            entry.chain(&pin).map(Chain::view)
        };
        let Some(layers) = layers else {
            return Ok(MapEntry::new(args, None, false));
        };
        let mut moved = Layers::new();
        for layer in layers.layers() {
            moved.push(layer.replicate(self.pmap_arc(), distance)?);
        }
        Ok(MapEntry::new(
            args,
            Some(Chain::new(moved)),
            entry.state().needs_copy(),
        ))
    }

    /// A second mapping of shared memory, from the old address on.
    fn duplicate<M: Machine>(
        &self,
        vm: &Vm<M>,
        map: &mut Locked<'_>,
        args: &RemapArgs,
        len: u64,
    ) -> Result<u64, VmError> {
        let entry = map.find(args.old).ok_or(VmError::NotMapped)?;
        if entry.flags().contains(EntryFlags::DEVICE) {
            return Err(VmError::NotMapped);
        }
        if !entry.is_shared() {
            return Err(VmError::Invalid);
        }
        let at = match args.target {
            RemapTarget::Stay => return Err(VmError::NoMemory),
            RemapTarget::MayMove => find_hole(map, len, 0)?,
            RemapTarget::Fixed(at) => {
                let end = range_end(map, at, len)?;
                map.unmap(vm, at, end)?;
                at
            }
        };
        let layer = {
            let pin = ksync::pin();
            entry.chain(&pin).map(|chain| chain.front().clone())
        };
        let layer = layer.ok_or(VmError::NotMapped)?;
        let object = layer.object_ref().ok_or(VmError::NotMapped)?;
        let relation = Relation::up(at, u64::from(layer.index(args.old)));
        let attached = Backing::attach(&object, self.pmap_arc(), relation, at, at + len);
        object.release(vm);
        let chain = Chain::of(attached?);
        let args = EntryArgs {
            start: at,
            end: at + len,
            ..entry.args()
        };
        map.insert(vm, smallvec![MapEntry::new(args, Some(chain), false)]);
        Ok(at)
    }
}
