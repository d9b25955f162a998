//! The scheduler: which thread runs on which CPU.
//!
//! Each CPU has a run queue (`queue`) under its own lock; nothing is global. A thread is on at most one queue, or on a CPU. A
//! thread that leaves a CPU is put on a queue, or declared asleep, by the thread that runs there next (`switch`), once its
//! registers have been saved. So no CPU runs a thread whose registers are not saved yet, and no CPU waits for that.
//!
//! A woken thread goes to the CPU where it ran last if that is idle; else to an idle CPU near that one; else to the waker's
//! CPU or to the one where it ran last, whichever has less to do. An idle CPU reads the weights of the others' threads, which are
//! hints read without locks, and takes a thread from the CPU with most, or from the next if it finds none there that it may
//! run. A busy CPU does the same at some of its ticks, where that evens the weights out; and it gives a queued thread to an idle CPU,
//! which may have looked at a bad moment.
//!
//! Threads with a real-time priority run before all others, by priority, and are placed by it: `real_time`. The bound on their time is
//! in `bound`. See `doc/scheduling.md`.

mod balance;
pub mod bound;
pub mod class;
mod cpu;
pub mod entity;
mod loadavg;
pub mod mask;
mod queue;
mod real_time;
mod switch;
mod tick;
mod urgent;
mod wake;

pub use class::{HIGHEST, Policy, RR_NS, Setting};
pub(crate) use cpu::init;
pub use cpu::{
    CpuStats, TICK_NS, count_exec, count_vfork, idle_ns, load, renumbered, runnable, running,
    stats, urgency,
};
pub use entity::Entity;
pub use loadavg::load_average;
pub use mask::CpuMask;
pub use real_time::{lend_for_lock, lend_priority, lock_released, replace_setting};
pub use switch::{Reason, idle, preempt_check, switch_away, thread_start, yield_now, yield_turn};
pub(crate) use switch::{block, first_switch};
pub use tick::{interrupt, reclaim, reclaim_soon, reschedule_interrupt, timer_interrupt};
pub use wake::{give_back, hurry, lend, poke, set_affinity, start, wake};
