//! Which address space each CPU runs.
use alloc::sync::Arc;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use ksync::CpuPin;

use super::{MAX_CPUS, cpu, irq, paging};
use crate::mm::Space;

/// One CPU's address space, on a line of its own: only its CPU writes it.
#[repr(align(64))]
struct Running(AtomicPtr<Space>);

/// What each CPU runs: null for the kernel alone.  Holds a reference.
static RUNNING: [Running; MAX_CPUS] =
    [const { Running(AtomicPtr::new(ptr::null_mut())) }; MAX_CPUS];

/// Loads the root that the pmap of this CPU's space has now; interrupts off.
pub fn reload_root() {
    let space = RUNNING[cpu::id()].0.load(Ordering::Relaxed);
    // SAFETY: the slot holds a reference, which only this CPU gives up, with interrupts off.
    match unsafe { space.as_ref() } {
        Some(space) => paging::load_root(space.pmap().root_info(crate::mm::vm()).root.0),
        None => paging::flush_user(),
    }
}

/// Makes this CPU run `next`, or the kernel alone, and returns what it ran: the caller drops it where a last
/// reference may be dropped.
pub fn enter(pin: &CpuPin, next: Option<Arc<Space>>) -> Option<Arc<Space>> {
    let vm = crate::mm::vm();
    let slot = &RUNNING[pin.cpu()].0;
    // A flush request must not come between the choice of a root and its load.
    let flags = irq::save();
    let root = match &next {
        Some(space) => space.pmap().activate(vm, pin).root,
        None => vm.pmaps.empty_root(),
    };
    paging::load_root(root.0);
    let new = next.map_or(ptr::null_mut(), |space| Arc::into_raw(space).cast_mut());
    let old = slot.swap(new, Ordering::Relaxed);
    // SAFETY: a non-null slot is a reference that `into_raw` gave up; the swap took it out.
    let old = (!old.is_null()).then(|| unsafe { Arc::from_raw(old) });
    if let Some(old) = &old
        && !ptr::eq(Arc::as_ptr(old), new)
    {
        old.pmap().deactivate(pin);
    }
    irq::restore(flags);
    old
}
