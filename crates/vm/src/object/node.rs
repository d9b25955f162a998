//! The nodes of an object's index: 64 slots, or 64 links to nodes that are one lower.
//!
//! Guarantee: a node goes only when it is empty, and nothing is put into one that goes. A lookup, which holds a pin, finds
//! the page or that there was none at some moment since it began.
//!
//! Mechanism: whoever empties a slot or a link tries to close all that its node has, by [`close_all`]. A node that is closed
//! as a whole is unlinked and retired under the epoch.
//! `doc/vm.md` has the time line.

use core::array;

use ksync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use ksync::{CpuPin, Epoch, EpochLink, Part, close_all, try_box};

use crate::alloc::NoMemory;
use crate::page::Pfn;

pub(super) const DIGIT: u32 = 6;
pub(super) const FAN: usize = 1 << DIGIT;
const EMPTY: u32 = u32::MAX;
/// No page comes here: the node goes.
const CLOSED: u32 = EMPTY - 1;

/// The place of one page.
pub(crate) struct Slot(AtomicU32);

impl Slot {
    pub(super) fn new() -> Slot {
        Slot(AtomicU32::new(EMPTY))
    }

    /// The page in it: a hint, as for [`Object::lookup`](super::Object::lookup).
    #[inline(always)]
    pub(crate) fn page(&self) -> Option<Pfn> {
        let n = self.0.load(Acquire);
        (n < CLOSED).then_some(Pfn(n))
    }

    /// Puts a page in if it is empty, and makes a full fence: what the caller then reads is not older than the page is
    /// here, and what was done before the slot was emptied is done.
    #[inline(always)]
    pub(super) fn put(&self, pfn: Pfn) -> bool {
        let done = self
            .0
            .compare_exchange(EMPTY, pfn.0, Release, Relaxed)
            .is_ok();
        ksync::fence_after_rmw();
        if !done {
            self.give_way();
        }
        done
    }

    /// After a page did not come in: where the node is about to go, lets the CPU go on that sees to it.
    #[cold]
    fn give_way(&self) {
        if self.0.load(Relaxed) == CLOSED {
            ksync::relax();
        }
    }

    /// Empties it if it holds `pfn`, whose translations are gone: who finds the slot empty may put another page there.
    #[inline(always)]
    pub(super) fn take(&self, pfn: Pfn) -> bool {
        self.0
            .compare_exchange(pfn.0, EMPTY, Release, Relaxed)
            .is_ok()
    }
}

impl Part for Slot {
    fn is_empty(&self) -> bool {
        self.0.load(Relaxed) == EMPTY
    }

    fn close(&self) -> bool {
        // Acquire: what was done before it was emptied comes before the node goes, and another in its stead is filled.
        self.0
            .compare_exchange(EMPTY, CLOSED, Acquire, Relaxed)
            .is_ok()
    }

    fn open(&self) {
        // A read-modify-write: who puts a page in still sees what was done before the slot was emptied.
        self.0.swap(EMPTY, Relaxed);
    }
}

/// Where an operation is, and under which protection.
#[derive(Clone, Copy)]
pub(super) struct At<'p> {
    pub pin: &'p CpuPin,
    pub index: u32,
}

/// What a walk found: the first page, or the index to go on at.
pub(super) type Scanned = Result<(u32, Pfn), u64>;

/// A node: its height and all below it is known by its type, so that a lookup is as many loads as the index has digits.
pub(super) trait Node: Send + Sync + Sized + 'static {
    const HEIGHT: u32;

    fn new() -> Self;

    /// The slot of an index and those that follow it in its node, if it is there.
    fn run<'p>(&'p self, at: At<'p>) -> Option<&'p [Slot]>;

    /// The slot of an index, with the nodes that lead to it made where missing. None where one is about to go.
    fn make<'p>(&'p self, at: At<'p>) -> Result<Option<&'p Slot>, NoMemory>;

    /// The first page from an index of the node on, else the first index behind what was looked at: the node, or a part of
    /// it if `leaves` are used up.
    fn scan(&self, at: At<'_>, leaves: &mut usize) -> Scanned;

    /// Unlinks what is empty on the way to an index below; returns whether all parts were empty then, and are closed.
    fn prune(&self, epoch: &Epoch, at: At<'_>) -> bool;

    /// How many nodes there are, with this one.
    fn nodes(&self, pin: &CpuPin) -> usize;

    /// Frees what is below, when nobody looks any more, as far as `leaves` reaches; returns whether all of it is gone.
    fn free(&mut self, leaves: &mut usize) -> bool;

    /// Which part of the node an index lies in.
    #[inline(always)]
    fn digit(index: u32) -> usize {
        (index >> (DIGIT * Self::HEIGHT)) as usize & (FAN - 1)
    }
}

/// The lowest nodes.
pub(super) type Leaf = [Slot; FAN];

impl Node for Leaf {
    const HEIGHT: u32 = 0;

    fn new() -> Leaf {
        array::from_fn(|_| Slot::new())
    }

    #[inline(always)]
    fn run<'p>(&'p self, at: At<'p>) -> Option<&'p [Slot]> {
        self.get(Leaf::digit(at.index)..)
    }

    fn make<'p>(&'p self, at: At<'p>) -> Result<Option<&'p Slot>, NoMemory> {
        Ok(self.get(Leaf::digit(at.index)))
    }

    fn scan(&self, at: At<'_>, leaves: &mut usize) -> Scanned {
        let (first, base) = (
            Leaf::digit(at.index),
            u64::from(at.index) & !(FAN as u64 - 1),
        );
        *leaves -= 1;
        self[first..]
            .iter()
            .enumerate()
            .find_map(|(n, slot)| Some(((base + (first + n) as u64) as u32, slot.page()?)))
            .ok_or(base + FAN as u64)
    }

    fn prune(&self, _epoch: &Epoch, at: At<'_>) -> bool {
        close_all(self, Leaf::digit(at.index))
    }

    fn nodes(&self, _pin: &CpuPin) -> usize {
        1
    }

    fn free(&mut self, leaves: &mut usize) -> bool {
        debug_assert!(
            self.iter().all(|slot| slot.page().is_none()),
            "an object ends with pages in it"
        );
        *leaves -= 1;
        true
    }
}

/// The target of a link, made if there is none. None where the link is in a node that is about to go.
fn target<'p, N: Node>(link: &'p EpochLink<N>, at: At<'p>) -> Result<Option<&'p N>, NoMemory> {
    match link.load(at.pin) {
        Some(node) => Ok(Some(node)),
        // Another CPU may be faster; then its node serves.
        None => Ok(link.load_or_set(at.pin, try_box(N::new()).map_err(|_| NoMemory)?)),
    }
}

/// The slot of an index below a link, as [`Node::make`].
pub(super) fn make<'p, N: Node>(
    link: &'p EpochLink<N>,
    at: At<'p>,
) -> Result<Option<&'p Slot>, NoMemory> {
    target(link, at)?.map_or(Ok(None), |node| node.make(at))
}

/// Unlinks what is empty on the way to an index below a link; returns whether the target itself went.
pub(super) fn prune<N: Node>(link: &EpochLink<N>, epoch: &Epoch, at: At<'_>) -> bool {
    // Gone already, or never made for want of memory: the node above may be empty.
    let Some(node) = link.load(at.pin) else {
        return true;
    };
    let empty = node.prune(epoch, at);
    if empty {
        link.unlink(epoch, at.pin, node);
    }
    empty
}

/// Frees what is below a link, as [`Node::free`].
#[inline(always)]
pub(super) fn free<N: Node>(link: &mut EpochLink<N>, leaves: &mut usize) -> bool {
    let Some(node) = link.get_mut() else {
        return true;
    };
    let whole = *leaves > 0 && node.free(leaves);
    if whole {
        drop(link.take());
    }
    whole
}

/// Nodes above others.
pub(super) type Inner<N> = [EpochLink<N>; FAN];

impl<N: Node> Node for Inner<N> {
    const HEIGHT: u32 = N::HEIGHT + 1;

    fn new() -> Inner<N> {
        array::from_fn(|_| EpochLink::new())
    }

    #[inline(always)]
    fn run<'p>(&'p self, at: At<'p>) -> Option<&'p [Slot]> {
        self[Self::digit(at.index)].load(at.pin)?.run(at)
    }

    fn make<'p>(&'p self, at: At<'p>) -> Result<Option<&'p Slot>, NoMemory> {
        make(&self[Self::digit(at.index)], at)
    }

    fn scan(&self, at: At<'_>, leaves: &mut usize) -> Scanned {
        let span = 1_u64 << (DIGIT * Self::HEIGHT);
        let base = u64::from(at.index) & !(span * FAN as u64 - 1);
        let first = Self::digit(at.index);
        let mut index = at.index;
        for (link, d) in self[first..].iter().zip(first as u64..) {
            let below = link
                .load(at.pin)
                .map(|node| node.scan(At { index, ..at }, leaves));
            if let Some(Ok(found)) = below {
                return Ok(found);
            }
            let behind = base + (d + 1) * span;
            if *leaves == 0 {
                return below.unwrap_or(Err(behind));
            }
            match u32::try_from(behind) {
                Ok(behind) => index = behind,
                Err(_) => return Err(behind),
            }
        }
        Err(base + span * FAN as u64)
    }

    fn prune(&self, epoch: &Epoch, at: At<'_>) -> bool {
        let digit = Self::digit(at.index);
        prune(&self[digit], epoch, at) && close_all(self, digit)
    }

    fn nodes(&self, pin: &CpuPin) -> usize {
        let below = self.iter().filter_map(|link| link.load(pin));
        1 + below.map(|node| node.nodes(pin)).sum::<usize>()
    }

    fn free(&mut self, leaves: &mut usize) -> bool {
        self.iter_mut().all(|link| free(link, leaves))
    }
}
