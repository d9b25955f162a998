//! Freeing private memory that no mapping reaches any more.
//!
//! Guarantee: a page of private memory that was made unreachable (unmapped beside another attachment, or shadowed in every
//! chain that has its object) is free after the second [`Vm::tend`] at the latest, if no more than [`SPACES`] spaces share the object and none of
//! them is in the middle of a change all the time. No page is freed that a mapping reaches.
//!
//! Mechanism: whatever may leave pages behind marks the object as *unswept* and queues a space that has it attached: an unmapping
//! that cannot free at once, a write fault that copies, the end of an attachment where pages had stayed for others before. A sweep holds
//! the map locks of all spaces that have the object attached, the others' by `try_lock`. Nothing can then be attached, unmapped or
//! forked, and for private memory nothing ever becomes reachable again, so a look at the chains of each is exact but for
//! faults under way, which put pages above and may take them back as long as they hold them busy. See `doc/vm.md`.

use core::ops::ControlFlow;
use core::ptr;

use ksync::CpuPin;
use rust_alloc::sync::Arc;
use rust_alloc::vec::Vec;
use smallvec::SmallVec;

use super::Space;
use super::edit::Locked;
use crate::backing::{Backing, Layers, MappedExtent, Relation};
use crate::limbo::FrameList;
use crate::map::Extent;
use crate::object::{Next, Object, Swept};
use crate::page::hub_of;
use crate::pmap::USER_END;
use crate::{Machine, Vm};

/// Spaces beside the first one that a sweep locks at most. With what is taken below them the check of lock ranks has room for
/// as many.
const SPACES: usize = 15;
/// Attachments of an object that a sweep looks at.
const ATTACHMENTS: usize = 512;
/// Objects that a space's sweep remembers, so that entries which share layers have them swept once.
const MEMO: usize = 16;

/// What a slice of a sweep came to.
enum Slice {
    /// The object is done.
    Done,
    /// Go on at this index.
    More(u32),
    /// Not now: somebody is changing a map, or is being born.
    Later,
    /// So many share the object that a later call will hardly do better; what ends their sharing queues a space again.
    Never,
}

/// How far a sweep has come.
#[derive(Default)]
struct State {
    /// The index where its next slice begins.
    from: u32,
    /// A page was in the way of a clear answer.
    unclear: bool,
    /// Another space had the object attached during one of its slices.
    shared: bool,
}

/// A page, as the chains of one attachment see it.
#[derive(PartialEq, Eq)]
enum Sight {
    Reached,
    Hidden,
    /// A page above is on its way in or out.
    Unclear,
}

/// One attachment of the object that is swept, in a space whose map is locked.
struct View<'s> {
    space: &'s Space,
    relation: Relation,
}

impl View<'_> {
    /// Another attachment with the same one sees the same.
    fn key(&self) -> (usize, Relation) {
        (ptr::from_ref(self.space).addr(), self.relation)
    }

    /// Whether a fault here finds page `index` of `object`.
    fn sight<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, object: &Object, index: u32) -> Sight {
        let va = self.relation.address(index);
        if va >= USER_END || self.relation.index(va) != index {
            return Sight::Hidden;
        }
        // The lock is held, so what is not found is not there.
        let Some(chain) = self.space.find(pin, va).and_then(|entry| entry.chain(pin)) else {
            return Sight::Hidden;
        };
        for layer in chain.layers() {
            let Some(seen) = layer.object(pin) else {
                return Sight::Unclear;
            };
            if ptr::eq(seen, object) && layer.index(va) == index {
                return Sight::Reached;
            }
            let above = layer.index(va);
            if let Some(pfn) = seen.lookup(pin, above) {
                // A page that a fault has put there may still be taken back, as long as it is busy.
                let settled = seen.holds(vm.pages.get(pfn), above);
                return if settled {
                    Sight::Hidden
                } else {
                    Sight::Unclear
                };
            }
        }
        Sight::Hidden
    }
}

impl Space {
    /// Sweeps the objects of the space that ask for it. Returns whether something has to be looked at again.
    pub(super) fn sweep<M: Machine>(&self, vm: &Vm<M>) -> bool {
        let (mut again, mut at) = (false, 0);
        let mut swept: SmallVec<[usize; MEMO]> = SmallVec::new();
        loop {
            let mut layers = Layers::new();
            {
                let map = self.lock();
                let Some(entry) = map.tree().first_ending_above(at) else {
                    return again;
                };
                at = entry.end();
                let pin = ksync::pin();
                for layer in entry.chain(&pin).map_or(&[][..], |chain| chain.layers()) {
                    let Some(object) = layer.object(&pin) else {
                        continue;
                    };
                    if object.is_swept(Swept::No) && !swept.contains(&object.identity()) {
                        if swept.len() == MEMO {
                            swept.remove(0);
                        }
                        swept.push(object.identity());
                        layers.push(layer.clone());
                    }
                }
            }
            for layer in &layers {
                again |= self.sweep_layer(vm, layer);
            }
        }
    }

    /// Sweeps one object, in slices; no lock is held between two of them. Returns whether to look again.
    fn sweep_layer<M: Machine>(&self, vm: &Vm<M>, layer: &Arc<Backing>) -> bool {
        let mut state = State::default();
        loop {
            let again = match self.sweep_slice(vm, layer, &mut state) {
                Slice::More(next) => {
                    state.from = next;
                    continue;
                }
                Slice::Done => state.unclear,
                Slice::Later => true,
                Slice::Never => false,
            };
            if again {
                layer.set_swept(Swept::No);
            }
            return again;
        }
    }

    fn sweep_slice<M: Machine>(&self, vm: &Vm<M>, layer: &Backing, state: &mut State) -> Slice {
        let _own = self.lock();
        let (mut others, mut locked, mut views) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(slice) = self.find_others(layer, &mut others) {
            return slice;
        }
        if locked.try_reserve_exact(others.len()).is_err() {
            return Slice::Later;
        }
        for other in &others {
            let Some(map) = other.try_lock() else {
                return Slice::Later;
            };
            locked.push(map);
        }
        // From here on nothing is attached or detached.
        if !self.find_views(layer, &others, &mut views) {
            return Slice::Later;
        }
        state.shared |= !others.is_empty();
        if state.from == 0 {
            // Before anything is looked at: what happens from now on marks it anew. Between two slices the space may fork and end, so
            // until the last page was looked at the end of an attachment leaves pages to those that remain.
            layer.set_swept(Swept::Shared);
        }
        let slice = sweep_pages(vm, layer, &views, state);
        if matches!(slice, Slice::Done) && !state.shared {
            layer.sweep_was_whole();
        }
        slice
    }

    /// The other spaces that have the layer's object attached, or why there is nothing to be done.
    fn find_others(&self, layer: &Backing, others: &mut Vec<Arc<Space>>) -> Option<Slice> {
        if others.try_reserve_exact(SPACES).is_err() {
            return Some(Slice::Later);
        }
        let pin = ksync::pin();
        // Detached meanwhile: the detaching has seen to the rest.
        let Some(object) = layer.object(&pin) else {
            return Some(Slice::Done);
        };
        let mut attachments = 0;
        let found = hub_of(object).scan(|extent: &MappedExtent| {
            attachments += 1;
            if attachments > ATTACHMENTS {
                return ControlFlow::Break(Slice::Never);
            }
            let known = |space: &Space| Arc::ptr_eq(space.pmap_arc(), extent.pmap());
            if known(self) || others.iter().any(|other| known(other)) {
                return ControlFlow::Continue(());
            }
            if others.len() == SPACES {
                return ControlFlow::Break(Slice::Never);
            }
            match extent.pmap().waiting().space() {
                Some(space) => others.push(space),
                None => return ControlFlow::Break(Slice::Later),
            }
            ControlFlow::Continue(())
        });
        found.break_value()
    }

    /// All attachments of the layer's object, if they belong to this space and `others`, which are locked.
    fn find_views<'s>(
        &'s self,
        layer: &Backing,
        others: &'s [Arc<Space>],
        views: &mut Vec<View<'s>>,
    ) -> bool {
        if views.try_reserve_exact(ATTACHMENTS).is_err() {
            return false;
        }
        let pin = ksync::pin();
        let Some(object) = layer.object(&pin) else {
            return false;
        };
        let found: ControlFlow<()> = hub_of(object).scan(|extent: &MappedExtent| {
            let mut spaces = others.iter().map(|other| &**other).chain([self]);
            let space = spaces.find(|space| Arc::ptr_eq(space.pmap_arc(), extent.pmap()));
            let Some(space) = space.filter(|_| views.len() < ATTACHMENTS) else {
                return ControlFlow::Break(());
            };
            views.push(View {
                space,
                relation: extent.relation(),
            });
            ControlFlow::Continue(())
        });
        drop(pin);
        // The same are looked for here, and not in the square of their number under a shard's lock.
        views.sort_unstable_by_key(View::key);
        views.dedup_by_key(|view| view.key());
        found.is_continue()
    }

    fn try_lock(&self) -> Option<Locked<'_>> {
        self.map.try_lock().map(|state| Locked::new(self, state))
    }
}

/// Looks at some pages of the layer's object and frees those that no view reaches.
fn sweep_pages<M: Machine>(
    vm: &Vm<M>,
    layer: &Backing,
    views: &[View<'_>],
    state: &mut State,
) -> Slice {
    let (mut at, mut gone) = (Some(state.from), FrameList::EMPTY);
    for _ in 0..(vm.tuning.sweep_looks / views.len().max(1)).max(1) {
        // A new one for each page: it may be looked up in many maps.
        let pin = ksync::pin();
        let Some((from, object)) = at.zip(layer.object(&pin)) else {
            at = None;
            break;
        };
        let (index, pfn) = match object.next_resident_step(&pin, from, u32::MAX) {
            Next::Page(index, pfn) => (index, pfn),
            Next::Unseen(next) => {
                at = Some(next);
                continue;
            }
            Next::End => {
                at = None;
                break;
            }
        };
        at = index.checked_add(1);
        let mut sight = Sight::Hidden;
        for view in views {
            match view.sight(vm, &pin, object, index) {
                Sight::Hidden => {}
                other => {
                    sight = other;
                    break;
                }
            }
        }
        state.unclear |= match sight {
            Sight::Reached => false,
            Sight::Unclear => true,
            Sight::Hidden => !object.remove_hidden(vm, index, pfn, &mut gone),
        };
    }
    if !gone.is_empty() {
        vm.stats.get(&ksync::pin()).swept.add(gone.len() as u64);
        vm.retire_frames(gone);
    }
    at.map_or(Slice::Done, Slice::More)
}
