//! Pids, tids, and ids of process groups and sessions; vhangup(2).

use abi::raw::general as nr;
use cred::Cap;
use proc::group::{self, GroupError};
use proc::{UserThreadExt, ids};
use task::current::current;

use super::errno::Errno;
use super::signal::process_of;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_getpid, getpid),
    (nr::__NR_gettid, gettid),
    (nr::__NR_getppid, getppid),
    (nr::__NR_getpgrp, getpgrp),
    (nr::__NR_getpgid, getpgid),
    (nr::__NR_getsid, getsid),
    (nr::__NR_setpgid, setpgid),
    (nr::__NR_setsid, setsid),
    (nr::__NR_vhangup, vhangup),
];

fn getpid(_: &mut Args) -> Result<u64, Errno> {
    Ok(current().process().pid().into())
}

fn gettid(_: &mut Args) -> Result<u64, Errno> {
    Ok(current().tid().into())
}

fn getppid(_: &mut Args) -> Result<u64, Errno> {
    Ok(current().process().ppid().into())
}

fn getpgrp(_: &mut Args) -> Result<u64, Errno> {
    Ok(current().process().pgid().into())
}

fn getpgid(a: &mut Args) -> Result<u64, Errno> {
    match a.int(0) {
        0 => getpgrp(a),
        pid => Ok(process_of(pid as u32)?.pgid().into()),
    }
}

fn getsid(a: &mut Args) -> Result<u64, Errno> {
    match a.int(0) {
        0 => Ok(current().process().sid().into()),
        pid => Ok(process_of(pid as u32)?.sid().into()),
    }
}

impl From<GroupError> for Errno {
    fn from(e: GroupError) -> Errno {
        match e {
            GroupError::NoProcess => Errno::ESRCH,
            GroupError::NotPermitted => Errno::EPERM,
            GroupError::Executed => Errno::EACCES,
        }
    }
}

fn setpgid(a: &mut Args) -> Result<u64, Errno> {
    let (pid, pgid) = (a.int(0), a.int(1));
    if pgid < 0 || pid < 0 {
        return Err(Errno::EINVAL);
    }
    let pid = if pid == 0 {
        current().process().pid()
    } else {
        pid as u32
    };
    let pgid = if pgid == 0 { pid } else { pgid as u32 };
    match group::setpgid(pid, pgid) {
        Ok(()) => Ok(0),
        // Most calls accept the tid of any thread for its process; setpgid refuses one that is not a leader's.
        Err(GroupError::NoProcess)
            if ids::find_process(pid).is_none() && process_of(pid).is_ok() =>
        {
            Err(Errno::EINVAL)
        }
        Err(e) => Err(e.into()),
    }
}

fn setsid(_: &mut Args) -> Result<u64, Errno> {
    Ok(group::setsid()?.into())
}

fn vhangup(_: &mut Args) -> Result<u64, Errno> {
    let me = current();
    let p = me.process();
    if !me.cred().capable(Cap::SysTtyConfig) {
        return Err(Errno::EPERM);
    }
    if let Some(terminal) = p.session().and_then(|session| session.terminal()) {
        terminal.hang_up();
    }
    Ok(0)
}
