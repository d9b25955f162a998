//! Stopping and continuing processes: job control.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use ksync::CpuPin;

use super::super::park::{Deadline, Interruptible, Step, park};
use super::super::process::Process;
use super::super::thread::{Thread, flag};
use super::super::wait::Waiter;
use super::super::{ids, sched};
use super::{SA_NOCLDSTOP, SigFields, SigInfo, code, sig};

/// What the parent has not been told by wait4 yet.
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

/// Job-control state of a process; its signal lock.
#[derive(Default)]
pub struct StopState {
    /// Threads are to stop, or have stopped, before they enter user mode.
    pub stopping: bool,
    /// Threads that have stopped.
    pub stopped: u32,
    /// For wait4.
    pub report: StopReport,
}

/// Ends a stop; returns whether there was one.
pub(super) fn resume(stop: &mut StopState, report: bool) -> bool {
    if !stop.stopping {
        return false;
    }
    stop.stopping = false;
    stop.report = if report {
        StopReport::Continued
    } else {
        StopReport::None
    };
    true
}

/// Lets stopped threads go on.
pub(super) fn wake_stopped(pin: &CpuPin, p: &Process) {
    p.threads.lock().each(pin, |tid| {
        if let Some(t) = ids::thread(pin, tid) {
            t.clear(flag::ATTENTION);
        }
        true
    });
    p.group_wait.wake_all();
}

/// Begins a stop of the whole process by `signo`.  Called by a thread that took the signal;
/// nothing happens if SIGCONT or a kill came meanwhile.
pub(super) fn begin(p: &Arc<Process>, signo: u8) {
    let pin = ksync::pin();
    let mut shared = p.signals.lock();
    if shared.stop.stopping || p.exiting.load(Ordering::Relaxed) {
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
            t.set(flag::ATTENTION);
            sched::wake(&pin, t);
            sched::poke(&pin, t);
        }
        true
    });
}

struct Stopped<'a> {
    me: &'a Thread,
    counted: bool,
}

/// Sleeps while the process is stopped.  Returns at SIGCONT or when the thread is to die.
pub(super) fn stay(me: &Thread) {
    let mut state = Stopped { me, counted: false };
    let _ = park(
        &mut state,
        Deadline::Never,
        Interruptible::Kill,
        |s, waiter: &mut Waiter| {
            let p = s.me.process();
            waiter.listen(&p.group_wait);
            let mut shared = p.signals.lock();
            if !shared.stop.stopping {
                drop(shared);
                s.me.clear(flag::ATTENTION);
                return Step::Done(());
            }
            let mut last = false;
            if !s.counted {
                s.counted = true;
                shared.stop.stopped += 1;
                last = shared.stop.stopped >= p.thread_count();
            }
            drop(shared);
            if last {
                report(&ksync::pin(), p);
            }
            Step::Wait
        },
    );
}

/// A thread left the process while it was stopping: perhaps the others have all stopped.
pub(in super::super) fn notify_parent_stopped(p: &Process) {
    let pin = ksync::pin();
    let shared = p.signals.lock();
    let all =
        shared.stop.stopping && shared.stop.stopped >= p.thread_count() && p.thread_count() > 0;
    drop(shared);
    if all {
        report(&pin, p);
    }
}

/// Tells the parent that `p` has stopped or continued: SIGCHLD unless it does not want that, and
/// whoever sleeps in wait4.
pub(super) fn report(pin: &CpuPin, p: &Process) {
    let report = p.signals.lock().stop.report;
    let (code, status) = match report {
        StopReport::None => return,
        StopReport::Stopped(signo) => (code::CLD_STOPPED, i32::from(signo)),
        StopReport::Continued => (code::CLD_CONTINUED, i32::from(sig::CONT)),
    };
    let Some(parent) = ids::process(pin, p.ppid()) else {
        return;
    };
    parent.stop_events.fetch_add(1, Ordering::SeqCst);
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
        super::send_process(
            parent,
            SigInfo {
                signo: sig::CHLD,
                code,
                fields,
            },
        );
    }
    parent.child_wait.wake_all();
}
