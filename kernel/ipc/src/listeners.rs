//! Listeners of wait queues by number: entries of epolls, and owners of open files, of which a bit tells them apart.

use ksync::{CpuPin, Round};
use task::wait::{Cause, Listeners, set_listeners};

use crate::epoll;
#[cfg(target_os = "none")]
use crate::owner;

/// Set in the number of the owner of an open file. Numbers of tables are below it.
pub(crate) const OWNER: u32 = 1 << 25;

fn round(pin: &CpuPin, number: u32) -> Option<&Round> {
    #[cfg(target_os = "none")]
    if number & OWNER != 0 {
        return owner::round(pin, number & !OWNER);
    }
    epoll::round(pin, number)
}

fn call(pin: &CpuPin, number: u32, cause: Option<Cause>) -> bool {
    #[cfg(target_os = "none")]
    if number & OWNER != 0 {
        owner::heard(pin, number & !OWNER, cause);
        return false;
    }
    let _ = cause;
    epoll::heard(pin, number)
}

static LISTENERS: Listeners = Listeners { round, call };

/// Called once, after the tables were made.
pub(crate) fn init() {
    const { assert!(task::ids::ID_LIMIT <= OWNER) }
    set_listeners(&LISTENERS);
}
