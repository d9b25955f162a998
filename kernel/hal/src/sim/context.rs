//! Threads as the CPU sees them: threads of the host, and the switch between them.

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::UserFrame;
use crate::sim::threads::{Condvar, Mutex, MutexGuard};
use crate::sim::{self, Here, program};
use crate::upcalls::symbols;

/// Memory for a thread's stack or registers ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoThreadMemory;

/// Where a thread is.
enum At {
    /// It has not run yet; this is where it begins.
    New(fn() -> !),
    /// It runs.
    Running,
    /// It has been switched away.
    Saved,
    /// It is to run on this CPU: a switch has chosen it.
    Chosen(Here),
    /// It will not run any more: the thread of the host ends.
    Gone,
    /// The machine has been turned off while it slept: the thread of the host unwinds, as if it ran there.
    Over(Here),
    /// That has been done.
    Ended,
}

/// Whose turn a thread waits for.
pub(crate) struct Turn {
    at: Mutex<At>,
    changed: Condvar,
}

impl Turn {
    /// Ends the thread of the host of a thread that sleeps as its machine is turned off. Returns when it has ended.
    pub(super) fn end(&self, on: Here) {
        let mut at = self.at();
        if !matches!(*at, At::Saved) {
            return;
        }
        *at = At::Over(on);
        self.changed.notify_all();
        while !matches!(*at, At::Ended) {
            at = self.changed.wait(at).expect("no test has failed");
        }
    }

    fn at(&self) -> MutexGuard<'_, At> {
        self.at.lock().expect("no test has failed")
    }
}

/// The state of a thread that is not running, as far as the machine needs it.
pub struct ThreadState {
    turn: Arc<Turn>,
    /// Whether it is a CPU's first thread.
    first: bool,
    /// The user registers with which it begins.
    user: Option<UserFrame>,
}

impl fmt::Debug for ThreadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadState").finish_non_exhaustive()
    }
}

impl ThreadState {
    fn with(at: At, first: bool, user: Option<UserFrame>) -> Self {
        ThreadState {
            turn: Arc::new(Turn {
                at: Mutex::new(at),
                changed: Condvar::new(),
            }),
            first,
            user,
        }
    }

    /// Makes the state of a new thread. The first switch to it calls `entry`, with interrupts and preemption as the switch left
    /// them. With `user` the thread also has user registers, which are 0 at first.
    ///
    /// # Errors
    /// None here.
    pub fn new(entry: fn() -> !, user: bool) -> Result<Self, NoThreadMemory> {
        let user = user.then(UserFrame::default);
        Ok(ThreadState::with(At::New(entry), false, user))
    }

    /// Gives a thread that has not run yet the user registers `frame`. Its entry function then calls [`enter_user_first`].
    pub fn inherit(&mut self, frame: &UserFrame) {
        if let Some(user) = &mut self.user {
            *user = *frame;
        }
    }

    /// Checks the FS base of a thread that has not run yet; it is not kept. False if `fs` is not a user address.
    pub fn set_tls(&mut self, fs: u64) -> bool {
        fs < crate::USER_END
    }

    /// Gives the running thread the FPU state and the bases with which a program starts: there are none.
    pub fn reset_user(&self) {}

    /// Passes the running thread's FPU state to `put`, in pieces: there are none.
    ///
    /// # Errors
    /// None here.
    pub fn save_fpu_to<E>(&self, _put: impl FnMut(usize, &[u8]) -> Result<(), E>) -> Result<(), E> {
        Ok(())
    }

    /// Loads the running thread's FPU state, which `get` reads: there is none.
    ///
    /// # Errors
    /// None here.
    pub fn load_fpu_from<E>(
        &self,
        _get: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
        _out_of_memory: E,
    ) -> Result<(), E> {
        Ok(())
    }

    /// Makes the state of the thread that runs now, this CPU's first: its idle thread.
    pub fn current() -> Self {
        ThreadState::with(At::Running, true, None)
    }

    /// Whether the thread may be switched to or freed.
    pub fn is_saved(&self) -> bool {
        matches!(*self.turn.at(), At::New(_) | At::Saved)
    }

    /// Hands the CPU to this thread.
    fn choose(&self, on: Here) {
        let mut at = self.turn.at();
        match core::mem::replace(&mut *at, At::Running) {
            At::New(entry) => {
                drop(at);
                let turn = self.turn.clone();
                on.machine.note_thread(&turn);
                sim::start_thread(
                    on,
                    move || entry(),
                    move || {
                        *turn.at() = At::Ended;
                        turn.changed.notify_all();
                    },
                );
            }
            At::Saved => {
                *at = At::Chosen(on);
                self.turn.changed.notify_all();
            }
            _ => panic!("switching to a thread that runs"),
        }
    }
}

impl Drop for ThreadState {
    fn drop(&mut self) {
        if self.first || sim::with_machine(true, |machine| machine.has_stopped()) {
            return;
        }
        let mut at = self.turn.at();
        assert!(
            matches!(*at, At::New(_) | At::Saved),
            "a running thread's state is dropped"
        );
        *at = At::Gone;
        self.turn.changed.notify_all();
    }
}

/// Saves the running thread in `prev` and resumes `next`. Returns when a CPU, perhaps another one, switches back to `prev`.
/// Called with preemption off.
///
/// `prev` must be the running thread's state, and both must stay alive until their threads have left the CPU. Panics if
/// `next` is running.
pub fn switch(prev: &ThreadState, next: &ThreadState) {
    let on = sim::set_here(None).expect("a CPU switches");
    // `prev` may be freed once the CPU has been handed on, if its thread has ended.
    let turn = prev.turn.clone();
    *turn.at() = At::Saved;
    next.choose(on);
    let mut at = turn.at();
    let on = loop {
        match core::mem::replace(&mut *at, At::Running) {
            At::Chosen(on) => break on,
            At::Gone => {
                drop(at);
                sim::end_thread(None);
            }
            At::Over(on) => {
                drop(at);
                // As a switch to the thread would have left it: what its stack holds turns preemption on again.
                on.machine.cpus[on.cpu].preempt.store(1, Relaxed);
                sim::end_thread(Some(on));
            }
            other => *at = other,
        }
        at = turn.changed.wait(at).expect("no test has failed");
    };
    drop(at);
    sim::set_here(Some(on));
}

/// Enters user mode with the registers that [`ThreadState::inherit`] has put into `state`, which must be the running thread's.
pub fn enter_user_first(state: &ThreadState) -> ! {
    let frame = state.user.expect("a thread of the kernel has no user mode");
    enter_user(&frame)
}

/// Runs the program that `frame` names, in this thread. It ends by a system call that does not return.
pub fn enter_user(frame: &UserFrame) -> ! {
    let mut frame = *frame;
    crate::irq::disable();
    symbols::before_user_return(&mut frame);
    crate::irq::enable();
    program::run(&mut frame);
    panic!("a program ends by a system call")
}
