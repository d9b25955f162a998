//! Calls about signals, as programs make them: sets, actions, waits, sends; and programs that have a stack for handlers.
#![allow(dead_code, reason = "no test uses all of it")]

use cred::{Cred, SetIds};
use hal::UserFrame;
use hal::frame::VECTOR_SYSCALL;
use proc::exec::{self, ExecFailed};
use proc::fork::{self, CloneArgs, ForkError};
use proc::group::{GroupError, setpgid, setsid};
use proc::image::{self, Loaded, Places};
use proc::signal::{self, Action, SendError, SigFields, SigInfo, SigSet, code, sig};
use proc::wait4::{self, Children, Event, Options, WaitError};
use proc::{CredentialsExt, SignalExt, UserThreadExt, ids, with_fs};
use task::current::current;
use task::park::{self, Deadline, Interruptible, ParkError, Step};
use vfs::file::o;
use vfs::open;
use vfs::setattr::NewMode;
use vm::space::MapArgs;
use vm::{MapProt, Space};

use crate::support::{
    THREAD, clone, clone_with, exited, fork, nap, on, thread_entry, user_mode, wait,
};

/// SIGUSR1.
pub const USR1: u8 = 10;
/// SIGUSR2.
pub const USR2: u8 = 12;
/// SIGTERM.
pub const TERM: u8 = 15;
/// A real-time signal.
pub const RT: u8 = 40;

/// The `si_code` of sigqueue(3).
pub const QUEUE: i32 = -1;
/// The end of the stack of a program that [`exec`] begins.
pub const STACK_TOP: u64 = 0x7000_0000;
/// Bytes of that stack.
pub const STACK_BYTES: u64 = 0x1_0000;
/// The address of a handler. No instruction is there: the test looks where the registers point.
pub const HANDLER: u64 = 0x50_0000;
/// Where a handler returns to.
pub const RESTORER: u64 = 0x50_1000;
/// The flag of an action that names the restorer.
const SA_RESTORER: u64 = 0x0400_0000;
/// Longest time, in simulated milliseconds, for which [`until`] waits.
const PATIENCE: u32 = 20_000;

/// Runs `body` as a process, a child of init, on a machine of two CPUs.
pub fn as_child(body: impl Fn() + Send + Sync + 'static) {
    on(2, move || run_child(body));
}

/// As [`as_child`], in a session of its own, so that the groups of its children are not orphaned.
pub fn as_shell(body: impl Fn() + Send + Sync + 'static) {
    as_child(move || {
        setsid().expect("the leader of no group");
        body();
    });
}

/// A child in a process group of its own. As a shell does, both processes see to that.
pub fn job(body: impl Fn() -> u8 + Send + Sync + 'static) -> u32 {
    let pid = fork(move || {
        let own = current().process().pid();
        setpgid(own, own).expect("no session leader");
        body()
    });
    let moved = setpgid(pid, pid);
    assert!(matches!(moved, Ok(()) | Err(GroupError::Executed)));
    pid
}

/// Takes signals and does nothing else, until it is killed.
pub fn idle() -> ! {
    loop {
        pause();
    }
}

/// Runs `body` as a child of the caller, which waits for it.
pub fn run_child(body: impl Fn() + Send + Sync + 'static) {
    let pid = fork(move || {
        body();
        0
    });
    assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
}

/// Waits until `happened`.
///
/// # Panics
/// If it takes too long.
pub fn until(happened: impl Fn() -> bool) {
    let mut left = PATIENCE;
    while !happened() {
        if current().kill_pending() {
            user_mode();
        }
        assert!(left > 0, "it does not happen");
        left -= 1;
        nap(1);
    }
}

/// A process that takes signals and does nothing else, until it is killed.
pub fn idler() -> u32 {
    fork(|| idle())
}

/// pause(2), and the return to user mode.
pub fn pause() {
    let _ = park::sleep_until(Deadline::Never, Interruptible::Yes);
    user_mode();
}

/// clone(2): the child runs `body` and exits with the status that it returns.
pub fn clone_as(
    args: CloneArgs,
    body: impl Fn() -> u8 + Send + Sync + 'static,
) -> Result<u32, ForkError> {
    clone_with(&args, STACK_TOP, body)
}

/// A child whose parent gets `signal` when it ends, with flags of clone(2).
pub fn fork_with(flags: u32, signal: u8, body: impl Fn() -> u8 + Send + Sync + 'static) -> u32 {
    let args = CloneArgs {
        flags: flags.into(),
        exit_signal: signal,
        ..CloneArgs::default()
    };
    clone_as(args, body).expect("memory for a process")
}

/// fork(2) by a process that may be killed meanwhile, and then makes no child.
pub fn try_fork(body: impl Fn() -> u8 + Send + Sync + 'static) {
    let made = clone(0, body);
    assert!(made.is_ok() || current().signal_pending(), "{made:?}");
}

/// pthread_create(3): a thread that runs `body` and ends. Returns its tid.
pub fn thread(body: impl Fn() + Send + Sync + 'static) -> u32 {
    try_thread(body).expect("memory for a thread")
}

/// As [`thread`], in a process that may be ending.
pub fn try_thread(body: impl Fn() + Send + Sync + 'static) -> Result<u32, ForkError> {
    let args = CloneArgs {
        flags: THREAD,
        ..CloneArgs::default()
    };
    let at = thread_entry(move || {
        body();
        0
    });
    loop {
        match fork::clone(&args, &UserFrame::new_user(at, STACK_TOP), None) {
            // The call is restarted, as in Linux.
            Err(ForkError::Signal) => user_mode(),
            result => return result,
        }
    }
}

/// Waits until the caller is the only thread of its process.
pub fn join_all() {
    until(|| current().process().thread_count() == 1);
}

/// Waits until the thread `tid` sleeps.
pub fn until_asleep(tid: u32) {
    let sleeps = |state: u8| state == b'S' || state == b'D' || state == b'T';
    until(|| ids::find_thread(tid).is_some_and(|t| sleeps(t.state_letter())));
}

/// The caller's signal mask.
pub fn mask() -> SigSet {
    current().blocked()
}

/// sigprocmask(2) with SIG_SETMASK.
pub fn set_mask(set: SigSet) {
    current().set_blocked(set);
}

/// sigprocmask(2) with SIG_BLOCK.
pub fn block(signals: &[u8]) {
    set_mask(SigSet(mask().0 | SigSet::of(signals).0));
}

/// sigprocmask(2) with SIG_UNBLOCK.
pub fn unblock(signals: &[u8]) {
    set_mask(SigSet(mask().0 & !SigSet::of(signals).0));
}

/// sigpending(2).
pub fn pending() -> SigSet {
    SigSet(signal::pending(&current()).0 & mask().0)
}

/// sigaction(2) with this handler and these flags. Returns the old action.
pub fn action(signo: u8, handler: u64, flags: u64) -> Action {
    let new = Action {
        handler,
        flags: flags | SA_RESTORER,
        restorer: RESTORER,
        mask: 0,
    };
    signal::set_action(current().process(), signo, new)
}

/// Gives `signo` its default action.
pub fn default(signo: u8) {
    action(signo, 0, 0);
}

/// Ignores `signo`.
pub fn ignore(signo: u8) {
    action(signo, 1, 0);
}

/// Gives `signo` a handler.
pub fn catch(signo: u8) {
    action(signo, HANDLER, 0);
}

/// What the caller sends with `signo`.
pub fn my_info(signo: u8, code: i32, value: u64) -> SigInfo {
    let fields = SigFields::Sender {
        pid: current().process().pid(),
        uid: current().cred().uid,
        value,
    };
    SigInfo {
        signo,
        code,
        fields,
    }
}

/// kill(2) with a pid above 0.
pub fn kill_pid(pid: u32, signo: u8) -> Result<(), SendError> {
    let (process, cred) = match ids::find_thread(pid) {
        Some(t) => (t.process().clone(), t.cred()),
        None => {
            let p = ids::find_process(pid).ok_or(SendError::NoProcess)?;
            let cred = p.cred();
            (p, cred)
        }
    };
    if !signal::may_signal(&process, &cred, signo) {
        return Err(SendError::NotPermitted);
    }
    if signo == 0 {
        return Ok(());
    }
    signal::queue_process(&process, my_info(signo, code::USER, 0))
}

/// kill(2) with -pgid.
pub fn kill_group(pgid: u32, signo: u8) -> Result<(), SendError> {
    let group = ids::find_group(pgid).ok_or(SendError::NoProcess)?;
    let me = current();
    let sender = (&*me.cred(), me.process().sid());
    let info = my_info(signo.max(1), code::USER, 0);
    signal::signal_group(&group, signo, info, Some(sender))
}

/// tkill(2).
pub fn tkill(tid: u32, signo: u8) -> Result<(), SendError> {
    let t = ids::find_thread(tid).ok_or(SendError::NoProcess)?;
    signal::send_thread(&t, my_info(signo, code::TKILL, 0))
}

/// kill(2) to the caller's own process.
pub fn raise(signo: u8) {
    kill_pid(current().process().pid(), signo).expect("a signal to oneself");
}

/// tkill(2) to the calling thread.
pub fn raise_here(signo: u8) {
    tkill(current().tid(), signo).expect("a signal to oneself");
}

/// sigqueue(3).
pub fn queue(pid: u32, signo: u8, value: u64) -> Result<(), SendError> {
    let p = ids::find_process(pid).ok_or(SendError::NoProcess)?;
    signal::queue_process(&p, my_info(signo, QUEUE, value))
}

/// The value that came with a signal.
pub fn value_of(info: &SigInfo) -> u64 {
    match info.fields {
        SigFields::Sender { value, .. } => value,
        other => panic!("no value: {other:?}"),
    }
}

/// sigtimedwait(2); without `ns`, sigwaitinfo(2).
pub fn sigwait(set: SigSet, ns: Option<u64>) -> Result<SigInfo, ParkError> {
    let me = current();
    if let Some(info) = signal::take(&me, set) {
        return Ok(info);
    }
    let deadline = ns.map_or(Deadline::Never, Deadline::after);
    me.begin_sigwait(set);
    let mut wanted = set;
    let step = |set: &mut SigSet, _: &mut task::wait::Waiter| match signal::take(&current(), *set) {
        Some(info) => Step::Done(info),
        None => Step::Wait,
    };
    let result = park::park(&mut wanted, deadline, Interruptible::Yes, step);
    let result = result.or_else(|e| signal::take(&me, set).ok_or(e));
    me.end_sigwait();
    result.or_else(|e| signal::take(&me, set).ok_or(e))
}

/// As [`sigwait`], for some signals; returns the number of the one that came.
pub fn await_one(signals: &[u8]) -> u8 {
    let info = sigwait(SigSet::of(signals), None);
    info.expect("no other signal comes").signo
}

/// Takes the pending signals of `set` one after the other.
pub fn drain(set: SigSet) -> Vec<SigInfo> {
    core::iter::from_fn(|| sigwait(set, Some(0)).ok()).collect()
}

/// As [`drain`]: the numbers.
pub fn drain_numbers(set: SigSet) -> Vec<u8> {
    drain(set).iter().map(|info| info.signo).collect()
}

/// All signals.
pub const ALL: SigSet = SigSet(!0);

/// A signal came where a program begins, or returns from a call: returns to user mode with these registers.
pub fn return_with(frame: &mut UserFrame) {
    hal::irq::disable();
    signal::before_user_return(frame);
    hal::irq::enable();
}

/// The registers of a program that has made system call 1, whose result is `result`.
pub fn after_call(result: u64) -> UserFrame {
    let mut frame = UserFrame::new_user(program_at() + 2, STACK_TOP);
    frame.vector = VECTOR_SYSCALL;
    frame.error = 1;
    frame.rax = result;
    frame
}

/// An address at which the program of [`after_call`] makes its call.
pub const fn program_at() -> u64 {
    0x40_0100
}

/// The end of a handler: its `ret`, and sigreturn(2).
pub fn handler_returns(frame: &mut UserFrame) {
    frame.rsp += 8;
    signal::sigreturn(&current(), frame).expect("the frame is on the stack");
}

/// execve(2): the caller goes on as a new program, which has a stack.
pub fn exec() {
    try_exec().expect("a program begins");
}

/// As [`exec`], for a thread that may be killed meanwhile.
pub fn try_exec() -> Result<(), ExecFailed> {
    let cred = Cred::root();
    let path = b"/program";
    let made = with_fs(|fs| {
        let flags = o::RDONLY | o::CREAT;
        open::open(&fs.walk(&cred), path, flags, NewMode::exact(0o755), &|| {
            Ok(())
        })
    });
    drop(made.expect("a root directory").expect("memory for a file"));
    let file = image::open(path).expect("a file that may be executed");
    let space = Space::new(mem::vm()).expect("memory for a space");
    let stack = MapArgs::anon(STACK_BYTES, MapProt::READ | MapProt::WRITE);
    let mapped = space.map(mem::vm(), &stack.at(STACK_TOP - STACK_BYTES));
    mapped.expect("memory for a stack");
    let loaded = Loaded {
        space,
        file,
        readable: true,
        entry: HANDLER,
        sp: STACK_TOP,
        places: Places::default(),
    };
    let after = current().cred().after_exec(SetIds::default(), || false);
    exec::commit(loaded, b"program", after, &mut UserFrame::default())
}

/// Runs `body` as a child of init, in a program that has a stack.
pub fn as_program(body: impl Fn() + Send + Sync + 'static) {
    as_child(move || {
        exec();
        body();
    });
}

/// The registers with which a program computes.
pub fn computing() -> UserFrame {
    let mut frame = UserFrame::new_user(program_at(), STACK_TOP);
    frame.rbx = 0xb0b;
    frame
}

/// Whether the registers are those with which the handler of `signo` begins.
pub fn handles(frame: &UserFrame, signo: u8) -> bool {
    frame.rip == HANDLER && frame.rdi == u64::from(signo)
}

/// Makes the caller a process of the user `uid`, without privileges.
pub fn become_user(uid: u32) {
    become_users(uid, uid, uid);
}

/// setresuid(2), by root.
pub fn become_users(real: u32, effective: u32, saved: u32) {
    let mut cred = (*current().cred()).clone();
    let changed = cred.setresuid(real, effective, saved);
    changed.expect("root may become any user");
    current().set_cred(cred).expect("memory for an account");
}

/// wait4(2) or waitid(2).
pub fn wait_for(children: Children, options: Options) -> Result<Option<(u32, Event)>, WaitError> {
    Ok(wait4::wait(children, options)?.map(|report| (report.pid, report.event)))
}

/// wait4(2) with WUNTRACED and WCONTINUED, until there is a report.
pub fn next_event(children: Children) -> (u32, String) {
    let options = Options {
        exited: true,
        stopped: true,
        continued: true,
        ..Options::default()
    };
    let report = wait_for(children, options).expect("a child");
    let (pid, event) = report.expect("the call waits");
    (pid, format!("{event:?}"))
}

/// As [`next_event`], with WNOHANG.
pub fn poll_event(children: Children) -> Option<String> {
    let options = Options {
        exited: true,
        stopped: true,
        continued: true,
        no_hang: true,
        ..Options::default()
    };
    let report = wait_for(children, options).expect("a child");
    report.map(|(_, event)| format!("{event:?}"))
}

/// What [`next_event`] says of a process that `signo` has stopped.
pub fn stopped_by(signo: u8) -> String {
    format!("{:?}", Event::Stopped(signo))
}

/// What [`next_event`] says of a process that was continued.
pub fn continued() -> String {
    format!("{:?}", Event::Continued)
}

/// What [`next_event`] says of a process that has ended with this wait4 status.
pub fn ended(status: u32) -> String {
    format!("{:?}", Event::Exited(status))
}

/// Stops the child `pid`, and waits until it has stopped.
pub fn stop(pid: u32) {
    kill_pid(pid, sig::STOP).expect("a child of the same user");
    until(|| match poll_event(Children::Pid(pid)) {
        Some(event) => {
            assert_eq!(event, stopped_by(sig::STOP));
            true
        }
        None => false,
    });
}

/// Kills the child `pid`, and waits for it.
pub fn end(pid: u32) {
    kill_pid(pid, sig::KILL).expect("a child of the same user");
    assert_eq!(wait(Children::Pid(pid)), Ok((pid, u32::from(sig::KILL))));
}
