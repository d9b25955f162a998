//! What the CPU calls itself, for /proc/cpuinfo.
use alloc::string::String;

use raw_cpuid::CpuId;

/// The vendor's twelve letters.
pub fn cpu_vendor() -> String {
    CpuId::new()
        .get_vendor_info()
        .map_or_else(|| "unknown".into(), |vendor| vendor.as_str().into())
}

/// The model's name, without the spaces that pad it.
pub fn cpu_model() -> String {
    let name = CpuId::new().get_processor_brand_string();
    name.map_or_else(|| "unknown".into(), |name| name.as_str().trim().into())
}

/// Family, model and stepping.
pub fn cpu_signature() -> (u8, u8, u8) {
    let info = CpuId::new().get_feature_info();
    info.map_or((0, 0, 0), |info| {
        (info.family_id(), info.model_id(), info.stepping_id())
    })
}

/// AT_HWCAP and AT_HWCAP2 as Linux fills them: CPUID leaf 1, EDX, and whether user mode may use the
/// instructions for FS and GS bases.
pub fn hwcap() -> (u64, u64) {
    let bits = raw_cpuid::cpuid!(1).edx;
    let bases = super::features::has(super::features::FSGSBASE);
    (u64::from(bits), if bases { 2 } else { 0 })
}
