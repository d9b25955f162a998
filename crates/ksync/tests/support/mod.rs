//! What several tests of counts use.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

/// Rounds of a test, fewer under an interpreter.
pub const fn rounds(n: usize) -> usize {
    if cfg!(miri) { n / 50 } else { n }
}

/// Counts its drops.
pub struct Dropped(pub Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}
