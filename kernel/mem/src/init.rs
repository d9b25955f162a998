//! From the memory that boot found to a working VM.

use alloc::boxed::Box;

use hal::machine::KernelMachine;
use hal::{BootInfo, PAGE_SIZE};
use ksync::{Counter, CpuPin, Once, Spin};
use vm::alloc::FreeRange;
use vm::{PageAllocator, PageArray, Pfn, Rights, Slab, Vm};

use crate::machine::{SLAB, VM};

/// Boot memory for each CPU: per-CPU parts of allocator, heap, epoch and statistics.
const BOOT_HEAP_PER_CPU: usize = 28 << 10;
/// Boot memory besides.
const BOOT_HEAP: usize = 128 << 10;

/// Where the initial RAM disk lies; const after [`init`].
static INITRD: Once<Option<(u64, u64)>> = Once::new();

/// Takes whole frames off the ranges, from the largest, so that small ones stay whole for the allocator.
fn carve(ranges: &mut [FreeRange], bytes: usize) -> u64 {
    let frames = bytes.div_ceil(PAGE_SIZE) as u32;
    let largest = ranges
        .iter_mut()
        .max_by_key(|r| r.end.0 - r.start.0)
        .expect("boot found memory");
    assert!(
        largest.end.0 - largest.start.0 > frames,
        "too little memory for the kernel's own tables"
    );
    let start = largest.start;
    largest.start = Pfn(start.0 + frames);
    u64::from(start.0) * PAGE_SIZE as u64
}

ksync::lock_class!(BootRangesLock, "boot ranges", rank = 1);

/// Most ranges of memory that are told apart at boot; more stay unused.
const RANGES: usize = 64;
const NO_RANGE: FreeRange = FreeRange {
    start: Pfn(0),
    end: Pfn(0),
    domain: 0,
};
/// Free memory while it is handed over.  There is no heap yet, and a thread's stack is too small.
static FREE: Spin<[FreeRange; RANGES], BootRangesLock> = Spin::new([NO_RANGE; RANGES]);

/// Sets up frames, allocator, heap and VM.  Once, on the boot CPU, before anything allocates.
#[inline(never)]
pub fn init(info: &BootInfo) {
    let pages = make_records(info);
    take_boot_heap(info);
    INITRD.get_or_init(|| info.initrd);
    make_vm(info, pages);
    crate::heap::use_slab();
    MACHINE_FRAMES.get_or_init(|| Counter::new(info.ncpus));
    hal::frames::set_source(&FRAMES);
}

/// Marks the frames that exist, and notes which are free.
#[inline(never)]
fn make_records(info: &BootInfo) -> PageArray {
    let pages = PageArray::new(info.pages);
    let mut free = FREE.lock();
    for (to, from) in free.iter_mut().zip(info.memory) {
        *to = FreeRange {
            start: Pfn(from.start),
            end: Pfn(from.end),
            domain: from.node as u8,
        };
        pages.add_range(to.start, to.end, to.domain);
    }
    if let Some((start, end)) = info.initrd {
        let (first, end) = (first_frame(start), end_frame(end));
        pages.add_range(first, end, neighbours_node(&free[..], first));
    }
    pages
}

/// The node of frames that boot keeps back: that of the free memory just below, or else of the lowest there is.
fn neighbours_node(free: &[FreeRange], first: Pfn) -> u8 {
    let ranges = || free.iter().filter(|r| r.start.0 < r.end.0);
    let below = ranges().filter(|r| r.end.0 <= first.0);
    let nearest = below.max_by_key(|r| r.end.0);
    let nearest = nearest.or_else(|| ranges().min_by_key(|r| r.start.0));
    nearest.map_or(0, |r| r.domain)
}

/// Gives the heap its first memory.
#[inline(never)]
fn take_boot_heap(info: &BootInfo) {
    let len = (BOOT_HEAP + BOOT_HEAP_PER_CPU * info.ncpus).next_multiple_of(PAGE_SIZE);
    let at = carve(&mut FREE.lock()[..], len);
    crate::heap::give_boot_memory(hal::memory::direct(at), len);
}

#[inline(never)]
fn make_vm(info: &BootInfo, pages: PageArray) {
    let machine = KernelMachine::new(info, || hal::spaces::reload_root(crate::machine::vm()));
    let count = info.memory.len().min(RANGES);
    let alloc = PageAllocator::new(&machine, pages, &FREE.lock()[..count]);
    SLAB.get_or_init(|| Slab::new(&machine));
    let root = Pfn(hal::paging::kernel_root());
    VM.get_or_init(|| Box::leak(Box::new(Vm::new(machine, pages, alloc, root))));
}

/// Frames that the machine layer has taken from the allocator, for stacks and the kernel's tables. Set at boot.
static MACHINE_FRAMES: Once<Counter> = Once::new();

fn count_machine_frames(pin: &CpuPin, n: i64) {
    if let Some(frames) = MACHINE_FRAMES.get() {
        frames.add(pin, n);
    }
}

/// Frames that the machine layer holds now, those it took at boot before there was an allocator left out.
pub fn machine_frames() -> usize {
    MACHINE_FRAMES
        .get()
        .map_or(0, |frames| frames.sum() as usize)
}

/// Frames for the machine's own use come from the allocator from now on.
static FRAMES: hal::frames::Source = hal::frames::Source {
    alloc: |_node| {
        let pin = ksync::pin();
        let vm = crate::machine::vm();
        let pfn = vm.alloc.alloc(&pin, Rights::Kernel).ok()?;
        vm.pages.get(pfn).set_state(vm::page::State::Reserved);
        count_machine_frames(&pin, 1);
        Some(pfn.0)
    },
    free: |pfn| {
        let pin = ksync::pin();
        let vm = crate::machine::vm();
        vm.pages.get(Pfn(pfn)).set_state(vm::page::State::Allocated);
        count_machine_frames(&pin, -1);
        vm.alloc.free(&pin, Pfn(pfn));
    },
};

fn first_frame(start: u64) -> Pfn {
    Pfn((start / PAGE_SIZE as u64) as u32)
}

fn end_frame(end: u64) -> Pfn {
    Pfn(end.div_ceil(PAGE_SIZE as u64) as u32)
}

/// The initial RAM disk.
pub struct Initrd {
    /// Its bytes; gone after [`release_initrd`].
    pub bytes: Option<&'static [u8]>,
}

/// The initial RAM disk, for unpacking.
pub fn initrd(info: &BootInfo) -> Initrd {
    Initrd {
        bytes: info
            .initrd
            .map(|(start, end)| hal::memory::boot_bytes(start, end)),
    }
}

/// Gives the frames of the initial RAM disk to the allocator.  Nobody reads it any more.
pub fn release_initrd() {
    let Some(Some((start, end))) = INITRD.get() else {
        return;
    };
    let vm = crate::machine::vm();
    // Frames that hold a neighbour's bytes as well stay reserved.
    let (from, to) = (
        start.div_ceil(PAGE_SIZE as u64) as u32,
        (end / PAGE_SIZE as u64) as u32,
    );
    for pfn in from..to {
        let pin = ksync::pin();
        vm.alloc.adopt(&pin, Pfn(pfn));
    }
}
