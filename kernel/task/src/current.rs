//! The running thread.

use crate::thread::Thread;

hal::thread_type!(RUNNING, Thread);

/// A handle on the running thread, which that thread alone has.
pub type Current = hal::current::Current<Thread>;

/// The running thread. Not to be called on a CPU before its first thread runs.
#[inline(always)]
pub fn current() -> Current {
    RUNNING.current()
}

/// The running thread; `None` on a CPU on which no thread has run yet.
#[inline(always)]
pub fn try_current() -> Option<Current> {
    RUNNING.try_current()
}

/// Makes `thread` this CPU's running thread. Called by the scheduler, with preemption off, for a thread that stays alive
/// until another one has run on this CPU.
#[inline]
pub(crate) fn set_current(thread: &Thread) {
    RUNNING.set_current(thread);
}
