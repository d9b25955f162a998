//! Room for entries that tests make by themselves, and lists of entries that are in the way.

use std::sync::Arc;

use vm::pmap::AROUND;
#[cfg(not(feature = "pv-stock"))]
use vm::rmap::ReverseMap;
use vm::rmap::Ticket;
use vm::{NoMemory, Pmap, Vm};

use crate::Sim;

/// Room for as many entries of `pmap` as one call makes.
///
/// # Panics
/// Without memory.
pub fn ticket<'p>(vm: &'p Vm<Sim>, pmap: &'p Arc<Pmap>) -> Ticket<'p> {
    try_ticket(vm, pmap).unwrap_or_else(|why| panic!("no ticket: {why:?}"))
}

/// As `ticket`.
///
/// # Errors
/// No memory.
pub fn try_ticket<'p>(vm: &'p Vm<Sim>, pmap: &'p Arc<Pmap>) -> Result<Ticket<'p>, NoMemory> {
    // Some tests are pinned already, and cannot wait for a pmap.
    #[cfg(feature = "pv-stock")]
    return vm.rmap.room(vm, pmap, AROUND);
    #[cfg(not(feature = "pv-stock"))]
    {
        let guard = vm.rmap.begin(pmap);
        let (_guard, room) = vm.rmap.prepare(vm, guard, pmap, AROUND)?;
        Ok(room)
    }
}

/// Lets the naive reverse map say now and then that a page's list is held. Without effect on another one.
pub fn obstruct(vm: &Vm<Sim>) {
    #[cfg(feature = "naive-rmap")]
    vm.rmap.refuse_each(crate::listed::REFUSED);
    #[cfg(not(feature = "naive-rmap"))]
    let _ = vm;
}
