//! Which session a terminal controls, and which of its groups is in front.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use cred::Cap;
use proc::UserThreadExt;
use proc::group::{Group, Session};
use proc::ids::{self, Id};
use proc::process::Process;
use proc::signal::{self, sig};
use task::current::current;
use vfs::error::{FsError, Result};

use super::Tty;
use super::file::TtyFile;

/// The handler of an ignored signal.
const SIG_IGN: u64 = 1;

/// What a terminal serves. Its parts keep the numbers that they name from being given out again.
pub(super) struct Control {
    /// The session that it controls.
    session: Option<Arc<Session>>,
    /// The number of the group in front. The group itself may have ended, or begin anew while a process bears the number.
    foreground: Option<Id>,
}

impl Control {
    /// No session, no group.
    pub const NONE: Control = Control {
        session: None,
        foreground: None,
    };

    /// Whether the session of number `sid` is the one.
    pub fn serves(&self, sid: u32) -> bool {
        self.session.as_ref().is_some_and(|s| s.sid() == sid)
    }

    /// The number of the session, 0 for none.
    pub fn sid(&self) -> u32 {
        self.session.as_ref().map_or(0, |s| s.sid())
    }

    /// The number of the group in front, 0 for none.
    pub fn foreground(&self) -> u32 {
        self.foreground.as_ref().map_or(0, Id::number)
    }

    /// The group in front, if it has members.
    fn group(&self) -> Option<Arc<Group>> {
        ids::find_group(self.foreground.as_ref()?.number())
    }

    /// Takes everything out, and the terminal from its session. What is returned is to be dropped without the lock.
    pub fn release(&mut self) -> Control {
        let old = core::mem::replace(self, Control::NONE);
        if let Some(session) = &old.session {
            session.set_terminal(None);
        }
        old
    }

    /// Sends a signal to the group in front.
    pub fn signal_foreground(&self, signo: u8) {
        if let Some(group) = self.group() {
            signal::signal_whole_group(&group, signo);
        }
    }

    /// The leader of the session, if it has not been reaped.
    pub fn leader(&self) -> Option<Arc<Process>> {
        ids::find_process(self.session.as_ref()?.sid())
    }
}

impl Tty {
    /// Sends a signal to the group in front.
    pub(super) fn signal_foreground(&self, signo: u8) {
        // Posting takes locks of an outer rank, so the group is held meanwhile instead of the lock.
        let group = self.control.lock().group();
        if let Some(group) = group {
            signal::signal_whole_group(&group, signo);
        }
    }

    /// Whether the terminal controls the session of `p`.
    pub(super) fn controls(&self, p: &Process) -> bool {
        self.control.lock().serves(p.sid())
    }

    /// Whether the caller may open the terminal (`TIOCEXCL`).
    ///
    /// # Errors
    /// Busy: it opens for the privileged alone.
    pub(super) fn admit(&self) -> Result<()> {
        if self.exclusive.load(Ordering::Relaxed) && !current().cred().capable(Cap::SysAdmin) {
            return Err(FsError::Busy);
        }
        Ok(())
    }

    /// Stops a background process that uses its terminal, unless it is not to be stopped.
    ///
    /// `signo` is SIGTTIN or SIGTTOU. `Ok` if the process may go on.
    pub(super) fn job_control(&self, signo: u8) -> Result<()> {
        let me = current();
        let p = me.process();
        let front = {
            let control = self.control.lock();
            if !control.serves(p.sid()) {
                return Ok(());
            }
            control.foreground()
        };
        if front == 0 || p.pgid() == front {
            return Ok(());
        }
        let quiet = me.blocked().has(signo) || signal::action(p, signo).handler == SIG_IGN;
        let Some(group) = p.group() else {
            return Err(FsError::Io);
        };
        if signo == sig::TTIN {
            if quiet || group.is_orphaned(None) {
                return Err(FsError::Io);
            }
        } else {
            if quiet {
                return Ok(());
            }
            if group.is_orphaned(None) {
                return Err(FsError::Io);
            }
        }
        signal::signal_whole_group(&group, signo);
        Err(FsError::Interrupted)
    }

    /// Makes the terminal of `file` the controlling one of the caller's session, as `TIOCSCTTY`; `steal` takes it from
    /// another session.
    pub(super) fn set_controlling(
        self: &Arc<Self>,
        file: &TtyFile,
        readable: bool,
        steal: bool,
    ) -> Result<()> {
        let me = current();
        let p = me.process();
        let group = p.group().ok_or(FsError::Perm)?;
        let session = group.session().clone();
        if session.sid() != p.pid() {
            return Err(FsError::Perm);
        }
        let privileged = me.cred().capable(Cap::SysAdmin);
        // In the discipline's lock, so that the line is not hung up between the look at the file and the change.
        let line = self.line.lock();
        if file.is_cut_off(&line) {
            return Err(FsError::Io);
        }
        let mut control = self.control.lock();
        if control.serves(session.sid()) {
            return Ok(());
        }
        // A session can read what it controls, so a descriptor that cannot is not enough.
        let good = readable && !file.is_from_before(&line);
        if session.terminal().is_some() || !good && !privileged {
            return Err(FsError::Perm);
        }
        if control.session.is_some() && !(steal && privileged) {
            return Err(FsError::Perm);
        }
        let old = control.release();
        session.set_terminal(Some(self.clone()));
        control.foreground = Some(group.id().clone());
        control.session = Some(session);
        drop(control);
        drop(line);
        drop(old);
        Ok(())
    }

    /// Puts the group of number `pgid` in front.
    pub(super) fn set_foreground(&self, p: &Process, pgid: u32) -> Result<()> {
        let group = ids::find_group(pgid).ok_or(FsError::NoProcess)?;
        if group.session().sid() != p.sid() {
            return Err(FsError::Perm);
        }
        let mut control = self.control.lock();
        if !control.serves(p.sid()) {
            return Err(FsError::NotTty);
        }
        control.foreground = Some(group.id().clone());
        Ok(())
    }

    /// Gives the terminal up, as `TIOCNOTTY`. Only a leader's wish has an effect for the session; files stay as they are.
    pub(super) fn disassociate(&self, p: &Process) {
        if p.pid() != p.sid() {
            return;
        }
        let old = {
            let mut control = self.control.lock();
            if !control.serves(p.sid()) {
                return;
            }
            control.release()
        };
        old.signal_foreground(sig::HUP);
        old.signal_foreground(sig::CONT);
    }
}
