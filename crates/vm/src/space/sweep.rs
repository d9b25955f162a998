//! Freeing private memory that no mapping reaches any more.
//!
//! Guarantee: a page of private memory that became unreachable (unmapped while its object has another attachment, or
//! shadowed in every chain that contains its object) is free after the second following [`Vm::tend`], provided that the
//! object has at most [`ATTACHMENTS`] attachments, in no more than [`SPACES`] other spaces, none of which is being
//! changed all the time; and that a round, of so many [slices](crate::Tuning::sweep_slices), gets to its end: else it is free
//! after as many more as that takes. No page is freed that a mapping reaches.
//!
//! There is a sweep only where the reverse map [finds extents](crate::rmap::ReverseMap::FINDS_EXTENTS). Elsewhere nothing
//! is marked or queued, and such pages stay until the last attachment of their object ends.
//!
//! Mechanism: an operation that may leave unreachable pages behind marks the object as *unswept* and queues a space
//! that has it attached. Such operations are an unmapping that cannot free at once, a write fault that copies, and the
//! end of an attachment of an object that may already hold unreachable pages. A sweep holds the map locks of all spaces
//! that have the object attached, the others' by `try_lock`. Nothing can then be attached, unmapped or forked, and an
//! unreachable page of private memory never becomes reachable again. So what a sweep reads in the chains of those
//! spaces is exact, except for faults in progress: these insert pages into upper layers, and may remove them again as
//! long as they hold them busy. See `doc/vm.md`.

use core::ops::ControlFlow;
use core::ptr;

use ksync::CpuPin;
use rust_alloc::sync::Arc;
use rust_alloc::vec::Vec;
use smallvec::SmallVec;

use super::Space;
use super::edit::Locked;
use crate::backing::{Backing, Chain, Layers, MappedExtent, Relation};
use crate::limbo::FrameList;
use crate::map::MapEntry;
use crate::object::{Next, Object, Progress, Swept};
use crate::page::hub_of;
use crate::pmap::USER_END;
use crate::{Machine, Vm};

/// Most spaces besides the first that a sweep locks. The check of lock ranks has room for these and for the locks taken
/// below them.
const SPACES: usize = 15;
/// Most attachments of an object that a sweep looks at.
const ATTACHMENTS: usize = 512;
/// Number of objects that the sweep of a space remembers, so that entries that share layers have them swept once.
const MEMO: usize = 16;

/// Result of one slice of a sweep.
enum Slice {
    /// All pages of the object were looked at.
    Done,
    /// Continue at this index.
    More(u32),
    /// Try again later: another space's map is locked, a fork is still building one, one is ending, or memory is short.
    Later,
    /// Too many spaces or attachments share the object for a sweep. The end of an attachment queues a space again.
    Never,
}

/// Whether a page is visible through one attachment.
#[derive(PartialEq, Eq)]
enum Sight {
    Reached,
    Hidden,
    /// A fault is inserting or removing a page in a layer above.
    Unclear,
}

/// One attachment of the object that is swept, in a space whose map is locked.
struct View<'s> {
    space: &'s Space,
    relation: Relation,
}

impl View<'_> {
    /// Attachments with the same key see the same pages.
    fn key(&self) -> (usize, Relation) {
        (ptr::from_ref(self.space).addr(), self.relation)
    }

    /// Whether a fault in this space finds page `index` of `object`.
    fn sight<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, object: &Object, index: u32) -> Sight {
        let va = self.relation.address(index);
        if va >= USER_END || self.relation.index(va) != index {
            return Sight::Hidden;
        }
        // The map's lock is held, so an entry that is not found does not exist.
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
                // A fault that has inserted a page may still remove it, as long as it holds it busy.
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
    /// Sweeps the objects of the space that are marked unswept. Returns whether the space must be queued again.
    pub(super) fn sweep<M: Machine>(&self, vm: &Vm<M>) -> bool {
        let (mut again, mut at) = (false, 0);
        let mut swept: SmallVec<[usize; MEMO]> = SmallVec::new();
        loop {
            let mut layers = Layers::new();
            {
                let wanted = |pin: &CpuPin, entry: &MapEntry| {
                    let mut all = entry.chain(pin).into_iter().flat_map(Chain::layers);
                    all.any(|layer| unswept(pin, layer, &swept).is_some())
                };
                let Some((_map, entry)) = self.next_wanted(&mut at, wanted) else {
                    return again;
                };
                let pin = ksync::pin();
                for layer in entry.chain(&pin).map_or(&[][..], |chain| chain.layers()) {
                    if let Some(identity) = unswept(&pin, layer, &swept) {
                        if swept.len() == MEMO {
                            swept.remove(0);
                        }
                        swept.push(identity);
                        layers.push(layer.clone());
                    }
                }
            }
            for layer in &layers {
                again |= self.sweep_layer(vm, layer);
            }
        }
    }

    /// Sweeps one object, in slices; no lock is held between two slices. After so many slices the rest is left to the next
    /// round. Returns whether the object must be swept again, or on.
    fn sweep_layer<M: Machine>(&self, vm: &Vm<M>, layer: &Arc<Backing>) -> bool {
        let mut state = layer.sweep_progress();
        layer.forget_sweeper();
        for _ in 0..vm.tuning.sweep_slices.max(1) {
            match self.sweep_slice(vm, layer, &mut state) {
                Slice::More(next) => state.from = next,
                Slice::Done => {
                    if state.unclear {
                        layer.set_swept(Swept::No);
                    }
                    // If it went over several rounds, a mark set meanwhile has queued this space for the next of them only.
                    return layer.leave_sweep(Progress::default());
                }
                Slice::Later => {
                    if state.from == 0 {
                        layer.set_swept(Swept::No);
                    }
                    break;
                }
                Slice::Never => {
                    layer.leave_sweep(state);
                    return false;
                }
            }
        }
        layer.leave_sweep(state)
    }

    /// Sweeps some pages under the map locks of all spaces that have the layer's object attached: this one's, and those of
    /// others by `try_lock`.
    fn sweep_slice<M: Machine>(&self, vm: &Vm<M>, layer: &Backing, state: &mut Progress) -> Slice {
        let _own = self.lock();
        let (mut others, mut locked, mut views) = (Vec::new(), Vec::new(), Vec::new());
        let attachments = match self.find_others(layer, &mut others) {
            Ok(attachments) => attachments,
            Err(slice) => return slice,
        };
        // As many as there were, and a few that came since: a large block may not be had just when memory is short.
        let room = views.try_reserve_exact(attachments + SPACES);
        if room.is_err() || locked.try_reserve_exact(others.len()).is_err() {
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
            // The mark is changed before any page is looked at, so that a later event sets it again. Between two slices
            // the space may fork and end; until the last page was looked at, the end of an attachment must therefore
            // queue another space.
            layer.set_swept(Swept::Shared);
        }
        let slice = sweep_pages(vm, layer, &mut views, state);
        if matches!(slice, Slice::Done) && !state.shared {
            layer.sweep_was_whole();
        }
        slice
    }

    /// Collects the other spaces that have the layer's object attached, under the locks of its hub, one after the other.
    /// Returns the number of its attachments; or, as an error, the result if there is nothing to do now.
    fn find_others(&self, layer: &Backing, others: &mut Vec<Arc<Space>>) -> Result<usize, Slice> {
        if others.try_reserve_exact(SPACES).is_err() {
            return Err(Slice::Later);
        }
        let pin = ksync::pin();
        // The layer was detached meanwhile; the detaching operation has queued another space if need be.
        let Some(object) = layer.object(&pin) else {
            return Err(Slice::Done);
        };
        let mut attachments = 0;
        let found = hub_of(object).scan(|extent: &MappedExtent| {
            let known = |space: &Space| Arc::ptr_eq(space.pmap(), extent.pmap());
            let known = known(self) || others.iter().any(|other| known(other));
            let mut space = None;
            if !known {
                space = extent.pmap().waiting().space();
                if space.is_none() {
                    // Before it is counted: if it is never born, it goes without a word.
                    return ControlFlow::Break(Slice::Later);
                }
            }
            attachments += 1;
            if attachments > ATTACHMENTS || !known && others.len() == SPACES {
                return ControlFlow::Break(Slice::Never);
            }
            // A reference dropped above is not the last: a space ends its attachments before it is dropped, and has this one.
            others.extend(space);
            ControlFlow::Continue(())
        });
        match found.break_value() {
            Some(slice) => Err(slice),
            None => Ok(attachments),
        }
    }

    /// Collects all attachments of the layer's object. False if one belongs to a space other than this one and
    /// `others`, all of which are locked, if there are more than `views` has room for, or if one may have been missed.
    fn find_views<'s>(
        &'s self,
        layer: &Backing,
        others: &'s [Arc<Space>],
        views: &mut Vec<View<'s>>,
    ) -> bool {
        let pin = ksync::pin();
        let Some(object) = layer.object(&pin) else {
            return false;
        };
        let found: Option<ControlFlow<()>> = hub_of(object).scan_whole(|extent: &MappedExtent| {
            let mut spaces = others.iter().map(|other| &**other).chain([self]);
            let space = spaces.find(|space| Arc::ptr_eq(space.pmap(), extent.pmap()));
            let Some(space) = space.filter(|_| views.len() < views.capacity()) else {
                return ControlFlow::Break(());
            };
            views.push(View {
                space,
                relation: extent.relation(),
            });
            ControlFlow::Continue(())
        });
        drop(pin);
        // Duplicates are removed here, by sorting; a comparison of all pairs would take quadratic time under a shard's
        // lock.
        views.sort_unstable_by_key(View::key);
        views.dedup_by_key(|view| view.key());
        found.is_some_and(|found| found.is_continue())
    }

    fn try_lock(&self) -> Option<Locked<'_>> {
        self.map.try_lock().map(|state| Locked::new(self, state))
    }
}

/// The identity of the layer's object if that is to be swept, or on, and is not among those that were.
fn unswept(pin: &CpuPin, layer: &Backing, swept: &[usize]) -> Option<usize> {
    let object = layer.object(pin)?;
    let due = object.is_to_be_swept() && !swept.contains(&object.identity());
    due.then(|| object.identity())
}

/// Looks at some pages of the layer's object and frees those that no attachment reaches.
fn sweep_pages<M: Machine>(
    vm: &Vm<M>,
    layer: &Backing,
    views: &mut [View<'_>],
    state: &mut Progress,
) -> Slice {
    let (mut at, mut gone) = (Some(state.from), FrameList::EMPTY);
    for _ in 0..(vm.tuning.sweep_looks / views.len().max(1)).max(1) {
        // One pin for each page: the page may be looked up in many maps.
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
        for n in 0..views.len() {
            sight = views[n].sight(vm, &pin, object, index);
            if sight != Sight::Hidden {
                // It probably reaches the next page, too. The others have copies, whose records are on lines of other CPUs.
                views.swap(0, n);
                break;
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
