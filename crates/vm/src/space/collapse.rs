//! Folding long chains.
//!
//! Guarantee: whatever forks a program makes, and however many of its children live, no chain has more than
//! [`COPY_DEPTH`] + 1 layers while there is memory, and never more than [`HARD_DEPTH`]. Folding changes what no process sees,
//! and what was done of it stays done: a fork inherits it.
//!
//! Mechanism: a layer behind the front leaves a chain when each of its pages, in the range of the entry, has a page of a
//! younger layer above it. Where forks have nothing else written in between, that happens by itself, and nothing is
//! copied. Otherwise its visible pages are brought up into the next younger layer first: moved if nobody else can see the
//! layer, else copied. The younger layer may be shared with any number of processes: all of them see at these places what
//! is copied there, and find the older layer shadowed in their turn, so that one copy serves them all. Which layer is brought up
//! is chosen by size, so that a page is copied a logarithmic number of times at most, and a large old layer, like a file, never
//! for the sake of a few young pages. `doc/vm.md` has the bounds and the time lines.

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

/// A layer of our own is brought up without need if it has at most so many times the pages of the layer that takes them.
const MOVE_RATIO: u64 = 4;

/// Most pages whose entries are taken out in one go.
const RUN: usize = 256;

/// Pages dealt with under one pin.
const SECTION: usize = 16;

/// How much a fold may cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// One step that copies nothing and waits for nothing.
    Step,
    /// What it takes to keep the bound.
    Bound,
}

/// What came of looking at a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    /// All its pages are shadowed.
    Shadowed,
    /// The next one is visible.
    Visible,
    /// Somebody holds the next one, or one above it.
    Busy,
    /// The step is over.
    More,
}

impl Space {
    /// One folding step for each entry with a long chain; nothing is copied. Returns whether there is more to do.
    pub fn maintain<M: Machine>(&self, vm: &Vm<M>) -> bool {
        let (mut more, mut at) = (false, 0);
        loop {
            let map = self.lock();
            let Some(entry) = map.tree().first_ending_above(at) else {
                return more;
            };
            at = entry.end();
            // Nothing is copied, so memory can be short for nodes at most.
            more |= self.fold(vm, &entry, Effort::Step).unwrap_or(false);
        }
    }

    /// Folds the chain of a private entry, if it is long. The map's lock is held. Returns whether there is more to do.
    ///
    /// # Errors
    /// No memory for copies. What was done stays done.
    pub(crate) fn fold<M: Machine>(
        &self,
        vm: &Vm<M>,
        entry: &MapEntry,
        effort: Effort,
    ) -> Result<bool, NoMemory> {
        // Asked once: what goes, or is brought up, leaves every page shadowed that was, and no other.
        let (mut left, mut asked) = (vm.tuning.fold_step, false);
        loop {
            let chain = {
                let pin = ksync::pin();
                entry.chain(&pin).map(Chain::view)
            };
            let Some(chain) = chain.filter(|chain| chain.layers().len() > vm.tuning.fault_depth)
            else {
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
            match fold.look(task, &mut left)? {
                Look::Shadowed => self.drop_layers(&fold, &[source]),
                // Holders are pinned, or copying.
                Look::Busy if effort == Effort::Bound => doze(),
                Look::Busy | Look::More | Look::Visible => return Ok(true),
            }
        }
    }

    /// Publishes the chain without the layers at `gone`, each page of which is shadowed.
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
        // The chain before the state: a fault that sees the new state sees the new chain.
        // One with the old chain starts again: relatives may put pages into a layer that has gone, which no scan looks for here.
        entry.set_chain(vm, Some(new));
        entry.renew();
        // A fault that entered a page of the layers has seen the old state, so what it found is seen here.
        fence(SeqCst);
        let mut gather = Gather::new();
        for &at in gone {
            self.unmap_layer(fold, &chain.layers()[at], &mut gather);
        }
        gather.finish(vm);
        chain.succeeded_by(vm, &successor, entry.start(), entry.end());
        vm.stats.get(&ksync::pin()).collapses.add(gone.len() as u64);
    }

    /// Takes the page-table entries out at the places where a layer has pages.
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

/// First and last index of the next pages of a layer that lie close to each other.
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
        // A gap lies in two nodes at most.
        match object.next_resident(next, end.saturating_add(GAP).min(last)) {
            Some((index, _)) => end = index,
            None => break,
        }
    }
    Some((first, end))
}

/// Positions of layers in a chain.
type Layered = SmallVec<[usize; 8]>;

/// A look at the layer at a position of a chain.
#[derive(Clone, Copy)]
struct Task<'a> {
    at: usize,
    /// Layers above it that are about to go. They shadow nothing: others may have brought pages up into them since
    /// they were looked at.
    gone: &'a [usize],
    /// Pages that are visible are to be brought up.
    bring: bool,
}

/// The chain of an entry while it is folded: nothing but folding changes it, for the map's lock is held.
struct Fold<'a, M: Machine> {
    vm: &'a Vm<M>,
    entry: &'a MapEntry,
    chain: Chain,
    effort: Effort,
}

impl<M: Machine> Fold<'_, M> {
    /// Positions of the layers that may go: neither the front, nor a file.
    fn old(&self) -> Range<usize> {
        let file = usize::from(self.chain.terminal_file().is_some());
        1..self.chain.layers().len() - file
    }

    /// First and last index of a layer that the entry reaches.
    fn indexes(&self, layer: &Backing) -> (u32, u32) {
        let (start, end) = (self.entry.start(), self.entry.end());
        layer.relation().indexes(start, end)
    }

    /// The layers that may go at once.
    fn shadowed(&self, left: &mut usize) -> Result<Layered, NoMemory> {
        let mut gone = Layered::new();
        for at in self.old() {
            let task = Task {
                at,
                gone: &gone,
                bring: false,
            };
            if self.look(task, left)? == Look::Shadowed {
                gone.push(at);
            }
        }
        Ok(gone)
    }

    /// The layer whose visible pages are to be brought up into the one above it: that with the fewest pages for
    /// those of the other; the older of two that are alike, for more processes share it. `None` if the chain may stay as
    /// it is.
    ///
    /// The front takes none: faults fill it.
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

    /// The pages of a layer's object, about: counted once.
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

    /// Whether all pages of a layer are shadowed, by younger ones that stay.
    ///
    /// It goes on where the last look at the layer ended. That is a hint, for others may have put pages there since, so
    /// before the answer is yes all of them are looked at.
    fn look(&self, task: Task<'_>, left: &mut usize) -> Result<Look, NoMemory> {
        let layer = &self.chain.layers()[task.at];
        if self.effort == Effort::Step && layer.is_in_several() {
            // The hint may be another chain's. A fork makes no steps.
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

    /// `look` at the pages with indexes `from` and above; the first that is not shadowed ends it.
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

    /// `most` pages of a pass: `None` if there is more.
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

    /// Whether a layer above, that stays, has a page at `va`.
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
                // A page that a fault has put there may still be taken back, as long as it is busy.
                let stays = object.holds(self.vm.pages.get(pfn), index);
                return if stays { Look::Shadowed } else { Look::Busy };
            }
        }
        Look::Visible
    }

    /// Puts the page that the layer at `at` has at an index, and no younger one has, into the layer above it.
    ///
    /// All that share that layer see the same there: no layer above has a page, so it is what the layer was put in
    /// front of.
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
            // The map's lock is held: both layers stay this space's.
            page.is(object.identity(), index)
                && object.move_page(self.vm, pin, (index, pfn, &busy), (to, to_index), || true)?
        } else {
            // Busy, the page stays where it is: once the others that share the layer are gone, a fault may move it to the
            // front, where it is written to.
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
    /// Whether the chain has so many layers that it may not get another one.
    pub(super) fn is_full<M: Machine>(&self, vm: &Vm<M>) -> bool {
        let pin = ksync::pin();
        self.chain(&pin)
            .is_some_and(|chain| chain.layers().len() >= vm.tuning.hard_depth)
    }
}
