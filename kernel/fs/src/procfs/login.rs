//! /proc/PID/loginuid and sessionid: the login that a process is part of, which PAM says at its beginning.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use cred::Login;
use proc::CredentialsExt;
use proc::process::Process;
use task::current::current;
use vfs::dynamic::Text;
use vfs::error::{FsError, Result};
use vfs::put;

use super::whom::thread;

hal::machine_static! {
    /// Logins so far. Atomic.
    static LOGINS: AtomicU32 = AtomicU32::new(0);
}

fn login(p: &Arc<Process>, tid: u32) -> Login {
    thread(p, tid).map_or_else(|| p.cred().login, |t| t.cred().login)
}

/// Prints the user that logged in, without a line feed, as Linux does.
pub fn uid(p: &Arc<Process>, tid: u32, out: &mut Text) -> Result<()> {
    put!(out, "{}", login(p, tid).uid);
    Ok(())
}

/// Prints the login's number.
pub fn session(p: &Arc<Process>, tid: u32, out: &mut Text) -> Result<()> {
    put!(out, "{}", login(p, tid).session);
    Ok(())
}

/// The number of a new login, never that of none.
fn next_session() -> u32 {
    loop {
        let session = LOGINS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if session != Login::NONE.session {
            return session;
        }
    }
}

/// Makes the calling thread part of a new login of the user, or of none for -1. Only a thread's own file takes it.
///
/// # Errors
/// `Perm` for another thread's file, or where the thread is part of a login and lacks CAP_AUDIT_CONTROL; `Invalid` if the text is no
/// user id.
pub fn set_uid(_: &Process, tid: u32, data: &[u8]) -> Result<()> {
    let me = current();
    if me.tid() != tid {
        return Err(FsError::Perm);
    }
    let text = core::str::from_utf8(data).map_err(|_| FsError::Invalid)?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let uid = text.parse().map_err(|_| FsError::Invalid)?;
    let mut cred = (*me.cred()).clone();
    cred.may_log_in().map_err(|_| FsError::Perm)?;
    cred.login = match uid {
        u32::MAX => Login::NONE,
        uid => Login {
            uid,
            session: next_session(),
        },
    };
    me.set_cred(cred).map_err(|_| FsError::NoMemory)
}
