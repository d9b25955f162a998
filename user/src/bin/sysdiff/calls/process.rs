//! Processes and threads.

use super::{Call, creds, files};
use crate::actor::{self, Act, say};
use crate::board::{ACTORS, board, reach, state};
use crate::normal;
use crate::snapshot;
use std::ffi::{CStr, CString};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use user::sys;

/// See [`super::FAMILIES`].
pub const CALLS: &[Call] = &[
    (9, fork_with_flags),
    (4, thread),
    (3, vfork),
    (3, vfork_execute),
    (3, execute),
    (6, end),
    (14, wait),
    (10, wait_id),
    (4, parent),
    (5, set_group),
    (4, group),
    (2, session),
    (6, control),
    (2, split),
    (2, limit),
];

/// An actor that a call is aimed at.
#[derive(Clone, Copy)]
pub struct Target(usize);

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "P{}", self.0)
    }
}

/// A pid that no process has.
const NOBODY: i32 = 4_194_000;

/// A present or former actor; more often a living one.
pub fn somebody(act: &mut Act) -> Target {
    let known = (board().next.load(Ordering::SeqCst) as usize).clamp(1, ACTORS);
    let start = act.dice.below(known as u64) as usize;
    if act.dice.chance(15) {
        return Target(start);
    }
    let mut ids = (0..known).map(|n| (start + n) % known);
    Target(
        ids.find(|&id| board().cells[id].is(state::ALIVE))
            .unwrap_or(start),
    )
}

/// The pid of `target`; [`NOBODY`] if it does not exist any more, since the kernel may have reused it.
pub fn pid(target: Target) -> i32 {
    let cell = &board().cells[target.0];
    if cell.is(state::GONE) || cell.is(state::NONE) {
        NOBODY
    } else {
        cell.pid.load(Ordering::SeqCst)
    }
}

/// The tid of `target`, as [`pid`].
pub fn tid(target: Target) -> i32 {
    let cell = &board().cells[target.0];
    let ended_thread = cell.is(state::ENDED) && !cell.leads();
    if ended_thread || cell.is(state::GONE) || cell.is(state::NONE) {
        NOBODY
    } else {
        cell.tid.load(Ordering::SeqCst)
    }
}

/// Reserves a cell for a new actor.
fn reserve() -> Option<usize> {
    let id = board().next.load(Ordering::SeqCst) as usize;
    let cell = board().cells.get(id)?;
    board().next.store(id as u32 + 1, Ordering::SeqCst);
    cell.state.store(state::STARTING, Ordering::SeqCst);
    Some(id)
}

/// Records the result of the attempt to create actor `id`.
fn made(act: &mut Act, id: usize, result: Result<u64, i32>) {
    let cell = &board().cells[id];
    match result {
        Ok(pid) => {
            cell.pid.store(pid as i32, Ordering::SeqCst);
            cell.tid.store(pid as i32, Ordering::SeqCst);
            say!(act, " = {}", normal::pid(pid as i32));
        }
        Err(_) => {
            cell.state.store(state::GONE, Ordering::SeqCst);
            let _ = act.result(result);
        }
    }
}

fn clone(act: &mut Act, flags: u64) {
    let Some(id) = reserve() else {
        say!(act, " not done");
        return;
    };
    let result = sys::call(libc::SYS_clone, &[flags, 0, 0, 0, 0]);
    if result == Ok(0) {
        actor::live(id, 0);
    }
    made(act, id, result);
}

/// Creates a process by fork(2).
pub fn fork(act: &mut Act) {
    say!(act, "fork()");
    clone(act, libc::SIGCHLD as u64);
}

fn fork_with_flags(act: &mut Act) {
    if act.dice.chance(60) {
        return fork(act);
    }
    let more = act.dice.bits(&[
        (libc::CLONE_FILES, 40),
        (libc::CLONE_FS, 40),
        (libc::CLONE_PARENT, 10),
    ]);
    let ends = act.dice.of_these(&[
        libc::SIGCHLD,
        libc::SIGCHLD,
        0,
        libc::SIGUSR1,
        libc::SIGWINCH,
    ]);
    say!(act, "clone({:#x})", more | ends);
    clone(act, (more | ends) as u64);
}

/// Creates a thread.
pub fn thread(act: &mut Act) {
    say!(act, "thread()");
    let Some(id) = reserve() else {
        say!(act, " not done");
        return;
    };
    let spawned = std::thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(move || actor::live(id, 0));
    match spawned {
        Ok(_) => {
            // The thread reports its tid itself; the referee waits for that.
            say!(act, " = P{id}");
        }
        Err(error) => {
            board().cells[id].state.store(state::GONE, Ordering::SeqCst);
            say!(act, " = {}", actor::Name(error.raw_os_error().unwrap_or(0)));
        }
    }
}

fn vfork(act: &mut Act) {
    say!(act, "vfork() and exit");
    if has_other_threads(act) {
        // A thread that waits for any child might reap this one, or not.
        say!(act, " not done");
        return;
    }
    // A short-lived process is no actor, so it is reaped at once.
    act.cell()
        .reaches
        .store(reach::SLEEPS_INSIDE, Ordering::SeqCst);
    let result = sys::vfork_exit();
    if let Ok(pid) = result {
        let _ = sys::wait(pid as i64, 0);
    }
    act.cell().reaches.store(reach::OTHERS, Ordering::SeqCst);
    let _ = act.result(result.map(|_| 1));
}

/// This program's file.
pub fn own_path() -> &'static CStr {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(|| {
        let first = std::env::args().next().unwrap_or_default();
        let path = if first.starts_with('/') {
            first
        } else {
            "/usr/bin/sysdiff".into()
        };
        CString::new(path).unwrap_or_default()
    })
}

/// The actors' indexes as text.
const NUMBERS: [&CStr; ACTORS] = [
    c"0", c"1", c"2", c"3", c"4", c"5", c"6", c"7", c"8", c"9", c"10", c"11",
];

fn arguments(id: usize) -> [*const i8; 4] {
    [
        own_path().as_ptr(),
        c"--actor".as_ptr(),
        NUMBERS[id].as_ptr(),
        std::ptr::null(),
    ]
}

fn vfork_execute(act: &mut Act) {
    say!(act, "vfork() and execve");
    let Some(id) = reserve() else {
        say!(act, " not done");
        return;
    };
    let result = sys::vfork_exec(own_path(), &arguments(id), &[std::ptr::null()]);
    made(act, id, result);
}

fn execute(act: &mut Act) {
    if !act.cell().leads() {
        // The thread's tid after execve is a known difference.
        say!(act, "execve() of a thread, not done");
        return;
    }
    let (argv, envp) = (arguments(act.id), [std::ptr::null::<i8>()]);
    say!(act, "execve()");
    let args = [
        own_path().as_ptr() as u64,
        argv.as_ptr() as u64,
        envp.as_ptr() as u64,
    ];
    let _ = act.call(libc::SYS_execve, &args);
}

/// After execve: continues as the actor and answers for the call.
pub fn executed(id: usize) -> ! {
    let mut act = Act::new(crate::dice::Dice::of(0, 0), id);
    let cell = &board().cells[id];
    let go = cell.go.load(Ordering::SeqCst);
    if cell.is(state::ALIVE) {
        let me = cell.pid.load(Ordering::SeqCst);
        for (other, cell) in board().cells.iter().enumerate() {
            if other != id && cell.is(state::ALIVE) && cell.pid.load(Ordering::SeqCst) == me {
                cell.state.store(state::ENDED, Ordering::SeqCst);
            }
        }
        say!(act, "execve() = ok");
        snapshot::rest(&mut act);
        creds::told(&mut act);
        act.leave_answer();
    }
    actor::live(id, go)
}

fn end(act: &mut Act) {
    let status = act.dice.of_these(&[0u64, 0, 1, 7, 255, 256]);
    // The first actor does not exit, so that actors remain.
    if act.id == 0 {
        return parent(act);
    }
    let (name, nr) = if act.cell().leads() || act.dice.chance(20) {
        ("exit_group", libc::SYS_exit_group)
    } else {
        ("exit", libc::SYS_exit)
    };
    say!(act, "{name}({status})");
    act.leave_answer();
    let _ = act.call(nr, &[status]);
}

/// The first of several children that have ended; none if there are not several.
fn the_first_of_several() -> Option<i32> {
    let ended = |pid: &i32| {
        let mut info = [0i32; 32];
        let how = libc::WNOHANG | libc::WNOWAIT | libc::WEXITED | libc::__WALL;
        let at = info.as_mut_ptr() as u64;
        let args = [u64::from(libc::P_PID), *pid as u64, at, how as u64, 0];
        sys::call(libc::SYS_waitid, &args).is_ok() && std::hint::black_box(info)[0] != 0
    };
    let cells = board()
        .cells
        .iter()
        .filter(|cell| cell.is(state::ENDED) && cell.leads());
    let mut children = cells
        .map(|cell| cell.pid.load(Ordering::SeqCst))
        .filter(ended);
    let first = children.next();
    children.next().and(first)
}

fn wait(act: &mut Act) {
    let target = somebody(act);
    let (name, pid) = match act.dice.below(10) {
        0..5 => ("any", -1),
        5 => ("group", 0),
        6 => ("-", -pid(target)),
        _ => ("", pid(target)),
    };
    let options = act.dice.bits(&[
        (libc::WNOHANG, 60),
        (libc::WUNTRACED, 10),
        (libc::WCONTINUED, 5),
        (libc::__WALL, 15),
        (libc::__WCLONE, 8),
        (libc::__WNOTHREAD, 6),
    ]);
    let options = options | if act.is_alone() { libc::WNOHANG } else { 0 };
    // POSIX leaves open which of several zombies is reaped first.
    let pid = if pid <= 0 {
        the_first_of_several().unwrap_or(pid)
    } else {
        pid
    };
    say!(act, "wait4({name}");
    if matches!(name, "-" | "") {
        say!(act, "{target}");
    }
    say!(act, ", {options:#x})");
    let mut status = 0i32;
    act.leave_answer();
    match sys::call(
        libc::SYS_wait4,
        &[pid as u64, &raw mut status as u64, options as u64, 0],
    ) {
        Ok(0) => say!(act, " = 0"),
        Ok(pid) => say!(
            act,
            " = {} status {:#x}",
            normal::pid(pid as i32),
            std::hint::black_box(status)
        ),
        Err(errno) => say!(act, " = {}", actor::Name(errno)),
    }
}

fn wait_id(act: &mut Act) {
    let target = somebody(act);
    let (name, kind, id) = match act.dice.below(8) {
        0..4 => ("all", libc::P_ALL, 0),
        4 => ("group", libc::P_PGID, pid(target)),
        _ => ("pid", libc::P_PID, pid(target)),
    };
    let options = act.dice.bits(&[
        (libc::WNOHANG, 60),
        (libc::WEXITED, 90),
        (libc::WNOWAIT, 40),
        (libc::WSTOPPED, 10),
        (libc::__WALL, 10),
    ]);
    let options = options | if act.is_alone() { libc::WNOHANG } else { 0 };
    let (kind, id) = match the_first_of_several() {
        Some(pid) if kind != libc::P_PID => (libc::P_PID, pid),
        _ => (kind, id),
    };
    say!(act, "waitid({name} {target}, {options:#x})");
    let mut info = [0i32; 32];
    let args = [
        u64::from(kind),
        id as u64,
        info.as_mut_ptr() as u64,
        options as u64,
        0,
    ];
    if act.call(libc::SYS_waitid, &args).is_ok() {
        let info = std::hint::black_box(info);
        say!(
            act,
            " {} code {} of {} uid {} status {}",
            info[0],
            info[2],
            normal::pid(info[4]),
            info[5],
            info[6]
        );
    }
}

fn parent(act: &mut Act) {
    let parent = sys::call(libc::SYS_getppid, &[]).unwrap_or(0);
    let me = sys::call(libc::SYS_getpid, &[]).unwrap_or(0);
    say!(
        act,
        "getppid() = {}, getpid() = {}",
        normal::pid(parent as i32),
        normal::pid(me as i32)
    );
}

fn set_group(act: &mut Act) {
    let (who, group) = (somebody(act), somebody(act));
    let own = act.dice.chance(50);
    say!(
        act,
        "setpgid({who}, {})",
        if own { Target(who.0) } else { group }
    );
    let to = if own { 0 } else { pid(group) };
    let _ = act.call(libc::SYS_setpgid, &[pid(who) as u64, to as u64]);
}

fn group(act: &mut Act) {
    let who = somebody(act);
    let (name, nr) = act
        .dice
        .of_these(&[("getpgid", libc::SYS_getpgid), ("getsid", libc::SYS_getsid)]);
    say!(act, "{name}({who})");
    match sys::call(nr, &[pid(who) as u64]) {
        Ok(pid) => say!(act, " = {}", normal::pid(pid as i32)),
        Err(errno) => say!(act, " = {}", actor::Name(errno)),
    }
}

fn session(act: &mut Act) {
    say!(act, "setsid()");
    let _ = act.quiet(libc::SYS_setsid, &[]);
}

fn control(act: &mut Act) {
    let (name, option, value) = act.dice.of_these(&[
        ("PR_GET_DUMPABLE", libc::PR_GET_DUMPABLE, 0),
        ("PR_SET_DUMPABLE", libc::PR_SET_DUMPABLE, 0),
        ("PR_SET_DUMPABLE", libc::PR_SET_DUMPABLE, 1),
        ("PR_SET_DUMPABLE", libc::PR_SET_DUMPABLE, 2),
        ("PR_SET_PDEATHSIG", libc::PR_SET_PDEATHSIG, libc::SIGUSR2),
        ("PR_SET_PDEATHSIG", libc::PR_SET_PDEATHSIG, 99),
        ("PR_GET_KEEPCAPS", libc::PR_GET_KEEPCAPS, 0),
        ("PR_SET_KEEPCAPS", libc::PR_SET_KEEPCAPS, 1),
        ("PR_SET_NO_NEW_PRIVS", libc::PR_SET_NO_NEW_PRIVS, 1),
        ("PR_GET_NO_NEW_PRIVS", libc::PR_GET_NO_NEW_PRIVS, 0),
        ("PR_SET_CHILD_SUBREAPER", libc::PR_SET_CHILD_SUBREAPER, 1),
    ]);
    say!(act, "prctl({name}, {value})");
    let _ = act.call(libc::SYS_prctl, &[option as u64, value as u64, 0, 0, 0]);
}

/// Whether the process has another living thread.
fn has_other_threads(act: &Act) -> bool {
    let cells = || board().cells.iter().filter(|cell| cell.is(state::ALIVE));
    let me = act.cell().pid.load(Ordering::SeqCst);
    cells()
        .filter(|cell| cell.pid.load(Ordering::SeqCst) == me)
        .count()
        > 1
}

fn split(act: &mut Act) {
    if has_other_threads(act) {
        // That one thread of a process can unshare its descriptor table or fs context is a known difference.
        return parent(act);
    }
    let flags = act.dice.of_these(&[
        libc::CLONE_FILES,
        libc::CLONE_FS,
        libc::CLONE_FILES | libc::CLONE_FS,
    ]);
    say!(act, "unshare({flags:#x})");
    let _ = act.call(libc::SYS_unshare, &[flags as u64]);
}

fn limit(act: &mut Act) {
    let fd = files::any(act);
    say!(act, "dup2({fd}, 1 << 30)");
    let _ = act.call(libc::SYS_dup2, &[fd as u64, 1 << 30]);
}
