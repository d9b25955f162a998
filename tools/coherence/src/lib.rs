//! Counts lines that move between CPUs and the cost of a benchmark's phases: the arithmetic behind the QEMU plugin.
//!
//! Guarantee: counts are exact for the accesses and blocks that are reported to this library; each is counted in the
//! phase that its CPU was in at that time, so a phase never counts another CPU's work.
//! Mechanism: a [`directory::Directory`] with one atomic word for each 64-byte line decides whether an access takes the
//! line from another CPU; a [`cpu::Cpu`] has one CPU's counters and takes their difference between two markers. This
//! library does not depend on QEMU: `plugin/` feeds it, tests feed it directly, and readers share [`record`].

pub mod cpu;
pub mod directory;
pub mod insn;
pub mod labels;
pub mod marker;
pub mod nodes;
pub mod profile;
pub mod record;
pub mod settings;
pub mod window;
