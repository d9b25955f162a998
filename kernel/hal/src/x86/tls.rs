//! The user's FS and GS bases: thread-local storage.
//!
//! In the kernel the user's GS base is in a register that `swapgs` exchanges with GS. On a CPU with FSGSBASE a program can
//! change both bases without a system call, so they are read at each switch.
use core::arch::asm;

use super::{features, msr};

/// The two bases of a thread that is not running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bases {
    /// Base of FS.
    pub fs: u64,
    /// Base of GS.
    pub gs: u64,
}

/// The user's bases on this CPU. Called with preemption off.
#[inline]
pub(super) fn read() -> Bases {
    // SAFETY: reads registers that every 64-bit CPU has; the instruction is used if CPUID lists it.
    unsafe {
        let fs = if features::has(features::FSGSBASE) {
            let fs: u64;
            asm!("rdfsbase {}", out(reg) fs, options(nostack, preserves_flags));
            fs
        } else {
            msr::read(msr::FS_BASE)
        };
        Bases {
            fs,
            gs: msr::read(msr::KERNEL_GS_BASE),
        }
    }
}

/// Loads the bases of the thread that runs next, as far as they differ from `now`. They must be canonical addresses.
#[inline]
pub(super) fn write(now: Bases, next: Bases) {
    if now.fs != next.fs {
        write_fs(next.fs);
    }
    if now.gs != next.gs {
        // SAFETY: bases are checked to be user addresses when they are set.
        unsafe { msr::write(msr::KERNEL_GS_BASE, next.gs) };
    }
}

#[inline]
fn write_fs(base: u64) {
    // SAFETY: the kernel does not use FS; the address is canonical.
    unsafe {
        if features::has(features::FSGSBASE) {
            asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags));
        } else {
            msr::write(msr::FS_BASE, base);
        }
    }
}

/// Sets the running thread's FS base. Returns false, and changes nothing, if `base` is not a user address.
pub fn set_user_tls(base: u64) -> bool {
    let user = base < crate::limits::USER_END;
    if user {
        write_fs(base);
    }
    user
}

/// Sets the running thread's GS base. Returns false, and changes nothing, if `base` is not a user address.
pub fn set_user_gs(base: u64) -> bool {
    let user = base < crate::limits::USER_END;
    if user {
        // SAFETY: in the kernel this register holds the user's base.
        unsafe { msr::write(msr::KERNEL_GS_BASE, base) };
    }
    user
}

/// The running thread's FS and GS bases.
pub fn user_bases() -> Bases {
    super::preempt::disable();
    let bases = read();
    super::preempt::enable();
    bases
}
