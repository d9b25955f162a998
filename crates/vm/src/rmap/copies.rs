//! Removal of the private copies that mappings of a file have of its pages.
//!
//! Guarantee: on return no CPU can use an entry of a private copy at an address where a mapping covers one of the pages, also
//! if a fault was entering it meanwhile. No lock is held for more than [`MAPPINGS`] mappings, nor a pin for more than [`COPIES`]
//! pages, or tables without any. The time is proportional to the mappings, their tables and the entries, whatever parts of the
//! file they are for.
//!
//! Mechanism: a walk over the file's mappings, some at a time, which are then looked at with no lock held. A pmap is held by a
//! reference: it may end meanwhile, and then its tables are found closed; or something else may be mapped at the addresses
//! by then, whose entries are removed in vain. A pmap is a cache, so that costs faults and nothing else.

use core::ops::Range;

use ksync::Walked;
use rust_alloc::sync::Arc;
use smallvec::SmallVec;

use super::ReverseMap;
use crate::object::Object;
use crate::pmap::Pmap;
use crate::tlb::ScanGather;
use crate::{Machine, Vm};

/// Mappings that are found in one hold of a lock.
const MAPPINGS: usize = 32;
/// Pages of a mapping that are looked at with one pin.
const COPIES: usize = 64;
/// Changes of pmap after which there is a flush.
const PLACES: usize = 512;

/// Removes all entries at addresses where mappings cover the pages `first..behind` of a file: private copies, which the
/// scans of the file's pages do not find. Flushed on return. A page was marked dirty when it was mapped writable.
///
/// Sleeping context, not pinned; the file's limit has been lowered, so that faults enter no more.
pub(crate) fn remove_copies<M: Machine>(vm: &Vm<M>, object: &Object, first: u32, behind: u32) {
    let mut found: SmallVec<[(Arc<Pmap>, Range<u64>); MAPPINGS]> = SmallVec::new();
    let mut gather = ScanGather::new();
    vm.rmap
        .walk_shown(object, MAPPINGS, &mut |walked| match walked {
            Walked::Member(extent) => {
                let range = extent.addresses(first, behind);
                if !range.is_empty() {
                    found.push((extent.pmap().clone(), range));
                }
            }
            Walked::Released => {
                gather.make_room(PLACES);
                for (pmap, range) in found.drain(..) {
                    remove_range(vm, &pmap, range, &mut gather);
                }
            }
        });
    gather.finish(vm);
}

/// Removes the entries of a range. What was removed before may be flushed.
fn remove_range<M: Machine>(
    vm: &Vm<M>,
    pmap: &Arc<Pmap>,
    range: Range<u64>,
    gather: &mut ScanGather,
) {
    let mut at = range.start;
    while at < range.end {
        if !gather.has_room() {
            gather.finish_part(vm);
        }
        match pmap.gather_remove_range(vm, at..range.end, COPIES, gather) {
            Ok(next) => at = next,
            Err(blocked) => {
                gather.finish_part(vm);
                vm.rmap.wait(blocked);
            }
        }
    }
}
