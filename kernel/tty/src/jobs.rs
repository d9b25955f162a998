//! Job control: the session that a terminal controls, and requests from its background.

use alloc::sync::Arc;
use ksync::atomic::Ordering;

use cred::Cap;
use proc::UserThreadExt;
use proc::group::unorphaned;
use proc::ids;
use proc::process::Process;
use proc::signal::{self, sig};
use task::current::current;
use vfs::error::{FsError, Result};

use super::control::Control;
use super::file::TtyFile;
use super::terminal::Tty;

/// The handler's value for an ignored signal.
const SIG_IGN: u64 = 1;

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

    /// Makes the terminal, opened as `file` or by its master, the controlling terminal of the caller's session, as `TIOCSCTTY` does, and the caller's
    /// group the foreground group; does nothing if it is that terminal already. With `steal` a privileged caller takes it
    /// from another session, which gets no signal, as in Linux. Takes the terminal's lock, which may sleep.
    ///
    /// # Errors
    /// Not permitted: the caller does not lead its session, the session has another terminal, another session has this
    /// one, or the file is not good for it and the caller is not privileged. I/O: the file is cut off. Nothing has changed
    /// then.
    pub(super) fn set_controlling(
        self: &Arc<Self>,
        file: Option<&TtyFile>,
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
        if file.is_some_and(|file| file.is_cut_off(&line)) {
            return Err(FsError::Io);
        }
        let mut control = self.control.lock();
        if control.serves(session.sid()) {
            return Ok(());
        }
        // A session can read from its controlling terminal, so a descriptor that cannot read is not enough.
        let good = readable && !file.is_some_and(|file| file.is_from_before(&line));
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
        if let Some(old) = self.give_up(p.sid()) {
            old.signal_foreground(sig::HUP);
            old.signal_foreground(sig::CONT);
        }
    }

    /// Takes the terminal from the session with id `sid`; returns what the terminal controlled. `None` if it does not control that
    /// session.
    pub(super) fn give_up(&self, sid: u32) -> Option<Control> {
        let mut control = self.control.lock();
        control.serves(sid).then(|| control.release())
    }
}
