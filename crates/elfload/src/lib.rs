//! The checks that `execve` makes on a file before it maps anything, and the initial stack of a program.
//!
//! The crate reads headers and computes layouts. It uses no address space, so every malformed file can be tested on the
//! host. [`image`] accepts an ELF file or says what is wrong with it; [`script`] splits a `#!` line; [`stack`] lays out
//! arguments, environment and the auxiliary vector as in the System V ABI (x86-64 supplement, "Process
//! Initialization").
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod image;
pub mod script;
pub mod stack;

pub use image::{ElfError, Header, Image, Segment};
pub use stack::{AuxInfo, StackError, StackImage};

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// One past the highest user address (the last page below the canonical hole stays empty, as
/// on Linux).
pub const USER_END: u64 = 0x0000_7fff_ffff_f000;
