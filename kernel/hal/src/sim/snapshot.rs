//! A report of what all CPUs run.

/// Calls `more` for each CPU.
pub fn report(more: impl Fn(usize)) {
    (0..crate::cpu::count()).for_each(more);
}
