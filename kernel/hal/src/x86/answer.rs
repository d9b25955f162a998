//! The answer of a CPU that [`super::snapshot`] has asked what it runs.
use core::sync::atomic::{AtomicBool, AtomicU64};

/// Return addresses that an answer has.
pub(super) const CALLERS: usize = 12;

/// One CPU's answer. Its fields are atomic, and its NMI handler writes them, except `wanted`.
pub(super) struct Snapshot {
    /// A CPU has asked and waits for the answer. Set by the CPU that asks.
    pub(super) wanted: AtomicBool,
    /// The answer is complete.
    pub(super) taken: AtomicBool,
    pub(super) rip: AtomicU64,
    pub(super) from_user: AtomicBool,
    pub(super) current: AtomicU64,
    /// Return addresses, innermost first; 0 behind the last.
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
