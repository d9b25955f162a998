//! The longest time for which preemption was off on each CPU, and in which function.
//!
//! Sections without preemption are too many and too short to read the clock at each. A timer interrupt that finds preemption
//! off reads the clock and requests a reschedule, so that the end of the section takes the slow path, which reads the clock
//! again. So a section costs nothing unless a timer interrupt finds it, and is measured from that interrupt on; every section
//! that lasts longer than the time between two interrupts is found. With the option `sections` the timer interrupts every 50
//! µs for this.
//!
//! The time that the timer interrupt itself takes is measured, too, under the name of its handler.
//!
//! Each CPU writes only its own cache line; a reader may see values of different moments.
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::{cpu, memory, preempt, sample, symbols, time};
use crate::limits::MAX_CPUS;

#[repr(align(64))]
struct Slot {
    /// TSC at the interrupt that found the present section; 0 if none was found.
    since: AtomicU64,
    /// Program counter at that interrupt.
    pc: AtomicU64,
    /// TSC ticks of the longest section so far.
    longest: AtomicU64,
    /// Program counter at which that one was found.
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

/// Records that this timer interrupt has found a thread with preemption off, and requests a reschedule, by which the end of the
/// section is noticed. Interrupts are off.
pub fn found() {
    let slot = &SLOTS[cpu::id()];
    if slot.since.load(Relaxed) == 0 {
        slot.since.store(time::ticks(), Relaxed);
        slot.pc.store(sample::pc(), Relaxed);
    }
    preempt::set_need_resched();
}

/// Records the end of a section. Called where preemption is possible on this CPU and a reschedule is requested.
pub fn ended() {
    let slot = &SLOTS[cpu::id()];
    // Read first: after this the thread may be preempted, and continue much later.
    let now = time::ticks();
    let since = slot.since.swap(0, Relaxed);
    if since != 0 {
        note(slot, now.saturating_sub(since), slot.pc.load(Relaxed));
    }
}

/// Records that the interrupt handler at `pc` has run since `since`, in TSC ticks. Interrupts are off.
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

/// TSC ticks of the longest section on `cpu`, and the function in which it was found, with its mangled name and an offset in
/// it.
pub fn longest(cpu: usize) -> Option<(u64, Option<(&'static str, u64)>)> {
    let slot = SLOTS.get(cpu)?;
    let pc = slot.longest_pc.load(Relaxed);
    let function = memory::is_text(pc).then(|| symbols::lookup(pc)).flatten();
    Some((slot.longest.load(Relaxed), function))
}
