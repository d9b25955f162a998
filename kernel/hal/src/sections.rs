//! The longest time that preemption was off on each CPU, and in which function.
//!
//! Sections without preemption are too many and too short to read the clock at each. A timer interrupt that finds preemption
//! off asks for a reschedule, so that the section's end takes the slow path; that reads the clock a second time. So a
//! section costs nothing unless a timer interrupt meets it, and is known from that interrupt on: all that last longer than
//! the time between two interrupts are. The option `sections` has the timer interrupt every 50 µs for it.
//!
//! What the timer's interrupt itself takes counts, too, under the name of its handler.
//!
//! Each CPU writes its own line only; readers may see values of different moments.
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::{cpu, memory, preempt, sample, symbols, time};
use crate::limits::MAX_CPUS;

#[repr(align(64))]
struct Slot {
    /// TSC at the interrupt that found the present section; 0 for none.
    since: AtomicU64,
    /// Where it found the CPU.
    pc: AtomicU64,
    /// TSC ticks of the longest section so far.
    longest: AtomicU64,
    /// Where the CPU was found in that one.
    longest_pc: AtomicU64,
}

static SLOTS: [Slot; MAX_CPUS] = [const {
    Slot {
        since: AtomicU64::new(0),
        pc: AtomicU64::new(0),
        longest: AtomicU64::new(0),
        longest_pc: AtomicU64::new(0),
    }
}; MAX_CPUS];

/// Notes that this timer interrupt has found a thread with preemption off. Interrupts are off.
pub fn found() {
    let slot = &SLOTS[cpu::id()];
    if slot.since.load(Relaxed) == 0 {
        slot.since.store(time::ticks(), Relaxed);
        slot.pc.store(sample::pc(), Relaxed);
    }
    preempt::set_need_resched();
}

/// Notes that preemption is possible. Called where that is so on this CPU, and a reschedule is wanted.
pub fn ended() {
    let slot = &SLOTS[cpu::id()];
    // First: from here on the thread may be preempted, and go on much later.
    let now = time::ticks();
    let since = slot.since.swap(0, Relaxed);
    if since != 0 {
        note(slot, now.saturating_sub(since), slot.pc.load(Relaxed));
    }
}

/// Notes that a handler of interrupts, which is at `pc`, has run since `since`. Interrupts are off.
pub fn handled(since: u64, pc: usize) {
    let ticks = time::ticks().saturating_sub(since);
    note(&SLOTS[cpu::id()], ticks, pc as u64);
}

fn note(slot: &Slot, ticks: u64, pc: u64) {
    if ticks > slot.longest.load(Relaxed) {
        slot.longest.store(ticks, Relaxed);
        slot.longest_pc.store(pc, Relaxed);
    }
}

/// TSC ticks of the longest section on `cpu`, and the function, as mangled, in which it was found, with an offset.
pub fn longest(cpu: usize) -> Option<(u64, Option<(&'static str, u64)>)> {
    let slot = SLOTS.get(cpu)?;
    let pc = slot.longest_pc.load(Relaxed);
    let function = memory::is_text(pc).then(|| symbols::lookup(pc)).flatten();
    Some((slot.longest.load(Relaxed), function))
}
