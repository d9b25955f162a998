//! Scheduling: nice values, policies, affinity.

use alloc::sync::Arc;

use abi::raw::general as nr;
use cred::{Cap, Cred};
use hal::uaccess::UserPtr;
use proc::{Resource, UserThreadExt, ids};
use task::current::current;
use task::sched::{self, CpuMask, Policy, Setting};
use task::thread::Thread;

use super::errno::Errno;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_sched_yield, sched_yield),
    (nr::__NR_sched_setaffinity, sched_setaffinity),
    (nr::__NR_sched_getaffinity, sched_getaffinity),
    (nr::__NR_sched_getscheduler, sched_getscheduler),
    (nr::__NR_sched_setscheduler, sched_setscheduler),
    (nr::__NR_sched_getparam, sched_getparam),
    (nr::__NR_sched_setparam, sched_setparam),
    (nr::__NR_sched_get_priority_max, |a| priority_limit(a, 99)),
    (nr::__NR_sched_get_priority_min, |a| priority_limit(a, 1)),
    (nr::__NR_sched_rr_get_interval, sched_rr_get_interval),
    (nr::__NR_getpriority, getpriority),
    (nr::__NR_setpriority, setpriority),
    (nr::__NR_getcpu, getcpu),
];

fn sched_yield(_: &mut Args) -> Result<u64, Errno> {
    sched::yield_turn();
    Ok(0)
}

/// The thread with the tid that a call is given; 0 stands for the calling thread.
///
/// # Errors
/// EINVAL for a negative tid, ESRCH.
pub(super) fn target(pid: i32) -> Result<Arc<Thread>, Errno> {
    match pid {
        ..0 => Err(Errno::EINVAL),
        0 => ids::find_thread(current().tid()).ok_or(Errno::ESRCH),
        _ => ids::find_thread(pid as u32).ok_or(Errno::ESRCH),
    }
}

/// As [`target`], for the calls that answer a negative tid with ESRCH.
fn target_or_none(pid: i32) -> Result<Arc<Thread>, Errno> {
    target(pid).map_err(|_| Errno::ESRCH)
}

/// Checks that the caller may change how `t` is scheduled: its effective uid is the thread's real or effective uid
/// and it has all capabilities of the thread; or it has CAP_SYS_NICE. So a program with more capabilities than its
/// user has is protected from that user.
///
/// # Errors
/// EPERM.
pub(super) fn may_change(t: &Thread) -> Result<(), Errno> {
    let mine = current().cred();
    let theirs = t.cred();
    if mine.owns(&theirs) && mine.covers(&theirs) || mine.capable(Cap::SysNice) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Whether RLIMIT_NICE lets a thread have the nice value `nice` without CAP_SYS_NICE.
pub(super) fn within_limit(t: &Thread, nice: i8) -> bool {
    20 - i64::from(nice) <= t.process().rlimit(Resource::Nice).min(40) as i64
}

fn sched_setaffinity(a: &mut Args) -> Result<u64, Errno> {
    let mut words = CpuMask::from_words(Default::default()).words();
    let len = a.size(1).min(size_of_val(&words));
    for (i, word) in words.iter_mut().enumerate() {
        let have = len.saturating_sub(i * 8).min(8);
        for byte in 0..have {
            let b: u8 = UserPtr::new(a.get(2)).add(i * 8 + byte).read()?;
            *word |= u64::from(b) << (8 * byte);
        }
    }
    let t = target_or_none(a.int(0))?;
    may_change(&t)?;
    if !sched::set_affinity(&t, &CpuMask::from_words(words)) {
        return Err(Errno::EINVAL);
    }
    if t.tid() == current().tid() {
        sched::preempt_check();
    }
    Ok(0)
}

fn sched_getaffinity(a: &mut Args) -> Result<u64, Errno> {
    let ncpus = hal::cpu::count();
    let len = a.size(1);
    if !len.is_multiple_of(8) || len.saturating_mul(8) < ncpus {
        return Err(Errno::EINVAL);
    }
    let t = target_or_none(a.int(0))?;
    let mut words = t.affinity().words();
    for (i, word) in words.iter_mut().enumerate() {
        let present = ncpus.saturating_sub(i * 64).min(64);
        *word &= if present == 64 {
            u64::MAX
        } else {
            (1 << present) - 1
        };
    }
    let n = (len / 8).min(words.len());
    for (i, word) in words[..n].iter().enumerate() {
        UserPtr::<u64>::new(a.get(2)).add(i).write(word)?;
    }
    Ok(n as u64 * 8)
}

fn sched_getscheduler(a: &mut Args) -> Result<u64, Errno> {
    let setting = target(a.int(0))?.setting();
    let reset = if setting.reset_on_fork {
        RESET_ON_FORK
    } else {
        0
    };
    Ok(setting.policy as u64 | u64::from(reset))
}

const RESET_ON_FORK: u32 = 0x4000_0000;

/// The policy with that number, with that priority.
///
/// # Errors
/// EINVAL for other numbers, SCHED_DEADLINE among them, and for a priority that the policy does not have.
pub(super) fn policy(number: u32, priority: i32) -> Result<(Policy, u8), Errno> {
    let policy = match number {
        0 => Policy::Other,
        1 => Policy::Fifo,
        2 => Policy::RoundRobin,
        3 => Policy::Batch,
        5 => Policy::Idle,
        _ => return Err(Errno::EINVAL),
    };
    let highest = if policy.is_real_time() {
        1..=sched::HIGHEST.into()
    } else {
        0..=0
    };
    if highest.contains(&priority) {
        Ok((policy, priority as u8))
    } else {
        Err(Errno::EINVAL)
    }
}

/// Checks that the caller may give `t` the setting `new` in place of `seen`, and the nice value `nice` if there is one. As on Linux, the
/// owner needs the privilege (CAP_SYS_NICE) to end SCHED_RESET_ON_FORK, to take the thread out of SCHED_IDLE if its RLIMIT_NICE forbids its
/// nice value, for a nice value beyond that limit, and, beyond RLIMIT_RTPRIO, to raise a real-time priority; with a limit of 0 also to
/// get a real-time policy that the thread does not have.
///
/// # Errors
/// EPERM.
fn may_set(t: &Thread, seen: Setting, new: Setting, nice: Option<i8>) -> Result<(), Errno> {
    may_change(t)?;
    let leaves_idle = seen.policy == Policy::Idle && new.policy != Policy::Idle;
    let most = t.process().rlimit(Resource::Rtprio);
    let rises = new.priority > seen.priority && u64::from(new.priority) > most;
    let real_time = new.policy.is_real_time() && (rises || new.policy != seen.policy && most == 0);
    let needs_right = real_time
        || seen.reset_on_fork && !new.reset_on_fork
        || leaves_idle && !within_limit(t, t.nice())
        || nice.is_some_and(|nice| nice < t.nice() && !within_limit(t, nice));
    if needs_right && !current().cred().capable(Cap::SysNice) {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// How much of a setting a call gives, once it has been checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Nothing.
    Nothing,
    /// Only SCHED_RESET_ON_FORK: Linux changes nothing else where parameters are kept.
    ResetOnFork,
    /// All of it, and the nice value.
    All,
}

/// Checks the setting that `new` makes of the present one of `t`, and the nice value `nice` if there is one, and gives `t` so much of it.
///
/// # Errors
/// Those of `new`; EPERM as of [`may_set`]. Nothing has changed then.
pub(super) fn give_setting(
    t: &Thread,
    nice: Option<i8>,
    extent: Extent,
    new: impl Fn(Setting) -> Result<Setting, Errno>,
) -> Result<(), Errno> {
    loop {
        let seen = t.setting();
        let new = new(seen)?;
        may_set(t, seen, new, nice)?;
        let reset_on_fork = new.reset_on_fork;
        let new = match extent {
            Extent::Nothing => seen,
            Extent::ResetOnFork => Setting {
                reset_on_fork,
                ..seen
            },
            Extent::All => new,
        };
        // Another thread may have changed the setting meanwhile, by which the right was judged.
        if sched::replace_setting(t, seen, new) {
            break;
        }
    }
    proc::futex::pi::priority_changed(t);
    if let (Some(nice), Extent::All) = (nice, extent) {
        t.set_nice(nice);
    }
    Ok(())
}

/// Reads the `struct sched_param` at `at`, for a thread that the caller has named by `pid`.
///
/// # Errors
/// EINVAL without one, or for a negative pid; EFAULT.
fn read_priority(pid: i32, at: u64) -> Result<i32, Errno> {
    if at == 0 || pid < 0 {
        return Err(Errno::EINVAL);
    }
    Ok(UserPtr::new(at).read()?)
}

fn sched_setscheduler(a: &mut Args) -> Result<u64, Errno> {
    // As in Linux, before the priority is read and the thread looked for.
    if a.int(1) < 0 {
        return Err(Errno::EINVAL);
    }
    let priority = read_priority(a.int(0), a.get(2))?;
    let t = target(a.int(0))?;
    let (policy, priority) = policy(a.uint(1) & !RESET_ON_FORK, priority)?;
    let new = Setting {
        policy,
        priority,
        reset_on_fork: a.uint(1) & RESET_ON_FORK != 0,
    };
    give_setting(&t, None, Extent::All, |_| Ok(new))?;
    Ok(0)
}

fn sched_getparam(a: &mut Args) -> Result<u64, Errno> {
    if a.get(1) == 0 {
        return Err(Errno::EINVAL);
    }
    let priority = target(a.int(0))?.setting().priority;
    UserPtr::<i32>::new(a.get(1)).write(&priority.into())?;
    Ok(0)
}

fn sched_setparam(a: &mut Args) -> Result<u64, Errno> {
    let priority = read_priority(a.int(0), a.get(1))?;
    let t = target(a.int(0))?;
    give_setting(&t, None, Extent::All, |seen| {
        let (policy, priority) = policy(seen.policy as u32, priority)?;
        Ok(Setting {
            policy,
            priority,
            ..seen
        })
    })?;
    Ok(0)
}

fn priority_limit(a: &mut Args, real_time: u64) -> Result<u64, Errno> {
    match a.uint(0) {
        0 | 3 | 5 | 6 => Ok(0),
        1 | 2 => Ok(real_time),
        _ => Err(Errno::EINVAL),
    }
}

fn sched_rr_get_interval(a: &mut Args) -> Result<u64, Errno> {
    let slice = match target(a.int(0))?.setting().policy {
        Policy::Fifo => 0,
        Policy::RoundRobin => sched::RR_NS,
        Policy::Other | Policy::Batch | Policy::Idle => sched::TICK_NS,
    };
    UserPtr::new(a.get(1)).write(&super::time::timespec(slice))?;
    Ok(0)
}

/// Calls `f` for each thread that the arguments of getpriority(2) select; returns whether there is one.
///
/// # Errors
/// EINVAL for an unknown `which`.
pub(super) fn each(which: u32, who: u32, mut f: impl FnMut(&Thread)) -> Result<bool, Errno> {
    let me = current();
    let mut found = false;
    match which {
        nr::PRIO_PROCESS => {
            let tid = if who == 0 { me.tid() } else { who };
            if let Some(t) = ids::find_thread(tid) {
                found = true;
                f(&t);
            }
        }
        nr::PRIO_PGRP | nr::PRIO_USER => {
            let who = match (which, who) {
                (nr::PRIO_PGRP, 0) => me.process().pgid(),
                (_, 0) => me.cred().uid,
                (_, who) => who,
            };
            ids::each_process(1, |p| {
                let by_group = which == nr::PRIO_PGRP;
                if !p.is_kernel() && (!by_group || p.pgid() == who) {
                    p.each_thread(|t| {
                        // Threads of a process may have different users.
                        if by_group || t.cred().uid == who {
                            found = true;
                            f(t);
                        }
                        true
                    });
                }
                true
            });
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(found)
}

fn getpriority(a: &mut Args) -> Result<u64, Errno> {
    let mut best = 0;
    let found = each(a.uint(0), a.uint(1), |t| {
        // 1..=40, as the raw call returns it: it cannot be taken for an error.
        best = best.max((20 - i64::from(t.nice())) as u64);
    })?;
    if found { Ok(best) } else { Err(Errno::ESRCH) }
}

fn setpriority(a: &mut Args) -> Result<u64, Errno> {
    let nice = a.int(2).clamp(-20, 19) as i8;
    let mine = current().cred();
    // The others are changed, too, where one is refused.
    let mut result = Ok(0);
    let found = each(a.uint(0), a.uint(1), |t| {
        if let Err(e) = renice(&mine, t, nice) {
            result = Err(e);
        }
    })?;
    if found { result } else { Err(Errno::ESRCH) }
}

/// Sets the nice value of `t` for a caller with credentials `mine`. As on Linux: EPERM if the thread is another user's or
/// has a capability that the caller lacks, EACCES if its RLIMIT_NICE forbids the value.
fn renice(mine: &Cred, t: &Thread, nice: i8) -> Result<(), Errno> {
    if !mine.capable(Cap::SysNice) {
        let theirs = t.cred();
        if !mine.owns(&theirs) {
            return Err(Errno::EPERM);
        }
        if nice < t.nice() && !within_limit(t, nice) {
            return Err(Errno::EACCES);
        }
        if !mine.covers(&theirs) {
            return Err(Errno::EPERM);
        }
    }
    t.set_nice(nice);
    Ok(())
}

fn getcpu(a: &mut Args) -> Result<u64, Errno> {
    let cpu = ksync::pin().cpu();
    UserPtr::<u32>::new(a.get(0)).write_if_some(&(cpu as u32))?;
    UserPtr::<u32>::new(a.get(1)).write_if_some(&(hal::cpu::node(cpu) as u32))?;
    Ok(0)
}
