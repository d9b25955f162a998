//! The machine, x86-64: boot, traps, interrupt controllers, time, context switch, the console and its log, and copies to
//! and from user memory.
//!
//! It is the only part of the kernel that touches CPU registers, devices of the platform and raw memory; of the rest only
//! the global allocator has unsafe code. What this crate needs of the kernel above it is the trait [`upcalls::Upcalls`].
//! What its functions need from their callers is in their `# Safety` sections, and the safe ones are safe for any argument.
#![no_std]
#![cfg(target_os = "none")]
#![expect(unsafe_code, reason = "this crate is the boundary to the hardware")]

extern crate alloc;

mod acpi;
mod apic;
mod backtrace;
mod boot;
mod calibrate;
pub mod console;
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
mod lock;
pub mod machine;
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

pub use boot::BootInfo;
pub use frame::{TrapFrame, UserFrame};
pub use identity::hwcap;
pub use smp::release_cpus;
pub use tls::set_user_tls;
pub use user::UserFault;

/// CPUs that the structures have room for.
pub const MAX_CPUS: usize = 256;
/// NUMA nodes that the structures have room for.
pub const MAX_NODES: usize = 16;
/// First address that no user mapping may reach: one page below the end of the lower half, so that a
/// `syscall` at the very end cannot make `sysret` see a non-canonical address.
pub use elfload::USER_END;
/// Bytes of a page.
pub use vm::page::PAGE_SIZE;
