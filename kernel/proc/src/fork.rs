//! Making threads and processes: clone, fork and vfork.

use alloc::sync::Arc;
use ksync::atomic::Ordering;

use abi::raw::general as raw;
use hal::uaccess::UserPtr;
use hal::{UserFrame, context};
use task::current::{Current, current};
use task::park::{Deadline, Interruptible, Step, park};
use task::sched;
use task::thread::{NewThread, Thread, flag as thread_flag};
use task::wait::Waiter;

use super::account::ThreadCharge;
use super::futex;
use super::group::Joined;
use super::ids::{self, Id};
use super::oom;
use super::process::{self, Brk, Process, flag as pflag};
use super::sem_undo;
use super::signal::{AltStack, Shared, sig};
use super::space::SpaceUser;
use super::user_thread::{UserThread, memory_policy};
use crate::{SignalExt, UserThreadExt};

/// Why no thread or process was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkError {
    /// The flags contradict each other or ask for what does not exist here, there is no such exit signal, or init asks for a
    /// sibling.
    Invalid,
    /// There is no free id, the user has too many threads, the caller is being killed or its exec group is, or an execve keeps
    /// the file-system context unshared for which CLONE_FS asks.
    Again,
    /// No memory, even after a wait of some seconds.
    NoMemory,
    /// The base for thread-local storage is not a user address.
    NotPermitted,
    /// A signal is pending, and must be taken first.
    Signal,
    /// The caller may open no more files.
    TooManyFiles,
    /// The descriptor of the new process cannot be stored.
    Fault,
}

/// What a caller of [`clone`] opens together with the new process.
pub trait Opening {
    /// The process is made, and in no table yet; an error undoes it. May sleep.
    ///
    /// # Errors
    /// Those that the call is to have.
    fn prepare(&mut self, process: &Arc<Process>) -> Result<(), ForkError>;
    /// Nothing fails any more, and the process does not run yet.
    fn complete(&mut self);
}

/// clone(2)'s arguments.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneArgs {
    /// `CLONE_*` of clone3(2), without the exit signal.
    pub flags: u64,
    /// The signal that the parent gets when the child ends, 0 for none.
    pub exit_signal: u8,
    /// The child's stack pointer, 0 to keep the caller's.
    pub stack: u64,
    /// The address for CLONE_PARENT_SETTID.
    pub parent_tid: u64,
    /// The address for CLONE_CHILD_SETTID and CLONE_CHILD_CLEARTID.
    pub child_tid: u64,
    /// The thread-local storage base for CLONE_SETTLS.
    pub tls: u64,
}

/// Flags for namespaces and other things that do not exist here.
const UNSUPPORTED: u64 = (raw::CLONE_NEWNS
    | raw::CLONE_NEWCGROUP
    | raw::CLONE_NEWUTS
    | raw::CLONE_NEWIPC
    | raw::CLONE_NEWUSER
    | raw::CLONE_NEWPID
    | raw::CLONE_NEWNET
    | raw::CLONE_NEWTIME) as u64;

fn check(a: &CloneArgs) -> Result<(), ForkError> {
    let has = |f: u32| a.flags & u64::from(f) != 0;
    let bad = has(raw::CLONE_THREAD) && !has(raw::CLONE_SIGHAND)
        || has(raw::CLONE_SIGHAND) && !has(raw::CLONE_VM)
        || has(raw::CLONE_FS) && has(raw::CLONE_NEWNS)
        || has(raw::CLONE_PIDFD) && has(raw::CLONE_THREAD | raw::CLONE_DETACHED)
        || a.exit_signal > sig::MAX
        || a.flags & UNSUPPORTED != 0
        // Init's children must not have nobody as a parent.
        || has(raw::CLONE_PARENT) && current().process().pid() == 1;
    if bad { Err(ForkError::Invalid) } else { Ok(()) }
}

/// clone(2): makes a thread or a process, and with CLONE_PIDFD what `opening` opens; returns the new thread's tid. `frame` has the caller's
/// registers. Sleeps: for memory,
/// and with CLONE_VFORK until the child leaves the caller's memory, or the caller is killed.
///
/// # Errors
/// [`ForkError`]: nothing has been made, and no tid is stored.
pub fn clone(
    args: &CloneArgs,
    frame: &UserFrame,
    mut opening: Option<&mut dyn Opening>,
) -> Result<u32, ForkError> {
    check(args)?;
    let has = |f: u32| args.flags & u64::from(f) != 0;
    let me = current();
    if oom::is_marked_killed(me.process().exec_group()) {
        return Err(ForkError::Again);
    }
    let signal = me.process().group_signal.load(Ordering::Acquire);
    // Read after the number, which is written when the signal is pending: the child of a process that has not taken that
    // signal would count as having got it. As on Linux, any signal comes first, and threads wait for it, too.
    if me.signal_pending() {
        return Err(ForkError::Signal);
    }
    let charge = ThreadCharge::new(&me, me.process()).ok_or(ForkError::Again)?;
    let crowded = take_crowded(&me);
    mem::admit_process().map_err(|_| ForkError::NoMemory)?;
    let id = Id::alloc().ok_or(ForkError::Again)?;
    let process = if has(raw::CLONE_THREAD) {
        me.process().clone()
    } else {
        new_process(args, id.clone())?
    };
    let new = new_thread(args, frame, id, &process, crowded)?;
    if let Some(opening) = &mut opening {
        opening.prepare(&process)?;
    }
    let tid = new.tid();
    store_in_copy(args, &process, tid);
    let gate = (has(raw::CLONE_VFORK) && !has(raw::CLONE_THREAD)).then(|| {
        process.vfork_done.shut.store(true, Ordering::SeqCst);
        process.clone()
    });
    if let Err(why) = publish(args, &process, &new, signal) {
        if !has(raw::CLONE_THREAD) {
            undo(&process);
        }
        drop_adjustments(&me, &new);
        return Err(why);
    }
    if has(raw::CLONE_PARENT) {
        // Until it was listed, the child looked like one of this process: another thread may wait for it by its pid.
        me.process().child_wait.wake_all();
    }
    charge.keep();
    store_tid(args, tid);
    if let Some(opening) = opening {
        opening.complete();
    }
    sched::start(&new);
    if has(raw::CLONE_VFORK) {
        stand_aside(gate, new);
    }
    Ok(tid)
}

/// CLONE_VFORK: waits until the new process leaves the caller's memory, or, if there is none, until the new thread ends.
fn stand_aside(process: Option<Arc<Process>>, new: Arc<Thread>) {
    sched::count_vfork();
    match process {
        Some(child) => {
            drop(new);
            wait_for(child);
        }
        None => wait_for_end_of(new),
    }
}

/// Drops what a process has that was in the table for a moment only. The last reference to it is dropped after a grace
/// period, where nothing may sleep, and freeing memory and files may take long.
#[cold]
fn undo(process: &Process) {
    if let Some(files) = process.set_files(None)
        && Arc::strong_count(&files) == 1
    {
        files.abandon();
    }
    drop(process.set_fs(None));
    drop(process.set_space(None));
    process.clear_program();
}

/// Drops what a thread that will not run shares of what semaphores undo, as `undo` drops the rest: the caller has a reference of its own.
#[cold]
fn drop_adjustments(me: &Current, new: &Thread) {
    let own = me.own(&new.user().own);
    drop(own.and_then(|own| own.borrow_mut().undo.take()));
}

/// Takes the flag CROWDED from the caller. As in Linux: it has just been checked, so its execve does not ask again; the child's does.
fn take_crowded(me: &Thread) -> bool {
    let crowded = me.has(thread_flag::CROWDED);
    if crowded {
        me.clear(thread_flag::CROWDED);
    }
    crowded
}

/// Writes the tid of a new process's thread into the copy of the caller's memory. Linux ignores a bad address, too.
fn store_in_copy(args: &CloneArgs, process: &Process, tid: u32) {
    let has = |f: u32| args.flags & u64::from(f) != 0;
    if has(raw::CLONE_CHILD_SETTID)
        && !has(raw::CLONE_VM)
        && let Some(space) = process.space()
    {
        let _ = mem::write_at(&space, args.child_tid, &tid.to_ne_bytes());
    }
}

/// Writes the tid of the new thread, which does not run yet, into the caller's memory. Linux ignores a bad address, too.
fn store_tid(args: &CloneArgs, tid: u32) {
    let has = |f: u32| args.flags & u64::from(f) != 0;
    if has(raw::CLONE_PARENT_SETTID) {
        let _ = UserPtr::<u32>::new(args.parent_tid).write(&tid);
    }
    if has(raw::CLONE_CHILD_SETTID) && has(raw::CLONE_VM) {
        let _ = UserPtr::<u32>::new(args.child_tid).write(&tid);
    }
}

/// Waits until a child of vfork calls execve or ends. Only a fatal signal ends the wait earlier.
fn wait_for(mut child: Arc<Process>) {
    let _ = park(
        &mut child,
        Deadline::Never,
        Interruptible::Kill,
        |child, waiter: &mut Waiter| {
            waiter.listen(&child.vfork_done.queue);
            if child.vfork_done.shut.load(Ordering::SeqCst) {
                Step::Wait
            } else {
                Step::Done(())
            }
        },
    );
}

/// Waits until `thread`, of the caller's process, has ended. Execve by it ends the caller. Only a fatal signal ends the
/// wait earlier.
fn wait_for_end_of(mut thread: Arc<Thread>) {
    let _ = park(
        &mut thread,
        Deadline::Never,
        Interruptible::Kill,
        |thread, waiter: &mut Waiter| {
            waiter.listen(&thread.process().group_wait);
            // A thread leaves its process's list before it wakes those that wait there.
            if thread.group_links.linked() {
                Step::Wait
            } else {
                Step::Done(())
            }
        },
    );
}

/// The memory of a child of `p`, the caller's process, shared or a copy, and the bounds of its heap.
fn memory_of_child(p: &Process, shared: bool) -> Result<(Option<Arc<SpaceUser>>, Brk), ForkError> {
    let Some(space) = p.user_space() else {
        return Ok((None, p.brk()));
    };
    if shared {
        return Ok((Some(space), p.brk()));
    }
    // The heap's bounds are those of the memory that is copied.
    let _heap = p.lock_brk();
    let copy = mem::fork(space.space()).map_err(|_| ForkError::NoMemory)?;
    Ok((Some(SpaceUser::new(copy)), p.brk()))
}

/// Makes a process that shares the caller's resources, or has copies of them, as `args` says. The process is in no
/// table yet; dropping it undoes everything. Sleeps: for the lock of the heap, under which the memory is copied, and for memory.
fn new_process(args: &CloneArgs, id: Id) -> Result<Arc<Process>, ForkError> {
    let has = |f: u32| args.flags & u64::from(f) != 0;
    let me = current();
    let p = me.process();
    let (space, brk) = memory_of_child(p, has(raw::CLONE_VM))?;
    ids::make_room_for_process(&id);
    // Forks that are killed together would take the last pages for what they do not need any more.
    if me.kill_pending() {
        return Err(ForkError::Again);
    }
    let files = match p.files() {
        Some(files) if !has(raw::CLONE_FILES) => {
            Some(files.fork().map_err(|_| ForkError::NoMemory)?)
        }
        shared => shared,
    };
    let fs = if has(raw::CLONE_FS) {
        let shared = p.share_fs();
        shared.map(|fs| fs.ok_or(ForkError::Again)).transpose()?
    } else {
        p.fs().map(|fs| fs.fork())
    };
    let old_actions = p.signals.lock().actions.clone();
    let actions = if has(raw::CLONE_SIGHAND) {
        old_actions
    } else {
        Arc::new(old_actions.fork())
    };
    if args.flags & raw::CLONE_CLEAR_SIGHAND != 0 {
        // Handlers go as in execve; the caller has refused this flag beside CLONE_SIGHAND.
        actions.reset_for_exec();
    }
    let program = p.program.lock().clone();
    // An own copy, so that no count is shared with the parent.
    let cred = Arc::new((*me.cred()).clone());
    let child = Process::new(process::NewProcess {
        id,
        // With CLONE_PARENT both are settled when the parent lists the child.
        ppid: p.pid(),
        maker: me.tid(),
        flags: p.flags.load(Ordering::Relaxed)
            & (pflag::DUMPABLE | pflag::BARRIERS | pflag::CODE_BARRIERS | pflag::DUMP_FILTER),
        exit_signal: args.exit_signal,
        exec_ids: {
            let own = p.exec_id.get();
            (own, own)
        },
        signals: Shared::new(actions),
        space,
        files,
        fs,
        cred,
        limits: p.limits(),
        program,
        brk,
        comm: me.comm(),
        personality: p.personality.load(Ordering::Relaxed),
        exec_group: p.exec_group(),
        oom_adj: (p.oom_adj(), p.oom_adj_min()),
    });
    // The thread that forks may act as another user than its process.
    if child.uid() != p.uid() {
        child.found_exec_group();
    }
    Ok(child)
}

/// Makes a thread that is on no list, as the caller is but for what `args` says: 0 is its result of the call. `crowded` is the
/// caller's flag CROWDED from before.
///
/// # Errors
/// `NoMemory`: none for its stack. `NotPermitted`: the base for thread-local storage is no user address.
fn new_thread(
    args: &CloneArgs,
    frame: &UserFrame,
    id: Id,
    process: &Arc<Process>,
    crowded: bool,
) -> Result<Arc<Thread>, ForkError> {
    let has = |f: u32| args.flags & u64::from(f) != 0;
    let me = current();
    let mut child_frame = *frame;
    child_frame.rax = 0;
    child_frame.forget_syscall();
    if args.stack != 0 {
        child_frame.rsp = args.stack;
    }
    let mut machine =
        context::ThreadState::new(sched::thread_start, true).map_err(|_| ForkError::NoMemory)?;
    machine.inherit(&child_frame);
    if has(raw::CLONE_SETTLS) && !machine.set_tls(args.tls) {
        return Err(ForkError::NotPermitted);
    }
    let undo = has(raw::CLONE_SYSVSEM).then(sem_undo::own).flatten();
    let new = Thread::new(NewThread {
        id,
        upper: UserThread::for_new(process.clone(), me.blocked().0, memory_policy(), undo),
        comm: me.comm(),
        cred: if has(raw::CLONE_THREAD) {
            // A copy, so that threads share no count.
            Arc::new((*me.cred()).clone())
        } else {
            process.cred()
        },
        sched: me.sched.forked(me.cpu()),
        machine,
        flags: if crowded { thread_flag::CROWDED } else { 0 },
        entry: None,
    });
    // As in Linux: a child with its own memory keeps the alternate stack, and one for which the caller stands aside; another
    // thread of the same memory does not, since two would use one stack.
    let keeps = !has(raw::CLONE_VM) || has(raw::CLONE_VFORK);
    if !has(raw::CLONE_VM) {
        new.user().rseq.inherit(&me);
    }
    new.user()
        .ioprio
        .store(me.user().ioprio.load(Ordering::Relaxed), Ordering::Relaxed);
    new.set_altstack(if keeps {
        me.altstack()
    } else {
        AltStack::DISABLED
    });
    if has(raw::CLONE_CHILD_CLEARTID) {
        new.user()
            .clear_child_tid
            .store(args.child_tid, Ordering::Relaxed);
    }
    Ok(new)
}

/// Enters a new thread, and its process if that is new, in the tables; the process joins the caller's group and gets a parent.
/// `signal` is the serial number of the last group signal that the caller's process had got when the call began. Takes the locks
/// of the list of threads, of a shard of the group, and of the parent's family, one after the other.
///
/// # Errors
/// `Again`: the caller, which makes a thread, is being killed. `Signal`: see [`join_parents_group`]. Neither thread nor process
/// is in a table then; others may have found the process meanwhile.
fn publish(
    args: &CloneArgs,
    process: &Arc<Process>,
    new: &Arc<Thread>,
    signal: u32,
) -> Result<(), ForkError> {
    let pin = ksync::pin();
    let thread = args.flags & u64::from(raw::CLONE_THREAD) != 0;
    let mut threads = process.threads.lock();
    if thread {
        // The end of the process, or an execve of another thread, kills those on the list, which the caller is on.
        if current().kill_pending() {
            return Err(ForkError::Again);
        }
        // A stop that has begun has marked the threads on the list; its maker passes the mark on to this one.
        if current().has(thread_flag::ATTENTION) {
            new.set(thread_flag::ATTENTION);
        }
    }
    // In one hold of the lock: a sender that finds the thread by its id walks the list next, and must find it there too.
    task::ids::publish(new);
    process.add_thread_to(&mut threads, &pin, new);
    drop(threads);
    if thread {
        return Ok(());
    }
    ids::publish_process(process);
    if !join_parents_group(process, signal) {
        // A lock's word may have named its tid.
        futex::pi::disown(new);
        task::ids::withdraw(new);
        ids::withdraw_process(process);
        // Another thread may have found the child meanwhile, and wait for it.
        if let Some(parent) = ids::process(&pin, process.ppid()) {
            parent.child_wait.wake_all();
        }
        return Err(ForkError::Signal);
    }
    if args.flags & u64::from(raw::CLONE_PARENT) != 0 {
        list_as_sibling(process);
    } else {
        list_as_child(process);
    }
    Ok(())
}

/// Makes `child` a member of the caller's group. False if the caller is being killed, or its process has got another group signal
/// than `signal` since the call began and a signal is pending: the caller must take that first, because the child would miss it.
/// Spins while setpgid moves the caller.
fn join_parents_group(child: &Process, signal: u32) -> bool {
    let pin = ksync::pin();
    let me = current();
    let p = me.process();
    loop {
        // The caller is a member, so the group goes on unless setpgid moves the caller meanwhile.
        let Some(group) = ids::group_of(&pin, p) else {
            ksync::relax();
            continue;
        };
        let joined = group.join(&pin, child, group.fork_shard(&pin), || {
            let now = p.group_signal.load(Ordering::Acquire);
            // The child is in the table: a killer of all processes finds it there, or has killed the caller in time.
            let may = now == signal && !me.kill_pending() || !me.signal_pending();
            may.then_some(now)
        });
        match joined {
            Joined::Yes => return true,
            Joined::Over => {}
            Joined::Signal => return false,
        }
    }
}

fn list_as_child(child: &Process) {
    let pin = ksync::pin();
    let me = current();
    let mut family = me.process().family.lock();
    family.living.push_back(&pin, child.pid());
}

/// CLONE_PARENT: makes `child` a child of the caller's parent, made by the thread that made the caller. The parent gets the same
/// signal when `child` ends as when the caller does. Takes the parent's family lock; spins while the caller is given to another
/// parent.
fn list_as_sibling(child: &Process) {
    let me = current();
    let me = me.process();
    loop {
        // A parent that has been reaped has given the caller to another one.
        let Some(parent) = ids::find_process(me.ppid()) else {
            ksync::relax();
            continue;
        };
        let pin = ksync::pin();
        let mut family = parent.family.lock();
        if me.ppid() != parent.pid() {
            // The caller has been adopted; its old parent's number may be another's by now.
            continue;
        }
        // The parent still has to give the caller away, if it is ending, and then gives this child away, too: it takes children
        // until no child is left.
        debug_assert!(!family.closed, "a parent without children");
        // Adoption changes the caller's under this lock, too.
        let signo = me.exit_signal.load(Ordering::SeqCst);
        child.exit_signal.store(signo, Ordering::SeqCst);
        let strange = me.parent_exec_id.load(Ordering::Relaxed);
        child.parent_exec_id.store(strange, Ordering::Relaxed);
        child.ppid.store(parent.pid(), Ordering::SeqCst);
        child
            .maker
            .store(me.maker.load(Ordering::Relaxed), Ordering::Relaxed);
        family.living.push_back(&pin, child.pid());
        return;
    }
}
