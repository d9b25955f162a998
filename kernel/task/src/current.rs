//! The running thread.

use crate::thread::Thread;

hal::thread_type!(RUNNING, Thread);

/// The running thread, as seen by itself.
pub type Current = hal::current::Current<Thread>;

/// The running thread.  Not to be called before the first one runs on this CPU.
#[inline(always)]
pub fn current() -> Current {
    RUNNING.current()
}

/// The running thread, if the CPU has one yet.
#[inline(always)]
pub fn try_current() -> Option<Current> {
    RUNNING.try_current()
}

/// Makes `thread` the running one.  Called by the scheduler, with preemption off, for a thread that
/// stays alive until another has run on this CPU.
#[inline]
pub(crate) fn set_current(thread: &Thread) {
    RUNNING.set_current(thread);
}
