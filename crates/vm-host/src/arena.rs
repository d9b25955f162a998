//! A machine of plain host memory: frames, CPUs and domains, without address translation.
//!
//! Frames are numbered from [`FIRST`]; those below are absent, so that a frame number 0 that slips through is noticed.
//! Memory is divided evenly among the domains, CPUs likewise.
#![expect(unsafe_code, reason = "implements the unsafe trait `Machine`")]

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::time::Instant;

use vm::alloc::FreeRange;
use vm::page::{PAGE_SHIFT, PAGE_SIZE};
use vm::{CpuSet, Gather, Machine, Page, PageAllocator, PageArray, Pfn};

/// The first frame that exists.
pub const FIRST: Pfn = Pfn(16);

/// One frame of memory.
#[repr(C, align(4096))]
struct Frame(UnsafeCell<[u8; PAGE_SIZE]>);

// SAFETY: the bytes are only reached through the pointers of `Machine::frame`, whose users keep the rules of `vm::page`.
unsafe impl Sync for Frame {}

/// See the module.
pub struct Arena {
    frames: Box<[Frame]>,
    cpus: usize,
    /// For each domain all domains, nearest first.
    nearest: Vec<Vec<u8>>,
    pages: PageArray,
    start: Instant,
}

impl Arena {
    /// A machine of `frames` frames and `cpus` CPUs in `domains` memory domains; all frames are reserved.
    ///
    /// The records of the frames are leaked: 64 bytes each, as the VM wants them to live for ever.
    pub fn new(frames: usize, cpus: usize, domains: usize) -> Arena {
        assert!(domains > 0 && cpus >= domains && frames >= domains);
        let records: Vec<Page> = (0..FIRST.index() + frames)
            .map(|_| Page::absent())
            .collect();
        let arena = Arena {
            frames: (0..frames)
                .map(|_| Frame(UnsafeCell::new([0; PAGE_SIZE])))
                .collect(),
            cpus,
            nearest: (0..domains)
                .map(|domain| by_distance(domain, domains))
                .collect(),
            pages: PageArray::new(records.leak()),
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

    /// All frames, by domain.
    pub fn ranges(&self) -> Vec<FreeRange> {
        let domains = self.nearest.len();
        let border = |domain: usize| FIRST.add((self.frames.len() * domain / domains) as u32);
        (0..domains)
            .map(|domain| FreeRange {
                start: border(domain),
                end: border(domain + 1),
                domain: domain as u8,
            })
            .collect()
    }

    /// An allocator of all frames. To be called once for an arena.
    pub fn allocator(&self) -> PageAllocator {
        PageAllocator::new(self, self.pages, &self.ranges())
    }
}

fn by_distance(domain: usize, domains: usize) -> Vec<u8> {
    let mut all: Vec<u8> = (0..domains as u8).collect();
    all.sort_by_key(|&other| usize::from(other).abs_diff(domain));
    all
}

// SAFETY: frames are disjoint, adjoining parts of one allocation that lives as long as the arena; the pointers derive
// from the whole of it, and `UnsafeCell` allows writing through them; `frame_of` inverts the same arithmetic.
unsafe impl Machine for Arena {
    fn frame(&self, pfn: Pfn) -> NonNull<u8> {
        let n = pfn
            .0
            .checked_sub(FIRST.0)
            .map(|n| n as usize)
            .filter(|&n| n < self.frames.len());
        let n = n.unwrap_or_else(|| panic!("no such frame: {pfn:?}"));
        let base = NonNull::from(&*self.frames).cast::<u8>();
        // SAFETY: the offset is inside the allocation, as just checked.
        unsafe { base.add(n << PAGE_SHIFT) }
    }

    fn frame_of(&self, address: *const u8) -> Option<Pfn> {
        let offset = address.addr().checked_sub(self.frames.as_ptr().addr())?;
        let n = offset >> PAGE_SHIFT;
        (n < self.frames.len()).then(|| FIRST.add(n as u32))
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

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Nothing is cached: whoever walks these tables walks them anew.
    fn flush(&self, _cpus: &CpuSet, _what: &Gather) {}
}
