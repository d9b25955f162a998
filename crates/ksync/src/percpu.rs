//! Per-CPU data, and the pin that gives access to it.

use alloc::{boxed::Box, vec::Vec};
use core::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use crate::platform;

/// A value on cache lines of its own: 128 bytes, because CPUs fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

impl<T> Deref for Padded<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Padded<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Proof that the thread stays on its CPU: preemption is off while one is alive.
///
/// A pinned section is a read section of every [`Epoch`](crate::Epoch). It must not sleep.
#[derive(Debug)]
pub struct CpuPin {
    /// A pin belongs to the thread that made it.
    _local: PhantomData<*mut ()>,
}

/// Turns preemption off until the pin is dropped; nests.
#[inline(always)]
pub fn pin() -> CpuPin {
    platform::preempt_disable();
    CpuPin {
        _local: PhantomData,
    }
}

impl CpuPin {
    /// The CPU.
    #[inline(always)]
    pub fn cpu(&self) -> usize {
        platform::cpu()
    }
}

impl Drop for CpuPin {
    #[inline(always)]
    fn drop(&mut self) {
        platform::preempt_enable();
    }
}

/// One `T` for each CPU, each on lines of its own.
#[derive(Debug)]
pub struct PerCpu<T> {
    slots: Box<[Padded<T>]>,
}

impl<T> PerCpu<T> {
    /// Makes the values of CPUs `0..ncpus`.
    pub fn new(ncpus: usize, mut make: impl FnMut(usize) -> T) -> Self {
        Self {
            slots: (0..ncpus).map(|cpu| Padded(make(cpu))).collect(),
        }
    }

    /// As `new`, but returns `None` if memory is short.
    pub fn try_new(ncpus: usize, mut make: impl FnMut(usize) -> T) -> Option<Self> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(ncpus).ok()?;
        slots.extend((0..ncpus).map(|cpu| Padded(make(cpu))));
        Some(Self {
            slots: slots.into_boxed_slice(),
        })
    }

    /// This CPU's value.
    #[inline(always)]
    pub fn get<'p>(&'p self, pin: &'p CpuPin) -> &'p T {
        &self.slots[pin.cpu()].0
    }

    /// The value of `cpu`, on any CPU.
    #[inline(always)]
    pub fn of(&self, cpu: usize) -> &T {
        &self.slots[cpu].0
    }

    /// All values, by CPU.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        self.slots.iter().map(|s| &s.0)
    }

    /// All values, exclusively.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> + ExactSizeIterator {
        self.slots.iter_mut().map(|s| &mut s.0)
    }

    /// Number of CPUs.
    pub fn ncpus(&self) -> usize {
        self.slots.len()
    }
}
