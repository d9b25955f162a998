//! What the programs of the image share: raw system calls and memory that may fault.
//!
//! Guarantee: everything the programs do to the kernel goes through [`sys`], which calls it directly and
//! returns its errno unchanged, so that no C library papers over a wrong answer.
//! Mechanism: one assembly sequence for system calls, one type for mapped memory that is only ever
//! touched by volatile accesses.

pub mod proc;
pub mod sys;
