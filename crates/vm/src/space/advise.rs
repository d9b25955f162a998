//! madvise, the part of msync that concerns the map, and the flags of mlock.

use rust_alloc::sync::Arc;
use rust_alloc::vec::Vec;

use super::edit::Locked;
use super::mmap::{mapped_end, range_end};
use super::{Space, VmError};
use crate::backing::Backing;
use crate::fault::{Access, FaultError};
use crate::map::{EntryArgs, EntryFlags, Extent, MapEntry, Prot};
use crate::object::{Object, ObjectRef};
use crate::tlb::Gather;
use crate::{Machine, Vm};

/// Advice for a range. Advice without effect needs no variant: the caller passes [`Advice::Nothing`], which checks the
/// range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Only check that the range is mapped.
    Nothing,
    /// Discard the contents now: private memory reads as zeroes, or as its file, afterwards.
    DontNeed,
    /// As `DontNeed`, for locked pages too.
    DontNeedLocked,
    /// The contents may be discarded at any later time; private anonymous memory only. Discards now.
    Free,
    /// Make the pages readable now.
    PopulateRead,
    /// Make the pages writable now.
    PopulateWrite,
    /// Children of a fork do not inherit the range.
    DontFork,
    /// They inherit it again.
    DoFork,
    /// Children of a fork get zeroes.
    WipeOnFork,
    /// They get copies again.
    KeepOnFork,
    /// Leave the range out of core dumps.
    DontDump,
    /// Include it again.
    DoDump,
    /// Free the pages of the file itself.
    Remove,
    /// Superpages are wanted.
    HugePage,
    /// Superpages are not wanted. Those that are there stay.
    NoHugePage,
}

impl Advice {
    /// Whether the advice only changes flags of map entries, and frees nothing.
    pub fn changes_entries(self) -> bool {
        flag_change(self).is_some()
    }
}

impl Space {
    /// Applies advice to a range. Unmapped parts are skipped, and reported at the end, as in Linux; but if there are any,
    /// the Populate kinds do nothing. That a range fits `WipeOnFork` is checked by the caller (kernel/syscall/src/mm.rs,
    /// `is_unfit`). Takes the map's lock, but does not hold it while pages are populated or files change.
    ///
    /// # Errors
    /// `NotMapped`: parts are not mapped; `Invalid`: alignment, or advice that does not fit a mapping or its protection;
    /// `Denied`: pages to be populated lie beyond the end of their file, or those to be removed are not mapped shared and
    /// writable; `NoMemory`. What has changed then: after `NotMapped`, the mapped parts, unless they were to be populated;
    /// after an error of `Remove`, the files before the mapping that does not fit; in the middle of populating, the pages
    /// before; after `NoMemory` of the kinds that discard, the mappings before; else nothing.
    pub fn advise<M: Machine>(
        &self,
        vm: &Vm<M>,
        start: u64,
        len: u64,
        advice: Advice,
    ) -> Result<(), VmError> {
        let mut map = self.lock();
        let end = range_end(&map, start, len)?;
        let covered = map.covers(start, end) || start == end;
        match advice {
            Advice::PopulateRead | Advice::PopulateWrite => {
                drop(map);
                return if covered {
                    self.populate_advised(vm, start, end, advice)
                } else {
                    Err(VmError::NotMapped)
                };
            }
            Advice::DontNeed | Advice::DontNeedLocked | Advice::Free => {
                self.discard(vm, &mut map, start, end, advice)?
            }
            Advice::Remove => free_file_pages(vm, map, (start, end), &mut |_, free| {
                free();
                true
            })?,
            // As in Linux. A device is never copied: what keeps it out of children and of dumps is not taken back.
            Advice::DoFork | Advice::DoDump
                if self.has_any(&map, (start, end), EntryFlags::DEVICE) =>
            {
                return Err(VmError::Invalid);
            }
            // So is what the kernel has made.
            Advice::DoDump if self.has_any(&map, (start, end), EntryFlags::SPECIAL) => {
                return Err(VmError::Invalid);
            }
            _ => {
                if let Some((clear, set)) = flag_change(advice)
                    && start < end
                {
                    Space::change(&mut map, vm, (start, end), |args| EntryArgs {
                        flags: args.flags.difference(clear).union(set),
                        ..args
                    })?;
                    map.merge_between(vm, start, end);
                }
            }
        }
        if covered {
            Ok(())
        } else {
            Err(VmError::NotMapped)
        }
    }

    /// [`Self::advise`] with [`Advice::Remove`]. Calls `guarded`, without a lock held, with the object of each file of
    /// which a range is to be freed, and a function that frees it; `guarded` calls that and returns true, or returns false.
    ///
    /// # Errors
    /// As [`Self::advise`]; `Refused` if `guarded` returned false for a file: others may have been changed.
    pub fn remove_file_pages<M: Machine>(
        &self,
        vm: &Vm<M>,
        start: u64,
        len: u64,
        guarded: FreePages<'_>,
    ) -> Result<(), VmError> {
        let map = self.lock();
        let end = range_end(&map, start, len)?;
        let covered = map.covers(start, end) || start == end;
        free_file_pages(vm, map, (start, end), guarded)?;
        if covered {
            Ok(())
        } else {
            Err(VmError::NotMapped)
        }
    }

    /// Whether a mapping in a range has one of these flags.
    pub(super) fn has_any(
        &self,
        map: &Locked<'_>,
        (start, end): (u64, u64),
        flags: EntryFlags,
    ) -> bool {
        let mut found = false;
        map.tree().for_overlapping(start, end, &mut |entry| {
            found |= entry.flags().intersects(flags);
            !found
        });
        found
    }

    /// As [`populate`](Self::populate), with its errors as those of `advise`: `Invalid` where the protection forbids the access,
    /// `Denied` where the object has no page.
    fn populate_advised<M: Machine>(
        &self,
        vm: &Vm<M>,
        start: u64,
        end: u64,
        advice: Advice,
    ) -> Result<(), VmError> {
        let access = if advice == Advice::PopulateRead {
            Access::Read
        } else {
            Access::Write
        };
        self.populate(vm, start, end - start, access)
            .map_err(|why| match why {
                FaultError::NotMapped => VmError::NotMapped,
                FaultError::Denied => VmError::Invalid,
                FaultError::Bus => VmError::Denied,
                FaultError::NoMemory => VmError::NoMemory,
            })
    }

    /// Locks a range in memory and makes its pages present, or unlocks it.
    ///
    /// # Errors
    /// As for [`mark_locked`](Self::mark_locked). `NoMemory` also if a page cannot be had: the range is locked nonetheless.
    /// Where a page is missing for another reason, the rest of its mapping is left to later faults, without an error.
    pub fn set_locked<M: Machine>(
        &self,
        vm: &Vm<M>,
        start: u64,
        len: u64,
        locked: bool,
    ) -> Result<(), VmError> {
        let end = self.mark_locked(vm, start, len, locked)?;
        if locked {
            let mut at = start;
            while let Some((from, to, access)) = self.next_range(at, end) {
                if self.populate(vm, from, to - from, access) == Err(FaultError::NoMemory) {
                    return Err(VmError::NoMemory);
                }
                at = to;
            }
        }
        Ok(())
    }

    /// Sets or clears LOCKED for a range without making pages present. For accounting only, because nothing is paged
    /// out yet. Returns the end of the range.
    ///
    /// # Errors
    /// `NotMapped`: parts are not mapped; `Invalid`: alignment; `NoMemory`, also for too many mappings. Nothing has changed
    /// then.
    pub fn mark_locked<M: Machine>(
        &self,
        vm: &Vm<M>,
        start: u64,
        len: u64,
        locked: bool,
    ) -> Result<u64, VmError> {
        let mut map = self.lock();
        let end = mapped_end(&map, start, len)?;
        if start == end {
            return Ok(end);
        }
        Space::change(&mut map, vm, (start, end), |args| EntryArgs {
            flags: if locked {
                args.flags.union(EntryFlags::LOCKED)
            } else {
                args.flags.difference(EntryFlags::LOCKED)
            },
            ..args
        })?;
        map.merge_between(vm, start, end);
        Ok(end)
    }

    /// The first mapped range in `start..end`, and the access by which its pages are made present.
    fn next_range(&self, start: u64, end: u64) -> Option<(u64, u64, Access)> {
        let map = self.lock();
        let entry = map.tree().first_ending_above(start)?;
        let access = first_access(entry.prot(), entry.flags());
        (start < end && entry.start() < end)
            .then(|| (entry.start().max(start), entry.end().min(end), access))
    }

    /// Discards the contents of a range. `Invalid`, with nothing changed, if a mapping is locked, a device's, or not private
    /// anonymous memory for `Free`; after `NoMemory` some mappings may be discarded, from the first on.
    fn discard<M: Machine>(
        &self,
        vm: &Vm<M>,
        map: &mut Locked<'_>,
        start: u64,
        end: u64,
        advice: Advice,
    ) -> Result<(), VmError> {
        let entries = map.overlapping(vm, start, end)?;
        let unfit = |entry: &Arc<MapEntry>| {
            (entry.flags().contains(EntryFlags::LOCKED) && advice != Advice::DontNeedLocked)
                || entry.flags().contains(EntryFlags::DEVICE)
                || (advice == Advice::Free
                    && (entry.is_shared() || entry.flags().contains(EntryFlags::FILE)))
        };
        if entries.iter().any(unfit) {
            return Err(VmError::Invalid);
        }
        for entry in &entries {
            let (from, to) = (entry.start().max(start), entry.end().min(end));
            match self.discard_how(entry) {
                How::Nothing => {}
                How::Unmap => map.remove_pages(vm, from, to),
                How::FreePages(layer) => {
                    // A fault that has found the file's page starts again. So does a fault that has just flushed for
                    // that page: the front may have had a page in between, which other CPUs can use until the flush
                    // below.
                    entry.renew();
                    self.free_pages(vm, &layer, from, to);
                }
                How::Replace => self.replace_fresh(vm, map, from, to)?,
            }
        }
        Ok(())
    }

    /// How to discard a part of an entry. The entry can stay, with pages of its front freed, if only this space sees the front
    /// and nothing but perhaps a file lies behind it; else a fresh one takes the place of the part.
    fn discard_how(&self, entry: &MapEntry) -> How {
        let pin = ksync::pin();
        let Some(chain) = entry.chain(&pin) else {
            return How::Nothing;
        };
        if entry.is_shared() {
            return How::Unmap;
        }
        let front = chain.front();
        let behind_is_file = match chain.layers() {
            [one] => one.is_anon(),
            [_, file] => !file.is_anon(),
            _ => false,
        };
        if chain.layers().len() == 1 && !front.is_anon() {
            // No private copies yet.
            How::Unmap
        } else if behind_is_file && !entry.state().needs_copy() && front.is_own() {
            How::FreePages(front.clone())
        } else {
            How::Replace
        }
    }

    /// Frees the pages of a layer that only this space can see; may wait for busy ones. The frames wait for a grace period,
    /// so one flush is enough.
    fn free_pages<M: Machine>(&self, vm: &Vm<M>, layer: &Arc<Backing>, start: u64, end: u64) {
        let Some(object) = layer.object_ref() else {
            return;
        };
        // A fault that has found such a page needs no signal. Either it holds the page busy and is waited for here, or
        // it checks the page's identity again after its claim.
        let mut gather = Gather::new();
        let (first, last) = layer.relation().indexes(start, end);
        object.take_out(vm, first, last, &mut |pfn| gather.free_later(vm, pfn));
        self.pmap().remove_range(vm, start, end, &mut gather);
        gather.finish(vm);
        object.release(vm);
    }

    /// Restores the contents that a range had when it was mapped: zeroes, or the file. Shared mappings keep theirs. On an
    /// error, `NoMemory` or, for a part of a special mapping, `Invalid`, nothing has changed.
    pub(super) fn replace_fresh<M: Machine>(
        &self,
        vm: &Vm<M>,
        map: &mut Locked<'_>,
        start: u64,
        end: u64,
    ) -> Result<(), VmError> {
        let edit = map.cut(vm, (start, end), |entry, args| Some(entry.fresh(args)))?;
        map.commit(vm, &edit.old, edit.new);
        map.remove_pages(vm, start, end);
        for entry in &edit.old {
            entry.end_replaced(vm, entry.start().max(start), entry.end().min(end));
        }
        map.merge_between(vm, start, end);
        Ok(())
    }
}

/// The access by which untouched pages of a mapping are made present: a write where allowed, so that later stores do
/// not fault, but a read for a shared file, whose pages would count as modified.
pub(super) fn first_access(prot: Prot, flags: EntryFlags) -> Access {
    let is_file = flags.contains(EntryFlags::SHARED) && flags.contains(EntryFlags::FILE);
    if prot.contains(Prot::WRITE) && !is_file {
        Access::Write
    } else {
        Access::Read
    }
}

/// A range of a file.
type FileRange = (ObjectRef, u64, u64);

/// Decides whether pages of an object may be freed, and calls the function that does so under the owner's lock. Returns whether it
/// did.
type FreePages<'a> = &'a mut dyn FnMut(&Object, &mut dyn FnMut()) -> bool;

/// Frees the pages of the files that a range maps shared and writable, up to the first mapping that does not fit, whose
/// error it then returns. Unlocks the map first: a writer of the file holds a page busy while it may fault on this very
/// map.
fn free_file_pages<M: Machine>(
    vm: &Vm<M>,
    map: Locked<'_>,
    range: (u64, u64),
    guarded: FreePages<'_>,
) -> Result<(), VmError> {
    let mut ranges = Vec::new();
    let mut result = file_ranges(vm, &map, range, &mut ranges);
    drop(map);
    for (object, from, len) in ranges {
        let may = guarded(&object, &mut || {
            object.punch(vm, from, len);
            // This changes the file, so its times must change.
            object.note_store(vm);
        });
        object.release(vm);
        if !may {
            result = Err(VmError::Refused);
        }
    }
    result
}

/// Collects the parts of files, and of shared memory, that a range maps, up to the first mapping that is private anonymous
/// memory or locked (`Invalid`), or private or never to be written to (`Denied`). Each has a reference on its object, which
/// the caller releases.
fn file_ranges<M: Machine>(
    vm: &Vm<M>,
    map: &Locked<'_>,
    (start, end): (u64, u64),
    ranges: &mut Vec<FileRange>,
) -> Result<(), VmError> {
    for entry in map.overlapping(vm, start, end)? {
        let is_file = entry.is_shared() || entry.flags().contains(EntryFlags::FILE);
        if !is_file || entry.flags().contains(EntryFlags::LOCKED) {
            return Err(VmError::Invalid);
        }
        // maxprot counts, not the current protection.
        if !entry.is_shared() || !entry.maxprot().contains(Prot::WRITE) {
            return Err(VmError::Denied);
        }
        ranges.try_reserve(1).map_err(|_| VmError::NoMemory)?;
        let layer = {
            let pin = ksync::pin();
            entry.chain(&pin).map(|chain| chain.front().clone())
        };
        let Some(layer) = layer else { continue };
        let Some(object) = layer.object_ref() else {
            continue;
        };
        let (from, to) = (entry.start().max(start), entry.end().min(end));
        ranges.push((object, layer.relation().offset(from), to - from));
    }
    Ok(())
}

enum How {
    Nothing,
    Unmap,
    FreePages(Arc<Backing>),
    Replace,
}

fn flag_change(advice: Advice) -> Option<(EntryFlags, EntryFlags)> {
    let none = EntryFlags::empty();
    Some(match advice {
        Advice::DontFork => (none, EntryFlags::DONTFORK),
        Advice::DoFork => (EntryFlags::DONTFORK, none),
        Advice::WipeOnFork => (none, EntryFlags::WIPEONFORK),
        Advice::KeepOnFork => (EntryFlags::WIPEONFORK, none),
        Advice::DontDump => (none, EntryFlags::DONTDUMP),
        Advice::DoDump => (EntryFlags::DONTDUMP, none),
        Advice::HugePage => (EntryFlags::NOHUGEPAGE, EntryFlags::HUGEPAGE),
        Advice::NoHugePage => (EntryFlags::HUGEPAGE, EntryFlags::NOHUGEPAGE),
        _ => return None,
    })
}
