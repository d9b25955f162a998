//! mremap.

use smallvec::smallvec;

use super::edit::{Edit, Entries, Locked, is_short};
use super::mmap::{add_plain, find_hole, has_indexes, range_end, round_up};
use super::{Space, VmError};
use crate::backing::{Backing, Chain, Layers, Relation};
use crate::map::{EntryArgs, EntryFlags, Extent, MapEntry};
use crate::{Machine, Vm};

/// Where the mapping may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemapTarget {
    /// It does not move.
    Stay,
    /// Anywhere, if it cannot be resized in place.
    MayMove,
    /// To this address, replacing what is mapped there.
    Fixed(u64),
}

/// A mapping to be moved or resized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemapArgs {
    /// Its address.
    pub old: u64,
    /// Its length; 0 makes a second mapping of a shared one.
    pub old_len: u64,
    /// The new length.
    pub new_len: u64,
    /// Where it may be moved.
    pub target: RemapTarget,
    /// Leave the old range mapped. A private one then has its original contents: zeroes, or the file.
    pub keep_old: bool,
}

/// A move with all its allocations done: it cannot fail any more.
struct Move {
    /// The change at the old range.
    edit: Edit,
    /// The entries of the new range.
    new: Entries,
}

impl Space {
    /// Moves or resizes a mapping; returns its address.
    ///
    /// # Errors
    /// Nothing has changed then, except that a fixed target was unmapped, as in Linux.
    /// - `NotMapped`: the old range is not mapped throughout, or a device's or a special mapping would grow, or a device's be
    ///   mapped twice;
    /// - `Invalid`: alignment, no new length, overlap of a fixed target or one below user space, `keep_old` for a device or a
    ///   special mapping, a part of a special mapping, an old length of 0 for a private mapping, or more of an object than it
    ///   has indexes for;
    /// - `NoMemory`: it cannot grow in place and may not move, no room, or too many mappings.
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
        let (special, grows) = (EntryFlags::SPECIAL, new_len > old_len);
        let kept = match grows || args.keep_old {
            true => special | EntryFlags::DEVICE,
            false => special,
        };
        if (args.keep_old || new_len != old_len) && self.has_any(&map, (args.old, old_end), kept) {
            // As in Linux: what a driver or the kernel has mapped is neither extended nor left behind, and the latter not cut.
            return Err(if grows {
                VmError::NotMapped
            } else {
                VmError::Invalid
            });
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

    /// Maps the free range `start..end` as the continuation of the entry that ends at `start`. On an error nothing has
    /// changed.
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
        let mut new = Entries::new();
        self.continuation(vm, &entry, end, &mut new)?;
        if let Err(why) = map.admit_more(new.len()) {
            Locked::give_up(vm, &new);
            return Err(why);
        }
        map.insert(vm, new);
        map.merge_between(vm, start, end);
        Ok(())
    }

    /// Adds entries that continue `entry` from its end up to `end` to `new`.
    fn continuation<M: Machine>(
        &self,
        vm: &Vm<M>,
        entry: &MapEntry,
        end: u64,
        new: &mut Entries,
    ) -> Result<(), VmError> {
        let start = entry.end();
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
        // A file or a shared object continues; private memory continues as zeroes.
        let shared = entry.is_shared() || entry.flags().contains(EntryFlags::FILE);
        match bottom {
            Some(layer) if shared => {
                let first = u64::from(layer.index(start - 1)) + 1;
                let chain = self.over(vm, &layer, first, (start, end))?;
                new.push(MapEntry::new(args, Some(chain), !entry.is_shared()));
            }
            _ => add_plain(new, args)?,
        }
        Ok(())
    }

    /// A chain of one new layer: `layer`'s object, mapped at `start..end` from index `first` on.
    fn over<M: Machine>(
        &self,
        vm: &Vm<M>,
        layer: &Backing,
        first: u64,
        (start, end): (u64, u64),
    ) -> Result<Chain, VmError> {
        if !has_indexes(first, end - start) {
            return Err(VmError::Invalid);
        }
        let object = layer.object_ref().ok_or(VmError::NotMapped)?;
        let relation = Relation::up(start, first);
        let bounds = (start, end);
        let attached = Backing::attach(&object, self.pmap(), relation, bounds, layer.writes());
        object.release(vm);
        Ok(Chain::of(attached?))
    }

    /// Maps the old range at `at`, which is free, and unmaps it at the old address, or with `keep_old` lets it start afresh
    /// there; changes nothing if it fails. Pages stay in their objects. Those with a page-table entry are entered at the new
    /// address before the old entries are removed.
    ///
    /// The commit comes first, so no fault enters a page at the old address after pages are looked up for the new one.
    /// Such a fault could move a page to the front after the lookup, and stores through the old address would then be
    /// lost at the new one.
    fn relocate<M: Machine>(
        &self,
        vm: &Vm<M>,
        map: &mut Locked<'_>,
        args: &RemapArgs,
        old_len: u64,
        at: u64,
        new_len: u64,
    ) -> Result<u64, VmError> {
        let (start, end) = (args.old, args.old + old_len);
        let moved = old_len.min(new_len);
        let Move { edit, new } = self.prepare(vm, map, args, old_len, at, new_len)?;
        map.commit(vm, &edit.old, edit.new);
        // Pairs with the fence of a fault at the old address: if the fault moved a page to the front and then saw its
        // entry alive, the lookups from here on find the page there. Entries are killed by a locked instruction.
        ksync::fence_after_rmw();
        map.insert(vm, new);
        self.remap_pages(vm, start, start + moved, at.wrapping_sub(start));
        map.remove_pages(vm, start, end);
        for entry in &edit.old {
            let (from, to) = (entry.start().max(start), entry.end().min(end));
            // The new range has its own attachments, so no page that it maps is freed.
            if args.keep_old {
                entry.end_replaced(vm, from, to);
            } else {
                entry.end_part(vm, from, to);
            }
        }
        if args.keep_old {
            map.merge_between(vm, start, end);
        }
        if new_len > moved {
            map.merge_between(vm, at + moved, at + new_len);
        }
        Ok(at)
    }

    /// The part of a move that may fail; then nothing has changed, and no new entry uses a layer.
    fn prepare<M: Machine>(
        &self,
        vm: &Vm<M>,
        map: &Locked<'_>,
        args: &RemapArgs,
        old_len: u64,
        at: u64,
        new_len: u64,
    ) -> Result<Move, VmError> {
        map.admit_more(1)?;
        let (start, end) = (args.old, args.old + old_len);
        let moved_end = start + old_len.min(new_len);
        let distance = at.wrapping_sub(start);
        let (mut new, mut built) = (Entries::new(), Ok(()));
        let edit = map.cut(vm, (start, end), |entry, inside| {
            if built.is_ok() && inside.start < moved_end {
                let moved = EntryArgs {
                    start: inside.start.wrapping_add(distance),
                    end: inside.end.min(moved_end).wrapping_add(distance),
                    ..inside
                };
                built = self.add_moved(vm, &mut new, entry, moved, distance);
            }
            // A private range starts afresh and is no longer locked: its pages and its lock move to the new range.
            (args.keep_old && built.is_ok()).then(|| {
                let flags = inside.flags.difference(EntryFlags::LOCKED);
                entry.fresh(EntryArgs { flags, ..inside })
            })
        });
        let last = new.last().filter(|_| built.is_ok() && new_len > old_len);
        if let Some(last) = last.cloned() {
            built = self.continuation(vm, &last, at + new_len, &mut new);
        }
        let edit = match edit {
            Ok(edit) => edit,
            Err(why) => {
                Locked::give_up(vm, &new);
                return Err(why);
            }
        };
        if let Err(why) = built.and_then(|()| map.admit(&edit, new.len())) {
            Locked::give_up(vm, &new);
            Locked::give_up(vm, &edit.new);
            return Err(why);
        }
        Ok(Move { edit, new })
    }

    /// Adds a copy of `entry` at another address, over the same objects, to `new`; reserves room for one more entry.
    fn add_moved<M: Machine>(
        &self,
        vm: &Vm<M>,
        new: &mut Entries,
        entry: &MapEntry,
        args: EntryArgs,
        distance: u64,
    ) -> Result<(), VmError> {
        if is_short(vm, new.len()) {
            return Err(VmError::NoMemory);
        }
        new.try_reserve(2).map_err(|_| VmError::NoMemory)?;
        let chain = match entry.view() {
            None => None,
            Some(layers) => {
                let mut moved = Layers::new();
                for layer in layers.layers() {
                    let range = (args.start, args.end);
                    moved.push(layer.replicate_at(self.pmap(), distance, range)?);
                }
                Some(Chain::new(moved))
            }
        };
        new.push(MapEntry::new(args, chain, entry.state().needs_copy()));
        Ok(())
    }

    /// Makes a second mapping of the shared memory that is mapped at the old address. The caller of `remap` (mremap in
    /// kernel/syscall/src/mm.rs) checks that a fixed target does not overlap that, and is not below user space.
    ///
    /// # Errors
    /// As for `remap`.
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
        map.admit_more(1)?;
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
        let first = u64::from(layer.index(args.old));
        let chain = self.over(vm, &layer, first, (at, at + len))?;
        let args = EntryArgs {
            start: at,
            end: at + len,
            ..entry.args()
        };
        map.insert(vm, smallvec![MapEntry::new(args, Some(chain), false)]);
        Ok(at)
    }
}
