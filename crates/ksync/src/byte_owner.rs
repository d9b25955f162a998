//! The threads that hold byte mutexes exclusively, in debug builds.
//!
//! A byte has no room for its holder, so a table hashed by its address has it. Two bytes that share an entry overwrite each
//! other's: then the release of the first is not checked. In other builds these are no instructions.

// A check, not part of any protocol: plain atomics, which model checkers need not see.
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{ByteMutex, platform};

/// Bits of an entry that are its thread's number; the others are the lowest of the byte's address.
const THREAD: u32 = 30;

static OWNERS: [AtomicU64; if cfg!(debug_assertions) { 4096 } else { 1 }] =
    [const { AtomicU64::new(0) }; _];

/// The byte's entry, and what it is if the current thread holds the byte.
fn entry(byte: &ByteMutex) -> (&'static AtomicU64, u64) {
    let address = core::ptr::from_ref(byte).addr() as u64;
    let at = address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52;
    let thread = u64::from(platform::thread()) & ((1 << THREAD) - 1);
    (&OWNERS[at as usize], address << THREAD | thread)
}

/// Records that the current thread has taken the byte.
#[inline(always)]
pub(crate) fn takes(byte: &ByteMutex) {
    if cfg!(debug_assertions) {
        let (owner, ours) = entry(byte);
        owner.store(ours, Relaxed);
    }
}

/// Checks that no other thread is known to hold the byte, which the current thread is about to release.
///
/// # Panics
/// In debug builds, if one is.
#[inline(always)]
pub(crate) fn releases(byte: &ByteMutex, name: &str) {
    if cfg!(debug_assertions) {
        let (owner, ours) = entry(byte);
        let owner = owner.load(Relaxed);
        assert!(
            owner >> THREAD != ours >> THREAD || owner == ours,
            "releasing \"{name}\", which thread {} holds",
            owner & ((1 << THREAD) - 1)
        );
    }
}
