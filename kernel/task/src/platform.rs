//! The machine and its threads, as the locks of `ksync` use them.

use hal::{MAX_CPUS, cpu, irq, percpu, preempt, sample, time};
use ksync::{HeldLocks, Parker, Platform};

use crate::current::{current, try_current};
use crate::park::{self, Deadline, Interruptible};
use crate::{ids, sched, watchdog};

hal::machine_static! {
    /// The locks that each CPU holds in an interrupt handler, or before it runs a thread. The two do not overlap, for interrupts
    /// are off until the first thread runs. Written by the CPU itself.
    static CPU_HELD: [HeldLocks; MAX_CPUS] = [const { HeldLocks::new() }; MAX_CPUS];
}

/// Gives thread `tid` the token for which it sleeps in a lock of `ksync`, and wakes it.
pub(crate) fn unpark(tid: u32) {
    let pin = ksync::pin();
    if let Some(t) = ids::thread(&pin, tid) {
        t.give_token();
        sched::wake(&pin, t);
    }
}

/// Implements the platform of `ksync` on this machine.
struct Machine;

impl Platform for Machine {
    #[inline(always)]
    fn cpu() -> usize {
        cpu::id()
    }

    #[inline(always)]
    fn preempt_disable() {
        preempt::disable();
    }

    #[inline(always)]
    fn preempt_enable() {
        preempt::enable();
    }

    #[inline(always)]
    fn preempt_count() -> usize {
        preempt::count() as usize
    }

    #[inline(always)]
    fn irq_save() -> usize {
        irq::save() as usize
    }

    #[inline(always)]
    fn irq_restore(state: usize) {
        irq::restore(state as irq::Flags);
    }

    #[inline(always)]
    fn ticks() -> u64 {
        time::ticks()
    }

    #[inline(always)]
    fn relax() {
        cpu::relax();
    }

    /// Sleeps for a quarter of a tick if the caller may sleep.
    fn doze() {
        if try_current().is_some() && preempt::count() == 0 {
            let soon = Deadline::after(sched::TICK_NS / 4);
            let _ = park::sleep_until(soon, Interruptible::No);
        } else {
            cpu::relax();
        }
    }

    fn parker() -> Parker {
        Parker(current().tid() as usize)
    }

    fn park() {
        park::park_for_token(&current());
    }

    fn unpark(parker: Parker) {
        unpark(parker.0 as u32);
    }

    #[inline(always)]
    fn thread() -> u32 {
        try_current().map_or(0, |me| me.tid())
    }

    fn spins(name: &'static str, holder: usize) {
        sample::spins(name, holder);
    }

    fn sleeps_for_lock(ticks: u64) {
        watchdog::sleeps_for_lock(ticks);
    }

    /// Lends weight to the caller, which is about to sleep for a lock, and to thread `holder`, if not 0; and to that the caller's
    /// real-time priority.
    fn lends(holder: u32, lock: usize) {
        let pin = ksync::pin();
        let priority = try_current().map_or(0, |me| me.priority());
        if priority > 0
            && let Some(t) = ids::thread(&pin, holder)
        {
            sched::lend_for_lock(&pin, t, priority, lock);
        }
        for tid in [Self::thread(), holder] {
            if let Some(t) = ids::thread(&pin, tid) {
                sched::lend(&pin, t);
            }
        }
    }

    fn hands_over(lock: usize) {
        if let Some(me) = try_current() {
            sched::lock_released(&ksync::pin(), &me, lock);
        }
    }

    fn still_waits(name: &'static str, holder: u32, ticks: u64) {
        watchdog::still_waits(name, holder, ticks);
    }

    fn stall(name: &'static str, asleep: bool, ticks: u64) {
        sample::stall(name, asleep, ticks);
    }

    fn reclaim_soon() {
        sched::reclaim_soon();
    }

    fn with_held(f: &mut dyn FnMut(&HeldLocks)) {
        let cpu = cpu::id();
        if percpu::is_handling() {
            return f(&CPU_HELD[cpu]);
        }
        match try_current() {
            Some(me) => f(me.held()),
            None => f(&CPU_HELD[cpu]),
        }
    }
}

ksync::platform!(Machine);
