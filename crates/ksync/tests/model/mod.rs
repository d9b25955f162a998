//! Common code of the models: how they are explored, and objects that detect violations.

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicBool as StdBool, Ordering::SeqCst};

use ksync::host;
use loom::{cell::UnsafeCell, thread};

/// Explores `f` with up to so many preemptions.
pub fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(f);
}

/// A thread on a CPU of its own.
pub fn spawn<R: 'static>(cpu: usize, f: impl FnOnce() -> R + 'static) -> thread::JoinHandle<R> {
    thread::spawn(move || {
        host::set_cpu(cpu);
        f()
    })
}

/// Its drop makes a later use by a reader fail; and loom checks that every reader sees it fully built, and that the
/// drop comes after all uses.
pub struct Target(StdArc<StdBool>, UnsafeCell<u32>);

impl Target {
    /// A probe, and whether it is alive.
    pub fn new() -> (Self, StdArc<StdBool>) {
        let alive = StdArc::new(true.into());
        (Self(StdArc::clone(&alive), UnsafeCell::new(7)), alive)
    }

    /// Uses it.
    pub fn look(&self) {
        assert!(self.0.load(SeqCst), "freed");
        // SAFETY: only read while alive; loom checks that the drop's write is ordered after.
        assert_eq!(self.1.with(|v| unsafe { *v }), 7);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
        // SAFETY: `&mut self`.
        self.1.with_mut(|v| unsafe { *v = 0 });
    }
}

// SAFETY: the cell is written in `drop` only.
unsafe impl Sync for Target {}
// SAFETY: as above.
unsafe impl Send for Target {}
