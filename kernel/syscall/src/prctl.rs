//! prctl(2): settings of the calling thread and of its process.

use abi::raw::{general as nr, prctl as pr};
use cred::{CapSet, Cred, NotPermitted, SecureBits};
use hal::uaccess::{self, StrError, UserPtr};
use proc::UserThreadExt;
use proc::process::flag;
use proc::reaper;
use proc::signal::sig;
use task::current::current;

use super::errno::Errno;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[(nr::__NR_prctl, prctl)];

fn prctl(a: &mut Args) -> Result<u64, Errno> {
    let me = current();
    let p = me.process();
    let on = |name: u32| u64::from(p.flag(name));
    match a.uint(0) {
        pr::PR_SET_NAME => {
            let name = match uaccess::read_cstr(a.get(1), 16) {
                Ok(name) => name,
                Err(StrError::TooLong) => UserPtr::<[u8; 15]>::new(a.get(1)).read()?.to_vec(),
                Err(_) => return Err(Errno::EFAULT),
            };
            me.set_comm(&name);
        }
        pr::PR_GET_NAME => UserPtr::new(a.get(1)).write(&me.comm())?,
        pr::PR_SET_PDEATHSIG => {
            if a.get(1) > u64::from(sig::MAX) {
                return Err(Errno::EINVAL);
            }
            p.set_death_signal(a.get(1) as u8);
        }
        pr::PR_GET_PDEATHSIG => UserPtr::<u32>::new(a.get(1)).write(&p.death_signal().into())?,
        pr::PR_GET_DUMPABLE => return Ok(on(flag::DUMPABLE)),
        pr::PR_SET_DUMPABLE => p.set_switch(flag::DUMPABLE, switch(a)?),
        pr::PR_SET_CHILD_SUBREAPER => reaper::set_subreaper(p, a.get(1) != 0),
        pr::PR_GET_CHILD_SUBREAPER => {
            UserPtr::<u32>::new(a.get(1)).write(&(on(flag::SUBREAPER) as u32))?
        }
        // There are no seccomp filters, and PR_TIMING_STATISTICAL is the only way of timing: both are 0.
        pr::PR_GET_SECCOMP | pr::PR_GET_TIMING => return Ok(0),
        pr::PR_SET_TIMING if a.get(1) == 0 => {}
        pr::PR_GET_TIMERSLACK => return Ok(me.timer_slack()),
        pr::PR_SET_TIMERSLACK => me.set_timer_slack(a.get(1)),
        pr::PR_SET_THP_DISABLE | pr::PR_GET_THP_DISABLE => return superpages(a),
        pr::PR_GET_TID_ADDRESS => UserPtr::<u64>::new(a.get(1)).write(&me.clear_child_tid())?,
        _ => return privileges(a),
    }
    Ok(0)
}

/// PR_SET_THP_DISABLE and PR_GET_THP_DISABLE: whether faults of the process make no superpages.
fn superpages(a: &Args) -> Result<u64, Errno> {
    let sets = a.uint(0) == pr::PR_SET_THP_DISABLE;
    if a.get(2) | a.get(3) | a.get(4) != 0 || !sets && a.get(1) != 0 {
        return Err(Errno::EINVAL);
    }
    let space = super::mm::space()?;
    if sets {
        space.forbid_superpages(a.get(1) != 0);
        return Ok(0);
    }
    Ok(space.forbids_superpages().into())
}

/// The operations on credentials.
fn privileges(a: &Args) -> Result<u64, Errno> {
    let cred = current().cred();
    match a.uint(0) {
        pr::PR_GET_KEEPCAPS => Ok(cred.secure_bits.has(SecureBits::KEEP_CAPS).into()),
        pr::PR_SET_KEEPCAPS => {
            let on = switch(a)?;
            change(|c| c.set_keep_caps(on))
        }
        pr::PR_GET_SECUREBITS => Ok(cred.secure_bits.bits()),
        pr::PR_SET_SECUREBITS => change(|c| c.set_secure_bits(a.get(1))),
        pr::PR_SET_NO_NEW_PRIVS => {
            if (a.get(1), a.get(2), a.get(3), a.get(4)) != (1, 0, 0, 0) {
                return Err(Errno::EINVAL);
            }
            change(|c| {
                c.no_new_privs = true;
                Ok(())
            })
        }
        pr::PR_GET_NO_NEW_PRIVS => {
            if (a.get(1), a.get(2), a.get(3), a.get(4)) != (0, 0, 0, 0) {
                return Err(Errno::EINVAL);
            }
            Ok(cred.no_new_privs.into())
        }
        pr::PR_CAPBSET_READ => {
            let cap = CapSet::one(a.get(1)).ok_or(Errno::EINVAL)?;
            Ok(cap.is_within(cred.caps.bounding).into())
        }
        pr::PR_CAPBSET_DROP => {
            // As on Linux, EPERM for a missing CAP_SETPCAP comes before EINVAL for an unknown capability.
            let cap = CapSet::one(a.get(1));
            change(|c| c.drop_bounding(cap.unwrap_or(CapSet::EMPTY)))?;
            cap.map(|_| 0).ok_or(Errno::EINVAL)
        }
        pr::PR_CAP_AMBIENT => cap_ambient(a, &cred),
        _ => Err(Errno::EINVAL),
    }
}

/// As [`change`](super::credentials::change) of `credentials`.
fn change(f: impl FnOnce(&mut Cred) -> Result<(), NotPermitted>) -> Result<u64, Errno> {
    super::credentials::change(f)
}

fn switch(a: &Args) -> Result<bool, Errno> {
    match a.get(1) {
        on @ 0..=1 => Ok(on == 1),
        _ => Err(Errno::EINVAL),
    }
}

fn cap_ambient(a: &Args, cred: &Cred) -> Result<u64, Errno> {
    let what = u32::try_from(a.get(1)).map_err(|_| Errno::EINVAL)?;
    if a.get(3) | a.get(4) != 0 {
        return Err(Errno::EINVAL);
    }
    if what == pr::PR_CAP_AMBIENT_CLEAR_ALL {
        if a.get(2) != 0 {
            return Err(Errno::EINVAL);
        }
        return change(|c| {
            c.lower_ambient(CapSet::ALL);
            Ok(())
        });
    }
    let cap = CapSet::one(a.get(2)).ok_or(Errno::EINVAL)?;
    match what {
        pr::PR_CAP_AMBIENT_IS_SET => Ok(cap.is_within(cred.caps.ambient).into()),
        pr::PR_CAP_AMBIENT_RAISE => change(|c| c.raise_ambient(cap)),
        pr::PR_CAP_AMBIENT_LOWER => change(|c| {
            c.lower_ambient(cap);
            Ok(())
        }),
        _ => Err(Errno::EINVAL),
    }
}
