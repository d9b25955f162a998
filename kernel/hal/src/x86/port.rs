//! Input and output ports.
use core::arch::asm;

/// Reads a byte from a port.
///
/// # Safety
/// The device behind the port must tolerate the read in its present state.
#[inline]
pub unsafe fn read_u8(port: u16) -> u8 {
    let value: u8;
    // SAFETY: the caller vouches for the device; the instruction touches no memory of ours.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack, preserves_flags)) };
    value
}

/// Writes a byte to a port.
///
/// # Safety
/// The write must not make a device touch memory that is in use otherwise.
#[inline]
pub unsafe fn write_u8(port: u16, value: u8) {
    // SAFETY: as the caller vouches.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) };
}

/// Reads a 16-bit word from a port.
///
/// # Safety
/// As [`read_u8`].
#[inline]
pub unsafe fn read_u16(port: u16) -> u16 {
    let value: u16;
    // SAFETY: as the caller vouches.
    unsafe { asm!("in ax, dx", in("dx") port, out("ax") value, options(nostack, preserves_flags)) };
    value
}

/// Writes a 16-bit word to a port.
///
/// # Safety
/// As [`write_u8`].
#[inline]
pub unsafe fn write_u16(port: u16, value: u16) {
    // SAFETY: as the caller vouches.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack, preserves_flags)) };
}

/// Reads a 32-bit word from a port.
///
/// # Safety
/// As [`read_u8`].
#[inline]
pub unsafe fn read_u32(port: u16) -> u32 {
    let value: u32;
    // SAFETY: as the caller vouches.
    unsafe {
        asm!("in eax, dx", in("dx") port, out("eax") value, options(nostack, preserves_flags))
    };
    value
}

/// Writes a 32-bit word to a port.
///
/// # Safety
/// As [`write_u8`].
#[inline]
pub unsafe fn write_u32(port: u16, value: u32) {
    // SAFETY: as the caller vouches.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags))
    };
}
