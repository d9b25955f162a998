//! The machine, x86-64: boot, traps, interrupt controllers, time, context switch, the console and its log, and copies to and
//! from user memory.
//!
//! It is the only part of the kernel that accesses CPU registers, devices of the platform and raw memory; outside it only the
//! global allocator has unsafe code. What this crate calls of the kernel above it is the trait [`upcalls::Upcalls`]; the type
//! of threads is named by [`thread_type!`]. An unsafe function states in its `# Safety` section what its caller must ensure;
//! a safe function is sound for any argument.
#![no_std]
#![cfg(target_os = "none")]
#![expect(unsafe_code, reason = "this crate is the boundary to the hardware")]

extern crate alloc;

#[macro_use]
pub mod console;

mod acpi;
mod answer;
mod apic;
mod backtrace;
mod boot;
mod calibrate;
pub mod context;
pub mod cpu;
pub mod current;
mod entry;
mod features;
pub mod fpu;
pub mod frame;
pub mod frames;
mod gdt;
#[cfg(feature = "heap-labels")]
pub mod heap_labels;
mod identity;
mod idt;
mod ioapic;
pub mod ipi;
pub mod irq;
pub mod klog;
pub mod limits;
mod lock;
pub mod machine;
mod mailbox;
pub mod memory;
pub mod msr;
mod numa;
pub mod paging;
pub mod panic;
mod patch;
pub mod percpu;
pub mod physical;
mod pic;
pub mod port;
pub mod power;
pub mod preempt;
mod rtc;
pub mod sample;
pub mod sections;
mod smp;
pub mod snapshot;
pub mod spaces;
pub mod stack;
mod stack_cache;
mod symbols;
pub mod time;
pub mod timer;
pub mod tls;
mod trap;
pub mod uaccess;
pub mod uio;
pub mod upcalls;
pub mod upper;
pub mod user;
mod vectors;

pub use boot::info::BootInfo;
pub use frame::{TrapFrame, UserFrame};
pub use identity::hwcap;
pub use limits::{MAX_CPUS, MAX_NODES, PAGE_SIZE, USER_END};
pub use smp::release_cpus;
pub use tls::set_user_tls;
pub use user::UserFault;
