//! The running thread of each CPU, with its type.
//!
//! This crate does not know what a thread is. The kernel above names the type once, by [`thread_type!`](crate::thread_type),
//! and gets the functions that read and set the CPU's pointer to it.

use core::cell::RefCell;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use crate::percpu;

/// The running thread, as seen by itself.
///
/// It can neither be sent away nor outlive the thread's stack, so the thread outlives it.
pub struct Current<T> {
    thread: NonNull<T>,
    /// Belongs to the thread that asked.
    _local: PhantomData<*mut ()>,
}

impl<T> Clone for Current<T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Current<T> {}

impl<T> Deref for Current<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the scheduler installs only threads that it keeps alive until after they have left the CPU for the
        // last time, and a `Current` lives on the stack of its own thread.
        unsafe { self.thread.as_ref() }
    }
}

/// What one thread alone uses, without a lock: the first thread that reaches it by [`Current::own`].
pub struct Own<S> {
    /// Address of the thread; 0 before its first access.
    owner: AtomicUsize,
    state: RefCell<S>,
}

impl<S> Own<S> {
    /// The state of a new thread.
    pub const fn new(state: S) -> Self {
        Own {
            owner: AtomicUsize::new(0),
            state: RefCell::new(state),
        }
    }
}

// SAFETY: the cell is reached through the `Current` of one thread, which only that thread has and which cannot be
// shared with another one; the last owner of the cell, which drops it, is the only user by then.
unsafe impl<S: Send> Sync for Own<S> {}

impl<T> Current<T> {
    /// The thread's own state; `None` for that of another thread.
    ///
    /// A thread's state ends no later than the thread, so an address stands for one thread.
    #[inline(always)]
    pub fn own<'o, S>(&self, own: &'o Own<S>) -> Option<&'o RefCell<S>> {
        let me = self.thread.addr().get();
        // Relaxed: whatever another thread writes here, it is not this thread's address.
        let owner = own.owner.load(Relaxed);
        (owner == me || owner == 0 && claim(&own.owner, me)).then_some(&own.state)
    }
}

#[cold]
fn claim(owner: &AtomicUsize, me: usize) -> bool {
    owner.compare_exchange(0, me, Relaxed, Relaxed).is_ok()
}

/// The CPUs' pointers to threads of type `T`.
pub struct Running<T>(PhantomData<fn() -> T>);

impl<T: Sync + 'static> Running<T> {
    /// What [`thread_type!`](crate::thread_type) makes.
    ///
    /// # Safety
    /// No other type but `T` has such a value in this binary.
    pub const unsafe fn new() -> Self {
        Running(PhantomData)
    }

    /// The running thread. Not to be called before the first one runs on this CPU.
    #[inline(always)]
    pub fn current(&self) -> Current<T> {
        match self.try_current() {
            Some(current) => current,
            None => no_thread(),
        }
    }

    /// The running thread, if the CPU has one yet.
    #[inline(always)]
    pub fn try_current(&self) -> Option<Current<T>> {
        NonNull::new(percpu::current().cast::<T>()).map(|thread| Current {
            thread,
            _local: PhantomData,
        })
    }

    /// Makes `thread` the running one. Called by the scheduler, with preemption off, for a thread that stays alive until
    /// another has run on this CPU, and runs on no other CPU; the one file that has this value answers for that.
    #[inline]
    pub fn set_current(&self, thread: &T) {
        percpu::set_current(core::ptr::from_ref(thread).cast_mut().cast());
    }
}

#[cold]
fn no_thread() -> ! {
    panic!("no thread runs on this CPU yet")
}

/// Defines `$name`, private to its module, the [`Running`] of threads of type `$t`. Exactly once per binary: a second one fails to link.
#[macro_export]
macro_rules! thread_type {
    ($name:ident, $t:ty) => {
        /// Which thread each CPU runs.
        #[allow(
            unsafe_code,
            reason = "the symbol below makes this the only type of threads"
        )]
        static $name: $crate::current::Running<$t> = {
            // SAFETY: the name belongs to hal, and a second definition fails to link.
            #[unsafe(export_name = "__pantala_hal_thread_type")]
            static ONLY: u8 = 0;
            // SAFETY: `ONLY` exists once.
            unsafe { $crate::current::Running::new() }
        };
    };
}

/// An interrupt handler at work.
///
/// Its locks are ordered among themselves. Those that the interrupted thread holds do not count: a handler takes only locks
/// that threads take with interrupts off, so none that it waits for is held below it.
pub struct Handler(());

impl Handler {
    /// Called at the beginning, with interrupts off.
    pub fn begin() -> Self {
        percpu::set_handling(true);
        Handler(())
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        percpu::set_handling(false);
    }
}
