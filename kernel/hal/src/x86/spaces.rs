//! The address space that each CPU runs.
use alloc::sync::Arc;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use ksync::CpuPin;
use vm::asid::{Asids, Duty, Tag, Target};
use vm::{Space, Vm};

use super::machine::KernelMachine;
use super::{cpu, features, irq, paging};
use crate::limits::MAX_CPUS;

/// The address space of one CPU, on cache lines that only this CPU writes.
#[repr(align(64))]
struct Running {
    /// The space, with a reference; null if the CPU runs on the kernel's tables alone.
    space: AtomicPtr<Space>,
    /// The translations of other spaces that the CPU still has.
    asids: Asids,
}

/// One for each CPU.
static RUNNING: [Running; MAX_CPUS] = [const {
    Running {
        space: AtomicPtr::new(ptr::null_mut()),
        asids: Asids::new(),
    }
}; MAX_CPUS];

/// Whether the records of kept translations are needed. Debug builds keep them on any CPU, so that what they decide about
/// flush requests is tested on CPUs without identifiers, too.
#[inline]
fn tagged() -> bool {
    cfg!(debug_assertions) || features::has(features::PCID)
}

/// What a flush request asks of this CPU. Interrupts are off.
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

/// Reloads the root that the pmap of this CPU's space in `vm` has now. Interrupts are off.
pub fn reload_root(vm: &Vm<KernelMachine>) {
    let running = &RUNNING[cpu::id()];
    let space = running.space.load(Ordering::Relaxed);
    // SAFETY: the pointer holds a reference, which only this CPU drops, with interrupts off.
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

/// Switches this CPU to the space `next`, or with `None` to the kernel's tables alone. Returns the space that it has run so
/// far: the caller drops it where the last reference may be dropped.
pub fn enter(vm: &Vm<KernelMachine>, pin: &CpuPin, next: Option<Arc<Space>>) -> Option<Arc<Space>> {
    let running = &RUNNING[pin.cpu()];
    // A flush request must not be served between the choice of a root and its load.
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
    // SAFETY: a pointer that is not null is a reference from `into_raw`, and the swap took it out.
    let old = (!old.is_null()).then(|| unsafe { Arc::from_raw(old) });
    if let Some(old) = &old
        && !ptr::eq(Arc::as_ptr(old), new)
    {
        old.pmap().deactivate(pin);
    }
    irq::restore(flags);
    old
}
