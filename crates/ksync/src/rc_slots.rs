//! The slots of an [`RcTable`](crate::RcTable).
//!
//! Guarantee: making a slot costs a copy of [`CHUNK`] words at most, however many slots there are, and a table with one high
//! slot is small.
//!
//! Mechanism: the first slots are in one array, which is replaced by larger copies until it has [`CHUNK`] of them. The slots
//! behind are in *far* arrays of [`CHUNK`] each. A far array is made when one of its slots is needed, and stays until the
//! table ends. The array of the far arrays grows as the first one does.

use alloc::alloc::{Layout, alloc, dealloc};
use core::ptr::{self, NonNull};

use crate::{
    atomic::{AtomicPtr, Ordering::*},
    epoch::{Epoch, Freed, Link},
    epoch_rc::Block,
    percpu::{CpuPin, pin},
    rc_table::NoRoom,
    shim::DataCell,
};

/// One slot: null; or the address of a block, perhaps with a mark added; or a mark alone.
pub(crate) type BlockPtr<T> = AtomicPtr<Block<T>>;

/// Bytes of an array that does not grow any more.
const FULL: usize = 32 << 10;

/// Slots of such an array. Few under a model checker, so that its tables have far arrays.
pub(crate) const CHUNK: usize = if cfg!(loom) {
    6
} else {
    (FULL - size_of::<Array<()>>()) / size_of::<AtomicPtr<()>>()
};

/// The head of an array; `len` pointers follow it.
#[repr(C)]
struct Array<P> {
    link: Link,
    /// Const. A cell, so that model checkers detect a read of an array before it is built or after it is freed.
    len: DataCell<usize>,
    places: [AtomicPtr<P>; 0],
}

impl<P> Array<P> {
    /// Bytes of the smallest array: a cache line. Larger sizes are powers of two, so that no two arrays share a line.
    const LEAST: usize = 64;

    fn layout(len: usize) -> Option<Layout> {
        let bytes = len.checked_mul(size_of::<AtomicPtr<P>>())?;
        let bytes = bytes.checked_add(size_of::<Self>())?;
        Layout::from_size_align(bytes, Self::LEAST).ok()
    }

    /// The length of the smallest array with at least `len` places.
    fn round(len: usize) -> Option<usize> {
        let bytes = Self::layout(len)?.size().checked_next_power_of_two()?;
        Some((bytes.max(Self::LEAST) - size_of::<Self>()) / size_of::<AtomicPtr<P>>())
    }

    /// An array of `len` places: copies of those of `old`, then empty ones.
    fn new(len: usize, old: &[AtomicPtr<P>]) -> Option<NonNull<Self>> {
        // SAFETY: the layout is not of size zero.
        let array = NonNull::new(unsafe { alloc(Self::layout(len)?) })?.cast::<Self>();
        // SAFETY: fresh memory of the right size and alignment.
        unsafe {
            (&raw mut (*array.as_ptr()).link).write(Link::new(Self::run));
            (&raw mut (*array.as_ptr()).len).write(DataCell::new(len));
            let places = (&raw mut (*array.as_ptr()).places).cast::<AtomicPtr<P>>();
            // Two loops, each as short as possible: this may run with preemption off.
            for (i, p) in old.iter().enumerate().take(len) {
                // Relaxed: the table's lock is held.
                places.add(i).write(AtomicPtr::new(p.load(Relaxed)));
            }
            for i in old.len()..len {
                places.add(i).write(AtomicPtr::new(ptr::null_mut()));
            }
        }
        Some(array)
    }

    /// The places of an array, if there is one. They follow the head, so a reference to the head does not cover them.
    ///
    /// # Safety
    /// `array` is null, or comes from `new` and is not freed while the result is used.
    #[inline(always)]
    unsafe fn places<'a>(array: *mut Self) -> &'a [AtomicPtr<P>] {
        if array.is_null() {
            return &[];
        }
        // SAFETY: by the caller's promise; `new` has put `len` places behind the head.
        unsafe {
            let len = *(*array).len.get_shared();
            core::slice::from_raw_parts((&raw const (*array).places).cast(), len)
        }
    }

    /// Frees an array whose places own nothing any more.
    unsafe fn run(link: *mut Link) -> Freed {
        let array = link.cast::<Self>();
        // SAFETY: the caller passes the array's own link, at its start, once; `len` is the length that `new` allocated.
        unsafe {
            let len = *(*array).len.get();
            ptr::drop_in_place(ptr::slice_from_raw_parts_mut(
                (&raw mut (*array).places).cast::<AtomicPtr<P>>(),
                len,
            ));
            if let Some(layout) = Self::layout(len) {
                dealloc(array.cast(), layout);
            }
        }
        Freed::All(1)
    }

    /// Replaces an array by a copy with `len` places. The old one is retired.
    ///
    /// # Safety
    /// Nobody else changes `at` or the array meanwhile.
    unsafe fn enlarge(
        at: &AtomicPtr<Self>,
        epoch: &Epoch,
        pin: &CpuPin,
        len: usize,
    ) -> Result<(), NoRoom> {
        let old = at.load(Relaxed);
        // SAFETY: only this call replaces the array.
        let new = Self::new(len, unsafe { Self::places(old) }).ok_or(NoRoom)?;
        // Release: a reader that finds the array finds it built.
        at.store(new.as_ptr(), Release);
        if !old.is_null() {
            // SAFETY: new readers do not find the old array, and its places own nothing: those of the new one do.
            unsafe { epoch.handle().retire_link(pin, old.cast()) };
        }
        Ok(())
    }
}

type Slots<T> = Array<Block<T>>;

/// All slots of a table. They own no references: the table does.
pub(crate) struct RcSlots<T> {
    /// The first slots; null if there are none. Replaced under the table's lock; a replaced array is retired.
    first: AtomicPtr<Slots<T>>,
    /// The far arrays, those that exist; null if there are none. Replaced as `first` is.
    far: AtomicPtr<Array<Slots<T>>>,
}

impl<T> RcSlots<T> {
    const_fn! {
        /// No slots; owns no memory.
        pub(crate) fn new() -> Self {
            Self {
                first: AtomicPtr::new(ptr::null_mut()),
                far: AtomicPtr::new(ptr::null_mut()),
            }
        }
    }

    fn first<'a>(&'a self, _pin: &'a CpuPin) -> &'a [BlockPtr<T>] {
        // SAFETY: an array is retired after it was replaced; the pin delays the end of its grace period.
        unsafe { Array::places(self.first.load(Acquire)) }
    }

    fn far<'a>(&'a self, _pin: &'a CpuPin) -> &'a [AtomicPtr<Slots<T>>] {
        // SAFETY: as in `first`.
        unsafe { Array::places(self.far.load(Acquire)) }
    }

    /// Slot `i`, if it exists.
    #[inline]
    pub(crate) fn place<'a>(&'a self, pin: &'a CpuPin, i: usize) -> Option<&'a BlockPtr<T>> {
        match self.first(pin).get(i) {
            Some(place) => Some(place),
            None => self.far_place(pin, i),
        }
    }

    #[inline(never)]
    fn far_place<'a>(&'a self, pin: &'a CpuPin, i: usize) -> Option<&'a BlockPtr<T>> {
        let far = self.far(pin).get((i / CHUNK).checked_sub(1)?)?;
        // SAFETY: far arrays stay until the table ends. Acquire: the array is built.
        unsafe { Array::places(far.load(Acquire)) }.get(i % CHUNK)
    }

    /// One more than the last slot. Slots below it may not exist.
    pub(crate) fn end(&self, pin: &CpuPin) -> usize {
        let exists = |far: &AtomicPtr<Slots<T>>| !far.load(Relaxed).is_null();
        match self.far(pin).iter().rposition(exists) {
            Some(last) => (last + 2) * CHUNK,
            None => self.first(pin).len(),
        }
    }

    /// The number of slots that exist.
    pub(crate) fn count(&self, pin: &CpuPin) -> usize {
        let exists = |far: &&AtomicPtr<Slots<T>>| !far.load(Relaxed).is_null();
        self.first(pin).len() + CHUNK * self.far(pin).iter().filter(exists).count()
    }

    /// Makes slot `i`, if it does not exist, and the others of its array. On an error the slots are as before.
    ///
    /// # Safety
    /// The table's lock is held, or nobody else knows the table.
    pub(crate) unsafe fn make(&self, epoch: &Epoch, pin: &CpuPin, i: usize) -> Result<(), NoRoom> {
        if self.place(pin, i).is_some() {
            return Ok(());
        }
        let Some(chunk) = (i / CHUNK).checked_sub(1) else {
            let len = Slots::<T>::round(i + 1).ok_or(NoRoom)?.min(CHUNK);
            // SAFETY: by the caller's promise.
            return unsafe { Array::enlarge(&self.first, epoch, pin, len) };
        };
        if self.far(pin).len() <= chunk {
            let len = Array::<Slots<T>>::round(chunk + 1).ok_or(NoRoom)?;
            // SAFETY: by the caller's promise.
            unsafe { Array::enlarge(&self.far, epoch, pin, len)? };
        }
        let far = &self.far(pin)[chunk];
        let slots = Slots::<T>::new(CHUNK, &[]).ok_or(NoRoom)?;
        // Release: a reader that finds the array finds it built.
        far.store(slots.as_ptr(), Release);
        Ok(())
    }

    /// Empty slots for a copy of those up to `last`: with each far array that these have. Not under a pin, because there may
    /// be many.
    pub(crate) fn empty_like(&self, last: usize) -> Result<Self, NoRoom> {
        let copy = Self::new();
        let len = Slots::<T>::round(last.min(CHUNK - 1) + 1).ok_or(NoRoom)?;
        let first = Slots::<T>::new(len.min(CHUNK), &[]).ok_or(NoRoom)?;
        copy.first.store(first.as_ptr(), Relaxed);
        let chunks = last / CHUNK;
        if chunks == 0 {
            return Ok(copy);
        }
        let far = Array::<Slots<T>>::round(chunks)
            .and_then(|len| Array::new(len, &[]))
            .ok_or(NoRoom)?;
        copy.far.store(far.as_ptr(), Relaxed);
        for chunk in 0..chunks {
            let exists = {
                let pin = pin();
                let far = self.far(&pin).get(chunk);
                far.is_some_and(|far| !far.load(Relaxed).is_null())
            };
            if exists {
                let slots = Slots::<T>::new(CHUNK, &[]).ok_or(NoRoom)?;
                copy.far(&pin())[chunk].store(slots.as_ptr(), Relaxed);
            }
        }
        Ok(copy)
    }

    /// All slots, in order, with exclusive access.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &BlockPtr<T>> {
        // SAFETY: `&mut self`: nothing replaces or frees an array while the result is used.
        let (first, far) = unsafe {
            (
                Array::places(self.first.load(Relaxed)),
                Array::places(self.far.load(Relaxed)),
            )
        };
        // SAFETY: as above.
        let far = far
            .iter()
            .flat_map(|far| unsafe { Array::places(far.load(Relaxed)) });
        first.iter().chain(far)
    }
}

impl<T> Drop for RcSlots<T> {
    fn drop(&mut self) {
        fn free<P>(array: *mut Array<P>) {
            if !array.is_null() {
                // SAFETY: called once for each array of slots that end: no reader is left, and the places own nothing.
                unsafe { Array::<P>::run(array.cast()) };
            }
        }
        let far = self.far.load(Relaxed);
        // SAFETY: `far` is freed below.
        for slots in unsafe { Array::places(far) } {
            free(slots.load(Relaxed));
        }
        free(far);
        free(self.first.load(Relaxed));
    }
}
