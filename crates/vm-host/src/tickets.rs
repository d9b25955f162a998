//! Room for entries that tests make by themselves, and lists of entries that are in the way.

use std::sync::Arc;

use vm::pmap::AROUND;
use vm::rmap::{ReverseMap, Ticket};
use vm::{Pmap, Vm};

use crate::Sim;

/// Room for as many entries of `pmap` as one call makes.
///
/// # Panics
/// Without memory.
pub fn ticket<'p>(vm: &'p Vm<Sim>, pmap: &'p Arc<Pmap>) -> Ticket<'p> {
    let guard = vm.rmap.begin(pmap);
    let ticket = vm.rmap.prepare(&guard, pmap, AROUND);
    ticket.unwrap_or_else(|why| panic!("no ticket: {why:?}"))
}

/// Lets the naive reverse map say now and then that a page's list is held. Without effect on another one.
pub fn obstruct(vm: &Vm<Sim>) {
    #[cfg(feature = "naive-rmap")]
    vm.rmap.refuse_each(crate::listed::REFUSED);
    #[cfg(not(feature = "naive-rmap"))]
    let _ = vm;
}
