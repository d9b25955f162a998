//! Calls from the layers below to processes.

use task::current::current;

use crate::signal::{self, sig};
use crate::timers::{self, OF_TIMERS};
use crate::user_thread::{MemoryPolicy, UserThread, UserThreadExt};
use crate::{Resource, active_space, exit, first, ids, itimer, oom, rseq, rt_limit};

/// Processes, as `task` calls them.
static PROCESSES: task::upcalls::Upcalls = task::upcalls::Upcalls {
    signal_pending: signal::signal_pending,
    cpu_tick: |t| {
        itimer::look_soon(t);
        rt_limit::look_soon(t);
    },
    process_timer: |pin, id| {
        let p = ids::process(pin, id & !OF_TIMERS)?;
        if id & OF_TIMERS == 0 {
            return Some(&p.real_node);
        }
        p.seldom.get().map(|timers| &timers.posix.node)
    },
    process_timer_expired: |pin, id| match ids::process(pin, id & !OF_TIMERS) {
        Some(p) if id & OF_TIMERS == 0 => itimer::expired(p),
        Some(p) => timers::expired(p),
        None => {}
    },
    enter_space: |next| {
        itimer::look_soon(next);
        rseq::runs_again(&ksync::pin(), next, next.rseq());
        active_space::switch(next);
    },
    release_dead: exit::release_dead,
    kernel_thread_ends: || exit::exit_thread(0),
    kernel_part: || {
        let policy = MemoryPolicy::default();
        UserThread::for_new(first::kernel_process().clone(), u64::MAX, policy, None)
    },
    kernel_thread_made: |pin, t| first::kernel_process().add_thread(pin, t),
};

/// The calling process, as `vfs` calls it.
static CALLER: vfs::upcalls::Upcalls = vfs::upcalls::Upcalls {
    file_size_limit: || current().process().rlimit(Resource::Fsize),
    file_too_large: || signal::raise(sig::XFSZ),
    broken_pipe: || signal::raise(sig::PIPE),
};

/// Gives the layers below their calls to this one. Called once, before any thread exists.
pub(crate) fn join() {
    mem::set_policy(&oom::POLICY);
    task::upcalls::set(&PROCESSES);
    vfs::upcalls::set(&CALLER);
}
