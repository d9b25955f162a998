//! Busy state of a page.
//!
//! Hard busy is exclusive: its holder may change the page's identity. Soft busy is shared: it keeps the identity. One
//! word holds both: bit 31 hard, bit 30 wanted (somebody sleeps until it is free), the low bits count soft holders. A
//! soft busy is taken by compare-and-swap that refuses a hard one; adding first and undoing later would let a looker
//! disturb the holder.
//!
//! This module never sleeps. A caller that must wait marks the page wanted, checks its identity again, and sleeps on a
//! queue of its own choice; whoever drops the busy state learns that a wake-up is due.

use ksync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::page::Page;

pub(super) const HARD: u32 = 1 << 31;
const WANTED: u32 = 1 << 30;
const COUNT: u32 = (1 << 29) - 1;

/// Outcome of an attempt that marks the page if it fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Busy {
    /// The caller holds it.
    Taken,
    /// Somebody else does; WANTED is set. Check the identity again before sleeping.
    Wait,
}

impl Page {
    /// Takes hard busy if nobody holds any.
    #[must_use]
    pub fn try_hard_busy(&self) -> bool {
        // WANTED may linger from a looker that gave up; it goes along, so that its wake-up is not lost.
        let seen = self.busy.load(Relaxed);
        seen & !WANTED == 0
            && self
                .busy
                .compare_exchange(seen, seen | HARD, Acquire, Relaxed)
                .is_ok()
    }

    /// Takes hard busy, or marks the page wanted.
    pub fn hard_busy_or_want(&self) -> Busy {
        let mut seen = self.busy.load(Relaxed);
        loop {
            let free = seen & !WANTED == 0;
            let new = seen | if free { HARD } else { WANTED };
            match self.busy.compare_exchange_weak(seen, new, AcqRel, Relaxed) {
                Ok(_) if free => return Busy::Taken,
                Ok(_) => return Busy::Wait,
                Err(now) => seen = now,
            }
        }
    }

    /// Drops hard busy. Returns whether sleepers must be woken.
    #[must_use = "true means that sleepers wait for a wake-up"]
    pub fn hard_unbusy(&self) -> bool {
        let before = self.busy.swap(0, AcqRel);
        debug_assert!(before & HARD != 0, "hard_unbusy without hard busy");
        before & WANTED != 0
    }

    /// Keeps hard busy but takes the wake-up duty over: for an owner that is about to free the page, whose sleepers
    /// will look it up again. Call after the identity is cleared.
    #[must_use = "true means that sleepers wait for a wake-up"]
    pub fn take_wanted(&self) -> bool {
        debug_assert!(self.is_hard_busy());
        // A full barrier between clearing the identity and looking, matched by the sleeper's mark and re-check.
        self.busy.fetch_and(!WANTED, AcqRel) & WANTED != 0
    }

    /// Turns hard busy into one soft busy. Returns whether sleepers must be woken.
    #[must_use = "true means that sleepers wait for a wake-up"]
    pub fn downgrade_busy(&self) -> bool {
        let before = self.busy.swap(1, AcqRel);
        debug_assert!(before & HARD != 0, "downgrade without hard busy");
        before & WANTED != 0
    }

    /// Turns the caller's soft busy into hard busy if it is the only one.
    #[must_use]
    pub fn try_upgrade_busy(&self) -> bool {
        let seen = self.busy.load(Relaxed);
        seen & !WANTED == 1
            && self
                .busy
                .compare_exchange(seen, (seen & WANTED) | HARD, Acquire, Relaxed)
                .is_ok()
    }

    /// Takes a soft busy unless the page is hard-busy.
    #[must_use]
    pub fn try_soft_busy(&self) -> bool {
        let mut seen = self.busy.load(Relaxed);
        while seen & HARD == 0 {
            debug_assert!(seen & COUNT != COUNT);
            match self
                .busy
                .compare_exchange_weak(seen, seen + 1, Acquire, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Takes a soft busy, or marks the hard-busy page wanted.
    pub fn soft_busy_or_want(&self) -> Busy {
        let mut seen = self.busy.load(Relaxed);
        loop {
            let hard = seen & HARD != 0;
            let new = if hard { seen | WANTED } else { seen + 1 };
            match self.busy.compare_exchange_weak(seen, new, AcqRel, Relaxed) {
                Ok(_) if hard => return Busy::Wait,
                Ok(_) => return Busy::Taken,
                Err(now) => seen = now,
            }
        }
    }

    /// Drops a soft busy. Returns whether sleepers must be woken: the last holder reports them.
    #[must_use = "true means that sleepers wait for a wake-up"]
    pub fn soft_unbusy(&self) -> bool {
        let mut seen = self.busy.load(Relaxed);
        loop {
            debug_assert!(
                seen & HARD == 0 && seen & COUNT != 0,
                "soft_unbusy without soft busy"
            );
            let last = seen & COUNT == 1;
            let new = if last { 0 } else { seen - 1 };
            match self.busy.compare_exchange_weak(seen, new, Release, Relaxed) {
                Ok(_) => return last && seen & WANTED != 0,
                Err(now) => seen = now,
            }
        }
    }

    /// Whether somebody holds hard busy. Meaningful to the holder, or after a fence that orders it.
    pub fn is_hard_busy(&self) -> bool {
        self.busy.load(Acquire) & HARD != 0
    }

    /// Number of soft holders.
    pub fn soft_count(&self) -> u32 {
        self.busy.load(Acquire) & COUNT
    }
}
