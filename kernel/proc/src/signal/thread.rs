//! What signals add to a thread: its mask, its alternate stack, and what restart_syscall(2) continues.

use ksync::atomic::Ordering;

use task::current;
use task::thread::{Thread, flag};

use super::altstack::{AltStack, AltStackError};
use super::mask::unblocked_signal;
use super::restart::RestartBlock;
use super::send;
use super::set::SigSet;
use crate::UserThreadExt;

/// What signals add to a thread.
pub trait SignalExt {
    /// The alternate stack of sigaltstack(2). Called by the thread itself.
    fn altstack(&self) -> AltStack;

    /// Sets the alternate stack. Called by the thread itself.
    fn set_altstack(&self, stack: AltStack);

    /// Whether something must be done before the thread enters user mode. True whenever
    /// [`signal_pending`](Thread::signal_pending) is, and as cheap.
    fn has_work(&self) -> bool;

    /// Replaces the signal mask; SIGKILL and SIGSTOP stay unblocked. Other threads are woken for signals pending for the process
    /// that the thread blocks from now on. Called by the thread itself. Takes the signal lock, and then that of the list of
    /// threads.
    fn set_blocked(&self, set: SigSet);

    /// Unblocks the signals of `set` for sigtimedwait, so that they end a sleep. Such signals are kept pending as if
    /// they were still blocked, whatever their actions. Called by the thread itself; [`Self::end_sigwait`] undoes it. Allocates.
    fn begin_sigwait(&self, set: SigSet);

    /// Restores the mask from before [`Self::begin_sigwait`].
    fn end_sigwait(&self);

    /// Replaces the mask for one system call (ppoll, pselect, sigsuspend). The old mask is restored when the thread
    /// returns to user mode, after the handlers of signals that only the old mask blocks.
    fn set_temporary_mask(&self, set: SigSet);

    /// Restores the mask from before [`Self::set_temporary_mask`] at once, for a call that was not interrupted.
    fn restore_mask(&self);

    /// Stores what restart_syscall(2) is to continue.
    fn set_restart(&self, block: RestartBlock);

    /// Takes what restart_syscall(2) is to continue; a second call gets [`RestartBlock::None`].
    fn take_restart(&self) -> RestartBlock;
}

impl SignalExt for Thread {
    fn altstack(&self) -> AltStack {
        debug_assert!(core::ptr::eq(self, &*current()), "another thread's stack");
        self.user().altstack.get()
    }

    fn set_altstack(&self, stack: AltStack) {
        self.user().altstack.set(stack);
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.has(
            flag::KILLED
                | flag::ATTENTION
                | flag::RESTORE_MASK
                | flag::RECLAIM
                | flag::CPU_TIMERS
                | flag::USED_RESERVE
                | flag::LENT
                | flag::RSEQ,
        ) || unblocked_signal(self)
    }

    fn set_blocked(&self, set: SigSet) {
        replace_mask(self, set, None);
    }

    fn begin_sigwait(&self, set: SigSet) {
        // Room for a signal that another thread may pass on.
        self.user().pending.reserve();
        let old = self.blocked();
        replace_mask(self, SigSet(old.0 & !set.0), Some(old));
    }

    fn end_sigwait(&self) {
        self.set_blocked(SigSet(self.user().saved_mask.load(Ordering::Relaxed)));
    }

    fn set_temporary_mask(&self, set: SigSet) {
        let old = self.user().blocked.load(Ordering::Relaxed);
        self.user().saved_mask.store(old, Ordering::Relaxed);
        self.set(flag::RESTORE_MASK);
        self.set_blocked(set);
    }

    fn restore_mask(&self) {
        if self.has(flag::RESTORE_MASK) {
            self.clear(flag::RESTORE_MASK);
            self.set_blocked(SigSet(self.user().saved_mask.load(Ordering::Relaxed)));
        }
    }

    fn set_restart(&self, block: RestartBlock) {
        *self.user().restart.lock() = block;
    }

    fn take_restart(&self) -> RestartBlock {
        core::mem::replace(&mut *self.user().restart.lock(), RestartBlock::None)
    }
}

/// sigaltstack(2): replaces the alternate stack of `me`, the caller, whose stack pointer is `sp`, by that of the words of a
/// `stack_t`.
///
/// # Errors
/// [`AltStackError`]; nothing has changed.
pub fn change_altstack(me: &Thread, sp: u64, new: [u64; 3]) -> Result<(), AltStackError> {
    me.set_altstack(me.altstack().replacement(sp, new)?);
    Ok(())
}

/// Replaces the mask of `t`, the caller. In sigtimedwait, `held_back` is the mask from before: its signals count as
/// blocked still.
fn replace_mask(t: &Thread, set: SigSet, held_back: Option<SigSet>) {
    let guard = t.process().signals.lock();
    let new = set.0 & !SigSet::UNMASKABLE.0;
    let old = t.user().blocked.swap(new, Ordering::SeqCst);
    match held_back {
        Some(mask) => {
            t.user().saved_mask.store(mask.0, Ordering::Relaxed);
            t.set(flag::SIGWAIT);
        }
        None if t.has(flag::SIGWAIT) => t.clear(flag::SIGWAIT),
        None => {}
    }
    drop(guard);
    // Signals pending for the process that this thread does not take any more go to another thread.
    let lost = t.process().pending.bits() & new & !old;
    if lost != 0 && t.process().thread_count() > 1 {
        send::retarget(t.process(), SigSet(lost));
    }
}
