//! RLIMIT_RTTIME: how long a thread may run with a real-time priority before it sleeps.
//!
//! A thread that a tick hits while it has such a priority looks at the limit before it enters user mode. Beyond the soft limit its process
//! gets SIGXCPU, and the soft limit moves on by a second, as on Linux; beyond the hard one, SIGKILL.

use task::thread::{Thread, flag};

use super::signal::{self, SigInfo};
use crate::UserThreadExt;

/// Makes `t`, which a tick has hit, look at the limit before it enters user mode, if it has a real-time priority.
pub(super) fn look_soon(t: &Thread) {
    if t.priority() > 0 {
        t.set(flag::CPU_TIMERS);
    }
}

/// Sends the signal that `t`, the caller, has earned, if its process has the limit.
pub(super) fn look(t: &Thread) {
    if t.priority() == 0 {
        return;
    }
    let used = t.sched.unslept_ns() / 1000;
    if let Some(signo) = t.process().exceed_rt_time(used) {
        signal::send_process(t.process(), SigInfo::kernel(signo));
    }
}
