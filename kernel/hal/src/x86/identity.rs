//! CPU features, as programs see them.

/// AT_HWCAP and AT_HWCAP2 as in Linux: EDX of CPUID leaf 1, and whether user mode may use the instructions that read and
/// write FS and GS bases.
pub fn hwcap() -> (u64, u64) {
    let bits = raw_cpuid::cpuid!(1).edx;
    let bases = super::features::has(super::features::FSGSBASE);
    (u64::from(bits), if bases { 2 } else { 0 })
}
