//! Host tests of `vm`: simulated CPUs, TLBs and memory.

pub mod arena;
#[cfg(all(feature = "threads", loom))]
pub mod explore;
#[cfg(all(feature = "threads", any(feature = "pv-obm", feature = "pv-stock")))]
pub mod few_entries;
#[cfg(not(any(loom, shuttle)))]
pub mod frugal;
#[cfg(not(any(loom, shuttle)))]
pub mod heap;
#[cfg(feature = "threads")]
pub mod lab;
pub mod listed;
pub mod mmu;
pub mod model;
#[cfg(shuttle)]
pub mod one_stop;
#[cfg(feature = "threads")]
pub mod program;
pub mod random;
#[cfg(shuttle)]
pub mod random_schedules;
#[cfg(feature = "threads")]
pub mod runs;
#[cfg(all(feature = "threads", shuttle))]
pub mod schedules;
pub mod tickets;

pub use arena::Arena;
#[cfg(feature = "threads")]
pub use lab::Lab;
pub use mmu::{Access, PageFault, Sim};
pub use random::Random;
pub use tickets::{obstruct, ticket, try_ticket};
