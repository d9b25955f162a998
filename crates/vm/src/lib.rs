//! The machine-independent virtual memory system.
//!
//! The whole state is one value, a [`Vm`], that the kernel or a test creates: the crate has no state in statics but the counts of lock classes. It knows no
//! device, no CPU register and no process; what it needs of the machine is the trait [`Machine`].
#![no_std]
extern crate alloc as rust_alloc;
#[cfg(test)]
extern crate std;

pub mod alloc;
pub mod asid;
pub mod backing;
pub mod fault;
pub mod limbo;
pub mod machine;
pub mod map;
pub mod object;
pub mod page;
pub mod pmap;
pub mod rmap;
pub mod slab;
pub mod space;
mod stack;
pub mod stats;
mod superpages;
pub mod tlb;
mod tuning;
mod vm;

pub use alloc::{NoMemory, PageAllocator, Rights};
pub use fault::{Access, FaultError};
pub use machine::{Growth, Machine};
pub use map::{EntryFlags, Prot as MapProt};
pub use object::{Object, ObjectRef, Quota};
pub use page::{Page, PageArray, Pfn};
pub use pmap::{Pmap, Prot, Pte};
pub use slab::Slab;
pub use space::{Space, VmError};
pub use superpages::{SharedSuperpages, Superpages};
pub use tlb::{CpuSet, Gather};
pub use tuning::Tuning;
pub use vm::Vm;
