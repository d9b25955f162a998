//! Processes: clone(2) and its variants, wait4(2), exit(2), resource limits; and uname(2), sysinfo(2), reboot(2).

use abi::raw::general as nr;
use cred::Cap;
use hal::UserFrame;
use hal::uaccess::UserPtr;
use proc::fork::{self, CloneArgs, ForkError};
use proc::rlimit::{Limit, LimitError, Resource};
use proc::signal::sig;
use proc::wait4::{self, Children, Event, Kind, Options, WaitError};
use proc::{UserThreadExt, exit, forget_files, ids, own_files, sem_undo, uts};
use task::current::current;
use task::{sched, time};

use super::credentials::require;
use super::errno::Errno;
use super::fsutil::real_file;
use super::pidfd;
use super::time::rusage;
use super::versioned;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_unshare, unshare),
    (nr::__NR_exit, |a| exit::exit_thread(a.uint(0) & 0xff)),
    (nr::__NR_exit_group, |a| exit::exit_group(a.uint(0))),
    (nr::__NR_wait4, wait4),
    (nr::__NR_waitid, waitid),
    (nr::__NR_prlimit64, prlimit64),
    (nr::__NR_getrlimit, getrlimit),
    (nr::__NR_setrlimit, setrlimit),
    (nr::__NR_arch_prctl, arch_prctl),
    (nr::__NR_personality, personality),
    (nr::__NR_uname, uname),
    (nr::__NR_sysinfo, sysinfo),
    (nr::__NR_getrandom, getrandom),
    (nr::__NR_reboot, reboot),
    (nr::__NR_sethostname, |a| set_name(a, uts::Which::Host)),
    (nr::__NR_setdomainname, |a| set_name(a, uts::Which::Domain)),
];

/// The calls that copy or replace the full register frame.
pub const FULL_FRAME: &[(u32, Handler)] = &[
    (nr::__NR_clone, clone),
    (nr::__NR_clone3, clone3),
    (nr::__NR_fork, |a| make(a, 0)),
    (nr::__NR_vfork, |a| {
        make(a, u64::from(nr::CLONE_VM | nr::CLONE_VFORK))
    }),
];

impl From<ForkError> for Errno {
    fn from(e: ForkError) -> Errno {
        match e {
            ForkError::Invalid => Errno::EINVAL,
            ForkError::Again => Errno::EAGAIN,
            ForkError::NoMemory => Errno::ENOMEM,
            ForkError::NotPermitted => Errno::EPERM,
            ForkError::Signal => Errno::ERESTARTNOINTR,
            ForkError::TooManyFiles => Errno::EMFILE,
            ForkError::Fault => Errno::EFAULT,
        }
    }
}

fn clone(a: &mut Args) -> Result<u64, Errno> {
    let flags = a.get(0);
    let args = CloneArgs {
        flags: flags & 0xffff_ff00,
        exit_signal: flags as u8,
        stack: a.get(1),
        parent_tid: a.get(2),
        child_tid: a.get(3),
        tls: a.get(4),
    };
    // The two would store different things in one place.
    if flags & u64::from(nr::CLONE_PIDFD) != 0 && flags & u64::from(nr::CLONE_PARENT_SETTID) != 0 {
        return Err(Errno::EINVAL);
    }
    clone_with(&args, a, a.get(2))
}

/// Makes a thread or a process; with CLONE_PIDFD stores a descriptor of it at `pidfd`.
fn clone_with(args: &CloneArgs, frame: &UserFrame, pidfd: u64) -> Result<u64, Errno> {
    if args.flags & u64::from(nr::CLONE_PIDFD) == 0 {
        return Ok(fork::clone(args, frame, None)?.into());
    }
    let mut opening = pidfd::OpenedByClone::new(pidfd);
    Ok(fork::clone(args, frame, Some(&mut opening))?.into())
}

/// The words of `struct clone_args`.
mod word {
    pub const FLAGS: usize = 0;
    pub const PIDFD: usize = 1;
    pub const CHILD_TID: usize = 2;
    pub const PARENT_TID: usize = 3;
    pub const EXIT_SIGNAL: usize = 4;
    pub const STACK: usize = 5;
    pub const STACK_SIZE: usize = 6;
    pub const TLS: usize = 7;
    pub const SET_TID: usize = 8;
    pub const SET_TID_SIZE: usize = 9;
    pub const CGROUP: usize = 10;
    /// Words of the structure.
    pub const COUNT: usize = 11;
}

/// clone3(2). There are no cgroups, so no descriptor is one of a cgroup; and no caller may choose the child's tid, which needs a
/// privilege in Linux, too.
fn clone3(a: &mut Args) -> Result<u64, Errno> {
    let first = u64::from(nr::CLONE_ARGS_SIZE_VER0);
    let w: [u64; word::COUNT] = versioned::read(a.get(0), a.get(1), first)?;
    let (flags, exit_signal) = (w[word::FLAGS], w[word::EXIT_SIGNAL]);
    // As in Linux: one for each nested namespace, up to 32.
    let tids = w[word::SET_TID_SIZE];
    if tids > 32 || (tids == 0) != (w[word::SET_TID] == 0) || exit_signal > u64::from(sig::MAX) {
        return Err(Errno::EINVAL);
    }
    if flags & nr::CLONE_INTO_CGROUP != 0 && w[word::CGROUP] > i32::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    check_flags(flags, exit_signal)?;
    let (stack, stack_size) = (w[word::STACK], w[word::STACK_SIZE]);
    if (stack == 0) != (stack_size == 0) {
        return Err(Errno::EINVAL);
    }
    let stack_end = stack.checked_add(stack_size);
    let stack_end = stack_end
        .filter(|&end| end <= hal::USER_END)
        .ok_or(Errno::EINVAL)?;
    match tids {
        0 => {}
        1 => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    }
    if flags & nr::CLONE_INTO_CGROUP != 0 {
        return Err(Errno::EBADF);
    }
    let args = CloneArgs {
        flags,
        exit_signal: exit_signal as u8,
        stack: stack_end,
        parent_tid: w[word::PARENT_TID],
        child_tid: w[word::CHILD_TID],
        tls: w[word::TLS],
    };
    let twice = u64::from(nr::CLONE_PIDFD | nr::CLONE_PARENT_SETTID);
    if flags & twice == twice && w[word::PIDFD] == w[word::PARENT_TID] {
        return Err(Errno::EINVAL);
    }
    clone_with(&args, a, w[word::PIDFD])
}

/// Checks what clone3(2) refuses and clone(2) does not.
///
/// # Errors
/// EINVAL.
fn check_flags(flags: u64, exit_signal: u64) -> Result<(), Errno> {
    let any = |bits: u32| flags & u64::from(bits) != 0;
    let known = u64::from(u32::MAX) | nr::CLONE_CLEAR_SIGHAND | nr::CLONE_INTO_CGROUP;
    // The byte of the exit signal has a field of its own.
    let misplaced = nr::CLONE_DETACHED | nr::CSIGNAL & !nr::CLONE_NEWTIME;
    let bad = flags & !known != 0
        || any(misplaced)
        || any(nr::CLONE_SIGHAND) && flags & nr::CLONE_CLEAR_SIGHAND != 0
        || any(nr::CLONE_THREAD | nr::CLONE_PARENT) && exit_signal != 0;
    if bad { Err(Errno::EINVAL) } else { Ok(()) }
}

fn make(a: &mut Args, flags: u64) -> Result<u64, Errno> {
    let args = CloneArgs {
        flags,
        exit_signal: sig::CHLD,
        ..CloneArgs::default()
    };
    Ok(fork::clone(&args, a, None)?.into())
}

/// unshare(2) of the table of descriptors (CLONE_FILES), of root, working directory and umask (CLONE_FS), and of what semaphores undo. There
/// are no namespaces; their flags fail with EINVAL, as on a Linux that is built without them.
fn unshare(a: &mut Args) -> Result<u64, Errno> {
    const ALONE: u64 = (nr::CLONE_THREAD | nr::CLONE_SIGHAND | nr::CLONE_VM) as u64;
    const FILES: u64 = nr::CLONE_FILES as u64;
    const FS: u64 = nr::CLONE_FS as u64;
    const ADJUSTMENTS: u64 = nr::CLONE_SYSVSEM as u64;
    let flags = a.get(0);
    if flags & !(ALONE | FILES | FS | ADJUSTMENTS) != 0 {
        return Err(Errno::EINVAL);
    }
    let me = current();
    let p = me.process();
    // Threads of a process have tables and directories in common here, so none can have its own.
    if flags & (ALONE | FILES | FS) != 0 && p.thread_count() > 1 {
        return Err(Errno::EINVAL);
    }
    if flags & FILES != 0 {
        own_files()?;
    }
    if flags & ADJUSTMENTS != 0 {
        sem_undo::leave();
    }
    if flags & FS != 0 {
        forget_files();
        if let Some(fs) = p.fs() {
            drop(p.set_fs(Some(fs.fork())));
        }
    }
    Ok(0)
}

impl From<WaitError> for Errno {
    fn from(e: WaitError) -> Errno {
        match e {
            WaitError::NoChild => Errno::ECHILD,
            WaitError::Signal => Errno::ERESTARTSYS,
        }
    }
}

fn status_word(event: &Event) -> u32 {
    match *event {
        Event::Exited(status) => status,
        Event::Stopped(signo) => u32::from(signo) << 8 | 0x7f,
        Event::Continued => 0xffff,
    }
}

/// Flags of wait4 and waitid that select children: `__WNOTHREAD`, those that the calling thread has made; `__WCLONE`
/// and `__WALL`, those whose exit signal is not SIGCHLD, or all.
const KINDS: u32 = nr::__WNOTHREAD | nr::__WALL | nr::__WCLONE;

fn kind_of(bits: u32) -> Kind {
    match bits {
        b if b & nr::__WALL != 0 => Kind::All,
        b if b & nr::__WCLONE != 0 => Kind::Clones,
        _ => Kind::Usual,
    }
}

/// wait4(2). A child that has been waited for is gone also if its status or usage cannot be written, as on Linux.
fn wait4(a: &mut Args) -> Result<u64, Errno> {
    let bits = a.uint(2);
    if bits & !(nr::WNOHANG | nr::WUNTRACED | nr::WCONTINUED | KINDS) != 0 {
        return Err(Errno::EINVAL);
    }
    let children = match a.int(0) {
        i32::MIN => return Err(Errno::ESRCH),
        -1 => Children::Any,
        0 => Children::Group(current().process().pgid()),
        pid @ 1.. => Children::Pid(pid as u32),
        pgid => Children::Group(pgid.unsigned_abs()),
    };
    let options = Options {
        exited: true,
        stopped: bits & nr::WUNTRACED != 0,
        continued: bits & nr::WCONTINUED != 0,
        keep: false,
        no_hang: bits & nr::WNOHANG != 0,
        own: bits & nr::__WNOTHREAD != 0,
        kind: kind_of(bits),
    };
    let Some(report) = wait4::wait(children, options)? else {
        return Ok(0);
    };
    UserPtr::<u32>::new(a.get(1)).write_if_some(&status_word(&report.event))?;
    UserPtr::new(a.get(3)).write_if_some(&rusage(&report.times))?;
    Ok(report.pid.into())
}

/// waitid(2), with Linux's fifth argument, the usage. Without a child to report (WNOHANG), the siginfo is all zeros. EFAULT as
/// for wait4(2); EAGAIN for a process that was opened with O_NONBLOCK.
fn waitid(a: &mut Args) -> Result<u64, Errno> {
    let bits = a.uint(3);
    let has = |b: u32| bits & b != 0;
    let known = nr::WNOHANG | nr::WNOWAIT | nr::WEXITED | nr::WSTOPPED | nr::WCONTINUED | KINDS;
    if bits & !known != 0 || !has(nr::WEXITED | nr::WSTOPPED | nr::WCONTINUED) {
        return Err(Errno::EINVAL);
    }
    let id = a.int(1);
    // A process that is open: its pid stays its own meanwhile.
    let mut opened = None;
    let children = match a.uint(0) {
        nr::P_ALL => Children::Any,
        nr::P_PID if id > 0 => Children::Pid(id as u32),
        nr::P_PGID if id > 0 => Children::Group(id as u32),
        nr::P_PGID if id == 0 => Children::Group(current().process().pgid()),
        nr::P_PIDFD if id >= 0 => {
            let file = opened.insert(real_file(id)?);
            Children::Pid(pidfd::process_of(file)?.pid())
        }
        _ => return Err(Errno::EINVAL),
    };
    let at_once = opened.as_ref().is_some_and(|file| file.nonblocking());
    let options = Options {
        exited: has(nr::WEXITED),
        stopped: has(nr::WSTOPPED),
        continued: has(nr::WCONTINUED),
        keep: has(nr::WNOWAIT),
        no_hang: has(nr::WNOHANG) || at_once,
        own: bits & nr::__WNOTHREAD != 0,
        kind: kind_of(bits),
    };
    let mut raw = [0u64; 16];
    let report = wait4::wait(children, options)?;
    if report.is_none() && !has(nr::WNOHANG) {
        return Err(Errno::EAGAIN);
    }
    if let Some(r) = &report {
        raw = exit::child_report(r).to_raw();
        UserPtr::new(a.get(4)).write_if_some(&rusage(&r.times))?;
    }
    UserPtr::new(a.get(2)).write_if_some(&raw)?;
    Ok(0)
}

impl From<LimitError> for Errno {
    fn from(e: LimitError) -> Errno {
        match e {
            LimitError::Inverted => Errno::EINVAL,
            LimitError::NotPermitted => Errno::EPERM,
        }
    }
}

fn resource(n: u32) -> Result<Resource, Errno> {
    Resource::from_raw(n).ok_or(Errno::EINVAL)
}

fn read_limit(addr: u64) -> Result<Limit, Errno> {
    let [soft, hard] = UserPtr::new(addr).read()?;
    Ok(Limit { soft, hard })
}

fn prlimit64(a: &mut Args) -> Result<u64, Errno> {
    let r = resource(a.uint(1))?;
    let me = current();
    let cred = me.cred();
    let p = match a.int(0) {
        0 => me.process().clone(),
        tid if tid as u32 == me.tid() => me.process().clone(),
        tid => {
            let named = super::signal::named(tid as u32)?;
            if !named.cred.all_are(cred.uid, cred.gid) {
                require(&cred, Cap::SysResource)?;
            }
            named.process
        }
    };
    let old = match a.get(2) {
        0 => p.limit(r),
        at => p.set_limit(r, read_limit(at)?, cred.capable(Cap::SysResource))?,
    };
    UserPtr::new(a.get(3)).write_if_some(&[old.soft, old.hard])?;
    Ok(0)
}

fn getrlimit(a: &mut Args) -> Result<u64, Errno> {
    let l = current().process().limit(resource(a.uint(0))?);
    UserPtr::new(a.get(1)).write(&[l.soft, l.hard])?;
    Ok(0)
}

fn setrlimit(a: &mut Args) -> Result<u64, Errno> {
    let r = resource(a.uint(0))?;
    let me = current();
    let new = read_limit(a.get(1))?;
    me.process()
        .set_limit(r, new, me.cred().capable(Cap::SysResource))?;
    Ok(0)
}

fn arch_prctl(a: &mut Args) -> Result<u64, Errno> {
    const SET_GS: u32 = 0x1001;
    const SET_FS: u32 = 0x1002;
    const GET_FS: u32 = 0x1003;
    const GET_GS: u32 = 0x1004;
    let addr = a.get(1);
    let ok = match a.uint(0) {
        SET_FS => hal::set_user_tls(addr),
        SET_GS => hal::tls::set_user_gs(addr),
        GET_FS => {
            UserPtr::<u64>::new(addr).write(&hal::tls::user_bases().fs)?;
            true
        }
        GET_GS => {
            UserPtr::<u64>::new(addr).write(&hal::tls::user_bases().gs)?;
            true
        }
        _ => return Err(Errno::EINVAL),
    };
    if ok { Ok(0) } else { Err(Errno::EPERM) }
}

fn personality(a: &mut Args) -> Result<u64, Errno> {
    const ASK: u32 = 0xffff_ffff;
    let me = current();
    let new = a.uint(0);
    Ok(me.process().personality((new != ASK).then_some(new)).into())
}

/// Bytes of a field of `struct utsname`.
const FIELD: usize = uts::NAME_MAX + 1;

fn uname(a: &mut Args) -> Result<u64, Errno> {
    let (mut host, mut domain) = ([0; uts::NAME_MAX], [0; uts::NAME_MAX]);
    let host_len = uts::Which::Host.get(&mut host);
    let domain_len = uts::Which::Domain.get(&mut domain);
    // Programs take the first field for the interface that they can expect.
    let names: [&[u8]; 6] = [
        b"Linux",
        &host[..host_len],
        uts::RELEASE,
        uts::VERSION,
        b"x86_64",
        &domain[..domain_len],
    ];
    for (i, field) in names.iter().enumerate() {
        let mut bytes = [0u8; FIELD];
        let n = field.len().min(FIELD - 1);
        bytes[..n].copy_from_slice(&field[..n]);
        UserPtr::<[u8; FIELD]>::new(a.get(0)).add(i).write(&bytes)?;
    }
    Ok(0)
}

/// sethostname(2) and setdomainname(2).
fn set_name(a: &mut Args, which: uts::Which) -> Result<u64, Errno> {
    require(&current().cred(), Cap::SysAdmin)?;
    let len = a.size(1);
    if len > FIELD - 1 {
        return Err(Errno::EINVAL);
    }
    let mut name = [0u8; FIELD - 1];
    hal::user::copy_in(&mut name[..len], a.get(0))?;
    which.set(&name[..len]);
    Ok(0)
}

fn sysinfo(a: &mut Args) -> Result<u64, Errno> {
    let m = mem::memory();
    let loads = sched::load_average();
    let mut words = [0u64; 14];
    words[0] = time::monotonic_ns() / time::SECOND;
    for (word, l) in words[1..4].iter_mut().zip(loads) {
        // 16 bits of fraction.
        *word = (l << 16) / 1000;
    }
    words[4] = m.total;
    words[5] = m.free;
    words[6] = m.shared;
    words[7] = m.buffers;
    // No swap, no high memory; 64-bit processes in one unit of a byte.
    words[10] = ids::live().min(u64::from(u16::MAX));
    words[13] = 1;
    UserPtr::<[u64; 14]>::new(a.get(0)).write(&words)?;
    Ok(0)
}

fn getrandom(a: &mut Args) -> Result<u64, Errno> {
    const KNOWN: u32 = 7;
    if a.uint(2) & !KNOWN != 0 || a.uint(2) & 6 == 6 {
        return Err(Errno::EINVAL);
    }
    let len = a.size(1).min(i32::MAX as usize);
    let mut done = 0;
    while done < len {
        let mut chunk = [0u8; 128];
        let n = chunk.len().min(len - done);
        drivers::random::fill(&mut chunk[..n]);
        if let Err(e) = hal::user::copy_out(a.get(0).wrapping_add(done as u64), &chunk[..n]) {
            return if done > 0 {
                Ok(done as u64)
            } else {
                Err(e.into())
            };
        }
        done += n;
        // As on Linux, a signal cuts nothing short that is not longer than a page.
        if done.is_multiple_of(4096) && done < len && current().signal_pending() {
            break;
        }
    }
    Ok(done as u64)
}

fn reboot(a: &mut Args) -> Result<u64, Errno> {
    const MAGIC: u32 = 0xfee1_dead;
    const MAGICS: [u32; 4] = [0x2812_1969, 0x0512_1996, 0x1604_1998, 0x2011_2000];
    const RESTART: u32 = 0x0123_4567;
    const HALT: u32 = 0xcdef_0123;
    const POWER_OFF: u32 = 0x4321_fedc;
    const CAD_ON: u32 = 0x89ab_cdef;
    const CAD_OFF: u32 = 0;
    require(&current().cred(), Cap::SysBoot)?;
    if a.uint(0) != MAGIC || !MAGICS.contains(&a.uint(1)) {
        return Err(Errno::EINVAL);
    }
    match a.uint(2) {
        // Files live in memory alone, so nothing is written out first.
        RESTART => hal::power::reboot(),
        HALT | POWER_OFF => hal::power::off(),
        CAD_ON | CAD_OFF => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}
