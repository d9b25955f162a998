//! The running thread, and the machine as the locks see it.

#![expect(
    unsafe_code,
    reason = "the current thread is a raw pointer of the CPU, typed here"
)]

use alloc::sync::Arc;
use core::cell::RefCell;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

use ksync::{HeldLocks, Parker, Platform};

use super::{MAX_CPUS, cpu, irq, percpu, preempt, sample, time};
use crate::fs::{FdTable, FsContext};
use crate::kern::{Thread, upcall};
use crate::mm::Space;

/// The running thread, as seen by itself.
///
/// It can neither be sent away nor outlive the thread's stack, so the thread outlives it.
#[derive(Clone, Copy)]
pub struct Current {
    thread: NonNull<Thread>,
    /// Belongs to the thread that asked.
    _local: PhantomData<*mut ()>,
}

impl Deref for Current {
    type Target = Thread;
    #[inline(always)]
    fn deref(&self) -> &Thread {
        // SAFETY: the scheduler installs only threads that it keeps alive until after they have left the
        // CPU for the last time, and a `Current` lives on the stack of its own thread.
        unsafe { self.thread.as_ref() }
    }
}

/// What one thread alone uses: it is reached through [`Current::own`] only.
pub struct Own(RefCell<OwnState>);

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

impl Own {
    /// The state of a new thread.
    pub const fn new() -> Own {
        Own(RefCell::new(OwnState {
            space: None,
            files: None,
            fs: None,
        }))
    }
}

// SAFETY: the cell is reached through a `Current` alone, which only its own thread has and which cannot be
// shared with another one; whoever drops the thread is the only user by then.
unsafe impl Sync for Own where OwnState: Send {}

impl Current {
    /// The thread's own state.
    #[inline(always)]
    pub fn own(&self) -> &RefCell<OwnState> {
        &self.deref().own.0
    }
}

/// The running thread.  Not to be called before the first one runs on this CPU.
#[inline(always)]
pub fn current() -> Current {
    match NonNull::new(percpu::current().cast::<Thread>()) {
        Some(thread) => Current {
            thread,
            _local: PhantomData,
        },
        None => no_thread(),
    }
}

#[cold]
fn no_thread() -> ! {
    panic!("no thread runs on this CPU yet")
}

/// The running thread, if the CPU has one yet.
pub fn try_current() -> Option<Current> {
    NonNull::new(percpu::current().cast::<Thread>()).map(|thread| Current {
        thread,
        _local: PhantomData,
    })
}

/// Makes `thread` the running one.  Called by the scheduler, with preemption off, for a thread that
/// stays alive until another has run on this CPU.
#[inline]
pub fn set_current(thread: &Thread) {
    percpu::set_current(core::ptr::from_ref(thread).cast_mut().cast());
}

/// Locks that an interrupt handler holds, or the CPU before it has a thread; interrupts are off then, so the two never
/// meet.  Own CPU.
static CPU_HELD: [HeldLocks; MAX_CPUS] = [const { HeldLocks::new() }; MAX_CPUS];

/// An interrupt handler at work.
///
/// Its locks are ordered among themselves.  Those that the interrupted thread holds do not count: a
/// handler takes only locks that threads take with interrupts off, so none that it waits for is held
/// below it.
pub struct Handler(());

impl Handler {
    /// Called at the beginning, with interrupts off.
    pub fn begin() -> Self {
        percpu::set_handling(true);
        Handler(())
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        percpu::set_handling(false);
    }
}

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
