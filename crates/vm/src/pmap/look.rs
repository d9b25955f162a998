//! Reading the entries of a range, for reports.

use ksync::CpuPin;

use super::Pmap;
use super::pte::Pte;
use super::table::{ENTRIES, slot};
use super::walk::Mapper;
use crate::page::PAGE_SIZE;
use crate::{Machine, Vm};

impl Pmap {
    /// Passes live entries of `va..end`, in order, to `each`: the address, the entry of 4 KiB, and whether a leaf of 2 MiB
    /// stands for it. Looks at no more than the first `most` pages behind the first table, or leaf, that it finds. Returns
    /// the address from which on nothing was looked at. A hint: takes no lock. In an entry W says what its level allows.
    pub(crate) fn look_at<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        (va, end): (u64, u64),
        most: usize,
        mut each: impl FnMut(u64, Pte, bool),
    ) -> u64 {
        let Some((mapper, at)) = self.next_leaf(vm, pin, va, end) else {
            return end;
        };
        let from = slot(at, 1);
        let left = ((end - at) / PAGE_SIZE as u64) as usize;
        let pages = most.min(left).min(ENTRIES - from);
        for n in 0..pages {
            let (pte, large) = match &mapper {
                Mapper::Table(table) => (table.get(from + n), false),
                Mapper::Large(leaf) => (leaf.piece(from + n), true),
            };
            let pte = if pte.is_frozen() { pte.thawed() } else { pte };
            if pte.is_present() {
                each(at + (n * PAGE_SIZE) as u64, pte, large);
            }
        }
        at + (pages * PAGE_SIZE) as u64
    }
}
