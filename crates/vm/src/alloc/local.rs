//! Stand-ins for `ksync`, with its names.
#![expect(unsafe_code, reason = "stand-in for a lock")]

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};
use rust_alloc::boxed::Box;

/// Proof that preemption is off.
pub struct CpuPin {
    cpu: usize,
    not_send: PhantomData<*mut ()>,
}

impl CpuPin {
    /// Pins to a CPU.
    pub fn on(cpu: usize) -> CpuPin {
        CpuPin {
            cpu,
            not_send: PhantomData,
        }
    }

    /// The CPU.
    pub fn cpu(&self) -> usize {
        self.cpu
    }
}

/// One value for each CPU.
pub struct PerCpu<T>(Box<[T]>);

impl<T> PerCpu<T> {
    /// Makes one for each CPU.
    pub fn new(ncpus: usize, make: impl FnMut(usize) -> T) -> PerCpu<T> {
        PerCpu((0..ncpus).map(make).collect())
    }

    /// This CPU's.
    #[inline]
    pub fn get(&self, pin: &CpuPin) -> &T {
        &self.0[pin.cpu]
    }

    /// A CPU's.
    pub fn of(&self, cpu: usize) -> &T {
        &self.0[cpu]
    }

    /// All.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

/// A spin lock.
pub struct Spin<T, C> {
    held: AtomicBool,
    value: UnsafeCell<T>,
    class: PhantomData<C>,
}

// SAFETY: the lock lets one thread at a time at the value.
unsafe impl<T: Send, C> Sync for Spin<T, C> {}
// SAFETY: as for the value; the class is no data.
unsafe impl<T: Send, C> Send for Spin<T, C> {}

impl<T, C> Spin<T, C> {
    /// Makes one.
    pub const fn new(value: T) -> Self {
        Spin {
            held: AtomicBool::new(false),
            value: UnsafeCell::new(value),
            class: PhantomData,
        }
    }

    /// Takes it.
    pub fn lock(&self) -> SpinGuard<'_, T, C> {
        while self.held.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        SpinGuard(self)
    }
}

/// Holds a spin lock.
pub struct SpinGuard<'a, T, C>(&'a Spin<T, C>);

impl<T, C> Deref for SpinGuard<'_, T, C> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T, C> DerefMut for SpinGuard<'_, T, C> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T, C> Drop for SpinGuard<'_, T, C> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Release);
    }
}
