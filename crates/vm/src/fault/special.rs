//! Reads of special mappings, which have no layers: see `space/special.rs`.

use ksync::CpuPin;

use super::{Access, FaultError, Step, allows};
use crate::map::{Extent, MapEntry, Prot};
use crate::object::Object;
use crate::page::PAGE_SIZE;
use crate::pmap::{self, EnterError, Pte, TABLE_BYTES};
use crate::rmap::{ReverseMap, Ticket};
use crate::space::Space;
use crate::{Machine, NoMemory, Vm};

impl Space {
    /// Serves a read, or an instruction fetch, of a mapping that shows the special object. Returns the step that follows, and the
    /// pin that it was taken under. Sleeping context.
    #[cold]
    #[inline(never)]
    pub(super) fn read_special<M: Machine>(
        &self,
        vm: &Vm<M>,
        va: u64,
        access: Access,
    ) -> (CpuPin, Step) {
        let guard = vm.rmap.begin(self.pmap());
        // Unmanaged leaves are not listed.
        let prepared = vm.rmap.prepare(vm, guard, self.pmap(), 0);
        let pin = ksync::pin();
        let step = match prepared {
            Ok((guard, ticket)) => {
                let step = self.enter_special(vm, &pin, ticket, va, access);
                vm.rmap.end(guard);
                step
            }
            Err(NoMemory) => Step::Fail(NoMemory.into()),
        };
        (pin, step)
    }

    /// The pinned part: enters the page at `va`, and then the others, which are few and used together.
    fn enter_special<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        ticket: Ticket<'_>,
        va: u64,
        access: Access,
    ) -> Step {
        let Some(entry) = self.find(pin, va) else {
            return Step::Again;
        };
        let state = entry.state();
        // The state was read first: if it stays, so does what the entry shows.
        let check = || entry.state() == state;
        // The entry may be another one than when the fault began.
        let fits = !state.is_dead() && allows(entry.prot(), access);
        let Some(object) = entry.shown_special(vm).filter(|_| fits) else {
            return Step::Again;
        };
        let Some(leaf) = special_leaf(pin, object, entry, va) else {
            return Step::Fail(FaultError::Bus);
        };
        match self.pmap().enter_over(vm, pin, &ticket, va, leaf, check) {
            Ok(_) => {}
            Err(EnterError::NoTable(why)) => return Step::Fail(why.into()),
            Err(EnterError::Blocked(blocked)) => return Step::Blocked(blocked),
            Err(_) => return Step::Again,
        }
        vm.stats.get(pin).resident.add(1);
        let table = va & !(TABLE_BYTES - 1);
        let start = entry.start().max(table);
        let end = entry.end().min(table + TABLE_BYTES);
        for other in (start..end).step_by(PAGE_SIZE).filter(|&at| at != va) {
            let entered = special_leaf(pin, object, entry, other).is_some_and(|leaf| {
                let pmap = self.pmap();
                pmap.enter_new(vm, pin, &ticket, other, leaf, check).is_ok()
            });
            vm.stats.get(pin).around.add(u64::from(entered));
        }
        Step::Done
    }
}

/// The leaf for the page of the special object at `va`, with the entry's rights but for writing.
fn special_leaf(pin: &CpuPin, object: &Object, entry: &MapEntry, va: u64) -> Option<Pte> {
    let pfn = object.lookup(pin, entry.special_index(va))?;
    let prot = pmap::Prot {
        write: false,
        exec: entry.prot().contains(Prot::EXEC),
    };
    Some(Pte::unmanaged(pfn, prot))
}
