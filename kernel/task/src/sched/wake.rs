//! Making threads run: new threads, woken threads, and running threads that must look at their flags.

use ksync::atomic::Ordering;

use ksync::CpuPin;

use super::cpu::{bump, cpus, my_stats, running};
use super::mask::CpuMask;
use super::{balance, queue, real_time};
use crate::thread::{Thread, flag};
use crate::time;

/// Why a thread is put on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is new, it has had its turn, or balancing moves it.
    Usual,
    /// It has been woken.
    Woken,
    /// It has been preempted, or its real-time priority is lower now: it is the first of that priority.
    Kept,
    /// It must not stay on the CPU that it was queued on or that ran it.
    Banned,
}

impl Arrival {
    /// Whether a thread whose virtual time is `vt` is to run before the thread that runs with `running_vt`; one that has woken
    /// does so only if it is `eager`. A banned thread does if their turns are the same: it may be banned again before that thread's turn is
    /// over, and would never run.
    fn preempts(self, eager: bool, vt: u64, running_vt: u64) -> bool {
        match self {
            Arrival::Usual | Arrival::Kept => false,
            Arrival::Woken => eager && queue::bucket(vt) < queue::bucket(running_vt),
            Arrival::Banned => queue::bucket(vt) <= queue::bucket(running_vt),
        }
    }
}

/// Sends CPU `cpu` a reschedule interrupt, so that it looks at its run queue or its thread at its flags.
pub(super) fn kick(pin: &CpuPin, cpu: usize) {
    bump(&my_stats(pin).ipis, 1);
    hal::ipi::reschedule(cpu);
}

/// Makes a thread run that sleeps or is about to sleep. Does nothing to a thread that runs. May be called from interrupt
/// handlers, and with spin locks held whose ranks are below the run queues', of which it takes one. What the thread is to see
/// must have been written by a read-modify-write operation, or under a lock that the thread takes.
pub fn wake(pin: &CpuPin, t: &Thread) {
    if t.state.wake() {
        let cpu = balance::choose(pin, t);
        enqueue(pin, cpu, t, Arrival::Woken);
    }
}

/// Puts `t`, whose virtual time is relative, on the queue of `cpu`, under that queue's lock. Interrupts that CPU if it is idle,
/// or if `t` is to run before its present thread; on this CPU it asks for a reschedule instead. What a thread that has been woken
/// was ahead of the others shrinks by the virtual time that has passed while it slept.
pub(super) fn enqueue(pin: &CpuPin, cpu: usize, t: &Thread, why: Arrival) {
    let c = cpus().of(cpu);
    // Before the lock, which is a full barrier, and its weight and class after it: `lend` changes the weight and then looks for the
    // queue.
    t.sched.set_cpu(cpu);
    let mut q = c.queue.lock();
    let class = t.sched.class();
    if class.is_real_time() {
        drop(q);
        return real_time::enqueue(pin, cpu, t, why);
    }
    let running = c.running.load(Ordering::Relaxed);
    let running_vt = c.running_vt.load(Ordering::Relaxed);
    if running != 0 {
        q.follow(running_vt);
    }
    let woken = why == Arrival::Woken;
    let eager = woken && class.is_other();
    if woken {
        t.sched.has_slept();
        let passed = q.progress(t.sched.rested(time::monotonic_ns()));
        t.sched.set_vt(t.sched.vt().saturating_sub(passed));
    }
    let ahead = if t.sched.is_hurried() {
        // What it ran with less weight has put it far ahead.
        t.sched.vt().min(1 << queue::BUCKET_SHIFT)
    } else {
        t.sched.vt()
    };
    let base = q.base_vt();
    let vt = q.push(pin, t, base + ahead, eager);
    t.sched.set_vt(vt);
    c.queue_changed(&q, 1);
    drop(q);
    // After the length: either this finds the CPU idle, or that CPU finds the thread before it halts.
    let idle = c.idle.load(Ordering::SeqCst);
    let preempts = running == 0 || why.preempts(eager, vt, running_vt);
    if cpu == pin.cpu() {
        if preempts {
            hal::preempt::set_need_resched();
        }
    } else if idle || preempts && running != 0 {
        kick(pin, cpu);
    }
}

/// Makes the CPU that runs `t` enter the kernel, so that `t` looks at its flags. Does nothing if `t` does not run, or runs on
/// this CPU.
pub fn poke(pin: &CpuPin, t: &Thread) {
    let cpu = t.cpu();
    if cpu != pin.cpu() && running(cpu) == t.tid() {
        kick(pin, cpu);
    }
}

/// Lets `t`, which is to end, run as soon as a thread of nice 0 would, now if it is queued, and whenever it is queued from now on:
/// others may wait for what it has. Takes a run queue's lock if `t` had less weight than nice 0.
pub fn hurry(pin: &CpuPin, t: &Thread) {
    if t.sched.hurry() {
        advance(pin, t);
    }
}

/// As [`hurry`], until `t` enters user mode: it has a lock that the caller is about to wait for, or waits for one itself. A thread of
/// SCHED_IDLE that was preempted with a lock would else keep it for minutes, and root could not make a file in /tmp. Does nothing
/// to one that has the weight of nice 0.
pub fn lend(pin: &CpuPin, t: &Thread) {
    if t.sched.lend() {
        t.set(flag::LENT);
        advance(pin, t);
    }
}

/// Ends [`lend`] and `real_time::lend_for_lock` to `t`, the caller, which has no lock. To be called now and then by kernel threads of
/// little weight, which never enter user mode.
pub fn give_back(t: &Thread) {
    // In this order: a thread that lends again meanwhile sets the flag last.
    t.clear(flag::LENT);
    t.sched.give_back();
    real_time::give_back(t);
}

/// Moves `t`, if it is queued, to the end of the first list of its queue that takes threads, and counts its present weight. Takes
/// the queue's lock.
fn advance(pin: &CpuPin, t: &Thread) {
    let cpu = t.cpu();
    let c = cpus().of(cpu);
    let mut q = c.queue.lock();
    // One with a real-time priority runs before all that have none.
    if q.holds(t) && !q.is_urgent(t) {
        q.remove(pin, t);
        let base = q.base_vt();
        let vt = q.push(pin, t, base, false);
        t.sched.set_vt(vt);
        c.queue_changed(&q, 0);
    }
}

/// Moves `t` to a CPU that it may run on, if it is queued on one that it may not run on. Takes the locks of the two queues, one
/// after the other.
fn requeue(pin: &CpuPin, t: &Thread) {
    let cpu = t.cpu();
    let c = cpus().of(cpu);
    let mut q = c.queue.lock();
    if !q.holds(t) || t.sched.affinity().has(cpu) {
        return;
    }
    q.withdraw(pin, t);
    c.queue_changed(&q, -1);
    c.urgency_changed(&q);
    drop(q);
    enqueue(pin, balance::allowed(pin, t), t, Arrival::Banned);
}

/// Restricts `t` to the CPUs of `mask`; false, with nothing changed, if none of them exists. A queued thread moves at once, so
/// that no CPU finds many to be moved when it chooses; a CPU that runs the thread is asked to reschedule, and so leaves it soon;
/// a sleeping one moves when it is woken. Takes run queues' locks.
pub fn set_affinity(t: &Thread, mask: &CpuMask) -> bool {
    let ncpus = hal::cpu::count();
    if mask.first(ncpus).is_none() {
        return false;
    }
    t.sched.affinity().assign(mask);
    let pin = ksync::pin();
    requeue(&pin, t);
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

/// Makes a new thread run for the first time. Its CPU is chosen as for a woken thread.
pub fn start(t: &Thread) {
    let pin = ksync::pin();
    bump(&my_stats(&pin).forks, 1);
    let cpu = balance::choose(&pin, t);
    enqueue(&pin, cpu, t, Arrival::Usual);
}
