//! This machine, as the VM sees it: frames, and CPUs with translation caches.

use vm::Vm;

use crate::{BootInfo, sim};

/// The machine under the VM.
pub use vm_host::Sim as KernelMachine;

/// Makes the VM of this machine, which lives as long as the machine. Called once, at boot.
pub fn make_vm(info: &BootInfo) -> &'static Vm<KernelMachine> {
    let nodes = if info.ncpus > 1 { 2 } else { 1 };
    let vm = sim::keep(KernelMachine::new(info.frames, info.ncpus, nodes).into_vm());
    sim::set_memory(&vm.machine);
    vm
}
