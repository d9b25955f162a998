//! The lock profile: acquisitions and the longest hold of each class, while it is switched on.
//!
//! Guarantee: while it is switched off, taking and releasing a lock each execute one no-op and access no memory. While
//! it is switched on, every acquisition is counted, a run of bytes as one, and every hold is measured, each reader's apart.
//!
//! Mechanism: each place that takes or releases a lock has a five-byte no-op, which the section `.lock_sites` records
//! together with the address of the counting code. A platform that wants the profile writes a jump over each no-op,
//! before other CPUs run. On a host a flag is used instead of patching.
//!
//! A hold begins with a stamp in a table hashed by the lock's address, and by the thread if it is shared: so locks and
//! guards do not grow, and a sleeping lock may be released on another CPU. Two holds that share an entry overwrite each
//! other's stamp: such a hold is lost, not wrong.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::class::{ClassStats, LockClass};
use crate::platform;

/// Stamps of holds: the tag of the hold's [`key`] above the time, in [`UNIT`]s, of its beginning.
static HOLDS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// log2 of the platform ticks that a stamp distinguishes; 32 bits of such units are some minutes.
const UNIT: u32 = 6;

/// Whether the profile is on.
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn on() -> bool {
    // SAFETY: a no-op or, where the platform has patched it, a jump to the label; neither touches registers, flags or
    // memory.
    unsafe {
        core::arch::asm!(
            "771: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
            ".pushsection .lock_sites, \"a\", @progbits",
            ".quad 771b, {}",
            ".popsection",
            label { return true },
            options(nomem, nostack, preserves_flags),
        );
    }
    false
}

#[cfg(not(all(target_os = "none", target_arch = "x86_64")))]
#[inline(always)]
pub(crate) fn on() -> bool {
    ON.load(Relaxed)
}

/// Whether the profile is on. Atomic.
#[cfg(not(all(target_os = "none", target_arch = "x86_64")))]
static ON: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

/// Switches the profile on or off, for all threads of the program.
#[cfg(not(all(target_os = "none", target_arch = "x86_64")))]
pub fn switch(on: bool) {
    ON.store(on, Relaxed);
}

/// Called when `lock`, of class `C`, has been taken: `alone` unless it is shared with other readers.
#[inline(always)]
pub(crate) fn taken<C: LockClass, L>(lock: &L, alone: bool) {
    if on() {
        book(C::stats(), ptr::from_ref(lock).addr(), alone);
    }
}

/// Called before `lock`, of class `C`, is released; `alone` as for [`taken`].
#[inline(always)]
pub(crate) fn leaving<C: LockClass, L>(lock: &L, alone: bool) {
    if on() {
        measure(C::stats(), ptr::from_ref(lock).addr(), alone);
    }
}

/// Called before a `lock` of class `C` that was held exclusively is held shared, by the same thread.
#[inline(always)]
pub(crate) fn sharing<C: LockClass, L>(lock: &L) {
    if on() {
        let lock = ptr::from_ref(lock).addr();
        measure(C::stats(), lock, true);
        stamp(lock, false);
    }
}

/// What tells a hold from others: the lock, and, of a shared one, the thread. Locks are four bytes or, rarely, one.
fn key(lock: usize, alone: bool) -> u64 {
    let reader = if alone { 0 } else { platform::thread() };
    (lock as u64).wrapping_add(u64::from(reader).wrapping_mul(0xD6E8_FEB8_6659_FD93))
}

/// The entry for a hold's stamp, and a tag that distinguishes holds that share the entry.
fn place(key: u64) -> (&'static AtomicU64, u64) {
    let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (&HOLDS[(mixed >> 54) as usize], key << 32)
}

fn now() -> u64 {
    (platform::ticks() >> UNIT) & 0xffff_ffff
}

#[cold]
#[inline(never)]
fn book(stats: &'static ClassStats, lock: usize, alone: bool) {
    stats.acquired();
    stamp(lock, alone);
}

#[cold]
#[inline(never)]
fn stamp(lock: usize, alone: bool) {
    let (stamp, tag) = place(key(lock, alone));
    stamp.store(tag | now(), Relaxed);
}

#[cold]
#[inline(never)]
fn measure(stats: &'static ClassStats, lock: usize, alone: bool) {
    let (stamp, tag) = place(key(lock, alone));
    let since = stamp.load(Relaxed) ^ tag;
    if since >> 32 == 0 {
        stats.held((now().wrapping_sub(since) & 0xffff_ffff) << UNIT);
    }
}
