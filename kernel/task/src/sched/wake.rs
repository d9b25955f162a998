//! Making threads run: new ones, woken ones, and those that have to look at their flags.

use core::sync::atomic::Ordering;

use ksync::CpuPin;

use super::cpu::{bump, cpus, my_stats, running};
use super::entity::Policy;
use super::mask::CpuMask;
use super::{balance, queue};
use crate::thread::Thread;
use crate::time;

/// Interrupts another CPU, for it to look at its queue or its thread's flags.
fn kick(pin: &CpuPin, cpu: usize) {
    bump(&my_stats(pin).ipis, 1);
    hal::ipi::reschedule(cpu);
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
pub(super) fn enqueue(pin: &CpuPin, cpu: usize, t: &Thread, woken: bool) {
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
