//! The process's side of execve: from a loaded program to running it.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::park::{Deadline, Interruptible, Step, park};
use super::process::{Brk, Process, Program, flag as pflag};
use super::signal::{AltStack, RestartBlock};
use super::space::{self, UserSpace};
use super::thread::flag;
use super::wait::Waiter;
use super::{Current, current, exit, futex, ids, kept, timer};
use crate::arch::UserFrame;
use crate::mm::exec::Loaded;

/// The caller is to die: another thread ends the process or calls execve itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dying;

/// Makes the current process run `loaded`, under `name`, with `frame` as its first registers.
///
/// On success nothing of the old program is left but what execve(2) keeps.  On failure the
/// caller dies on its way to user mode.
pub fn commit(
    loaded: Loaded,
    name: &[u8],
    set_ids: (Option<u32>, Option<u32>),
    frame: &mut UserFrame,
) -> Result<(), Dying> {
    let me = current();
    let p = me.process();
    // A use of its own from here on: should the caller have to die, its end empties the space.
    let space = UserSpace::new(loaded.space);
    become_only_thread(&me)?;
    // Before anything shows that it has happened: setpgid(2) of the parent fails from here on.
    p.set_flag(pflag::EXECED, true);
    p.set_flag(pflag::LOCK_FUTURE | pflag::LOCK_ON_FAULT, false);
    // The old memory's last words: robust futexes, and whoever waits for this thread's number.
    futex::release_robust(&me);
    me.clear_child_tid.store(0, Ordering::Relaxed);
    let places = loaded.places;
    p.set_program(Program {
        args: places.args,
        env: places.env,
        stack_start: places.stack,
        code: places.code,
        data: places.data,
        exe: Some(loaded.file),
    });
    p.set_brk(Brk {
        start: places.brk,
        end: places.brk,
    });
    let old = p.set_space(Some(space));
    space::reenter(&me);
    p.vfork_done.open();
    // Its last user empties it here.
    drop(old);
    reset_signals(&me, p);
    close_files(p);
    grant_ids(&me, set_ids);
    timer::cancel_thread(&me);
    me.set_comm(name);
    // For when the leader has gone: a thread that execs keeps its number.
    *p.comm.lock() = me.comm();
    p.found_kin();
    super::sched::count_exec();
    p.set_flag(pflag::KEEPCAPS, false);
    me.machine.reset_user();
    *frame = UserFrame::new_user(loaded.entry, loaded.sp);
    Ok(())
}

fn reset_signals(me: &Current, p: &Process) {
    let actions = p.signals.lock().actions.clone();
    if !actions.catches_nothing() || Arc::strong_count(&actions) > 2 {
        let fresh = Arc::new(actions.for_exec());
        let old = core::mem::replace(&mut p.signals.lock().actions, fresh);
        drop(old);
    }
    *me.altstack.lock() = AltStack::NONE;
    me.set_restart(RestartBlock::None);
}

/// Descriptors: an own table, without those marked close-on-exec.
fn close_files(p: &Process) {
    kept::forget_files();
    let Some(mut files) = p.files() else { return };
    // Two: the process's and this one.
    if Arc::strong_count(&files) > 2
        && let Ok(own) = files.fork()
    {
        let shared = p.set_files(Some(own.clone()));
        drop(shared);
        files = own;
    }
    files.close_on_exec();
}

fn grant_ids(me: &Current, set_ids: (Option<u32>, Option<u32>)) {
    let p = me.process();
    let mut cred = (*me.cred()).clone();
    let (uid, gid) = if p.has(pflag::NO_NEW_PRIVS) {
        (None, None)
    } else {
        set_ids
    };
    let before = (cred.euid, cred.egid);
    cred.exec(uid, gid);
    let gained = (cred.euid, cred.egid) != before;
    me.set_cred(cred);
    p.set_flag(pflag::DUMPABLE, !gained);
    if gained {
        p.death_signal.store(0, Ordering::Relaxed);
    }
}

/// Kills all other threads of the process and waits until they have gone.
fn become_only_thread(me: &Current) -> Result<(), Dying> {
    let p = me.process();
    {
        let pin = ksync::pin();
        let threads = p.threads.lock();
        if p.exiting.load(Ordering::SeqCst) || me.has(flag::KILLED) {
            return Err(Dying);
        }
        threads.each(&pin, |tid| {
            if tid != me.tid()
                && let Some(t) = ids::thread(&pin, tid)
            {
                exit::doom(&pin, t);
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
    .map_err(|_| Dying)
}
