//! Unmapping all that is left of one shared mapping of an object, whatever has been cut off or changed: shmdt(2).

use super::edit::Locked;
use super::{Space, VmError};
use crate::map::{EntryArgs, Extent, MapEntry};
use crate::object::Object;
use crate::page::PAGE_SHIFT;
use crate::{Machine, Vm};

impl Space {
    /// Unmaps what is left of the shared mapping that was made at `start` of a whole object for which `is` holds: the entries in whose
    /// place that mapping put the same pages. If there are several such objects, the one with the lowest address counts.
    ///
    /// Entries that follow one another and are alike count as one. The first one goes whole, also where it has grown beyond the
    /// object; of the others those go that end within the object's size. So Linux does.
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
        let Some(first) = next_part(&map, start, map.high(), &mut |entry| {
            part_of(entry, start, is)
        }) else {
            return Err(VmError::NotMapped);
        };
        map.unmap(vm, first.args.start, first.args.end)?;
        let mut from = first.args.end;
        let end = start.saturating_add(first.size);
        let is_same = |object: &Object| object.identity() == first.object;
        while let Some(part) = next_part(&map, from, end, &mut |entry| {
            part_of(entry, start, &is_same)
        })
        .filter(|part| part.args.end <= end)
        {
            map.unmap(vm, part.args.start, part.args.end)?;
            from = part.args.end;
        }
        Ok(())
    }
}

/// A part of the mapping: entries that follow one another and are alike.
struct Part {
    args: EntryArgs,
    /// Identity of the object, and its size.
    object: usize,
    size: u64,
}

impl Part {
    /// Whether `next` continues it.
    fn goes_on_in(&self, next: &Part) -> bool {
        let (a, b) = (&self.args, &next.args);
        let alike = (a.prot, a.maxprot, a.flags) == (b.prot, b.maxprot, b.flags);
        alike && a.end == b.start && self.object == next.object
    }
}

/// The first part that begins in `from..end`, to its end, which may be behind `end`.
fn next_part(
    map: &Locked<'_>,
    from: u64,
    end: u64,
    part: &mut dyn FnMut(&MapEntry) -> Option<Part>,
) -> Option<Part> {
    let mut found: Option<Part> = None;
    map.tree()
        .for_overlapping(from, map.high(), &mut |entry| match &mut found {
            None if entry.start() >= end => false,
            None => {
                found = part(entry);
                true
            }
            Some(found) => {
                let next = part(entry).filter(|next| found.goes_on_in(next));
                if let Some(next) = &next {
                    found.args.end = next.args.end;
                }
                next.is_some()
            }
        });
    found
}

/// `entry` as a part of a mapping that began at `start`, of an object for which `is` holds.
fn part_of(entry: &MapEntry, start: u64, is: &dyn Fn(&Object) -> bool) -> Option<Part> {
    let pin = ksync::pin();
    let layer = entry.chain(&pin).filter(|_| entry.is_shared())?.front();
    let object = layer.object(&pin)?;
    let at = entry.start();
    let in_place = at >= start && u64::from(layer.index(at)) << PAGE_SHIFT == at - start;
    (in_place && is(object)).then(|| Part {
        args: entry.args(),
        object: object.identity(),
        size: object.size().next_multiple_of(1 << PAGE_SHIFT),
    })
}
