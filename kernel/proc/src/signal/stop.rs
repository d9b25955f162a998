//! Stopping and continuing processes: job control.

use ksync::atomic::Ordering;

use task::park::{Deadline, Interruptible, Step, park};
use task::sched;
use task::thread::{Thread, flag};
use task::wait::Waiter;

use super::super::ids;
use super::super::process::{Process, flag as pflag};
use super::{SA_NOCLDSTOP, SigFields, SigInfo, code, sig};
use crate::UserThreadExt;

/// What wait4 has not yet reported to the parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StopReport {
    /// Nothing.
    #[default]
    None,
    /// Stopped by this signal.
    Stopped(u8),
    /// Continued.
    Continued,
}

/// The job-control state of a process. Guarded by its signal lock.
#[derive(Default)]
pub struct StopState {
    /// Threads stop, or have stopped, before they enter user mode.
    pub stopping: bool,
    /// How many threads have stopped.
    pub stopped: u32,
    /// What wait4 reports next.
    pub report: StopReport,
}

/// Ends a stop; wait4 reports that the process was continued. Returns whether there was a stop.
pub(super) fn resume(stop: &mut StopState) -> bool {
    if !stop.stopping {
        return false;
    }
    stop.stopping = false;
    stop.report = StopReport::Continued;
    true
}

/// Begins a stop of the whole process by `signo`, which `me`, the caller, has taken. Does nothing if SIGCONT or a kill
/// came meanwhile.
pub(super) fn begin(me: &Thread, signo: u8) {
    let p = me.process();
    let pin = ksync::pin();
    let mut shared = p.signals.lock();
    if !me.has(flag::STOP_DUE) || shared.stop.stopping || p.exiting.load(Ordering::Relaxed) {
        return;
    }
    if let Some(group) = ids::group(&pin, p.pgid()) {
        group.note_stop();
    }
    shared.stop.stopping = true;
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

/// Sleeps while the process is stopped. Returns after SIGCONT, or when the thread is to die.
pub(super) fn stay(me: &Thread) {
    let mut state = me;
    let result = park(&mut state, Deadline::Never, Interruptible::Kill, stay_step);
    if result.is_err() {
        let mut shared = me.process().signals.lock();
        if shared.stop.stopping && me.has(flag::STOPPED) {
            me.clear(flag::STOPPED);
            shared.stop.stopped -= 1;
        }
    }
}

fn stay_step(me: &mut &Thread, waiter: &mut Waiter) -> Step<()> {
    let p = me.process();
    waiter.listen(&p.group_wait);
    let mut shared = p.signals.lock();
    if !shared.stop.stopping {
        // Cleared under the lock: the next stop sets it again.
        me.clear(flag::ATTENTION);
        return Step::Done(());
    }
    let what = shared.stop.report;
    let mut last = false;
    if !me.has(flag::STOPPED) {
        me.set(flag::STOPPED);
        shared.stop.stopped += 1;
        last = shared.stop.stopped >= p.thread_count();
    }
    drop(shared);
    if last {
        report(p, what, true);
    }
    Step::Wait
}

/// A thread has left the process. If the process is stopping and all remaining threads have stopped, this reports the
/// stop.
pub(in super::super) fn notify_parent_stopped(p: &Process) {
    let shared = p.signals.lock();
    let all =
        shared.stop.stopping && shared.stop.stopped >= p.thread_count() && p.thread_count() > 0;
    let what = shared.stop.report;
    drop(shared);
    if all {
        report(p, what, true);
    }
}

/// Reports to the parent that `p` was stopped or continued: sends SIGCHLD unless SA_NOCLDSTOP is set, and wakes the
/// parent's threads in wait4. With `keep`, in a thread's context, SIGCHLD's information is kept if there is memory for it.
pub(super) fn report(p: &Process, what: StopReport, keep: bool) {
    let (code, status) = match what {
        StopReport::None => return,
        StopReport::Stopped(signo) => (code::CLD_STOPPED, i32::from(signo)),
        StopReport::Continued => (code::CLD_CONTINUED, i32::from(sig::CONT)),
    };
    let Some(parent) = ids::find_process(p.ppid()) else {
        return;
    };
    if !parent.has(pflag::CHILD_STOPS) {
        parent.set_flag(pflag::CHILD_STOPS, true);
    }
    let actions = parent.signals.lock().actions.clone();
    if actions.get(sig::CHLD).flags & SA_NOCLDSTOP == 0 {
        let uid = p.uid();
        let fields = SigFields::Child {
            pid: p.pid(),
            uid,
            status,
            utime: 0,
            stime: 0,
        };
        let info = SigInfo {
            signo: sig::CHLD,
            code,
            fields,
        };
        let maker = p.maker.load(Ordering::Relaxed);
        if keep {
            super::queue_parent(&parent, maker, info);
        } else {
            super::send_parent(&parent, maker, info);
        }
    }
    parent.child_wait.wake_all();
}
