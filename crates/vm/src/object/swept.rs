//! Whether private pages of an object may be out of every mapping's reach, and which space is to look for them.
//!
//! Guarantee: a mark that names a sweeper stands for a space that has the object attached and is queued, or whose
//! attachment ends: then it is about to find its name here, and to name another.
//!
//! Mechanism: state and name are one word. A sweeper is named under the lock of the hub's shard that holds its
//! attachment. The end of an attachment takes it out of its shard before it reads the word, so it finds its name. A sweep
//! takes the name away before it looks for attachments: one that it still finds ends later, and finds no name that was
//! there before. So of the ends of attachments between two sweeps the first looks for a space that remains, and those of
//! spaces that were named.

use ksync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use rust_alloc::sync::Arc;

/// Whether pages of private memory may be unreachable. See `space/sweep.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Swept {
    /// Some may have become unreachable since the last sweep.
    No,
    /// Some may become unreachable when an attachment ends: the object was shared when it was swept, and pages stayed
    /// that not all spaces reach.
    Shared,
    /// No page is unreachable, and the end of an attachment will not change that.
    Whole,
}

/// The bits of a [`Swept`]. The others are the [`Name`] of a sweeper, with [`Swept::No`] alone, or 0.
const STATE: usize = 3;

/// The address of a space's pmap. May be that of another once the space has no attachment any more.
#[derive(Clone, Copy)]
pub(super) struct Name(usize);

impl Name {
    /// Of a value whose addresses end in zeroes, where the state stands.
    pub(super) fn of<Pmap>(pmap: &Arc<Pmap>) -> Name {
        const { assert!(align_of::<Pmap>() > STATE) };
        Name(Arc::as_ptr(pmap).addr())
    }
}

/// See the module. Atomic. Relaxed, as all accesses to it, for it publishes no data. The pages that it is about are
/// ordered by the fences of a change and of an insertion, or by the maps' locks; names and attachments by the shards'.
pub(super) struct Mark(AtomicUsize);

impl Mark {
    pub(super) fn whole() -> Mark {
        Mark(AtomicUsize::new(Swept::Whole as usize))
    }

    fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    fn put(&self, word: usize) {
        self.0.swap(word, Relaxed);
        ksync::fence_after_rmw();
    }

    /// Whether it has this state.
    #[inline(always)]
    pub(super) fn is(&self, how: Swept) -> bool {
        self.get() & STATE == how as usize
    }

    /// Sets the state, and names nobody. A full barrier if that changes the state.
    #[inline(always)]
    pub(super) fn set(&self, how: Swept) {
        if !self.is(how) {
            self.put(how as usize);
        }
    }

    /// Sets it if it is `from`. Failing is staying as it is.
    pub(super) fn change(&self, from: Swept, to: Swept) {
        let _changed = self
            .0
            .compare_exchange(from as usize, to as usize, Relaxed, Relaxed);
    }

    /// Takes the name away, before attachments are looked for. A full barrier if there is one.
    pub(super) fn forget(&self) {
        if self.get() & !STATE != 0 {
            self.0.fetch_and(STATE, Relaxed);
            ksync::fence_after_rmw();
        }
    }

    /// Whether the end of an attachment of the space `me`, which is in no shard any more, has to name a sweeper.
    /// `unmapped`: pages may have become unreachable by the end.
    #[inline(always)]
    pub(super) fn needs_name(&self, me: Name, unmapped: bool) -> bool {
        // After the lock of the shard that was left: what this space has attached for a child before was in its shard by then.
        // See `forget_me`.
        ksync::fence_after_rmw();
        let word = self.get();
        let (whole, named) = (word == Swept::Whole as usize, word & !STATE);
        (unmapped || !whole) && (named == 0 || named == me.0)
    }

    /// Takes the name of `me` away, before the first shard is looked at. An attachment that is made behind the scan's back, in
    /// a shard that was empty, is cared for by the end of the one that it was made from, which must find no name here.
    pub(super) fn forget_me(&self, me: Name) {
        if self.get() & !STATE == me.0 {
            self.put(Swept::No as usize);
        } else {
            // There is no name, or the last of another end. The scan is not older than that.
            ksync::fence_between_loads();
        }
    }

    /// Names a sweeper. The lock of a shard that has an attachment of its is held. A full barrier.
    pub(super) fn name(&self, sweeper: Name) {
        self.put(sweeper.0 | Swept::No as usize);
    }
}

/// How far the sweep of an object has come.
#[derive(Clone, Copy, Default)]
pub(crate) struct Progress {
    /// The index at which the next slice begins.
    pub(crate) from: u32,
    /// For some page it could not be decided whether a mapping reaches it.
    pub(crate) unclear: bool,
    /// Another space had the object attached during one of its slices.
    pub(crate) shared: bool,
}

/// The progress of a sweep that another round is to go on with, if there is one: its index, and two bits; 0 for none. Atomic; accessed
/// by the thread that tends alone, of which there is one.
#[derive(Default)]
pub(crate) struct Rest(AtomicU64);

const UNCLEAR: u64 = 1 << 32;
const SHARED: u64 = 1 << 33;

impl Rest {
    pub(super) fn is_none(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    /// The progress; that of a sweep that has not begun, if there is none.
    pub(crate) fn get(&self) -> Progress {
        let word = self.0.load(Relaxed);
        Progress {
            from: word as u32,
            unclear: word & UNCLEAR != 0,
            shared: word & SHARED != 0,
        }
    }

    /// Sets it. That of a sweep that has not begun is none.
    pub(crate) fn set(&self, progress: Progress) {
        let unclear = if progress.unclear { UNCLEAR } else { 0 };
        let shared = if progress.shared { SHARED } else { 0 };
        let word = match progress.from {
            0 => 0,
            from => u64::from(from) | unclear | shared,
        };
        self.0.store(word, Relaxed);
    }
}
