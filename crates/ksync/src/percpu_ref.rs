//! A reference count for long-lived objects to which many CPUs take and drop references all the time.
//!
//! While the object lives, a reference changes a delta on this CPU's line. `kill` ends that: it switches to one atomic
//! count, waits a grace period so that no CPU is in the middle of a per-CPU update, and adds the deltas to the count,
//! which can reach zero from then on. Until the deltas are added the count contains BIAS, so that it cannot reach zero
//! early.

use alloc::boxed::Box;
use core::{marker::PhantomData, ops::Deref, ptr::NonNull};

use crate::{
    atomic::{AtomicBool, AtomicI64, Ordering::*, fence},
    epoch::Epoch,
    percpu::{PerCpu, pin},
};

const BIAS: i64 = 1 << 62;

struct Inner<T> {
    /// Set once, by `kill`.
    killed: AtomicBool,
    /// References taken less references dropped since `killed`; plus BIAS until the deltas are added.
    count: AtomicI64,
    /// References taken less references dropped before; written by their CPUs alone, with preemption off.
    deltas: PerCpu<AtomicI64>,
    value: T,
}

/// One reference to a `T`. Cloned and dropped without a shared write until [`PerCpuRef::kill`].
///
/// Nothing is freed before `kill` was called once.
pub struct PerCpuRef<T> {
    inner: NonNull<Inner<T>>,
    owns: PhantomData<Inner<T>>,
}

// SAFETY: as for `Arc`.
unsafe impl<T: Send + Sync> Sync for PerCpuRef<T> {}
// SAFETY: as for `Arc`.
unsafe impl<T: Send + Sync> Send for PerCpuRef<T> {}

impl<T: Send + Sync> PerCpuRef<T> {
    /// The first reference to `value`.
    pub fn new(ncpus: usize, value: T) -> Self {
        let inner = Box::new(Inner {
            killed: AtomicBool::new(false),
            // One for the reference returned.
            count: AtomicI64::new(BIAS + 1),
            deltas: PerCpu::new(ncpus, |_| AtomicI64::new(0)),
            value,
        });
        Self {
            inner: NonNull::from(Box::leak(inner)),
            owns: PhantomData,
        }
    }

    /// Switches to one atomic count, so that dropping the last reference frees the object. Sleeps for a grace period of
    /// `epoch`; only the first call has an effect.
    pub fn kill(&self, epoch: &Epoch) {
        let inner = self.inner();
        // Relaxed: the grace period below makes it visible to every CPU.
        if inner.killed.swap(true, Relaxed) {
            return;
        }
        // After the grace period every CPU that would update a delta sees `killed`, and all earlier updates are
        // visible.
        epoch.synchronize();
        let sum: i64 = inner.deltas.iter().map(|d| d.load(Relaxed)).sum();
        // Not the last: `self` is a reference. Its drop, a Release, passes on what the deltas' CPUs did.
        inner.count.fetch_add(sum - BIAS, Relaxed);
    }

    /// Number of references: exact if none is taken or dropped meanwhile, else a hint.
    pub fn references(&self) -> i64 {
        let inner = self.inner();
        let count = inner.count.load(Relaxed);
        if count < BIAS / 2 {
            return count;
        }
        count - BIAS + inner.deltas.iter().map(|d| d.load(Relaxed)).sum::<i64>()
    }

    /// Whether `kill` was called.
    pub fn is_killed(&self) -> bool {
        self.inner().killed.load(Relaxed)
    }
}

impl<T> PerCpuRef<T> {
    fn inner(&self) -> &Inner<T> {
        // SAFETY: alive while a reference exists.
        unsafe { self.inner.as_ref() }
    }

    /// Adds `n` references; returns the new count if it is exact.
    fn update(&self, n: i64) -> Option<i64> {
        let inner = self.inner();
        let pin = pin();
        if inner.killed.load(Relaxed) {
            // Release: the uses of this reference are over; the last drop fences with Acquire.
            return Some(inner.count.fetch_add(n, Release) + n);
        }
        let delta = inner.deltas.get(&pin);
        // Not a read-modify-write: this CPU alone writes it, and no interrupt handler does.
        delta.store(delta.load(Relaxed) + n, Relaxed);
        None
    }
}

impl<T> Clone for PerCpuRef<T> {
    fn clone(&self) -> Self {
        self.update(1);
        Self {
            inner: self.inner,
            owns: PhantomData,
        }
    }
}

impl<T> Deref for PerCpuRef<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T> Drop for PerCpuRef<T> {
    fn drop(&mut self) {
        if self.update(-1) == Some(0) {
            fence(Acquire);
            // SAFETY: an exact count of zero: no reference is left.
            drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
        }
    }
}
