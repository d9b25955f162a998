//! The object that the kernel maps into each program, and how the two share the clocks.
//!
//! Guarantee: the image is a shared object as vdso(7) describes, of one segment and without relocations, so it runs wherever it is mapped. Its last
//! page is [`Clock`], for the kernel to fill.
#![no_std]

#[path = "../image/clock.rs"]
mod clock;

use core::mem::offset_of;

pub use clock::Clock;

/// The object, in whole pages.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vdso.so"));

/// Bytes of a page.
const PAGE: usize = 4096;

/// Pages of it; the last is that of the clocks.
pub const PAGES: usize = 2;

/// Where the clocks' page begins.
pub const CLOCK_AT: usize = (PAGES - 1) * PAGE;

/// Where the words of [`Clock`] lie.
pub const NS_PER_TICK_AT: usize = CLOCK_AT + offset_of!(Clock, ns_per_tick);
/// As above.
pub const ZERO_AT: usize = CLOCK_AT + offset_of!(Clock, zero);
/// As above.
pub const REAL_AT_ZERO_AT: usize = CLOCK_AT + offset_of!(Clock, real_at_zero);
