//! Which signals a thread lets through.

use ksync::atomic::Ordering;

use task::thread::{Thread, flag};

use super::info::SigInfo;
use super::set::SigSet;
use crate::UserThreadExt;

/// Whether the thread's interruptible sleep must end: by a signal that it does not block, a kill or a stop.
#[inline]
pub(crate) fn signal_pending(t: &Thread) -> bool {
    unblocked_signal(t) || t.has(flag::KILLED | flag::ATTENTION)
}

/// Whether a signal that the thread does not block is pending for it or for its process.
#[inline]
pub(super) fn unblocked_signal(t: &Thread) -> bool {
    let user = t.user();
    let bits = user.pending.bits() | user.process.pending.bits();
    bits & !user.blocked.load(Ordering::Relaxed) != 0
}

/// Whether a signal is kept pending even if its action is to ignore it: it is blocked, or was before sigtimedwait.
/// Exact under the process's signal lock.
pub(super) fn keeps(t: &Thread, signo: u8) -> bool {
    let waits = t.has(flag::SIGWAIT);
    t.blocked().has(signo)
        || waits && SigSet(t.user().saved_mask.load(Ordering::Relaxed)).has(signo)
}

/// Whether init, if it has no handler for the signal, ignores it. It ignores all but those that an instruction of its own has
/// caused: a program sends no code above 0.
pub(super) fn spares_init(info: &SigInfo) -> bool {
    !(SigSet::SYNCHRONOUS.has(info.signo) && info.code > 0)
}
