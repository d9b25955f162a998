//! The per-CPU area, reached through GS while in the kernel.
//!
//! Guarantee: while preemption is off, `area` is this CPU's and stays so. Single words (the preemption
//! count, the current thread, the kernel stack) are read and written by one GS-relative instruction
//! each, so they are right even with preemption on, for a thread sees its own value wherever it runs.
//!
//! Unless stated otherwise a field is written by its own CPU only.
use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use ksync::{Announcer, CpuPin};
use vm::slab::Objects;

use super::answer::Snapshot;
use super::gdt::{Gdt, Tss};
use super::mailbox::Mailbox;
use super::msr;
use super::stack_cache::StackCache;
use crate::limits::MAX_CPUS;

/// A cache line begins here.
#[repr(align(64))]
struct NextLine;

/// What the kernel keeps for each CPU.
#[repr(C, align(64))]
pub struct CpuArea {
    /// Address of this area, so that a pointer to it can be read through GS. Const.
    this: *const CpuArea,
    /// Preemption count; see [`super::preempt`].
    pub(super) preempt: Cell<u32>,
    /// Dense CPU number. Const.
    pub(super) id: u32,
    /// Top of the current thread's kernel stack: where `syscall` and traps from user mode begin to push.
    kernel_stack: Cell<u64>,
    /// The user's stack pointer, for the few instructions between `syscall` and the stack switch.
    pub(super) scratch: Cell<u64>,
    /// The current thread, opaque here.
    current: Cell<*mut ()>,
    /// Top of the stack that interrupts from kernel mode run on. Const once running.
    pub(super) irq_stack: Cell<u64>,
    /// Tells the kernel's epoch that this CPU reads nothing; set once, before the first thread.
    pub(super) announcer: Cell<Option<Announcer>>,
    /// Heap objects that this CPU has ready; set once, before the first thread.
    heap: Cell<Option<Objects<'static>>>,
    /// In an interrupt handler that takes locks.
    handling: Cell<bool>,
    /// Latest time given out on this CPU; see [`super::time`]. Atomic, for a thread may move between reading and
    /// writing it.
    pub(super) last_ns: AtomicU64,
    /// APIC timer deadline now armed, in nanoseconds; `u64::MAX` if none.
    pub(super) armed_ns: Cell<u64>,
    pub(super) tss: UnsafeCell<Tss>,
    pub(super) gdt: UnsafeCell<Gdt>,
    /// Written by other CPUs: atomic.
    pub(super) mailbox: Mailbox,
    _constants: [NextLine; 0],
    /// Local APIC id. Const; senders of interrupts read it, so it shares no line with what is written.
    pub(super) apic_id: u32,
    /// NUMA node. Const.
    pub(super) node: u32,
    /// CPU answers interrupts: atomic.
    pub(super) online: AtomicBool,
    /// What this CPU ran when a panic elsewhere stopped it: atomic.
    pub(super) snapshot: Snapshot,
    _counts: [NextLine; 0],
    /// Interrupts taken, by kind: written by this CPU, read by all.
    pub(super) irq_counts: [AtomicU64; 4],
    /// TSC ticks spent in interrupt handlers: written by this CPU, read by all.
    pub(super) irq_ticks: AtomicU64,
    pub(super) stacks: UnsafeCell<StackCache>,
}

// SAFETY: other CPUs read the constant fields and use the atomic ones; the cells are private to the
// arch module, which touches them through `area()` of the running CPU only.
unsafe impl Sync for CpuArea {}

/// The preemption word of a CPU that starts: no reschedule wanted, preemption allowed; see [`super::preempt`].
pub(super) const PREEMPT_INITIAL: u32 = 1 << 31;

pub(super) const PREEMPT: usize = offset_of!(CpuArea, preempt);
pub(super) const KERNEL_STACK: usize = offset_of!(CpuArea, kernel_stack);
pub(super) const SCRATCH: usize = offset_of!(CpuArea, scratch);
pub(super) const CURRENT: usize = offset_of!(CpuArea, current);
pub(super) const IRQ_STACK: usize = offset_of!(CpuArea, irq_stack);
const THIS: usize = offset_of!(CpuArea, this);
const ID: usize = offset_of!(CpuArea, id);

impl CpuArea {
    /// An area not yet in use; `this` is set by [`install`].
    pub(super) const fn new(id: u32, apic_id: u32, node: u32) -> Self {
        Self {
            this: ptr::null(),
            preempt: Cell::new(PREEMPT_INITIAL),
            id,
            kernel_stack: Cell::new(0),
            scratch: Cell::new(0),
            current: Cell::new(ptr::null_mut()),
            irq_stack: Cell::new(0),
            announcer: Cell::new(None),
            heap: Cell::new(None),
            handling: Cell::new(false),
            last_ns: AtomicU64::new(0),
            armed_ns: Cell::new(u64::MAX),
            tss: UnsafeCell::new(Tss::new()),
            gdt: UnsafeCell::new(Gdt::new()),
            mailbox: Mailbox::new(),
            _constants: [],
            apic_id,
            node,
            online: AtomicBool::new(false),
            snapshot: Snapshot::new(),
            _counts: [],
            irq_counts: [const { AtomicU64::new(0) }; 4],
            irq_ticks: AtomicU64::new(0),
            stacks: UnsafeCell::new(StackCache::new()),
        }
    }
}

/// The areas by CPU number; null where there is no such CPU. Each is set once: atomic.
static AREAS: [AtomicPtr<CpuArea>; MAX_CPUS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CPUS];

struct BootArea(UnsafeCell<CpuArea>);
// SAFETY: touched by the boot CPU alone before it becomes an ordinary `CpuArea`.
unsafe impl Sync for BootArea {}
static BOOT_AREA: BootArea = BootArea(UnsafeCell::new(CpuArea::new(0, 0, 0)));

/// The boot CPU's area, before anything can be allocated.
pub(super) fn boot_area() -> *mut CpuArea {
    BOOT_AREA.0.get()
}

/// Makes the registered `area` this CPU's: GS in the kernel, zero for the user.
///
/// # Safety
/// `area` must be that of the CPU that runs this.
pub(super) unsafe fn load(area: *const CpuArea) {
    // SAFETY: every 64-bit CPU has the two registers; the area lives for ever.
    unsafe {
        msr::write(msr::GS_BASE, area as u64);
        msr::write(msr::KERNEL_GS_BASE, 0);
    }
}

/// Makes `area` known as that of its CPU.
///
/// # Safety
/// `area` must stay valid for ever and its CPU must not run on it yet.
pub(super) unsafe fn register(area: *mut CpuArea) {
    // SAFETY: nobody else uses the area yet, by this function's contract.
    let id = unsafe {
        (*area).this = area;
        (*area).id
    };
    AREAS[id as usize].store(area, Ordering::Release);
}

/// The area of any CPU, for its constant and atomic fields.
pub(super) fn of(cpu: usize) -> Option<&'static CpuArea> {
    let area = AREAS.get(cpu)?.load(Ordering::Acquire);
    // SAFETY: a registered area lives for ever.
    unsafe { area.as_ref() }
}

/// This CPU's area. The answer is this CPU's for as long as preemption is off.
#[inline]
pub(super) fn area() -> &'static CpuArea {
    let area: *const CpuArea;
    // SAFETY: in the kernel GS is the base of this CPU's registered area, which lives for ever.
    unsafe {
        asm!("mov {}, gs:[{this}]", out(reg) area, this = const THIS,
             options(nostack, preserves_flags, readonly));
        &*area
    }
}

/// Number of the CPU this runs on; stable only while preemption is off.
#[inline]
pub(super) fn id() -> u32 {
    let id: u32;
    // SAFETY: reads a word of the per-CPU area.
    unsafe {
        asm!("mov {:e}, gs:[{id}]", out(reg) id, id = const ID,
             options(nostack, preserves_flags, readonly));
    }
    id
}

/// The current thread as `set_current` left it; null before the first thread runs.
#[inline]
pub fn current() -> *mut () {
    let current: *mut ();
    // SAFETY: reads a word of the per-CPU area. A thread reads its own pointer on whatever CPU it runs.
    unsafe {
        asm!("mov {}, gs:[{current}]", out(reg) current, current = const CURRENT,
             options(nostack, preserves_flags, pure, readonly));
    }
    current
}

/// The heap objects that this CPU has ready; `None` before [`set_heap_objects`].
#[inline(always)]
pub fn heap_objects(_pin: &CpuPin) -> Option<Objects<'static>> {
    area().heap.get()
}

/// Lets this CPU find its ready objects without a search. Once for each CPU, before its first thread.
pub fn set_heap_objects(_pin: &CpuPin, objects: Objects<'static>) {
    area().heap.set(Some(objects));
}

/// Whether this CPU is in an interrupt handler that takes locks.
pub fn is_handling() -> bool {
    area().handling.get()
}

/// Says whether it is. Called with interrupts off.
#[inline]
pub fn set_handling(handling: bool) {
    area().handling.set(handling);
}

/// Names the thread that runs from now on. Called with preemption off.
#[inline]
pub(crate) fn set_current(thread: *mut ()) {
    area().current.set(thread);
}

/// Sets where the current thread's kernel stack begins: used by `syscall` and by traps from user mode.
/// Called with preemption off.
#[inline]
pub fn set_kernel_stack(top: u64) {
    let area = area();
    area.kernel_stack.set(top);
    // SAFETY: this CPU's own TSS; the CPU reads it only when a trap from user mode comes.
    unsafe { (*area.tss.get()).set_kernel_stack(top) };
}

/// Interrupts this CPU took so far: timer, reschedule, call, device.
pub fn interrupt_counts(cpu: usize) -> Option<[u64; 4]> {
    let area = of(cpu)?;
    Some(core::array::from_fn(|i| {
        area.irq_counts[i].load(Ordering::Relaxed)
    }))
}
