//! The kernel of these tests: threads, without processes.
#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

mod machine;

use ksync::CpuPin;
use task::timer::node::TimerNode;

pub use machine::{MS, compute, ended, nap, on, spawn, wait_for_ends};
#[cfg(shuttle)]
pub use machine::{Stopped, everywhere, explore, stop_everywhere};
use machine::{kernel_thread_ends, release_dead};

hal::upper_type! {
    /// What a process would keep for a thread.
    static NOTHING: ()
}

static UPCALLS: task::upcalls::Upcalls = task::upcalls::Upcalls {
    signal_pending: |_| false,
    cpu_tick: |_| (),
    process_timer: no_timer,
    process_timer_expired: |_, _| (),
    enter_space: |_| (),
    release_dead,
    kernel_thread_ends,
    kernel_part: || NOTHING.wrap(Box::new(())),
    kernel_thread_made: |_, _| (),
};

fn no_timer(_pin: &CpuPin, _pid: u32) -> Option<&TimerNode> {
    None
}
