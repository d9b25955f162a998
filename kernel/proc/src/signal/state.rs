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

impl StopState {
    /// Whether each of the process's `threads` threads has stopped.
    pub fn is_complete(&self, threads: u32) -> bool {
        threads > 0 && self.stopped >= threads
    }
}

/// Ends a stop; wait4 reports that the process was continued. Returns whether a stop has ended.
pub(super) fn resume(stop: &mut StopState) -> bool {
    if !stop.stopping {
        return false;
    }
    stop.stopping = false;
    stop.report = StopReport::Continued;
    true
}
