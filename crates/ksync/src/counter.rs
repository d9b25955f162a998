//! A counter without a shared line: per-CPU deltas, which the reader sums.

use crate::{
    atomic::{AtomicI64, Ordering::Relaxed},
    percpu::{CpuPin, PerCpu},
    shim::local_add,
};

/// A sum of per-CPU deltas. `add` writes one line of this CPU and is one instruction in the kernel, where interrupt
/// handlers may add too. `sum` is exact while there are no concurrent `add`s.
#[derive(Debug)]
pub struct Counter {
    /// Written by its CPU alone.
    deltas: PerCpu<AtomicI64>,
}

impl Counter {
    /// A counter at zero.
    pub fn new(ncpus: usize) -> Self {
        Self {
            deltas: PerCpu::new(ncpus, |_| AtomicI64::new(0)),
        }
    }

    /// Adds `n`, which may be negative.
    #[inline(always)]
    pub fn add(&self, pin: &CpuPin, n: i64) {
        local_add(self.deltas.get(pin), n);
    }

    /// The sum over all CPUs; a CPU's own delta may be negative.
    pub fn sum(&self) -> i64 {
        self.deltas
            .iter()
            .fold(0, |sum, d| sum.wrapping_add(d.load(Relaxed)))
    }

    /// The sum of one CPU's additions.
    pub fn of(&self, cpu: usize) -> i64 {
        self.deltas.of(cpu).load(Relaxed)
    }
}
