//! Folding long chains.
//!
//! A chain that fork after fork made longer than five layers is folded: the pages of the anonymous layers behind the
//! front come to the front, moved where nobody else can see them, else copied; then those layers go. A terminal
//! file stays where it is, for its pages cost nothing. Never done inside fork; a step is bounded, and the cursor
//! that it leaves in the entry stays right until the entry gets another front, for layers behind a front are frozen.

use rust_alloc::sync::Arc;
use smallvec::SmallVec;

use super::Space;
use super::edit::Locked;
use crate::alloc::{NoMemory, Rights};
use crate::backing::{Backing, Chain, Layers};
use crate::fault::MAX_DEPTH;
use crate::map::{Extent, MapEntry};
use crate::object::{Insert, unbusy};
use crate::page::{Flags, PAGE_SIZE, Pfn, copy_frame};
use crate::tlb::Gather;
use crate::{Machine, Vm};

/// Addresses that one step looks at.
const STEP: usize = 256;

impl Space {
    /// Does bounded work that makes later faults and forks cheaper: one folding step for each entry with a long chain.
    /// Returns whether there is more to do.
    pub fn maintain<M: Machine>(&self, vm: &Vm<M>) -> bool {
        let mut more = false;
        let mut at = 0;
        loop {
            let mut map = self.lock();
            let Some(entry) = map.tree().first_ending_above(at) else {
                return more;
            };
            at = entry.end();
            let long = {
                let pin = ksync::pin();
                entry
                    .chain(&pin)
                    .is_some_and(|chain| chain.layers().len() > MAX_DEPTH)
            };
            if long && !entry.is_shared() && !entry.state().needs_copy() {
                more |= !self.collapse(vm, &mut map, &entry).unwrap_or(true);
            }
        }
    }

    /// One step for an entry whose front is ours. Returns whether the chain is folded.
    pub(crate) fn collapse<M: Machine>(
        &self,
        vm: &Vm<M>,
        _map: &mut Locked<'_>,
        entry: &MapEntry,
    ) -> Result<bool, NoMemory> {
        let chain = {
            let pin = ksync::pin();
            entry.chain(&pin).map(Chain::view)
        };
        let Some(chain) = chain else { return Ok(true) };
        let file = chain.terminal_file();
        let old = &chain.layers()[1..chain.layers().len() - usize::from(file.is_some())];
        let (mut va, end) = (entry.collapsed(), entry.end());
        let heads = old.iter().map(|layer| next_page(layer, va, end));
        // Each layer's next page; each is asked again only once that was dealt with.
        let mut heads: SmallVec<[Option<u64>; 8]> = heads.collect();
        for _ in 0..STEP {
            let Some(next) = heads.iter().flatten().copied().min() else {
                self.drop_layers(vm, entry, &chain, file);
                return Ok(true);
            };
            va = next;
            if !bring_forward(vm, chain.front(), old, va)? {
                // Somebody holds the page: the next step goes on here.
                break;
            }
            va += PAGE_SIZE as u64;
            for (head, layer) in heads.iter_mut().zip(old) {
                if *head == Some(next) {
                    *head = next_page(layer, va, end);
                }
            }
        }
        entry.set_collapsed(va);
        Ok(false)
    }

    /// Replaces the chain by its front and terminal file.
    fn drop_layers<M: Machine>(
        &self,
        vm: &Vm<M>,
        entry: &MapEntry,
        chain: &Chain,
        file: Option<&Arc<Backing>>,
    ) {
        let mut layers = Layers::new();
        layers.push(chain.front().clone());
        layers.extend(file.cloned());
        let new = Chain::new(layers);
        let successor = new.view();
        entry.set_chain(vm, Some(new));
        // Faults that saw the old chain start again.
        entry.set_needs_copy(false);
        let mut gather = Gather::new();
        self.pmap()
            .remove_range(vm, entry.start(), entry.end(), &mut gather);
        gather.finish(vm);
        chain.succeeded_by(vm, &successor, entry.start(), entry.end());
        vm.stats.get(&ksync::pin()).collapses.add(1);
        entry.set_collapsed(entry.start());
    }
}

/// The first address at or above `va` at which the layer has a page.
fn next_page(layer: &Backing, va: u64, end: u64) -> Option<u64> {
    if va >= end {
        return None;
    }
    let pin = ksync::pin();
    let object = layer.object(&pin)?;
    let (mut from, last) = layer.relation().indexes(va, end);
    if !layer.relation().is_down() {
        let (index, _) = object.next_resident(from, last)?;
        return Some(layer.relation().address(index));
    }
    // Indexes fall as addresses rise, so the highest is wanted. Such ranges are stacks, and hold little.
    let mut lowest = None;
    while let Some((index, _)) = object.next_resident(from, last) {
        lowest = Some(layer.relation().address(index));
        from = match index.checked_add(1) {
            Some(next) if next <= last => next,
            _ => break,
        };
    }
    lowest
}

/// Brings the page that a fault at `va` would find in `old` to the front, unless the front has one. False if it must be
/// tried again.
fn bring_forward<M: Machine>(
    vm: &Vm<M>,
    front: &Arc<Backing>,
    old: &[Arc<Backing>],
    va: u64,
) -> Result<bool, NoMemory> {
    let pin = ksync::pin();
    let to_index = front.index(va);
    let Some(to) = front.object(&pin) else {
        return Ok(true);
    };
    if let Some(pfn) = to.lookup(to_index) {
        // A page that a fault has put there may still be taken back, as long as it is busy.
        return Ok(to.holds(vm.pages.get(pfn), to_index));
    }
    for layer in old {
        let Some(from) = layer.object(&pin) else {
            return Ok(true);
        };
        let index = layer.index(va);
        let Some(pfn) = from.lookup(index) else {
            continue;
        };
        let page = vm.pages.get(pfn);
        if layer.is_own() {
            if !page.try_hard_busy() {
                return Ok(false);
            }
            let moved = page.is(from.identity(), index)
                && from.move_page(vm, &pin, (index, pfn), to, to_index)?;
            unbusy(vm, page);
            return Ok(moved);
        }
        if !from.holds(page, index) {
            return Ok(false);
        }
        let copy: Pfn = vm.alloc.alloc(&pin, Rights::User)?;
        copy_frame(&vm.machine, copy, pfn);
        let inserted = to.insert(vm, &pin, to_index, copy, Flags::DIRTY)? == Insert::Done;
        if inserted {
            unbusy(vm, vm.pages.get(copy));
        }
        return Ok(inserted);
    }
    Ok(true)
}
