//! CPU features: found once, on the boot CPU, and enabled on each CPU.
use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

use raw_cpuid::CpuId;

use super::msr;

/// No-execute pages.
pub const NX: u32 = 1 << 0;
/// 1 GiB pages.
pub const PAGES_1G: u32 = 1 << 1;
/// Supervisor-mode execution prevention.
pub const SMEP: u32 = 1 << 2;
/// Supervisor-mode access prevention.
pub const SMAP: u32 = 1 << 3;
/// User-mode instruction prevention.
pub const UMIP: u32 = 1 << 4;
/// Instructions that read and write FS and GS bases.
pub const FSGSBASE: u32 = 1 << 5;
/// x2APIC mode.
pub const X2APIC: u32 = 1 << 6;
/// Local APIC timer by TSC deadline.
pub const TSC_DEADLINE: u32 = 1 << 7;
/// XSAVE.
pub const XSAVE: u32 = 1 << 8;
/// XSAVEOPT.
pub const XSAVEOPT: u32 = 1 << 9;
/// Process-context identifiers.
pub const PCID: u32 = 1 << 10;
/// Global pages.
pub const GLOBAL: u32 = 1 << 11;

/// Random numbers by RDRAND.
pub const RDRAND: u32 = 1 << 12;
/// Page-attribute table.
pub const PAT: u32 = 1 << 13;
/// INVPCID.
pub const INVPCID: u32 = 1 << 14;

/// The features found, as bits of the constants above. Written once, by [`detect`].
static FOUND: AtomicU32 = AtomicU32::new(0);
/// Width of physical addresses in bits. Written once, by [`detect`].
static PHYSICAL_BITS: AtomicU32 = AtomicU32::new(36);

/// Whether the CPU has all of `features`.
#[inline]
pub fn has(features: u32) -> bool {
    FOUND.load(Ordering::Relaxed) & features == features
}

/// Width of physical addresses in bits.
pub fn physical_bits() -> u32 {
    PHYSICAL_BITS.load(Ordering::Relaxed)
}

/// Finds the features of the boot CPU; the other CPUs are assumed to have the same.
pub(super) fn detect() {
    let id = CpuId::new();
    let mut found = 0;
    let mut note = |present: bool, feature: u32| {
        if present {
            found |= feature;
        }
    };
    if let Some(basic) = id.get_feature_info() {
        note(basic.has_x2apic(), X2APIC);
        note(basic.has_tsc_deadline(), TSC_DEADLINE);
        note(basic.has_xsave(), XSAVE);
        note(basic.has_pge(), GLOBAL);
        note(basic.has_rdrand(), RDRAND);
        note(basic.has_pat(), PAT);
        // Identifiers are used with global pages only: otherwise the kernel's translations would be cached once for each
        // identifier.
        note(basic.has_pcid() && basic.has_pge(), PCID);
    }
    if let Some(more) = id.get_extended_feature_info() {
        note(more.has_smep(), SMEP);
        note(more.has_smap(), SMAP);
        note(more.has_umip(), UMIP);
        note(more.has_fsgsbase(), FSGSBASE);
        note(more.has_invpcid(), INVPCID);
    }
    if let Some(extended) = id.get_extended_processor_and_feature_identifiers() {
        note(extended.has_execute_disable(), NX);
        note(extended.has_1gib_pages(), PAGES_1G);
    }
    if let Some(state) = id.get_extended_state_info() {
        note(state.has_xsaveopt(), XSAVEOPT);
    }
    FOUND.store(found, Ordering::Relaxed);
    if let Some(sizes) = id.get_processor_capacity_feature_info() {
        PHYSICAL_BITS.store(sizes.physical_address_bits().into(), Ordering::Relaxed);
    }
}

/// Memory types by the PAT, CD and WT bits of an entry, lowest byte first: write-back, write-combining, uncached unless
/// the range registers say otherwise, uncached; then, with PAT, write-back, write-protected, as before, write-through.
const MEMORY_TYPES: u64 = 0x0407_0506_0007_0106;

const EFER_SCE: u64 = 1 << 0;
const EFER_NXE: u64 = 1 << 11;
const CR0_MP: u64 = 1 << 1;
const CR0_EM: u64 = 1 << 2;
const CR0_TS: u64 = 1 << 3;
const CR0_NE: u64 = 1 << 5;
const CR0_WP: u64 = 1 << 16;
const CR0_AM: u64 = 1 << 18;
const CR4_PGE: u64 = 1 << 7;
const CR4_OSFXSR: u64 = 1 << 9;
const CR4_OSXMMEXCPT: u64 = 1 << 10;
const CR4_UMIP: u64 = 1 << 11;
const CR4_FSGSBASE: u64 = 1 << 16;
const CR4_PCIDE: u64 = 1 << 17;
const CR4_OSXSAVE: u64 = 1 << 18;
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;

/// Enables, on this CPU, the features that [`detect`] found. SMEP and SMAP are among them, so the page tables in use must map
/// nothing of the kernel as user memory.
pub(super) fn enable() {
    let mut efer = EFER_SCE;
    let mut cr4 = CR4_OSFXSR | CR4_OSXMMEXCPT;
    let mut turn_on = |feature: u32, bit: u64| {
        if has(feature) {
            cr4 |= bit;
        }
    };
    turn_on(GLOBAL, CR4_PGE);
    turn_on(UMIP, CR4_UMIP);
    turn_on(FSGSBASE, CR4_FSGSBASE);
    // The identifier in CR3 is still 0, as the CPU demands when they are enabled.
    turn_on(PCID, CR4_PCIDE);
    turn_on(XSAVE, CR4_OSXSAVE);
    turn_on(SMEP, CR4_SMEP);
    turn_on(SMAP, CR4_SMAP);
    if has(NX) {
        efer |= EFER_NXE;
    }
    // SAFETY: CPUID lists each feature that is enabled, and the kernel is written for all of them.
    unsafe {
        msr::write(msr::EFER, msr::read(msr::EFER) | efer);
        if has(PAT) {
            msr::write(msr::PAT, MEMORY_TYPES);
        }
        let mut old: u64;
        asm!("mov {}, cr4", out(reg) old, options(nostack, preserves_flags));
        asm!("mov cr4, {}", in(reg) old | cr4, options(nostack, preserves_flags));
        asm!("mov {}, cr0", out(reg) old, options(nostack, preserves_flags));
        let new = old & !(CR0_EM | CR0_TS | CR0_AM) | CR0_MP | CR0_NE | CR0_WP;
        asm!("mov cr0, {}", in(reg) new, options(nostack, preserves_flags));
    }
}
