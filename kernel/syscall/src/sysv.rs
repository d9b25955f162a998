//! System V objects: what their calls have in common.

pub mod msg;
pub mod sem;
pub mod shm;

use ipc::sysv::error::SysvError;
use ipc::sysv::perm::{Caller, NewOwner, Perm};
use proc::UserThreadExt;
use task::current::current;

use crate::errno::Errno;

impl From<SysvError> for Errno {
    fn from(e: SysvError) -> Errno {
        match e {
            SysvError::Denied => Errno::EACCES,
            SysvError::NotOwner => Errno::EPERM,
            SysvError::Exists => Errno::EEXIST,
            SysvError::NotFound => Errno::ENOENT,
            SysvError::NoSpace => Errno::ENOSPC,
            SysvError::Invalid => Errno::EINVAL,
            SysvError::Removed => Errno::EIDRM,
            SysvError::NoMemory => Errno::ENOMEM,
            SysvError::Again => Errno::EAGAIN,
            SysvError::Interrupted => Errno::EINTR,
            SysvError::TooBig => Errno::E2BIG,
            SysvError::Range => Errno::ERANGE,
            SysvError::NoSemaphore => Errno::EFBIG,
            SysvError::NoMessage => Errno::ENOMSG,
        }
    }
}

/// Commands of shmctl(2), semctl(2) and msgctl(2), with Linux's numbers.
mod command {
    pub const REMOVE: i32 = 0;
    pub const SET: i32 = 1;
    pub const STAT: i32 = 2;
    pub const INFO: i32 = 3;
}

/// Calls `f` with the caller.
fn as_caller<R>(f: impl FnOnce(Caller<'_>) -> R) -> R {
    let me = current();
    let cred = me.cred();
    f(Caller {
        cred: &cred,
        pid: me.process().pid(),
    })
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// The words of a `struct ipc64_perm`.
fn perm_words(p: &Perm) -> [u64; 6] {
    [
        pair(p.key as u32, p.uid),
        pair(p.gid, p.cuid),
        pair(p.cgid, p.mode),
        p.sequence().into(),
        0,
        0,
    ]
}

/// What IPC_SET takes from such words.
fn new_owner(words: &[u64]) -> NewOwner {
    NewOwner {
        uid: (words[0] >> 32) as u32,
        gid: words[1] as u32,
        mode: (words[2] >> 32) as u32,
    }
}
