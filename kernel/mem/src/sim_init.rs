//! Sets up the VM of a simulated machine.

use hal::BootInfo;
use vm::Slab;

use crate::machine::{SLAB, VM};

/// Makes the VM. Called once, on the boot CPU. The heap is the host's.
pub fn init(info: &BootInfo) {
    let vm = VM.get_or_init(|| hal::machine::make_vm(info));
    SLAB.get_or_init(|| Slab::new(&vm.machine));
}
