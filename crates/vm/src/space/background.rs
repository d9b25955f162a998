//! Spaces that wait for work in the background.
//!
//! Guarantee: a space that was queued is looked at once by the next [`Vm::tend`], if it still exists. Queueing needs no
//! memory, takes a bounded time, and writes the space's own line and this CPU's; while the space is queued it writes nothing.
//!
//! Mechanism: a list for each CPU, linked through the pmaps, which may outlive their spaces. What is queued keeps the pmap
//! alone. The mark is taken away before the space is looked at, and both sides have a full barrier between what they
//! write and what they read: who changes something and finds the mark is seen by the look that follows.

use ksync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use ksync::{CpuPin, Once, PerCpu, Spin, lock_class};
use rust_alloc::sync::{Arc, Weak};

use super::Space;
use crate::pmap::Pmap;
use crate::{Machine, Vm};

lock_class!(
    /// One CPU's list of spaces that wait for the background.
    pub BackgroundLock, "background work", rank = 94
);

lock_class!(
    /// The place of one space in such a list.
    pub BackgroundLink, "background link", rank = 95
);

type Next = Option<Arc<Pmap>>;

/// A pmap's place in the lists.
#[derive(Default)]
pub(crate) struct Waiting {
    /// On a list. Atomic.
    queued: AtomicBool,
    /// Whose pmap it is. Set once, when the space is complete.
    space: Once<Weak<Space>>,
    /// The next one on the list.
    next: Spin<Next, BackgroundLink>,
}

impl Waiting {
    /// Says whose pmap it is.
    pub(super) fn belong_to(&self, space: &Arc<Space>) {
        // There is one space for a pmap.
        drop(self.space.set(Arc::downgrade(space)));
    }

    /// The space, if it is complete and still there.
    pub(super) fn space(&self) -> Option<Arc<Space>> {
        self.space.get().and_then(Weak::upgrade)
    }

    /// Whether a fork is still at work on the space.
    fn is_unborn(&self) -> bool {
        self.space.get().is_none()
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
    /// Queues a pmap's space. What is to be seen was changed before, by a full barrier or under the space's lock.
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

    /// Does what the spaces that were queued before the call wait for: frees the memory that they cannot reach any more.
    /// Sleeping context; preemptible. To be called twice a second or so.
    pub fn tend(&self) {
        for cpu in 0..self.machine.ncpus() {
            let mut next = self.background.0.of(cpu).lock().take();
            while let Some(pmap) = next {
                let waiting = pmap.waiting();
                next = waiting.next.lock().take();
                waiting.queued.store(false, Relaxed);
                fence(SeqCst);
                // What is on no list and in no space is the pmap of a fork that failed.
                let unborn = waiting.is_unborn() && Arc::strong_count(&pmap) > 1;
                if unborn || waiting.space().is_some_and(|space| space.sweep(self)) {
                    self.queue(&ksync::pin(), &pmap);
                }
            }
        }
    }
}
