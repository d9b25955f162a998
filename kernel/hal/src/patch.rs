//! Boot-time patching: `clac` and `stac`, and the lock profile.
//!
//! The entry code and the user copies hold three-byte no-ops where SMAP needs one of the two
//! instructions; each site's address is recorded in a section. On a CPU with SMAP they are filled in
//! once, while the boot page tables still let text be written and before other CPUs run. Where `ksync` takes and leaves locks it
//! holds five-byte no-ops, which become jumps to what counts if the option `lockprof` asks for that.
use core::{ptr, slice};

use super::features;

// Arrays of no elements, for two symbols may have the same address.
unsafe extern "C" {
    static __clac_sites_start: [u64; 0];
    static __clac_sites_end: [u64; 0];
    static __stac_sites_start: [u64; 0];
    static __stac_sites_end: [u64; 0];
    static __lock_sites_start: [u64; 0];
    static __lock_sites_end: [u64; 0];
}

/// A place for `clac`.
macro_rules! clac {
    () => {
        "771: .byte 0x0f, 0x1f, 0x00\n.pushsection .clac_sites, \"a\", @progbits\n.quad 771b\n.popsection\n"
    };
}
/// A place for `stac`.
macro_rules! stac {
    () => {
        "772: .byte 0x0f, 0x1f, 0x00\n.pushsection .stac_sites, \"a\", @progbits\n.quad 772b\n.popsection\n"
    };
}
pub(super) use {clac, stac};

/// Fills the sites in if the CPU has SMAP.
///
/// # Safety
/// Text must be writable and no other CPU may run.
pub(super) unsafe fn apply() {
    if !features::has(features::SMAP) {
        return;
    }
    // SAFETY: the linker script places the sites between the symbols; each is the address of three
    // bytes of text, writable by this function's contract.
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

/// Turns every no-op of the lock profile into its jump.
///
/// # Safety
/// Text must be writable and no other CPU may run.
pub(super) unsafe fn profile_locks() {
    const JUMP: u8 = 0xe9;
    let start: *const [u64; 2] = (&raw const __lock_sites_start).cast();
    let end: *const [u64; 2] = (&raw const __lock_sites_end).cast();
    // SAFETY: the linker script places pairs of addresses between the symbols, of five bytes of text, writable by this
    // function's contract, and of where they shall jump to.
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
/// `start..end` must hold addresses of writable three-byte places.
unsafe fn fill(start: *const u64, end: *const u64, code: [u8; 3]) {
    // SAFETY: as the caller vouches.
    unsafe {
        for &site in slice::from_raw_parts(start, end.offset_from_unsigned(start)) {
            ptr::copy_nonoverlapping(code.as_ptr(), site as *mut u8, code.len());
        }
    }
}
