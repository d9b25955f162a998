//! Host tests of `vm`: simulated CPUs, TLBs and memory.

pub mod arena;
#[cfg(loom)]
pub mod explore;
#[cfg(not(any(loom, shuttle)))]
pub mod heap;
pub mod lab;
pub mod mmu;
pub mod model;
pub mod program;
#[cfg(shuttle)]
pub mod schedules;

pub use arena::Arena;
pub use lab::Lab;
pub use mmu::{Access, PageFault, Sim};
