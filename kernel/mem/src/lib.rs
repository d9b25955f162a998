//! This machine's one virtual memory system.
//!
//! The VM itself is the crate `vm`. This crate gives it the machine and the memory that boot found, implements the kernel's
//! heap on it, and reports sizes of memory. What to do when memory is short is decided by a policy that a crate above sets
//! ([`set_policy`]).
#![no_std]

extern crate alloc;

#[cfg(target_os = "none")]
pub mod heap;
mod info;
#[cfg_attr(not(target_os = "none"), path = "sim_init.rs")]
mod init;
mod machine;
mod shortage;
mod space;

pub use info::memory;
pub use init::init;
#[cfg(target_os = "none")]
pub use init::{Initrd, initrd, machine_frames, release_initrd};
pub use machine::{Vm, epoch, fail_allocations, poll, poll_more, slab, vm};
pub use shortage::{NoMemory, Policy, admit, admit_change, admit_process, last_resort, set_policy};
pub use space::{FutexKey, FutexWord, activate, clear, fork, futex_word, max_rss_kib, write_at};
pub use vm::Space;
