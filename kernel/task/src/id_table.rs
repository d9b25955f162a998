//! Tables by id that are read without a lock.
//!
//! Guarantee: a lookup writes nothing and takes no lock. Mechanism: a radix table of slots with three levels, which grows and
//! never shrinks. What a slot points to is freed a grace period after it has been taken out.

use alloc::boxed::Box;
use alloc::sync::Arc;

use ksync::{ArcBorrow, CpuPin, EpochPtr};

/// One more than the largest id (Linux's limit on 64-bit machines).
pub const ID_LIMIT: u32 = 1 << 22;
/// Slots of a leaf.
const LEAF: usize = 256;
const MID: usize = 256;
const TOP: usize = ID_LIMIT as usize / LEAF / MID;

/// An element of a table.
pub trait Slot: Send + Sync + 'static {
    /// A slot whose id is not in use.
    const VACANT: Self;
}

impl<T: Send + Sync + 'static> Slot for EpochPtr<Arc<T>> {
    const VACANT: Self = EpochPtr::empty();
}

type Leaf<S> = [S; LEAF];
type Mid<S> = [EpochPtr<Box<Leaf<S>>>; MID];

/// A table of slots by id.
pub struct IdTable<S: Slot> {
    top: [EpochPtr<Box<Mid<S>>>; TOP],
}

impl<S: Slot> IdTable<S> {
    /// A table that has no slots yet.
    pub const fn new() -> Self {
        IdTable {
            top: [const { EpochPtr::empty() }; TOP],
        }
    }

    fn leaf<'p>(&'p self, pin: &'p CpuPin, id: u32) -> Option<&'p Leaf<S>> {
        let i = id as usize;
        let mid = self.top.get(i / (LEAF * MID))?.load(pin)?;
        mid[i / LEAF % MID].load(pin)
    }

    /// The slot of `id`; `None` if the table has not grown so far.
    #[inline]
    pub fn slot<'p>(&'p self, pin: &'p CpuPin, id: u32) -> Option<&'p S> {
        Some(&self.leaf(pin, id)?[id as usize % LEAF])
    }

    /// Makes the table have a slot for `id`, which is below [`ID_LIMIT`]. Allocates if it has none; where the caller may sleep, it may
    /// wait for memory.
    pub fn grow(&self, id: u32) {
        let i = id as usize;
        if self.leaf(&ksync::pin(), id).is_some() {
            return;
        }
        let top = &self.top[i / (LEAF * MID)];
        if top.is_none() {
            // If another CPU has set it first, its table serves as well.
            let _ = top.set_if_none(on_heap(EpochPtr::empty));
        }
        let leaf = on_heap(|| S::VACANT);
        if let Some(mid) = top.load(&ksync::pin()) {
            let _ = mid[i / LEAF % MID].set_if_none(leaf);
        }
    }

    /// The first id in `id..end` that has a slot, so that a caller can pass over the parts that do not exist.
    pub fn next(&self, mut id: u32, end: u32) -> Option<u32> {
        let pin = ksync::pin();
        while id < end {
            if self.leaf(&pin, id).is_some() {
                return Some(id);
            }
            id = (id / LEAF as u32 + 1) * LEAF as u32;
        }
        None
    }

    /// Bytes of the table, which never shrinks.
    pub fn bytes(&self) -> usize {
        let pin = ksync::pin();
        let mids = self.top.iter().filter_map(|mid| mid.load(&pin));
        mids.map(|mid| {
            let leaves = mid.iter().filter(|leaf| !leaf.is_none()).count();
            size_of::<Mid<S>>() + leaves * size_of::<Leaf<S>>()
        })
        .sum()
    }
}

impl<S: Slot> Default for IdTable<S> {
    fn default() -> Self {
        Self::new()
    }
}

/// A table of objects, in which a slot holds one reference.
pub type ArcTable<T> = IdTable<EpochPtr<Arc<T>>>;

impl<T: Send + Sync + 'static> ArcTable<T> {
    /// The object with that id.
    #[inline]
    pub fn get<'p>(&'p self, pin: &'p CpuPin, id: u32) -> Option<&'p T> {
        self.slot(pin, id)?.load(pin)
    }

    /// As [`get`](Self::get), for a caller that may take a reference.
    #[inline]
    pub fn borrow<'p>(&'p self, pin: &'p CpuPin, id: u32) -> Option<ArcBorrow<'p, T>> {
        self.slot(pin, id)?.borrow(pin)
    }

    /// A reference to the object with that id.
    pub fn hold(&self, id: u32) -> Option<Arc<T>> {
        self.borrow(&ksync::pin(), id).map(ArcBorrow::hold)
    }

    /// Puts `object` into the slot of `id`, which is in use; false if the slot holds another object. Allocates.
    pub fn publish(&self, id: u32, object: Arc<T>) -> bool {
        self.grow(id);
        let pin = ksync::pin();
        let slot = self.slot(&pin, id);
        slot.is_some_and(|slot| slot.set_if_none(object).is_ok())
    }

    /// Empties the slot of `id`. The reference that it held is dropped after a grace period.
    pub fn withdraw(&self, id: u32) {
        let pin = ksync::pin();
        if let Some(slot) = self.slot(&pin, id) {
            slot.replace(mem::epoch(), &pin, None);
        }
    }
}

/// Makes an array on the heap, element by element: it would not fit on a thread's stack.
fn on_heap<T, const N: usize>(mut make: impl FnMut() -> T) -> Box<[T; N]> {
    let slice: Box<[T]> = (0..N).map(|_| make()).collect();
    match slice.try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("{N} elements were made"),
    }
}
