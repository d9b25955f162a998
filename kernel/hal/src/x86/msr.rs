//! Model-specific registers.
use core::arch::asm;

/// Local APIC base and mode.
pub const APIC_BASE: u32 = 0x1b;
/// Page-attribute table.
pub const PAT: u32 = 0x277;
/// Deadline of the local APIC timer, in TSC ticks.
pub const TSC_DEADLINE: u32 = 0x6e0;
/// First of the x2APIC's registers.
pub const X2APIC: u32 = 0x800;
/// Extended features: SCE, LME, NXE.
pub const EFER: u32 = 0xc000_0080;
/// Segment selectors of `syscall` and `sysret`.
pub const STAR: u32 = 0xc000_0081;
/// Entry point of `syscall`.
pub const LSTAR: u32 = 0xc000_0082;
/// Flags that `syscall` clears.
pub const SFMASK: u32 = 0xc000_0084;
/// Base of FS.
pub const FS_BASE: u32 = 0xc000_0100;
/// Base of GS in use.
pub const GS_BASE: u32 = 0xc000_0101;
/// The GS base that `swapgs` loads: the user's, while the CPU is in the kernel.
pub const KERNEL_GS_BASE: u32 = 0xc000_0102;

/// Reads a model-specific register.
///
/// # Safety
/// The CPU must have the register.
#[inline]
pub unsafe fn read(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller vouches that the register exists.
    unsafe {
        asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high,
             options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Writes a model-specific register.
///
/// # Safety
/// The CPU must have the register and accept the value, and the running code must not depend on what the value turns off.
#[inline]
pub unsafe fn write(register: u32, value: u64) {
    // SAFETY: as the caller vouches.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") value as u32, in("edx") (value >> 32) as u32,
             options(nostack, preserves_flags));
    }
}
