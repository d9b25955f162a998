//! What each CPU was found doing: the program counter at the last clock tick, and the lock that it last waited for.
//!
//! Stores are plain: each CPU writes its own line only, and readers may see values of different moments. A CPU that
//! stalls does so for long, so that even one sample a tick mostly hits the guilty function.
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::frame::TrapFrame;
use super::{cpu, memory, symbols};
use crate::limits::MAX_CPUS;

/// A CPU's sample, on a line of its own.
#[repr(align(64))]
struct Slot {
    /// Where the last tick found the CPU, 0 for user mode.
    pc: AtomicU64,
    /// TSC ticks spent spinning for locks.
    spun: AtomicU64,
    /// TSC ticks that threads which now run here slept for locks.
    slept: AtomicU64,
    /// Name of the lock last waited for, as [`pack`] has it; 0 for none.
    label: AtomicU64,
    /// Name of the spin lock being waited for, as [`pack`] has it; 0 for none.
    spinning: AtomicU64,
    /// The CPU that held it when the waiting CPU looked last.
    holder: AtomicU64,
}

static SLOTS: [Slot; MAX_CPUS] = [const {
    Slot {
        pc: AtomicU64::new(0),
        spun: AtomicU64::new(0),
        slept: AtomicU64::new(0),
        label: AtomicU64::new(0),
        spinning: AtomicU64::new(0),
        holder: AtomicU64::new(0),
    }
}; MAX_CPUS];

/// Bits of an address in the kernel image that are not all ones anyway.
const ADDRESS_BITS: u32 = 48;

/// A name of the image's read-only data in one word, so that a reader never gets half of it.
fn pack(name: &'static str) -> u64 {
    let address = name.as_ptr() as u64 & ((1 << ADDRESS_BITS) - 1);
    address | (name.len().min(0xffff) as u64) << ADDRESS_BITS
}

fn unpack(word: u64) -> &'static str {
    if word == 0 {
        return "";
    }
    let address = word | !0 << ADDRESS_BITS;
    let len = (word >> ADDRESS_BITS) as usize;
    // SAFETY: only `pack` makes such words, of names that live for ever and lie in the image, whose addresses begin
    // with ones; names are shorter than 64 KiB.
    unsafe { str::from_utf8_unchecked(core::slice::from_raw_parts(address as *const u8, len)) }
}

/// Notes what a clock tick interrupted. Interrupts are off.
pub(super) fn tick(frame: &TrapFrame) {
    let pc = if frame.in_user_mode() { 0 } else { frame.rip };
    SLOTS[cpu::id()].pc.store(pc, Relaxed);
}

/// Notes that this CPU spins for a lock that CPU `holder` holds.
pub fn spins(name: &'static str, holder: usize) {
    let slot = &SLOTS[cpu::id()];
    slot.holder.store(holder as u64, Relaxed);
    slot.spinning.store(pack(name), Relaxed);
}

/// The spin lock that `cpu` waits for, and the CPU that held it when it looked last.
pub(super) fn spinning(cpu: usize) -> Option<(&'static str, u64)> {
    let slot = SLOTS.get(cpu)?;
    let name = unpack(slot.spinning.load(Relaxed));
    (!name.is_empty()).then(|| (name, slot.holder.load(Relaxed)))
}

/// Where the last tick found this CPU.
pub(super) fn pc() -> u64 {
    SLOTS[cpu::id()].pc.load(Relaxed)
}

/// Notes that this CPU has spun for a lock, or that its thread has slept for one.
pub fn stall(name: &'static str, asleep: bool, ticks: u64) {
    let slot = &SLOTS[cpu::id()];
    let waited = if asleep { &slot.slept } else { &slot.spun };
    waited.store(waited.load(Relaxed) + ticks, Relaxed);
    slot.label.store(pack(name), Relaxed);
    if !asleep {
        slot.spinning.store(0, Relaxed);
    }
}

/// What is known of a CPU.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Function, as mangled, and offset of the kernel code that the last tick found; `None` in user mode or where
    /// the image has no symbols.
    pub function: Option<(&'static str, u64)>,
    /// Address of that code, 0 for user mode.
    pub pc: u64,
    /// TSC ticks spent spinning for locks so far.
    pub spun: u64,
    /// TSC ticks that threads slept for locks so far.
    pub slept: u64,
    /// The lock last waited for, empty for none.
    pub label: &'static str,
}

/// What is known of `cpu`.
pub fn of(cpu: usize) -> Option<Sample> {
    let slot = SLOTS.get(cpu)?;
    let pc = slot.pc.load(Relaxed);
    Some(Sample {
        function: memory::is_text(pc).then(|| symbols::lookup(pc)).flatten(),
        pc,
        spun: slot.spun.load(Relaxed),
        slept: slot.slept.load(Relaxed),
        label: unpack(slot.label.load(Relaxed)),
    })
}
