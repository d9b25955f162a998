//! The preemption count.
//!
//! Guarantee: while the count of a CPU is above zero, the running thread stays on the CPU and no other thread runs there.
//! Mechanism: one word for each CPU has the count in its low bits, and in its top bit the *inverted* request to reschedule.
//! So the word is zero exactly if a reschedule is both requested and allowed, and [`enable`] is one decrement and one branch.
use core::arch::asm;

use super::irq;
use super::percpu::{self, PREEMPT, PREEMPT_INITIAL};

/// Set while no reschedule is requested; the initial value of a CPU's word.
const NOT_WANTED: u32 = PREEMPT_INITIAL;

/// Keeps the running thread on its CPU until the matching [`enable`]. Nests.
#[inline(always)]
pub fn disable() {
    // SAFETY: increments the per-CPU word through GS. The compiler moves no memory access across it.
    unsafe { asm!("inc dword ptr gs:[{p}]", p = const PREEMPT, options(nostack)) };
}

/// Ends one [`disable`]. If it was the last one and a reschedule is requested, reschedules at once, unless interrupts are
/// off.
#[inline(always)]
pub fn enable() {
    // SAFETY: as in `disable`. The label's code is ordinary Rust; the jump reaches it with all registers as the block left
    // them.
    unsafe {
        asm!("dec dword ptr gs:[{p}]", "jz {wanted}", p = const PREEMPT,
             wanted = label { reschedule() }, options(nostack));
    }
}

/// Ends one [`disable`] without a look at the request to reschedule: for code that is about to switch threads or to enter
/// user mode.
#[inline]
pub fn enable_no_check() {
    // SAFETY: as in `disable`.
    unsafe { asm!("dec dword ptr gs:[{p}]", p = const PREEMPT, options(nostack)) };
}

#[cold]
#[inline(never)]
fn reschedule() {
    // With interrupts off the caller cannot be switched; the end of the next interrupt looks at the request again.
    if irq::enabled() {
        crate::upcalls::symbols::preempt_check();
    }
}

/// How many calls of [`disable`] on this CPU have not been ended.
#[inline]
pub fn count() -> u32 {
    word() & !NOT_WANTED
}

/// Whether a reschedule is requested on this CPU.
#[inline]
pub fn need_resched() -> bool {
    word() & NOT_WANTED == 0
}

/// Requests that the current thread of this CPU gives way. Called with preemption off.
#[inline]
pub fn set_need_resched() {
    // SAFETY: one instruction on the per-CPU word.
    unsafe {
        asm!("and dword ptr gs:[{p}], {m}", p = const PREEMPT, m = const 0x7fff_ffff, options(nostack))
    };
}

/// Withdraws the request, because the scheduler is choosing a thread now. Called with preemption off.
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

/// Adds one to the count at the entry of an interrupt.
#[inline]
pub(super) fn enter_interrupt() {
    let area = percpu::area();
    area.preempt.set(area.preempt.get() + 1);
}

/// Undoes [`enter_interrupt`], without a look at the request to reschedule.
#[inline]
pub(super) fn leave_interrupt() {
    let area = percpu::area();
    area.preempt.set(area.preempt.get() - 1);
}
