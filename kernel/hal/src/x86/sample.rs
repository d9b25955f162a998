//! What each CPU was doing: the program counter at its last clock tick, and the lock for which it waited last.
//!
//! Stores are plain: each CPU writes only its own cache line, and a reader may see values of different moments. A CPU that
//! stalls does so for long, so one sample a tick mostly finds the function in which it stalls.
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::{cpu, memory, symbols};
use crate::frame::TrapFrame;
use crate::limits::MAX_CPUS;

/// The sample of one CPU, on a cache line of its own.
#[repr(align(64))]
struct Slot {
    /// Program counter at the last tick, 0 in user mode.
    pc: AtomicU64,
    /// TSC ticks spent spinning for locks.
    spun: AtomicU64,
    /// TSC ticks that threads which ran here afterwards have slept for locks.
    slept: AtomicU64,
    /// Name of the lock last waited for, packed by [`pack`]; 0 for none.
    label: AtomicU64,
    /// Name of the spin lock for which the CPU is waiting, packed by [`pack`]; 0 for none.
    spinning: AtomicU64,
    /// The CPU that held that lock when the waiting CPU last looked.
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

/// The low bits of an address in the kernel image; all others are ones.
const ADDRESS_BITS: u32 = 48;

/// Packs a name in the image's read-only data into one word, so that a reader never gets half of it.
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
    // SAFETY: only `pack` makes such words, of names that are valid for ever and lie in the image, where addresses begin with
    // ones; names are shorter than 64 KiB.
    unsafe { str::from_utf8_unchecked(core::slice::from_raw_parts(address as *const u8, len)) }
}

/// Records what a clock tick has interrupted. Interrupts are off.
pub(super) fn tick(frame: &TrapFrame) {
    let pc = if frame.in_user_mode() { 0 } else { frame.rip };
    SLOTS[cpu::id()].pc.store(pc, Relaxed);
}

/// Records that this CPU spins for the lock `name`, which CPU `holder` holds.
pub fn spins(name: &'static str, holder: usize) {
    let slot = &SLOTS[cpu::id()];
    slot.holder.store(holder as u64, Relaxed);
    slot.spinning.store(pack(name), Relaxed);
}

/// The spin lock for which `cpu` is waiting, and the CPU that held it when `cpu` last looked.
pub(super) fn spinning(cpu: usize) -> Option<(&'static str, u64)> {
    let slot = SLOTS.get(cpu)?;
    let name = unpack(slot.spinning.load(Relaxed));
    (!name.is_empty()).then(|| (name, slot.holder.load(Relaxed)))
}

/// Program counter of this CPU at its last tick.
pub(super) fn pc() -> u64 {
    SLOTS[cpu::id()].pc.load(Relaxed)
}

/// Records that this CPU has spun `ticks` of the TSC for the lock `name`, or that its thread has slept so long for it.
pub fn stall(name: &'static str, asleep: bool, ticks: u64) {
    let slot = &SLOTS[cpu::id()];
    let waited = if asleep { &slot.slept } else { &slot.spun };
    waited.store(waited.load(Relaxed) + ticks, Relaxed);
    slot.label.store(pack(name), Relaxed);
    if !asleep {
        slot.spinning.store(0, Relaxed);
    }
}

/// The sample of a CPU.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The function, with its mangled name, in which the last tick found the CPU, and the offset in it; `None` in user mode,
    /// or if the image has no symbols.
    pub function: Option<(&'static str, u64)>,
    /// The program counter at that tick, 0 in user mode.
    pub pc: u64,
    /// TSC ticks spent spinning for locks so far.
    pub spun: u64,
    /// TSC ticks that threads have slept for locks so far.
    pub slept: u64,
    /// Name of the lock last waited for; empty for none.
    pub label: &'static str,
}

/// The sample of `cpu`; `None` if there is no such CPU.
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
