//! Threads: what the scheduler switches between, how a thread sleeps and is woken, and the ids by which it is found.
//!
//! Where to begin: [`thread`] is the object; [`park`] is the one way to sleep and [`wait`] the one way to be woken; [`sched`]
//! decides which thread runs; [`ids`] finds threads by tid without locks. Processes are unknown to this crate; what it calls
//! of them is in [`upcalls`].
#![no_std]

extern crate alloc;

pub mod account;
pub mod current;
pub mod id_table;
pub mod idlist;
pub mod ids;
pub mod kthread;
mod lock;
pub mod pace;
pub mod park;
mod platform;
pub mod sched;
pub mod thread;
pub mod time;
pub mod timer;
pub mod upcalls;
pub mod usage;
pub mod wait;
pub mod watchdog;

pub use current::{Current, current};
pub use thread::Thread;

/// Sets up ids, timers and the scheduler. Called once, by the boot CPU, before any thread is made.
pub fn init(ncpus: usize) {
    ids::init(ncpus);
    timer::init(ncpus);
    sched::init(ncpus);
}
