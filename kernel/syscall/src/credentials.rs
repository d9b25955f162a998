//! Credentials and capabilities.

use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::raw::general as nr;
use cred::{Cap, CapSet, Cred, NotPermitted};
use hal::uaccess::UserPtr;
use proc::{CredentialsExt, ids};
use task::current::current;

use super::errno::Errno;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_getuid, |_| Ok(current().cred().uid.into())),
    (nr::__NR_geteuid, |_| Ok(current().cred().euid.into())),
    (nr::__NR_getgid, |_| Ok(current().cred().gid.into())),
    (nr::__NR_getegid, |_| Ok(current().cred().egid.into())),
    (nr::__NR_setuid, |a| {
        change_one(a, |c, a| c.setuid(a.uint(0)))
    }),
    (nr::__NR_setgid, |a| {
        change_one(a, |c, a| c.setgid(a.uint(0)))
    }),
    (nr::__NR_setreuid, |a| {
        change(|c| c.setreuid(a.uint(0), a.uint(1)))
    }),
    (nr::__NR_setregid, |a| {
        change(|c| c.setregid(a.uint(0), a.uint(1)))
    }),
    (nr::__NR_setresuid, |a| {
        change(|c| c.setresuid(a.uint(0), a.uint(1), a.uint(2)))
    }),
    (nr::__NR_setresgid, |a| {
        change(|c| c.setresgid(a.uint(0), a.uint(1), a.uint(2)))
    }),
    (nr::__NR_setfsuid, |a| set_fs(a, Cred::setfsuid)),
    (nr::__NR_setfsgid, |a| set_fs(a, Cred::setfsgid)),
    (nr::__NR_getresuid, getresuid),
    (nr::__NR_getresgid, getresgid),
    (nr::__NR_getgroups, getgroups),
    (nr::__NR_setgroups, setgroups),
    (nr::__NR_capget, capget),
    (nr::__NR_capset, capset),
];

/// The errno of an operation for which the caller lacks permission.
pub(super) fn not_permitted(_: NotPermitted) -> Errno {
    Errno::EPERM
}

/// Checks that `cap` is effective.
///
/// # Errors
/// EPERM if it is not.
pub(super) fn require(cred: &Cred, cap: Cap) -> Result<(), Errno> {
    if cred.capable(cap) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Applies `f` to a copy of the calling thread's credentials, which then replaces them.
///
/// # Errors
/// EPERM if `f` does not permit the change; EAGAIN if there is no memory for an account of the new real user. The
/// credentials are as before in both cases.
pub(super) fn change(f: impl FnOnce(&mut Cred) -> Result<(), NotPermitted>) -> Result<u64, Errno> {
    let me = current();
    let mut cred = (*me.cred()).clone();
    f(&mut cred).map_err(not_permitted)?;
    me.set_cred(cred).map_err(|_| Errno::EAGAIN)?;
    Ok(0)
}

/// As [`change`], for the calls that set one id. Those refuse (uid_t)-1, which is no id; the calls that set several
/// ids take it for "leave this one".
fn change_one(
    a: &mut Args,
    f: impl FnOnce(&mut Cred, &Args) -> Result<(), NotPermitted>,
) -> Result<u64, Errno> {
    match a.uint(0) {
        u32::MAX => Err(Errno::EINVAL),
        _ => change(|c| f(c, a)),
    }
}

fn set_fs(a: &mut Args, f: fn(&mut Cred, u32) -> u32) -> Result<u64, Errno> {
    let me = current();
    let mut cred = (*me.cred()).clone();
    let old = f(&mut cred, a.uint(0));
    me.set_cred(cred).map_err(|_| Errno::EAGAIN)?;
    Ok(old.into())
}

fn put_three(a: &Args, values: [u32; 3]) -> Result<u64, Errno> {
    for (i, v) in values.iter().enumerate() {
        UserPtr::<u32>::new(a.get(i)).write(v)?;
    }
    Ok(0)
}

fn getresuid(a: &mut Args) -> Result<u64, Errno> {
    let c = current().cred();
    put_three(a, [c.uid, c.euid, c.suid])
}

fn getresgid(a: &mut Args) -> Result<u64, Errno> {
    let c = current().cred();
    put_three(a, [c.gid, c.egid, c.sgid])
}

/// Linux's NGROUPS_MAX.
const GROUPS_MAX: usize = 65536;

fn getgroups(a: &mut Args) -> Result<u64, Errno> {
    let cred = current().cred();
    let groups = cred.groups();
    let room = a.int(0);
    if room < 0 || room > 0 && (room as usize) < groups.len() {
        return Err(Errno::EINVAL);
    }
    if room > 0 {
        for (i, g) in groups.iter().enumerate() {
            UserPtr::<u32>::new(a.get(1)).add(i).write(g)?;
        }
    }
    Ok(groups.len() as u64)
}

fn setgroups(a: &mut Args) -> Result<u64, Errno> {
    let me = current();
    let mut cred = (*me.cred()).clone();
    require(&cred, Cap::Setgid)?;
    let n = a.size(0);
    if n > GROUPS_MAX {
        return Err(Errno::EINVAL);
    }
    let mut groups: Vec<u32> = Vec::new();
    groups.try_reserve_exact(n).map_err(|_| Errno::ENOMEM)?;
    for i in 0..n {
        groups.push(UserPtr::<u32>::new(a.get(1)).add(i).read()?);
    }
    groups.sort_unstable();
    cred.groups = (n > 0).then(|| Arc::new(groups));
    me.set_cred(cred).map_err(|_| Errno::EAGAIN)?;
    Ok(0)
}

const CAP_VERSION_1: u32 = 0x1998_0330;
const CAP_VERSION_2: u32 = 0x2007_1026;
const CAP_VERSION_3: u32 = 0x2008_0522;
/// Reads the header of capget and capset: how many 32-bit words each set has, and the tid asked for. For an unknown version it
/// writes the one that is known into the header, and fails with EINVAL.
fn cap_header(addr: u64) -> Result<(usize, u32), Errno> {
    let [version, pid] = UserPtr::<[u32; 2]>::new(addr).read()?;
    match version {
        CAP_VERSION_1 => Ok((1, pid)),
        CAP_VERSION_2 | CAP_VERSION_3 => Ok((2, pid)),
        _ => {
            UserPtr::<u32>::new(addr).write(&CAP_VERSION_3)?;
            Err(Errno::EINVAL)
        }
    }
}

/// capget(2). As on Linux, it succeeds without a place for the sets, also with an unknown version: programs ask for the version
/// so.
fn capget(a: &mut Args) -> Result<u64, Errno> {
    let (words, pid) = match cap_header(a.get(0)) {
        Ok(_) | Err(Errno::EINVAL) if a.get(1) == 0 => return Ok(0),
        r => r?,
    };
    let cred = match pid {
        0 => current().cred(),
        pid if pid as i32 <= 0 => return Err(Errno::EINVAL),
        pid => ids::find_thread(pid).ok_or(Errno::ESRCH)?.cred(),
    };
    let sets = [
        cred.caps.effective,
        cred.caps.permitted,
        cred.caps.inheritable,
    ];
    for i in 0..words {
        UserPtr::<[u32; 3]>::new(a.get(1))
            .add(i)
            .write(&sets.map(|set| (set.bits() >> (32 * i)) as u32))?;
    }
    Ok(0)
}

fn capset(a: &mut Args) -> Result<u64, Errno> {
    let (words, pid) = cap_header(a.get(0))?;
    if pid != 0 && pid != current().tid() {
        return Err(Errno::EPERM);
    }
    let mut sets = [0u64; 3];
    for i in 0..words {
        let part = UserPtr::<[u32; 3]>::new(a.get(1)).add(i).read()?;
        for (set, word) in sets.iter_mut().zip(part) {
            *set |= u64::from(word) << (32 * i);
        }
    }
    let [effective, permitted, inheritable] = sets.map(CapSet::from_bits);
    change(|c| c.set_caps(effective, permitted, inheritable))
}
