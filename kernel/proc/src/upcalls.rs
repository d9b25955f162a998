//! Calls from processes to the kernel above.

use alloc::sync::Arc;

use ksync::Once;

use crate::process::Process;

/// The kernel above, as processes call it.
pub struct Upcalls {
    /// Called when init has ended, with its wait4 status, by its last thread, which has left the address space.
    pub init_exited: fn(&Arc<Process>, u32) -> !,
}

hal::machine_static! {
    static UPCALLS: Once<&'static Upcalls> = Once::new();
}

/// Sets the calls to the kernel above. Called once, before any process exists.
pub(crate) fn set(upcalls: &'static Upcalls) {
    UPCALLS.get_or_init(|| upcalls);
}

pub(crate) fn init_exited(init: &Arc<Process>, status: u32) -> ! {
    let upcalls = UPCALLS.get().expect("set before any process");
    (upcalls.init_exited)(init, status)
}
