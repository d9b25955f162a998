//! Frequencies of the TSC and of the local APIC timer.
use core::arch::x86_64::_rdtsc;

use raw_cpuid::CpuId;

use super::{apic, port};

/// Ticks a second of the ACPI PM timer.
const PM_TIMER_HZ: u64 = 3_579_545;
/// Ticks a second of the PIT.
const PIT_HZ: u64 = 1_193_182;
/// Measurements in a second. A measurement of 20 ms keeps the error, the time of one port access, small.
const PER_SECOND: u64 = 50;

/// The time-stamp counter now.
#[inline]
pub(super) fn tsc() -> u64 {
    // SAFETY: every 64-bit CPU has the instruction.
    unsafe { _rdtsc() }
}

/// TSC ticks a second: as CPUID says, or else measured against the PM timer, or else against the PIT.
pub(super) fn tsc_hz(pm_timer: u16) -> u64 {
    from_cpuid().unwrap_or_else(|| {
        if pm_timer != 0 && pm_timer_runs(pm_timer) {
            measure(|| against_pm_timer(pm_timer))
        } else {
            measure(against_pit)
        }
    })
}

fn from_cpuid() -> Option<u64> {
    let id = CpuId::new();
    if let Some(hz) = id.get_tsc_info().and_then(|tsc| tsc.tsc_frequency()) {
        return Some(hz);
    }
    // The CPUID leaf that VMware defined and KVM has, too; in kHz.
    let hypervisor = id.get_hypervisor_info()?;
    hypervisor
        .tsc_frequency()
        .filter(|&khz| khz > 0)
        .map(|khz| u64::from(khz) * 1000)
}

/// The median of three measurements, so that an interruption by the host in one of them does no harm.
fn measure(once: impl Fn() -> u64) -> u64 {
    let mut results = [once(), once(), once()];
    results.sort_unstable();
    results[1]
}

fn pm_ticks(timer: u16) -> u64 {
    // SAFETY: reading the timer has no effect. Only its low 24 bits are sure to exist.
    u64::from(unsafe { port::read_u32(timer) } & 0xff_ffff)
}

fn pm_timer_runs(timer: u16) -> bool {
    let first = pm_ticks(timer);
    (0..1000).any(|_| pm_ticks(timer) != first)
}

fn against_pm_timer(timer: u16) -> u64 {
    let (start, tsc_start) = (pm_ticks(timer), tsc());
    loop {
        let passed = pm_ticks(timer).wrapping_sub(start) & 0xff_ffff;
        if passed >= PM_TIMER_HZ / PER_SECOND {
            return (u128::from(tsc() - tsc_start) * u128::from(PM_TIMER_HZ) / u128::from(passed))
                as u64;
        }
    }
}

/// TSC ticks a second, measured while channel 2 of the PIT counts down once: its output can be read at a port, without
/// an interrupt. A CPU that is held up at the end gets too large a result, so [`measure`] takes the middle one of three.
fn against_pit() -> u64 {
    const COUNT: u64 = PIT_HZ / PER_SECOND;
    // SAFETY: the usual programming of channel 2 with the speaker off.
    unsafe {
        let gate = port::read_u8(0x61) & !2 | 1;
        port::write_u8(0x61, gate & !1);
        port::write_u8(0x43, 0xb0);
        port::write_u8(0x42, COUNT as u8);
        port::write_u8(0x42, (COUNT >> 8) as u8);
        port::write_u8(0x61, gate);
        let start = tsc();
        while port::read_u8(0x61) & 0x20 == 0 {}
        (tsc() - start) * PER_SECOND
    }
}

/// Ticks a second of this CPU's APIC timer, with the divider that the kernel uses, measured against the TSC.
pub(super) fn apic_timer_hz(tsc_hz: u64) -> u64 {
    measure(|| {
        apic::timer_mask();
        apic::timer_start(u32::MAX);
        let start = tsc();
        let mut now = start;
        while now - start < tsc_hz / PER_SECOND {
            now = tsc();
        }
        let ticks = u64::from(u32::MAX - apic::timer_left());
        apic::timer_start(0);
        (u128::from(ticks) * u128::from(tsc_hz) / u128::from(now - start)) as u64
    })
}
