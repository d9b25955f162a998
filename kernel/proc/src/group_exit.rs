//! Making threads exit: one, or all of a process.

use ksync::atomic::Ordering;

use ksync::CpuPin;
use task::ids;
use task::sched;
use task::thread::{Thread, flag};

use super::process::Process;

/// Makes all threads of `p` exit, and sets the wait4 status to `status`. Has no effect on a process that is ending, by an earlier
/// call or because its last thread has exited. May be called in interrupts, and with the process's signal lock held. Takes the
/// lock of its list of threads.
pub(super) fn begin_group_exit(pin: &CpuPin, p: &Process, status: u32) {
    let threads = p.threads.lock();
    if p.exiting.swap(true, Ordering::SeqCst) {
        return;
    }
    p.status.store(status, Ordering::SeqCst);
    threads.each(pin, |tid| {
        if let Some(t) = ids::thread(pin, tid) {
            doom(pin, t);
        }
        true
    });
}

/// Makes one thread exit on its way to user mode, and wakes it.
pub(super) fn doom(pin: &CpuPin, t: &Thread) {
    t.set(flag::KILLED);
    sched::hurry(pin, t);
    sched::wake(pin, t);
    sched::poke(pin, t);
}
