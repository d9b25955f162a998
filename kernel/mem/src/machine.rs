//! The one virtual memory system of this machine, and the heap of the kernel.

use hal::machine::KernelMachine;
use ksync::{CpuPin, Epoch, Once};
use vm::Slab;

/// The virtual memory system of this machine.
pub type Vm = vm::Vm<KernelMachine>;

/// Set once by [`init`](crate::init()), before anything allocates beyond the boot run.
pub(crate) static VM: Once<&'static Vm> = Once::new();
pub(crate) static SLAB: Once<Slab> = Once::new();

/// The virtual memory system.
///
/// # Panics
/// Before [`init`](crate::init()).
#[inline]
pub fn vm() -> &'static Vm {
    VM.get().expect("the VM is set up first")
}

/// The kernel's heap.
///
/// # Panics
/// Before [`init`](crate::init()).
#[inline]
pub fn slab() -> &'static Slab {
    SLAB.get().expect("the heap is set up first")
}

/// Where lock-free readers of the whole kernel are waited for.
#[inline]
pub fn epoch() -> &'static Epoch {
    &vm().epoch
}

/// Work for a CPU's clock tick or idle loop: frees what is past its grace period, and drains caches where that was asked
/// for. Interrupts are on, preemption off by `pin`. Returns whether something of this CPU still waits for a grace period.
pub fn poll(pin: &CpuPin) -> bool {
    let vm = vm();
    let retired = vm.epoch.reclaim(pin);
    let frames = vm.poll_limbo(pin);
    slab().poll(&vm.machine, &vm.alloc, pin);
    vm.alloc.poll(pin);
    retired || frames
}

/// After [`poll`], with preemption on: goes on with what that has left of what is past its grace period.
pub fn poll_more() {
    while vm().epoch.reclaim_more(&ksync::pin()) {}
}

/// Lets each `period`-th allocation that may fail do so, on each CPU; 0 for none.
pub fn fail_allocations(period: u32) {
    vm().alloc.set_injector(period, 0);
}
