//! The running thread, and the machine as the locks see it.

use alloc::sync::Arc;

use hal::current::ThreadObject;
use hal::{MAX_CPUS, cpu, irq, percpu, preempt, sample, time};
use ksync::{HeldLocks, Parker, Platform};
use mem::Space;

use super::{Thread, upcall};
use crate::fs::{FdTable, FsContext};

hal::thread_type!(RUNNING, Thread);

/// The running thread, as seen by itself.
pub type Current = hal::current::Current<Thread>;

/// What one thread alone uses: it is reached through [`Current::own`] only.
pub type Own = hal::current::Own<OwnState>;

/// See [`Own`].
#[derive(Default)]
pub struct OwnState {
    /// The address space that the thread was last seen to be in.
    pub space: Option<Arc<Space>>,
    /// The descriptors that it used last.
    pub files: Option<Arc<FdTable>>,
    /// The directories that it used last.
    pub fs: Option<Arc<FsContext>>,
}

impl OwnState {
    /// The state of a new thread.
    pub const fn new() -> OwnState {
        OwnState {
            space: None,
            files: None,
            fs: None,
        }
    }
}

impl ThreadObject for Thread {
    type Own = OwnState;

    #[inline(always)]
    fn own(&self) -> &Own {
        &self.own
    }
}

/// The running thread.  Not to be called before the first one runs on this CPU.
#[inline(always)]
pub fn current() -> Current {
    RUNNING.current()
}

/// The running thread, if the CPU has one yet.
#[inline(always)]
pub fn try_current() -> Option<Current> {
    RUNNING.try_current()
}

/// Makes `thread` the running one.  Called by the scheduler, with preemption off, for a thread that
/// stays alive until another has run on this CPU.
#[inline]
pub fn set_current(thread: &Thread) {
    RUNNING.set_current(thread);
}

/// Locks that an interrupt handler holds, or the CPU before it has a thread; interrupts are off then, so the two never
/// meet.  Own CPU.
static CPU_HELD: [HeldLocks; MAX_CPUS] = [const { HeldLocks::new() }; MAX_CPUS];

/// This machine under the locks of `ksync`.
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

    fn doze() {
        upcall::doze();
    }

    fn parker() -> Parker {
        Parker(current().tid() as usize)
    }

    fn park() {
        upcall::park();
    }

    fn unpark(parker: Parker) {
        upcall::unpark(parker.0 as u32);
    }

    #[inline(always)]
    fn thread() -> u32 {
        try_current().map_or(0, |me| me.tid())
    }

    fn spins(name: &'static str, holder: usize) {
        sample::spins(name, holder);
    }

    fn sleeps_for_lock(ticks: u64) {
        upcall::sleeps_for_lock(ticks);
    }

    fn still_waits(name: &'static str, holder: u32, ticks: u64) {
        upcall::still_waits(name, holder, ticks);
    }

    fn stall(name: &'static str, asleep: bool, ticks: u64) {
        sample::stall(name, asleep, ticks);
    }

    fn reclaim_soon() {
        upcall::reclaim_soon();
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
