//! What a CPU answers to the question what it runs; [`super::snapshot`] asks.
use core::sync::atomic::{AtomicBool, AtomicU64};

/// Callers noted.
pub(super) const CALLERS: usize = 12;

/// One CPU's answer; written by its NMI handler: atomic.
pub(super) struct Snapshot {
    /// Somebody waits for an answer. Set by the asking CPU.
    pub(super) wanted: AtomicBool,
    /// There is one.
    pub(super) taken: AtomicBool,
    pub(super) rip: AtomicU64,
    pub(super) from_user: AtomicBool,
    pub(super) current: AtomicU64,
    /// Innermost first; zero where the chain ends.
    pub(super) callers: [AtomicU64; CALLERS],
}

impl Snapshot {
    pub(super) const fn new() -> Self {
        Self {
            wanted: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            rip: AtomicU64::new(0),
            from_user: AtomicBool::new(false),
            current: AtomicU64::new(0),
            callers: [const { AtomicU64::new(0) }; CALLERS],
        }
    }
}
