//! Starting the other CPUs.
//!
//! CPUs are started one at a time: INIT, then STARTUP to a real-mode trampoline below 1 MiB, which continues on the boot page
//! tables and a shared stack to [`ap_start`]. A CPU that does not start in time is left out. Each CPU then waits on its final
//! stack until `kmain` calls [`release_cpus`].
use core::cell::UnsafeCell;
use core::convert::Infallible;
use core::hint::spin_loop;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use super::acpi::{Platform, Processor};
use super::frames::{self, EARLY};
use super::gdt::{self, Ist};
use super::percpu::{self, CpuArea};
use super::{apic, boot, cpu, features, idt, memory, paging, time};
use crate::limits::PAGE_SIZE;
use crate::upcalls::symbols as upcall;

/// The area of the CPU that is being started.
static STARTING: AtomicPtr<CpuArea> = AtomicPtr::new(ptr::null_mut());
/// The number of CPUs, without the boot CPU, that have reached their final stacks.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// Set by [`release_cpus`].
static RELEASED: AtomicBool = AtomicBool::new(false);
/// Reserves a page below 1 MiB for the trampoline. Returns its number; `None` if there is no such page.
pub(super) fn reserve_trampoline() -> Option<u8> {
    /// The page at which video memory begins.
    const LOW_END: u32 = 0xa0;
    let mut early = EARLY.lock();
    let page = early
        .ranges()
        .filter(|r| r.start < LOW_END && r.start > 0)
        .map(|r| r.start)
        .min()?;
    early.reserve(page, page + 1);
    u8::try_from(page).ok()
}

/// Starts CPUs until `limit` run, the boot CPU included; those that cannot be reached or do not start are left out. Returns how
/// many run.
pub(super) fn start_all(platform: &Platform, trampoline: Option<u8>, limit: usize) -> usize {
    let boot_id = apic::id();
    let boot_area = percpu::boot_area();
    // SAFETY: no other CPU accesses the boot CPU's area yet.
    unsafe {
        (*boot_area).apic_id = boot_id;
        (*boot_area).node = platform
            .processors()
            .iter()
            .find(|p| p.apic_id == boot_id)
            .map_or(0, |p| p.node);
    }
    let mut count = 1;
    if let Some(page) = trampoline {
        copy_trampoline(page);
        for processor in platform
            .processors()
            .iter()
            .filter(|p| p.apic_id != boot_id)
        {
            // Without x2APIC mode, interrupts can be sent to APIC ids of eight bits only.
            let reachable = processor.apic_id < 0xff || features::has(features::X2APIC);
            if count < limit && reachable && start_one(count, *processor, page) {
                count += 1;
            }
        }
    }
    cpu::set_count(count);
    count
}

fn copy_trampoline(page: u8) {
    unsafe extern "C" {
        static ap_trampoline: u8;
        static ap_trampoline_end: u8;
    }
    let (start, end) = (&raw const ap_trampoline, &raw const ap_trampoline_end);
    // SAFETY: the page has been reserved for this, and the trampoline is shorter than a page.
    unsafe {
        let target = memory::direct(u64::from(page) << 12);
        ptr::copy_nonoverlapping(start, target, end.offset_from_unsigned(start));
    }
}

/// Starts one CPU, and waits until it is on its own stack. False if there is no memory for its area, or it is not there in five
/// seconds: it never comes then, and its number can be used for the next one.
fn start_one(id: usize, processor: Processor, page: u8) -> bool {
    /// An emulated CPU on a busy host may wait long until the host runs it.
    const TIMEOUT_NS: u64 = 5_000_000_000;
    let Processor { apic_id, node } = processor;
    let Some(area) = new_area(id, apic_id, node) else {
        return false;
    };
    let before = STARTED.load(Ordering::Acquire);
    STARTING.store(area, Ordering::Release);
    apic::send_init(apic_id);
    time::spin_ns(10_000_000);
    for _ in 0..2 {
        apic::send_startup(apic_id, page);
        time::spin_ns(200_000);
        if STARTED.load(Ordering::Acquire) != before {
            return true;
        }
    }
    let deadline = time::now_ns() + TIMEOUT_NS;
    while STARTED.load(Ordering::Acquire) == before {
        if time::now_ns() > deadline {
            // The CPU must not start later and take the area of the next one.
            if STARTING.swap(ptr::null_mut(), Ordering::AcqRel).is_null() {
                continue;
            }
            kprintln!("CPU with APIC id {apic_id} does not start");
            return false;
        }
        spin_loop();
    }
    true
}

/// Allocates the area and the stacks of a new CPU.
fn new_area(id: usize, apic_id: u32, node: u32) -> Option<*mut CpuArea> {
    const { assert!(size_of::<CpuArea>() <= PAGE_SIZE) };
    let pfn = frames::alloc_zeroed(node as usize)?;
    let area = memory::frame(pfn).as_ptr().cast::<CpuArea>();
    // SAFETY: the frame is new, large enough, and never freed; its CPU does not run yet.
    unsafe {
        area.write(CpuArea::new(id as u32, apic_id, node));
        percpu::register(area);
    }
    give_stacks(area);
    Some(area)
}

/// Gives a CPU its interrupt and exception stacks, unless it has them.
pub(super) fn give_stacks(area: *mut CpuArea) {
    // SAFETY: called before the CPU uses the stacks, on the one CPU that sets it up.
    unsafe {
        if (*area).irq_stack.get() != 0 {
            return;
        }
        let node = (*area).node;
        (*area).irq_stack.set(boot::permanent_stack(node));
        for which in [Ist::Nmi, Ist::DoubleFault, Ist::MachineCheck] {
            // The entry code takes the address of the CPU's area from the word above the frame.
            let slot = boot::permanent_stack(node) - 16;
            (slot as *mut *const CpuArea).write(area);
            (*(*area).tss.get()).set_ist(which, slot);
        }
    }
}

/// The first Rust code on another CPU, on the boot page tables and the shared stack.
pub(super) extern "C" fn ap_start() -> ! {
    let area = STARTING.swap(ptr::null_mut(), Ordering::AcqRel);
    if area.is_null() {
        // This CPU was not started in time, and is not used.
        loop {
            // SAFETY: interrupts are off, and only a reset ends this.
            unsafe { core::arch::asm!("cli", "hlt") };
        }
    }
    features::enable();
    paging::load_kernel_root();
    // SAFETY: the area was made for this CPU.
    unsafe {
        gdt::load((*area).gdt.get(), (*area).tss.get());
        percpu::load(area);
    }
    idt::load();
    apic::enable();
    boot::finish_cpu(area);
    let top = boot::permanent_stack(percpu::area().node);
    on_final_stack(top, || {
        STARTED.fetch_add(1, Ordering::AcqRel);
        while !RELEASED.load(Ordering::Acquire) {
            spin_loop();
        }
        percpu::area().online.store(true, Ordering::SeqCst);
        // Translations may have changed before this CPU was among the targets of flush requests.
        paging::flush_all();
        upcall::ap_main(percpu::id() as usize)
    })
}

/// Lets the other CPUs call `ap_main`.
pub fn release_cpus() {
    RELEASED.store(true, Ordering::Release);
}

/// Continues in `then` on the permanent stack whose top is `top`, the CPU's first kernel stack.
pub(super) fn on_final_stack<F: FnOnce() -> Infallible + Send>(top: u64, then: F) -> ! {
    struct Slot<F>(UnsafeCell<Option<F>>);
    extern "C" fn run<F: FnOnce() -> Infallible>() -> ! {
        let slot = percpu::area().scratch.get() as *const Slot<F>;
        // SAFETY: the scratch word holds the address of the slot on the old stack; nothing else uses either.
        let then = unsafe { (*(*slot).0.get()).take() };
        match then.expect("set below")() {}
    }
    let slot = Slot(UnsafeCell::new(Some(then)));
    percpu::set_kernel_stack(top);
    percpu::area().scratch.set(&raw const slot as u64);
    // SAFETY: the stack is new. The old one is not written to until `run` has taken the closure out: the next CPU uses the
    // shared stack only after this one has increased `STARTED`.
    unsafe { boot::switch_stack(top, run::<F>) }
}
