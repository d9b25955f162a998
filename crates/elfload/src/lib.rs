//! What `execve` must know of a file before it maps anything, and the first stack of a program.
//!
//! The crate reads headers and computes layouts; it touches no address space, so every absurd
//! file can be tried on the host.  [`image`] accepts an ELF or says what is wrong with it;
//! [`script`] splits a `#!` line; [`stack`] lays out arguments, environment and the auxiliary
//! vector as the System V ABI has them (x86-64 supplement, "Process Initialization").
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
