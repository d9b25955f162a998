//! Processes, threads, scheduling, signals, time.
//!
//! Where to begin: [`process`] is the object, [`user_thread`] what it keeps for each of its threads; [`ids`] finds both by id
//! without locks.  [`fork`], [`exec`], [`exit`] and [`wait4`] are a process's life.
//! [`signal`] interrupts it.  [`upcall`] is what the machine and the threads call.

pub mod account;
mod daemons;
mod end;
pub mod exec;
pub mod exit;
mod fault;
mod first;
pub mod fork;
pub mod futex;
pub mod group;
pub mod ids;
pub mod image;
pub mod itimer;
pub mod layout;
mod leak;
mod lock;
pub mod look;
pub mod oom;
pub mod process;
mod program;
mod reference_cache;
pub mod rlimit;
mod rusage;
mod selftest;
pub mod signal;
mod space;
mod start;
pub mod upcall;
pub mod user_thread;
pub mod uts;
pub mod wait4;

use alloc::sync::Arc;

pub use process::Process;
pub use reference_cache::{forget_files, with_files, with_fs, with_space};
pub use rlimit::Resource;
pub use signal::SignalExt;
pub use task::current::current;
pub use user_thread::UserThreadExt;

/// Clock ticks a second, as user programs are told (AT_CLKTCK, times(2), /proc).
pub const CLOCK_TICKS: u64 = 100;

/// The process of the calling thread.
pub fn current_process() -> Arc<Process> {
    current().process().clone()
}
