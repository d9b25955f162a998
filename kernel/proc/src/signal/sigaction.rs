//! The actions of a process, as its threads set them.

use super::action::Action;
use super::send::flush_all;
use super::set::SigSet;
use crate::UserThreadExt;
use crate::process::Process;

/// The action of `signo` in the process.
pub fn action(p: &Process, signo: u8) -> Action {
    let actions = p.signals.lock().actions.clone();
    actions.get(signo)
}

/// sigaction(2): sets the action of `signo`, which is neither SIGKILL nor SIGSTOP; returns the old one. Pending signals that are
/// ignored from now on, by the action or by default, are dropped. Takes the signal lock; may sleep for memory.
pub fn set_action(p: &Process, signo: u8, new: Action) -> Action {
    let actions = p.signals.lock().actions.clone();
    let old = actions.set(signo, new);
    if actions.ignores(signo) {
        let pin = ksync::pin();
        let order = p.signals.lock();
        // Another thread may have given it a handler since, for which signals may be pending.
        if actions.ignores(signo) {
            flush_all(&pin, p, SigSet::one(signo));
        }
        drop(order);
        drop(pin);
        p.pending.shrink();
        p.each_thread(|t| {
            t.user().pending.shrink();
            true
        });
    }
    old
}
