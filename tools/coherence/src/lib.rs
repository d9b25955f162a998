//! What moves between CPUs, and what a benchmark's phase costs: the arithmetic behind the QEMU plugin.
//!
//! Guarantee: counts are exact for the accesses and blocks that are reported to this library; each is booked to
//! the phase that the CPU was in when it made it, so a phase never counts another CPU's work.
//! Mechanism: a [`directory::Directory`] with one atomic word for each 64-byte line says whether an access takes the
//! line from another CPU; a [`cpu::Cpu`] keeps one CPU's counters and takes their difference between two markers.
//! Nothing here knows QEMU: `plugin/` feeds it, tests feed it by hand, and readers share [`record`].

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
