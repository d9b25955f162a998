//! The host laboratory for `vm`: simulated CPUs, TLBs and memory.

pub mod arena;

pub use arena::Arena;
