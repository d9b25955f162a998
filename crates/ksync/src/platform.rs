//! The locks' requirements on the machine: one trait, bound at link time.
//!
//! The calls go through symbols that [`platform!`](crate::platform) defines, so that the lock code
//! has no type parameter for the machine and link-time optimisation inlines the calls.

use crate::class::HeldLocks;

/// A token by which a thread can be unparked; opaque to this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parker(pub usize);

/// The machine, as the locks see it.
pub trait Platform {
    /// The CPU that runs the caller. Stable only with preemption off.
    fn cpu() -> usize;
    /// Disables preemption, so that the caller stays on its CPU; nests.
    fn preempt_disable();
    /// Undoes one `preempt_disable`. May reschedule when the count reaches 0 and interrupts are on.
    fn preempt_enable();
    /// Number of `preempt_disable`s in force, for the current thread or interrupt handler.
    fn preempt_count() -> usize;
    /// Disables interrupts and returns the argument for [`Platform::irq_restore`]; nests.
    fn irq_save() -> usize;
    /// Restores the state that `irq_save` found.
    fn irq_restore(state: usize);
    /// A cheap clock, in any steady unit (the TSC).
    fn ticks() -> u64;
    /// A hint inside a busy-wait loop.
    fn relax();
    /// Yields the CPU for a short time, in a waiting loop of a sleeping context.
    fn doze() {
        Self::relax();
    }
    /// The current thread's token.
    fn parker() -> Parker;
    /// Sleeps until an [`Platform::unpark`] of this thread; one earlier unpark counts. May return without one.
    fn park();
    /// Wakes a thread. Always called with preemption off since before the thread could learn that its wait is over: so
    /// the token stays valid on a platform that frees threads after a grace period.
    fn unpark(parker: Parker);
    /// Passes the current thread's list of held locks to `f`; used in debug builds only.
    fn with_held(f: &mut dyn FnMut(&HeldLocks));
    /// Called now and then when this CPU has retired many objects: a good time for
    /// [`Epoch::reclaim`](crate::Epoch::reclaim) is soon. Called with preemption off, perhaps with locks held.
    fn reclaim_soon() {}
    /// A number for the current thread in messages; 30 bits of it are kept.
    fn thread() -> u32 {
        0
    }
    /// Called when the CPU begins to spin for a lock named `name` that CPU `holder` holds, and now and then while it
    /// spins. [`Platform::stall`] ends it.
    fn spins(name: &'static str, holder: usize) {
        let _ = (name, holder);
    }
    /// Called with the time in `ticks` when the current thread begins to sleep for a lock, and with 0 when it has the
    /// lock.
    fn sleeps_for_lock(ticks: u64) {
        let _ = ticks;
    }
    /// Called before the current thread begins to sleep for the lock at `lock` that the thread `holder` holds, 0 if that is not known. The
    /// current thread holds it later, and others may wait for it then.
    fn lends(holder: u32, lock: usize) {
        let _ = (holder, lock);
    }
    /// Called after the current thread has handed the lock at `lock`, which may be gone, to one that slept for it. Only for locks whose holder is
    /// known. Called with preemption off.
    fn hands_over(lock: usize) {
        let _ = lock;
    }
    /// Called when a thread that has slept since `ticks` for a lock named `name` was unparked without getting it: it
    /// still waits for the thread `holder`, 0 if that is not known. May print; called without locks held.
    fn still_waits(name: &'static str, holder: u32, ticks: u64) {
        let _ = (name, holder, ticks);
    }
    /// Called after each wait for a lock named `name`: `ticks` were spent asleep, or else spinning.
    fn stall(name: &'static str, asleep: bool, ticks: u64) {
        let _ = (name, asleep, ticks);
    }
}

/// The link-time binding; to be called through the functions of [`crate::platform`].
#[doc(hidden)]
pub mod symbols {
    use super::{HeldLocks, Parker};
    // SAFETY: only `platform!` defines these names, with exactly these types.
    unsafe extern "Rust" {
        #[link_name = "__pantala_ksync_cpu"]
        pub safe fn cpu() -> usize;
        #[link_name = "__pantala_ksync_preempt_disable"]
        pub safe fn preempt_disable();
        #[link_name = "__pantala_ksync_preempt_enable"]
        pub safe fn preempt_enable();
        #[link_name = "__pantala_ksync_preempt_count"]
        pub safe fn preempt_count() -> usize;
        #[link_name = "__pantala_ksync_irq_save"]
        pub safe fn irq_save() -> usize;
        #[link_name = "__pantala_ksync_irq_restore"]
        pub safe fn irq_restore(state: usize);
        #[link_name = "__pantala_ksync_ticks"]
        pub safe fn ticks() -> u64;
        #[link_name = "__pantala_ksync_relax"]
        pub safe fn relax();
        #[link_name = "__pantala_ksync_doze"]
        pub safe fn doze();
        #[link_name = "__pantala_ksync_parker"]
        pub safe fn parker() -> Parker;
        #[link_name = "__pantala_ksync_park"]
        pub safe fn park();
        #[link_name = "__pantala_ksync_unpark"]
        pub safe fn unpark(parker: Parker);
        #[link_name = "__pantala_ksync_with_held"]
        pub safe fn with_held(f: &mut dyn FnMut(&HeldLocks));
        #[link_name = "__pantala_ksync_reclaim_soon"]
        pub safe fn reclaim_soon();
        #[link_name = "__pantala_ksync_thread"]
        pub safe fn thread() -> u32;
        #[link_name = "__pantala_ksync_spins"]
        pub safe fn spins(name: &'static str, holder: usize);
        #[link_name = "__pantala_ksync_sleeps_for_lock"]
        pub safe fn sleeps_for_lock(ticks: u64);
        #[link_name = "__pantala_ksync_lends"]
        pub safe fn lends(holder: u32, lock: usize);
        #[link_name = "__pantala_ksync_hands_over"]
        pub safe fn hands_over(lock: usize);
        #[link_name = "__pantala_ksync_still_waits"]
        pub safe fn still_waits(name: &'static str, holder: u32, ticks: u64);
        #[link_name = "__pantala_ksync_stall"]
        pub safe fn stall(name: &'static str, asleep: bool, ticks: u64);
    }
}

pub(crate) use symbols::*;

/// Makes `$t`, a [`Platform`], the machine for this binary's locks. Exactly once per binary, in a module that may
/// contain unsafe code.
#[macro_export]
macro_rules! platform {
    ($t:ty) => {
        const _: () = {
            use $crate::{HeldLocks, Parker, Platform};
    $crate::__platform_fn!($t, "__pantala_ksync_cpu", cpu() -> usize);
    $crate::__platform_fn!($t, "__pantala_ksync_preempt_disable", preempt_disable() -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_preempt_enable", preempt_enable() -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_preempt_count", preempt_count() -> usize);
    $crate::__platform_fn!($t, "__pantala_ksync_irq_save", irq_save() -> usize);
    $crate::__platform_fn!($t, "__pantala_ksync_irq_restore", irq_restore(s: usize) -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_ticks", ticks() -> u64);
    $crate::__platform_fn!($t, "__pantala_ksync_relax", relax() -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_doze", doze() -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_parker", parker() -> Parker);
    $crate::__platform_fn!($t, "__pantala_ksync_park", park() -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_unpark", unpark(p: Parker) -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_with_held",
                with_held(f: &mut dyn FnMut(&HeldLocks)) -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_reclaim_soon", reclaim_soon() -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_thread", thread() -> u32);
    $crate::__platform_fn!($t, "__pantala_ksync_spins",
                spins(name: &'static str, holder: usize) -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_sleeps_for_lock", sleeps_for_lock(ticks: u64) -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_lends", lends(holder: u32, lock: usize) -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_hands_over", hands_over(lock: usize) -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_still_waits",
                still_waits(name: &'static str, holder: u32, ticks: u64) -> ());
    $crate::__platform_fn!($t, "__pantala_ksync_stall",
                stall(name: &'static str, asleep: bool, ticks: u64) -> ());
        };
    };
}

/// Defines one symbol of [`platform!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __platform_fn {
    ($t:ty, $symbol:literal, $name:ident($($a:ident: $at:ty),*) -> $r:ty) => {
        // SAFETY: the name belongs to ksync, and a second definition fails to link.
        #[unsafe(export_name = $symbol)]
        extern "Rust" fn $name($($a: $at),*) -> $r {
            <$t as Platform>::$name($($a),*)
        }
    };
}
