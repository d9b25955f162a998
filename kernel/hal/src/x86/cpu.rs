//! CPUs: their number, identity and node, and waiting on them.
use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering};

use ksync::{Announcer, CpuPin};

use super::{features, percpu, time};

/// Number of CPUs that run. Written once, at boot.
static COUNT: AtomicUsize = AtomicUsize::new(1);

/// Sets the number of CPUs that run. Called once, at boot.
pub(super) fn set_count(count: usize) {
    COUNT.store(count, Ordering::Release);
}

/// Number of the CPU that runs the caller; stable only while preemption is off.
#[inline]
pub fn id() -> usize {
    percpu::id() as usize
}

/// Sets the announcer by which [`quiescent`] announces this CPU's quiescent states to the epoch. It must be this CPU's.
/// Called once on each CPU.
pub fn set_announcer(_pin: &CpuPin, announcer: Announcer) {
    percpu::area().announcer.set(Some(announcer));
}

/// Announces a quiescent state of this CPU. Called on the way to user mode, where no read section is open, with interrupts
/// off.
#[inline(always)]
pub fn quiescent() {
    if let Some(announcer) = percpu::area().announcer.get() {
        announcer.quiescent();
    }
}

/// Number of CPUs that run, numbered from 0.
#[inline]
pub fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// NUMA node of a CPU; 0 if there is no such CPU.
pub fn node(cpu: usize) -> usize {
    percpu::of(cpu).map_or(0, |area| area.node as usize)
}

/// Enables interrupts and halts until one comes. An interrupt that becomes pending in between still ends the halt, because
/// `sti` takes effect after the next instruction.
#[inline]
pub fn halt_until_interrupt() {
    // SAFETY: handlers are installed; nothing else changes.
    unsafe { asm!("sti", "hlt", options(nostack)) };
}

/// Halts this CPU for good.
pub(super) fn stop() -> ! {
    loop {
        // SAFETY: interrupts go off and stay off.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

/// Pauses briefly, in a loop that waits for another CPU.
#[inline]
pub fn relax() {
    core::hint::spin_loop();
}

/// A random word from the CPU's generator; `None` if it has no generator, or none comes in ten tries.
pub fn hardware_random() -> Option<u64> {
    /// The number of tries that Intel's guide asks for.
    const TRIES: usize = 10;
    if !features::has(features::RDRAND) {
        return None;
    }
    (0..TRIES).find_map(|_| {
        let (value, good): (u64, u8);
        // SAFETY: CPUID says that the instruction is there; it touches no memory.
        unsafe {
            asm!("rdrand {value}", "setc {good}", value = out(reg) value, good = out(reg_byte) good,
                 options(nomem, nostack));
        }
        (good != 0).then_some(value)
    })
}

/// In the word that counts a CPU's ticks in interrupt handlers: the CPU is in one.
pub(super) const IN_HANDLER: u64 = 1 << 63;

/// The TSC, and the ticks of it that a CPU has spent in interrupt handlers so far, also in one that has not ended.
fn interrupt_ticks(area: &percpu::CpuArea) -> (u64, u64) {
    loop {
        let word = area.irq_ticks.load(Ordering::Relaxed);
        let now = time::ticks();
        if area.irq_ticks.load(Ordering::Relaxed) == word {
            return match word & IN_HANDLER {
                0 => (now, word),
                _ => (now, now.saturating_sub(word & !IN_HANDLER)),
            };
        }
    }
}

/// Nanoseconds that a CPU has spent in interrupt handlers so far.
pub fn interrupt_ns(cpu: usize) -> u64 {
    percpu::of(cpu).map_or(0, |area| time::ticks_to_ns(interrupt_ticks(area).1))
}

/// Nanoseconds since boot that a CPU has not spent in interrupt handlers. It stands still while the CPU is in one, and
/// decreases no more than the TSC of the CPU that asks is behind that of the one that asked before.
pub fn undisturbed_ns(cpu: usize) -> u64 {
    percpu::of(cpu).map_or(0, |area| {
        let (now, spent) = interrupt_ticks(area);
        time::ns_at(now.wrapping_sub(spent))
    })
}
