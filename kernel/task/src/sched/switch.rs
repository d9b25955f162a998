//! Switching from one thread to another.
//!
//! [`switch_away`] chooses the next thread and switches to it. [`finish_switch`], on the next thread's stack, then queues the
//! old thread, declares it asleep, or releases it. Preemption and interrupts are off in between.

use alloc::sync::Arc;
use ksync::atomic::Ordering;

use ksync::CpuPin;

use super::balance::{self, Steal};
use super::cpu::{Cpu, TICK_NS, bump, cpus, thread_of};
use super::queue;
use super::real_time::{self, Pick, Turn};
use super::wake::{Arrival, enqueue};
use crate::current::{Current, current, set_current};
use crate::park::{self, Deadline, Interruptible};
use crate::thread::Thread;
use crate::{time, timer, upcalls};

/// Why a thread leaves its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// The thread sleeps, if it is still declared waiting when its registers have been saved.
    Block = 0,
    /// Another thread is to run first.
    Preempt = 1,
    /// The thread lets others run first (sched_yield(2)).
    Yield = 2,
    /// The thread has ended.
    Exit = 3,
}

impl Reason {
    fn from_raw(n: u32) -> Self {
        [Reason::Block, Reason::Preempt, Reason::Yield, Reason::Exit][n as usize % 4]
    }

    /// Whether the thread stays runnable.
    fn runs_on(self) -> bool {
        matches!(self, Reason::Preempt | Reason::Yield)
    }
}

/// Switches to the next thread, and returns when the caller runs again; returns at once if the caller may go on and no other
/// thread is to run first. Never returns for [`Reason::Exit`]. Called with preemption on and no spin lock held.
pub fn switch_away(why: Reason) {
    let irq = hal::irq::save();
    let mut pin = ksync::pin();
    mem::epoch().quiescent(&mut pin);
    if hal::preempt::need_resched() {
        hal::sections::ended();
        hal::preempt::clear_need_resched();
    }
    let c = cpus().get(&pin);
    let now = time::monotonic_ns();
    let me = current();
    if let Some(next) = choose_next(&pin, c, &me, Some(why), now) {
        switch_to(&pin, c, &me, next, Some(why), now);
    } else if must_leave(&pin, &me, why) {
        switch_to_idle(&pin, c, &me, why, now);
    }
    drop(pin);
    hal::irq::restore(irq);
}

/// Whether the current thread cannot go on here, although no other thread is to run.
fn must_leave(pin: &CpuPin, me: &Thread, why: Reason) -> bool {
    match why {
        // If a wake-up comes meanwhile, the idle thread queues the thread at once.
        Reason::Block | Reason::Exit => true,
        Reason::Preempt | Reason::Yield => !me.sched.affinity().has(pin.cpu()),
    }
}

/// Takes the thread that is to run instead of the current one off this CPU's queue, or off another CPU's if this one is empty,
/// and stores its virtual time as that of the running thread. `None` if the current one is to go on, or, if it must leave, there
/// is none. Without `why` the current one is the idle thread; any other is charged. Queued threads that may not run here any more
/// go to other CPUs. Takes run queues' locks, one at a time, and only tries those of others to take a thread.
fn choose_next<'p>(
    pin: &'p CpuPin,
    c: &Cpu,
    me: &Thread,
    why: Option<Reason>,
    now: u64,
) -> Option<&'p Thread> {
    let stays = why.is_some_and(Reason::runs_on) && me.sched.affinity().has(pin.cpu());
    let yields = why == Some(Reason::Yield);
    let vt = why.map_or(0, |_| me.sched.charge(now));
    loop {
        let mut q = c.queue.lock();
        q.begin_choice(now);
        let first = match why {
            Some(_) => q.follow(vt),
            None => q.first(),
        };
        let mut stays = stays;
        if c.is_urgent() {
            let turn = Turn { stays, yields, now };
            match real_time::choose(pin, c, &mut q, me, turn) {
                Pick::Thread(t) => {
                    c.leaving_base.store(q.base_vt(), Ordering::Relaxed);
                    drop(q);
                    if stays_here(pin, c, t) {
                        return Some(t);
                    }
                    continue;
                }
                Pick::Present => return None,
                Pick::Ordinary(counts) => stays = counts,
            }
        }
        match first {
            Some(first) if !stays || yields || first <= queue::bucket(vt) => {}
            None if !stays => {
                c.leaving_base.store(q.base_vt(), Ordering::Relaxed);
                drop(q);
                return take_from_another(pin, c, now);
            }
            _ => {
                c.running_vt.store(vt, Ordering::Relaxed);
                return None;
            }
        }
        let Some(t) = q.pop(pin, (stays && !yields).then_some(vt)) else {
            drop(q);
            c.running_vt.store(vt, Ordering::Relaxed);
            return None;
        };
        c.leaving_base.store(q.base_vt(), Ordering::Relaxed);
        c.queue_changed(&q, -1);
        // Before a waker moves the base: not to the time of the thread that leaves, which may be far ahead.
        c.running_vt.store(t.sched.vt(), Ordering::Relaxed);
        drop(q);
        if stays_here(pin, c, t) {
            return Some(t);
        }
    }
}

/// Whether `t`, which has just been taken off this CPU's queue, may run here. If its affinity was changed while it was queued, it goes
/// to another CPU.
#[inline]
fn stays_here(pin: &CpuPin, c: &Cpu, t: &Thread) -> bool {
    let stays = t.sched.affinity().has(pin.cpu());
    if !stays {
        let base = c.leaving_base.load(Ordering::Relaxed);
        t.sched.set_vt(t.sched.vt().saturating_sub(base));
        requeue(pin, t, Arrival::Usual);
    }
    stays
}

/// Takes a thread for this CPU, which has none to run, off another one's queue.
fn take_from_another<'p>(pin: &'p CpuPin, c: &Cpu, now: u64) -> Option<&'p Thread> {
    let tid = balance::steal(pin, Steal::Any)?;
    let t = thread_of(pin, tid)?;
    // Before the lock, and the class is read after it: see `real_time::changed`.
    t.sched.set_cpu(pin.cpu());
    let mut q = c.queue.lock();
    t.sched.set_vt(q.base_vt() + t.sched.vt());
    c.running_vt.store(t.sched.vt(), Ordering::Relaxed);
    if t.sched.class().is_real_time() {
        real_time::begins_here(c, &mut q, t, now);
    }
    Some(t)
}

fn switch_to(pin: &CpuPin, c: &Cpu, me: &Thread, t: &Thread, why: Option<Reason>, now: u64) {
    t.sched.start_running(now);
    c.running_weight.store(t.sched.weight(), Ordering::Relaxed);
    if c.running.swap(t.tid(), Ordering::Relaxed) == 0 {
        c.idle.store(false, Ordering::Relaxed);
        timer::set_tick(pin, now + TICK_NS);
    }
    leave(pin, c, me, t, why);
}

fn switch_to_idle(pin: &CpuPin, c: &Cpu, me: &Thread, why: Reason, now: u64) {
    let Some(idle) = c.idle_thread.get() else {
        return;
    };
    idle.sched.start_running(now);
    c.running.store(0, Ordering::Relaxed);
    c.running_weight.store(0, Ordering::Relaxed);
    timer::set_tick(pin, u64::MAX);
    leave(pin, c, me, idle, Some(why));
}

/// Switches to `next`. Without `why` the thread that is left is the idle thread, for which [`finish_switch`] has nothing to do.
/// Returns, on the stack of `me`, when a CPU switches back to `me`.
fn leave(_pin: &CpuPin, c: &Cpu, me: &Thread, next: &Thread, why: Option<Reason>) {
    bump(&c.stats.switches, 1);
    match why {
        Some(Reason::Block) => me.usage.voluntary.fetch_add(1, Ordering::Relaxed),
        Some(Reason::Preempt) => me.usage.involuntary.fetch_add(1, Ordering::Relaxed),
        _ => 0,
    };
    c.leaving.store(me.tid(), Ordering::Relaxed);
    if let Some(why) = why {
        c.leaving_why.store(why as u32, Ordering::Relaxed);
    }
    if !next.is_kernel() {
        (upcalls::get().enter_space)(next);
    }
    set_current(next);
    hal::context::switch(&me.machine, &next.machine);
    finish_switch();
}

/// Queues the thread that this CPU has just left, declares it asleep, or releases it. Its virtual time is relative from then on.
/// Runs on the new thread's stack, with interrupts and preemption off. Takes run queues' locks.
pub fn finish_switch() {
    let pin = ksync::pin();
    let c = cpus().get(&pin);
    let tid = c.leaving.swap(0, Ordering::Relaxed);
    // The idle thread, whose tid is 0, is not in the table: nothing is to be done for it.
    let Some(prev) = thread_of(&pin, tid) else {
        return;
    };
    // That of the choice: the lock need not be taken for what a waker has moved it by since.
    let base = c.leaving_base.load(Ordering::Relaxed);
    prev.sched.set_vt(prev.sched.vt().saturating_sub(base));
    match Reason::from_raw(c.leaving_why.load(Ordering::Relaxed)) {
        Reason::Exit => (upcalls::get().release_dead)(&pin, prev),
        Reason::Block => {
            // Once this exchange has been made, another CPU may run the thread: it must not be touched after it.
            if !prev.state.settle() {
                requeue(&pin, prev, Arrival::Woken);
            }
        }
        Reason::Yield => {
            // Behind the threads that are queued now.
            prev.sched
                .set_vt(prev.sched.vt().max(1 << queue::BUCKET_SHIFT));
            requeue(&pin, prev, Arrival::Usual);
        }
        Reason::Preempt => requeue(&pin, prev, Arrival::Kept),
    }
}

/// Queues `t`, which this CPU has run or has taken off its queue, on a CPU that it may run on: here, as `here` says, if it may.
fn requeue(pin: &CpuPin, t: &Thread, here: Arrival) {
    let cpu = balance::allowed(pin, t);
    let why = if cpu == pin.cpu() {
        here
    } else {
        Arrival::Banned
    };
    enqueue(pin, cpu, t, why);
}

/// Where every new thread begins: it finishes the switch that chose it.
pub fn thread_start() -> ! {
    finish_switch();
    // Ends the section without preemption in which the switch was made.
    hal::preempt::enable_no_check();
    hal::irq::enable();
    run_entry()
}

/// Makes `idle` this CPU's idle thread, and the thread that runs there: the caller.
pub(crate) fn first_switch(pin: &CpuPin, idle: &Arc<Thread>) {
    let c = cpus().get(pin);
    let _ = c.idle_thread.set(idle.clone());
    idle.sched.set_cpu(pin.cpu());
    set_current(idle);
}

/// The loop of the idle thread: run queued threads, or threads of other CPUs' queues; otherwise halt.
pub fn idle() -> ! {
    loop {
        // Interrupts are on, because destructors may wait for other CPUs.
        let more = mem::poll(&ksync::pin());
        mem::poll_more();
        let irq = hal::irq::save();
        let mut pin = ksync::pin();
        let c = cpus().of(pin.cpu());
        hal::preempt::clear_need_resched();
        let now = time::monotonic_ns();
        let me: Current = current();
        if let Some(next) = choose_next(&pin, c, &me, None, now) {
            switch_to(&pin, c, &me, next, None, now);
            drop(pin);
            hal::irq::restore(irq);
            continue;
        }
        mem::epoch().quiescent(&mut pin);
        // Before the length is read: a waker adds to the length, and then reads this.
        c.idle.store(true, Ordering::SeqCst);
        c.stats.idle.begin(hal::cpu::undisturbed_ns(pin.cpu()));
        if c.len.load(Ordering::SeqCst) == 0 && !hal::preempt::need_resched() {
            if more {
                // Memory that this CPU has retired waits for its grace period: look again after a tick.
                timer::set_tick(&pin, now + TICK_NS);
            } else {
                // Grace periods do not wait for this CPU while it halts.
                mem::epoch().offline(pin.cpu());
            }
            hal::cpu::halt_until_interrupt();
            mem::epoch().online(pin.cpu());
        }
        c.idle.store(false, Ordering::Relaxed);
        c.stats.idle.end(hal::cpu::undisturbed_ns(pin.cpu()));
        drop(pin);
        hal::irq::restore(irq);
    }
}

/// What a new thread does first, be it a kernel thread or one of a process.
fn run_entry() -> ! {
    let me = current();
    match me.take_entry() {
        Some(entry) => {
            entry();
            (upcalls::get().kernel_thread_ends)()
        }
        None => hal::context::enter_user_first(me.machine()),
    }
}

/// Lets the current thread sleep if it is still declared waiting when its registers have been saved; returns when it runs again.
pub fn block() {
    switch_away(Reason::Block);
}

/// Lets queued threads run first (sched_yield(2)): all of them, or those of its priority or a higher one where the caller has a
/// real-time priority.
pub fn yield_turn() {
    switch_away(Reason::Yield);
}

/// Lets queued threads run first, for a caller that waits for one of them: a caller with a real-time priority, before which those do
/// not come, sleeps for a quarter of a tick.
pub fn yield_now() {
    if current().sched.class().is_real_time() {
        let _ = park::sleep_until(Deadline::after(TICK_NS / 4), Interruptible::No);
    } else {
        switch_away(Reason::Yield);
    }
}

/// Switches to another thread if a reschedule is wanted and preemption is on. Called at the end of an interrupt that came
/// while preemption was on, when preemption is enabled again, and before user mode.
pub fn preempt_check() {
    if hal::preempt::need_resched() && hal::preempt::count() == 0 {
        hal::sections::ended();
        switch_away(Reason::Preempt);
    }
}
