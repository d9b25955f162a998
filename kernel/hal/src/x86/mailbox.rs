//! The state of each CPU in calls between CPUs; [`super::ipi`] uses it.
use core::cell::Cell;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::limits::MAX_CPUS;

/// Words of a set of CPUs.
pub(super) const WORDS: usize = MAX_CPUS / 64;

/// The state of one CPU.
#[repr(C, align(64))]
pub(super) struct Mailbox {
    /// The CPUs whose requests wait for this one. Atomic: they set their bits, and this CPU clears them.
    pub(super) incoming: [AtomicU64; WORDS],
    /// The number of target CPUs that have not yet run this CPU's request. Atomic.
    pub(super) pending: AtomicU32,
    /// The request of this CPU. A target reads it after it has taken this CPU's bit out of its `incoming`, and before it
    /// decreases `pending`.
    pub(super) run: Cell<fn(*const ())>,
    pub(super) argument: Cell<*const ()>,
}

impl Mailbox {
    pub(super) const fn new() -> Self {
        fn nothing(_: *const ()) {}
        Self {
            incoming: [const { AtomicU64::new(0) }; WORDS],
            pending: AtomicU32::new(0),
            run: Cell::new(nothing),
            argument: Cell::new(ptr::null()),
        }
    }
}
