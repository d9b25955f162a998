//! Balancing: the CPU to which a woken thread goes, and the thread that an idle CPU takes from another.

use ksync::atomic::Ordering;

use ksync::CpuPin;

use super::cpu::{Cpu, bump, cpus, load, thread_of, weight};
use super::queue::Queue;
use crate::thread::Thread;

/// CPUs among which a waker looks for an idle one, by number from the CPU on which the thread ran last.
const NEAR: usize = 16;
/// Queued threads that a CPU looks at in another's queue for one that may run on it.
const STEAL_LOOKS: usize = 8;

/// CPUs whose queues a CPU looks at for such a thread.
const STEAL_CPUS: usize = 4;

/// Whether a CPU is idle and has no thread to run. A hint.
fn idle(cpu: usize) -> bool {
    let c = cpus().of(cpu);
    c.idle.load(Ordering::Relaxed) && c.len.load(Ordering::Relaxed) == 0
}

/// An idle CPU, other than this one: the first from CPU `from` on, modulo the number of CPUs.
pub fn idle_cpu(pin: &CpuPin, from: u64) -> Option<usize> {
    let ncpus = cpus().ncpus();
    let from = (from % ncpus as u64) as usize;
    (from..from + ncpus)
        .map(|cpu| cpu % ncpus)
        .find(|&cpu| cpu != pin.cpu() && idle(cpu))
}

/// The CPU whose run queue a woken or new thread is put on: the one where it ran last if that is idle, else an idle one near
/// that, else of this one and that the one with less weight. It is one that the thread may run on. Takes no lock.
pub fn choose(pin: &CpuPin, t: &Thread) -> usize {
    let ncpus = cpus().ncpus();
    let may = t.sched.affinity();
    let last = t.cpu().min(ncpus - 1);
    if may.has(last) && idle(last) {
        return last;
    }
    let me = pin.cpu();
    for step in 1..ncpus.min(NEAR) {
        let cpu = (last + step) % ncpus;
        if may.has(cpu) && idle(cpu) {
            return cpu;
        }
    }
    match (may.has(me), may.has(last)) {
        (true, true) => {
            if weight(me) <= weight(last) {
                me
            } else {
                last
            }
        }
        (true, false) => me,
        (false, true) => last,
        (false, false) => may.first(ncpus).unwrap_or(me),
    }
}

/// The threads that a CPU may take from the queue of another one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Steal {
    /// Any: the CPU has nothing to run.
    Any,
    /// One after whose move the CPU that has more to do, be it the other one or this one, has less to do than before.
    Lighter,
    /// Such a one, or one by whose move the two CPUs change places.
    Turn,
}

/// Takes a thread from the run queue of the CPU that has most to do by the weights of its threads, for this CPU; or of the next
/// one, if the queue is locked, or none of its threads is found to be one of `which`: they may all be bound to that CPU. The
/// thread's virtual time is then relative, and the caller queues or runs the thread. Returns `None` if no such thread is found,
/// of [`STEAL_LOOKS`] on each of [`STEAL_CPUS`] CPUs. Locks are only tried.
pub fn steal(pin: &CpuPin, which: Steal) -> Option<u32> {
    let mine = match which {
        Steal::Any => 0,
        Steal::Lighter | Steal::Turn => weight(pin.cpu()),
    };
    let mut last = None;
    for _ in 0..STEAL_CPUS {
        let at = busiest(pin, mine, last)?;
        let fits = |t: &Thread| {
            let then = mine + t.sched.weight();
            match which {
                Steal::Any => true,
                Steal::Lighter => then < at.weight,
                Steal::Turn => then <= at.weight,
            }
        };
        let c = cpus().of(at.cpu(pin));
        if let Some(mut q) = c.queue.try_lock()
            && let Some(tid) = take(pin, c, &mut q, pin.cpu(), which, fits)
        {
            bump(&cpus().get(pin).stats.steals, 1);
            return Some(tid);
        }
        last = Some(at);
    }
    None
}

/// A CPU that has threads queued. The larger, the sooner a thread is taken from there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Busy {
    /// The sum of the weights of its threads.
    weight: u64,
    /// How many CPUs before this one it is, by number, modulo the number of CPUs.
    before: usize,
}

impl Busy {
    fn cpu(self, pin: &CpuPin) -> usize {
        let ncpus = cpus().ncpus();
        (pin.cpu() + ncpus - self.before) % ncpus
    }
}

/// The CPU that has most to do, more than `least`, and comes after `last`. One that comes after another has more threads than it can
/// run: a CPU that has just got its only thread, and does not run it yet, is left alone.
fn busiest(pin: &CpuPin, least: u64, last: Option<Busy>) -> Option<Busy> {
    let busy = |before| {
        let at = Busy { weight: 0, before };
        let cpu = at.cpu(pin);
        let queued = cpus().of(cpu).len.load(Ordering::Relaxed);
        // The hint may be older than the number.
        let weight = weight(cpu).max(1);
        let has_more = queued > 0 && (last.is_none() || load(cpu) > 1);
        (has_more && weight > least).then_some(Busy { weight, ..at })
    };
    let others = (1..cpus().ncpus()).filter_map(busy);
    others.filter(|at| last.is_none_or(|last| *at < last)).max()
}

/// Takes a thread that may run on CPU `to` from this CPU's run queue, for that CPU. The thread's virtual time is then relative, and
/// the caller queues the thread. Takes this queue's lock; `None` if none of the threads it looks at, [`STEAL_LOOKS`], may run
/// there.
pub fn give(pin: &CpuPin, to: usize) -> Option<u32> {
    let c = cpus().get(pin);
    take(pin, c, &mut c.queue.lock(), to, Steal::Any, |_| true)
}

/// Takes a thread that may run on CPU `to`, and that `fits` accepts, off `q`, which is the queue of `c`, and makes its virtual
/// time relative. Threads with real-time priorities, which have no weight to be divided, are taken by CPUs that have nothing to run, and
/// before others.
fn take(
    pin: &CpuPin,
    c: &Cpu,
    q: &mut Queue,
    to: usize,
    which: Steal,
    fits: impl Fn(&Thread) -> bool,
) -> Option<u32> {
    if which == Steal::Any && c.is_urgent() {
        let may = |t: &Thread| t.sched.affinity().has(to);
        let urgent = q.steal_urgent(pin, STEAL_LOOKS, may);
        if let Some(t) = urgent {
            c.queue_changed(q, -1);
            c.urgency_changed(q);
            return Some(t.tid());
        }
    }
    let base = q.base_vt();
    let tid = q.steal(pin, STEAL_LOOKS, |tid| {
        thread_of(pin, tid).is_some_and(|t| t.sched.affinity().has(to) && fits(t))
    })?;
    c.queue_changed(q, -1);
    let t = thread_of(pin, tid)?;
    t.sched.set_vt(t.sched.vt().saturating_sub(base));
    Some(tid)
}

/// A CPU that `t` may run on: this one if it may.
pub fn allowed(pin: &CpuPin, t: &Thread) -> usize {
    let me = pin.cpu();
    if t.sched.affinity().has(me) {
        me
    } else {
        t.sched.affinity().first(hal::cpu::count()).unwrap_or(me)
    }
}
