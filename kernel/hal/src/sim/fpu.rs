//! The FPU, which a simulated machine does not have.

/// Bytes of its state in a signal frame: none.
pub fn signal_size() -> usize {
    0
}
