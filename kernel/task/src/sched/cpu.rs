//! The state that the scheduler keeps for each CPU, and its counters.

use alloc::sync::Arc;
use ksync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ksync::{CpuPin, IrqSpin, Once, PerCpu};

use super::queue;
use crate::thread::Thread;
use crate::{ids, lock};

/// Nanoseconds between the ticks of a busy CPU; a thread's time slice.
pub const TICK_NS: u64 = 4_000_000;

/// The state that the scheduler keeps for one CPU. Fields marked *own CPU* are written by that CPU only.
pub(super) struct Cpu {
    pub(super) queue: IrqSpin<queue::Queue, lock::RunQueueLock>,
    /// Threads on the queue. Written under the queue's lock; other CPUs read it as a hint.
    pub(super) len: AtomicU32,
    /// The sum of the weights of the threads on the queue. As `len`.
    pub(super) queued_weight: AtomicU64,
    /// Whether the CPU halts, or is about to, so that it notices a new thread only by an interrupt. Own CPU.
    pub(super) idle: AtomicBool,
    /// Tid of the running thread, 0 for the idle thread. Own CPU.
    pub(super) running: AtomicU32,
    /// Weight of the running thread as of the last switch or tick, 0 for the idle thread. Own CPU.
    pub(super) running_weight: AtomicU64,
    /// Virtual time of the running thread, as of the last switch or tick; 0 for one with a real-time priority, before which none comes by
    /// its virtual time. Own CPU.
    pub(super) running_vt: AtomicU64,
    /// What [`shown`](super::urgent::Urgent::shown) says: the highest real-time priority here, 0 for none. As `len`.
    pub(super) urgency: AtomicU32,
    /// Until when threads without real-time priorities come first, because the others have used up their time; 0 if they do not.
    /// Own CPU.
    pub(super) spent_until: AtomicU64,
    /// Tid of the thread that the switch in progress leaves, and the [`Reason`](super::Reason). Own CPU, preemption off.
    pub(super) leaving: AtomicU32,
    pub(super) leaving_why: AtomicU32,
    /// Virtual time at the queue's base when the thread was chosen to which that switch leads. Own CPU, preemption off.
    pub(super) leaving_base: AtomicU64,
    /// The CPU's idle thread. Set once.
    pub(super) idle_thread: Once<Arc<Thread>>,
    /// Counters. Own CPU.
    pub(super) stats: CpuStats,
}

impl Cpu {
    /// Records how many threads are on the queue `q`, which is this CPU's, and how much they weigh: `by` more than before.
    pub(super) fn queue_changed(&self, q: &queue::Queue, by: i32) {
        self.queued_weight
            .store(q.queued_weight(), Ordering::Relaxed);
        self.len.fetch_add(by.cast_unsigned(), Ordering::SeqCst);
    }

    /// Records what real-time priorities there are on the queue `q`, which is this CPU's, and run here.
    pub(super) fn urgency_changed(&self, q: &queue::Queue) {
        let urgency = q.urgent.shown();
        self.urgency.store(urgency.into(), Ordering::Relaxed);
    }

    /// Whether a real-time priority, queued or running, may decide what runs here. Exact under the queue's lock.
    #[inline]
    pub(super) fn is_urgent(&self) -> bool {
        self.urgency.load(Ordering::Relaxed) != 0
    }
}

/// Counters of one CPU's scheduling. Written by that CPU only.
#[derive(Default)]
pub struct CpuStats {
    /// Switches to another thread.
    pub switches: AtomicU64,
    /// Threads that were made on the CPU.
    pub forks: AtomicU64,
    /// Threads that the CPU has taken from the queues of others.
    pub steals: AtomicU64,
    /// Reschedule interrupts that the CPU has sent.
    pub ipis: AtomicU64,
    /// Programs begun by execve(2).
    pub execs: AtomicU64,
    /// Children that were made with their parent's address space, by vfork(2).
    pub vforks: AtomicU64,
    /// How long the CPU has been idle; see [`idle_ns`].
    pub(super) idle: IdleTime,
    /// Nanoseconds in user mode, counted in ticks.
    pub user_ns: AtomicU64,
    /// Nanoseconds in user mode at positive nice values, counted in ticks.
    pub nice_ns: AtomicU64,
    /// Nanoseconds in the kernel, counted in ticks.
    pub sys_ns: AtomicU64,
}

/// How long a CPU has been idle, in nanoseconds of the clock that stands still while the CPU handles interrupts. While the CPU
/// is idle: when it would have begun to be so if it had never been busy, with [`IDLE`](Self::IDLE). One word, so that a
/// reader never finds a period counted twice or not at all. Written by that CPU only.
#[derive(Default)]
pub(super) struct IdleTime(AtomicU64);

impl IdleTime {
    const IDLE: u64 = 1 << 63;

    /// The CPU becomes idle.
    pub(super) fn begin(&self, now: u64) {
        let sum = self.0.load(Ordering::Relaxed);
        self.0
            .store(now.saturating_sub(sum) | Self::IDLE, Ordering::Release);
    }

    /// The CPU is idle no longer.
    pub(super) fn end(&self, now: u64) {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(Self::at(word, now), Ordering::Release);
    }

    /// The sum until `now`, if `word` is that of now.
    fn at(word: u64, now: u64) -> u64 {
        match word & Self::IDLE {
            0 => word,
            _ => now.saturating_sub(word & !Self::IDLE),
        }
    }
}

/// Adds `n` to a counter that only this CPU writes.
pub(super) fn bump(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

hal::machine_static! {
    static CPUS: Once<PerCpu<Cpu>> = Once::new();
}

/// Sets the scheduler up. Called once, by the boot CPU, before any thread is made.
#[inline(never)]
pub(crate) fn init(ncpus: usize) {
    CPUS.get_or_init(|| {
        PerCpu::new(ncpus, |cpu| Cpu {
            queue: IrqSpin::new(queue::Queue::new(cpu)),
            len: AtomicU32::new(0),
            queued_weight: AtomicU64::new(0),
            idle: AtomicBool::new(false),
            running: AtomicU32::new(0),
            running_weight: AtomicU64::new(0),
            running_vt: AtomicU64::new(0),
            urgency: AtomicU32::new(0),
            spent_until: AtomicU64::new(0),
            leaving: AtomicU32::new(0),
            leaving_why: AtomicU32::new(0),
            leaving_base: AtomicU64::new(0),
            idle_thread: Once::new(),
            stats: CpuStats::default(),
        })
    });
}

pub(super) fn cpus() -> &'static PerCpu<Cpu> {
    CPUS.get()
        .expect("the scheduler is set up before any thread")
}

/// The counters of a CPU; `None` if there is no such CPU.
pub fn stats(cpu: usize) -> Option<&'static CpuStats> {
    let cpus = CPUS.get()?;
    (cpu < cpus.ncpus()).then(|| &cpus.of(cpu).stats)
}

/// Nanoseconds that a CPU has been idle so far, without the interrupts taken meanwhile.
pub fn idle_ns(cpu: usize) -> u64 {
    let Some(s) = stats(cpu) else { return 0 };
    loop {
        let word = s.idle.0.load(Ordering::Acquire);
        let now = hal::cpu::undisturbed_ns(cpu);
        // The CPU may have become idle, or busy, before the look at the clock: then both are read again.
        if s.idle.0.load(Ordering::Acquire) == word {
            return IdleTime::at(word, now);
        }
    }
}

/// Counts that the current process has executed a new program.
pub fn count_exec() {
    bump(&my_stats(&ksync::pin()).execs, 1);
}

/// Counts that a child was made with its parent's address space.
pub fn count_vfork() {
    bump(&my_stats(&ksync::pin()).vforks, 1);
}

/// Threads that run or are queued on `cpu`. A hint.
pub fn load(cpu: usize) -> u32 {
    let c = cpus().of(cpu);
    c.len.load(Ordering::Relaxed) + u32::from(c.running.load(Ordering::Relaxed) != 0)
}

/// The highest real-time priority of the threads that run or are queued on `cpu`, 0 for none; more than any if the CPU is about to look
/// at that of its running thread. A hint.
pub fn urgency(cpu: usize) -> u32 {
    cpus().of(cpu).urgency.load(Ordering::Relaxed)
}

/// The sum of the weights of the threads that run or are queued on `cpu`. A hint.
pub(super) fn weight(cpu: usize) -> u64 {
    let c = cpus().of(cpu);
    c.queued_weight.load(Ordering::Relaxed) + c.running_weight.load(Ordering::Relaxed)
}

/// Tid of the thread that runs on `cpu`, 0 if the CPU is idle. A hint.
pub fn running(cpu: usize) -> u32 {
    cpus().of(cpu).running.load(Ordering::Relaxed)
}

/// Records that the thread that runs on this CPU has the tid `tid` from now on.
pub fn renumbered(pin: &CpuPin, tid: u32) {
    cpus().of(pin.cpu()).running.store(tid, Ordering::Relaxed);
}

/// The counters of this CPU.
pub(super) fn my_stats(pin: &CpuPin) -> &'static CpuStats {
    &cpus().of(pin.cpu()).stats
}

/// Threads that run or are queued on any CPU. A hint.
pub fn runnable() -> u32 {
    (0..hal::cpu::count()).map(load).sum()
}

pub(super) fn thread_of(pin: &CpuPin, tid: u32) -> Option<&Thread> {
    ids::thread(pin, tid)
}
