//! Processes: what they have, how they begin and end, and how signals interrupt them.
//!
//! Where to begin: [`process`] is the object, [`user_thread`] what a process keeps for each of its threads; [`ids`]
//! finds both by id without locks. [`fork`], [`exec`], [`exit`] and [`wait4`] are a process's life. [`signal`]
//! interrupts it. [`upcalls`] has the calls from lower layers to this one, and from this one to the kernel above.

#![no_std]

extern crate alloc;

pub mod account;
pub mod daemons;
mod descriptors;
pub mod exec;
pub mod exit;
pub mod fault;
pub mod first;
pub mod fork;
pub mod futex;
pub mod group;
pub mod ids;
pub mod image;
pub mod itimer;
pub mod layout;
mod lock;
pub mod look;
pub mod oom;
pub mod process;
pub mod program;
pub mod reaper;
mod reference_cache;
pub mod rlimit;
mod rusage;
pub mod signal;
pub mod space;
pub mod upcalls;
pub mod user_thread;
pub mod uts;
pub mod wait4;

use alloc::sync::Arc;

pub use descriptors::own_files;
pub use process::Process;
pub use reference_cache::{forget_files, with_files, with_fs, with_space};
pub use rlimit::Resource;
pub use signal::SignalExt;
pub use task::current::current;
pub use user_thread::UserThreadExt;

/// Clock ticks a second, as programs see them (AT_CLKTCK, times(2), /proc).
pub const CLOCK_TICKS: u64 = 100;

/// The process of the calling thread, with a reference of its own.
pub fn current_process() -> Arc<Process> {
    current().process().clone()
}

/// Sets the processes up; `above` are the calls to the kernel above. Called once, by the boot CPU, after memory and
/// before any thread.
pub fn init(ncpus: usize, above: &'static upcalls::Upcalls) {
    rlimit::init();
    upcalls::set(above);
    upcalls::join();
    space::init(ncpus);
    futex::init(ncpus);
}
