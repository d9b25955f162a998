//! The pmaps that have chunks, in lists that the reclaimer rotates.
//!
//! There is a list for each CPU. A pmap is entered in the list of the CPU that makes its first chunk, and leaves it when it was
//! forgotten, and its chunks are free: so a process locks a list twice in its life, usually that of its own CPU. The lock of a list is held for a few
//! instructions.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

use ksync::{CpuPin, PerCpu, Spin, lock_class};
use rust_alloc::sync::Arc;

use crate::pmap::Pmap;

lock_class!(
    /// One CPU's list of pmaps with chunks of pv entries.
    pub PvPmapsLock, "pv pmaps", rank = 107
);

/// A pmap's link in a list, which is a ring.
#[derive(Default)]
pub(super) struct Link {
    /// The number of the list plus one, 0 if it is in none. Changed under the list's lock, and from 0 under the lock of the
    /// pmap's chunks.
    list: AtomicUsize,
    /// The neighbours, while it is in a list. Guarded by the list's lock.
    next: AtomicPtr<Pmap>,
    prev: AtomicPtr<Pmap>,
}

impl Link {
    /// Whether the pmap is in a list.
    pub(super) fn is_listed(&self) -> bool {
        self.list.load(Relaxed) != 0
    }
}

/// A list.
#[derive(Default)]
struct Ring {
    head: Option<NonNull<Pmap>>,
    len: usize,
}

// SAFETY: the pmap may be shared between threads, and is not owned.
unsafe impl Send for Ring {}

/// The lists.
pub(super) struct Pmaps(PerCpu<Spin<Ring, PvPmapsLock>>);

/// A pmap of a locked list.
fn at(pmap: &*mut Pmap) -> &Pmap {
    // SAFETY: from `Arc::as_ptr`. What is in a list has an owner, which takes it out before it lets go: see `Pmaps::rotate`.
    unsafe { &**pmap }
}

impl Pmaps {
    pub(super) fn new(ncpus: usize) -> Pmaps {
        Pmaps(PerCpu::new(ncpus, |_| Spin::new(Ring::default())))
    }

    /// Number of lists.
    #[cfg(feature = "pv-obm")]
    pub(super) fn lists(&self) -> usize {
        self.0.ncpus()
    }

    /// Number of pmaps in a list.
    #[cfg(feature = "pv-obm")]
    pub(super) fn len(&self, list: usize) -> usize {
        self.0.of(list).lock().len
    }

    /// Enters a pmap that is in no list, behind the others. Its list of chunks is locked, and it was not forgotten.
    pub(super) fn enter(&self, pin: &CpuPin, pmap: &Arc<Pmap>) {
        let (new, link) = (Arc::as_ptr(pmap).cast_mut(), pmap.listed().link());
        debug_assert!(!link.is_listed());
        let mut ring = self.0.get(pin).lock();
        link.list.store(pin.cpu() + 1, Relaxed);
        ring.len += 1;
        let Some(head) = ring.head else {
            link.next.store(new, Relaxed);
            link.prev.store(new, Relaxed);
            ring.head = NonNull::new(new);
            return;
        };
        let head = head.as_ptr();
        let last = at(&head).listed().link().prev.load(Relaxed);
        link.next.store(head, Relaxed);
        link.prev.store(last, Relaxed);
        at(&last).listed().link().next.store(new, Relaxed);
        at(&head).listed().link().prev.store(new, Relaxed);
    }

    /// Takes a pmap out that was forgotten, if it is in a list: it is entered no more, and the caller has had the lock under which it was.
    /// The caller, which forgets it, has an owner's reference until this returns.
    pub(super) fn leave(&self, pmap: &Pmap) {
        let link = pmap.listed().link();
        let Some(list) = link.list.load(Relaxed).checked_sub(1) else {
            return;
        };
        let mut ring = self.0.of(list).lock();
        let (next, prev) = (link.next.load(Relaxed), link.prev.load(Relaxed));
        at(&prev).listed().link().next.store(next, Relaxed);
        at(&next).listed().link().prev.store(prev, Relaxed);
        if ring.head.is_some_and(|head| ptr::eq(head.as_ptr(), pmap)) {
            ring.head = NonNull::new(next).filter(|next| !ptr::eq(next.as_ptr(), pmap));
        }
        ring.len -= 1;
        link.list.store(0, Relaxed);
    }

    /// The pmap at the head of a list, which becomes the last.
    #[cfg(feature = "pv-obm")]
    pub(super) fn rotate(&self, list: usize) -> Option<Arc<Pmap>> {
        let mut ring = self.0.of(list).lock();
        let head = ring.head?.as_ptr();
        ring.head = NonNull::new(at(&head).listed().link().next.load(Relaxed));
        // SAFETY: from `Arc::as_ptr`. The operation that forgets the pmap has a reference of an owner, and takes the pmap out under
        // this lock meanwhile; so until this lock is released it has an owner, beside whom this makes one more.
        unsafe {
            Arc::increment_strong_count(head);
            Some(Arc::from_raw(head))
        }
    }
}
