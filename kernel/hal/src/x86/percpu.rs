//! The per-CPU area, which is reached through GS in the kernel.
//!
//! Guarantee: while preemption is off, `area` returns this CPU's area, and the caller stays on this CPU. Single words (the
//! preemption count, the current thread, the kernel stack) are read and written by one GS-relative instruction each. They are
//! therefore right even with preemption on: a thread sees its own values on whichever CPU it runs.
//!
//! A field is written by its own CPU only, unless its comment says otherwise.
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

/// Makes the next field begin a cache line.
#[repr(align(64))]
struct NextLine;

/// What the kernel keeps for each CPU.
#[repr(C, align(64))]
pub struct CpuArea {
    /// Address of this area, so that a pointer to the area can be read through GS. Constant.
    this: *const CpuArea,
    /// Preemption count; see [`super::preempt`].
    pub(super) preempt: Cell<u32>,
    /// CPU number. Constant.
    pub(super) id: u32,
    /// Top of the current thread's kernel stack: where `syscall` and traps from user mode begin to push.
    kernel_stack: Cell<u64>,
    /// The user's stack pointer, for the few instructions between `syscall` and the switch of stacks.
    pub(super) scratch: Cell<u64>,
    /// The current thread; its type is unknown here.
    current: Cell<*mut ()>,
    /// Top of the stack for interrupts from kernel mode. Constant once the CPU runs.
    pub(super) irq_stack: Cell<u64>,
    /// Announces this CPU's quiescent states to the kernel's epoch. Set once, before the first thread.
    pub(super) announcer: Cell<Option<Announcer>>,
    /// The heap objects that this CPU has ready. Set once, before the first thread.
    heap: Cell<Option<Objects<'static>>>,
    /// Whether the CPU is in an interrupt handler that takes locks.
    handling: Cell<bool>,
    /// The latest time that was returned on this CPU; see [`super::time`]. Atomic, because a thread may be moved to another
    /// CPU between reading and writing it.
    pub(super) last_ns: AtomicU64,
    /// The deadline for which the APIC timer is armed, in nanoseconds; `u64::MAX` if it is not.
    pub(super) armed_ns: Cell<u64>,
    pub(super) tss: UnsafeCell<Tss>,
    pub(super) gdt: UnsafeCell<Gdt>,
    /// Written by other CPUs, too: atomic.
    pub(super) mailbox: Mailbox,
    _constants: [NextLine; 0],
    /// Local APIC id. Constant. CPUs that send interrupts read it, so it shares no cache line with fields that are written.
    pub(super) apic_id: u32,
    /// NUMA node. Constant.
    pub(super) node: u32,
    /// Whether the CPU answers interrupts: atomic.
    pub(super) online: AtomicBool,
    /// What this CPU ran when another one asked: atomic.
    pub(super) snapshot: Snapshot,
    _counts: [NextLine; 0],
    /// Interrupts taken, by kind. Written by this CPU, read by all.
    pub(super) irq_counts: [AtomicU64; 4],
    /// TSC ticks spent in interrupt handlers; in one, the TSC at its begin less those before it, with
    /// [`IN_HANDLER`](super::cpu::IN_HANDLER). Written by this CPU, read by all.
    pub(super) irq_ticks: AtomicU64,
    pub(super) stacks: UnsafeCell<StackCache>,
}

// SAFETY: other CPUs read the constant fields and use the atomic ones. The cells are private to this crate, which accesses
// them through `area()` of the running CPU only.
unsafe impl Sync for CpuArea {}

/// The preemption word of a CPU that starts: no reschedule is wanted, and preemption is on; see [`super::preempt`].
pub(super) const PREEMPT_INITIAL: u32 = 1 << 31;

pub(super) const PREEMPT: usize = offset_of!(CpuArea, preempt);
pub(super) const KERNEL_STACK: usize = offset_of!(CpuArea, kernel_stack);
pub(super) const SCRATCH: usize = offset_of!(CpuArea, scratch);
pub(super) const CURRENT: usize = offset_of!(CpuArea, current);
pub(super) const IRQ_STACK: usize = offset_of!(CpuArea, irq_stack);
const THIS: usize = offset_of!(CpuArea, this);
const ID: usize = offset_of!(CpuArea, id);

impl CpuArea {
    /// An area that is not in use yet; [`register`] sets `this`.
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

/// The areas by CPU number; null if there is no such CPU. Each is set once: atomic.
static AREAS: [AtomicPtr<CpuArea>; MAX_CPUS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CPUS];

struct BootArea(UnsafeCell<CpuArea>);
// SAFETY: only the boot CPU accesses it before it becomes a registered `CpuArea`.
unsafe impl Sync for BootArea {}
static BOOT_AREA: BootArea = BootArea(UnsafeCell::new(CpuArea::new(0, 0, 0)));

/// The boot CPU's area, which is static because nothing can be allocated yet.
pub(super) fn boot_area() -> *mut CpuArea {
    BOOT_AREA.0.get()
}

/// Makes the registered `area` this CPU's: sets the kernel's GS base to it, and the user's to 0.
///
/// # Safety
/// `area` must be that of the CPU that runs this.
pub(super) unsafe fn load(area: *const CpuArea) {
    // SAFETY: every 64-bit CPU has the two registers; the area is valid for ever.
    unsafe {
        msr::write(msr::GS_BASE, area as u64);
        msr::write(msr::KERNEL_GS_BASE, 0);
    }
}

/// Registers `area` as that of its CPU.
///
/// # Safety
/// `area` must stay valid for ever and its CPU must not run on it yet.
pub(super) unsafe fn register(area: *mut CpuArea) {
    // SAFETY: nothing else uses the area yet, as the caller ensures.
    let id = unsafe {
        (*area).this = area;
        (*area).id
    };
    AREAS[id as usize].store(area, Ordering::Release);
}

/// The area of any CPU, for access to its constant and atomic fields.
pub(super) fn of(cpu: usize) -> Option<&'static CpuArea> {
    let area = AREAS.get(cpu)?.load(Ordering::Acquire);
    // SAFETY: a registered area is valid for ever.
    unsafe { area.as_ref() }
}

/// This CPU's area; stable only while preemption is off.
#[inline]
pub(super) fn area() -> &'static CpuArea {
    let area: *const CpuArea;
    // SAFETY: in the kernel GS is the base of this CPU's registered area, which is valid for ever.
    unsafe {
        asm!("mov {}, gs:[{this}]", out(reg) area, this = const THIS,
             options(nostack, preserves_flags, readonly));
        &*area
    }
}

/// Number of the CPU that runs the caller; stable only while preemption is off.
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

/// The current thread, as `set_current` has set it; null before the first thread runs.
#[inline]
pub fn current() -> *mut () {
    let current: *mut ();
    // SAFETY: reads a word of the per-CPU area. A thread reads its own pointer on whichever CPU it runs.
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

/// Sets the ready objects of this CPU, so that they are found without a search. Called once on each CPU, before its first
/// thread.
pub fn set_heap_objects(_pin: &CpuPin, objects: Objects<'static>) {
    area().heap.set(Some(objects));
}

/// Whether this CPU is in an interrupt handler that takes locks.
pub fn is_handling() -> bool {
    area().handling.get()
}

/// Sets whether this CPU is in such a handler. Called with interrupts off.
#[inline]
pub fn set_handling(handling: bool) {
    area().handling.set(handling);
}

/// Sets the thread that runs from now on. Called with preemption off.
#[inline]
pub(crate) fn set_current(thread: *mut ()) {
    area().current.set(thread);
}

/// Sets the top of the current thread's kernel stack, where `syscall` and traps from user mode begin to push. Called with
/// preemption off.
#[inline]
pub fn set_kernel_stack(top: u64) {
    let area = area();
    area.kernel_stack.set(top);
    // SAFETY: this is the CPU's own TSS, which the CPU reads only at a trap from user mode.
    unsafe { (*area.tss.get()).set_kernel_stack(top) };
}

/// The interrupts that a CPU has taken so far: timer, reschedule, call, device. `None` if there is no such CPU.
pub fn interrupt_counts(cpu: usize) -> Option<[u64; 4]> {
    let area = of(cpu)?;
    Some(core::array::from_fn(|i| {
        area.irq_counts[i].load(Ordering::Relaxed)
    }))
}
