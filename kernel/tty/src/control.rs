//! Which session a terminal controls, and which of its process groups is the foreground group.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use cred::Cap;
use proc::UserThreadExt;
use proc::group::{Group, Session, unorphaned};
use proc::ids::{self, Id};
use proc::process::Process;
use proc::signal::{self, sig};
use task::current::current;
use vfs::error::{FsError, Result};

use super::Tty;
use super::file::TtyFile;

/// The handler's value for an ignored signal.
const SIG_IGN: u64 = 1;

/// What a terminal controls. The references in it keep the ids that it names from being given out again.
pub(super) struct Control {
    /// The session whose controlling terminal this is.
    session: Option<Arc<Session>>,
    /// The id of the foreground group. The group itself may have ended; it may begin anew while a process has that id.
    foreground: Option<Id>,
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
    fn group(&self) -> Option<Arc<Group>> {
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

    /// The leader of the session, unless it has been reaped.
    pub fn leader(&self) -> Option<Arc<Process>> {
        ids::find_process(self.session.as_ref()?.sid())
    }
}

impl Tty {
    /// Sends a signal to the foreground group. May sleep.
    pub(super) fn signal_foreground(&self, signo: u8) {
        // Posting takes locks of a lower rank, so this keeps a reference to the group meanwhile, not the lock.
        let group = self.control.lock().group();
        if let Some(group) = group {
            signal::signal_whole_group(&group, signo);
        }
    }

    /// Whether this is the controlling terminal of the session of `p`.
    pub(super) fn controls(&self, p: &Process) -> bool {
        self.control.lock().serves(p.sid())
    }

    /// Checks that the caller may open the terminal.
    ///
    /// # Errors
    /// Busy: the terminal is exclusive (TIOCEXCL), and the caller is not privileged.
    pub(super) fn admit(&self) -> Result<()> {
        if self.exclusive.load(Ordering::Relaxed) && !current().cred().capable(Cap::SysAdmin) {
            return Err(FsError::Busy);
        }
        Ok(())
    }

    /// Sends `signo`, SIGTTIN or SIGTTOU, to the caller's group if the caller uses its controlling terminal from the
    /// background. `Ok` if the caller may go on, also where it blocks or ignores SIGTTOU. May sleep.
    ///
    /// # Errors
    /// Interrupted: the signal has been sent. I/O: it cannot be sent, because the group is orphaned or just being left, or,
    /// for SIGTTIN, because the caller blocks or ignores it.
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
        if quiet && signo != sig::TTIN {
            return Ok(());
        }
        if quiet {
            return Err(FsError::Io);
        }
        let group = unorphaned(p).ok_or(FsError::Io)?;
        signal::signal_whole_group(&group, signo);
        Err(FsError::Interrupted)
    }

    /// Makes the terminal of `file` the controlling terminal of the caller's session, as `TIOCSCTTY` does, and the caller's
    /// group the foreground group; does nothing if it is that terminal already. With `steal` a privileged caller takes it
    /// from another session, which gets no signal, as in Linux. Takes the terminal's lock, which may sleep.
    ///
    /// # Errors
    /// Not permitted: the caller does not lead its session, the session has another terminal, another session has this
    /// one, or the file is not good for it and the caller is not privileged. I/O: the file is cut off. Nothing has changed
    /// then.
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
        // Under the lock of the line discipline, so that the terminal cannot hang up between the check of the file and
        // the change.
        let line = self.line.lock();
        if file.is_cut_off(&line) {
            return Err(FsError::Io);
        }
        let mut control = self.control.lock();
        if control.serves(session.sid()) {
            return Ok(());
        }
        // A session can read from its controlling terminal, so a descriptor that cannot read is not enough.
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

    /// Makes the group with id `pgid` the foreground group; `p` is the caller.
    ///
    /// # Errors
    /// No process: there is no such group. Not permitted: it is in another session. Not a terminal: this one does not
    /// control the session.
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

    /// Gives up the controlling terminal, as `TIOCNOTTY` does. Only a session leader gives it up, for the whole session,
    /// whose foreground group gets SIGHUP and SIGCONT; another process changes nothing. Open files are not changed. May
    /// sleep.
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
