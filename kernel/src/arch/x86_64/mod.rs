//! x86-64: boot, traps, interrupt controllers, time, context switch and copies to and from user memory.
//!
//! It calls up only the functions of [`crate::kern::upcall`]. All `unsafe` of the kernel is here; what
//! the functions of this module need from their callers is in their `# Safety` sections, and the safe
//! ones are safe for any argument.
#![expect(unsafe_code, reason = "this module is the boundary to the hardware")]

mod acpi;
mod apic;
mod backtrace;
mod boot;
mod calibrate;
pub mod console;
pub mod context;
pub mod cpu;
mod entry;
mod features;
pub mod fpu;
pub mod frame;
pub mod frames;
mod gdt;
pub mod heap;
#[cfg(feature = "heap-labels")]
mod heap_labels;
mod identity;
mod idt;
mod ioapic;
pub mod ipi;
pub mod irq;
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
pub mod user;

pub use boot::BootInfo;
pub use frame::{TrapFrame, UserFrame};
pub use identity::hwcap;
pub use smp::release_cpus;
pub use tls::set_user_tls;

/// CPUs that the structures have room for.
pub const MAX_CPUS: usize = 256;
/// NUMA nodes that the structures have room for.
pub const MAX_NODES: usize = 16;
/// Bytes of a page.
pub const PAGE_SIZE: usize = 4096;
/// First address that no user mapping may reach: one page below the end of the lower half, so that a
/// `syscall` at the very end cannot make `sysret` see a non-canonical address.
pub const USER_END: u64 = 0x0000_7fff_ffff_f000;
