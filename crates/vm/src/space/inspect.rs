//! Inspecting a space, and access to its memory, from outside.

use core::any::Any;

use ksync::CpuPin;
use rust_alloc::sync::Arc;
use rust_alloc::vec::Vec;

use super::mmap::mapped_end;
use super::{Space, VmError};
use crate::backing::Backing;
use crate::fault::{Access, FaultError, allows};
use crate::map::{EntryArgs, EntryFlags, Extent, MapEntry};
use crate::object::{Kind, Next, Object, ObjectRef};
use crate::page::{
    Flags, PAGE_SHIFT, PAGE_SIZE, Page, Pfn, SoftBusy, Wanted, read_frame, write_frame,
};
use crate::{Machine, Vm};

/// The properties of an entry that /proc shows.
#[derive(Clone)]
pub struct EntryInfo {
    /// Bounds, protection, flags.
    pub args: EntryArgs,
    /// Byte offset in the file, 0 for anonymous memory.
    pub offset: u64,
    /// The file's tag, see [`Object::set_tag`](crate::object::Object::set_tag).
    pub tag: Option<Arc<dyn Any + Send + Sync>>,
    /// Number of layers.
    pub depth: usize,
    /// Whether a private write needs a new front layer first.
    pub needs_copy: bool,
    /// Whether a page has the same place in an aligned block of addresses as in one of the object: superpages need that.
    pub is_placed: bool,
}

/// Sizes of a space, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Mapped.
    pub mapped: u64,
    /// With a page-table entry now.
    pub resident: u64,
    /// Private and writable: RLIMIT_DATA's measure.
    pub data: u64,
    /// Growing down.
    pub stack: u64,
    /// Of executable files.
    pub text: u64,
    /// Locked.
    pub locked: u64,
    /// Page-table pages.
    pub tables: u64,
    /// Entries.
    pub entries: u64,
}

/// Memory that a space uses, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Anonymous memory that no other space can see: the end of this one frees it.
    pub own: u64,
    /// Anonymous memory shared with other spaces since a fork.
    pub shared: u64,
    /// Page-table pages, and what the kernel's heap has for the map: entries, their layers, and objects that only they use.
    pub tables: u64,
}

/// Estimated bytes of an entry with its share of the tree's nodes, which are at least half full.
const ENTRY_BYTES: usize = size_of::<MapEntry>() + 48;
/// Estimated bytes of a layer, with its membership of its object's hub.
const LAYER_BYTES: usize = size_of::<Backing>() + 176;
/// Estimated bytes of an object, with its hub and the first node of its index.
const OBJECT_BYTES: usize = size_of::<Object>() + 128;
/// Pages of objects of shared memory that count even if they are not mapped. An object may be met again and again, and a
/// search is to take time in proportion to what is mapped.
const SHARED_WHOLES: u64 = 1 << 19;

impl MapEntry {
    /// The byte offset of an address in its file; `None` for anonymous memory.
    pub(super) fn file_offset(&self, at: u64) -> Option<u64> {
        let pin = ksync::pin();
        let file = self.chain(&pin)?.terminal_file()?;
        Some(file.relation().offset(at))
    }

    fn info(&self) -> EntryInfo {
        let pin = ksync::pin();
        let chain = self.chain(&pin);
        let bottom = chain.and_then(|chain| chain.layers().last());
        let object = bottom.and_then(|layer| layer.object(&pin));
        EntryInfo {
            args: self.args(),
            offset: self.file_offset(self.start()).unwrap_or(0),
            tag: object.and_then(|object| object.tag()).cloned(),
            depth: chain.map_or(0, |chain| chain.layers().len()),
            needs_copy: self.state().needs_copy(),
            is_placed: chain.is_none_or(|chain| chain.front().relation().places(self.start())),
        }
    }

    /// See [`Space::shared_object`].
    fn shared_object(&self, at: u64, pin: &CpuPin) -> Option<(ObjectRef, u64)> {
        let layer = self.chain(pin).filter(|_| self.is_shared())?.front();
        Some((
            layer.object_ref()?,
            layer.relation().offset(at) + (at & (PAGE_SIZE as u64 - 1)),
        ))
    }
}

/// The anonymous memory of one layer of an entry.
struct Memory {
    /// The object's identity.
    object: usize,
    /// Whether it is shared memory, which keeps its pages even where they are not mapped.
    shared: bool,
    /// Whether no other mapping can see it.
    sole: bool,
}

impl Memory {
    /// `None` if the layer is gone, or is a file's.
    fn of(entry: &MapEntry, layer: usize) -> Option<Memory> {
        let pin = ksync::pin();
        let layer = entry.chain(&pin)?.layers().get(layer)?;
        let object = layer.object(&pin)?;
        object.is_anon().then(|| Memory {
            object: object.identity(),
            shared: !object.is_private(),
            sole: layer.is_sole(),
        })
    }
}

/// The costs of a space, as they are added up.
struct Sum {
    cost: Cost,
    /// Bytes of the kernel's heap.
    bytes: usize,
    /// The object that was met last, and whether all its pages have been counted: the parts of a mapping that was cut have one.
    last: (usize, bool),
    /// Pages that may still be counted though they need not be mapped.
    wholes: u64,
}

impl Sum {
    fn add(&mut self, entry: &MapEntry) {
        let depth = entry
            .chain(&ksync::pin())
            .map_or(0, |chain| chain.layers().len());
        self.bytes += ENTRY_BYTES;
        for layer in 0..depth {
            match Memory::of(entry, layer) {
                Some(memory) => self.add_memory(entry, layer, &memory),
                None => self.bytes += LAYER_BYTES,
            }
        }
    }

    /// Adds the pages of a layer, unless all those of its object were counted just before; and what the heap has for it, unless
    /// its object was the last one met.
    fn add_memory(&mut self, entry: &MapEntry, layer: usize, memory: &Memory) {
        let (before, counted) = self.last;
        let again = before == memory.object;
        if !again {
            self.bytes += LAYER_BYTES + if memory.sole { OBJECT_BYTES } else { 0 };
        } else if counted {
            return;
        }
        let whole = memory.shared && self.wholes > 0;
        let (pages, own) = anonymous_pages(entry, layer, whole);
        self.last = (memory.object, whole);
        if whole {
            self.wholes = self.wholes.saturating_sub(pages);
        }
        let Cost {
            own: alone, shared, ..
        } = &mut self.cost;
        *if own { alone } else { shared } += pages;
    }
}

/// Number of resident anonymous pages of one layer of `entry`, within its range or of the `whole` object, and whether no other
/// space can see them. Counted in short pinned sections.
fn anonymous_pages(entry: &MapEntry, layer: usize, whole: bool) -> (u64, bool) {
    const SECTION: usize = 256;
    let (mut count, mut own) = (0, true);
    let mut from = None;
    loop {
        let pin = ksync::pin();
        let chain = entry.chain(&pin);
        let Some(layer) = chain.and_then(|chain| chain.layers().get(layer)) else {
            return (count, own);
        };
        let Some(object) = layer.object(&pin).filter(|object| object.is_anon()) else {
            return (count, own);
        };
        own = layer.is_sole();
        let (first, last) = match whole {
            true => (0, u32::MAX),
            false => layer.relation().indexes(entry.start(), entry.end()),
        };
        for _ in 0..SECTION {
            let at = from.unwrap_or(first);
            let index = match object.next_resident_step(&pin, at, last) {
                Next::Page(index, _) => index,
                Next::Unseen(next) => {
                    from = Some(next);
                    break;
                }
                Next::End => return (count, own),
            };
            count += 1;
            if index >= last {
                return (count, own);
            }
            from = Some(index + 1);
        }
    }
}

impl Space {
    /// Calls `f` for each entry, by address, from `from` on, until it returns false. The lock is taken briefly for each
    /// entry and not held while `f` runs, which may sleep: what it is passed was true at some moment.
    pub fn for_each_entry(&self, from: u64, f: &mut dyn FnMut(&EntryInfo) -> bool) {
        let mut at = from;
        loop {
            let entry = self.lock().tree().first_ending_above(at);
            let Some(info) = entry.map(|entry| entry.info()) else {
                return;
            };
            at = info.args.end;
            if !f(&info) {
                return;
            }
        }
    }

    /// Whether a range is mapped throughout by what would be one mapping in Linux: adjacent entries have the same
    /// properties, and shared ones map consecutive parts of one object.
    pub fn is_one_mapping(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        let map = self.lock();
        // There may be many entries: each is looked at under a pin of its own.
        let common = |entry: &MapEntry, at: u64| {
            let pin = ksync::pin();
            let layer = entry.chain(&pin)?.layers().last()?;
            let object = layer.object(&pin)?;
            let shared = entry.is_shared() || !object.is_anon();
            shared.then(|| (object.identity(), layer.index(at)))
        };
        let (mut at, mut before) = (start, None);
        map.tree().for_overlapping(start, end, &mut |entry| {
            let kind = |at| (entry.prot(), entry.flags(), common(entry, at));
            let goes_on = entry.start() <= at && before.is_none_or(|before| before == kind(at));
            if goes_on {
                (at, before) = (entry.end(), Some(kind(entry.end())));
            }
            goes_on
        });
        at >= end
    }

    /// The entry that covers `at`.
    pub fn entry_at(&self, at: u64) -> Option<EntryInfo> {
        {
            let pin = ksync::pin();
            if let Some(entry) = self.find(&pin, at) {
                return Some(entry.info());
            }
        }
        // The entry may be missing only because a change is in progress.
        self.lock().find(at).map(|entry| entry.info())
    }

    /// The object that `at` maps, as a base reference that the caller must release, and the byte offset in it. For
    /// shared futexes: two addresses name the same word if object and offset are the same. `None` for private memory.
    pub fn shared_object(&self, at: u64) -> Option<(ObjectRef, u64)> {
        {
            let pin = ksync::pin();
            if let Some(entry) = self.find(&pin, at) {
                if !entry.is_shared() {
                    return None;
                }
                if let Some(found) = entry.shared_object(at, &pin) {
                    return Some(found);
                }
            }
        }
        // A change may be in progress, or the layer may just have been detached.
        self.lock().find(at)?.shared_object(at, &ksync::pin())
    }

    /// Bytes mapped: RLIMIT_AS's measure.
    pub fn mapped(&self) -> u64 {
        self.lock().pages() << PAGE_SHIFT
    }

    /// The sizes of the space. Walks entries and page tables.
    pub fn usage<M: Machine>(&self, vm: &Vm<M>) -> Usage {
        let map = self.lock();
        let mut usage = Usage {
            mapped: map.pages(),
            resident: self.pmap().resident(vm) as u64,
            tables: self.pmap().tables() as u64,
            entries: map.tree().len() as u64,
            ..Usage::default()
        };
        map.tree().for_overlapping(0, u64::MAX, &mut |entry| {
            let (args, pages) = (entry.args(), (entry.end() - entry.start()) >> PAGE_SHIFT);
            let is = |flag| args.flags.contains(flag);
            if args.is_stack() {
                usage.stack += pages;
            } else if args.may_be_data() && allows(args.prot, Access::Write) {
                usage.data += pages;
            } else if is(EntryFlags::FILE) && allows(args.prot, Access::Exec) {
                usage.text += pages;
            }
            usage.locked += entry.locked_pages();
            true
        });
        usage
    }

    /// The memory that the space uses, mapped by its page tables at present or not. Takes no lock, so that it works on
    /// a space whose owner waits for memory in the middle of a change; concurrent changes may be missed or counted
    /// twice.
    pub fn cost(&self) -> Cost {
        let mut sum = Sum {
            cost: Cost::default(),
            bytes: 0,
            last: (0, false),
            wholes: SHARED_WHOLES,
        };
        self.tree.for_each(&mut |entry| sum.add(entry));
        Cost {
            tables: (self.pmap().tables() + sum.bytes / PAGE_SIZE) as u64,
            ..sum.cost
        }
    }

    /// Appends one byte for each page of a range to `out`: whether the page is resident in an object that the range maps,
    /// with or without a page-table entry. Holds the map's lock all the time.
    ///
    /// # Errors
    /// `NotMapped`: not all of it is mapped; `Invalid`: alignment; `NoMemory`: for `out`. Nothing was appended then.
    pub fn resident<M: Machine>(
        &self,
        vm: &Vm<M>,
        start: u64,
        len: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), VmError> {
        let map = self.lock();
        let end = mapped_end(&map, start, len)?;
        out.try_reserve(((end - start) >> PAGE_SHIFT) as usize)
            .map_err(|_| VmError::NoMemory)?;
        for va in (start..end).step_by(PAGE_SIZE) {
            let pin = ksync::pin();
            let entry = map.find(va);
            let chain = entry.as_ref().and_then(|entry| entry.chain(&pin));
            let special = entry
                .as_ref()
                .is_some_and(|entry| entry.shown_special(vm).is_some());
            let found = special
                || chain.is_some_and(|chain| {
                    let has = |layer: &crate::backing::Backing| {
                        layer.object(&pin).is_some_and(|object| {
                            let page = object.lookup(&pin, layer.index(va));
                            object.frames().is_some()
                                || page.is_some_and(|pfn| !object.is_unwritten(vm, pfn))
                        })
                    };
                    // Private copies beyond the end of a file that shrank stay in their object but cannot be reached.
                    let reached = chain.layers().len() == 1 || !chain.is_cut_off(&pin, va);
                    reached && chain.layers().iter().any(|layer| has(layer))
                });
            out.push(u8::from(found));
        }
        Ok(())
    }

    /// Copies bytes out of the space, as far as it is readable; returns how many. Sleeping context.
    ///
    /// # Errors
    /// That of the first byte, if nothing could be copied; `Denied` also where a device's own frame is mapped.
    pub fn read_at<M: Machine>(
        &self,
        vm: &Vm<M>,
        va: u64,
        buf: &mut [u8],
    ) -> Result<usize, FaultError> {
        let mut done = 0;
        while done < buf.len() {
            let at = va.wrapping_add(done as u64);
            let offset = at as usize & (PAGE_SIZE - 1);
            let len = (buf.len() - done).min(PAGE_SIZE - offset);
            match self.hold(vm, at, Access::Read) {
                Ok((pfn, _busy)) => {
                    read_frame(&vm.machine, pfn, offset, &mut buf[done..done + len]);
                    done += len;
                }
                Err(_) if done > 0 => break,
                Err(why) => return Err(why),
            }
        }
        Ok(done)
    }

    /// Copies bytes into the space, as far as it is writable; returns how many. Sleeping context.
    ///
    /// # Errors
    /// That of the first byte, if nothing could be copied; `Denied` also where a device's own frame is mapped.
    pub fn write_at<M: Machine>(
        &self,
        vm: &Vm<M>,
        va: u64,
        buf: &[u8],
    ) -> Result<usize, FaultError> {
        let mut done = 0;
        while done < buf.len() {
            let at = va.wrapping_add(done as u64);
            let len = (buf.len() - done).min(PAGE_SIZE - (at as usize & (PAGE_SIZE - 1)));
            match self.write_piece(vm, at, &buf[done..done + len]) {
                Ok(()) => done += len,
                Err(_) if done > 0 => break,
                Err(why) => return Err(why),
            }
        }
        Ok(done)
    }

    /// Copies bytes into one page of the space; from `va` on they do not reach beyond that page. May sleep.
    ///
    /// The map's lock excludes forks, after which a child would see the store, and changes of the mapping. While the
    /// page is held busy and the live page-table entry carries its frame, no CPU reads another frame at the address.
    fn write_piece<M: Machine>(&self, vm: &Vm<M>, va: u64, bytes: &[u8]) -> Result<(), FaultError> {
        loop {
            let map = self.lock();
            let missed = match self.try_hold(vm, va, Access::Write) {
                Ok((pfn, busy)) => {
                    let entry = self.pmap().lookup(vm, &ksync::pin(), va);
                    if entry.is_some_and(|pte| pte.pfn() == pfn) {
                        write_frame(&vm.machine, pfn, va as usize & (PAGE_SIZE - 1), bytes);
                        busy.page().set_flag(Flags::DIRTY);
                        return Ok(());
                    }
                    Missed::Absent
                }
                Err(missed) => missed,
            };
            drop(map);
            self.overcome(vm, va, Access::Write, missed)?;
        }
    }

    /// The page at `va`, soft-busy, after a fault for `access` if one is needed.
    fn hold<M: Machine>(&self, vm: &Vm<M>, va: u64, access: Access) -> Result<Held, FaultError> {
        loop {
            match self.try_hold(vm, va, access) {
                Ok(held) => return Ok(held),
                Err(missed) => self.overcome(vm, va, access, missed)?,
            }
        }
    }

    /// Does what has to precede another attempt to hold the page.
    fn overcome<M: Machine>(
        &self,
        vm: &Vm<M>,
        va: u64,
        access: Access,
        missed: Missed,
    ) -> Result<(), FaultError> {
        match missed {
            Missed::Absent => self.fault(vm, va, access),
            Missed::Busy(page) => {
                page.wait();
                Ok(())
            }
            Missed::Device => Err(FaultError::Denied),
        }
    }

    /// As `hold`, without a fault and without waiting.
    fn try_hold<M: Machine>(&self, vm: &Vm<M>, va: u64, access: Access) -> Result<Held, Missed> {
        let pin = ksync::pin();
        let entry = self.find(&pin, va).ok_or(Missed::Absent)?;
        let state = entry.state();
        let write = access == Access::Write;
        if state.is_dead() || !allows(entry.prot(), access) || (write && state.needs_copy()) {
            return Err(Missed::Absent);
        }
        let held = |object: &Object, index, pfn| {
            let page = vm.pages.get(pfn);
            let Some(busy) = page.try_soft_busy() else {
                let wait = object.want(index, pfn, page, Wanted::Soft);
                return Err(if wait {
                    Missed::Busy(page)
                } else {
                    Missed::Absent
                });
            };
            let still = page.is(object.identity(), index) && entry.state() == state;
            still.then_some((pfn, busy)).ok_or(Missed::Absent)
        };
        if let Some(object) = entry.shown_special(vm).filter(|_| !write) {
            let index = entry.special_index(va);
            let pfn = object.lookup(&pin, index).ok_or(Missed::Absent)?;
            return held(object, index, pfn);
        }
        let chain = entry.chain(&pin).ok_or(Missed::Absent)?;
        if chain.layers().len() > 1 && chain.is_cut_off(&pin, va) {
            return Err(Missed::Absent);
        }
        for (depth, layer) in chain.layers().iter().enumerate() {
            let object = layer.object(&pin).ok_or(Missed::Absent)?;
            let index = layer.index(va);
            if object.frames().is_some() {
                return Err(Missed::Device);
            }
            let Some(pfn) = object.lookup(&pin, index) else {
                continue;
            };
            if (write && depth > 0) || !object.has_index(index) {
                return Err(Missed::Absent);
            }
            return held(object, index, pfn);
        }
        Err(Missed::Absent)
    }
}

/// Why a page could not be held.
enum Missed {
    /// There is none that may be accessed so, or it changes at this moment: a fault brings it.
    Absent,
    /// It is held busy, and marked wanted.
    Busy(&'static Page),
    /// It is a device's frame, which has no [`Page`].
    Device,
}

/// A page that cannot leave its object as long as this lives.
type Held = (Pfn, SoftBusy<'static>);

impl EntryInfo {
    /// Whether the entry maps a file or anonymous memory.
    pub fn kind(&self) -> Kind {
        if self.args.flags.contains(EntryFlags::FILE) {
            Kind::File
        } else {
            Kind::Anon
        }
    }
}
