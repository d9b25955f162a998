//! Signals that a thread causes itself.

use cred::Payer;
use task::current::current;
use task::thread::Thread;

use super::info::SigInfo;
use super::send::{Whom, queue, send_thread};
use super::set::SigSet;
use super::thread::SignalExt;
use crate::UserThreadExt;

/// Sends the calling thread a standard signal that its own system call caused. May sleep for memory.
pub fn raise(signo: u8) {
    // Only a real-time signal can be refused.
    let _ = send_thread(&current(), SigInfo::kernel(signo));
}

/// Makes `t`, the caller, take a signal that its own instruction caused. If the thread blocks or ignores the signal, its action
/// goes back to the default, for the whole process, and it is unblocked, so that it ends the process. May sleep for memory.
pub fn force(t: &Thread, info: SigInfo) {
    let bit = SigSet::one(info.signo).0;
    let actions = t.process().signals.lock().actions.clone();
    if t.blocked().0 & bit != 0 || actions.ignored().has(info.signo) {
        actions.reset(info.signo);
        t.set_blocked(SigSet(t.blocked().0 & !bit));
    }
    let _ = queue(t.process(), Whom::Thread(t), info, Payer::NOBODY, 0);
}

/// Makes a fault or exception in user mode a signal for the calling thread.
pub fn deliver_fault(info: SigInfo) {
    force(&current(), info);
}
