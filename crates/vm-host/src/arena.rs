//! A machine of plain host memory: frames, CPUs and domains, without address translation.
//!
//! Frames are numbered from [`FIRST`]; those below are absent, so that a stray frame number 0 is noticed. Memory is
//! divided evenly among the domains, CPUs likewise.
#![expect(unsafe_code, reason = "implements the unsafe trait `Machine`")]

use std::alloc::Layout;
use std::ptr::NonNull;
use std::time::Instant;

use vm::alloc::{FreeRange, MAX_ORDER};
use vm::page::{PAGE_SHIFT, PAGE_SIZE};
use vm::{CpuSet, Gather, Growth, Machine, Page, PageAllocator, PageArray, Pfn};

/// The first frame that exists.
pub const FIRST: Pfn = Pfn(16);

/// The first frame of the devices, far beyond the page array.
pub const DEVICE: Pfn = Pfn(0x000f_0000);
/// Number of frames of the devices.
pub const DEVICE_FRAMES: u32 = 4;

/// Alignment of the memory: that of the largest run, so that the address of a run is as aligned as its frame number.
const ALIGN: usize = PAGE_SIZE << MAX_ORDER;

/// Zeroed memory for the frames from 0, the absent ones included.
struct Memory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the bytes are only reached through the pointers of `Machine::frame`, whose users follow the rules of
// `vm::page`.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(frames: usize) -> Memory {
        let layout = Layout::from_size_align(frames * PAGE_SIZE, ALIGN)
            .expect("a sensible number of frames");
        // SAFETY: the size is not zero, as `FIRST` is not.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        Memory {
            base: NonNull::new(base).expect("memory for the arena"),
            layout,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout; the frames are not used after the machine was dropped.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

// SAFETY: `records` is accessed in `drop` alone; the rest is `Send` and `Sync` by itself.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// See the module.
pub struct Arena {
    memory: Memory,
    /// The contents of the devices' frames.
    device: Memory,
    frames: usize,
    cpus: usize,
    /// For each domain, all domains, nearest first.
    nearest: Vec<Vec<u8>>,
    pages: PageArray,
    /// Words of frames that are, or were, page tables: the model checker's atomics do not fit into frames.
    #[cfg(any(loom, shuttle))]
    tables: Box<[std::sync::OnceLock<Box<[ksync::atomic::AtomicU64; 512]>>]>,
    /// The memory of `pages`.
    records: *mut [Page],
    start: Instant,
}

impl Arena {
    /// A machine of `frames` frames and `cpus` CPUs in `domains` memory domains; all frames are reserved.
    ///
    /// The VM requires the frames' records to live for ever. They are freed with the arena, whose owner must first drop
    /// everything that uses it.
    pub fn new(frames: usize, cpus: usize, domains: usize) -> Arena {
        assert!(domains > 0 && cpus >= domains && frames >= domains);
        let records: Vec<Page> = (0..FIRST.index() + frames)
            .map(|_| Page::absent())
            .collect();
        let records: *mut [Page] = Box::into_raw(records.into_boxed_slice());
        let arena = Arena {
            memory: Memory::new(FIRST.index() + frames),
            device: Memory::new(DEVICE_FRAMES as usize),
            frames,
            cpus,
            nearest: (0..domains)
                .map(|domain| by_distance(domain, domains))
                .collect(),
            // SAFETY: not null, and valid until the arena is dropped: see there.
            pages: PageArray::new(unsafe { &*records }),
            records,
            #[cfg(any(loom, shuttle))]
            tables: (0..FIRST.index() + frames)
                .map(|_| std::sync::OnceLock::new())
                .collect(),
            start: Instant::now(),
        };
        for range in arena.ranges() {
            arena.pages.add_range(range.start, range.end, range.domain);
        }
        arena
    }

    /// The records of all frames.
    pub fn pages(&self) -> PageArray {
        self.pages
    }

    /// The bytes of a device's frame; `None` for any other frame.
    pub fn device(&self, pfn: Pfn) -> Option<NonNull<u8>> {
        let n = pfn.0.checked_sub(DEVICE.0).filter(|&n| n < DEVICE_FRAMES)?;
        // SAFETY: the offset is inside the allocation, as just checked.
        Some(unsafe { self.device.base.add((n as usize) << PAGE_SHIFT) })
    }

    /// All frames, by domain.
    pub fn ranges(&self) -> Vec<FreeRange> {
        let domains = self.nearest.len();
        let border = |domain: usize| FIRST.add((self.frames * domain / domains) as u32);
        (0..domains)
            .map(|domain| FreeRange {
                start: border(domain),
                end: border(domain + 1),
                domain: domain as u8,
            })
            .collect()
    }

    /// A VM on this machine, with an empty template root.
    pub fn into_vm(self) -> vm::Vm<Arena> {
        let (pages, alloc) = (self.pages(), self.allocator());
        vm_on(self, pages, alloc)
    }

    /// An allocator of all frames. To be called once per arena.
    pub fn allocator(&self) -> PageAllocator {
        PageAllocator::new(self, self.pages, &self.ranges())
    }
}

/// A VM on `machine`, whose template root is empty.
pub(crate) fn vm_on<M: Machine>(machine: M, pages: PageArray, alloc: PageAllocator) -> vm::Vm<M> {
    let root = alloc
        .alloc(&ksync::pin(), vm::Rights::Kernel)
        .expect("memory for the template root");
    vm::page::zero_frame(&machine, root);
    pages.get(root).set_state(vm::page::State::Table);
    vm::Vm::new(machine, pages, alloc, root)
}

fn by_distance(domain: usize, domains: usize) -> Vec<u8> {
    let mut all: Vec<u8> = (0..domains as u8).collect();
    all.sort_by_key(|&other| usize::from(other).abs_diff(domain));
    all
}

// SAFETY: frames are disjoint, adjacent parts of one allocation that lives as long as the arena; all pointers derive
// from its base; `frame_of` is the inverse of the same arithmetic.
unsafe impl Machine for Arena {
    fn frame(&self, pfn: Pfn) -> NonNull<u8> {
        assert!(
            pfn >= FIRST && pfn.index() < FIRST.index() + self.frames,
            "no such frame: {pfn:?}"
        );
        // SAFETY: the offset is inside the allocation, as just checked.
        unsafe { self.memory.base.add(pfn.index() << PAGE_SHIFT) }
    }

    fn frame_of(&self, address: *const u8) -> Option<Pfn> {
        let offset = address.addr().checked_sub(self.memory.base.addr().get())?;
        let n = offset >> PAGE_SHIFT;
        (FIRST.index()..FIRST.index() + self.frames)
            .contains(&n)
            .then_some(Pfn(n as u32))
    }

    fn ncpus(&self) -> usize {
        self.cpus
    }

    fn ndomains(&self) -> usize {
        self.nearest.len()
    }

    fn domain_of(&self, cpu: usize) -> usize {
        cpu * self.nearest.len() / self.cpus
    }

    fn domains_by_distance(&self, domain: usize) -> &[u8] {
        &self.nearest[domain]
    }

    fn ticks(&self) -> u64 {
        // A model must behave alike in each execution.
        if cfg!(any(loom, shuttle)) {
            return 0;
        }
        self.start.elapsed().as_nanos() as u64
    }

    fn may_grow(&self, _to: &Growth) -> bool {
        false
    }

    fn copy_device(&self, to: Pfn, from: Pfn) {
        let from = self.device(from).expect("a device's frame");
        // SAFETY: both are whole frames; the caller owns `to`, and programs treat a device's bytes as plain data.
        unsafe { from.copy_to_nonoverlapping(self.frame(to), PAGE_SIZE) };
    }

    #[cfg(any(loom, shuttle))]
    fn table_words(&self, pfn: Pfn) -> &[ksync::atomic::AtomicU64; 512] {
        let zero = |_| ksync::atomic::AtomicU64::new(0);
        self.tables[pfn.index()].get_or_init(|| Box::new(core::array::from_fn(zero)))
    }

    /// This machine caches no translations.
    fn flush(&self, _cpus: &CpuSet, _what: &Gather) {}
}

impl Drop for Arena {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A test failed while threads were running: they may still use the records.
            return;
        }
        // SAFETY: made by `Box::into_raw` in `new`; the VM on this arena is dropped with it and does not access the
        // records any more.
        drop(unsafe { Box::from_raw(self.records) });
    }
}
