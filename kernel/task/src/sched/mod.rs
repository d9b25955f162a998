//! The scheduler: which thread runs where.
//!
//! Each CPU has a run queue ([`queue`]) under its own lock; nothing is global.  A thread is on
//! at most one queue, or on a CPU.  A thread that leaves a CPU is queued, or declared asleep,
//! by the thread that comes after it ([`switch`]), when its registers are saved: so nobody
//! runs a thread that is still on its way out, and nobody waits for one.
//!
//! A woken thread goes to the CPU where it ran last if that idles, else to an idle CPU near,
//! else to the waker's or its own, whichever has less to do.  An idle CPU looks at the others'
//! lengths, which are hints read without locks, and takes a thread from the longest queue; a
//! busy CPU does the same now and then at a tick, if another has at least two more.

mod balance;
mod entity;
mod loadavg;
mod mask;
mod queue;
mod switch;

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ksync::{CpuPin, IrqSpin, Once, PerCpu, Run};

use crate::current::{current, try_current};
use crate::thread::{Thread, flag};
use crate::{ids, lock, time, timer, upcalls};

pub use entity::{Entity, Policy};
pub use loadavg::load_average;
pub use mask::CpuMask;
pub use switch::{Reason, first_switch, idle, switch_away, thread_start};

/// Nanoseconds between a busy CPU's ticks, and a thread's slice.
pub const TICK_NS: u64 = 4_000_000;

/// A CPU's part of the scheduler.
pub(crate) struct Cpu {
    queue: IrqSpin<queue::Queue, lock::RunQueueLock>,
    /// Threads queued.  Written under the lock; a hint to others.
    len: AtomicU32,
    /// Halted, or about to be: needs an interrupt to notice a new thread.  Own CPU.
    idle: AtomicBool,
    /// The number of what runs, 0 for idle.  Own CPU.
    running: AtomicU32,
    /// Virtual time of what runs, as of its last switch or tick.  Own CPU.
    running_vt: AtomicU64,
    /// The thread that the present switch leaves, and why.  Own CPU, preemption off.
    leaving: AtomicU32,
    leaving_why: AtomicU32,
    /// Its idle thread.  Set once.
    idle_thread: Once<Arc<Thread>>,
    /// Counted events.  Own CPU.
    stats: CpuStats,
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
    idle_ns: AtomicU64,
    /// Since when it idles, 0 if it does not.
    idle_since: AtomicU64,
    /// Nanoseconds in user mode, by ticks.
    pub user_ns: AtomicU64,
    /// Nanoseconds in user mode at positive nice, by ticks.
    pub nice_ns: AtomicU64,
    /// Nanoseconds in the kernel, by ticks.
    pub sys_ns: AtomicU64,
}

/// Adds to a counter that only this CPU writes.
pub(crate) fn bump(counter: &AtomicU64, n: u64) {
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

fn cpus() -> &'static PerCpu<Cpu> {
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

/// Interrupts another CPU, for it to look at its queue or its thread's flags.
fn kick(pin: &CpuPin, cpu: usize) {
    bump(&my_stats(pin).ipis, 1);
    hal::ipi::reschedule(cpu);
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
pub(crate) fn renumbered(pin: &CpuPin, tid: u32) {
    cpus().of(pin.cpu()).running.store(tid, Ordering::Relaxed);
}

/// This CPU's counters.
pub(crate) fn my_stats(pin: &CpuPin) -> &'static CpuStats {
    &cpus().of(pin.cpu()).stats
}

/// Makes a thread that sleeps, or is about to, run.  Does nothing to one that runs.
/// Callable from interrupts and with spin locks of ranks below the run queues' held; what the thread is to find has been
/// made visible by a read-modify-write, or under a lock that it takes.
pub fn wake(pin: &CpuPin, t: &Thread) {
    if t.state.wake() {
        let cpu = balance::choose(pin, t);
        let rested = t.sched.rested(time::monotonic_ns());
        t.sched.set_vt(t.sched.vt().saturating_sub(rested));
        enqueue(pin, cpu, t, true);
    }
}

/// Queues `t`, whose virtual time is relative, on `cpu`, and sees to it that the CPU notices.
fn enqueue(pin: &CpuPin, cpu: usize, t: &Thread, woken: bool) {
    let c = cpus().of(cpu);
    let mut q = c.queue.lock();
    let running = c.running.load(Ordering::Relaxed);
    let running_vt = c.running_vt.load(Ordering::Relaxed);
    if running != 0 {
        q.follow(running_vt);
    }
    t.sched.set_cpu(cpu);
    let base = q.base_vt();
    let vt = q.push(pin, t, base + t.sched.vt());
    t.sched.set_vt(vt);
    c.len.fetch_add(1, Ordering::SeqCst);
    drop(q);
    let idle = c.idle.load(Ordering::SeqCst);
    let preempts = running == 0
        || woken
            && t.sched.policy() == Policy::Other
            && queue::bucket(vt) < queue::bucket(running_vt);
    if cpu == pin.cpu() {
        if preempts {
            hal::preempt::set_need_resched();
        }
    } else if idle || preempts && running != 0 {
        kick(pin, cpu);
    }
}

/// Sleeps if the current thread is still declared waiting; returns when it runs again.
pub fn block() {
    let me = current();
    if me.state.get() == Run::Waiting {
        switch_away(Reason::Block);
    }
}

/// Gives the CPU to others that wait for it (sched_yield(2)).
pub fn yield_now() {
    switch_away(Reason::Yield);
}

/// Gives way if that is wanted and allowed.  Called at the end of interrupts that came with
/// preemption on, when preemption is enabled again, and before user mode.
pub fn preempt_check() {
    if hal::preempt::need_resched() && hal::preempt::count() == 0 {
        hal::sections::ended();
        switch_away(Reason::Preempt);
    }
}

/// What every interrupt handler here does first: an idle CPU is outside the epoch, and handlers look
/// things up.
pub fn interrupt() -> CpuPin {
    let pin = ksync::pin();
    if cpus().get(&pin).idle.load(Ordering::Relaxed) {
        mem::epoch().online(pin.cpu());
    }
    pin
}

/// Frees what this CPU retired long enough ago, and empties its caches if memory is wanted.  Interrupts are on.
pub fn reclaim() {
    current().clear(flag::RECLAIM);
    let mut pin = ksync::pin();
    mem::epoch().reclaim_all(&mut pin);
    mem::poll(&pin);
    drop(pin);
    mem::poll_more();
}

/// Has the current thread look after this CPU's retired memory before it next enters user mode; the next tick
/// asks the thread that runs then.
pub fn reclaim_soon() {
    if let Some(me) = try_current() {
        me.set(flag::RECLAIM);
    }
}

/// The timer's interrupt on this CPU.  Interrupts and preemption are off.
pub fn timer_interrupt(from_user: bool) {
    let begun = hal::time::ticks();
    // One level is the interrupt's own.
    let pinned = !from_user && hal::preempt::count() > 1;
    let pin = interrupt();
    if pinned && cpus().get(&pin).running.load(Ordering::Relaxed) != 0 {
        hal::sections::found();
    }
    if timer::run(&pin) {
        tick(&pin, from_user);
    }
    hal::sections::handled(begun, timer_interrupt as *const () as usize);
}

fn tick(pin: &CpuPin, from_user: bool) {
    let c = cpus().get(pin);
    if c.running.load(Ordering::Relaxed) == 0 {
        return;
    }
    let now = time::monotonic_ns();
    let me = current();
    let vt = me.sched.charge(now);
    c.running_vt.store(vt, Ordering::Relaxed);
    let (ticks, ns) = match (from_user, me.sched.nice() > 0) {
        (true, false) => (&me.usage.user_ticks, &c.stats.user_ns),
        (true, true) => (&me.usage.user_ticks, &c.stats.nice_ns),
        (false, _) => (&me.usage.sys_ticks, &c.stats.sys_ns),
    };
    ticks.fetch_add(1, Ordering::Relaxed);
    bump(ns, TICK_NS);
    let mut q = c.queue.lock();
    q.follow(vt);
    let first = q.first();
    drop(q);
    if first.is_some_and(|first| first <= queue::bucket(vt)) {
        hal::preempt::set_need_resched();
    }
    me.set(flag::RECLAIM);
    if pin.cpu() == 0 {
        loadavg::sample(now);
    }
    balance::at_tick(pin, now);
    (upcalls::get().cpu_tick)(&me, from_user, TICK_NS);
    timer::set_tick(pin, now + TICK_NS);
}

/// Another CPU asks this one to look at its queue.  Interrupts are off.
pub fn reschedule_interrupt() {
    let _pin = interrupt();
    hal::preempt::set_need_resched();
}

/// Asks the CPU that runs `t` to enter the kernel, so that `t` looks at its flags.
pub fn poke(pin: &CpuPin, t: &Thread) {
    let cpu = t.cpu();
    if cpu != pin.cpu() && running(cpu) == t.tid() {
        kick(pin, cpu);
    }
}

/// Lets `t` run on the CPUs of `mask` only; false if none of them exists.
pub fn set_affinity(t: &Thread, mask: &CpuMask) -> bool {
    let ncpus = hal::cpu::count();
    if mask.first(ncpus).is_none() {
        return false;
    }
    t.sched.affinity().assign(mask);
    let pin = ksync::pin();
    let cpu = t.cpu();
    if !mask.has(cpu) && running(cpu) == t.tid() {
        if cpu == pin.cpu() {
            hal::preempt::set_need_resched();
        } else {
            kick(&pin, cpu);
        }
    }
    true
}

/// Makes a new thread run for the first time, near its creator.
pub fn start(t: &Thread) {
    let pin = ksync::pin();
    bump(&my_stats(&pin).forks, 1);
    let cpu = balance::choose(&pin, t);
    enqueue(&pin, cpu, t, false);
}

/// Threads that run or wait to run, everywhere.
pub fn runnable() -> u32 {
    (0..hal::cpu::count()).map(load).sum()
}

fn thread_of(pin: &CpuPin, tid: u32) -> Option<&Thread> {
    ids::thread(pin, tid)
}
