//! The calling process and the time, for what an object notes.

use task::current::current;
use task::time;

/// The pid of the calling process, for what is done at its end or for another call: of a mapping, say.
pub fn own_pid() -> u32 {
    // Tests on the host have threads without processes.
    #[cfg(target_os = "none")]
    return proc::UserThreadExt::process(&*current()).pid();
    #[cfg(not(target_os = "none"))]
    current().tid()
}

/// The time now, in seconds of real time.
pub fn now() -> u64 {
    time::realtime_ns() / time::SECOND
}
