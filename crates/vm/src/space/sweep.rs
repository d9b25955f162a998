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
use crate::backing::{Backing, Layers, Place, Relation};
use crate::limbo::FrameList;
use crate::map::Extent;
use crate::object::{Object, Swept};
use crate::page::hub_of;
use crate::pmap::USER_END;
use crate::{Machine, Vm};

/// Spaces beside the first one that a sweep locks at most. With what is taken below them the check of lock ranks has room for
/// as many.
const SPACES: usize = 15;
/// Attachments of an object that a sweep looks at.
const ATTACHMENTS: usize = 512;
/// Looks of one slice, during which the maps stay locked: pages times attachments.
const LOOKS: usize = 512;
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
            if let Some(pfn) = seen.lookup(above) {
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
        let (mut from, mut unclear) = (0, false);
        loop {
            let again = match self.sweep_slice(vm, layer, from, &mut unclear) {
                Slice::More(next) => {
                    from = next;
                    continue;
                }
                Slice::Done => unclear,
                Slice::Later => true,
                Slice::Never => {
                    layer.sweep_is_shared();
                    false
                }
            };
            if again {
                layer.set_swept(Swept::No);
            }
            return again;
        }
    }

    fn sweep_slice<M: Machine>(
        &self,
        vm: &Vm<M>,
        layer: &Backing,
        from: u32,
        unclear: &mut bool,
    ) -> Slice {
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
        if from > 0 {
            // A mark that was made since the first slice stays.
            if !others.is_empty() {
                layer.sweep_is_shared();
            }
        } else if others.is_empty() {
            // Before anything is looked at: what happens from now on marks it anew.
            layer.set_swept(Swept::Whole);
        } else {
            layer.set_swept(Swept::Shared);
        }
        sweep_pages(vm, layer, from, &views, unclear)
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
        let found = hub_of(object).scan(|place: &Place| {
            attachments += 1;
            if attachments > ATTACHMENTS {
                return ControlFlow::Break(Slice::Never);
            }
            let known = |space: &Space| Arc::ptr_eq(space.pmap_arc(), place.pmap());
            if known(self) || others.iter().any(|other| known(other)) {
                return ControlFlow::Continue(());
            }
            if others.len() == SPACES {
                return ControlFlow::Break(Slice::Never);
            }
            match place.pmap().waiting().space() {
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
        let found: ControlFlow<()> = hub_of(object).scan(|place: &Place| {
            let mut spaces = others.iter().map(|other| &**other).chain([self]);
            let space = spaces.find(|space| Arc::ptr_eq(space.pmap_arc(), place.pmap()));
            let Some(space) = space.filter(|_| views.len() < ATTACHMENTS) else {
                return ControlFlow::Break(());
            };
            let relation = place.relation();
            let same = |view: &View<'_>| ptr::eq(view.space, space) && view.relation == relation;
            if !views.iter().any(same) {
                views.push(View { space, relation });
            }
            ControlFlow::Continue(())
        });
        found.is_continue()
    }

    fn try_lock(&self) -> Option<Locked<'_>> {
        self.map.try_lock().map(|state| Locked::new(self, state))
    }
}

/// Looks at some pages of the layer's object from index `from` on and frees those that no view reaches.
fn sweep_pages<M: Machine>(
    vm: &Vm<M>,
    layer: &Backing,
    from: u32,
    views: &[View<'_>],
    unclear: &mut bool,
) -> Slice {
    let (mut at, mut gone) = (Some(from), FrameList::EMPTY);
    for _ in 0..(LOOKS / views.len().max(1)).max(1) {
        // A new one for each page: it may be looked up in many maps.
        let pin = ksync::pin();
        let found = at.and_then(|at| layer.object(&pin)?.next_resident(at, u32::MAX));
        let (Some(object), Some((index, pfn))) = (layer.object(&pin), found) else {
            at = None;
            break;
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
        *unclear |= match sight {
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
