//! Which address space each CPU runs.
use alloc::sync::Arc;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use ksync::CpuPin;
use vm::asid::{Asids, Duty, Tag, Target};
use vm::{Space, Vm};

use super::machine::KernelMachine;
use super::{cpu, features, irq, paging};
use crate::limits::MAX_CPUS;

/// One CPU's address space, on lines of its own: only its CPU writes them.
#[repr(align(64))]
struct Running {
    /// Null for the kernel alone.  Holds a reference.
    space: AtomicPtr<Space>,
    /// Which translations the CPU has kept of others.
    asids: Asids,
}

/// What each CPU runs.
static RUNNING: [Running; MAX_CPUS] = [const {
    Running {
        space: AtomicPtr::new(ptr::null_mut()),
        asids: Asids::new(),
    }
}; MAX_CPUS];

/// Whether the books on kept translations are needed. Debug builds keep them on any CPU, so that what they say of flush
/// requests is tried where no CPU has identifiers.
#[inline]
fn tagged() -> bool {
    cfg!(debug_assertions) || features::has(features::PCID)
}

/// What a flush request asks of this CPU; interrupts off.
#[inline]
pub fn duty(target: Option<Target>, full: bool) -> Duty {
    if tagged() {
        RUNNING[cpu::id()].asids.duty(target, full)
    } else if full {
        Duty::All
    } else {
        Duty::Pages
    }
}

/// Loads the root that the pmap of this CPU's space in `vm` has now; interrupts off.
pub fn reload_root(vm: &Vm<KernelMachine>) {
    let running = &RUNNING[cpu::id()];
    let space = running.space.load(Ordering::Relaxed);
    // SAFETY: the slot holds a reference, which only this CPU gives up, with interrupts off.
    match unsafe { space.as_ref() } {
        Some(space) => {
            let info = space.pmap().root_info(vm);
            let tag = Tag {
                asid: running.asids.current(),
                keep: false,
            };
            paging::load_tagged_root(info.root.0, tag);
            if tagged() {
                running.asids.refreshed(&info);
            }
        }
        None => paging::flush_user(),
    }
}

/// Makes this CPU run `next`, or the kernel alone, and returns what it ran: the caller drops it where a last
/// reference may be dropped.
pub fn enter(vm: &Vm<KernelMachine>, pin: &CpuPin, next: Option<Arc<Space>>) -> Option<Arc<Space>> {
    let running = &RUNNING[pin.cpu()];
    // A flush request must not come between the choice of a root and its load.
    let flags = irq::save();
    match &next {
        Some(space) => {
            let info = space.pmap().activate(vm, pin);
            if tagged() {
                paging::load_tagged_root(info.root.0, running.asids.enter(&info));
            } else {
                paging::load_root(info.root.0);
            }
        }
        None => paging::load_tagged_root(vm.pmaps.empty_root().0, running.asids.leave()),
    }
    let new = next.map_or(ptr::null_mut(), |space| Arc::into_raw(space).cast_mut());
    let old = running.space.swap(new, Ordering::Relaxed);
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
