//! Threads with real-time priorities: SCHED_FIFO, SCHED_RR, and threads that have been lent a priority.
//!
//! Guarantee: on each CPU the thread with the highest priority runs, before all without one; among those of one priority, the one
//! that is first on their list. A thread that becomes runnable is put on a CPU that runs something lower, if its own does not.
//! `doc/scheduling.md` says all of it, and why no thread of the kernel starves.
//!
//! What ordinary threads pay is one test of [`Cpu::is_urgent`] when a CPU chooses, and one of the class of a thread that is queued, in
//! place of a test of its policy. All else is here, out of line.

use core::cell::Cell;

use ksync::atomic::Ordering;

use ksync::{CpuPin, Run};

use super::balance;
use super::bound::Left;
use super::class::{Class, HIGHEST, Lender, LockLoan, Policy, Setting};
use super::cpu::{Cpu, TICK_NS, cpus};
use super::queue::Queue;
use super::wake::{self, Arrival, kick};
use crate::thread::{Thread, flag};
use crate::time;

/// Queued threads that a tick looks at for one that another CPU would run at once.
const PUSH_LOOKS: usize = 8;

/// What a CPU is to run, if real-time priorities decide.
pub(super) enum Pick<'p> {
    /// This thread, which has been taken off the queue.
    Thread(&'p Thread),
    /// The present thread.
    Present,
    /// The first of the threads without such priorities; the present one counts among them only if this is true.
    Ordinary(bool),
}

/// How the present thread comes to the choice of the next one.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    /// It may go on.
    pub stays: bool,
    /// It lets others of its priority run first.
    pub yields: bool,
    pub now: u64,
}

/// Counts the time that the present thread `me` has run with a real-time priority. Returns what is left of the period for such
/// threads.
fn count(q: &mut Queue, me: &Thread, now: u64) -> Left {
    let ran = match q.urgent.running() {
        0 => 0,
        _ => now.saturating_sub(q.urgent.since),
    };
    q.urgent.since = now;
    if ran > 0 {
        me.sched.ran_real_time(ran);
    }
    q.urgent.time.add(ran, now)
}

/// Decides whether a thread with a real-time priority runs next, where there may be one; takes it off `q`, the queue of `c`.
/// The caller has charged `me` and holds the queue's lock.
#[cold]
pub(super) fn choose<'p>(
    pin: &'p CpuPin,
    c: &Cpu,
    q: &mut Queue,
    me: &Thread,
    turn: Turn,
) -> Pick<'p> {
    let left = count(q, me, turn.now);
    let mine = if turn.stays { me.sched.priority() } else { 0 };
    let highest = q.urgent.highest();
    let ordinary = q.first().is_some() || turn.stays && mine == 0;
    let spent = left.is_spent() && ordinary;
    let until = if spent { left.until } else { 0 };
    c.spent_until.store(until, Ordering::Relaxed);
    if mine.max(highest) == 0 || spent {
        q.urgent.runs(0);
        c.urgency_changed(q);
        return Pick::Ordinary(turn.stays && mine == 0);
    }
    let gives_way = turn.yields || me.sched.slice_is_over();
    let next = if mine > highest || mine == highest && !gives_way {
        if me.sched.slice_is_over() {
            me.sched.renew_slice();
        }
        None
    } else {
        q.pop_urgent(pin)
    };
    match next {
        Some(t) => {
            begins(c, q, t);
            c.queue_changed(q, -1);
            Pick::Thread(t)
        }
        None => {
            begins(c, q, me);
            Pick::Present
        }
    }
}

/// `t`, which is on no queue, is what the CPU `c` runs from now on. Under the lock of its queue `q`.
pub(super) fn begins(c: &Cpu, q: &mut Queue, t: &Thread) {
    // It may have lost its priority since it was queued.
    let priority = t.sched.priority();
    q.urgent.runs(priority);
    c.urgency_changed(q);
    // Ordinary threads that wake find that their time has not come.
    let vt = if priority == 0 { t.sched.vt() } else { 0 };
    c.running_vt.store(vt, Ordering::Relaxed);
}

/// As [`begins`], for a thread that this idle CPU has taken from another one at the time `now`.
#[cold]
pub(super) fn begins_here(c: &Cpu, q: &mut Queue, t: &Thread, now: u64) {
    q.urgent.since = now;
    begins(c, q, t);
}

/// What a tick does about real-time priorities, under the lock of `q`, the queue of `c`, which runs `me`: returns whether another
/// thread is to run, if such priorities decide that, and when the next tick is due.
#[cold]
pub(super) fn tick(c: &Cpu, q: &mut Queue, me: &Thread, now: u64) -> (Option<bool>, u64) {
    let left = count(q, me, now);
    let (mine, highest) = (me.sched.priority(), q.urgent.highest());
    let usual = now + TICK_NS;
    if mine == 0 {
        let waits = highest > 0 && !left.is_spent();
        let next = if highest > 0 { left.until } else { usual };
        // Its priority may have been taken from it as it ran.
        return (waits.then_some(true), next.clamp(now + 1, usual));
    }
    c.running_vt.store(0, Ordering::Relaxed);
    let others = q.first().is_some();
    let over = me.sched.slice_is_over();
    if over && highest < mine {
        me.sched.renew_slice();
    }
    let spent = left.is_spent() && others;
    let next = match left.ns {
        0 => usual,
        ns => usual.min(now.saturating_add(ns)),
    };
    let resched = spent || highest > mine || highest == mine && over || q.urgent.running() != mine;
    (Some(resched), next)
}

/// Gives a thread that waits on this CPU behind others with real-time priorities to a CPU that runs something lower. Takes the locks of
/// both queues, one after the other. Called at ticks.
#[cold]
pub(super) fn push_away(pin: &CpuPin, c: &Cpu) {
    let here = pin.cpu();
    let target = Cell::new(here);
    let mut q = c.queue.lock();
    let moves = |t: &Thread| {
        target.set(place(t, here, t.sched.priority(), true));
        target.get() != here
    };
    let Some(t) = q.steal_urgent(pin, PUSH_LOOKS, moves) else {
        return;
    };
    c.queue_changed(&q, -1);
    c.urgency_changed(&q);
    drop(q);
    wake::enqueue(pin, target.get(), t, Arrival::Usual);
}

/// The CPU for `t`, which would go to `cpu`: that one, unless it runs or has queued something of the same priority or a higher one, or
/// `t` is to `leave` it; then the one with the lowest, if that is lower. One that `t` may run on. CPUs are asked without locks.
fn place(t: &Thread, cpu: usize, priority: u8, leave: bool) -> usize {
    let now = time::monotonic_ns();
    let urgency = |cpu: usize| {
        let c = cpus().of(cpu);
        if c.spent_until.load(Ordering::Relaxed) > now {
            u32::from(HIGHEST) + 1
        } else {
            c.urgency.load(Ordering::Relaxed)
        }
    };
    let may = t.sched.affinity();
    let suits = |cpu: usize| may.has(cpu) && urgency(cpu) < priority.into();
    if !leave && suits(cpu) {
        return cpu;
    }
    let others = (0..cpus().ncpus()).filter(|&other| other != cpu && suits(other));
    // An idle one before one that runs an ordinary thread.
    let lowest = others.min_by_key(|&other| (urgency(other), super::running(other) != 0));
    match lowest {
        Some(other) => other,
        None if may.has(cpu) => cpu,
        None => may.first(cpus().ncpus()).unwrap_or(cpu),
    }
}

/// Puts `t`, which has a real-time priority and a relative virtual time, on the queue of `cpu` or of one that runs something lower,
/// and interrupts that CPU if it is to run `t` at once.
#[cold]
pub(super) fn enqueue(pin: &CpuPin, cpu: usize, t: &Thread, why: Arrival) {
    let cpu = place(t, cpu, t.sched.priority(), false);
    let c = cpus().of(cpu);
    // Before the lock, and the priority is read after it: see `changed`.
    t.sched.set_cpu(cpu);
    let mut q = c.queue.lock();
    let priority = t.sched.priority();
    if priority == 0 {
        drop(q);
        return wake::enqueue(pin, cpu, t, why);
    }
    if why == Arrival::Woken {
        t.sched.has_slept();
    }
    let over = t.sched.slice_is_over();
    if over {
        t.sched.renew_slice();
    }
    q.push_urgent(pin, t, priority, why == Arrival::Kept && !over);
    c.queue_changed(&q, 1);
    c.urgency_changed(&q);
    let preempts = priority > q.urgent.running();
    drop(q);
    let idle = c.idle.load(Ordering::SeqCst);
    if cpu == pin.cpu() {
        if preempts {
            hal::preempt::set_need_resched();
        }
    } else if idle || preempts {
        kick(pin, cpu);
    }
}

/// Puts the change of the priority of `t` from `before` to `after`, which has been stored, into effect: a queued thread moves to its
/// list, on a CPU that runs something lower if need be, first on it if the priority has become lower and last if higher; a CPU that runs
/// `t` chooses anew. A sleeping thread is queued by its priority when it wakes. Takes run queues' locks, one at a time.
///
/// A thread that is on its way is never missed: it stores its CPU before it takes that CPU's queue's lock, and reads its class under
/// that; here the class was stored before the CPU is read. So either the thread sees the class, or it is found here on that
/// queue, or has left it for the CPU, which then looks.
fn changed(pin: &CpuPin, t: &Thread, [before, after]: [u8; 2]) {
    if before == after || matches!(t.state.get(), Run::Blocked | Run::Dead) {
        return;
    }
    let cpu = t.cpu();
    let c = cpus().of(cpu);
    let mut q = c.queue.lock();
    if q.holds(t) {
        q.withdraw(pin, t);
        c.queue_changed(&q, -1);
        c.urgency_changed(&q);
        drop(q);
        let why = if after < before {
            Arrival::Kept
        } else {
            Arrival::Usual
        };
        let may = t.sched.affinity().has(cpu);
        let cpu = if may { cpu } else { balance::allowed(pin, t) };
        return wake::enqueue(pin, cpu, t, why);
    }
    q.urgent.look();
    c.urgency_changed(&q);
    drop(q);
    if cpu == pin.cpu() {
        hal::preempt::set_need_resched();
    } else {
        kick(pin, cpu);
    }
}

/// Gives `t` the setting `new` if it still has the setting `seen`, by which the caller has judged; returns whether it had. The thread keeps what it
/// has been lent. Takes run queues' locks.
pub fn replace_setting(t: &Thread, seen: Setting, new: Setting) -> bool {
    let pin = ksync::pin();
    let is_seen = |class: Class| class.setting() == seen;
    let starts = new.policy == Policy::RoundRobin && seen.policy != new.policy;
    if starts && is_seen(t.sched.class()) {
        t.sched.renew_slice();
    }
    let Some(change) = t
        .sched
        .change_class_if(is_seen, |class| class.with_setting(new))
    else {
        return false;
    };
    changed(&pin, t, change);
    true
}

impl Thread {
    /// Sets the policy, which is none of the real-time ones, and whether the thread's children begin without settings that need a
    /// privilege. Takes run queues' locks.
    pub fn set_policy(&self, policy: Policy, reset_on_fork: bool) {
        self.set_setting(Setting {
            reset_on_fork,
            ..Setting::ordinary(policy)
        });
    }

    /// Sets policy and priority, whatever they were. Takes run queues' locks.
    pub fn set_setting(&self, new: Setting) {
        while !replace_setting(self, self.setting(), new) {}
    }
}

/// Lends `t` the real-time priority `priority`, 1 to 99, in place of what this function lent it before; 0 takes that back. The thread
/// runs with the highest of its own priority and those lent to it, at once: it may run, be queued or sleep. Its policy stays. Of several
/// callers at once the last one is obeyed: a caller for which this matters has a lock of its own, of a rank below that of the run queues,
/// whose locks are taken. A child inherits no loan.
pub fn lend_priority(pin: &CpuPin, t: &Thread, priority: u8) {
    let priority = priority.min(HIGHEST);
    lends(pin, t, |class| class.lent(Lender::Caller, priority));
}

/// Changes what `t` has been lent to what `loan` makes of it. RLIMIT_RTTIME begins anew where the last loan ends of a thread that has no priority of its
/// own, as on Linux: else short loans would add up, however often it sleeps meanwhile.
fn lends(pin: &CpuPin, t: &Thread, loan: impl Fn(Class) -> Class) {
    let change = t.sched.change_class(loan);
    if change[0] > 0 && change[1] == 0 {
        t.sched.has_slept();
    }
    changed(pin, t, change);
}

/// Lends `t`, which has the lock of the kernel at `lock` for which a thread of priority `priority` waits, that priority until it hands that lock over, or
/// enters user mode. Kernel threads never do the latter, and get nothing: they have their part of the CPU by the bound.
pub fn lend_for_lock(pin: &CpuPin, t: &Thread, priority: u8, lock: usize) {
    if t.is_kernel() {
        return;
    }
    t.sched
        .change_lock_loan(|loan| Some(loan.and(priority, lock)));
    // After the loan: see `wake::give_back`.
    t.set(flag::LENT);
    follow_lock_loan(pin, t);
}

/// `t`, the caller, has handed the lock of the kernel at `lock` over: ends what it was lent for that lock alone.
pub fn lock_released(pin: &CpuPin, t: &Thread, lock: usize) {
    let ended = |loan: LockLoan| loan.is_for(lock).then_some(LockLoan::NONE);
    if t.sched.lock_loan().is_for(lock) && t.sched.change_lock_loan(ended) {
        follow_lock_loan(pin, t);
    }
}

/// Ends [`lend_for_lock`] to `t`.
pub(super) fn give_back(t: &Thread) {
    if t.sched.lock_loan() != LockLoan::NONE {
        t.sched.change_lock_loan(|_| Some(LockLoan::NONE));
        follow_lock_loan(&ksync::pin(), t);
    }
}

/// Makes the class have what `t` has been lent for locks. Each of several callers looks again after it has stored the class, so the last one that
/// stores it does so by what is in force.
fn follow_lock_loan(pin: &CpuPin, t: &Thread) {
    loop {
        let priority = t.sched.lock_loan().priority();
        if t.sched.class().loan(Lender::Lock) != priority {
            lends(pin, t, |class| class.lent(Lender::Lock, priority));
        }
        if t.sched.lock_loan().priority() == priority {
            return;
        }
    }
}
