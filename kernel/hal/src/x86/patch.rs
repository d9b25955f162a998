//! Patches of the kernel's text at boot: `clac` and `stac`, and the lock profile.
//!
//! The entry code and the user copies have three-byte no-ops where SMAP needs one of the two instructions. The address of
//! each site is recorded in a section. On a CPU with SMAP the instructions are written once, while the boot page tables still
//! map text writable and before other CPUs run. `ksync` has five-byte no-ops where locks are taken and released, which become
//! jumps to the counting code if the option `lockprof` is given.
use core::{ptr, slice};

use super::features;

// Arrays without elements, because two of the symbols may have the same address.
unsafe extern "C" {
    static __clac_sites_start: [u64; 0];
    static __clac_sites_end: [u64; 0];
    static __stac_sites_start: [u64; 0];
    static __stac_sites_end: [u64; 0];
    static __lock_sites_start: [u64; 0];
    static __lock_sites_end: [u64; 0];
}

/// A site for `clac`.
macro_rules! clac {
    () => {
        "771: .byte 0x0f, 0x1f, 0x00\n.pushsection .clac_sites, \"a\", @progbits\n.quad 771b\n.popsection\n"
    };
}
/// A site for `stac`.
macro_rules! stac {
    () => {
        "772: .byte 0x0f, 0x1f, 0x00\n.pushsection .stac_sites, \"a\", @progbits\n.quad 772b\n.popsection\n"
    };
}
pub(super) use {clac, stac};

/// Writes the instructions at the sites if the CPU has SMAP.
///
/// # Safety
/// Text must be writable and no other CPU may run.
pub(super) unsafe fn apply() {
    if !features::has(features::SMAP) {
        return;
    }
    // SAFETY: the linker script puts the sites' addresses between the symbols; each is that of three bytes of text, which are
    // writable as the caller ensures.
    unsafe {
        fill(
            (&raw const __clac_sites_start).cast(),
            (&raw const __clac_sites_end).cast(),
            [0x0f, 0x01, 0xca],
        );
        fill(
            (&raw const __stac_sites_start).cast(),
            (&raw const __stac_sites_end).cast(),
            [0x0f, 0x01, 0xcb],
        );
    }
}

/// Replaces every no-op of the lock profile by its jump.
///
/// # Safety
/// Text must be writable and no other CPU may run.
pub(super) unsafe fn profile_locks() {
    const JUMP: u8 = 0xe9;
    let start: *const [u64; 2] = (&raw const __lock_sites_start).cast();
    let end: *const [u64; 2] = (&raw const __lock_sites_end).cast();
    // SAFETY: the linker script puts pairs of addresses between the symbols: that of five bytes of text, which are writable
    // as the caller ensures, and that to which they shall jump.
    unsafe {
        for &[site, target] in slice::from_raw_parts(start, end.offset_from_unsigned(start)) {
            let distance = target.wrapping_sub(site + 5) as u32;
            (site as *mut u8).write(JUMP);
            (site as *mut u8)
                .add(1)
                .cast::<u32>()
                .write_unaligned(distance);
        }
    }
}

/// # Safety
/// `start..end` must contain addresses of writable areas of three bytes.
unsafe fn fill(start: *const u64, end: *const u64, code: [u8; 3]) {
    // SAFETY: as the caller vouches.
    unsafe {
        for &site in slice::from_raw_parts(start, end.offset_from_unsigned(start)) {
            ptr::copy_nonoverlapping(code.as_ptr(), site as *mut u8, code.len());
        }
    }
}
