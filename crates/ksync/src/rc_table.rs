//! A growing table of [`EpochRc`]s, looked up without a lock.
//!
//! Guarantee: a lookup takes no lock and writes no line but that of the reference count it finds. It sees each slot as
//! it was at some moment of the lookup.
//!
//! Mechanism: the slots are words. A reader goes from the table's array to the word and to the object's count under a
//! pin. Changes are made under the table's lock. This makes growth safe, which copies all words into a larger array:
//! nothing changes meanwhile, and readers of the old array see what the table contained then.
//!
//! If a reader finds that the last reference to an object in a slot was dropped, the slot or the array has changed
//! since, and it tries again.

use alloc::alloc::{Layout, alloc, dealloc};
use core::{
    marker::PhantomData,
    mem,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
};

use crate::{
    atomic::{AtomicPtr, Ordering::*},
    class::LockClass,
    epoch::{Epoch, Freed, Link},
    epoch_rc::{Block, EpochRc},
    percpu::{CpuPin, pin},
    platform,
    shim::DataCell,
    spin::{Spin, SpinGuard},
};

/// One slot of an array: null; or the address of a block, perhaps with MARK added; or MARK alone, for a slot that a writer
/// has reserved.
type BlockPtr<T> = AtomicPtr<Block<T>>;

/// Blocks are aligned to words, so this bit is unused.
const MARK: usize = 1;

/// The head of an array; `len` slots follow it.
#[repr(C)]
struct Array<T> {
    link: Link,
    /// Const. A cell, so that model checkers detect a read of an array before it is built or after it is freed.
    len: DataCell<usize>,
    places: [BlockPtr<T>; 0],
}

/// There is no memory for a larger table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

impl<T> Array<T> {
    /// Bytes of the smallest array: a cache line. Larger sizes are powers of two, so that no two arrays share a line.
    const LEAST: usize = 64;

    fn layout(len: usize) -> Option<Layout> {
        let bytes = len.checked_mul(size_of::<BlockPtr<T>>())?;
        let bytes = bytes.checked_add(size_of::<Self>())?;
        Layout::from_size_align(bytes, Self::LEAST).ok()
    }

    /// Number of slots of the smallest array with at least `len`.
    fn round(len: usize) -> Option<usize> {
        let bytes = Self::layout(len)?.size().checked_next_power_of_two()?;
        Some((bytes.max(Self::LEAST) - size_of::<Self>()) / size_of::<BlockPtr<T>>())
    }

    /// An array of at least `len` slots: copies of those of `old`, then empty ones.
    fn new(len: usize, old: &[BlockPtr<T>]) -> Option<NonNull<Self>> {
        let len = Self::round(len)?;
        // SAFETY: the layout is not of size zero.
        let array = NonNull::new(unsafe { alloc(Self::layout(len)?) })?.cast::<Self>();
        // SAFETY: fresh memory of the right size and alignment.
        unsafe {
            (&raw mut (*array.as_ptr()).link).write(Link::new(Self::run));
            (&raw mut (*array.as_ptr()).len).write(DataCell::new(len));
            let places = (&raw mut (*array.as_ptr()).places).cast::<BlockPtr<T>>();
            // Two loops, each as short as possible: this may run with preemption off.
            for (i, p) in old.iter().enumerate().take(len) {
                // Relaxed: the table's lock is held.
                places.add(i).write(BlockPtr::new(p.load(Relaxed)));
            }
            for i in old.len()..len {
                places.add(i).write(BlockPtr::new(ptr::null_mut()));
            }
        }
        Some(array)
    }

    /// The slots of an array, if there is one. They follow the head, so a reference to the head does not cover them.
    ///
    /// # Safety
    /// `array` is null, or comes from `new` and is not freed while the result is used.
    #[inline(always)]
    unsafe fn places<'a>(array: *mut Self) -> &'a [BlockPtr<T>] {
        if array.is_null() {
            return &[];
        }
        // SAFETY: by the caller's promise; `new` has put `len` slots behind the head.
        unsafe {
            let len = *(*array).len.get_shared();
            core::slice::from_raw_parts((&raw const (*array).places).cast(), len)
        }
    }

    /// Frees an array whose words own nothing any more.
    unsafe fn run(link: *mut Link) -> Freed {
        let array = link.cast::<Self>();
        // SAFETY: the caller passes the array's own link, at its start, once; `len` is the rounded length that `new`
        // allocated.
        unsafe {
            let len = *(*array).len.get();
            ptr::drop_in_place(ptr::slice_from_raw_parts_mut(
                (&raw mut (*array).places).cast::<BlockPtr<T>>(),
                len,
            ));
            if let Some(layout) = Self::layout(len) {
                dealloc(array.cast(), layout);
            }
        }
        Freed::All(1)
    }
}

fn mark_bit(on: bool) -> usize {
    if on { MARK } else { 0 }
}

fn is_marked<T>(word: *mut Block<T>) -> bool {
    word.addr() & MARK != 0
}

fn block<T>(word: *mut Block<T>) -> Option<NonNull<Block<T>>> {
    NonNull::new(word.map_addr(|a| a & !MARK))
}

/// Begins a cache line.
#[repr(align(64))]
struct NextLine;

/// A table of optional [`EpochRc`]s, each with a mark, and of a `W` for writers.
#[repr(C)]
pub struct RcTable<T: Send + Sync + 'static, W, C: LockClass> {
    /// The array; null while the table has no slots. Replaced under the lock; a replaced array is retired.
    array: AtomicPtr<Array<T>>,
    owns: PhantomData<EpochRc<T>>,
    /// The writers' data is on other lines than those that readers read.
    _writers: [NextLine; 0],
    writer: Spin<W, C>,
}

// SAFETY: readers get references, which are `Send`; the lock excludes other writers.
unsafe impl<T: Send + Sync + 'static, W: Send, C: LockClass> Sync for RcTable<T, W, C> {}
// SAFETY: the references and `W` are sent with the table.
unsafe impl<T: Send + Sync + 'static, W: Send, C: LockClass> Send for RcTable<T, W, C> {}

impl<T: Send + Sync + 'static, W, C: LockClass> RcTable<T, W, C> {
    const_fn! {
        /// An empty table; it owns no memory.
        pub fn new(extra: W) -> Self {
            Self {
                array: AtomicPtr::new(ptr::null_mut()),
                owns: PhantomData,
                _writers: [],
                writer: Spin::new(extra),
            }
        }
    }

    /// The slots of the present array, without a lock.
    #[inline]
    fn places<'a>(&'a self, _pin: &'a CpuPin) -> &'a [BlockPtr<T>] {
        // SAFETY: an array is retired after it was replaced; the pin delays the end of its grace period.
        unsafe { Array::places(self.array.load(Acquire)) }
    }

    /// A reference to the object in slot `i`.
    #[inline]
    pub fn get(&self, pin: &CpuPin, i: usize) -> Option<EpochRc<T>> {
        loop {
            // Acquire: the object is fully built.
            let found = block(self.places(pin).get(i)?.load(Acquire))?;
            // SAFETY: each change of a slot is made in the table's present array, and drops the old reference after
            // that. The contents of a replaced array were in the table when it was replaced, and a reader of the old
            // array began before that.
            if let Some(found) = unsafe { EpochRc::try_from_found(found, pin) } {
                return Some(found);
            }
            platform::relax();
        }
    }

    /// Number of slots in `range` that are not empty, without a lock; `None` if the table ends before the range.
    pub fn taken(&self, pin: &CpuPin, range: core::ops::Range<usize>) -> Option<usize> {
        let places = self.places(pin);
        let places = places.get(range.start..range.end.min(places.len()))?;
        // Relaxed: the objects themselves are not accessed.
        let taken = places.iter().filter(|p| block(p.load(Relaxed)).is_some());
        (!places.is_empty()).then(|| taken.count())
    }

    /// The first object in a slot of `range`, with its index, without a lock; `None` if the table ends before the range.
    pub fn first_in(
        &self,
        pin: &CpuPin,
        range: core::ops::Range<usize>,
    ) -> Option<Option<(usize, EpochRc<T>)>> {
        let end = range.end.min(self.room(pin));
        if range.start >= end {
            return None;
        }
        Some((range.start..end).find_map(|i| Some((i, self.get(pin, i)?))))
    }

    /// Number of slots, without a lock.
    pub fn room(&self, pin: &CpuPin) -> usize {
        self.places(pin).len()
    }

    /// The last slot with an object, if there is one. `step` slots are looked at in one section.
    fn last(&self, step: usize) -> Option<usize> {
        let mut end = usize::MAX;
        while end > 0 {
            let pin = pin();
            // An array is never replaced by a smaller one.
            let places = self.places(&pin);
            end = end.min(places.len());
            let from = end.saturating_sub(step);
            let has = |p: &BlockPtr<T>| block(p.load(Relaxed)).is_some();
            if let Some(i) = places[from..end].iter().rposition(has) {
                return Some(from + i);
            }
            end = from;
        }
        None
    }

    /// A table of the same references and marks, only as large as needed. A table of at most `step` slots is copied in one
    /// hold of the lock, as it is at one moment. A larger one is copied in steps of so many slots, and the copy of a slot is
    /// what the slot had at some moment of the call: an object that a writer moves meanwhile may be in both copies or in
    /// none. `extra` gets the number of slots of the copy, and the index of the first without an object.
    pub fn copy(&self, step: usize, extra: impl FnOnce(usize, usize) -> W) -> Result<Self, NoRoom> {
        let locked = self.lock();
        let whole = (locked.len() <= step).then_some(locked);
        // In steps only if the lock is not held. No array shrinks, so that what is below `last` stays below the end.
        let Some(last) = self.last(step) else {
            return Ok(Self::new(extra(0, 0)));
        };
        let array = Array::new(last + 1, &[]).ok_or(NoRoom)?;
        // SAFETY: `new` has made it.
        let places = unsafe { Array::places(array.as_ptr()) };
        let mut free = None;
        let mut copy_step = |locked: &RcTableGuard<'_, T, W, C>, first: usize| {
            let from = locked.places()[first..=last].iter().take(step);
            for (i, (from, to)) in from.zip(&places[first..]).enumerate() {
                // Relaxed: the lock is held, and the copy is not shared yet.
                let word = from.load(Relaxed);
                if let Some(found) = block(word) {
                    // SAFETY: as in `RcTableGuard::get`. The slot of the copy owns the new reference.
                    let held = mem::ManuallyDrop::new(unsafe { EpochRc::from_raw(found) });
                    mem::forget(EpochRc::clone(&held));
                    to.store(word, Relaxed);
                } else if free.is_none() {
                    free = Some(first + i);
                }
            }
        };
        match whole {
            Some(locked) => copy_step(&locked, 0),
            None => (0..=last)
                .step_by(step)
                .for_each(|first| copy_step(&self.lock(), first)),
        }
        let copy = Self::new(extra(places.len(), free.unwrap_or(last + 1)));
        copy.array.store(array.as_ptr(), Relaxed);
        Ok(copy)
    }

    /// Locks the table for changes.
    pub fn lock(&self) -> RcTableGuard<'_, T, W, C> {
        let writer = self.writer.lock();
        RcTableGuard {
            table: self,
            writer,
        }
    }

    /// The writers' data of a table with exclusive access.
    pub fn extra_mut(&mut self) -> &mut W {
        self.writer.get_mut()
    }

    /// Removes everything from a table with exclusive access, from the first slot on.
    pub fn drain(&mut self) -> impl Iterator<Item = EpochRc<T>> {
        // SAFETY: `&mut self`: no reader is left, and the table owns the array.
        let places = unsafe { Array::places(self.array.load(Relaxed)) };
        places.iter().filter_map(|place| {
            let word = place.swap(ptr::null_mut(), Relaxed);
            // SAFETY: the swap took the slot's reference.
            block(word).map(|b| unsafe { EpochRc::from_raw(b) })
        })
    }
}

impl<T: Send + Sync + 'static, W, C: LockClass> Drop for RcTable<T, W, C> {
    fn drop(&mut self) {
        self.drain().for_each(drop);
        let array = self.array.load(Relaxed);
        if !array.is_null() {
            // SAFETY: `&mut self`: no reader is left, and the words own nothing any more.
            unsafe { Array::<T>::run(array.cast()) };
        }
    }
}

/// A table, locked for changes.
pub struct RcTableGuard<'a, T: Send + Sync + 'static, W, C: LockClass> {
    table: &'a RcTable<T, W, C>,
    writer: SpinGuard<'a, W, C>,
}

impl<T: Send + Sync + 'static, W, C: LockClass> RcTableGuard<'_, T, W, C> {
    fn places(&self) -> &[BlockPtr<T>] {
        // SAFETY: the lock is held, so the array is not replaced. Relaxed: for the same reason.
        unsafe { Array::places(self.table.array.load(Relaxed)) }
    }

    fn word(&self, i: usize) -> *mut Block<T> {
        let place = self.places().get(i);
        place.map_or(ptr::null_mut(), |p| p.load(Relaxed))
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.places().len()
    }

    /// Whether there is no slot.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether slot `i` has an object.
    pub fn has(&self, i: usize) -> bool {
        block(self.word(i)).is_some()
    }

    /// Whether slot `i` has no object and is not reserved.
    pub fn is_free(&self, i: usize) -> bool {
        self.word(i).is_null()
    }

    /// Whether slot `i` is reserved.
    pub fn is_reserved(&self, i: usize) -> bool {
        self.word(i).addr() == MARK
    }

    /// Whether slot `i` has an object and is marked.
    pub fn is_marked(&self, i: usize) -> bool {
        self.has(i) && is_marked(self.word(i))
    }

    /// A reference to the object in slot `i`.
    pub fn get(&self, i: usize) -> Option<EpochRc<T>> {
        let found = block(self.word(i))?;
        // SAFETY: the slot owns a reference, which is not removed while the lock is held; it is copied, not consumed.
        let held = mem::ManuallyDrop::new(unsafe { EpochRc::from_raw(found) });
        Some(EpochRc::clone(&held))
    }

    /// Makes room for at least `len` slots. A larger array costs a copy of all slots.
    pub fn grow(&mut self, epoch: &Epoch, len: usize) -> Result<(), NoRoom> {
        if len <= self.len() {
            return Ok(());
        }
        let new = Array::new(len, self.places()).ok_or(NoRoom)?;
        let old = self.table.array.swap(new.as_ptr(), AcqRel);
        if !old.is_null() {
            // SAFETY: new readers do not find the old array, and its words own nothing: those of the new one do.
            unsafe { epoch.handle().retire_link(self.writer.pin(), old.cast()) };
        }
        Ok(())
    }

    /// Puts `new` into slot `i`, which exists, with or without a mark; returns the old contents.
    pub fn put(&mut self, i: usize, new: EpochRc<T>, mark: bool) -> Option<EpochRc<T>> {
        let word = new.into_raw().as_ptr();
        self.swap(i, word.map_addr(|a| a | mark_bit(mark)))
    }

    /// Empties slot `i`; returns its contents.
    pub fn take(&mut self, i: usize) -> Option<EpochRc<T>> {
        if self.has(i) {
            self.swap(i, ptr::null_mut())
        } else {
            None
        }
    }

    /// Reserves slot `i`, which exists and is free, for a later `put`. Readers find it empty.
    pub fn reserve(&mut self, i: usize) {
        self.places()[i].store(ptr::without_provenance_mut(MARK), Relaxed);
    }

    /// Frees slot `i`, if it is reserved.
    pub fn cancel(&mut self, i: usize) {
        if self.is_reserved(i) {
            self.places()[i].store(ptr::null_mut(), Relaxed);
        }
    }

    fn swap(&mut self, i: usize, word: *mut Block<T>) -> Option<EpochRc<T>> {
        let place = &self.places()[i];
        // No atomic swap: the lock is held. Release: a reader that finds the object finds it fully built.
        let old = place.load(Relaxed);
        place.store(word, Release);
        // SAFETY: the slot's reference was replaced, so the caller owns it now.
        block(old).map(|b| unsafe { EpochRc::from_raw(b) })
    }

    /// Sets or clears the mark of slot `i`, if that has an object.
    pub fn set_mark(&mut self, i: usize, on: bool) {
        let word = self.word(i);
        if block(word).is_some() {
            let marked = word.map_addr(|a| a & !MARK | mark_bit(on));
            self.places()[i].store(marked, Release);
        }
    }
}

impl<T: Send + Sync + 'static, W, C: LockClass> Deref for RcTableGuard<'_, T, W, C> {
    type Target = W;
    fn deref(&self) -> &W {
        &self.writer
    }
}

impl<T: Send + Sync + 'static, W, C: LockClass> DerefMut for RcTableGuard<'_, T, W, C> {
    fn deref_mut(&mut self) -> &mut W {
        &mut self.writer
    }
}
