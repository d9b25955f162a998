//! The process's part of execve: it turns into a program that has been loaded.

use alloc::sync::Arc;
use ksync::atomic::Ordering;

use cred::AfterExec;
use hal::UserFrame;
use task::current::{Current, current};
use task::park::{Deadline, Interruptible, Step, park};
use task::thread::flag;
use task::timer;
use task::wait::Waiter;

use super::look::NewProgram;
use super::process::{Brk, Process, Program, flag as pflag, personality};
use super::rlimit::{Limit, Resource};
use super::signal::{AltStack, RestartBlock, sig};
use super::space::SpaceUser;
use super::{active_space, exit, futex, group_exit, ids, of_program};
use crate::image::Loaded;
use crate::{SignalExt, UserThreadExt, own_files, timers};

/// Why a program that has been loaded does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecFailed {
    /// The calling thread dies on its way to user mode: another thread ends the process or calls execve itself, or what
    /// is left of the old program cannot go on.
    Dying,
    /// No memory; nothing has changed.
    NoMemory,
}

/// Makes the current process run `loaded`, under the name `name`. `frame` gets the program's first registers. Kills the process's
/// other threads and sleeps until they have exited.
///
/// On success nothing of the old program is left but what execve(2) keeps.
///
/// # Errors
/// [`ExecFailed`]; the program is the old one, and the new space has been emptied. With `Dying`, other threads may have been
/// killed.
pub fn commit(
    loaded: Loaded,
    name: &[u8],
    mut after: AfterExec,
    frame: &mut UserFrame,
) -> Result<(), ExecFailed> {
    let me = current();
    let p = me.process();
    // From here on the new space has a user: if the calling thread has to die, the end of that use empties the space.
    let space = SpaceUser::new(loaded.space);
    let was_alone = p.thread_count() == 1;
    become_only_thread(&me)?;
    // Another process that shares the table could change what the new program has open.
    own_files().map_err(|_| {
        if was_alone {
            return ExecFailed::NoMemory;
        }
        group_exit::begin_group_exit(&ksync::pin(), p, u32::from(sig::SEGV));
        ExecFailed::Dying
    })?;
    disown_as_follower(&me);
    become_leader(&me);
    // Set before any other effect of execve is visible: from here on setpgid(2) by the parent fails.
    p.set_flag(pflag::EXECED, true);
    p.set_flag(pflag::LOCK_FUTURE | pflag::LOCK_ON_FAULT, false);
    p.set_flag(pflag::BARRIERS | pflag::CODE_BARRIERS, false);
    me.user().rseq.forget();
    timers::end(p);
    of_program::end(p);
    end_memory(&me);
    if after.plain_layout {
        p.clear_personality(personality::CLEARED_BY_PRIVILEGE);
    }
    if after.secure {
        limit_stack(p);
    }
    // What the caller could not read as a file, it must not read as memory.
    after.dumpable &= loaded.readable;
    let dumpable = after.dumpable;
    let places = loaded.places;
    let old = p.become_program(
        &me,
        NewProgram {
            space,
            program: Program {
                args: places.args,
                env_end: places.env.1,
                auxv: places.auxv,
                stack_start: places.stack,
                code: places.code,
                data: places.data,
                exe: Some(loaded.file),
            },
            brk: Brk {
                start: places.brk,
                end: places.brk,
            },
            after,
        },
    );
    active_space::reenter(&me);
    p.vfork_done.open();
    // If this was the last use of the old space, it is emptied here.
    drop(old);
    reset_signals(&me, p);
    if let Some(files) = p.files() {
        files.close_on_exec();
    }
    p.set_flag(pflag::DUMPABLE, dumpable);
    timer::cancel_thread(&me);
    me.set_comm(name);
    *p.comm.lock() = me.comm();
    p.found_exec_group();
    reset_exit_signal(p);
    task::sched::count_exec();
    futex::pi::reopen(&me);
    me.machine().reset_user();
    *frame = UserFrame::new_user(loaded.entry, loaded.sp);
    Ok(())
}

/// Under the tid that it has had, a thread that is about to become the leader can own no lock any more.
fn disown_as_follower(me: &Current) {
    if me.tid() != me.process().pid() {
        futex::pi::disown(me);
    }
}

/// The last writes to the old memory: futexes that the thread owns, and the word that other threads wait on for its exit.
fn end_memory(me: &Current) {
    futex::release_robust(me);
    futex::pi::disown(me);
    exit::clear_child_tid(me);
}

/// The signals at exit were agreed on with the old program: the parent gets SIGCHLD when this process ends, and this
/// process gets SIGCHLD for the children that the old program made.
fn reset_exit_signal(p: &Process) {
    p.exit_signal.store(sig::CHLD, Ordering::SeqCst);
    p.exec_id.advance();
}

/// The stack limit of a program that gains privileges, in bytes, whatever its caller has chosen: at most Linux's
/// default.
pub const PRIVILEGED_STACK: u64 = 8 << 20;

fn limit_stack(p: &Process) {
    let now = p.limit(Resource::Stack);
    let soft = now.soft.min(PRIVILEGED_STACK);
    // Lowering a limit is always allowed.
    let _ = p.set_limit(Resource::Stack, Limit { soft, ..now }, false);
}

/// Gives the new program signal actions of its own, reset as execve(2) says, and takes its alternate stack. The mask and what is
/// pending stay.
fn reset_signals(me: &Current, p: &Process) {
    let actions = p.signals.lock().actions.clone();
    // Two references: the process's and this one. With more, another process shares the actions, and its actions must
    // not change; or another thread just looks at them, and the copy does no harm.
    if Arc::strong_count(&actions) > 2 {
        let own = Arc::new(actions.fork());
        own.reset_for_exec();
        let old = core::mem::replace(&mut p.signals.lock().actions, own);
        drop(old);
    } else {
        actions.reset_for_exec();
    }
    me.set_altstack(AltStack::NONE);
    me.set_restart(RestartBlock::None);
}

/// Gives the process's only thread the pid as its tid, if it was not the leader. Yields until the old leader has left its CPU.
fn become_leader(me: &Current) {
    while me.tid() != me.process().pid() {
        let done = ids::find_thread(me.tid()).is_some_and(|me| ids::become_leader(&me));
        if !done {
            // The old leader has left the process, but has not left its CPU yet and keeps the tid until then.
            task::sched::yield_now();
            ksync::relax();
        }
    }
}

/// Kills all other threads of the process and sleeps until they have left its list. Takes the lock of that.
///
/// # Errors
/// `Dying`: the process is ending, or another thread has called execve, from before or while this one slept.
fn become_only_thread(me: &Current) -> Result<(), ExecFailed> {
    let p = me.process();
    {
        let pin = ksync::pin();
        let threads = p.threads.lock();
        // Whatever ends the process kills its threads under the same lock.
        if me.has(flag::KILLED) {
            return Err(ExecFailed::Dying);
        }
        threads.each(&pin, |tid| {
            if tid != me.tid()
                && let Some(t) = ids::thread(&pin, tid)
            {
                group_exit::doom(&pin, t);
            }
            true
        });
    }
    let mut process = p.clone();
    park(
        &mut process,
        Deadline::Never,
        Interruptible::Kill,
        |p, waiter: &mut Waiter| {
            waiter.listen(&p.group_wait);
            if p.thread_count() == 1 {
                Step::Done(())
            } else {
                Step::Wait
            }
        },
    )
    .map_err(|_| ExecFailed::Dying)
}
