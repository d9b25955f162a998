//! The library of the image's programs: raw system calls, and memory that may fault.
//!
//! Guarantee: the system calls that the programs test go through [`sys`], which makes them directly and returns the
//! errno unchanged, so that no C library hides a wrong result.
//! Mechanism: one assembly sequence for system calls, and volatile accesses to mapped memory.

pub mod proc;
pub mod sys;
