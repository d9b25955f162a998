//! Pairs of operations that commute, generated from a small model of what each operation reads and changes.
//!
//! Guarantee: a case consists of two operations and a mode (threads or processes) such that their results do not depend
//! on their order, as far as the model's cells describe results; every case has the same number in every build of the
//! same sources.
//! Mechanism: each [`variant::Variant`] of a call lists the cells of abstract state that it touches; two variants
//! commute if neither changes a cell that the other reads or changes ([`model`]). The program that runs the cases tries
//! both orders and checks every result, so that a cell missing from the model makes a case fail. The idea is COMMUTER's
//! (Clements et al., SOSP 2013).
//!
//! No dependencies: the program in the image, the QEMU plugin and the report share this crate.

pub mod call;
pub mod cases;
pub mod marker;
pub mod model;
pub mod variant;
