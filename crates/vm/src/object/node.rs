//! The nodes of an object's index: 64 slots, or 64 links to nodes of the next lower height.
//!
//! Guarantee: a node is unlinked only when it is empty, and nothing is inserted into an unlinked node. A lookup, which
//! holds a pin, finds the page, or there was none at some moment since it began.
//!
//! Mechanism: an operation that empties a slot or a link tries to close all slots or links of its node, by
//! [`close_all`]. A node that was closed completely is unlinked and retired under the epoch. `doc/vm.md` has the time
//! line.

use core::array;

use ksync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use ksync::{CpuPin, Epoch, EpochLink, Part, close_all, try_box};

use crate::alloc::NoMemory;
use crate::page::{MOST_FRAMES, Pfn};

pub(super) const DIGIT: u32 = 6;
pub(super) const FAN: usize = 1 << DIGIT;
const EMPTY: u32 = u32::MAX;
/// No page can be inserted: the node is about to be unlinked.
const CLOSED: u32 = EMPTY - 1;
/// Beside a frame number: the page is settled.
const SETTLED: u32 = 1 << 31;
const _: () = assert!(CLOSED - 1 == SETTLED | (MOST_FRAMES as u32 - 1));

/// The slot of one page: its frame number, perhaps marked as settled.
///
/// As long as a slot shows a settled page, the page's bytes are what the object has at this index: its insertion is not taken back any
/// more. So a fault that copies the page asks the slot, which it has read in any case, and leaves the page's record unread, whose cache line another
/// CPU has written.
pub(crate) struct Slot(AtomicU32);

impl Slot {
    pub(super) fn new() -> Slot {
        Slot(AtomicU32::new(EMPTY))
    }

    /// The page in the slot: a hint, as for [`Object::lookup`](super::Object::lookup).
    #[inline(always)]
    pub(crate) fn page(&self) -> Option<Pfn> {
        let n = self.0.load(Acquire);
        (n < CLOSED).then_some(Pfn(n & !SETTLED))
    }

    /// Whether the slot holds `pfn` and the page is settled.
    #[inline(always)]
    pub(crate) fn is_settled(&self, pfn: Pfn) -> bool {
        self.0.load(Acquire) == pfn.0 | SETTLED
    }

    /// Marks the page in the slot, which is `pfn`, as settled. The caller has held it hard-busy since it put it there.
    #[inline(always)]
    pub(crate) fn settle(&self, pfn: Pfn) {
        debug_assert!(
            self.page() == Some(pfn),
            "only the holder of a page empties its slot"
        );
        // Only the holder changes the word, so a plain store is enough.
        self.0.store(pfn.0 | SETTLED, Release);
    }

    /// Inserts a page if the slot is empty, followed by a full fence: the caller's later loads are not older than the
    /// insertion, and what preceded the emptying of the slot is visible.
    #[inline(always)]
    pub(super) fn put(&self, pfn: Pfn) -> bool {
        let done = self.change(EMPTY, pfn.0);
        ksync::fence_after_rmw();
        if !done {
            self.give_way();
        }
        done
    }

    /// After a failed insertion: if the node is about to be unlinked, yields to the CPU that does it.
    #[cold]
    fn give_way(&self) {
        if self.0.load(Relaxed) == CLOSED {
            ksync::relax();
        }
    }

    /// Empties the slot if it holds `pfn`, whose translations are gone: another page may be inserted at once. The caller holds the
    /// page hard-busy, so the mark does not change meanwhile.
    #[inline(always)]
    pub(super) fn take(&self, pfn: Pfn) -> bool {
        // Most pages are settled.
        self.change(pfn.0 | SETTLED, EMPTY) || self.change(pfn.0, EMPTY)
    }

    #[inline(always)]
    fn change(&self, from: u32, to: u32) -> bool {
        self.0.compare_exchange(from, to, Release, Relaxed).is_ok()
    }
}

impl Part for Slot {
    fn is_empty(&self) -> bool {
        self.0.load(Relaxed) == EMPTY
    }

    fn close(&self) -> bool {
        // Acquire: what preceded the emptying of the slot comes before the unlinking of the node and the use of its
        // successor.
        self.0
            .compare_exchange(EMPTY, CLOSED, Acquire, Relaxed)
            .is_ok()
    }

    fn open(&self) {
        // A read-modify-write, so that a later insertion still synchronises with the emptying of the slot.
        self.0.swap(EMPTY, Relaxed);
    }
}

/// The index that an operation works on, and its pin.
#[derive(Clone, Copy)]
pub(super) struct At<'p> {
    pub pin: &'p CpuPin,
    pub index: u32,
}

/// Result of a walk: the first page, or the index to continue at.
pub(super) type Scanned = Result<(u32, Pfn), u64>;

/// A node. Its height is part of its type, so that a lookup is one load per digit of the index.
pub(super) trait Node: Send + Sync + Sized + 'static {
    const HEIGHT: u32;

    fn new() -> Self;

    /// The slot of an index and those that follow it in the same node, if the node exists.
    fn run<'p>(&'p self, at: At<'p>) -> Option<&'p [Slot]>;

    /// The slot of an index; missing nodes on the way are made. `None` if a node on the way is about to be unlinked.
    fn make<'p>(&'p self, at: At<'p>) -> Result<Option<&'p Slot>, NoMemory>;

    /// The first page from an index of the node on, else the first index that was not looked at: behind the node, or
    /// inside it if `leaves`, which are not 0 before, are used up.
    fn scan(&self, at: At<'_>, leaves: &mut usize) -> Scanned;

    /// Unlinks empty nodes on the way to an index; returns whether this node was empty, and is now closed.
    fn prune(&self, epoch: &Epoch, at: At<'_>) -> bool;

    /// Number of nodes, this one included.
    fn nodes(&self, pin: &CpuPin) -> usize;

    /// Frees the nodes below, when no reader is left, up to `leaves` leaves; returns whether all are freed.
    fn free(&mut self, leaves: &mut usize) -> bool;

    /// The position in the node that an index belongs to.
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

/// The target of a link, made if there is none. `None` if the link's node is about to be unlinked.
fn target<'p, N: Node>(link: &'p EpochLink<N>, at: At<'p>) -> Result<Option<&'p N>, NoMemory> {
    match link.load(at.pin) {
        Some(node) => Ok(Some(node)),
        // If another CPU has linked a node first, that one is used.
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

/// Unlinks empty nodes on the way to an index below a link; returns whether the target itself is gone.
pub(super) fn prune<N: Node>(link: &EpochLink<N>, epoch: &Epoch, at: At<'_>) -> bool {
    // It is gone already, or could not be made for lack of memory: the node above may be empty.
    let Some(node) = link.load(at.pin) else {
        return true;
    };
    let empty = node.prune(epoch, at);
    if empty {
        link.unlink(epoch, at.pin, node);
    }
    empty
}

/// Frees the nodes below a link, as [`Node::free`].
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
