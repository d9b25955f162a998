//! Index → frame number of an object.
//!
//! Guarantee: lookups and insertions take no lock and never see a page at a wrong index; a slot changes from empty to
//! a page, or from a page to empty, by one compare-and-swap.
//!
//! Mechanism: the first four slots lie in the object, the others in 64-way nodes. An index belongs to the tree whose
//! height is its number of base-64 digits, so a growing object adds trees and never moves a node. Nodes are set once
//! and go with the object: a looker needs no protection beyond the object itself.

use ksync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use ksync::{CpuPin, Once};
use rust_alloc::boxed::Box;
use rust_alloc::vec::Vec;

use crate::alloc::NoMemory;
use crate::page::Pfn;

const DIGIT: u32 = 6;
const FAN: usize = 1 << DIGIT;
/// Digits of a 32-bit index.
const HEIGHTS: usize = 6;
const INLINE: usize = 4;
const EMPTY: u32 = u32::MAX;

/// Leaves that one step of a walk looks at, or of the end of an object frees: bounds the time with preemption off.
const STEP: usize = 128;

/// What a step of a walk over the resident pages came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// The next page.
    Page(u32, Pfn),
    /// None so far; go on here.
    Unseen(u32),
    /// There is none.
    End,
}

/// Set once. Whoever sets it is pinned, so that others wait for a few instructions at most.
type Link = Once<Node>;

enum Node {
    Inner(Box<[Link; FAN]>),
    Leaf(Box<[Slot; FAN]>),
}

impl Node {
    fn new(height: usize) -> Result<Node, NoMemory> {
        Ok(if height == 0 {
            Node::Leaf(filled(Slot::new)?)
        } else {
            Node::Inner(filled(Link::new)?)
        })
    }
}

/// An array on the heap.
fn filled<T>(make: fn() -> T) -> Result<Box<[T; FAN]>, NoMemory> {
    let mut items = Vec::new();
    items.try_reserve_exact(FAN).map_err(|_| NoMemory)?;
    items.resize_with(FAN, make);
    items.into_boxed_slice().try_into().map_err(|_| NoMemory)
}

/// The place of one page.
pub(crate) struct Slot(AtomicU32);

impl Slot {
    fn new() -> Slot {
        Slot(AtomicU32::new(EMPTY))
    }

    /// The page in it: a hint, as for [`Object::lookup`](super::Object::lookup).
    #[inline(always)]
    pub(crate) fn page(&self) -> Option<Pfn> {
        match self.0.load(Acquire) {
            EMPTY => None,
            n => Some(Pfn(n)),
        }
    }

    /// Puts a page in if it is empty, and makes a full fence: what the caller then reads is not older than the page is here, and what
    /// was done before the slot was emptied is done.
    #[inline(always)]
    pub(super) fn put(&self, pfn: Pfn) -> bool {
        let done = self
            .0
            .compare_exchange(EMPTY, pfn.0, Release, Relaxed)
            .is_ok();
        ksync::fence_after_rmw();
        done
    }

    /// Empties it if it holds `pfn`, whose translations are gone: who finds the slot empty may put another page there.
    #[inline(always)]
    pub(super) fn take(&self, pfn: Pfn) -> bool {
        self.0
            .compare_exchange(pfn.0, EMPTY, Release, Relaxed)
            .is_ok()
    }
}

/// The slots of one object.
pub(super) struct Slots {
    inline: [Slot; INLINE],
    roots: [Link; HEIGHTS],
}

#[inline(always)]
fn height_of(index: u32) -> usize {
    // Spelt out for the sizes that occur: a division costs more than the rest of a lookup.
    match index {
        0..0x40 => 0,
        0x40..0x1000 => 1,
        0x1000..0x4_0000 => 2,
        0x4_0000..0x100_0000 => 3,
        0x100_0000..0x4000_0000 => 4,
        _ => 5,
    }
}

#[inline(always)]
fn digit(index: u32, height: usize) -> usize {
    (index >> (DIGIT * height as u32)) as usize & (FAN - 1)
}

impl Slots {
    pub(super) fn new() -> Slots {
        Slots {
            inline: core::array::from_fn(|_| Slot::new()),
            roots: core::array::from_fn(|_| Link::new()),
        }
    }

    /// The slot of `index`, if the nodes that lead to it are there.
    #[inline(always)]
    pub(super) fn slot(&self, index: u32) -> Option<&Slot> {
        self.run(index)?.first()
    }

    /// The slot of `index` and those that follow it in its node, if the nodes that lead there are.
    #[inline(always)]
    pub(super) fn run(&self, index: u32) -> Option<&[Slot]> {
        if index < INLINE as u32 {
            return self.inline.get(index as usize..);
        }
        let mut height = height_of(index);
        let mut node = self.roots[height].get()?;
        loop {
            match node {
                Node::Leaf(slots) => return slots.get(digit(index, 0)..),
                Node::Inner(nodes) => node = nodes[digit(index, height)].get()?,
            }
            height -= 1;
        }
    }

    /// The slot of `index`, with the nodes that lead to it made where missing.
    #[inline(never)]
    pub(super) fn make_slot(&self, pin: &CpuPin, index: u32) -> Result<&Slot, NoMemory> {
        if let Some(slot) = self.inline.get(index as usize) {
            return Ok(slot);
        }
        let mut height = height_of(index);
        let mut node = made(pin, &self.roots[height], height)?;
        loop {
            match node {
                Node::Leaf(slots) => return Ok(&slots[digit(index, 0)]),
                Node::Inner(nodes) => node = made(pin, &nodes[digit(index, height)], height - 1)?,
            }
            height -= 1;
        }
    }

    /// The page at `index`. A hint until the page is busied and its identity checked.
    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<Pfn> {
        self.slot(index)?.page()
    }

    /// Puts a page into an empty slot; `Ok(false)` if the slot was taken. A full fence follows.
    pub(super) fn insert(&self, pin: &CpuPin, index: u32, pfn: Pfn) -> Result<bool, NoMemory> {
        Ok(self.make_slot(pin, index)?.put(pfn))
    }

    /// Empties the slot if it holds `pfn`.
    pub(super) fn remove(&self, index: u32, pfn: Pfn) -> bool {
        self.slot(index).is_some_and(|slot| slot.take(pfn))
    }

    /// Number of pages, counted slot by slot.
    pub(super) fn count(&self) -> u64 {
        let roots = self.roots.iter().filter_map(Once::get);
        count_resident(&self.inline) + roots.map(count).sum::<u64>()
    }

    /// Counts the pages of one node from `from` on; where to go on, if there is more.
    pub(super) fn count_some(&self, from: u32) -> (u64, Option<u32>) {
        let first = match self.next_step(from, u32::MAX) {
            Next::Page(first, _) => first,
            Next::Unseen(next) => return (0, Some(next)),
            Next::End => return (0, None),
        };
        let run = self.run(first).unwrap_or_default();
        (count_resident(run), first.checked_add(run.len() as u32))
    }

    /// The first resident index in `from..=last`, with its page. Takes as long as there are nodes without pages.
    pub(super) fn next(&self, from: u32, last: u32) -> Option<(u32, Pfn)> {
        let mut at = from;
        loop {
            match self.next_step(at, last) {
                Next::Page(index, pfn) => return Some((index, pfn)),
                Next::Unseen(next) => at = next,
                Next::End => return None,
            }
        }
    }

    /// As `next`, over so many nodes as one may look at with preemption off.
    pub(super) fn next_step(&self, from: u32, last: u32) -> Next {
        let (mut at, mut leaves) = (from, STEP);
        while at <= last {
            if at < INLINE as u32 {
                match self.get(at) {
                    Some(pfn) => return Next::Page(at, pfn),
                    None => at += 1,
                }
                continue;
            }
            let height = height_of(at);
            let behind = Err(64_u64.pow(height as u32 + 1));
            let root = self.roots[height].get();
            match root.map_or(behind, |n| scan(n, height, at, &mut leaves)) {
                Ok((found, pfn)) if found <= last => return Next::Page(found, pfn),
                Err(next) if next <= u64::from(last) => at = next as u32,
                _ => return Next::End,
            }
            if leaves == 0 {
                return Next::Unseen(at);
            }
        }
        Next::End
    }

    /// Frees some of the nodes, when nobody looks any more; returns whether there are others.
    pub(super) fn free_part(&mut self) -> bool {
        let mut leaves = STEP;
        self.roots.iter_mut().any(|root| !free(root, &mut leaves))
    }
}

fn made<'a>(_pin: &CpuPin, slot: &'a Link, height: usize) -> Result<&'a Node, NoMemory> {
    if let Some(node) = slot.get() {
        return Ok(node);
    }
    // Another CPU may be faster; then its node serves.
    drop(slot.set(Node::new(height)?));
    loop {
        if let Some(node) = slot.get() {
            return Ok(node);
        }
        ksync::relax();
    }
}

fn count_resident(slots: &[Slot]) -> u64 {
    slots
        .iter()
        .map(|slot| u64::from(slot.page().is_some()))
        .sum()
}

fn count(node: &Node) -> u64 {
    match node {
        Node::Leaf(slots) => count_resident(&slots[..]),
        Node::Inner(nodes) => nodes.iter().filter_map(Once::get).map(count).sum(),
    }
}

/// Frees a subtree, as far as `leaves` reaches; returns whether all of it is gone.
fn free(link: &mut Link, leaves: &mut usize) -> bool {
    if *leaves == 0 {
        return link.get().is_none();
    }
    match link.get_mut() {
        Some(Node::Inner(nodes)) => {
            if !nodes.iter_mut().all(|node| free(node, leaves)) {
                return false;
            }
        }
        Some(Node::Leaf(slots)) => {
            debug_assert!(
                count_resident(&slots[..]) == 0,
                "an object ends with pages in it"
            );
            *leaves -= 1;
        }
        None => return true,
    }
    drop(link.take());
    true
}

/// The first page at or after `at` in the subtree that holds `at`, else the first index behind what was looked at: that
/// subtree, or a part of it if `leaves` are used up.
fn scan(node: &Node, height: usize, at: u32, leaves: &mut usize) -> Result<(u32, Pfn), u64> {
    let span = 1_u64 << (DIGIT * height as u32);
    let base = u64::from(at) & !(span * FAN as u64 - 1);
    let first = digit(at, height);
    let nodes = match node {
        Node::Leaf(slots) => {
            let resident = |(n, slot): (usize, &Slot)| {
                let pfn = slot.page()?;
                Some(((base + (first + n) as u64) as u32, pfn))
            };
            *leaves -= 1;
            let mut from = slots[first..].iter().enumerate();
            return from.find_map(resident).ok_or(base + FAN as u64);
        }
        Node::Inner(nodes) => nodes,
    };
    let mut at = at;
    for d in first..FAN {
        let below = nodes[d].get().map(|n| scan(n, height - 1, at, leaves));
        if let Some(Ok(found)) = below {
            return Ok(found);
        }
        let behind = base + (d as u64 + 1) * span;
        if *leaves == 0 {
            return below.unwrap_or(Err(behind));
        }
        if behind > u64::from(u32::MAX) {
            return Err(behind);
        }
        at = behind as u32;
    }
    Err(base + span * FAN as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_of_every_size_are_found_in_order() {
        let slots = Slots::new();
        let at = [
            0,
            3,
            4,
            63,
            64,
            65,
            4095,
            4096,
            4097,
            262_143,
            262_144,
            1 << 24,
            1 << 30,
            u32::MAX - 1,
            u32::MAX,
        ];
        for (n, &i) in at.iter().enumerate() {
            assert!(slots.get(i).is_none());
            assert!(slots.insert(&ksync::pin(), i, Pfn(n as u32)).unwrap());
            assert!(!slots.insert(&ksync::pin(), i, Pfn(77)).unwrap());
            assert_eq!(slots.get(i), Some(Pfn(n as u32)));
        }
        let mut from = 0;
        for (n, &i) in at.iter().enumerate() {
            assert_eq!(slots.next(from, u32::MAX), Some((i, Pfn(n as u32))));
            from = i.wrapping_add(1);
        }
        assert_eq!(slots.count(), at.len() as u64);
        assert_eq!(slots.next(66, 4094), None);
        assert!(!slots.remove(64, Pfn(0)));
        assert!(slots.remove(64, Pfn(4)));
        assert_eq!(slots.next(64, u32::MAX), Some((65, Pfn(5))));
    }

    /// Pages come and go, their nodes stay: a walk over these takes steps, and so does their end.
    #[test]
    fn a_walk_over_empty_nodes_takes_steps() {
        let mut slots = Slots::new();
        let (nodes, last) = (10 * STEP as u32, 0x10_0000);
        for node in 1..=nodes {
            assert!(
                slots
                    .insert(&ksync::pin(), node << DIGIT, Pfn(node))
                    .unwrap()
            );
            assert!(slots.remove(node << DIGIT, Pfn(node)));
        }
        assert!(slots.insert(&ksync::pin(), last, Pfn(1)).unwrap());
        let (mut at, mut steps) = (0, 1);
        let found = loop {
            match slots.next_step(at, u32::MAX) {
                Next::Unseen(next) => {
                    assert!(
                        next > at && next - at <= (STEP as u32 + 2) << DIGIT,
                        "{at} {next}"
                    );
                    (at, steps) = (next, steps + 1);
                }
                found => break found,
            }
        };
        assert_eq!((found, steps), (Next::Page(last, Pfn(1)), 11));
        assert_eq!(slots.next(0, last - 1), None);
        assert!(slots.remove(last, Pfn(1)));
        let parts = 1 + std::iter::from_fn(|| slots.free_part().then_some(())).count();
        assert_eq!((parts, slots.next(0, u32::MAX)), (11, None));
    }
}
