//! The address space that each CPU runs.

use alloc::boxed::Box;
use alloc::sync::Arc;

use ksync::CpuPin;
use vm::{Space, Vm};

use crate::machine::KernelMachine;
use crate::sim;

/// Switches this CPU to the space `next`, or with `None` to the kernel's tables alone. Returns the space that it has run so
/// far: the caller drops it where the last reference may be dropped.
pub fn enter(vm: &Vm<KernelMachine>, pin: &CpuPin, next: Option<Arc<Space>>) -> Option<Arc<Space>> {
    match next.clone() {
        Some(space) => {
            let empty = vm.pmaps.empty_root();
            let later = space.clone();
            let source = Box::new(move || later.pmap().root_info_or(empty));
            let activate = || space.pmap().activate(vm, pin);
            vm.machine.load(pin, activate, source);
        }
        None => vm.machine.unload(pin),
    }
    let old = sim::with_cpu(None, |cpu| {
        let mut space = cpu.space.lock().expect("no test has failed");
        core::mem::replace(&mut *space, next.clone())
    });
    if let Some(old) = &old
        && !next.is_some_and(|next| Arc::ptr_eq(&next, old))
    {
        old.pmap().deactivate(pin);
    }
    old
}
