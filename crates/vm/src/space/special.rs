//! The special object, and mappings of it.
//!
//! Guarantee: every mapping of the special object shows its pages, until a private write gives the mapping copies of its
//! own. Making, copying and ending such a mapping costs an entry of the map, and nothing else.
//!
//! Mechanism: the pages of the special object are there before the first mapping, never leave it, and are never scanned;
//! the object is never ended. So nobody need find its mappings: they have no layer, which would be attached to the
//! object, and faults enter its frames as unmanaged leaves. What needs layers, a private write, first replaces the entry by
//! one that maps the object as any file. A fault that saw the old entry enters nothing after that: its check fails. Leaves
//! that it entered before are right until a copy replaces them, and stay.
//!
//! The mapping begins with the object's first page. It is never split, as in Linux, so an address tells the index.

use rust_alloc::sync::Arc;
use smallvec::smallvec;

use super::Space;
use super::edit::Locked;
use crate::alloc::NoMemory;
use crate::backing::{Backing, Chain, Relation};
use crate::map::{EntryArgs, EntryFlags, Extent, MapEntry};
use crate::object::ObjectRef;
use crate::page::{PAGE_SHIFT, PAGE_SIZE};
use crate::{Machine, Vm};

impl<M: Machine> Vm<M> {
    /// Makes `object`, a file, the special object, which [`Source::Special`](super::Source::Special) maps. All its pages are
    /// there; the caller never truncates or releases it.
    ///
    /// # Errors
    /// There is one: returns `object`.
    pub fn set_special(&self, object: ObjectRef) -> Result<(), ObjectRef> {
        debug_assert!(!object.is_anon() && object.resident() == object.pages());
        self.special.set(object)
    }

    /// The special object, if there is one.
    pub fn special(&self) -> Option<&ObjectRef> {
        self.special.get()
    }

    /// Releases the special object when no mapping of it is left: for tests, whose machines end.
    pub fn end_special(&mut self) {
        if let Some(object) = self.special.take() {
            object.release(self);
        }
    }

    /// Bytes of the special object, whole pages; 0 without one.
    pub fn special_bytes(&self) -> u64 {
        let bytes = self.special.get().map_or(0, |object| object.size());
        bytes.next_multiple_of(PAGE_SIZE as u64)
    }
}

impl MapEntry {
    /// Whether it shows the special object, or did so before it was written to.
    pub(crate) fn is_special(&self) -> bool {
        self.flags().contains(EntryFlags::SPECIAL)
    }

    /// The special object, if that is what the entry shows everywhere. Stable under the map's lock, or as long as the entry
    /// is alive.
    pub(crate) fn shown_special<'v, M: Machine>(&self, vm: &'v Vm<M>) -> Option<&'v ObjectRef> {
        (self.is_special() && self.chain_slot().is_none())
            .then(|| vm.special.get())
            .flatten()
    }

    /// The index in the special object of the page at `va`, for an entry that shows it.
    pub(crate) fn special_index(&self, va: u64) -> u32 {
        ((va - self.start()) >> PAGE_SHIFT) as u32
    }
}

impl Locked<'_> {
    /// The range with all of the special mappings of which it names a part, if there are any, and `change` changes none of them.
    pub(super) fn with_whole_specials(
        &self,
        range: (u64, u64),
        change: &impl Fn(EntryArgs) -> EntryArgs,
    ) -> Option<(u64, u64)> {
        let mut whole = range;
        for at in [range.0, range.1 - 1] {
            let Some(entry) = self.find(at).filter(|entry| entry.is_special()) else {
                continue;
            };
            if change(entry.args()) != entry.args() {
                return None;
            }
            whole = (whole.0.min(entry.start()), whole.1.max(entry.end()));
        }
        (whole != range).then_some(whole)
    }
}

impl Space {
    /// Replaces an entry that shows the special object by one that has it as a layer and needs a copy before a write.
    ///
    /// # Errors
    /// No memory; nothing has changed.
    pub(crate) fn attach_special<M: Machine>(
        &self,
        vm: &Vm<M>,
        map: &mut Locked<'_>,
        entry: &Arc<MapEntry>,
    ) -> Result<(), NoMemory> {
        let Some(object) = entry.shown_special(vm) else {
            return Ok(());
        };
        let (start, end) = (entry.start(), entry.end());
        let relation = Relation::up(start, 0);
        let layer = Backing::attach(object, self.pmap(), relation, (start, end), false)?;
        let new = MapEntry::new(entry.args(), Some(Chain::of(layer)), true);
        map.commit(vm, &smallvec![entry.clone()], smallvec![new]);
        Ok(())
    }
}
