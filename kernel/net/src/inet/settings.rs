//! Settings of all internet sockets, as /proc/sys/net shows them.

use ksync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::accept;

hal::machine_static! {
    /// The first and, above, the last of the ports that the kernel chooses from.
    static RANGE: AtomicU64 = AtomicU64::new(32_768 | 60_999 << 16);
    /// The first port that a program without the capability may have.
    static UNPRIVILEGED: AtomicU64 = AtomicU64::new(1024);
    /// The longest backlog.
    static BACKLOG: AtomicU64 = AtomicU64::new(accept::MOST as u64);
}

/// The ports that the kernel chooses from: the first and the last.
pub fn port_range() -> (u16, u16) {
    let both = RANGE.load(Relaxed);
    (both as u16, (both >> 16) as u16)
}

/// Sets that; returns whether it can be.
pub fn set_port_range(first: u64, last: u64) -> bool {
    let fits = 1 <= first && first <= last && last <= u64::from(u16::MAX);
    if fits {
        RANGE.store(first | last << 16, Relaxed);
    }
    fits
}

/// The first port for which no capability is needed.
pub fn unprivileged_start() -> u64 {
    UNPRIVILEGED.load(Relaxed)
}

/// Sets that; returns whether it can be.
pub fn set_unprivileged_start(port: u64) -> bool {
    let fits = port <= u64::from(u16::MAX);
    if fits {
        UNPRIVILEGED.store(port, Relaxed);
    }
    fits
}

/// The longest backlog of a listener.
pub fn max_backlog() -> u64 {
    BACKLOG.load(Relaxed)
}

/// Sets that; returns whether it can be. Listeners keep theirs.
pub fn set_max_backlog(most: u64) -> bool {
    let fits = most <= accept::MOST as u64;
    if fits {
        BACKLOG.store(most, Relaxed);
    }
    fits
}
