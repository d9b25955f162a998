//! The one virtual memory system of this machine, and the heap of the kernel.

use hal::machine::KernelMachine;
use ksync::{CpuPin, Epoch, Once};
use vm::Slab;

/// The virtual memory system of this machine.
pub type Vm = vm::Vm<KernelMachine>;

hal::machine_static! {
    /// Set once, by [`init`](crate::init()), before any allocation that the boot memory does not serve.
    pub(crate) static VM: Once<&'static Vm> = Once::new();
    /// As `VM`.
    pub(crate) static SLAB: Once<Slab> = Once::new();
}

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

/// The epoch of the whole kernel. Memory that a reader without a lock may still see is retired to it, and freed after a grace
/// period.
#[inline]
pub fn epoch() -> &'static Epoch {
    &vm().epoch
}

/// Frees the retired objects and the frames on the limbo list that are past their grace period, and empties this CPU's caches
/// of frames and heap objects if that has been asked for. Called by the idle loop, and by the thread that a clock tick has found
/// before it enters user mode, with interrupts on and preemption off by `pin`. Returns whether something that this CPU retired
/// still waits for a grace period.
pub fn poll(pin: &CpuPin) -> bool {
    let vm = vm();
    let retired = vm.epoch.reclaim(pin);
    let frames = vm.poll_limbo(pin);
    slab().poll(&vm.machine, &vm.alloc, pin);
    vm.alloc.poll(pin);
    retired || frames
}

/// Frees what the call of [`poll`] before left because it was too much for one section with preemption off. Called with
/// preemption on.
pub fn poll_more() {
    while vm().epoch.reclaim_more(&ksync::pin()) {}
}

/// Makes every `period`-th allocation that may fail do so, counted on each CPU; 0 makes none fail.
pub fn fail_allocations(period: u32) {
    vm().alloc.set_injector(period, 0);
}
