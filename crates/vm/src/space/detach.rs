//! Unmapping all that is left of one shared mapping of an object, whatever has been cut off or changed: shmdt(2).

use super::{Space, VmError};
use crate::map::{Extent, MapEntry};
use crate::object::Object;
use crate::page::PAGE_SHIFT;
use crate::{Machine, Vm};

impl Space {
    /// Unmaps what is left of the shared mapping that was made at `start` of a whole object for which `is` holds: the entries in whose
    /// place that mapping put the same pages. If there are several such objects, the one with the lowest address counts.
    ///
    /// # Errors
    /// `NotMapped`: there is no such entry. `NoMemory`: some are left.
    pub fn unmap_object<M: Machine>(
        &self,
        vm: &Vm<M>,
        start: u64,
        is: &dyn Fn(&Object) -> bool,
    ) -> Result<(), VmError> {
        let mut map = self.lock();
        let (mut from, mut end) = (start, map.high());
        let mut found: Option<usize> = None;
        while from < end {
            let mut next = None;
            map.tree().for_overlapping(from, end, &mut |entry| {
                next = part_of(entry, start, found, is);
                next.is_none()
            });
            let Some(part) = next else { break };
            if found.is_none() {
                found = Some(part.object);
                end = end.min(start.saturating_add(part.size));
            }
            map.unmap(vm, part.start, part.end)?;
            from = part.end;
        }
        found.map(drop).ok_or(VmError::NotMapped)
    }
}

/// An entry that is a part of the mapping.
struct Part {
    start: u64,
    end: u64,
    /// Identity of the object, and its size.
    object: usize,
    size: u64,
}

/// `entry` as a part of a mapping that began at `start`: of the object `known`, or of one for which `is` holds.
fn part_of(
    entry: &MapEntry,
    start: u64,
    known: Option<usize>,
    is: &dyn Fn(&Object) -> bool,
) -> Option<Part> {
    let pin = ksync::pin();
    let layer = entry.chain(&pin).filter(|_| entry.is_shared())?.front();
    let object = layer.object(&pin)?;
    let at = entry.start();
    let in_place = at >= start && u64::from(layer.index(at)) << PAGE_SHIFT == at - start;
    let fits = in_place
        && match known {
            Some(identity) => identity == object.identity(),
            None => is(object),
        };
    fits.then(|| Part {
        start: at,
        end: entry.end(),
        object: object.identity(),
        size: object.size().next_multiple_of(1 << PAGE_SHIFT),
    })
}
