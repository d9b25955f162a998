//! What the clock's tick and the requests of other CPUs do on a CPU.

use ksync::atomic::Ordering;

use hal::current::Handler;
use ksync::CpuPin;

use super::balance::{self, Steal};
use super::cpu::{TICK_NS, bump, cpus, thread_of};
use super::wake::{Arrival, enqueue};
use super::{loadavg, queue, real_time};
use crate::current::{current, try_current};
use crate::thread::flag;
use crate::{time, timer, upcalls};

/// A busy CPU compares its load with the others' at one of this many ticks, and then gives an idle one a thread.
const BALANCE_TICKS: u64 = 8;
/// In one of this many rounds of balancing, threads take turns. Not a multiple of the above: see [`balance_round`].
const TURN_ROUNDS: u64 = 7;

/// Brings an idle CPU back into the epoch and turns preemption off. Every interrupt handler that follows pointers under the
/// epoch calls this first, because grace periods do not wait for an idle CPU.
pub fn interrupt() -> CpuPin {
    let pin = ksync::pin();
    if cpus().get(&pin).idle.load(Ordering::Relaxed) {
        mem::epoch().online(pin.cpu());
    }
    pin
}

/// Frees, of what this CPU retired, all that is past its grace period, which it lets pass if no other CPU prevents it, and
/// empties this CPU's caches if memory is wanted. Ends the request of [`reclaim_soon`]. Called with interrupts and preemption on.
pub fn reclaim() {
    current().clear(flag::RECLAIM);
    let mut pin = ksync::pin();
    mem::epoch().reclaim_all(&mut pin);
    mem::poll(&pin);
    drop(pin);
    mem::poll_more();
}

/// Makes the current thread free this CPU's retired memory before it next enters user mode. Every tick asks the thread that
/// runs then, too.
pub fn reclaim_soon() {
    if let Some(me) = try_current() {
        me.set(flag::RECLAIM);
    }
}

/// The timer interrupt of this CPU. Interrupts and preemption are off.
pub fn timer_interrupt(from_user: bool) {
    let _handler = Handler::begin();
    let begun = hal::time::ticks();
    // One level of the count is the interrupt's own.
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

/// The scheduler's tick, of a CPU that runs a thread: charges the thread, asks for a reschedule if another one is to run or it
/// may not stay here, balances, and asks for the next tick. Takes run queues' locks, and only tries those of other CPUs to take a
/// thread. Does nothing, and asks for no other tick, while the CPU is idle.
fn tick(pin: &CpuPin, from_user: bool) {
    let c = cpus().get(pin);
    if c.running.load(Ordering::Relaxed) == 0 {
        return;
    }
    let now = time::monotonic_ns();
    let me = current();
    let vt = me.sched.charge(now);
    c.running_vt.store(vt, Ordering::Relaxed);
    // Its nice value and its policy may have changed.
    c.running_weight.store(me.sched.weight(), Ordering::Relaxed);
    let (ticks, ns) = match (from_user, me.sched.nice() > 0) {
        (true, false) => (&me.usage.user_ticks, &c.stats.user_ns),
        (true, true) => (&me.usage.user_ticks, &c.stats.nice_ns),
        (false, _) => (&me.usage.sys_ticks, &c.stats.sys_ns),
    };
    ticks.fetch_add(1, Ordering::Relaxed);
    bump(ns, TICK_NS);
    let mut q = c.queue.lock();
    q.begin_choice(now);
    let first = q.follow(vt);
    let mut gives_way = first.is_some_and(|first| first <= queue::bucket(vt));
    let mut next = now + TICK_NS;
    let mut waits = false;
    if c.is_urgent() {
        let decided;
        (decided, next) = real_time::tick(c, &mut q, &me, now);
        gives_way = decided.unwrap_or(gives_way);
        waits = !gives_way && q.urgent.highest() > 0;
    }
    drop(q);
    // A change of its affinity may have come while it was on its way from the queue, when it is found on no CPU.
    let must_move = !me.sched.affinity().has(pin.cpu());
    if must_move || gives_way {
        hal::preempt::set_need_resched();
    }
    if waits {
        real_time::push_away(pin, c);
    }
    me.set(flag::RECLAIM);
    loadavg::sample(now);
    if let Some(round) = balance_round(pin, now) {
        take_share(pin, round);
        if first.is_some() {
            give_share(pin, round);
        }
    }
    (upcalls::get().cpu_tick)(&me);
    timer::set_tick(pin, next);
}

/// Another CPU asks this one to look at its run queue. Interrupts are off.
pub fn reschedule_interrupt() {
    let _handler = Handler::begin();
    let _pin = interrupt();
    hal::preempt::set_need_resched();
}

/// The number of the round of balancing for which the tick at `now` is the one of [`BALANCE_TICKS`]. It comes at another place
/// in each round: threads that take turns would else be found in the same places of the queue each time.
fn balance_round(pin: &CpuPin, now: u64) -> Option<u64> {
    let count = now / TICK_NS + pin.cpu() as u64;
    let round = count / BALANCE_TICKS;
    (count % BALANCE_TICKS == round % BALANCE_TICKS).then_some(round)
}

/// Takes a thread from a CPU that has more to do than this one. Threads that no move can divide evenly take turns on the CPUs
/// that have less to do: now and then, in a round other than that of the neighbours, one moves for no more than that.
fn take_share(pin: &CpuPin, round: u64) {
    let turn = (round + 3 * pin.cpu() as u64).is_multiple_of(TURN_ROUNDS);
    let which = if turn { Steal::Turn } else { Steal::Lighter };
    if let Some(tid) = balance::steal(pin, which)
        && let Some(t) = thread_of(pin, tid)
    {
        enqueue(pin, pin.cpu(), t, Arrival::Usual);
    }
}

/// Gives an idle CPU, if there is one, a thread that is queued here: that CPU may have halted before the thread came, or have
/// found this queue locked, or empty during a switch. Threads may be bound to some CPUs, so after the rounds with a tick at each
/// place another idle CPU comes first.
fn give_share(pin: &CpuPin, round: u64) {
    if let Some(cpu) = balance::idle_cpu(pin, round / BALANCE_TICKS)
        && let Some(tid) = balance::give(pin, cpu)
        && let Some(t) = thread_of(pin, tid)
    {
        enqueue(pin, cpu, t, Arrival::Usual);
    }
}
