//! Descriptors in messages (SCM_RIGHTS).
//!
//! Guarantee: the open files stay open until the message is received or dropped, and are counted to the sender's user until then.
//! Sockets among them are registered with [`in_flight`] for as long.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::take;

use cred::{Charge, MemoryCharge, Payer};
use proc::UserThreadExt;
use proc::rlimit::Resource;
use task::current::current;
use vfs::file::FileRef;

use crate::error::{Result, SocketError};
use crate::in_flight;

/// The most descriptors of one message, as in Linux.
pub const MOST: usize = 253;

/// The open files that a message carries. Not to be dropped with a lock of this crate held.
pub struct Rights {
    files: Vec<FileRef>,
    /// How many of them are sockets.
    sockets: usize,
    payer: Payer,
    _charge: MemoryCharge,
}

impl Rights {
    /// Puts `files` in flight, charged to the caller's user. Takes the lock of the table of sockets in flight if there are sockets among
    /// them; may collect. Sleeps.
    ///
    /// # Errors
    /// `TooManyInFlight` if the user has more in flight than RLIMIT_NOFILE; `NoMemory`.
    pub fn new(files: Vec<FileRef>) -> Result<Box<Rights>> {
        let payer = current().payer();
        payer.charge(Charge::InFlight, files.len());
        let mut rights = Box::new(Rights {
            sockets: 0,
            payer,
            _charge: MemoryCharge::new(
                payer,
                size_of::<Rights>() + files.capacity() * size_of::<FileRef>(),
            ),
            files,
        });
        let over = || {
            let most = current().process().rlimit(Resource::Nofile);
            payer.is_over(Charge::InFlight, most) && !current().cred().beyond_user_limits()
        };
        if over() {
            in_flight::collect();
            if over() {
                return Err(SocketError::TooManyInFlight);
            }
        }
        rights.sockets = in_flight::register(&rights.files)?;
        Ok(rights)
    }

    /// Copies that are not in flight, for MSG_PEEK. The caller calls [`pass`](Self::pass) before it returns to a program.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn copies(&self) -> Result<Vec<FileRef>> {
        let mut files = Vec::new();
        files
            .try_reserve_exact(self.files.len())
            .map_err(|_| SocketError::NoBuffers)?;
        files.extend(self.files.iter().cloned());
        Ok(files)
    }

    /// Waits until no collection is going on that may have looked at `files` before they were copied.
    pub fn pass(files: &[FileRef]) {
        if files.iter().any(|file| in_flight::is_node(file)) {
            in_flight::pass();
        }
    }

    /// The files, which are in flight no more. Takes the lock of the table if there are sockets among them.
    pub fn arrive(mut self) -> Vec<FileRef> {
        let files = take(&mut self.files);
        self.end(&files);
        files
    }

    /// How many files there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether there are sockets among them.
    pub fn has_sockets(&self) -> bool {
        self.sockets > 0
    }

    /// Calls `f` with each.
    pub fn each(&self, f: impl FnMut(&FileRef)) {
        self.files.iter().for_each(f);
    }

    fn end(&mut self, files: &[FileRef]) {
        self.payer.give_back(Charge::InFlight, files.len());
        if self.sockets > 0 {
            in_flight::unregister(files);
        }
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        let files = take(&mut self.files);
        if files.is_empty() {
            return;
        }
        self.end(&files);
        if self.sockets > 0 {
            in_flight::bury(files);
        }
    }
}
