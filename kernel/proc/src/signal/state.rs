//! What the signal lock of a process guards: its actions, and the state of job control.

use alloc::sync::Arc;

use super::action::ActionTable;
use super::set::SigSet;

/// The state that the signal lock of a process guards.
pub struct Shared {
    /// The actions. Two processes share them only by CLONE_SIGHAND without CLONE_THREAD.
    pub(crate) actions: Arc<ActionTable>,
    /// The state of job control.
    pub(crate) stop: StopState,
    /// The mask of the leader when it exited: whether a signal is kept is still decided by the leader's mask.
    pub(super) left_mask: SigSet,
}

impl Shared {
    /// The state of a process that has `actions` and is not stopped.
    pub fn new(actions: Arc<ActionTable>) -> Self {
        Shared {
            actions,
            stop: StopState::default(),
            left_mask: SigSet::default(),
        }
    }
}

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

/// How far a stop of a process has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    #[default]
    None,
    /// Threads stop, or have stopped, before they enter user mode. This signal has begun it.
    Begun(u8),
    /// The parent has been told that all threads have stopped, or is about to be.
    Told,
}

/// The job-control state of a process. Guarded by its signal lock.
#[derive(Default)]
pub struct StopState {
    /// The present stop.
    pub phase: Phase,
    /// How many threads have stopped.
    pub stopped: u32,
    /// What wait4 reports next.
    pub report: StopReport,
}

impl StopState {
    /// Whether threads stop, or have stopped.
    pub fn is_stopping(&self) -> bool {
        self.phase != Phase::None
    }

    /// Whether each of the process's `threads` threads has stopped.
    pub fn is_complete(&self, threads: u32) -> bool {
        threads > 0 && self.stopped >= threads
    }

    /// What the caller is to tell the parent if each of the process's `threads` threads has stopped: once for each stop, however
    /// many threads stop or leave at that moment, and whether or not a wait4 has reported it.
    pub(super) fn completes(&mut self, threads: u32) -> StopReport {
        match self.phase {
            Phase::Begun(signo) if self.is_complete(threads) => {
                self.phase = Phase::Told;
                StopReport::Stopped(signo)
            }
            _ => StopReport::None,
        }
    }
}

/// Ends a stop, whether or not all threads have stopped; wait4 reports that the process was continued. Returns whether a stop has
/// ended.
pub(super) fn resume(stop: &mut StopState) -> bool {
    if !stop.is_stopping() {
        return false;
    }
    stop.phase = Phase::None;
    stop.report = StopReport::Continued;
    true
}
