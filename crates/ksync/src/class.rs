//! Lock classes: the name, the rank and the statistics of every lock.
//!
//! A lock's class is a type parameter, so a lock word carries no name. A thread may only take a lock of a greater rank
//! than every lock it holds; debug builds check this at each acquisition. `doc/locks.md` is the table of ranks.

use core::ptr;
// Statistics and checks, not part of any protocol: plain atomics, which model checkers need not see.
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

use crate::{percpu::Padded, platform};

/// A class of locks; made by [`lock_class!`](crate::lock_class).
pub trait LockClass: 'static {
    /// The name in reports.
    const NAME: &'static str;
    /// The rank in the order of acquisition.
    const RANK: u16;
    /// The statistics of all locks of the class.
    fn stats() -> &'static ClassStats;
}

/// Declares a lock class: `lock_class!(pub PtLock, "page table", rank = 100);`
#[macro_export]
macro_rules! lock_class {
    ($(#[$m:meta])* $v:vis $name:ident, $text:literal, rank = $rank:expr) => {
        $(#[$m])*
        #[doc = concat!("Lock class \"", $text, "\".")]
        $v struct $name;
        impl $crate::LockClass for $name {
            const NAME: &'static str = $text;
            const RANK: u16 = $rank;
            #[inline(always)]
            fn stats() -> &'static $crate::ClassStats {
                static STATS: $crate::ClassStats = $crate::ClassStats::new($text, $rank);
                &STATS
            }
        }
    };
    ($(#[$m:meta])* $v:vis $name:ident, $text:literal, rank = $rank:expr;) => {
        $crate::lock_class!($(#[$m])* $v $name, $text, rank = $rank);
    };
}

/// CPUs with equal numbers modulo this share a slot.
const SLOTS: usize = 16;

/// One slot of a class's statistics. All fields atomic.
struct Slot {
    contended: AtomicU64,
    stall_ticks: AtomicU64,
    acquired: AtomicU64,
    longest_hold: AtomicU64,
}

impl Slot {
    const fn new() -> Self {
        Self {
            contended: AtomicU64::new(0),
            stall_ticks: AtomicU64::new(0),
            acquired: AtomicU64::new(0),
            longest_hold: AtomicU64::new(0),
        }
    }
}

/// The statistics of a class: written on contended paths only, unless the [profile](crate::profile) is on; in slots by
/// CPU.
pub struct ClassStats {
    name: &'static str,
    rank: u16,
    linked: AtomicBool,
    /// The next class of the list; written once, before the class is reachable.
    next: AtomicPtr<ClassStats>,
    slots: [Padded<Slot>; SLOTS],
}

/// A report on a class.
#[derive(Clone, Copy, Debug)]
pub struct ClassReport {
    /// The class's name.
    pub name: &'static str,
    /// The class's rank.
    pub rank: u16,
    /// Acquisitions that had to wait.
    pub contended: u64,
    /// Platform ticks spent waiting.
    pub stall_ticks: u64,
    /// All acquisitions; 0 without the profile.
    pub acquired: u64,
    /// Platform ticks that the longest hold took; 0 without the profile.
    pub longest_hold_ticks: u64,
}

/// Classes that were ever contended, newest first; a list that only grows.
static CLASSES: AtomicPtr<ClassStats> = AtomicPtr::new(ptr::null_mut());

/// Calls `f` with a report on every class that was contended (or, with the profile on, acquired) so far.
pub fn for_each_class(mut f: impl FnMut(ClassReport)) {
    let mut at = CLASSES.load(Acquire);
    // SAFETY: the list holds only `&'static ClassStats`, published with Release.
    while let Some(class) = unsafe { at.as_ref() } {
        f(class.report());
        at = class.next.load(Relaxed);
    }
}

impl ClassStats {
    /// For [`lock_class!`](crate::lock_class).
    pub const fn new(name: &'static str, rank: u16) -> Self {
        Self {
            name,
            rank,
            linked: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
            slots: [const { Padded(Slot::new()) }; SLOTS],
        }
    }

    /// The class's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The present sums; not a snapshot across CPUs.
    pub fn report(&self) -> ClassReport {
        let each = |f: fn(&Slot) -> &AtomicU64| self.slots.iter().map(move |s| f(s).load(Relaxed));
        let sum = |f| each(f).sum();
        ClassReport {
            name: self.name,
            rank: self.rank,
            contended: sum(|s| &s.contended),
            stall_ticks: sum(|s| &s.stall_ticks),
            acquired: sum(|s| &s.acquired),
            longest_hold_ticks: each(|s| &s.longest_hold).max().unwrap_or(0),
        }
    }

    /// Counts one wait that began at `since` and was spent `asleep` or spinning.
    #[cold]
    pub(crate) fn stalled(&'static self, asleep: bool, since: u64) {
        let ticks = platform::ticks().saturating_sub(since);
        self.link();
        let slot = &self.slots[platform::cpu() % SLOTS];
        slot.contended.fetch_add(1, Relaxed);
        slot.stall_ticks.fetch_add(ticks, Relaxed);
        platform::stall(self.name, asleep, ticks);
    }

    /// Counts an acquisition; for the profile.
    pub(crate) fn acquired(&'static self) {
        self.link();
        self.slots[platform::cpu() % SLOTS]
            .acquired
            .fetch_add(1, Relaxed);
    }

    /// Records a hold of so many ticks; for the profile.
    pub(crate) fn held(&'static self, ticks: u64) {
        let longest = &self.slots[platform::cpu() % SLOTS].longest_hold;
        if longest.load(Relaxed) < ticks {
            longest.fetch_max(ticks, Relaxed);
        }
    }

    /// Adds the class to the list, once.
    fn link(&'static self) {
        if self.linked.load(Relaxed) || self.linked.swap(true, Relaxed) {
            return;
        }
        let me = ptr::from_ref(self).cast_mut();
        let mut head = CLASSES.load(Relaxed);
        loop {
            self.next.store(head, Relaxed);
            // Release publishes `next`; it pairs with a reader's Acquire of this head, or of a later head, which
            // continues this release sequence.
            match CLASSES.compare_exchange_weak(head, me, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// Most locks that a thread can hold at once, in debug builds.
const DEPTH: usize = 24;

/// The locks that a thread holds; one per thread, used in debug builds only.
///
/// Accessed by the thread itself and by interrupt handlers that interrupt it, which nest. Entries from `len` on are
/// null whenever a handler may run, so that a handler between the two stores of `push` finds a null entry, and leaves
/// one.
pub struct HeldLocks {
    len: AtomicUsize,
    held: [AtomicPtr<ClassStats>; DEPTH],
}

impl HeldLocks {
    /// A thread that holds nothing.
    pub const fn new() -> Self {
        Self {
            len: AtomicUsize::new(0),
            held: [const { AtomicPtr::new(ptr::null_mut()) }; DEPTH],
        }
    }

    /// Whether no lock is held, as at a thread's end or on return to user mode.
    pub fn is_empty(&self) -> bool {
        self.len.load(Relaxed) == 0
    }

    /// The held classes, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &'static ClassStats> {
        // SAFETY: only `&'static ClassStats` are stored.
        self.held[..self.len.load(Relaxed).min(DEPTH)]
            .iter()
            .filter_map(|p| unsafe { p.load(Relaxed).as_ref() })
    }

    fn check(&self, class: &'static ClassStats, same_allowed: bool) {
        for held in self.iter() {
            let fits = held.rank < class.rank || (same_allowed && held.rank == class.rank);
            assert!(
                fits,
                "lock order: taking \"{}\" (rank {}) while holding \"{}\" (rank {})",
                class.name, class.rank, held.name, held.rank
            );
        }
    }

    fn push(&self, class: &'static ClassStats) {
        let at = self.len.load(Relaxed);
        assert!(
            at < DEPTH,
            "more than {DEPTH} locks held, last \"{}\"",
            class.name
        );
        self.len.store(at + 1, Relaxed);
        self.held[at].store(ptr::from_ref(class).cast_mut(), Relaxed);
    }

    fn remove(&self, class: &'static ClassStats) {
        let len = self.len.load(Relaxed);
        let me = ptr::from_ref(class).cast_mut();
        let found = self.held[..len].iter().rposition(|p| p.load(Relaxed) == me);
        let at = found.unwrap_or_else(|| panic!("releasing \"{}\", which is not held", class.name));
        for i in at..len - 1 {
            self.held[i].store(self.held[i + 1].load(Relaxed), Relaxed);
        }
        self.held[len - 1].store(ptr::null_mut(), Relaxed);
        self.len.store(len - 1, Relaxed);
    }
}

impl Default for HeldLocks {
    fn default() -> Self {
        Self::new()
    }
}

/// How an acquisition relates to the locks already held.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Order {
    /// A greater rank than that of any lock held.
    Ascending,
    /// A greater or the same rank: for pairs ordered by address.
    Nested,
    /// Any rank: it does not wait.
    Try,
}

/// Checks the rank of a lock about to be taken, and records it as held.
#[inline(always)]
pub(crate) fn acquire<C: LockClass>(order: Order) {
    if cfg!(debug_assertions) {
        platform::with_held(&mut |held| {
            if order != Order::Try {
                held.check(C::stats(), order == Order::Nested);
            }
            held.push(C::stats());
        });
    }
}

/// Records a lock as no longer held.
#[inline(always)]
pub(crate) fn release<C: LockClass>() {
    if cfg!(debug_assertions) {
        platform::with_held(&mut |held| held.remove(C::stats()));
    }
}

/// Checks that the caller may sleep for a lock of class `C`.
#[inline(always)]
pub(crate) fn may_sleep<C: LockClass>() {
    debug_assert!(
        platform::preempt_count() == 0,
        "taking sleeping lock \"{}\" with preemption off",
        C::NAME
    );
}
