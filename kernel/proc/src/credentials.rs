//! Changes of a thread's credentials.

use alloc::sync::Arc;

use cred::{Charge, Cred};
use mem::NoMemory;
use task::thread::Thread;

use super::account;
use super::user_thread::UserThreadExt;

/// Credentials that a thread gives itself.
pub trait CredentialsExt {
    /// Changes the thread's credentials. Called by the thread itself, so that no change is lost. Allocates.
    ///
    /// The account of a new real user is charged for the thread, even beyond RLIMIT_NPROC; then the thread's next execve may
    /// fail. If the memory may hold what the new credentials must not read, it is hidden (see [`look`](crate::look)), and the
    /// parent's death sends no signal any more.
    ///
    /// If the thread leads its process, or is its only thread, the credentials by which other processes judge the
    /// process change as well; with another real user the process begins a new exec group.
    ///
    /// # Errors
    /// No memory for an account of the new real user; nothing has changed.
    fn set_cred(&self, cred: Cred) -> Result<(), NoMemory>;
}

impl CredentialsExt for Thread {
    fn set_cred(&self, mut cred: Cred) -> Result<(), NoMemory> {
        let old = self.cred();
        let moves = old.uid != cred.uid;
        if moves {
            cred.payer = task::account::of_thread(cred.uid)?;
            account::note_crowd(self, cred.payer);
        }
        if old.exposed_by(&cred) {
            // First: a process that may look by the new credentials finds that it must not.
            self.process().hide();
        }
        let new = Arc::new(cred);
        drop(self.replace_cred(new.clone()));
        let p = self.process();
        if self.tid() == p.pid() || p.thread_count() == 1 {
            p.set_cred(new);
        }
        if moves {
            old.payer.give_back(Charge::Threads, 1);
        }
        Ok(())
    }
}
