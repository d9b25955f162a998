//! What all CPUs are doing at this moment.
//!
//! A CPU asks the others by a non-maskable interrupt, so they answer even with interrupts off. The interrupt's handler
//! records the interrupted address and its callers; the CPU that asked prints them.
use core::sync::atomic::{AtomicBool, Ordering};

use super::{apic, backtrace, cpu, percpu, sample, time};
use crate::frame::TrapFrame;

/// The longest wait for answers, in nanoseconds.
const PATIENCE_NS: u64 = 5_000_000_000;

fn others() -> impl Iterator<Item = &'static percpu::CpuArea> {
    let me = percpu::id();
    (0..cpu::count())
        .filter_map(percpu::of)
        .filter(move |area| area.id != me)
}

/// Asks all other CPUs, and waits until they have answered, for five seconds at most.
pub(super) fn ask_others() {
    for area in others() {
        area.snapshot.taken.store(false, Ordering::Relaxed);
        area.snapshot.wanted.store(true, Ordering::Release);
        apic::send_nmi(area.apic_id);
    }
    let deadline = time::now_ns() + PATIENCE_NS;
    while others().any(|area| !area.snapshot.taken.load(Ordering::Acquire)) {
        if time::now_ns() > deadline {
            return;
        }
        cpu::relax();
    }
}

/// Records what was interrupted, if a CPU has asked. Called by the handler of the NMI. Returns whether a CPU had asked.
pub(super) fn answer(frame: &TrapFrame) -> bool {
    let snapshot = &percpu::area().snapshot;
    if !snapshot.wanted.swap(false, Ordering::Acquire) {
        return false;
    }
    let from_user = frame.in_user_mode();
    snapshot.rip.store(frame.rip, Ordering::Relaxed);
    snapshot.from_user.store(from_user, Ordering::Relaxed);
    let current = percpu::current() as u64;
    snapshot.current.store(current, Ordering::Relaxed);
    let mut callers = snapshot.callers.iter();
    if !from_user {
        backtrace::walk(frame.rbp, |address| match callers.next() {
            Some(caller) => {
                caller.store(address, Ordering::Relaxed);
                true
            }
            None => false,
        });
    }
    callers.for_each(|caller| caller.store(0, Ordering::Relaxed));
    snapshot.taken.store(true, Ordering::Release);
    true
}

/// Prints the answers of all other CPUs; `more` prints what the caller adds for a CPU.
pub(super) fn print_others(more: impl Fn(usize)) {
    for area in others() {
        let snapshot = &area.snapshot;
        if !snapshot.taken.load(Ordering::Acquire) {
            kprintln!("CPU {} does not answer", area.id);
            continue;
        }
        let from_user = snapshot.from_user.load(Ordering::Relaxed);
        let mode = if from_user { "user mode" } else { "the kernel" };
        let current = snapshot.current.load(Ordering::Relaxed);
        kprintln!("CPU {} ran in {mode}, thread {current:#x}:", area.id);
        backtrace::print_address(snapshot.rip.load(Ordering::Relaxed));
        for caller in &snapshot.callers {
            match caller.load(Ordering::Relaxed) {
                0 => break,
                address => backtrace::print_address(address),
            }
        }
        if let Some((lock, holder)) = sample::spinning(area.id as usize) {
            kprintln!("  waits for spin lock \"{lock}\", held by CPU {holder}");
        }
        more(area.id as usize);
    }
}

/// Asks the other CPUs what they do and prints the answers, with preemption off. If two CPUs call it at the same time, the
/// second one prints nothing.
pub fn report(more: impl Fn(usize)) {
    static BUSY: AtomicBool = AtomicBool::new(false);
    if BUSY.swap(true, Ordering::Acquire) {
        return;
    }
    let pin = ksync::pin();
    ask_others();
    kprintln!("CPU {} prints this:", percpu::id());
    backtrace::print(backtrace::frame_pointer());
    print_others(more);
    drop(pin);
    BUSY.store(false, Ordering::Release);
}
