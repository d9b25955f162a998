//! Processes, threads, scheduling, signals, time.
//!
//! Where to begin: [`park`] is the one way to sleep and [`wait`] the one way to be woken;
//! [`sched`] decides who runs; [`thread`] and [`process`] are the objects; [`ids`] finds them by
//! number without locks.  [`fork`], [`exec`], [`exit`] and [`wait4`] are a process's life.
//! [`signal`] interrupts it.  [`upcall`] is what the machine layer calls.

pub mod account;
pub mod cred;
pub mod current;
mod daemons;
mod end;
pub mod exec;
pub mod exit;
mod fault;
pub mod fork;
pub mod futex;
pub mod group;
mod idlist;
pub mod ids;
pub mod image;
pub mod itimer;
mod kept;
pub mod kthread;
pub mod layout;
mod leak;
mod lock;
pub mod look;
pub mod oom;
pub mod park;
pub mod process;
mod program;
pub mod rlimit;
pub mod sched;
mod selftest;
mod serial;
pub mod signal;
mod space;
mod start;
pub mod thread;
pub mod time;
pub mod timer;
pub mod times;
pub mod upcall;
pub mod uts;
pub mod wait;
pub mod wait4;
mod watchdog;

use alloc::sync::Arc;

pub use crate::kern::current::{Current, current};
pub use kept::{forget_files, with_files, with_fs, with_space};
pub use process::Process;
pub use rlimit::Resource;
pub use thread::Thread;

/// Clock ticks a second, as user programs are told (AT_CLKTCK, times(2), /proc).
pub const CLOCK_TICKS: u64 = 100;

/// The epoch under which numbers are looked up.
#[inline]
pub fn epoch() -> &'static ksync::Epoch {
    mem::epoch()
}

/// The process of the calling thread.
pub fn current_process() -> Arc<Process> {
    current().process().clone()
}
