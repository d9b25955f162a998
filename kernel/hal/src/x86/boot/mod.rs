//! From the first Rust instruction to `kmain`.
//!
//! The order: console, traps, what the boot loader passed, CPU features, ACPI, memory by node, the real page tables, clocks,
//! stacks, the other CPUs. When `kmain` is called, free memory belongs to the allocator, and every CPU has its final stack.
mod entry;
pub(crate) mod info;
mod page_array;
pub(crate) mod start_info;

use core::arch::asm;
use core::mem::size_of;
use core::ptr;

use start_info::Handover;
use vm::page::MOST_FRAMES;

use self::info::BootInfo;
use super::frames::{self, EARLY, FrameRange};
use super::numa::Numa;
use super::stack::KernelStack;
use super::{
    acpi, apic, console, features, fpu, gdt, idt, ioapic, memory, paging, panic, patch, percpu,
    physical, pic, power, smp, symbols, time, timer, trap,
};
use crate::limits::{MAX_CPUS, PAGE_SIZE};

/// The first Rust code on the boot CPU, on the boot page tables and the boot stack.
extern "C" fn start(start_info: u64) -> ! {
    let area = percpu::boot_area();
    // SAFETY: the boot CPU's area is static and no other CPU runs; the boot page tables map all that the kernel uses here.
    unsafe {
        percpu::register(area);
        gdt::load((*area).gdt.get(), (*area).tss.get());
        percpu::load(area);
    }
    idt::init();
    idt::load();
    console::init();
    let mut handover = start_info::HANDOVER.lock();
    assert!(
        handover.fill(start_info),
        "the boot loader passed no memory map"
    );
    features::detect();
    // SAFETY: the boot page tables map text writable, and no other CPU runs.
    unsafe {
        patch::apply();
        if has_word(handover.cmdline(), b"lockprof") {
            patch::profile_locks();
        }
    }
    features::enable();
    let rsdp = if handover.rsdp != 0 {
        handover.rsdp
    } else {
        acpi::search_rsdp()
    };
    let mut platform = acpi::read(rsdp);
    power::init(platform.power);
    let numa = Numa::read(platform.srat, platform.slit);
    platform.set_nodes(|apic_id| numa.cpu_node(apic_id));
    let (nodes, distances) = (numa.nodes(), numa.distances());
    let max_pfn = collect_memory(&handover, &numa);
    let trampoline = smp::reserve_trampoline();
    paging::build(direct_map_ranges(&handover), symbols::size())
        .expect("boot needs memory for its page tables");
    start_devices(&platform);
    let cmdline = leak_bytes(handover.cmdline());
    panic::set_timeout(number_option(cmdline, b"panic").unwrap_or(0));
    power::use_debug_exit(option(cmdline, b"pantala.exit") == Some(b"debug"));
    // As in Linux, zero means the boot CPU alone.
    let max_cpus = number_option(cmdline, b"maxcpus")
        .unwrap_or(MAX_CPUS)
        .clamp(1, MAX_CPUS);
    let initrd = handover.initrd;
    drop(handover);
    finish_cpu(area);
    let ncpus = smp::start_all(&platform, trampoline, max_cpus);
    paging::seal();
    // SAFETY: the area is this CPU's; its node does not change any more.
    let top = permanent_stack(unsafe { (*area).node });
    let distances = leak(distances);
    let info = BootInfo {
        cmdline,
        initrd,
        pages: page_array::make(max_pfn, nodes),
        memory: hand_over_free_ranges(),
        max_pfn,
        ncpus,
        nodes,
        distances,
    };
    // SAFETY: the area is this CPU's, and the field is atomic; the boot CPU answers interrupts from now on.
    unsafe {
        (*area)
            .online
            .store(true, core::sync::atomic::Ordering::Release)
    };
    smp::on_final_stack(top, move || crate::upcalls::symbols::kmain(info))
}

/// Sets up interrupt controllers and clocks.
fn start_devices(platform: &acpi::Platform) {
    pic::mask();
    apic::map().expect("boot needs memory for device registers");
    physical::init().expect("boot needs memory for device registers");
    apic::enable();
    ioapic::init(platform).expect("boot needs memory for device registers");
    time::init(platform.power.timer);
    timer::calibrate();
    fpu::detect();
}

/// The last step of setting up a CPU, once it runs on the real page tables with its area loaded.
pub(super) fn finish_cpu(area: *mut percpu::CpuArea) {
    fpu::enable();
    trap::init_syscall();
    timer::init();
    smp::give_stacks(area);
}

/// The frames that lie wholly in a physical range, those that have no number left out.
fn whole_frames(start: u64, end: u64) -> (u32, u32) {
    let page = PAGE_SIZE as u64;
    let number = |frame: u64| frame.min(MOST_FRAMES as u64) as u32;
    (number(start.div_ceil(page)), number(end / page))
}

/// The frames that a physical range touches.
fn touched_frames(start: u64, end: u64) -> (u32, u32) {
    let page = PAGE_SIZE as u64;
    ((start / page) as u32, end.div_ceil(page) as u32)
}

/// Gives all RAM that is not in use to the early allocator. Returns one past the highest frame of RAM.
fn collect_memory(handover: &Handover, numa: &Numa<'_>) -> u32 {
    let mut early = EARLY.lock();
    let mut max_pfn = 0;
    for entry in handover
        .memory()
        .iter()
        .filter(|entry| entry.kind == start_info::RAM)
    {
        let (start, end) = whole_frames(entry.start, entry.start + entry.size);
        early.add(FrameRange {
            start,
            end,
            node: 0,
        });
        max_pfn = max_pfn.max(end);
    }
    let image = memory::image();
    let (start, end) = touched_frames(image.start, image.end + symbols::find());
    early.reserve(start, end);
    // The first page, where the BIOS keeps its data.
    early.reserve(0, 1);
    if let Some((start, end)) = handover.initrd {
        let (start, end) = touched_frames(start, end);
        early.reserve(start, end);
    }
    numa.for_each_memory(|start, end, node| {
        let (start, end) = whole_frames(start, end);
        early.set_node(start, end, node);
    });
    max_pfn
}

/// The physical ranges that the direct map covers: RAM and ACPI's memory in whole pages, and the first MiB.
fn direct_map_ranges(handover: &Handover) -> impl Iterator<Item = (u64, u64)> {
    const FIRST_MIB: u64 = 1 << 20;
    let wanted = |kind: u32| {
        matches!(
            kind,
            start_info::RAM | start_info::ACPI_TABLES | start_info::ACPI_STORAGE
        )
    };
    let mut covered = FIRST_MIB;
    core::iter::once((0, FIRST_MIB)).chain(
        handover
            .memory()
            .iter()
            .filter(move |entry| wanted(entry.kind))
            .filter_map(move |entry| {
                let page = PAGE_SIZE as u64;
                let start = (entry.start / page * page).max(covered);
                let end = (entry.start + entry.size).next_multiple_of(page);
                covered = covered.max(end);
                (start < end).then_some((start, end))
            }),
    )
}

/// The value of the last `name=` on the command line.
fn option<'a>(cmdline: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    cmdline
        .split(|byte| byte.is_ascii_whitespace())
        .filter_map(|word| word.strip_prefix(name)?.strip_prefix(b"="))
        .next_back()
}

/// Whether the command line has this word.
fn has_word(cmdline: &[u8], name: &[u8]) -> bool {
    cmdline
        .split(|byte| byte.is_ascii_whitespace())
        .any(|word| word == name)
}

/// The value of the last `name=`, if it is a number.
fn number_option<T: core::str::FromStr>(cmdline: &[u8], name: &[u8]) -> Option<T> {
    str::from_utf8(option(cmdline, name)?).ok()?.parse().ok()
}

/// Allocates a frame that is never freed.
fn boot_frame() -> *mut u8 {
    let pfn = frames::alloc_zeroed(0).expect("boot needs a few pages of memory");
    memory::frame(pfn).as_ptr()
}

fn leak_bytes(bytes: &[u8]) -> &'static [u8] {
    assert!(bytes.len() <= PAGE_SIZE);
    let copy = boot_frame();
    // SAFETY: a fresh frame, at least as long as the bytes, kept for good.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len());
        core::slice::from_raw_parts(copy, bytes.len())
    }
}

fn leak<T: Copy>(value: T) -> &'static T {
    const { assert!(size_of::<T>() <= PAGE_SIZE) };
    let copy = boot_frame().cast::<T>();
    // SAFETY: a fresh frame, page-aligned and long enough, kept for good.
    unsafe {
        copy.write(value);
        &*copy
    }
}

/// Ends early allocation, and lists the ranges that are free then. The list is in a frame of its own, taken just before, which is
/// never freed.
fn hand_over_free_ranges() -> &'static [FrameRange] {
    const { assert!(frames::MAX_RANGES * size_of::<FrameRange>() <= PAGE_SIZE) };
    let list = boot_frame().cast::<FrameRange>();
    let mut count = 0;
    let early = EARLY.lock().hand_over();
    for range in early.ranges() {
        // SAFETY: the frame has room for as many ranges as the early allocator can have.
        unsafe { list.add(count).write(range) };
        count += 1;
    }
    // SAFETY: written above, kept for good.
    unsafe { core::slice::from_raw_parts(list, count) }
}

/// Continues in `then` on another stack, and does not return.
///
/// # Safety
/// `top` must be the 16-byte-aligned top of a mapped stack that nobody uses.
pub(super) unsafe fn switch_stack(top: u64, then: extern "C" fn() -> !) -> ! {
    // SAFETY: as the caller vouches; the return address of zero ends backtraces.
    unsafe {
        asm!("mov rsp, {top}", "xor ebp, ebp", "call {then}", "ud2",
             top = in(reg) top, then = in(reg) then, options(noreturn));
    }
}

/// Allocates a stack that a CPU of `node` keeps for good. Returns its top.
pub(super) fn permanent_stack(node: u32) -> u64 {
    KernelStack::on_node(node)
        .expect("boot needs memory for stacks")
        .keep()
}
