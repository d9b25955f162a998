//! What is resident in a space, for reports.
//!
//! Guarantee: a report takes no lock of the map, is preemptible, and holds a shard of a reverse map only for the time that
//! `rmap::sharers` says. What it says of a page was true at some moment of the call.

use core::ops::AddAssign;

use ksync::CpuPin;
use smallvec::SmallVec;

use super::{EntryInfo, Space};
use crate::backing::{Backing, Chain};
use crate::fault::{has_block, wants};
use crate::map::{EntryFlags, Extent, MapEntry, Prot};
use crate::page::{Flags, PAGE_SIZE, Page, Pfn, State};
use crate::pmap::{AROUND, Pte, TABLE_BYTES};
use crate::rmap::sharers;
use crate::{Machine, Vm};

/// Pages of a table whose entries are counted in one pinned section.
const SECTION: usize = 512;
/// Units of a page in which shares are counted.
pub const WHOLE: u64 = 1 << 24;

/// Resident pages of a kind, by the number of their mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shared {
    /// Mapped once.
    pub private: u64,
    /// Mapped more often.
    pub shared: u64,
    /// The share of this space: each page counts for [`WHOLE`], divided by the number of its mappings.
    pub share: u64,
}

/// What is resident in a range, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resident {
    /// Pages that have not been written to.
    pub clean: Shared,
    /// Pages that may have been written to.
    pub dirty: Shared,
    /// Of private anonymous memory.
    pub anon: u64,
    /// The share of these, as [`Shared::share`].
    pub anon_share: u64,
    /// Used since the last scan for use.
    pub referenced: u64,
    /// Of private anonymous memory, mapped by leaves of 2 MiB.
    pub anon_large: u64,
    /// Of other memory, mapped by leaves of 2 MiB.
    pub other_large: u64,
}

impl Resident {
    /// Number of pages.
    pub fn pages(&self) -> u64 {
        [self.clean, self.dirty]
            .iter()
            .map(|kind| kind.private + kind.shared)
            .sum()
    }

    /// The share of this space in all of them, as [`Shared::share`].
    pub fn share(&self) -> u64 {
        self.clean.share + self.dirty.share
    }
}

impl AddAssign for Shared {
    fn add_assign(&mut self, other: Shared) {
        self.private += other.private;
        self.shared += other.shared;
        self.share += other.share;
    }
}

impl AddAssign for Resident {
    fn add_assign(&mut self, other: Resident) {
        self.clean += other.clean;
        self.dirty += other.dirty;
        self.anon += other.anon;
        self.anon_share += other.anon_share;
        self.referenced += other.referenced;
        self.anon_large += other.anon_large;
        self.other_large += other.other_large;
    }
}

/// A page that a page-table entry maps, for a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedPage {
    /// Its address.
    pub va: u64,
    /// Its frame.
    pub pfn: Pfn,
    /// Whether it is of a file in memory, or of shared memory. A device's frame is not.
    pub shared: bool,
    /// Whether no other page-table entry maps it. A device's frame is not asked.
    pub sole: bool,
}

/// Numbers of resident pages, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResidentKinds {
    /// Of private anonymous memory.
    pub anon: u64,
    /// Of files in memory, and of shared memory.
    pub shared: u64,
}

/// A mapped page of an entry, as it was found in the page tables.
struct Mapped {
    va: u64,
    pte: Pte,
    /// Whether it is the first page of a leaf of 2 MiB.
    begins_leaf: bool,
    page: &'static Page,
    /// Number of page-table entries that map it; 0 as long as that is not known.
    mappings: u64,
}

impl Mapped {
    fn pfn(&self) -> Pfn {
        self.pte.pfn()
    }

    /// The layer that the page belongs to.
    fn layer<'c>(&self, pin: &CpuPin, chain: &'c Chain) -> Option<&'c Backing> {
        let mut layers = chain.layers().iter();
        let layer = layers.find(|layer| {
            let object = layer.object(pin);
            object.is_some_and(|o| self.page.is(o.identity(), layer.index(self.va)))
        })?;
        Some(&**layer)
    }

    fn add_to(&self, sum: &mut Resident, private: bool) {
        let flags = self.page.flags();
        let (anon, share) = (private && is_anon(self.page), WHOLE / self.mappings.max(1));
        let dirty = self.pte.is_dirty() || flags.contains(Flags::DIRTY);
        let kind = if dirty {
            &mut sum.dirty
        } else {
            &mut sum.clean
        };
        *if self.mappings > 1 {
            &mut kind.shared
        } else {
            &mut kind.private
        } += 1;
        kind.share += share;
        if self.pte.is_accessed() || flags.contains(Flags::REFERENCED) {
            sum.referenced += 1;
        }
        if anon {
            sum.anon += 1;
            sum.anon_share += share;
        }
        if self.begins_leaf {
            // All at once: the leaf may be divided, or come back, before the rest of it is looked at.
            *if anon {
                &mut sum.anon_large
            } else {
                &mut sum.other_large
            } += TABLE_BYTES / PAGE_SIZE as u64;
        }
    }
}

fn is_anon(page: &Page) -> bool {
    page.state() == State::Anon
}

/// Finds the numbers of mappings of pages of one entry. `chain` is that of the entry; `None` if it has just been replaced.
fn count_mappings<M: Machine>(
    vm: &Vm<M>,
    pin: &CpuPin,
    chain: Option<&Chain>,
    pages: &mut [Mapped],
) {
    // Only a page that was found, and not made, by the fault that mapped it may have several mappings.
    let made = |page: &&mut Mapped| !page.page.has(Flags::MULTI);
    pages
        .iter_mut()
        .filter(made)
        .for_each(|page| page.mappings = 1);
    for n in 0..pages.len() {
        if pages[n].mappings != 0 {
            continue;
        }
        let layer = chain.and_then(|chain| pages[n].layer(pin, chain));
        let object = layer.and_then(|layer| layer.object(pin));
        let (Some(layer), Some(object)) = (layer, object) else {
            pages[n].mappings = 2;
            continue;
        };
        if layer.is_sole() {
            pages[n].mappings = 1;
            continue;
        }
        // All that belong to the same layer, with one look at its object's extents.
        let belongs = |page: &Mapped| {
            let index = layer.index(page.va);
            let counts = page.mappings == 0 && page.page.is(object.identity(), index);
            counts.then_some((index, page.pfn()))
        };
        let same: SmallVec<[usize; AROUND]> = (n..pages.len())
            .filter(|&at| belongs(&pages[at]).is_some())
            .collect();
        let sought: SmallVec<[(u32, Pfn); AROUND]> = same
            .iter()
            .map(|&at| (layer.index(pages[at].va), pages[at].pfn()))
            .collect();
        let found = sharers(vm, pin, object, &sought);
        for (at, mappings) in same.into_iter().zip(found) {
            pages[at].mappings = mappings;
        }
        // It may have moved to another layer at this moment.
        pages[n].mappings = pages[n].mappings.max(1);
    }
}

impl Space {
    /// What is resident in a range that lies in one entry, whose flags are `flags`. Asks `go_on` now and then; if it says no,
    /// the rest is left out. Frames of devices do not count.
    pub fn resident_in<M: Machine>(
        &self,
        vm: &Vm<M>,
        (start, end): (u64, u64),
        flags: EntryFlags,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Resident {
        let private = !flags.contains(EntryFlags::SHARED);
        let (mut sum, mut at) = (Resident::default(), start);
        while at < end && go_on() {
            let pin = ksync::pin();
            let (mut pages, looked) = self.mapped_pages(vm, &pin, (at, end), &mut |_, _| ());
            at = looked;
            let Some(first) = pages.first() else {
                continue;
            };
            let entry = self.find(&pin, first.va);
            let chain = entry.and_then(|entry| entry.chain(&pin));
            count_mappings(vm, &pin, chain, &mut pages);
            pages.iter().for_each(|page| page.add_to(&mut sum, private));
        }
        sum
    }

    /// Passes pages that are mapped in a range to `each`, pinned; under a leaf of 2 MiB each of its pages. Looks at no more than 16
    /// pages of one entry behind the first that it finds, and returns the address from which on it has not looked.
    pub fn look_at_pages<M: Machine>(
        &self,
        vm: &Vm<M>,
        range: (u64, u64),
        each: &mut dyn FnMut(MappedPage),
    ) -> u64 {
        let pin = ksync::pin();
        let (mut pages, at) = self.mapped_pages(vm, &pin, range, &mut |va, pte| {
            each(MappedPage {
                va,
                pfn: pte.pfn(),
                shared: false,
                sole: false,
            });
        });
        let Some(first) = pages.first() else {
            return at;
        };
        let entry = self.find(&pin, first.va);
        let end = entry.map_or(at, |entry| entry.end().min(at));
        pages.retain(|page| page.va < end);
        let chain = entry.and_then(|entry| entry.chain(&pin));
        count_mappings(vm, &pin, chain, &mut pages);
        for page in &pages {
            each(MappedPage {
                va: page.va,
                pfn: page.pfn(),
                shared: entry.is_some_and(|entry| entry.is_shared()) || !is_anon(page.page),
                sole: page.mappings == 1,
            });
        }
        end
    }

    /// The pages that look to be mapped in a range, as [`Pmap::look_at`](crate::pmap::Pmap::look_at) finds them, and the address from which on
    /// it has not looked. Frames of devices are passed to `device`.
    fn mapped_pages<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        range: (u64, u64),
        device: &mut dyn FnMut(u64, Pte),
    ) -> (SmallVec<[Mapped; AROUND]>, u64) {
        let mut pages = SmallVec::new();
        let look = |va: u64, pte: Pte, large| {
            if !pte.is_managed() {
                return device(va, pte);
            }
            pages.push(Mapped {
                va,
                pte,
                begins_leaf: large && va.is_multiple_of(TABLE_BYTES),
                page: vm.pages.get(pte.pfn()),
                mappings: 0,
            });
        };
        let at = self.pmap().look_at(vm, pin, range, AROUND, look);
        (pages, at)
    }

    /// The numbers of resident pages, by kind, for a report that is made often: counts entries of page tables, and looks at
    /// pages only where a private mapping of a file may have both kinds.
    pub fn resident_kinds<M: Machine>(&self, vm: &Vm<M>) -> ResidentKinds {
        let mut sum = ResidentKinds::default();
        self.tree
            .for_each(&mut |entry| self.add_kinds(vm, entry, &mut sum));
        sum
    }

    fn add_kinds<M: Machine>(&self, vm: &Vm<M>, entry: &MapEntry, sum: &mut ResidentKinds) {
        let is = |flag| entry.flags().contains(flag);
        let mixed = is(EntryFlags::FILE) && !entry.is_shared();
        let mut at = entry.start();
        while at < entry.end() {
            let pin = ksync::pin();
            let most = if mixed { AROUND } else { SECTION };
            at = self
                .pmap()
                .look_at(vm, &pin, (at, entry.end()), most, |_, pte, _| {
                    if !pte.is_managed() {
                        return;
                    }
                    let anon = match mixed {
                        true => is_anon(vm.pages.get(pte.pfn())),
                        false => !entry.is_shared(),
                    };
                    *if anon { &mut sum.anon } else { &mut sum.shared } += 1;
                });
        }
    }

    /// Whether faults in an entry may make superpages, as settings are now. Of a file whose size decides, as if it were large enough.
    pub fn may_get_superpages<M: Machine>(&self, vm: &Vm<M>, entry: &EntryInfo) -> bool {
        let args = &entry.args;
        let (device, down) = (EntryFlags::DEVICE, EntryFlags::GROWSDOWN);
        let copies_file =
            args.flags.contains(EntryFlags::FILE) && !args.flags.contains(EntryFlags::SHARED);
        !args.flags.intersects(device | down)
            && !copies_file
            && !args.prot.contains(Prot::EXEC)
            && entry.is_placed
            && has_block(args.start, args.end)
            && wants(vm, self, args.flags)
    }
}
