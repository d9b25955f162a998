//! A reference-counted object that is dropped with its last reference, while its memory is freed only a grace period
//! later.
//!
//! Guarantee: a CPU that finds the object's address under a pin may try to take a reference; it gets one, unless the
//! last reference was dropped.
//!
//! Mechanism: the count is outside the object and stays zero once it is. The last drop of a reference drops the object
//! at once, in its own context, and retires the block. So an object whose end others wait for (a pipe's end) ends
//! together with its last user, and not a grace period later, as it would with [`EpochPtr`](crate::EpochPtr).
//!
//! A *weak* reference keeps the block's memory, not the object. The block is retired by the end of the object or of the last weak
//! reference, whichever comes later; all weak references together count as one until the object ends. An object without weak
//! references ends without a further write for them.

use alloc::boxed::Box;
use core::{
    fmt,
    marker::PhantomData,
    mem::{ManuallyDrop, offset_of},
    ops::Deref,
    ptr::NonNull,
};

use crate::{
    atomic::{AtomicUsize, Ordering::*, fence},
    epoch::{Epoch, EpochHandle, Freed, Link},
    percpu::{CpuPin, pin},
};

#[repr(C)]
pub(crate) struct Block<T> {
    /// Number of references; 0 for good once the last was dropped.
    count: AtomicUsize,
    /// Number of weak references, and one more until the object has ended.
    weak: AtomicUsize,
    /// The epoch in which the block is retired. Const.
    epoch: EpochHandle,
    body: Body<T>,
}

/// The object; after its drop, the block's link on the epoch's list.
#[repr(C)]
union Body<T> {
    value: ManuallyDrop<T>,
    link: ManuallyDrop<Link>,
}

impl<T> Block<T> {
    /// Frees the block that contains `link`.
    unsafe fn run(link: *mut Link) -> Freed {
        // SAFETY: the caller passes the link that `EpochRc::drop` wrote into a block's body, once and after the grace
        // period; a union drops nothing with its block.
        unsafe {
            let block = link.byte_sub(offset_of!(Self, body)).cast::<Self>();
            drop(Box::from_raw(block));
        }
        Freed::All(1)
    }
}

/// One reference to a `T`.
pub struct EpochRc<T: Send + Sync + 'static> {
    block: NonNull<Block<T>>,
    owns: PhantomData<Block<T>>,
}

// SAFETY: as for `Arc`.
unsafe impl<T: Send + Sync + 'static> Sync for EpochRc<T> {}
// SAFETY: as for `Arc`.
unsafe impl<T: Send + Sync + 'static> Send for EpochRc<T> {}

impl<T: Send + Sync + 'static> EpochRc<T> {
    /// The first reference to `value`, whose memory is freed through `epoch`.
    pub fn new(epoch: &Epoch, value: T) -> Self {
        let block = Box::new(Block {
            count: AtomicUsize::new(1),
            weak: AtomicUsize::new(1),
            epoch: epoch.handle(),
            body: Body {
                value: ManuallyDrop::new(value),
            },
        });
        Self {
            block: NonNull::from(Box::leak(block)),
            owns: PhantomData,
        }
    }

    /// Whether both refer to one object.
    pub fn ptr_eq(a: &Self, b: &Self) -> bool {
        a.block == b.block
    }

    /// The number of references at some moment of the call.
    pub fn references(this: &Self) -> usize {
        // Acquire: if others have dropped theirs, their uses are over.
        this.block().count.load(Acquire)
    }

    /// Turns the reference into an address.
    pub(crate) fn into_raw(self) -> NonNull<Block<T>> {
        ManuallyDrop::new(self).block
    }

    /// Turns an address into a reference again.
    ///
    /// # Safety
    /// `block` is from `into_raw`, and this is called once for it.
    pub(crate) unsafe fn from_raw(block: NonNull<Block<T>>) -> Self {
        Self {
            block,
            owns: PhantomData,
        }
    }

    /// One more reference, unless the last was dropped.
    ///
    /// # Safety
    /// `block` is from `into_raw`, and the section of `_pin` has found it at a place from which it is removed before
    /// that reference is dropped.
    pub(crate) unsafe fn try_from_found(block: NonNull<Block<T>>, _pin: &CpuPin) -> Option<Self> {
        // SAFETY: the block is retired, at the earliest, after its address was removed, and the pin delays the end of
        // the grace period. The Rust reference covers only the count: the body may be dropped meanwhile.
        let count = unsafe { &(*block.as_ptr()).count };
        let mut n = count.load(Relaxed);
        while n != 0 {
            // Relaxed: the address was read with Acquire, and with it the fully built object.
            match count.compare_exchange_weak(n, n + 1, Relaxed, Relaxed) {
                // SAFETY: the count above stands for this reference.
                Ok(_) => return Some(unsafe { Self::from_raw(block) }),
                Err(now) => n = now,
            }
        }
        None
    }

    fn block(&self) -> &Block<T> {
        // SAFETY: alive while a reference exists.
        unsafe { self.block.as_ref() }
    }

    #[cold]
    #[inline(never)]
    fn end(&mut self) {
        // Acquire: all uses by the earlier references are over.
        fence(Acquire);
        let block = self.block.as_ptr();
        // SAFETY: this was the last reference, and a count of zero prevents new ones, so that the body is not read
        // again.
        unsafe { ManuallyDrop::drop(&mut (*block).body.value) };
        // SAFETY: the share of the object in the weak references is given up here, once.
        unsafe { release(self.block) };
    }

    /// A weak reference to the object.
    pub fn downgrade(this: &Self) -> EpochWeak<T> {
        // Relaxed: `this` keeps the count above zero.
        this.block().weak.fetch_add(1, Relaxed);
        EpochWeak {
            block: this.block,
            owns: PhantomData,
        }
    }
}

/// Gives up one weak reference, or the object's share in them; the last one retires the block.
///
/// # Safety
/// The caller has a weak reference, or that share, and does not use it again.
unsafe fn release<T: Send + Sync + 'static>(block: NonNull<Block<T>>) {
    // SAFETY: the caller's share keeps the block. The Rust reference covers only the count.
    let weak = unsafe { &(*block.as_ptr()).weak };
    // A count of 1 is the caller's own, from which nobody else can make another. Acquire: the end of the object, and all uses of
    // the other weak references, are over.
    if weak.load(Acquire) != 1 {
        // Release: the uses of this one are over.
        if weak.fetch_sub(1, Release) != 1 {
            return;
        }
        fence(Acquire);
    }
    let block = block.as_ptr();
    // SAFETY: the object has ended, and no weak reference is left. The block is given up here; `run` fits the link, which
    // replaces the object.
    unsafe {
        let epoch = (*block).epoch;
        let link = (&raw mut (*block).body.link).cast::<Link>();
        link.write(Link::new(Block::<T>::run));
        epoch.retire_link(&pin(), link);
    }
}

/// A weak reference: to an object that may have ended.
pub struct EpochWeak<T: Send + Sync + 'static> {
    block: NonNull<Block<T>>,
    owns: PhantomData<Block<T>>,
}

// SAFETY: as for `Weak` of `Arc`.
unsafe impl<T: Send + Sync + 'static> Sync for EpochWeak<T> {}
// SAFETY: as for `Weak` of `Arc`.
unsafe impl<T: Send + Sync + 'static> Send for EpochWeak<T> {}

impl<T: Send + Sync + 'static> EpochWeak<T> {
    /// A reference to the object; `None` once its last one was dropped.
    pub fn upgrade(&self) -> Option<EpochRc<T>> {
        // SAFETY: the weak reference keeps the block, as a place from which it is not removed would.
        unsafe { EpochRc::try_from_found(self.block, &pin()) }
    }

    /// The address of the object, which no other object has while the weak reference exists.
    pub fn addr(&self) -> usize {
        self.block.as_ptr().addr() + offset_of!(Block<T>, body)
    }
}

impl<T: Send + Sync + 'static> Drop for EpochWeak<T> {
    fn drop(&mut self) {
        // SAFETY: this is a weak reference, and it ends here.
        unsafe { release(self.block) };
    }
}

impl<T: Send + Sync + 'static> Clone for EpochRc<T> {
    fn clone(&self) -> Self {
        // Relaxed: `self` is a reference, so the object stays; the count cannot overflow, because each reference takes
        // memory.
        self.block().count.fetch_add(1, Relaxed);
        Self {
            block: self.block,
            owns: PhantomData,
        }
    }
}

impl<T: Send + Sync + 'static> Deref for EpochRc<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the body is the object until the last reference is dropped.
        unsafe { &self.block.as_ref().body.value }
    }
}

impl<T: Send + Sync + 'static> Drop for EpochRc<T> {
    #[inline]
    fn drop(&mut self) {
        // Release: this reference's uses are over.
        if self.block().count.fetch_sub(1, Release) == 1 {
            self.end();
        }
    }
}

impl<T: Send + Sync + fmt::Debug + 'static> fmt::Debug for EpochRc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
