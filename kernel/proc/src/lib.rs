//! Processes: what they have, how they begin and end, and how signals interrupt them.
//!
//! Where to begin: [`process`] is the object, [`user_thread`] what a process keeps for each of its threads; [`ids`]
//! finds both by id without locks. [`fork`], [`exec`], [`exit`] and [`wait4`] are a process's life. [`signal`]
//! interrupts it. [`upcalls`] has the calls to the kernel above, `callbacks` those from lower layers to this one.
//!
//! A file imports only files below it, in this order:
//!
//! 1. what a process and a thread have: limits, `signal`'s words and pending queues, timers' state, uses of memory, groups;
//! 2. the records: [`process`], [`user_thread`], and [`ids`] for all three;
//! 3. what acts on one of them: membership of groups, places in families, making threads exit, resource usage, cached references, futexes;
//! 4. `signal`'s sending, then stops, masks, interval timers, [`oom`], [`wait4`], taking signals;
//! 5. [`exit`], then [`fork`], [`exec`], the first processes, and the delivery of signals; last `callbacks`.

#![no_std]

extern crate alloc;

pub mod account;
pub mod active_space;
mod callbacks;
pub mod credentials;
pub mod daemons;
mod descriptors;
pub mod exec;
pub mod exec_count;
pub mod exit;
mod family;
pub mod fault;
pub mod first;
pub mod fork;
pub mod futex;
pub mod group;
mod group_exit;
mod held_futexes;
pub mod ids;
pub mod image;
pub mod itimer;
pub mod layout;
mod lock;
pub mod look;
mod of_program;
pub mod oom;
pub mod process;
pub mod program;
pub mod reaper;
mod reference_cache;
pub mod rlimit;
pub mod rseq;
mod rt_limit;
mod rusage;
pub mod sem_undo;
pub mod signal;
pub mod space;
pub mod timers;
mod undo_slot;
pub mod upcalls;
pub mod user_thread;
pub mod uts;
pub mod vdso;
mod vfork;
pub mod wait4;

pub use credentials::CredentialsExt;
pub use descriptors::own_files;
pub use of_program::OfProgram;
pub use process::Process;
pub use reference_cache::{forget_files, with_files, with_fs, with_space};
pub use rlimit::Resource;
pub use rusage::CLOCK_TICKS;
pub use signal::SignalExt;
pub use task::current::current;
pub use undo_slot::UndoSlot;
pub use user_thread::{UserThreadExt, current_process};

/// Sets the processes up; `above` are the calls to the kernel above. Called once, by the boot CPU, after memory and
/// before any thread.
pub fn init(ncpus: usize, above: &'static upcalls::Upcalls) {
    rlimit::init();
    upcalls::set(above);
    callbacks::join();
    active_space::init(ncpus);
    futex::init(ncpus);
}
