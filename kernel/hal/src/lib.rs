//! The machine, x86-64: boot, traps, interrupt controllers, time, context switch, the console and its log, and copies to and
//! from user memory.
//!
//! It is the only part of the kernel that accesses CPU registers, devices of the platform and raw memory; outside it only the
//! global allocator has unsafe code. What this crate calls of the kernel above it is the trait [`upcalls::Upcalls`]; the type
//! of threads is named by [`thread_type!`]. An unsafe function states in its `# Safety` section what its caller must ensure;
//! a safe function is sound for any argument.
//!
//! The real machine is in `x86`. In tests on a host the crates above run on a simulated one, in `sim`: the modules that both
//! have replace each other.
#![no_std]
#![expect(unsafe_code, reason = "this crate is the boundary to the hardware")]

extern crate alloc;
#[cfg(not(target_os = "none"))]
extern crate std;

#[macro_use]
mod kprint;

pub mod current;
pub mod frame;
pub mod klog;
pub mod limits;
mod machine_static;
pub mod uaccess;
pub mod uio;
pub mod upcalls;
pub mod upper;
pub mod user;
mod user_fault;

#[cfg(not(target_os = "none"))]
pub mod sim;
#[cfg(target_os = "none")]
mod x86;

#[cfg(not(target_os = "none"))]
use sim as this_machine;
#[cfg(target_os = "none")]
use x86 as this_machine;

use this_machine::user_copy;
pub use this_machine::{
    BootInfo, console, context, cpu, fpu, ipi, irq, machine, percpu, preempt, release_cpus, sample,
    sections, snapshot, spaces, stack, time, timer,
};

#[cfg(all(target_os = "none", feature = "heap-labels"))]
pub use x86::heap_labels;
#[cfg(target_os = "none")]
pub use x86::{
    frames, hwcap, memory, msr, paging, panic, physical, port, power, set_user_tls, tls,
};

pub use frame::{TrapFrame, UserFrame};
pub use limits::{MAX_CPUS, MAX_NODES, PAGE_SIZE, USER_END};
pub use user_fault::UserFault;
