//! Signals: dispositions, masks, waiting for them, sending them.

use alloc::sync::Arc;

use abi::raw::general as nr;
use cred::Cred;
use hal::uaccess::UserPtr;
use proc::process::Process;
use proc::signal::{self, Action, AltStackError, SendError, SigInfo, SigSet, code, sig};
use proc::{SignalExt, UserThreadExt, ids};
use task::current::current;
use task::park::{Deadline, Interruptible, ParkError, Step, park};

use super::errno::Errno;
use super::time::read_timespec;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_rt_sigaction, rt_sigaction),
    (nr::__NR_rt_sigprocmask, rt_sigprocmask),
    (nr::__NR_rt_sigpending, rt_sigpending),
    (nr::__NR_rt_sigsuspend, rt_sigsuspend),
    (nr::__NR_rt_sigtimedwait, rt_sigtimedwait),
    (nr::__NR_rt_sigqueueinfo, rt_sigqueueinfo),
    (nr::__NR_rt_tgsigqueueinfo, rt_tgsigqueueinfo),
    (nr::__NR_sigaltstack, sigaltstack),
    (nr::__NR_kill, kill),
    (nr::__NR_tkill, tkill),
    (nr::__NR_tgkill, tgkill),
    (nr::__NR_pause, pause),
];

/// The calls that replace the full register frame.
pub const FULL_FRAME: &[(u32, Handler)] = &[(nr::__NR_rt_sigreturn, rt_sigreturn)];

impl From<SendError> for Errno {
    fn from(e: SendError) -> Errno {
        match e {
            SendError::NoProcess => Errno::ESRCH,
            SendError::NotPermitted => Errno::EPERM,
            SendError::Full => Errno::EAGAIN,
        }
    }
}

/// Bytes of the kernel's sigset_t.
const SET_LEN: u64 = 8;

fn signal_number(n: u32) -> Result<u8, Errno> {
    if (1..=u32::from(sig::MAX)).contains(&n) {
        Ok(n as u8)
    } else {
        Err(Errno::EINVAL)
    }
}

/// rt_sigaction(2). As on Linux, the action of SIGKILL or SIGSTOP may be asked for but not set, and a new action stays set if
/// the old one cannot be written.
fn rt_sigaction(a: &mut Args) -> Result<u64, Errno> {
    let signo = signal_number(a.uint(0))?;
    if a.get(3) != SET_LEN {
        return Err(Errno::EINVAL);
    }
    let me = current();
    let new = match a.get(1) {
        0 => None,
        at => {
            let [handler, flags, restorer, mask]: [u64; 4] = UserPtr::new(at).read()?;
            Some(Action {
                handler,
                flags,
                restorer,
                mask: mask & !SigSet::UNMASKABLE.0,
            })
        }
    };
    if new.is_some() && SigSet::UNMASKABLE.has(signo) {
        return Err(Errno::EINVAL);
    }
    let old = match new {
        Some(new) => signal::set_action(me.process(), signo, new),
        None => signal::action(me.process(), signo),
    };
    UserPtr::new(a.get(2)).write_if_some(&[old.handler, old.flags, old.restorer, old.mask])?;
    Ok(0)
}

/// rt_sigprocmask(2). As on Linux, `how` is not looked at if no set is given, and a new mask stays set if the old one cannot
/// be written.
fn rt_sigprocmask(a: &mut Args) -> Result<u64, Errno> {
    if a.get(3) != SET_LEN {
        return Err(Errno::EINVAL);
    }
    let me = current();
    let old = me.blocked().0;
    if a.get(1) != 0 {
        let set: u64 = UserPtr::new(a.get(1)).read()?;
        let new = match a.uint(0) {
            nr::SIG_BLOCK => old | set,
            nr::SIG_UNBLOCK => old & !set,
            nr::SIG_SETMASK => set,
            _ => return Err(Errno::EINVAL),
        };
        me.set_blocked(SigSet(new));
    }
    UserPtr::new(a.get(2)).write_if_some(&old)?;
    Ok(0)
}

fn rt_sigpending(a: &mut Args) -> Result<u64, Errno> {
    if a.get(1) > SET_LEN {
        return Err(Errno::EINVAL);
    }
    let set = signal::pending(&current()).0 & current().blocked().0;
    UserPtr::new(a.get(0)).write(&set)?;
    Ok(0)
}

fn rt_sigsuspend(a: &mut Args) -> Result<u64, Errno> {
    if a.get(1) != SET_LEN {
        return Err(Errno::EINVAL);
    }
    let set: u64 = UserPtr::new(a.get(0)).read()?;
    current().set_temporary_mask(SigSet(set));
    sleep_for_signal()
}

fn pause(_: &mut Args) -> Result<u64, Errno> {
    sleep_for_signal()
}

fn sleep_for_signal() -> Result<u64, Errno> {
    let _ = park(&mut (), Deadline::Never, Interruptible::Yes, |(), _| {
        Step::<()>::Wait
    });
    // Only a handler ends the call; anything else begins it anew.
    Err(Errno::ERESTARTNOHAND)
}

/// rt_sigtimedwait(2): takes a signal of the set, for which it sleeps. EAGAIN at the timeout, EINTR if another signal came.
/// As on Linux, a signal that has been taken is lost if its siginfo cannot be written.
fn rt_sigtimedwait(a: &mut Args) -> Result<u64, Errno> {
    if a.get(3) != SET_LEN {
        return Err(Errno::EINVAL);
    }
    let set: u64 = UserPtr::new(a.get(0)).read()?;
    let deadline = match a.get(2) {
        0 => Deadline::Never,
        at => Deadline::after(read_timespec(at)?),
    };
    let mut wanted = SigSet(set & !SigSet::UNMASKABLE.0);
    let me = current();
    if let Some(info) = signal::take(&me, wanted) {
        return deliver_to(a, info);
    }
    // The signals waited for end the sleep only while they are not blocked.
    me.begin_sigwait(wanted);
    let result = park(
        &mut wanted,
        deadline,
        Interruptible::Yes,
        |set, _| match signal::take(&current(), *set) {
            Some(info) => Step::Done(info),
            None => Step::Wait,
        },
    );
    // The signal that ended the sleep may be one of those waited for. While this thread counts as waiting for it, no other one that
    // would ignore it keeps it.
    let result = result.or_else(|e| signal::take(&me, wanted).ok_or(e));
    me.end_sigwait();
    // One may have come since.
    match result.or_else(|e| signal::take(&me, wanted).ok_or(e)) {
        Ok(info) => deliver_to(a, info),
        Err(ParkError::Timeout) => Err(Errno::EAGAIN),
        Err(ParkError::Signal) => Err(Errno::EINTR),
    }
}

fn deliver_to(a: &Args, info: SigInfo) -> Result<u64, Errno> {
    UserPtr::new(a.get(1)).write_if_some(&info.to_raw())?;
    Ok(info.signo.into())
}

fn rt_sigreturn(a: &mut Args) -> Result<u64, Errno> {
    let me = current();
    if signal::sigreturn(&me, a).is_err() {
        signal::force(&me, SigInfo::kernel(sig::SEGV));
    }
    // The dispatcher stores the result where the interrupted context's RAX belongs.
    Ok(a.rax)
}

/// sigaltstack(2). EPERM while the caller runs on the present stack, ENOMEM for one that is too small. As on Linux, the new one
/// stays set if the old one cannot be written.
fn sigaltstack(a: &mut Args) -> Result<u64, Errno> {
    let me = current();
    let sp = a.rsp;
    let old = me.altstack();
    if a.get(0) != 0 {
        let new: [u64; 3] = UserPtr::new(a.get(0)).read()?;
        signal::change_altstack(&me, sp, new).map_err(|e| match e {
            AltStackError::InUse => Errno::EPERM,
            AltStackError::Invalid => Errno::EINVAL,
            AltStackError::Small => Errno::ENOMEM,
        })?;
    }
    UserPtr::new(a.get(1)).write_if_some(&signal::altstack_words(&old, sp))?;
    Ok(0)
}

/// Checks that the caller may send `signo` to `p`, of which the thread that the call names acts as `target`.
///
/// # Errors
/// EPERM.
pub(super) fn may(p: &Process, target: &Cred, signo: u8) -> Result<(), Errno> {
    if signal::may_signal(p, target, signo) {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Checks a signal number; 0 asks for the permission check alone.
///
/// # Errors
/// EINVAL.
pub(super) fn signal_or_zero(n: u32) -> Result<u8, Errno> {
    if n == 0 { Ok(0) } else { signal_number(n) }
}

/// The information about a signal that the caller sends by a call with that code.
pub(super) fn info_from_me(signo: u8, code: i32) -> SigInfo {
    let me = current();
    SigInfo::user(signo.max(1), code, me.process().pid(), me.cred().uid)
}

/// What an id names, for calls that act on a process.
pub(super) struct Named {
    /// The process of the thread with that id.
    pub process: Arc<Process>,
    /// The credentials of that very thread, by which the call is permitted: threads of a process may differ.
    pub cred: Arc<Cred>,
}

/// As [`process_of`], for calls that ask for permission.
pub(super) fn named(number: u32) -> Result<Named, Errno> {
    if let Some(t) = ids::find_thread(number) {
        let (process, cred) = (t.process().clone(), t.cred());
        return Ok(Named { process, cred });
    }
    // The pid outlives the leader.
    let process = ids::find_process(number).ok_or(Errno::ESRCH)?;
    let cred = process.cred();
    Ok(Named { process, cred })
}

/// The process with that pid, or of the thread with that tid.
///
/// # Errors
/// ESRCH.
pub(super) fn process_of(number: u32) -> Result<Arc<Process>, Errno> {
    ids::find_process(number)
        .or_else(|| ids::find_thread(number).map(|t| t.process().clone()))
        .ok_or(Errno::ESRCH)
}

/// kill(2). Any tid stands for its process, as on Linux.
fn kill(a: &mut Args) -> Result<u64, Errno> {
    let pid = a.int(0);
    // Whom it is for counts before which signal it is.
    let signo = signal_or_zero(a.uint(1));
    let info = info_from_me(signo.unwrap_or(0), code::USER);
    let me = current();
    match pid {
        1.. => {
            let named = named(pid as u32)?;
            let signo = signo?;
            may(&named.process, &named.cred, signo)?;
            if signo != 0 {
                signal::queue_process(&named.process, info)?;
            }
        }
        -1 => kill_all(signo?, info)?,
        0 => {
            let cred = me.cred();
            signal::signal_own_group(signo?, info, Some((&cred, me.process().sid())))?;
        }
        i32::MIN => return Err(Errno::ESRCH),
        _ => {
            let group = ids::find_group(pid.unsigned_abs()).ok_or(Errno::ESRCH)?;
            let cred = me.cred();
            signal::signal_group(&group, signo?, info, Some((&cred, me.process().sid())))?;
        }
    }
    Ok(0)
}

/// How often kill(-1) with SIGKILL walks over all processes at most.
const WALKS: usize = 64;

/// kill(-1): sends the signal to every process that the caller may signal, except init and its own.
///
/// A process that the walk has not reached may fork a child with an id that the walk has passed. After a walk that has
/// killed a process another one follows, which finds such children: a process that is being killed makes none. Other
/// signals are sent by one walk, because a process that has taken one may fork again, and its children are not to get it.
///
/// # Errors
/// ESRCH if there is no other process, EPERM if it may signal none.
fn kill_all(signo: u8, info: SigInfo) -> Result<(), Errno> {
    let own = current().process().pid();
    let (mut found, mut sent) = (false, false);
    for _ in 0..WALKS {
        let mut killed = false;
        ids::each_process(2, |p| {
            if p.pid() != own && !p.is_kernel() {
                found = true;
                if may(p, &p.cred(), signo).is_ok() {
                    sent = true;
                    killed |= signo == sig::KILL && !p.is_ending();
                    if signo != 0 {
                        let _ = signal::queue_process(p, info);
                    }
                }
            }
            true
        });
        if !killed {
            break;
        }
    }
    match (found, sent) {
        (false, _) => Err(Errno::ESRCH),
        (true, false) => Err(Errno::EPERM),
        _ => Ok(()),
    }
}

fn tkill(a: &mut Args) -> Result<u64, Errno> {
    if a.int(0) <= 0 {
        return Err(Errno::EINVAL);
    }
    to_thread(None, a.uint(0), a.uint(1), |signo| {
        info_from_me(signo, code::TKILL)
    })
}

fn tgkill(a: &mut Args) -> Result<u64, Errno> {
    if a.int(0) <= 0 || a.int(1) <= 0 {
        return Err(Errno::EINVAL);
    }
    to_thread(Some(a.uint(0)), a.uint(1), a.uint(2), |signo| {
        info_from_me(signo, code::TKILL)
    })
}

/// Sends a signal to the thread `tid`, which must be one of process `tgid` if that is given; 0 asks for the permission check
/// alone.
///
/// # Errors
/// ESRCH, EINVAL, EPERM, in this order; EAGAIN if too many signals are queued.
fn to_thread(
    tgid: Option<u32>,
    tid: u32,
    signo: u32,
    info: impl FnOnce(u8) -> SigInfo,
) -> Result<u64, Errno> {
    // Whom it is for counts before which signal it is.
    let signo = signal_or_zero(signo);
    let Some(t) = ids::find_thread(tid) else {
        // The first thread of a process keeps its number until the process has been waited for, and takes nothing.
        let p = ids::find_process(tid).ok_or(Errno::ESRCH)?;
        if tgid.is_some_and(|g| g != tid) {
            return Err(Errno::ESRCH);
        }
        may(&p, &p.cred(), signo?)?;
        return Ok(0);
    };
    if tgid.is_some_and(|g| g != t.process().pid()) {
        return Err(Errno::ESRCH);
    }
    let signo = signo?;
    may(t.process(), &t.cred(), signo)?;
    if signo != 0 {
        signal::send_thread(&t, info(signo))?;
    }
    Ok(0)
}

/// Reads the siginfo that a program sends. Unless the receiver is the calling thread, its code must not be one of the
/// kernel, of kill(2) or of tkill(2).
///
/// # Errors
/// EPERM, EFAULT.
pub(super) fn user_info(addr: u64, signo: u8, to_self: bool) -> Result<SigInfo, Errno> {
    let info = SigInfo::from_raw(signo.max(1), &UserPtr::new(addr).read()?);
    if (info.code >= 0 || info.code == code::TKILL) && !to_self {
        return Err(Errno::EPERM);
    }
    Ok(info)
}

/// rt_sigqueueinfo(2). As on Linux, the errors of the siginfo come before ESRCH, and that before EINVAL for the signal.
fn rt_sigqueueinfo(a: &mut Args) -> Result<u64, Errno> {
    let signo = signal_or_zero(a.uint(1));
    let own = a.uint(0) == current().tid();
    let info = user_info(a.get(2), signo.unwrap_or(0), own)?;
    let named = named(a.uint(0))?;
    let signo = signo?;
    may(&named.process, &named.cred, signo)?;
    if signo != 0 {
        signal::queue_process(&named.process, info)?;
    }
    Ok(0)
}

fn rt_tgsigqueueinfo(a: &mut Args) -> Result<u64, Errno> {
    if a.int(0) <= 0 || a.int(1) <= 0 {
        return Err(Errno::EINVAL);
    }
    let signo = signal_or_zero(a.uint(2)).unwrap_or(0);
    let own = a.uint(1) == current().tid();
    let info = user_info(a.get(3), signo, own)?;
    to_thread(Some(a.uint(0)), a.uint(1), a.uint(2), |_| info)
}
