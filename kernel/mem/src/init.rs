//! Sets up the VM on the memory that boot found.

use alloc::boxed::Box;

use hal::machine::KernelMachine;
use hal::{BootInfo, PAGE_SIZE};
use ksync::{Counter, CpuPin, Once, Spin};
use vm::alloc::{FreeRange, RUN_FRAMES};
use vm::{PageAllocator, PageArray, Pfn, Rights, Slab, Vm};

use crate::machine::{SLAB, VM};

/// Bytes of boot memory for each CPU: the per-CPU parts of allocator, heap, epoch and statistics.
const BOOT_HEAP_PER_CPU: usize = 28 << 10;
/// Bytes of boot memory for everything else.
const BOOT_HEAP: usize = 128 << 10;
/// Bytes of boot memory for each 2 MiB: the allocator's record of a run of frames, and its place in the table.
const BOOT_HEAP_PER_RUN: usize = 48;

/// Physical start and end of the initial RAM disk; constant after [`init`].
static INITRD: Once<Option<(u64, u64)>> = Once::new();

/// Takes whole frames from the start of the largest range, so that the smaller ranges stay whole for the allocator. Returns
/// the physical address of the first. Panics if that range has no more frames than these.
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

/// The most ranges of free memory that are recorded at boot; further ranges stay unused.
const RANGES: usize = 64;
const NO_RANGE: FreeRange = FreeRange {
    start: Pfn(0),
    end: Pfn(0),
    domain: 0,
};
/// The ranges of free memory, until the allocator takes them. Static, because there is no heap yet and the array is too large
/// for a stack.
static FREE: Spin<[FreeRange; RANGES], BootRangesLock> = Spin::new([NO_RANGE; RANGES]);

/// Sets up the page records, the heap, the allocator and the VM. Called once, on the boot CPU, before anything allocates.
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

/// Marks the frames of the free ranges, [`RANGES`] at most, and of the initial RAM disk as existing in the page records, and
/// copies the ranges to `FREE`.
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

/// The node for the frames that start at `first`, which boot has reserved: the node of the nearest free range below, or of
/// the lowest free range if there is none below.
fn neighbours_node(free: &[FreeRange], first: Pfn) -> u8 {
    let ranges = || free.iter().filter(|r| r.start.0 < r.end.0);
    let below = ranges().filter(|r| r.end.0 <= first.0);
    let nearest = below.max_by_key(|r| r.end.0);
    let nearest = nearest.or_else(|| ranges().min_by_key(|r| r.start.0));
    nearest.map_or(0, |r| r.domain)
}

/// Takes the boot memory of the heap from the free ranges.
#[inline(never)]
fn take_boot_heap(info: &BootInfo) {
    let runs = info.pages.len().div_ceil(RUN_FRAMES as usize);
    let len = BOOT_HEAP + BOOT_HEAP_PER_CPU * info.ncpus + BOOT_HEAP_PER_RUN * runs;
    let len = len.next_multiple_of(PAGE_SIZE);
    let at = carve(&mut FREE.lock()[..], len);
    crate::heap::give_boot_memory(hal::memory::direct(at), len);
}

#[inline(never)]
fn make_vm(info: &BootInfo, pages: PageArray) {
    let machine = KernelMachine::new(info, || hal::spaces::reload_root(crate::machine::vm()));
    let count = info.memory.len().min(RANGES);
    let mut alloc = PageAllocator::new(&machine, pages, &FREE.lock()[..count]);
    alloc.allow_reservations();
    SLAB.get_or_init(|| Slab::new(&machine));
    let root = Pfn(hal::paging::kernel_root());
    VM.get_or_init(|| Box::leak(Box::new(Vm::new(machine, pages, alloc, root))));
}

/// Frames that `hal` has taken from the allocator, for stacks and the kernel's page tables. Set at boot.
static MACHINE_FRAMES: Once<Counter> = Once::new();

fn count_machine_frames(pin: &CpuPin, n: i64) {
    if let Some(frames) = MACHINE_FRAMES.get() {
        frames.add(pin, n);
    }
}

/// Frames that `hal` holds now. Those that it took at boot, before there was an allocator, are not counted.
pub fn machine_frames() -> usize {
    MACHINE_FRAMES
        .get()
        .map_or(0, |frames| frames.sum() as usize)
}

/// The allocator, as `hal` calls it for stacks and the kernel's page tables after [`init`].
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
    /// Its bytes; `None` if the boot loader passed none. Not to be read after [`release_initrd`].
    pub bytes: Option<&'static [u8]>,
}

/// The initial RAM disk, which the caller unpacks.
pub fn initrd(info: &BootInfo) -> Initrd {
    Initrd {
        bytes: info
            .initrd
            .map(|(start, end)| hal::memory::boot_bytes(start, end)),
    }
}

/// Gives the frames of the initial RAM disk to the allocator. The caller has dropped every reference to its bytes. Frames
/// that it does not fill stay reserved.
pub fn release_initrd() {
    let Some(Some((start, end))) = INITRD.get() else {
        return;
    };
    let vm = crate::machine::vm();
    // A frame at either end may hold bytes of something else as well: it stays reserved.
    let (from, to) = (
        start.div_ceil(PAGE_SIZE as u64) as u32,
        (end / PAGE_SIZE as u64) as u32,
    );
    for pfn in from..to {
        let pin = ksync::pin();
        vm.alloc.adopt(&pin, Pfn(pfn));
    }
}
