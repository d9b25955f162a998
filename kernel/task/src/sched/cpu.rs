//! A CPU's part of the scheduler, and what it counts.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ksync::{CpuPin, IrqSpin, Once, PerCpu};

use super::queue;
use crate::thread::Thread;
use crate::{ids, lock, time};

/// Nanoseconds between a busy CPU's ticks, and a thread's slice.
pub const TICK_NS: u64 = 4_000_000;

/// A CPU's part of the scheduler.
pub(super) struct Cpu {
    pub(super) queue: IrqSpin<queue::Queue, lock::RunQueueLock>,
    /// Threads queued.  Written under the lock; a hint to others.
    pub(super) len: AtomicU32,
    /// Halted, or about to be: needs an interrupt to notice a new thread.  Own CPU.
    pub(super) idle: AtomicBool,
    /// The number of what runs, 0 for idle.  Own CPU.
    pub(super) running: AtomicU32,
    /// Virtual time of what runs, as of its last switch or tick.  Own CPU.
    pub(super) running_vt: AtomicU64,
    /// The thread that the present switch leaves, and why.  Own CPU, preemption off.
    pub(super) leaving: AtomicU32,
    pub(super) leaving_why: AtomicU32,
    /// Its idle thread.  Set once.
    pub(super) idle_thread: Once<Arc<Thread>>,
    /// Counted events.  Own CPU.
    pub(super) stats: CpuStats,
}

/// A CPU's scheduling events and times.  Written by its own CPU.
#[derive(Default)]
pub struct CpuStats {
    /// Switches to another thread.
    pub switches: AtomicU64,
    /// Threads made.
    pub forks: AtomicU64,
    /// Threads taken from other CPUs.
    pub steals: AtomicU64,
    /// Reschedule interrupts sent.
    pub ipis: AtomicU64,
    /// Programs begun by execve.
    pub execs: AtomicU64,
    /// Children made by vfork, which borrow their parent's space.
    pub vforks: AtomicU64,
    /// Nanoseconds idle, interrupts left out, up to the last time that the CPU was; see [`idle_ns`].
    pub(super) idle_ns: AtomicU64,
    /// Since when it idles, 0 if it does not.
    pub(super) idle_since: AtomicU64,
    /// Nanoseconds in user mode, by ticks.
    pub user_ns: AtomicU64,
    /// Nanoseconds in user mode at positive nice, by ticks.
    pub nice_ns: AtomicU64,
    /// Nanoseconds in the kernel, by ticks.
    pub sys_ns: AtomicU64,
}

/// Adds to a counter that only this CPU writes.
pub(super) fn bump(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

static CPUS: Once<PerCpu<Cpu>> = Once::new();

/// Sets the scheduler up.  Once, by the boot CPU, before any thread.
#[inline(never)]
pub fn init(ncpus: usize) {
    CPUS.get_or_init(|| {
        PerCpu::new(ncpus, |_| Cpu {
            queue: IrqSpin::new(queue::Queue::new()),
            len: AtomicU32::new(0),
            idle: AtomicBool::new(false),
            running: AtomicU32::new(0),
            running_vt: AtomicU64::new(0),
            leaving: AtomicU32::new(0),
            leaving_why: AtomicU32::new(0),
            idle_thread: Once::new(),
            stats: CpuStats::default(),
        })
    });
}

pub(super) fn cpus() -> &'static PerCpu<Cpu> {
    CPUS.get()
        .expect("the scheduler is set up before any thread")
}

/// A CPU's counted events.
pub fn stats(cpu: usize) -> Option<&'static CpuStats> {
    let cpus = CPUS.get()?;
    (cpu < cpus.ncpus()).then(|| &cpus.of(cpu).stats)
}

/// Nanoseconds that a CPU has idled so far, interrupts left out.
pub fn idle_ns(cpu: usize) -> u64 {
    let Some(s) = stats(cpu) else { return 0 };
    loop {
        // It may go idle, or cease to, between the reads.
        let since = s.idle_since.load(Ordering::Acquire);
        let before = s.idle_ns.load(Ordering::Acquire);
        if s.idle_since.load(Ordering::Acquire) == since {
            return match since {
                0 => before,
                _ => before + time::monotonic_ns().saturating_sub(since),
            };
        }
    }
}

/// Notes that the current process runs a new program.
pub fn count_exec() {
    bump(&my_stats(&ksync::pin()).execs, 1);
}

/// Notes that a child borrows its parent's space.
pub fn count_vfork() {
    bump(&my_stats(&ksync::pin()).vforks, 1);
}

/// Threads that run or wait to run on `cpu`.  A hint.
pub fn load(cpu: usize) -> u32 {
    let c = cpus().of(cpu);
    c.len.load(Ordering::Relaxed) + u32::from(c.running.load(Ordering::Relaxed) != 0)
}

/// The thread that runs on `cpu`, 0 if it idles.  A hint.
pub fn running(cpu: usize) -> u32 {
    cpus().of(cpu).running.load(Ordering::Relaxed)
}

/// The thread that runs on this CPU has the number `tid` from now on.
pub fn renumbered(pin: &CpuPin, tid: u32) {
    cpus().of(pin.cpu()).running.store(tid, Ordering::Relaxed);
}

/// This CPU's counters.
pub(super) fn my_stats(pin: &CpuPin) -> &'static CpuStats {
    &cpus().of(pin.cpu()).stats
}

/// Threads that run or wait to run, everywhere.
pub fn runnable() -> u32 {
    (0..hal::cpu::count()).map(load).sum()
}

pub(super) fn thread_of(pin: &CpuPin, tid: u32) -> Option<&Thread> {
    ids::thread(pin, tid)
}
