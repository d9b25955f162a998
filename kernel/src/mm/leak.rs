//! The leak check: every frame is accounted for when the last program has gone.

use super::{slab, vm};
use crate::kprintln;

/// Drains every cache of deferred frees, then verifies that each frame is in exactly one place, and prints the sums.
///
/// True if the books balance.  Called when no program runs.
pub fn check() -> bool {
    let vm = vm();
    vm.epoch.drain();
    vm.drain_limbo();
    let pin = ksync::pin();
    slab().drain(&vm.machine, &vm.alloc, &pin);
    vm.alloc.drain(&pin);
    drop(pin);
    match vm.alloc.check() {
        Ok(census) => {
            kprintln!(
                "leakcheck: frames={} free={} magazines={} in_use={}",
                vm.alloc.total_pages(),
                census.listed,
                census.in_magazines,
                census.allocated
            );
            true
        }
        Err(e) => {
            kprintln!("leakcheck: FAILED: {e:?}");
            false
        }
    }
}
