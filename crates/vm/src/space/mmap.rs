//! Mapping, unmapping, protection, population.

use super::advise::first_access;
use super::edit::{Entries, Locked};
use super::{Space, VmError};
use crate::backing::{Backing, Chain, LONGEST, Relation};
use crate::fault::{Access, BLOCK_BYTES, FaultError, wants};
use crate::map::{EntryArgs, EntryFlags, Extent, MapEntry, Prot};
use crate::object::ObjectRef;
use crate::page::{PAGE_SHIFT, PAGE_SIZE};
use crate::pmap::Revoke;
use crate::tlb::Gather;
use crate::{Machine, Vm};

const MASK: u64 = PAGE_SIZE as u64 - 1;
/// Mappings of this size and more are placed so that superpages and shared tables are possible.
const LARGE: u64 = 2 << 20;
/// The range for [`MapFlags::low`], as in Linux.
const LOW: core::ops::Range<u64> = 0x4000_0000..0x8000_0000;

/// Where a mapping gets its pages from.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// Zeroes.
    Anon,
    /// An object, from a byte offset that is a multiple of the page size.
    Object(&'a ObjectRef, u64),
    /// All of the special object: see [`Vm::set_special`]. The mapping is private.
    Special,
}

impl Source<'_> {
    /// What entries say of it.
    #[inline(never)]
    fn flags(self) -> EntryFlags {
        match self {
            Source::Anon => EntryFlags::empty(),
            Source::Object(object, _) if object.frames().is_some() => {
                EntryFlags::FILE | EntryFlags::DEVICE
            }
            Source::Object(..) => EntryFlags::FILE,
            Source::Special => EntryFlags::FILE | EntryFlags::SPECIAL,
        }
    }
}

/// How to place a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapFlags {
    /// At the given address, replacing what is there.
    pub fixed: bool,
    /// At the given address, or fail.
    pub noreplace: bool,
    /// With its pages present.
    pub populate: bool,
    /// Without its pages present, although it is locked: a page stays resident once a fault has brought it in.
    pub on_fault: bool,
    /// In the second GiB, unless at a required address: for programs that need addresses below 2^31.
    pub low: bool,
}

/// A mapping to be made.
#[derive(Clone, Copy)]
pub struct MapArgs<'a> {
    /// Hint or required address; 0 for anywhere.
    pub addr: u64,
    /// Bytes; rounded up to pages.
    pub len: u64,
    /// Allowed accesses.
    pub prot: Prot,
    /// Accesses that mprotect may allow later.
    pub maxprot: Prot,
    /// Properties of the mapping, SHARED among them.
    pub flags: EntryFlags,
    /// How to choose the address.
    pub place: MapFlags,
    /// What to map.
    pub source: Source<'a>,
}

impl MapArgs<'_> {
    /// The same mapping at exactly `addr`, in place of what is mapped there.
    pub const fn at(mut self, addr: u64) -> Self {
        self.addr = addr;
        self.place.fixed = true;
        self
    }

    /// A private anonymous mapping anywhere.
    pub const fn anon(len: u64, prot: Prot) -> MapArgs<'static> {
        MapArgs {
            addr: 0,
            len,
            prot,
            maxprot: Prot::all(),
            flags: EntryFlags::empty(),
            place: MapFlags {
                fixed: false,
                noreplace: false,
                populate: false,
                on_fault: false,
                low: false,
            },
            source: Source::Anon,
        }
    }
}

impl MapArgs<'_> {
    /// Number of entries that the mapping takes at most; checks that the object has such a range.
    #[inline(never)]
    fn pieces(&self, len: u64) -> Result<usize, VmError> {
        self.check_object(len)?;
        Ok(len.div_ceil(LONGEST) as usize)
    }

    /// Checks that the range of the object has page indexes.
    fn check_object(&self, len: u64) -> Result<(), VmError> {
        match self.source {
            Source::Object(_, offset)
                if offset & MASK != 0 || !has_indexes(offset >> PAGE_SHIFT, len) =>
            {
                Err(VmError::Invalid)
            }
            _ => Ok(()),
        }
    }

    /// The arguments of the entry for `start..end`.
    fn entry(&self, start: u64, end: u64) -> EntryArgs {
        EntryArgs {
            start,
            end,
            prot: self.prot,
            maxprot: self.maxprot,
            flags: match self.source {
                Source::Anon => self.flags,
                other => self.flags.union(other.flags()),
            },
        }
    }
}

/// Whether a mapping is a single entry that needs no layer yet.
fn is_plain(args: &MapArgs<'_>, len: u64) -> bool {
    let private = !args.flags.contains(EntryFlags::SHARED);
    matches!(args.source, Source::Anon) && private && len <= LONGEST
}

/// Whether an object has indexes for `len` bytes from `first` on.
pub(super) fn has_indexes(first: u64, len: u64) -> bool {
    // No page has the highest index.
    first.saturating_add(len >> PAGE_SHIFT) <= u64::from(u32::MAX)
}

/// Adds entries of private anonymous memory that was never written to, as `args` describes, to `new`: as many as its
/// length takes. `NoMemory` if the list has no room for them, and nothing was added.
pub(crate) fn add_plain(new: &mut Entries, args: EntryArgs) -> Result<(), VmError> {
    let pieces = (args.end - args.start).div_ceil(LONGEST);
    new.try_reserve(pieces as usize)
        .map_err(|_| VmError::NoMemory)?;
    for start in (args.start..args.end).step_by(LONGEST as usize) {
        let end = args.end.min(start + LONGEST);
        new.push(MapEntry::new(EntryArgs { start, end, ..args }, None, false));
    }
    Ok(())
}

/// Rounds up to pages; `None` on overflow.
pub(super) fn round_up(len: u64) -> Option<u64> {
    Some(len.checked_add(MASK)? & !MASK)
}

impl Space {
    /// Maps something; returns the address.
    ///
    /// # Errors
    /// - `Invalid`: the space was cleared, no length or one that overflows, an address or offset that is not
    ///   page-aligned where it must be, or a range that the object has no indexes for;
    /// - `Exists`: `noreplace` and the range is taken;
    /// - `NoMemory`: no room, a required address outside user space, too many mappings, no memory. With `fixed`, what was
    ///   mapped there may be gone then.
    pub fn map<M: Machine>(&self, vm: &Vm<M>, args: &MapArgs<'_>) -> Result<u64, VmError> {
        let len = round_up(args.len)
            .filter(|&len| len > 0)
            .ok_or(VmError::Invalid)?;
        let at = {
            let mut map = self.lock();
            if map.is_closed() {
                return Err(VmError::Invalid);
            }
            let plain = is_plain(args, len);
            map.admit_more(if plain { 1 } else { args.pieces(len)? })?;
            let at = place(&map, args, len)?;
            if args.place.fixed && !args.place.noreplace {
                // As in Linux, whatever the reason is: a part of a special mapping, say.
                map.unmap(vm, at, at + len).map_err(|_| VmError::NoMemory)?;
            }
            if plain {
                let entry = MapEntry::new(args.entry(at, at + len), None, false);
                map.insert_one(vm, entry);
            } else {
                let new = self.build(vm, args, at, len)?;
                map.insert(vm, new);
                map.merge_between(vm, at, at + len);
            }
            at
        };
        let locked = args.flags.contains(EntryFlags::LOCKED) && !args.place.on_fault;
        if args.place.populate || locked {
            // As in Linux, a page that cannot be made present now is left to a later fault.
            let access = first_access(args.prot, args.entry(at, at + len).flags);
            let _populated = self.populate(vm, at, len, access);
        }
        Ok(at)
    }

    /// Makes several mappings in one change, at the addresses that they name, in ascending order. Nothing is replaced,
    /// merged or made present. For exec.
    ///
    /// # Errors
    /// As for [`map`](Space::map); `Exists` if they overlap or are out of order, or if an older mapping lies between the
    /// start of the first and the end of the last. Nothing was mapped then.
    pub fn map_all<M: Machine>(&self, vm: &Vm<M>, all: &[MapArgs<'_>]) -> Result<(), VmError> {
        let mut map = self.lock();
        if map.is_closed() {
            return Err(VmError::Invalid);
        }
        let mut new = Entries::new();
        new.try_reserve(all.len()).map_err(|_| VmError::NoMemory)?;
        let mut above = map.low();
        for args in all {
            let len = round_up(args.len)
                .filter(|&len| len > 0)
                .ok_or(VmError::Invalid)?;
            let at = place(&map, args, len)?;
            if at < above {
                return Err(VmError::Exists);
            }
            args.check_object(len)?;
            above = at + len;
            new.extend(self.build(vm, args, at, len)?);
        }
        let free = new
            .first()
            .is_none_or(|first| map.is_unused(first.start(), above));
        if !free {
            return Err(VmError::Exists);
        }
        map.insert(vm, new);
        Ok(())
    }

    /// The entries of a new mapping, not yet in the map: a private one over an object needs a copy before a write. The
    /// caller has checked it by [`MapArgs::check_object`]. The only error is `NoMemory`.
    #[inline(never)]
    fn build<M: Machine>(
        &self,
        vm: &Vm<M>,
        args: &MapArgs<'_>,
        at: u64,
        len: u64,
    ) -> Result<Entries, VmError> {
        let shared = args.flags.contains(EntryFlags::SHARED);
        let end = at + len;
        let mut new = Entries::new();
        match args.source {
            Source::Object(object, offset) => {
                let first = offset >> PAGE_SHIFT;
                let writes = shared && args.maxprot.contains(Prot::WRITE);
                let relation = Relation::up(at, first);
                let layer = Backing::attach(object, self.pmap(), relation, (at, end), writes)?;
                new.push(MapEntry::new(
                    args.entry(at, end),
                    Some(Chain::of(layer)),
                    !shared,
                ));
            }
            Source::Anon if shared => {
                for start in (at..end).step_by(LONGEST as usize) {
                    let end = end.min(start + LONGEST);
                    // A child of a fork must map the same object, so it is made now.
                    let relation = Relation::up(start, 0);
                    let layer = Backing::attach_shared(vm, self.pmap(), relation, end - start)?;
                    new.push(MapEntry::new(
                        args.entry(start, end),
                        Some(Chain::of(layer)),
                        false,
                    ));
                }
            }
            Source::Anon => add_plain(&mut new, args.entry(at, end))?,
            Source::Special => {
                debug_assert!(!shared && vm.special_bytes() == len, "it is mapped whole");
                new.push(MapEntry::new(args.entry(at, end), None, false));
            }
        }
        Ok(new)
    }

    /// Removes all mappings in a range. When it returns, nothing of it is accessible.
    ///
    /// # Errors
    /// `Invalid`: not page-aligned, empty, or not user addresses. `NoMemory`: memory is short, or too many mappings after a
    /// split. Nothing has changed then. That nothing is mapped there is no error.
    pub fn unmap<M: Machine>(&self, vm: &Vm<M>, start: u64, len: u64) -> Result<(), VmError> {
        let mut map = self.lock();
        let end = range_end(&map, start, len)?;
        if end == start {
            return Err(VmError::Invalid);
        }
        map.unmap(vm, start, end)
    }

    /// Changes the protection of a range.
    ///
    /// # Errors
    /// `NotMapped`: part of it is not mapped; `Denied`: a mapping does not allow that protection; `Invalid`;
    /// `NoMemory`. Nothing has changed then.
    pub fn protect<M: Machine>(
        &self,
        vm: &Vm<M>,
        start: u64,
        len: u64,
        prot: Prot,
    ) -> Result<(), VmError> {
        let mut map = self.lock();
        let end = mapped_end(&map, start, len)?;
        if start == end {
            return Ok(());
        }
        let (mut denied, mut before) = (false, Prot::empty());
        map.tree().for_overlapping(start, end, &mut |entry| {
            denied |= !entry.maxprot().contains(prot);
            before |= entry.prot();
            true
        });
        if denied {
            return Err(VmError::Denied);
        }
        Space::change(&mut map, vm, (start, end), |args| EntryArgs {
            prot,
            ..args
        })?;
        let lost = before.difference(prot);
        if prot.is_empty() {
            map.remove_pages(vm, start, end);
        } else if !lost.is_empty() {
            let revoke = Revoke {
                write: lost.contains(Prot::WRITE),
                exec: lost.contains(Prot::EXEC),
            };
            let mut gather = Gather::new();
            self.pmap()
                .protect_range(vm, start, end, revoke, &mut gather);
            gather.finish(vm);
        }
        map.merge_between(vm, start, end);
        self.promote_between(vm, &map, start, end);
        Ok(())
    }

    /// Promotes the blocks that reach into a range, where superpages are wanted: a change of rights may have made their entries
    /// agree.
    fn promote_between<M: Machine>(&self, vm: &Vm<M>, map: &Locked<'_>, start: u64, end: u64) {
        map.tree().for_overlapping(start, end, &mut |entry| {
            if wants(vm, self, entry.flags()) && !entry.prot().contains(Prot::EXEC) {
                let first = entry.start().max(start & !(BLOCK_BYTES - 1));
                let last = end.next_multiple_of(BLOCK_BYTES).min(entry.end());
                self.pmap()
                    .promote_alike_in(vm, first..last, entry.is_shared());
            }
            true
        });
    }

    /// Makes the pages of a range present, one fault after the other; no lock is held in between.
    ///
    /// # Errors
    /// That of the first page that cannot be made present; those before it stay. `NoMemory` also if the machine asks the
    /// caller to stop.
    pub fn populate<M: Machine>(
        &self,
        vm: &Vm<M>,
        start: u64,
        len: u64,
        access: Access,
    ) -> Result<(), FaultError> {
        for va in (start & !MASK..start.saturating_add(len)).step_by(PAGE_SIZE) {
            if vm.machine.must_stop() {
                return Err(FaultError::NoMemory);
            }
            self.fault(vm, va, access)?;
        }
        Ok(())
    }

    /// Whether anything is mapped in `start..start + len`.
    pub fn is_used(&self, start: u64, len: u64) -> bool {
        start
            .checked_add(len)
            .is_some_and(|end| !self.lock().is_unused(start, end))
    }

    /// Whether `start..start + len` is free, guard gaps respected: for a program break.
    pub fn is_free(&self, start: u64, len: u64) -> bool {
        start
            .checked_add(len)
            .is_some_and(|end| self.lock().is_free(start, end))
    }
}

/// The end of an aligned user range, which may be empty; its length is rounded up. Else `Invalid`.
pub(super) fn range_end(map: &Locked<'_>, start: u64, len: u64) -> Result<u64, VmError> {
    let end = round_up(len)
        .and_then(|len| start.checked_add(len))
        .ok_or(VmError::Invalid)?;
    if start & MASK != 0 || end > map.high() {
        Err(VmError::Invalid)
    } else {
        Ok(end)
    }
}

/// As [`range_end`], for a range that must be mapped throughout; else `NotMapped`.
pub(super) fn mapped_end(map: &Locked<'_>, start: u64, len: u64) -> Result<u64, VmError> {
    let end = range_end(map, start, len)?;
    if map.covers(start, end) {
        Ok(end)
    } else {
        Err(VmError::NotMapped)
    }
}

/// The address for a new mapping of `len` bytes, which is not 0 and a multiple of the page size.
///
/// # Errors
/// `Invalid`: an address that must be used is not aligned; `Exists`: it is in use, and nothing may be replaced;
/// `NoMemory`: it does not lie in user space, or there is no hole of that size.
pub(super) fn place(map: &Locked<'_>, args: &MapArgs<'_>, len: u64) -> Result<u64, VmError> {
    let fits =
        |at: u64| at >= map.low() && at.checked_add(len).is_some_and(|end| end <= map.high());
    if args.place.fixed || args.place.noreplace {
        if args.addr & MASK != 0 {
            return Err(VmError::Invalid);
        }
        if !fits(args.addr) {
            return Err(VmError::NoMemory);
        }
        return if args.place.noreplace && !map.is_unused(args.addr, args.addr + len) {
            Err(VmError::Exists)
        } else {
            Ok(args.addr)
        };
    }
    let hint = args.addr & !MASK;
    if args.place.low {
        let at_hint =
            hint != 0 && fits(hint) && hint + len <= LOW.end && map.is_free(hint, hint + len);
        let hole = || {
            map.tree()
                .highest_hole(LOW.start.max(map.low()), LOW.end, len, PAGE_SIZE as u64, 0)
        };
        let at = if at_hint { Some(hint) } else { hole() };
        return at.ok_or(VmError::NoMemory);
    }
    if hint != 0 && fits(hint) && map.is_free(hint, hint + len) {
        return Ok(hint);
    }
    let offset = if let Source::Object(_, offset) = args.source {
        offset
    } else {
        0
    };
    find_hole(map, len, offset)
}

/// The highest hole below `mmap_base`, else the highest anywhere. The address of a large range is congruent to its
/// offset modulo 2 MiB, if there is such a hole below `mmap_base`. `NoMemory` if there is no hole.
pub(super) fn find_hole(map: &Locked<'_>, len: u64, offset: u64) -> Result<u64, VmError> {
    let hole = |high: u64, align: u64, phase: u64| {
        map.tree().highest_hole(map.low(), high, len, align, phase)
    };
    let large = (len >= LARGE)
        .then(|| hole(map.mmap_base(), LARGE, offset & (LARGE - 1)))
        .flatten();
    large
        .or_else(|| hole(map.mmap_base(), PAGE_SIZE as u64, 0))
        .or_else(|| hole(map.high(), PAGE_SIZE as u64, 0))
        .ok_or(VmError::NoMemory)
}
