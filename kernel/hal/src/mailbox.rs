//! A CPU's part in calls between CPUs; [`super::ipi`] uses it.
use core::cell::Cell;
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::limits::MAX_CPUS;

/// Words of a set of CPUs.
pub(super) const WORDS: usize = MAX_CPUS / 64;

/// A CPU's part in calls.
#[repr(C, align(64))]
pub(super) struct Mailbox {
    /// CPUs whose requests wait for this one: atomic, set by them, cleared by this one.
    pub(super) incoming: [AtomicU64; WORDS],
    /// Targets that have not yet done this CPU's request: atomic.
    pub(super) pending: AtomicU32,
    /// This CPU's request; others read it between `incoming` and `pending`.
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
