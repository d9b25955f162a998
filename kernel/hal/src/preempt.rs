//! The preemption count.
//!
//! Guarantee: while the count of a CPU is above zero, the thread that runs there stays there and no
//! other thread runs. Mechanism: one word per CPU holds the count in its low bits and, *inverted*, the
//! wish to reschedule in its top bit. So the word is zero exactly when a reschedule is wanted and
//! allowed, and [`enable`] is one decrement and one branch.
use core::arch::asm;

use super::irq;
use super::percpu::{self, PREEMPT, PREEMPT_INITIAL};

/// Set while no reschedule is wanted: all that a CPU starts with.
const NOT_WANTED: u32 = PREEMPT_INITIAL;

/// Keeps the running thread on its CPU until the matching [`enable`]. Nests.
#[inline(always)]
pub fn disable() {
    // SAFETY: a GS-relative increment of the per-CPU word; it also keeps the compiler from moving
    // memory accesses across.
    unsafe { asm!("inc dword ptr gs:[{p}]", p = const PREEMPT, options(nostack)) };
}

/// Ends one [`disable`]; reschedules at once if that was the last one and a reschedule is wanted.
#[inline(always)]
pub fn enable() {
    // SAFETY: as in `disable`; the label's code is ordinary Rust that the jump leads to with all registers as the block
    // left them.
    unsafe {
        asm!("dec dword ptr gs:[{p}]", "jz {wanted}", p = const PREEMPT,
             wanted = label { reschedule() }, options(nostack));
    }
}

/// Ends one [`disable`] without looking whether a reschedule is wanted: for code that is about to
/// switch threads or leave to user mode anyway.
#[inline]
pub fn enable_no_check() {
    // SAFETY: as in `disable`.
    unsafe { asm!("dec dword ptr gs:[{p}]", p = const PREEMPT, options(nostack)) };
}

#[cold]
#[inline(never)]
fn reschedule() {
    // With interrupts off the caller is not ready to be switched; the next interrupt exit looks again.
    if irq::enabled() {
        crate::upcalls::symbols::preempt_check();
    }
}

/// How many [`disable`] are open on this CPU.
#[inline]
pub fn count() -> u32 {
    word() & !NOT_WANTED
}

/// Whether a reschedule is wanted on this CPU.
#[inline]
pub fn need_resched() -> bool {
    word() & NOT_WANTED == 0
}

/// Says that the current thread of this CPU should give way. Called with preemption off.
#[inline]
pub fn set_need_resched() {
    // SAFETY: one instruction on the per-CPU word.
    unsafe {
        asm!("and dword ptr gs:[{p}], {m}", p = const PREEMPT, m = const 0x7fff_ffff, options(nostack))
    };
}

/// Takes the wish back: the scheduler is choosing now. Called with preemption off.
#[inline]
pub fn clear_need_resched() {
    // SAFETY: one instruction on the per-CPU word.
    unsafe { asm!("bts dword ptr gs:[{p}], 31", p = const PREEMPT, options(nostack)) };
}

#[inline]
fn word() -> u32 {
    let word: u32;
    // SAFETY: reads the per-CPU word.
    unsafe {
        asm!("mov {:e}, gs:[{p}]", out(reg) word, p = const PREEMPT,
             options(nostack, preserves_flags, readonly));
    }
    word
}

/// Adds one level without any check, at interrupt entry.
#[inline]
pub(super) fn enter_interrupt() {
    let area = percpu::area();
    area.preempt.set(area.preempt.get() + 1);
}

/// Takes the level of [`enter_interrupt`] away.
#[inline]
pub(super) fn leave_interrupt() {
    let area = percpu::area();
    area.preempt.set(area.preempt.get() - 1);
}
