//! The host laboratory for `vm`: simulated CPUs, TLBs and memory.

pub mod arena;
pub mod mmu;
pub mod program;

pub use arena::Arena;
pub use mmu::{Access, PageFault, Sim};
