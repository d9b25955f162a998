//! Stopping and continuing processes: job control.

use ksync::CpuPin;
use task::park::{Deadline, Interruptible, Step, park};
use task::sched;
use task::thread::{Thread, flag};
use task::wait::Waiter;

use super::send::report;
use super::state::{Phase, Shared, StopReport};
use crate::process::Process;
use crate::{UserThreadExt, ids};

/// Begins a stop of the whole process by `signo`, which `me`, the caller, has taken. Does nothing if a SIGCONT has come since
/// (it clears STOP_DUE), another thread has begun a stop, or the process is ending. Takes the signal lock, and under it that of
/// the list of threads.
pub(super) fn begin(me: &Thread, signo: u8) {
    let p = me.process();
    let pin = ksync::pin();
    let mut shared = p.signals.lock();
    if !me.has(flag::STOP_DUE) || shared.stop.is_stopping() || p.is_ending() {
        return;
    }
    // Before the stop can be seen: a member that ends looks for stopped ones only in a group where this is noted.
    note_at_group(&pin, p);
    shared.stop.phase = Phase::Begun(signo);
    shared.stop.stopped = 0;
    shared.stop.report = StopReport::Stopped(signo);
    p.threads.lock().each(&pin, |tid| {
        if let Some(t) = ids::thread(&pin, tid) {
            // The thread has not stopped for this stop yet, even if it has not run since an earlier one.
            t.clear(flag::STOPPED);
            t.set(flag::ATTENTION);
            sched::wake(&pin, t);
            sched::poke(&pin, t);
        }
        true
    });
}

/// Notes at the group of `p` that `p` is about to stop. If `p` is being moved, the new group gets the note as well: from here, or
/// from the thread that moves it, which writes the new pgid before it looks for the note at the old group. Takes no lock.
fn note_at_group(pin: &CpuPin, p: &Process) {
    loop {
        let pgid = p.pgid();
        if let Some(group) = ids::group(pin, pgid) {
            group.note_stop();
        }
        if p.pgid() == pgid {
            return;
        }
    }
}

/// Sleeps while the process is stopped. The last thread that stops reports the stop to the parent. Returns after SIGCONT, or when
/// the thread is to die.
pub(super) fn stay(me: &Thread) {
    let mut state = me;
    let result = park(&mut state, Deadline::Never, Interruptible::Kill, stay_step);
    if result.is_err() {
        // It is to die, and does not count as stopped any more.
        let mut shared = me.process().signals.lock();
        if shared.stop.is_stopping() && me.has(flag::STOPPED) {
            me.clear(flag::STOPPED);
            shared.stop.stopped -= 1;
        }
    }
}

/// Counts the caller as stopped; done once there is no stop. The report to the parent may sleep for memory.
fn stay_step(me: &mut &Thread, waiter: &mut Waiter) -> Step<()> {
    let p = me.process();
    waiter.listen(&p.group_wait);
    let mut shared = p.signals.lock();
    if !shared.stop.is_stopping() {
        // Cleared under the lock: the next stop sets it again.
        me.clear(flag::ATTENTION);
        return Step::Done(());
    }
    let mut done = StopReport::None;
    if !me.has(flag::STOPPED) {
        me.set(flag::STOPPED);
        shared.stop.stopped += 1;
        done = complete(p, &mut shared);
    }
    drop(shared);
    report(p, done, true);
    Step::Wait
}

/// A thread has left the process. If the process is stopping and all remaining threads have stopped, this reports the
/// stop, once. Takes the signal lock; see [`report`] for the rest.
pub(crate) fn notify_parent_stopped(p: &Process) {
    let done = complete(p, &mut p.signals.lock());
    report(p, done, true);
}

/// What the caller is to tell the parent, once it has released the lock that guards `shared`; nothing about a process that ends.
fn complete(p: &Process, shared: &mut Shared) -> StopReport {
    if p.is_ending() {
        return StopReport::None;
    }
    shared.stop.completes(p.thread_count())
}
