//! Which session a terminal controls, and which of its process groups is the foreground group.

use alloc::sync::Arc;

use proc::group::{Group, Session};
use proc::ids::{self, Id};
use proc::process::Process;
use proc::signal;

/// What a terminal controls. The references in it keep the ids that it names from being given out again.
pub(super) struct Control {
    /// The session whose controlling terminal this is.
    pub session: Option<Arc<Session>>,
    /// The id of the foreground group. The group itself may have ended; it may begin anew while a process has that id.
    pub foreground: Option<Id>,
}

impl Control {
    /// No session, no group.
    pub const NONE: Control = Control {
        session: None,
        foreground: None,
    };

    /// Whether the session with id `sid` has this controlling terminal.
    pub fn serves(&self, sid: u32) -> bool {
        self.session.as_ref().is_some_and(|s| s.sid() == sid)
    }

    /// The session id, 0 for none.
    pub fn sid(&self) -> u32 {
        self.session.as_ref().map_or(0, |s| s.sid())
    }

    /// The pgid of the foreground group, 0 for none.
    pub fn foreground(&self) -> u32 {
        self.foreground.as_ref().map_or(0, Id::number)
    }

    /// The foreground group, if it has members.
    pub fn group(&self) -> Option<Arc<Group>> {
        ids::find_group(self.foreground.as_ref()?.number())
    }

    /// Takes session and foreground group out, and clears the session's controlling terminal. The caller drops the
    /// result without the lock.
    pub fn release(&mut self) -> Control {
        let old = core::mem::replace(self, Control::NONE);
        if let Some(session) = &old.session {
            session.set_terminal(None);
        }
        old
    }

    /// Sends a signal to the foreground group. May sleep: called on what [`Control::release`] has returned, without the lock.
    pub fn signal_foreground(&self, signo: u8) {
        if let Some(group) = self.group() {
            signal::signal_whole_group(&group, signo);
        }
    }

    /// Leaves the foreground group to the session, for the end of its leader. Called as [`Control::signal_foreground`].
    pub fn leave_foreground(&self) {
        if let Some(session) = &self.session {
            session.set_left_group(self.foreground.clone());
        }
    }

    /// The leader of the session, unless it has been reaped.
    pub fn leader(&self) -> Option<Arc<Process>> {
        ids::find_process(self.session.as_ref()?.sid())
    }
}
