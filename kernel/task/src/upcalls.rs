//! What this crate calls of the processes above it.

use alloc::sync::Arc;

use hal::upper::UpperBox;
use ksync::{CpuPin, Once};

use crate::thread::Thread;
use crate::timer::node::TimerNode;

/// The processes, as this crate sees them.
pub struct Upcalls {
    /// Whether something wants the thread out of a sleep that signals may end.
    pub signal_pending: fn(&Thread) -> bool,
    /// A tick of so many nanoseconds found the thread running, in user mode or not. In the timer's interrupt.
    pub cpu_tick: fn(&Thread, bool, u64),
    /// The timer of the process of that number.
    pub process_timer: for<'p> fn(&'p CpuPin, u32) -> Option<&'p TimerNode>,
    /// The wheel has taken that timer off, for its time has come. In the timer's interrupt.
    pub process_timer_expired: fn(&CpuPin, u32),
    /// This CPU is about to run the thread, which is no kernel thread: it enters the address space. Preemption is off.
    pub enter_space: fn(&Thread),
    /// The thread has left its CPU for the last time. On another thread's stack, preemption is off.
    pub release_dead: fn(&CpuPin, &Thread),
    /// The calling kernel thread has run its function.
    pub kernel_thread_ends: fn() -> !,
    /// What processes keep for a kernel thread.
    pub kernel_part: fn() -> UpperBox,
    /// A kernel thread has been made, and can be found by its number.
    pub kernel_thread_made: fn(&CpuPin, &Arc<Thread>),
}

static UPCALLS: Once<&'static Upcalls> = Once::new();

/// Says what this crate calls. Once, before any thread.
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
    /// Whether something wants the thread out of a sleep that signals may end.
    #[inline]
    pub fn signal_pending(&self) -> bool {
        (get().signal_pending)(self)
    }
}
