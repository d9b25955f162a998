//! The preemption count.

use core::sync::atomic::Ordering::Relaxed;

use crate::sim::{deliver, with_cpu};

/// Keeps the running thread on its CPU until the matching [`enable`]. Nests.
pub fn disable() {
    deliver();
    with_cpu((), |cpu| {
        cpu.preempt.fetch_add(1, Relaxed);
    });
}

/// Ends one [`disable`]. If it was the last one and a reschedule is requested, reschedules at once, unless interrupts are
/// off.
pub fn enable() {
    enable_no_check();
    deliver();
}

/// Ends one [`disable`] without a look at the request to reschedule: for code that is about to switch threads or to enter
/// user mode.
pub fn enable_no_check() {
    with_cpu((), |cpu| {
        let before = cpu.preempt.fetch_sub(1, Relaxed);
        assert!(before > 0, "preemption is turned on twice");
    });
}

/// How many calls of [`disable`] on this CPU have not been ended.
pub fn count() -> u32 {
    with_cpu(0, |cpu| cpu.preempt.load(Relaxed))
}

/// Whether a reschedule is requested on this CPU.
pub fn need_resched() -> bool {
    with_cpu(false, |cpu| cpu.need_resched.load(Relaxed))
}

/// Requests that the current thread of this CPU gives way. Called with preemption off.
pub fn set_need_resched() {
    with_cpu((), |cpu| cpu.need_resched.store(true, Relaxed));
}

/// Withdraws the request, because the scheduler is choosing a thread now. Called with preemption off.
pub fn clear_need_resched() {
    with_cpu((), |cpu| cpu.need_resched.store(false, Relaxed));
}
