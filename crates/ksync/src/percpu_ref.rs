//! A reference count for long-lived objects to which many CPUs take and drop references all the time.
//!
//! While the object lives, a reference is counted on this CPU's line. `kill` ends that: it switches to one atomic count,
//! waits a grace period so that no CPU is in the middle of a per-CPU update, and adds what the lines have to the count,
//! which can reach zero from then on. Until that is added the count contains BIAS, so that it cannot reach zero early.
//!
//! A reference may be taken on one CPU and dropped on another, so a line has two counters, of takes and of drops: a sum
//! that reads all drops before all takes misses no take whose drop it has read, and is never too low.

use alloc::boxed::Box;
use core::{marker::PhantomData, ops::Deref, ptr::NonNull};

use crate::{
    atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::*, fence},
    epoch::Epoch,
    percpu::{PerCpu, pin},
};

const BIAS: i64 = 1 << 62;

/// References taken and dropped on one CPU before `killed`; they wrap around. Written by that CPU alone, with preemption
/// off.
struct Line {
    takes: AtomicU64,
    drops: AtomicU64,
}

struct Inner<T> {
    /// Set once, by `kill`.
    killed: AtomicBool,
    /// References taken less references dropped since `killed`; plus BIAS until those of the lines are added.
    count: AtomicI64,
    lines: PerCpu<Line>,
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
            lines: PerCpu::new(ncpus, |_| Line {
                takes: AtomicU64::new(0),
                drops: AtomicU64::new(0),
            }),
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
        // After the grace period every CPU that would update a line sees `killed`, and all earlier updates are visible.
        epoch.synchronize();
        let lines = inner.takes().wrapping_sub(inner.drops()) as i64;
        // Not the last: `self` is a reference. Its drop, a Release, passes on what the lines' CPUs did.
        inner.count.fetch_add(lines - BIAS, Relaxed);
    }

    /// Number of references: exact if none is taken or dropped meanwhile, else perhaps too high. It is too low only by
    /// references whose takes the caller has not been told of.
    pub fn references(&self) -> i64 {
        let inner = self.inner();
        // Drops before takes. Between them the count: it has takes of what a line has dropped, and drops of what a line
        // has taken.
        let drops = inner.drops();
        let count = inner.count.load(Acquire);
        if count < BIAS / 2 {
            return count;
        }
        count - BIAS + inner.takes().wrapping_sub(drops) as i64
    }

    /// Whether `kill` was called.
    pub fn is_killed(&self) -> bool {
        self.inner().killed.load(Relaxed)
    }
}

impl<T> Inner<T> {
    /// Takes on all CPUs.
    fn takes(&self) -> u64 {
        let takes = self.lines.iter().map(|line| line.takes.load(Relaxed));
        takes.fold(0, u64::wrapping_add)
    }

    /// Drops on all CPUs. Their takes are visible afterwards.
    fn drops(&self) -> u64 {
        let drops = self.lines.iter().map(|line| line.drops.load(Acquire));
        drops.fold(0, u64::wrapping_add)
    }
}

impl<T> PerCpuRef<T> {
    fn inner(&self) -> &Inner<T> {
        // SAFETY: alive while a reference exists.
        unsafe { self.inner.as_ref() }
    }

    /// Counts one on the `counter` of this CPU's line; after `kill` adds `n` to the count instead, and returns the count.
    fn update(&self, counter: impl FnOnce(&Line) -> &AtomicU64, n: i64) -> Option<i64> {
        let inner = self.inner();
        let pin = pin();
        if inner.killed.load(Relaxed) {
            // Release: the uses of this reference are over; the last drop fences with Acquire.
            return Some(inner.count.fetch_add(n, Release) + n);
        }
        let counter = counter(inner.lines.get(&pin));
        // Not a read-modify-write: this CPU alone writes it, and no interrupt handler does. Release: to count a drop is to
        // see its take, which came before it, perhaps on another CPU.
        counter.store(counter.load(Relaxed).wrapping_add(1), Release);
        None
    }
}

impl<T> Clone for PerCpuRef<T> {
    fn clone(&self) -> Self {
        self.update(|line| &line.takes, 1);
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
        if self.update(|line| &line.drops, -1) == Some(0) {
            fence(Acquire);
            // SAFETY: an exact count of zero: no reference is left.
            drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
        }
    }
}
