//! The only place that knows of model checkers: `--cfg loom` and `--cfg shuttle` replace the
//! atomics, the cells and the threads under every lock of this crate, and under `vm`.

/// Atomics: core's, or those of the model checker in use.
pub mod atomic {
    #[cfg(not(any(loom, shuttle)))]
    pub use core::sync::atomic::*;
    #[cfg(loom)]
    pub use loom::sync::atomic::*;
    #[cfg(loom)]
    pub use loom_fence::fence;
    #[cfg(all(shuttle, not(loom)))]
    pub use shuttle::sync::atomic::*;

    /// loom switches threads at accesses that depend on each other, and does not count a fence as one. So each full
    /// fence is preceded by an access to one common word, which makes loom explore every order of the fences. The
    /// accesses order nothing that the fences do not order.
    #[cfg(loom)]
    mod loom_fence {
        use super::{AtomicUsize, Ordering};

        loom::lazy_static! { static ref FENCES: AtomicUsize = AtomicUsize::new(0); }

        /// Like `fence` of `core`.
        pub fn fence(order: Ordering) {
            if order == Ordering::SeqCst {
                FENCES.fetch_add(1, Ordering::Relaxed);
            }
            loom::sync::atomic::fence(order);
        }
    }
}

/// Declares a function that is `const`, except under loom, whose atomics have no const `new`.
#[cfg(not(loom))]
macro_rules! const_fn {
    ($(#[$m:meta])* $v:vis fn $($rest:tt)*) => { $(#[$m])* $v const fn $($rest)* };
}
/// Declares a function that is `const`, except under loom, whose atomics have no const `new`.
#[cfg(loom)]
macro_rules! const_fn {
    ($(#[$m:meta])* $v:vis fn $($rest:tt)*) => { $(#[$m])* $v fn $($rest)* };
}

/// Declares a static whose contents the model checker recreates for every execution.
#[cfg(not(loom))]
macro_rules! model_static {
    (static $name:ident: $t:ty = $e:expr;) => {
        static $name: $t = $e;
    };
}
/// Declares a static whose contents the model checker recreates for every execution.
#[cfg(loom)]
macro_rules! model_static {
    (static $name:ident: $t:ty = $e:expr;) => {
        loom::lazy_static! { static ref $name: $t = $e; }
    };
}

/// An array of equal values that are not `Copy`.
#[cfg(not(loom))]
macro_rules! array_of {
    ($e:expr; $n:expr) => {
        [const { $e }; $n]
    };
}
/// An array of equal values that are not `Copy`.
#[cfg(loom)]
macro_rules! array_of {
    ($e:expr; $n:expr) => {
        core::array::from_fn(|_| $e)
    };
}

/// Buckets of the table of queues by address, for byte mutexes and `sleep_on`; one under a model checker, because they are
/// part of its state.
#[cfg(not(loom))]
pub(crate) const PARK_BUCKETS: usize = 256;
#[cfg(loom)]
pub(crate) const PARK_BUCKETS: usize = 1;

/// Readers that a byte mutex counts; few under a model checker, so that models reach a full count.
#[cfg(not(loom))]
pub(crate) const BYTE_READERS: u8 = 125;
#[cfg(loom)]
pub(crate) const BYTE_READERS: u8 = 2;

/// The data of a lock. Under loom each access is checked against all others for ordering.
pub(crate) struct DataCell<T>(
    #[cfg(not(loom))] core::cell::UnsafeCell<T>,
    #[cfg(loom)] loom::cell::UnsafeCell<T>,
);

impl<T> DataCell<T> {
    const_fn! {
        pub(crate) fn new(value: T) -> Self {
            #[cfg(not(loom))]
            return Self(core::cell::UnsafeCell::new(value));
            #[cfg(loom)]
            return Self(loom::cell::UnsafeCell::new(value));
        }
    }

    /// The data, for an access that may write.
    #[inline(always)]
    pub(crate) fn get(&self) -> *mut T {
        #[cfg(not(loom))]
        return self.0.get();
        #[cfg(loom)]
        return self.0.with_mut(|p| p);
    }

    /// The data, for an access that only reads.
    #[inline(always)]
    pub(crate) fn get_shared(&self) -> *const T {
        #[cfg(not(loom))]
        return self.0.get();
        #[cfg(loom)]
        return self.0.with(|p| p);
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

/// Stands for plain words that something guards, where these cannot be in a `DataCell`: under loom each access that is told of
/// is checked against all others for ordering. Nothing otherwise.
pub struct Watch(#[cfg(loom)] loom::cell::UnsafeCell<()>);

impl Watch {
    const_fn! {
        /// Nothing was accessed yet.
        pub fn new() -> Self {
            Self(#[cfg(loom)] loom::cell::UnsafeCell::new(()))
        }
    }

    /// The caller only reads the words.
    #[inline(always)]
    pub fn reads(&self) {
        #[cfg(loom)]
        self.0.with(|_| ());
    }

    /// The caller may change the words.
    #[inline(always)]
    pub fn writes(&self) {
        #[cfg(loom)]
        self.0.with_mut(|_| ());
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: there is nothing in it.
#[cfg(loom)]
unsafe impl Sync for Watch {}

/// A full fence directly after a read-modify-write. On x86-64 this is no instruction, because each locked instruction
/// is a full fence; only the compiler must not reorder.
#[inline(always)]
pub fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), loom, shuttle))]
    atomic::fence(atomic::Ordering::SeqCst);
}

/// A full fence between two loads. On x86-64 this is no instruction: loads are made in order, and all CPUs see other
/// CPUs' stores in one order. Only the compiler must not reorder.
#[inline(always)]
pub fn fence_between_loads() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), loom, shuttle))]
    atomic::fence(atomic::Ordering::SeqCst);
}

/// Where a model of schedules may switch threads, though it sees no access: between accesses to words in frames, where its
/// atomics cannot be. Nothing otherwise.
#[inline(always)]
pub fn may_switch() {
    // Not a yield, by which a thread says that it can go no further.
    #[cfg(shuttle)]
    atomic::AtomicBool::new(false).load(atomic::Ordering::Relaxed);
}

/// Adds to a word that only this CPU writes: one instruction in the kernel, so that an interrupt handler of the same
/// CPU may add to the same word.
#[inline(always)]
pub(crate) fn local_add(word: &atomic::AtomicI64, n: i64) {
    #[cfg(all(target_os = "none", target_arch = "x86_64"))]
    // SAFETY: `word` is a valid, aligned, shared-mutable word; an aligned add of eight bytes never
    // tears for the readers of other CPUs, and no other CPU writes it.
    unsafe {
        core::arch::asm!("add qword ptr [{}], {}", in(reg) word.as_ptr(), in(reg) n, options(nostack));
    }
    #[cfg(not(all(target_os = "none", target_arch = "x86_64")))]
    word.fetch_add(n, atomic::Ordering::Relaxed);
}

/// Gives a box up for ever.
#[inline]
pub(crate) fn leak<T: Sync + 'static>(value: alloc::boxed::Box<T>) -> &'static T {
    let value = alloc::boxed::Box::leak(value);
    #[cfg(miri)]
    kept::keep(value);
    value
}

/// Under Miri what is given up on purpose stays on a list, so that whatever it reports as leaked is a leak.
#[cfg(miri)]
mod kept {
    use alloc::boxed::Box;
    use core::{
        ptr,
        sync::atomic::{AtomicPtr, Ordering::*},
    };

    struct Kept {
        _value: *const (),
        next: *mut Kept,
    }

    static ALL: AtomicPtr<Kept> = AtomicPtr::new(ptr::null_mut());

    pub(super) fn keep<T>(value: &'static T) {
        let kept = Box::leak(Box::new(Kept {
            _value: ptr::from_ref(value).cast(),
            next: ptr::null_mut(),
        }));
        let add = |first| {
            kept.next = first;
            Some(ptr::from_mut(kept))
        };
        let _ = ALL.fetch_update(Release, Relaxed, add);
    }
}

/// Threads of the host or of the model checker, for `host` and the tests.
#[cfg(feature = "host")]
pub(crate) mod threads {
    #[cfg(loom)]
    pub(crate) use loom::{
        thread::{Thread, current, park, yield_now},
        thread_local,
    };
    #[cfg(all(shuttle, not(loom)))]
    pub(crate) use shuttle::{
        thread::{Thread, current, park, yield_now},
        thread_local,
    };
    #[cfg(not(any(loom, shuttle)))]
    pub(crate) use std::{
        thread::{Thread, current, park, yield_now},
        thread_local,
    };

    /// Whether threads really run in parallel, so that a thread must exclude the other threads of its simulated CPU.
    pub(crate) const EXCLUDE: bool = !cfg!(any(loom, shuttle));
}
