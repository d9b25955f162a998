//! sched_setattr(2), sched_getattr(2), ioprio_set(2), ioprio_get(2).

use abi::raw::general as nr;
use cred::Cap;
use hal::PAGE_SIZE;
use hal::uaccess::UserPtr;
use proc::UserThreadExt;
use task::current::current;
use task::sched::{Policy, Setting};
use task::thread::Thread;

use super::errno::Errno;
use super::sched::{Extent, each, give_setting, policy, target};
use super::versioned;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_sched_setattr, sched_setattr),
    (nr::__NR_sched_getattr, sched_getattr),
    (nr::__NR_ioprio_set, ioprio_set),
    (nr::__NR_ioprio_get, ioprio_get),
];

/// Bytes of the first version of `struct sched_attr`, and words of the second, which has utilisation limits besides.
const FIRST: u64 = 48;
const WORDS: usize = 7;

const RESET_ON_FORK: u64 = 1;
const KEEP_POLICY: u64 = 8;
const KEEP_PARAMS: u64 = 16;
/// Flags that Linux knows. Those about deadlines mean nothing for other policies.
const KNOWN: u64 = 0x7f;
/// Limits of utilisation.
const CLAMPS: u64 = 0x60;

/// sched_setattr(2). There are neither deadlines nor limits of utilisation.
fn sched_setattr(a: &mut Args) -> Result<u64, Errno> {
    if a.get(1) == 0 || a.int(0) < 0 || a.uint(2) != 0 {
        return Err(Errno::EINVAL);
    }
    let w = read_attr(a.get(1))?;
    let (number, flags) = ((w[0] >> 32) as u32, w[1]);
    let is_first = w[0] as u32 <= FIRST as u32;
    if (number as i32) < 0 || flags & CLAMPS != 0 && is_first {
        return Err(Errno::EINVAL);
    }
    let t = target(a.int(0))?;
    let keeps = flags & KEEP_PARAMS != 0;
    let new = |seen: Setting| {
        let keeps_policy = flags & KEEP_POLICY != 0;
        let kept = keeps && seen.policy.is_real_time();
        let priority = if kept {
            seen.priority.into()
        } else {
            (w[2] >> 32) as i32
        };
        let number = if keeps_policy {
            seen.policy as u32
        } else {
            number
        };
        let (policy, priority) = policy(number, priority)?;
        if flags & !KNOWN != 0 {
            return Err(Errno::EINVAL);
        }
        let reset_on_fork = if keeps_policy {
            seen.reset_on_fork
        } else {
            flags & RESET_ON_FORK != 0
        };
        Ok(Setting {
            policy,
            priority,
            reset_on_fork,
        })
    };
    let has_nice = matches!(new(t.setting())?.policy, Policy::Other | Policy::Batch);
    let nice = (w[2] as i32).clamp(-20, 19) as i8;
    let nice = (has_nice && !keeps).then_some(nice);
    let extent = match (flags & CLAMPS != 0, keeps) {
        (true, _) => Extent::Nothing,
        (false, true) => Extent::ResetOnFork,
        (false, false) => Extent::All,
    };
    give_setting(&t, nice, extent, new)?;
    if extent == Extent::Nothing {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(0)
}

/// Reads a `struct sched_attr`, whose first word has its size; 0 stands for that of the first version.
///
/// # Errors
/// E2BIG for a size that cannot be, or something unknown; then the size that is known is written to user memory. EFAULT.
fn read_attr(at: u64) -> Result<[u64; WORDS], Errno> {
    let size = u64::from(UserPtr::<u32>::new(at).read()?);
    let size = if size == 0 { FIRST } else { size };
    let read = if (FIRST..=PAGE_SIZE as u64).contains(&size) {
        versioned::read(at, size, FIRST)
    } else {
        Err(Errno::E2BIG)
    };
    if read == Err(Errno::E2BIG) {
        UserPtr::<u32>::new(at).write(&(WORDS as u32 * 8))?;
    }
    read
}

/// sched_getattr(2), with the first version of `struct sched_attr`.
fn sched_getattr(a: &mut Args) -> Result<u64, Errno> {
    if a.get(2) < FIRST || a.get(3) != 0 {
        return Err(Errno::EINVAL);
    }
    let t = target(a.int(0))?;
    let setting = t.setting();
    // The nice value of a real-time thread is kept and has no effect.
    let nice = if setting.policy.is_real_time() {
        0
    } else {
        t.nice()
    };
    let nice = u64::from(i32::from(nice) as u32);
    let policy = setting.policy as u64;
    let attr = [
        FIRST | policy << 32,
        setting.reset_on_fork.into(),
        nice | u64::from(setting.priority) << 32,
        0,
        0,
        0,
    ];
    UserPtr::new(a.get(1)).write(&attr)?;
    Ok(0)
}

/// The classes of ioprio_set(2), in the bits from this one on.
const CLASS_SHIFT: u32 = 13;
mod class {
    pub const NONE: u32 = 0;
    pub const REAL_TIME: u32 = 1;
    pub const BEST_EFFORT: u32 = 2;
    pub const IDLE: u32 = 3;
}

/// Kinds of targets: as those of getpriority, from one on.
const PROCESS: u32 = 1;
const USER: u32 = 3;

fn kind(which: u32) -> Result<u32, Errno> {
    match which {
        PROCESS..=USER => Ok(which - 1),
        _ => Err(Errno::EINVAL),
    }
}

/// ioprio_set(2). The priority is stored, inherited and reported; there are no block devices to queue for.
fn ioprio_set(a: &mut Args) -> Result<u64, Errno> {
    let new = a.uint(2);
    let level = new & ((1 << CLASS_SHIFT) - 1);
    let me = current().cred();
    match new >> CLASS_SHIFT {
        class::REAL_TIME if !me.capable(Cap::SysNice) && !me.capable(Cap::SysAdmin) => {
            return Err(Errno::EPERM);
        }
        class::REAL_TIME | class::BEST_EFFORT if level < 8 => {}
        class::IDLE => {}
        class::NONE if level == 0 => {}
        _ => return Err(Errno::EINVAL),
    }
    let mut result = Ok(0);
    let mut set = |t: &Thread| {
        let theirs = t.cred();
        if theirs.uid == me.euid || theirs.uid == me.uid || me.capable(Cap::SysNice) {
            t.set_io_priority(new);
        } else {
            result = Err(Errno::EPERM);
        }
    };
    if each(kind(a.uint(0))?, a.uint(1), &mut set)? {
        result
    } else {
        Err(Errno::ESRCH)
    }
}

/// ioprio_get(2): the best of the priorities. A thread that has set none counts as one in the middle of those without privileges.
fn ioprio_get(a: &mut Args) -> Result<u64, Errno> {
    const USUAL: u32 = class::BEST_EFFORT << CLASS_SHIFT | 4;
    let counts = |p: u32| {
        if p >> CLASS_SHIFT == class::NONE {
            USUAL
        } else {
            p
        }
    };
    let mut best = None;
    let found = each(kind(a.uint(0))?, a.uint(1), |t| {
        let one = t.io_priority();
        best = Some(best.map_or(one, |best| {
            if counts(one) < counts(best) {
                one
            } else {
                best
            }
        }));
    })?;
    match best {
        Some(best) if found => Ok(best.into()),
        _ => Err(Errno::ESRCH),
    }
}
