//! The scheduler: which thread runs where.
//!
//! Each CPU has a run queue (`queue`) under its own lock; nothing is global.  A thread is on
//! at most one queue, or on a CPU.  A thread that leaves a CPU is queued, or declared asleep,
//! by the thread that comes after it (`switch`), when its registers are saved: so nobody
//! runs a thread that is still on its way out, and nobody waits for one.
//!
//! A woken thread goes to the CPU where it ran last if that idles, else to an idle CPU near,
//! else to the waker's or its own, whichever has less to do.  An idle CPU looks at the others'
//! lengths, which are hints read without locks, and takes a thread from the longest queue; a
//! busy CPU does the same now and then at a tick, if another has at least two more.

mod balance;
mod cpu;
pub mod entity;
mod loadavg;
pub mod mask;
mod queue;
mod switch;
mod tick;
mod wake;

pub use cpu::{
    CpuStats, TICK_NS, count_exec, count_vfork, idle_ns, init, load, renumbered, runnable, running,
    stats,
};
pub use entity::{Entity, Policy};
pub use loadavg::load_average;
pub use mask::CpuMask;
pub(crate) use switch::block;
pub use switch::{Reason, first_switch, idle, preempt_check, switch_away, thread_start, yield_now};
pub use tick::{interrupt, reclaim, reclaim_soon, reschedule_interrupt, timer_interrupt};
pub use wake::{poke, set_affinity, start, wake};
