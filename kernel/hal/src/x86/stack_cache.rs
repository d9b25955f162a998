//! The cache of kernel stacks of each CPU; [`super::stack`] uses it.

/// The most stacks in a cache.
pub(super) const CACHED: usize = 8;
/// Unmapped slots that a CPU takes at a time.
pub(super) const HANDFUL: usize = 8;

/// The cache of one CPU; accessed by that CPU only, with preemption off.
pub(super) struct StackCache {
    pub(super) slots: [u32; CACHED],
    pub(super) used: usize,
    /// Slots that are not mapped.
    pub(super) bare: [u32; HANDFUL],
    pub(super) bare_used: usize,
    /// Frames that this CPU has mapped in stacks, less those that it has unmapped.
    pub(super) frames: isize,
}

impl StackCache {
    pub(super) const fn new() -> Self {
        Self {
            slots: [0; CACHED],
            used: 0,
            bare: [0; HANDFUL],
            bare_used: 0,
            frames: 0,
        }
    }
}
