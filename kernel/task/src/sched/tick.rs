//! What the clock's tick and other CPUs' requests do on a CPU.

use core::sync::atomic::Ordering;

use ksync::CpuPin;

use super::cpu::{TICK_NS, bump, cpus, thread_of};
use super::wake::enqueue;
use super::{balance, loadavg, queue};
use crate::current::{current, try_current};
use crate::thread::flag;
use crate::{time, timer, upcalls};

/// A busy CPU compares itself with the others in one of this many ticks.
const BALANCE_TICKS: u64 = 8;

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
    take_share(pin, now);
    (upcalls::get().cpu_tick)(&me, from_user, TICK_NS);
    timer::set_tick(pin, now + TICK_NS);
}

/// Another CPU asks this one to look at its queue.  Interrupts are off.
pub fn reschedule_interrupt() {
    let _pin = interrupt();
    hal::preempt::set_need_resched();
}

/// Now and then a busy CPU takes a thread from one that has at least two more.
fn take_share(pin: &CpuPin, now: u64) {
    if !(now / TICK_NS + pin.cpu() as u64).is_multiple_of(BALANCE_TICKS) {
        return;
    }
    if let Some(tid) = balance::steal(pin, false)
        && let Some(t) = thread_of(pin, tid)
    {
        enqueue(pin, pin.cpu(), t, false);
    }
}
