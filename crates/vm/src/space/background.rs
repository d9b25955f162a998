//! Spaces that are queued for work in the background.
//!
//! Guarantee: a space that is queued is looked at once by the next [`Vm::tend`], if it still exists. Queueing needs no
//! memory and takes a bounded time. It writes the space's own line and one of this CPU; if the space is queued already
//! it writes nothing.
//!
//! Mechanism: one list per CPU, linked through the pmaps, which may outlive their spaces: the list keeps only the pmap
//! alive. `tend` clears the mark before it looks at the space, and both sides have a full barrier between their write
//! and their read. So if a CPU changes something and finds the mark still set, the look that follows sees the change.

use ksync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use ksync::{CpuPin, Once, PerCpu, Spin, lock_class};
use rust_alloc::sync::{Arc, Weak};

use super::Space;
use super::edit::Locked;
use crate::map::{Extent, MapEntry};
use crate::pmap::Pmap;
use crate::rmap::{Map, ReverseMap};
use crate::{Machine, Vm};

lock_class!(
    /// One CPU's list of queued spaces.
    pub BackgroundLock, "background work", rank = 94
);

lock_class!(
    /// The link of one space in such a list.
    pub BackgroundLink, "background link", rank = 95
);

type Next = Option<Arc<Pmap>>;

/// A pmap's link in the lists.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Whether the pmap is on a list. Atomic.
    queued: AtomicBool,
    /// The space that owns the pmap. Set once, when the space is published.
    space: Once<Weak<Space>>,
    /// The next pmap on the list.
    next: Spin<Next, BackgroundLink>,
}

impl Waiting {
    /// Records the space that owns the pmap.
    pub(super) fn belong_to(&self, space: &Arc<Space>) {
        // There is one space for a pmap.
        drop(self.space.set(Arc::downgrade(space)));
    }

    /// The space, if it is published and still exists.
    pub(super) fn space(&self) -> Option<Arc<Space>> {
        self.space.get().and_then(Weak::upgrade)
    }

    /// Whether the space is not yet published: a fork is still building it.
    pub(crate) fn is_unborn(&self) -> bool {
        self.space.get().is_none()
    }
}

/// Entries that are looked at in one hold of a map's lock.
const LOOKS: usize = 256;

impl Space {
    /// The next entry that ends above `at` and that `wanted` accepts, with the map's lock; `at` is then the entry's end.
    /// The lock is released between parts of the map.
    pub(super) fn next_wanted(
        &self,
        at: &mut u64,
        mut wanted: impl FnMut(&CpuPin, &MapEntry) -> bool,
    ) -> Option<(Locked<'_>, Arc<MapEntry>)> {
        loop {
            let map = self.lock();
            match map.tree().first_wanted(*at, LOOKS, &mut wanted) {
                Ok(found) => {
                    let entry = found?;
                    *at = entry.end();
                    return Some((map, entry));
                }
                Err(next) => *at = next,
            }
        }
    }
}

/// The lists.
pub(crate) struct Background(PerCpu<Spin<Next, BackgroundLock>>);

impl Background {
    pub(crate) fn new(ncpus: usize) -> Background {
        Background(PerCpu::new(ncpus, |_| Spin::new(None)))
    }
}

impl<M: Machine> Vm<M> {
    /// Queues the space of a pmap. The caller has made its change before, followed by a full barrier or under the
    /// space's lock.
    #[inline]
    pub(crate) fn queue(&self, pin: &CpuPin, pmap: &Arc<Pmap>) {
        if !pmap.waiting().queued.load(Relaxed) {
            self.queue_slow(pin, pmap);
        }
    }

    #[cold]
    #[inline(never)]
    fn queue_slow(&self, pin: &CpuPin, pmap: &Arc<Pmap>) {
        let waiting = pmap.waiting();
        // Relaxed: the caller's barrier pairs with the fence in `tend`, and the lists have locks.
        if waiting.queued.swap(true, Relaxed) {
            return;
        }
        let mut first = self.background.0.get(pin).lock();
        *waiting.next.lock() = first.take();
        *first = Some(pmap.clone());
    }

    /// Does the work of the spaces that were queued before the call, a round of each: frees private memory that no mapping
    /// reaches any more. Where an object takes more than a round, its space is queued again. Sleeping context; preemptible. To be called about twice a second.
    pub fn tend(&self) {
        (0..self.machine.ncpus()).for_each(|cpu| self.tend_of(cpu));
    }

    /// Whether spaces are queued on `cpu`. A hint.
    pub fn is_queued(&self, cpu: usize) -> bool {
        self.background.0.of(cpu).lock().is_some()
    }

    /// As [`Vm::tend`], for the spaces that were queued on `cpu`. Best called there: that CPU has their lines. One thread
    /// tends at a time: the mark of an object says that a sweep has seen it, not which sweep.
    pub fn tend_of(&self, cpu: usize) {
        if !Map::FINDS_EXTENTS {
            return;
        }
        let mut next = self.background.0.of(cpu).lock().take();
        while let Some(pmap) = next {
            let waiting = pmap.waiting();
            next = waiting.next.lock().take();
            waiting.queued.store(false, Relaxed);
            fence(SeqCst);
            // An unpublished space whose pmap has no other reference belongs to a fork that failed.
            let unborn = waiting.is_unborn() && Arc::strong_count(&pmap) > 1;
            if unborn || waiting.space().is_some_and(|space| space.sweep(self)) {
                self.queue(&ksync::pin(), &pmap);
            }
        }
    }
}
