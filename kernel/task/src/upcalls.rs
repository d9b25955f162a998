//! The functions of the crate of processes that this crate calls.

use alloc::sync::Arc;

use hal::upper::UpperBox;
use ksync::{CpuPin, Once};

use crate::thread::Thread;
use crate::timer::node::TimerNode;

/// The functions of the crate of processes.
pub struct Upcalls {
    /// Whether the thread has a signal pending, or another request that ends a sleep that signals may end.
    pub signal_pending: fn(&Thread) -> bool,
    /// A tick has found the thread running. Called in the timer interrupt.
    pub cpu_tick: fn(&Thread),
    /// The timer of the process with that pid.
    pub process_timer: for<'p> fn(&'p CpuPin, u32) -> Option<&'p TimerNode>,
    /// That timer has expired and is off the wheel. Called in the timer interrupt.
    pub process_timer_expired: fn(&CpuPin, u32),
    /// This CPU is about to run the thread, which is not a kernel thread: load its address space. Called with preemption off.
    pub enter_space: fn(&Thread),
    /// The thread has ended and left its CPU for the last time. Called on another thread's stack, with preemption off.
    pub release_dead: fn(&CpuPin, &Thread),
    /// The calling kernel thread has returned from its function; does not return.
    pub kernel_thread_ends: fn() -> !,
    /// Makes what the crate of processes keeps for a kernel thread.
    pub kernel_part: fn() -> UpperBox,
    /// A kernel thread has been made and is in the table of ids.
    pub kernel_thread_made: fn(&CpuPin, &Arc<Thread>),
}

hal::machine_static! {
    static UPCALLS: Once<&'static Upcalls> = Once::new();
}

/// Sets the functions that this crate calls. Called once, before any thread is made.
pub fn set(upcalls: &'static Upcalls) {
    UPCALLS.get_or_init(|| upcalls);
}

#[inline]
pub(crate) fn get() -> &'static Upcalls {
    UPCALLS
        .get()
        .expect("processes are set up before any thread")
}

impl Thread {
    /// Whether the thread has a signal pending, or another request that ends a sleep that signals may end.
    #[inline]
    pub fn signal_pending(&self) -> bool {
        (get().signal_pending)(self)
    }
}
