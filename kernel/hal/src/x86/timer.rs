//! The one-shot timer of each CPU.
use core::sync::atomic::{AtomicU64, Ordering};

use super::vectors::VECTOR_TIMER;
use super::{apic, calibrate, features, irq, msr, percpu, time};
use crate::frame::TrapFrame;

/// Ticks a second of the APIC timer; 0 with TSC deadline. Written once, at boot.
static APIC_HZ: AtomicU64 = AtomicU64::new(0);

/// No deadline.
pub const NEVER: u64 = u64::MAX;

/// Measures the frequency of the timer. Called on the boot CPU.
pub(super) fn calibrate() {
    if !features::has(features::TSC_DEADLINE) {
        APIC_HZ.store(calibrate::apic_timer_hz(time::tsc_hz()), Ordering::Relaxed);
    }
}

/// Sets this CPU's timer up. It is not armed.
pub(super) fn init() {
    apic::timer_init(VECTOR_TIMER);
}

/// Arms this CPU's timer for `deadline_ns` on the clock of [`time::now_ns`], in place of the deadline that it had; [`NEVER`]
/// disarms it. With a deadline that has passed it interrupts at once. It may interrupt early, because of rounding or because
/// the counter does not reach the deadline: the handler must look at the clock. Called with preemption off.
pub fn arm(deadline_ns: u64) {
    let flags = irq::save();
    let armed = &percpu::area().armed_ns;
    if armed.get() != deadline_ns {
        armed.set(deadline_ns);
        if features::has(features::TSC_DEADLINE) {
            // The value 0 disarms.
            let tsc = if deadline_ns == NEVER {
                0
            } else {
                time::tsc_at(deadline_ns).max(1)
            };
            // SAFETY: CPUID lists the register.
            unsafe { msr::write(msr::TSC_DEADLINE, tsc) };
        } else {
            apic::timer_start(count(deadline_ns));
        }
    }
    irq::restore(flags);
}

fn count(deadline_ns: u64) -> u32 {
    if deadline_ns == NEVER {
        return 0;
    }
    let left = u128::from(deadline_ns.saturating_sub(time::now_ns()));
    let ticks = (left * u128::from(APIC_HZ.load(Ordering::Relaxed))).div_ceil(1_000_000_000);
    ticks.clamp(1, u128::from(u32::MAX)) as u32
}

/// The timer interrupt.
pub(super) fn expired(frame: &TrapFrame) {
    percpu::area().armed_ns.set(NEVER);
    crate::upcalls::symbols::timer_expired(frame.in_user_mode());
}
