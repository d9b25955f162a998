//! Folding long shadow chains.
//!
//! Guarantee: however often a program forks, and however many of its children live, no chain has more than
//! [`COPY_DEPTH`] + 1 layers while memory suffices, and never more than [`HARD_DEPTH`]. Folding changes nothing that a
//! process sees. The part of it that was done is kept by later forks, which copy the folded chain.
//!
//! Mechanism: a layer behind the front leaves a chain when each of its pages, in the range of the entry, is shadowed by
//! a page of a younger layer. Where the forks since have written every page, that happens without copies. Otherwise the
//! layer's visible pages are first brought up into the next younger layer: moved if no other space can see the layer,
//! else copied. Any number of processes may share the younger layer: all of them see the same contents at these
//! addresses as before, and find the older layer shadowed in turn, so that one copy serves all of them. The layer to
//! bring up is chosen by size, so that a page is copied at most a logarithmic number of times, and a large old layer is
//! never copied for the sake of a few pages above it. `doc/vm.md` has the bounds and the time lines.

use core::ops::Range;

use ksync::atomic::{Ordering::SeqCst, fence};
use ksync::{CpuPin, doze};
use smallvec::SmallVec;

use super::Space;
use crate::alloc::{NoMemory, Rights};
use crate::backing::{Backing, Chain, Layers};
use crate::map::{Extent, MapEntry};
use crate::object::{Insert, Next, Object};
use crate::page::{Flags, PAGE_SIZE, Pfn, copy_frame};
use crate::tlb::Gather;
use crate::{Machine, Tuning, Vm};

/// See [`Tuning::copy_depth`].
pub const COPY_DEPTH: usize = Tuning::DEFAULT.copy_depth;

/// See [`Tuning::hard_depth`].
pub const HARD_DEPTH: usize = Tuning::DEFAULT.hard_depth;

/// A layer that only this space can see is brought up even in a short chain if it has at most this many times the pages
/// of the layer above it.
const MOVE_RATIO: u64 = 4;

/// Most pages whose page-table entries are removed in one go.
const RUN: usize = 256;

/// Pages handled under one pin.
const SECTION: usize = 16;

/// How much work a fold may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// One step that copies nothing and does not sleep.
    Step,
    /// All that is needed to keep the bound on the chain's length.
    Bound,
}

/// Result of looking at the pages of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    /// All of them are shadowed.
    Shadowed,
    /// The next one is visible: no younger layer has a page there.
    Visible,
    /// The next one, or one above it, is held busy.
    Busy,
    /// The step's budget is used up.
    More,
}

impl Space {
    /// Makes one folding step for each entry with a long chain; copies nothing. Returns whether there is more to do.
    pub fn maintain<M: Machine>(&self, vm: &Vm<M>) -> bool {
        let (mut more, mut at) = (false, 0);
        let long = |pin: &CpuPin, entry: &MapEntry| {
            let chain = entry.chain(pin);
            chain.is_some_and(|chain| is_long(vm, chain))
        };
        while let Some((_map, entry)) = self.next_wanted(&mut at, long) {
            // Nothing is copied, so the only failure is a lack of memory for nodes.
            more |= self.fold(vm, &entry, Effort::Step).unwrap_or(false);
        }
        more
    }

    /// Folds the chain of a private entry, if it is long. The map's lock is held. Returns whether there is more to do.
    ///
    /// # Errors
    /// No memory for copies or index nodes. Layers that were dropped stay dropped, and pages that were brought up stay.
    pub(crate) fn fold<M: Machine>(
        &self,
        vm: &Vm<M>,
        entry: &MapEntry,
        effort: Effort,
    ) -> Result<bool, NoMemory> {
        // One pass suffices: dropping or bringing up layers leaves shadowed exactly the pages that were shadowed
        // before.
        let (mut left, mut asked) = (vm.tuning.fold_step, false);
        loop {
            // Only a long chain is copied: that writes to all of its layers.
            let long = entry
                .chain(&ksync::pin())
                .is_some_and(|chain| is_long(vm, chain));
            let Some(chain) = long.then(|| entry.view()).flatten() else {
                return Ok(false);
            };
            let fold = Fold {
                vm,
                entry,
                chain,
                effort,
            };
            if !asked {
                let gone = fold.shadowed(&mut left)?;
                let cut_short = effort == Effort::Step && left == 0;
                if cut_short && gone.is_empty() {
                    return Ok(true);
                }
                asked = !cut_short;
                if !gone.is_empty() {
                    self.drop_layers(&fold, &gone);
                    continue;
                }
            }
            let Some(source) = fold.choose() else {
                entry.set_folded();
                return Ok(false);
            };
            let task = Task {
                at: source,
                gone: &[],
                bring: true,
            };
            match fold.perform(task, &mut left)? {
                Look::Shadowed => self.drop_layers(&fold, &[source]),
                // The holders are pinned, or are copying the page.
                Look::Busy if effort == Effort::Bound => doze(),
                Look::Busy | Look::More | Look::Visible => return Ok(true),
            }
        }
    }

    /// Publishes the chain without the layers at the positions `gone`, all of whose pages are shadowed.
    fn drop_layers<M: Machine>(&self, fold: &Fold<'_, M>, gone: &[usize]) {
        let (vm, entry, chain) = (fold.vm, fold.entry, &fold.chain);
        let mut layers = Layers::with_capacity(chain.layers().len() - gone.len());
        let stays = |at: usize| !gone.contains(&at);
        let kept = chain.layers().iter().enumerate();
        layers.extend(
            kept.filter(|(at, _)| stays(*at))
                .map(|(_, layer)| layer.clone()),
        );
        let new = Chain::new(layers);
        let successor = new.view();
        // The chain is published before the state: a fault that sees the new state sees the new chain. A fault that has
        // the old chain starts again: other spaces may put pages into a dropped layer, and no scan of it looks at this
        // address any more.
        entry.set_chain(vm, Some(new));
        entry.renew();
        // A fault that entered a page of a dropped layer has seen the old state, so its page-table entry is seen here.
        fence(SeqCst);
        let mut gather = Gather::new();
        for &at in gone {
            self.unmap_layer(fold, &chain.layers()[at], &mut gather);
        }
        gather.finish(vm);
        chain.succeeded_by(vm, &successor, entry.start(), entry.end());
        vm.stats.get(&ksync::pin()).collapses.add(gone.len() as u64);
    }

    /// Removes the page-table entries at the addresses where a layer has pages.
    fn unmap_layer<'s, M: Machine>(
        &'s self,
        fold: &Fold<'_, M>,
        layer: &Backing,
        gather: &mut Gather<'s>,
    ) {
        let (mut from, last) = fold.indexes(layer);
        while let Some((first, end)) = resident_run(layer, from, last) {
            let (a, b) = (
                layer.relation().address(first),
                layer.relation().address(end),
            );
            self.pmap()
                .remove_range(fold.vm, a.min(b), a.max(b) + PAGE_SIZE as u64, gather);
            match end.checked_add(1).filter(|&next| next <= last) {
                Some(next) => from = next,
                None => return,
            }
        }
    }
}

/// Whether a chain has so many layers that folding looks at it.
fn is_long<M: Machine>(vm: &Vm<M>, chain: &Chain) -> bool {
    chain.layers().len() > vm.tuning.fault_depth
}

/// First and last index of the next resident pages of a layer, with small gaps between them.
fn resident_run(layer: &Backing, from: u32, last: u32) -> Option<(u32, u32)> {
    const GAP: u32 = 8;
    let first = layer.next_resident(from, last).ok().flatten()?;
    let pin = ksync::pin();
    let object = layer.object(&pin)?;
    let mut end = first;
    for _ in 0..RUN {
        let Some(next) = end.checked_add(1).filter(|&next| next <= last) else {
            break;
        };
        // A gap spans two nodes at most.
        match object.next_resident(next, end.saturating_add(GAP).min(last)) {
            Some((index, _)) => end = index,
            None => break,
        }
    }
    Some((first, end))
}

/// Positions of layers in a chain.
type Layered = SmallVec<[usize; 8]>;

/// Which layer of a chain to look at, and how.
#[derive(Clone, Copy)]
struct Task<'a> {
    at: usize,
    /// Layers above it that are about to leave the chain. They do not count as shadowing: other spaces may have brought
    /// pages up into them since they were looked at.
    gone: &'a [usize],
    /// Whether visible pages are brought up.
    bring: bool,
}

/// The chain of an entry while it is folded. The map's lock is held, so only folding changes the chain.
struct Fold<'a, M: Machine> {
    vm: &'a Vm<M>,
    entry: &'a MapEntry,
    chain: Chain,
    effort: Effort,
}

impl<M: Machine> Fold<'_, M> {
    /// Positions of the layers that may be dropped: all but the front and a file at the end.
    fn old(&self) -> Range<usize> {
        let file = usize::from(self.chain.terminal_file().is_some());
        1..self.chain.layers().len() - file
    }

    /// First and last index of a layer that the entry maps.
    fn indexes(&self, layer: &Backing) -> (u32, u32) {
        let (start, end) = (self.entry.start(), self.entry.end());
        layer.relation().indexes(start, end)
    }

    /// The layers that can be dropped without bringing pages up.
    fn shadowed(&self, left: &mut usize) -> Result<Layered, NoMemory> {
        let mut gone = Layered::new();
        for at in self.old() {
            let task = Task {
                at,
                gone: &gone,
                bring: false,
            };
            if self.perform(task, left)? == Look::Shadowed {
                gone.push(at);
            }
        }
        Ok(gone)
    }

    /// The layer whose visible pages are brought up into the one above it: the one with the fewest pages relative to
    /// the layer above. Of two with the same ratio the older is chosen, because more processes share it. `None` if the
    /// chain may stay as it is.
    ///
    /// No pages are brought up into the front: faults fill it.
    fn choose(&self) -> Option<usize> {
        let layers = self.chain.layers();
        let depth = self.vm.tuning.fork_depth;
        let copies = self.effort == Effort::Bound && layers.len() > depth;
        let mut best: Option<(usize, u64, u64)> = None;
        let Range { start, end } = self.old();
        for (at, layer) in layers.iter().enumerate().take(end).skip(start + 1) {
            let (above, pages) = (self.pages(at - 1).max(1), self.pages(at));
            let fits = copies || pages <= above * MOVE_RATIO && self.may_move(layer);
            let better = best.is_none_or(|(_, p, a)| pages * a <= p * above);
            if fits && better {
                best = Some((at, pages, above));
            }
        }
        best.map(|(at, ..)| at)
    }

    /// Whether the pages of a layer can be brought up without copies, now.
    fn may_move(&self, layer: &Backing) -> bool {
        layer.is_own() && (self.effort == Effort::Bound || !layer.is_in_several())
    }

    /// The approximate number of pages of a layer's object: counted once.
    fn pages(&self, at: usize) -> u64 {
        let layer = &self.chain.layers()[at];
        layer.counted().unwrap_or_else(|| {
            let (mut pages, mut next) = (0, Some(0));
            while let Some(from) = next {
                let pin = ksync::pin();
                let object = layer.object(&pin);
                let (count, more) = object.map_or((0, None), |object| object.count_some(from));
                (pages, next) = (pages + count, more);
            }
            layer.set_counted(pages);
            pages
        })
    }

    /// Finds out whether all pages of a layer are shadowed by younger layers that stay in the chain. If the task says
    /// so, brings up each visible page that it meets, so that it is shadowed. `left` is the number of pages that a step
    /// may still look at; a fork is not bound by it.
    ///
    /// Continues where the last task for the layer ended. That position is only a hint, because other spaces may have
    /// inserted pages below it since; so before the answer is `Shadowed` all pages are looked at, whatever `left` is.
    fn perform(&self, task: Task<'_>, left: &mut usize) -> Result<Look, NoMemory> {
        let layer = &self.chain.layers()[task.at];
        if self.effort == Effort::Step && layer.is_in_several() {
            // The chains that contain the layer share its hint, so their steps would undo each other's progress. A fork
            // does all its work for one chain before it begins the next.
            return Ok(Look::Visible);
        }
        let (first, _) = self.indexes(layer);
        let mut from = layer.fold_hint().max(first);
        let whole = from == first;
        let mut seen = self.pass(task, &mut from, left);
        if !whole && matches!(seen, Ok(Look::Shadowed)) {
            from = first;
            seen = self.pass(task, &mut from, &mut usize::MAX.clone());
        }
        layer.set_fold_hint(from);
        seen
    }

    /// As `perform`, for the pages with indexes `from` and above; ends at the first one that is not shadowed.
    fn pass(&self, task: Task<'_>, from: &mut u32, left: &mut usize) -> Result<Look, NoMemory> {
        while *left > 0 || self.effort == Effort::Bound {
            let pin = ksync::pin();
            let most = if self.effort == Effort::Bound {
                SECTION
            } else {
                SECTION.min(*left)
            };
            if let Some(look) = self.section(&pin, task, from, most)? {
                return Ok(look);
            }
            *left = left.saturating_sub(SECTION);
        }
        Ok(Look::More)
    }

    /// Looks at `most` pages of a pass; `None` if there are more.
    fn section(
        &self,
        pin: &CpuPin,
        task: Task<'_>,
        from: &mut u32,
        most: usize,
    ) -> Result<Option<Look>, NoMemory> {
        let layer = &self.chain.layers()[task.at];
        let Some(object) = layer.object(pin) else {
            return Ok(Some(Look::Visible));
        };
        let (_, last) = self.indexes(layer);
        let own = task.bring && layer.is_own();
        for _ in 0..most {
            let (index, pfn) = match object.next_resident_step(pin, *from, last) {
                Next::Page(index, pfn) => (index, pfn),
                Next::Unseen(next) => {
                    *from = next;
                    return Ok(None);
                }
                Next::End => return Ok(Some(Look::Shadowed)),
            };
            *from = index;
            let look = match self.above(pin, task, layer.relation().address(index)) {
                Look::Visible if task.bring => {
                    self.bring_up(pin, task.at, (object, index, pfn), own)?
                }
                look => look,
            };
            if look != Look::Shadowed {
                return Ok(Some(look));
            }
            // No object has a page with the highest index.
            *from = index + 1;
        }
        Ok(None)
    }

    /// Whether a layer above that stays in the chain has a page at `va`.
    fn above(&self, pin: &CpuPin, task: Task<'_>, va: u64) -> Look {
        for (at, layer) in self.chain.layers()[..task.at].iter().enumerate() {
            if task.gone.contains(&at) {
                continue;
            }
            let Some(object) = layer.object(pin) else {
                return Look::Busy;
            };
            let index = layer.index(va);
            if let Some(pfn) = object.lookup(pin, index) {
                // A fault that has inserted a page may still remove it, as long as it holds it busy.
                let stays = object.holds(self.vm.pages.get(pfn), index);
                return if stays { Look::Shadowed } else { Look::Busy };
            }
        }
        Look::Visible
    }

    /// Puts the page that the layer at `at` has at an index, and that no younger layer has, into the layer above it:
    /// `Shadowed` if it is there now, `Busy` if the source is held busy or the slot was taken meanwhile. Moves it if `own`.
    ///
    /// All spaces that share the layer above see the same contents as before: it was put in front of this layer, and
    /// neither it nor a layer above has a page there.
    fn bring_up(
        &self,
        pin: &CpuPin,
        at: usize,
        (object, index, pfn): (&Object, u32, Pfn),
        own: bool,
    ) -> Result<Look, NoMemory> {
        let target = &self.chain.layers()[at - 1];
        let va = self.chain.layers()[at].relation().address(index);
        let to_index = target.index(va);
        let Some(to) = target.object(pin) else {
            return Ok(Look::Busy);
        };
        let page = self.vm.pages.get(pfn);
        let done = if own {
            let Some(busy) = page.try_hard_busy() else {
                return Ok(Look::Busy);
            };
            // The map's lock is held, so both layers stay with this space.
            page.is(object.identity(), index)
                && object.move_page(self.vm, pin, (index, pfn, &busy), (to, to_index), || true)?
        } else {
            // The source is held busy so that it cannot move: once the other spaces that share the layer have ended, a
            // write fault may move the page to the front and then write to it.
            let Some(_busy) = page.try_soft_busy() else {
                return Ok(Look::Busy);
            };
            if !page.is(object.identity(), index) {
                return Ok(Look::Busy);
            }
            let copy = self.vm.alloc.alloc(pin, Rights::User)?;
            copy_frame(&self.vm.machine, copy, pfn);
            let inserted = to.insert(self.vm, pin, to_index, copy, Flags::DIRTY)?;
            self.vm.stats.get(pin).fold_copy.add(1);
            matches!(inserted, Insert::Done(_))
        };
        if done {
            target.count_another();
        }
        Ok(if done { Look::Shadowed } else { Look::Busy })
    }
}

impl MapEntry {
    /// Whether the chain has [`hard_depth`](crate::Tuning::hard_depth) layers, so that it may not get another one.
    pub(super) fn is_full<M: Machine>(&self, vm: &Vm<M>) -> bool {
        let pin = ksync::pin();
        self.chain(&pin)
            .is_some_and(|chain| chain.layers().len() >= vm.tuning.hard_depth)
    }
}
