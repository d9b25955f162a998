//! Spin locks: for sections of a few dozen instructions that never sleep.
//!
//! Test-and-test-and-set on one 32-bit word, which holds the number of the holder's CPU plus one, so that a CPU that
//! waits for long can report the holder. Not a ticket lock: in a virtual machine the next CPU in line may not be
//! running, and a ticket lock would make all others wait for it.
//!
//! Ordering: the winning compare-and-swap is Acquire and the unlock is a Release store to the same word, so the next
//! holder sees what this one wrote.

use core::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use crate::{
    atomic::{AtomicU32, Ordering::*},
    class::{self, ClassStats, LockClass, Order},
    percpu::{CpuPin, pin},
    platform, profile,
    shim::DataCell,
};

const FREE: u32 = 0;
/// Reads of a held word between two reports of the wait.
const REPORT_EVERY: u32 = 1 << 16;

/// A spin lock of four bytes without data; the class is a parameter of each call.
pub struct RawSpin {
    word: AtomicU32,
}

impl RawSpin {
    const_fn! {
        /// A free lock.
        pub fn new() -> Self {
            Self { word: AtomicU32::new(FREE) }
        }
    }

    /// Takes the lock; preemption is off while the guard lives.
    #[inline(always)]
    pub fn lock<C: LockClass>(&self) -> RawSpinGuard<'_, C> {
        self.lock_ordered::<C>(Order::Ascending)
    }

    /// As `lock`, while a lock of the same rank is held: for pairs taken in order of address.
    #[inline(always)]
    pub fn lock_nested<C: LockClass>(&self) -> RawSpinGuard<'_, C> {
        self.lock_ordered::<C>(Order::Nested)
    }

    #[inline(always)]
    fn lock_ordered<C: LockClass>(&self, order: Order) -> RawSpinGuard<'_, C> {
        let pin = pin();
        class::acquire::<C>(order);
        self.acquire(C::stats());
        profile::taken::<C, _>(self, true);
        RawSpinGuard {
            lock: self,
            pin,
            class: PhantomData,
        }
    }

    /// Takes the lock if it is free.
    #[inline(always)]
    pub fn try_lock<C: LockClass>(&self) -> Option<RawSpinGuard<'_, C>> {
        let pin = pin();
        if !self.try_acquire() {
            return None;
        }
        class::acquire::<C>(Order::Try);
        profile::taken::<C, _>(self, true);
        Some(RawSpinGuard {
            lock: self,
            pin,
            class: PhantomData,
        })
    }

    /// Whether it is held now; for assertions.
    pub fn is_locked(&self) -> bool {
        self.word.load(Relaxed) != FREE
    }

    #[inline(always)]
    fn acquire(&self, stats: &'static ClassStats) {
        if !self.take() {
            self.acquire_slow(stats);
        }
    }

    /// A compare-and-swap, not a swap: a loser does not write the line. Preemption is off.
    #[inline(always)]
    fn take(&self) -> bool {
        let held = platform::cpu() as u32 + 1;
        self.word
            .compare_exchange(FREE, held, Acquire, Relaxed)
            .is_ok()
    }

    #[inline(always)]
    fn try_acquire(&self) -> bool {
        self.word.load(Relaxed) == FREE && self.take()
    }

    /// Spins until the lock is taken, names the holder to the platform now and then, and counts the wait.
    #[cold]
    #[inline(never)]
    fn acquire_slow(&self, stats: &'static ClassStats) {
        let since = platform::ticks();
        let mut looks = 0u32;
        loop {
            // Only read while it is held, so that the waiting CPUs share the line.
            loop {
                let word = self.word.load(Relaxed);
                if word == FREE {
                    break;
                }
                if looks.is_multiple_of(REPORT_EVERY) {
                    platform::spins(stats.name(), word as usize - 1);
                }
                looks = looks.wrapping_add(1);
                platform::relax();
            }
            if self.take() {
                break;
            }
        }
        stats.stalled(false, since);
    }

    #[inline(always)]
    fn release(&self) {
        self.word.store(FREE, Release);
    }
}

impl Default for RawSpin {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RawSpin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_locked() {
            "RawSpin(held)"
        } else {
            "RawSpin(free)"
        })
    }
}

/// Guard of a [`RawSpin`].
#[must_use = "the lock is released when the guard is dropped"]
pub struct RawSpinGuard<'a, C: LockClass> {
    lock: &'a RawSpin,
    // Dropped after the release in `drop`.
    pin: CpuPin,
    class: PhantomData<C>,
}

impl<C: LockClass> RawSpinGuard<'_, C> {
    /// The pin that holding the lock implies.
    #[inline(always)]
    pub fn pin(&self) -> &CpuPin {
        &self.pin
    }
}

impl<C: LockClass> Drop for RawSpinGuard<'_, C> {
    #[inline(always)]
    fn drop(&mut self) {
        if profile::on() {
            return release_measured::<C>(self.lock);
        }
        self.lock.release();
        class::release::<C>();
    }
}

/// Apart, with the call in it, so that the release beside it needs no stack frame.
#[cold]
#[inline(never)]
fn release_measured<C: LockClass>(lock: &RawSpin) {
    profile::leaving::<C, _>(lock, true);
    lock.release();
    class::release::<C>();
}

/// A spin lock with its data. Preemption is off while it is held, interrupts stay as they are: it
/// must not be taken by an interrupt handler.
pub struct Spin<T, C> {
    raw: RawSpin,
    class: PhantomData<C>,
    data: DataCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the data.
unsafe impl<T: Send, C> Sync for Spin<T, C> {}
// SAFETY: the data is sent with it; the class is only a name.
unsafe impl<T: Send, C> Send for Spin<T, C> {}

impl<T, C> Spin<T, C> {
    const_fn! {
        /// A free lock around `value`.
        pub fn new(value: T) -> Self {
            Self { raw: RawSpin::new(), class: PhantomData, data: DataCell::new(value) }
        }
    }

    /// The data, with exclusive access.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self`.
        unsafe { &mut *self.data.get() }
    }

    /// The data, without the lock.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T, C: LockClass> Spin<T, C> {
    /// Takes the lock.
    #[inline(always)]
    pub fn lock(&self) -> SpinGuard<'_, T, C> {
        SpinGuard {
            raw: self.raw.lock::<C>(),
            data: &self.data,
        }
    }

    /// As `lock`, while a lock of the same rank is held: for pairs taken in order of address.
    #[inline(always)]
    pub fn lock_nested(&self) -> SpinGuard<'_, T, C> {
        SpinGuard {
            raw: self.raw.lock_nested::<C>(),
            data: &self.data,
        }
    }

    /// Takes the lock if it is free.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T, C>> {
        Some(SpinGuard {
            raw: self.raw.try_lock::<C>()?,
            data: &self.data,
        })
    }

    /// Whether it is held now; for assertions.
    pub fn is_locked(&self) -> bool {
        self.raw.is_locked()
    }
}

impl<T: Default, C> Default for Spin<T, C> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Guard of a [`Spin`].
#[must_use = "the lock is released when the guard is dropped"]
pub struct SpinGuard<'a, T, C: LockClass> {
    raw: RawSpinGuard<'a, C>,
    data: &'a DataCell<T>,
}

impl<T, C: LockClass> SpinGuard<'_, T, C> {
    /// The pin that holding the lock implies.
    #[inline(always)]
    pub fn pin(&self) -> &CpuPin {
        self.raw.pin()
    }
}

impl<T, C: LockClass> Deref for SpinGuard<'_, T, C> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.data.get_shared() }
    }
}

impl<T, C: LockClass> DerefMut for SpinGuard<'_, T, C> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and the guard borrowed exclusively.
        unsafe { &mut *self.data.get() }
    }
}

/// A spin lock with its data that interrupt handlers may take too: interrupts and preemption are
/// off while it is held.
pub struct IrqSpin<T, C>(Spin<T, C>);

impl<T, C> IrqSpin<T, C> {
    const_fn! {
        /// A free lock around `value`.
        pub fn new(value: T) -> Self {
            Self(Spin::new(value))
        }
    }

    /// The data, with exclusive access.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// The data, without the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T, C: LockClass> IrqSpin<T, C> {
    /// Takes the lock.
    #[inline(always)]
    pub fn lock(&self) -> IrqSpinGuard<'_, T, C> {
        // Preemption is disabled first and enabled last, so that a reschedule that an interrupt or a wake-up requests
        // meanwhile happens at the end, with interrupts in their former state.
        let pin = pin();
        let irq = IrqOff::new();
        IrqSpinGuard {
            spin: self.0.lock(),
            _irq: irq,
            _pin: pin,
        }
    }

    /// As `lock`, while a lock of the same rank is held: for pairs taken in order of address.
    #[inline(always)]
    pub fn lock_nested(&self) -> IrqSpinGuard<'_, T, C> {
        let pin = pin();
        let irq = IrqOff::new();
        IrqSpinGuard {
            spin: self.0.lock_nested(),
            _irq: irq,
            _pin: pin,
        }
    }

    /// Takes the lock if it is free.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<IrqSpinGuard<'_, T, C>> {
        let pin = pin();
        let irq = IrqOff::new();
        Some(IrqSpinGuard {
            spin: self.0.try_lock()?,
            _irq: irq,
            _pin: pin,
        })
    }

    /// Whether it is held now; for assertions.
    pub fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
}

impl<T: Default, C> Default for IrqSpin<T, C> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Keeps interrupts off while it lives.
struct IrqOff(usize);

impl IrqOff {
    #[inline(always)]
    fn new() -> Self {
        Self(platform::irq_save())
    }
}

impl Drop for IrqOff {
    #[inline(always)]
    fn drop(&mut self) {
        platform::irq_restore(self.0);
    }
}

/// Guard of an [`IrqSpin`]. The fields drop in order: lock, interrupts, preemption.
#[must_use = "the lock is released when the guard is dropped"]
pub struct IrqSpinGuard<'a, T, C: LockClass> {
    spin: SpinGuard<'a, T, C>,
    _irq: IrqOff,
    _pin: CpuPin,
}

impl<T, C: LockClass> IrqSpinGuard<'_, T, C> {
    /// The pin that holding the lock implies.
    #[inline(always)]
    pub fn pin(&self) -> &CpuPin {
        self.spin.pin()
    }
}

impl<T, C: LockClass> Deref for IrqSpinGuard<'_, T, C> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.spin
    }
}

impl<T, C: LockClass> DerefMut for IrqSpinGuard<'_, T, C> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.spin
    }
}
