//! /proc/cpuinfo, in the form that programs such as `lscpu` parse.

use hal::{cpu, time};
use raw_cpuid::CpuId;
use raw_cpuid::native_cpuid::cpuid_count;
use vfs::dynamic::Text;
use vfs::error::Result;
use vfs::put;

/// A register that CPUID returns, with the leaf and subleaf to ask for.
enum Word {
    Eax(u32, u32),
    Ebx(u32, u32),
    Ecx(u32, u32),
    Edx(u32, u32),
}
use Word::Eax;
use Word::Ebx;
use Word::Ecx;
use Word::Edx;

/// Linux's names of feature bits, lowest bit first, in the order in which Linux lists the words. A dash stands for a bit
/// without a name, or for a facility that a kernel must manage and this one does not: virtualisation, protection keys,
/// enclaves, tracing, tile registers.
const FLAGS: &[(Word, &str)] = &[
    (
        Edx(1, 0),
        "fpu vme de pse tsc msr pae mce cx8 apic - sep mtrr pge mca cmov pat pse36 pn clflush - dts acpi mmx fxsr sse sse2 ss \
         ht tm ia64 pbe",
    ),
    (
        Edx(0x8000_0001, 0),
        "- - - - - - - - - - - syscall - - - - - - - mp nx - mmxext - - fxsr_opt pdpe1gb rdtscp - lm 3dnowext 3dnow",
    ),
    (
        Ecx(1, 0),
        "pni pclmulqdq - monitor - - - est tm2 ssse3 cid - fma cx16 - - - pcid dca sse4_1 sse4_2 x2apic movbe popcnt \
         tsc_deadline_timer aes xsave - avx f16c rdrand hypervisor",
    ),
    (
        Ecx(0x8000_0001, 0),
        "lahf_lm cmp_legacy - extapic cr8_legacy abm sse4a misalignsse 3dnowprefetch - - xop - - - - fma4 tce - - - tbm",
    ),
    (
        Ebx(7, 0),
        "fsgsbase tsc_adjust - bmi1 hle avx2 - smep bmi2 erms invpcid rtm - - - - avx512f avx512dq rdseed adx smap avx512ifma \
         - clflushopt clwb - avx512pf avx512er avx512cd sha_ni avx512bw avx512vl",
    ),
    (Eax(0xd, 1), "xsaveopt xsavec xgetbv1"),
    (
        Ecx(7, 0),
        "- avx512vbmi umip - - - avx512_vbmi2 - gfni vaes vpclmulqdq avx512_vnni avx512_bitalg - avx512_vpopcntdq - - - - - - \
         - rdpid - - cldemote - movdiri movdir64b",
    ),
    (
        Edx(7, 0),
        "- - avx512_4vnniw avx512_4fmaps fsrm - - - avx512_vp2intersect - md_clear - - - serialize",
    ),
];

impl Word {
    fn bits(&self) -> u32 {
        let (Eax(leaf, part) | Ebx(leaf, part) | Ecx(leaf, part) | Edx(leaf, part)) = *self;
        // For a leaf beyond the last one, CPUID returns the data of the last.
        if leaf > cpuid_count(leaf & 0x8000_0000, 0).eax {
            return 0;
        }
        let words = cpuid_count(leaf, part);
        match self {
            Eax(..) => words.eax,
            Ebx(..) => words.ebx,
            Ecx(..) => words.ecx,
            Edx(..) => words.edx,
        }
    }
}

/// Prints /proc/cpuinfo. All CPUs are shown with the features of the one that runs this.
pub fn cpuinfo(out: &mut Text) -> Result<()> {
    for i in 0..cpu::count() {
        put!(out, "processor\t: {i}\n");
        model(out);
        // As in sysfs, a NUMA node counts as a package, and each core has one thread.
        let (node, all) = (cpu::node(i), 0..cpu::count());
        let cores = all.filter(|&c| cpu::node(c) == node).count();
        put!(out, "physical id\t: {node}\nsiblings\t: {cores}\n");
        put!(out, "core id\t\t: {i}\ncpu cores\t: {cores}\n");
        put!(out, "fpu\t\t: yes\nfpu_exception\t: yes\n");
        put!(
            out,
            "cpuid level\t: {}\nwp\t\t: yes\n",
            cpuid_count(0, 0).eax
        );
        flags(out);
        sizes(out);
    }
    Ok(())
}

/// Prints vendor, family, model, stepping and the TSC's frequency.
fn model(out: &mut Text) {
    let id = CpuId::new();
    let (vendor, brand) = (id.get_vendor_info(), id.get_processor_brand_string());
    out.push(b"vendor_id\t: ");
    out.push(vendor.as_ref().map_or("unknown", |v| v.as_str()).as_bytes());
    let signature = id.get_feature_info();
    if let Some(it) = &signature {
        put!(
            out,
            "\ncpu family\t: {}\nmodel\t\t: {}",
            it.family_id(),
            it.model_id()
        );
    }
    out.push(b"\nmodel name\t: ");
    out.push(brand.as_ref().map_or("unknown", |b| b.as_str()).as_bytes());
    if let Some(it) = &signature {
        put!(out, "\nstepping\t: {}", it.stepping_id());
    }
    let khz = time::tsc_hz() / 1000;
    put!(out, "\ncpu MHz\t\t: {}.{:03}\n", khz / 1000, khz % 1000);
}

fn flags(out: &mut Text) {
    out.push(b"flags\t\t:");
    for (word, names) in FLAGS {
        let bits = word.bits();
        for (bit, name) in names.split_ascii_whitespace().enumerate() {
            if name != "-" && bits >> bit & 1 == 1 {
                put!(out, " {name}");
            }
        }
    }
    // Linux shows twice the frequency in MHz, a remnant of its calibrated delay loop.
    let bogus = time::tsc_hz() / 5000;
    put!(out, "\nbogomips\t: {}.{:02}\n", bogus / 100, bogus % 100);
}

fn sizes(out: &mut Text) {
    let id = CpuId::new();
    if let Some(it) = id.get_feature_info() {
        let line = u32::from(it.cflush_cache_line_size()) * 8;
        put!(out, "clflush size\t: {line}\ncache_alignment\t: {line}\n");
    }
    if let Some(it) = id.get_processor_capacity_feature_info() {
        let (physical, linear) = (it.physical_address_bits(), it.linear_address_bits());
        put!(
            out,
            "address sizes\t: {physical} bits physical, {linear} bits virtual\n"
        );
    }
    out.push(b"power management:\n\n");
}
