//! The running thread of each CPU, with its type.
//!
//! The type of threads is unknown to this crate. A crate above names it once, by [`thread_type!`](crate::thread_type), and
//! gets the functions that read and set the CPU's pointer to the running thread.

use core::cell::RefCell;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use crate::percpu;

/// A handle on the running thread, which that thread alone has.
///
/// It cannot be sent to another thread, and lives on the thread's stack, so the thread outlives it.
pub struct Current<T> {
    thread: NonNull<T>,
    /// Makes the handle neither `Send` nor `Sync`.
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
        // SAFETY: the scheduler sets only threads that it keeps alive until they have left the CPU for the last time, and a
        // `Current` lives on the stack of its own thread.
        unsafe { self.thread.as_ref() }
    }
}

/// State that one thread accesses, without a lock: the first thread that reaches it by [`Current::own`].
pub struct Own<S> {
    /// Address of the thread; 0 before the first access.
    owner: AtomicUsize,
    state: RefCell<S>,
}

impl<S> Own<S> {
    /// State that no thread has accessed yet.
    pub const fn new(state: S) -> Self {
        Own {
            owner: AtomicUsize::new(0),
            state: RefCell::new(state),
        }
    }
}

// SAFETY: the cell is reached through the `Current` of one thread, which only that thread has and cannot share. When the cell
// is dropped, its owner is the only user.
unsafe impl<S: Send> Sync for Own<S> {}

impl<T> Current<T> {
    /// The state, if it is this thread's or no thread has accessed it yet; `None` if it is another thread's.
    ///
    /// The state must not outlive its thread: then the address identifies the thread.
    #[inline(always)]
    pub fn own<'o, S>(&self, own: &'o Own<S>) -> Option<&'o RefCell<S>> {
        let me = self.thread.addr().get();
        // Relaxed, because other threads never store this thread's address.
        let owner = own.owner.load(Relaxed);
        (owner == me || owner == 0 && claim(&own.owner, me)).then_some(&own.state)
    }
}

#[cold]
fn claim(owner: &AtomicUsize, me: usize) -> bool {
    owner.compare_exchange(0, me, Relaxed, Relaxed).is_ok()
}

/// The pointers of the CPUs to their running threads, of type `T`.
pub struct Running<T>(PhantomData<fn() -> T>);

impl<T: Sync + 'static> Running<T> {
    /// Called by [`thread_type!`](crate::thread_type).
    ///
    /// # Safety
    /// No other type but `T` has such a value in this binary.
    pub const unsafe fn new() -> Self {
        Running(PhantomData)
    }

    /// The running thread.
    ///
    /// # Panics
    /// If no thread has run on this CPU yet.
    #[inline(always)]
    pub fn current(&self) -> Current<T> {
        match self.try_current() {
            Some(current) => current,
            None => no_thread(),
        }
    }

    /// The running thread; `None` on a CPU on which no thread has run yet.
    #[inline(always)]
    pub fn try_current(&self) -> Option<Current<T>> {
        NonNull::new(percpu::current().cast::<T>()).map(|thread| Current {
            thread,
            _local: PhantomData,
        })
    }

    /// Makes `thread` this CPU's running thread. Called by the scheduler, with preemption off, for a thread that runs on no
    /// other CPU and stays alive until another one has run on this CPU. The one file that has this value must see to that.
    #[inline]
    pub fn set_current(&self, thread: &T) {
        percpu::set_current(core::ptr::from_ref(thread).cast_mut().cast());
    }
}

#[cold]
fn no_thread() -> ! {
    panic!("no thread runs on this CPU yet")
}

/// Defines `$name`, private to its module, as the [`Running`] of threads of type `$t`. To be used exactly once in a binary: a
/// second use fails to link.
#[macro_export]
macro_rules! thread_type {
    ($name:ident, $t:ty) => {
        /// The thread that each CPU runs.
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

/// An interrupt handler in progress; it exists from the handler's begin to its end.
///
/// The order of locks is checked among the handler's own. Those that the interrupted thread holds do not count: a handler
/// takes only locks that threads take with interrupts off, so the interrupted thread holds none for which the handler waits.
pub struct Handler(());

impl Handler {
    /// Called at the beginning of a handler, with interrupts off.
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
