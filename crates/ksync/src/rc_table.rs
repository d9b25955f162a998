//! A growing table of [`EpochRc`]s, looked up without a lock.
//!
//! Guarantee: a lookup takes no lock and writes no line but that of the reference count it finds. It sees each slot as
//! it was at some moment of the lookup.
//!
//! Mechanism: the slots are words, see `rc_slots`. A reader goes from the array of slots to the word and to the object's
//! count under a pin. Changes are made under the table's lock. This makes growth safe, which copies words into a larger
//! array: nothing changes meanwhile, and readers of the old array see what the table contained then.
//!
//! If a reader finds that the last reference to an object in a slot was dropped, the slot or the array has changed
//! since, and it tries again.

use core::{
    marker::PhantomData,
    mem,
    ops::{Deref, DerefMut, Range},
    ptr::{self, NonNull},
};

use crate::{
    atomic::{AtomicU32, Ordering::*},
    class::LockClass,
    epoch::Epoch,
    epoch_rc::{Block, EpochRc},
    percpu::{CpuPin, pin},
    platform,
    rc_slots::{BlockPtr, RcSlots},
    spin::{Spin, SpinGuard},
};

/// Blocks are aligned to words, so this bit is unused.
const MARK: usize = 1;

/// There is no memory for a larger table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

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
    /// Changed under the lock.
    slots: RcSlots<T>,
    owns: PhantomData<EpochRc<T>>,
    /// The writers' data is on other lines than those that readers read.
    _writers: [NextLine; 0],
    writer: Spin<W, C>,
    /// How often an object was put into a slot, modulo 2³². Written under the lock, after the slot.
    filled: AtomicU32,
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
                slots: RcSlots::new(),
                owns: PhantomData,
                _writers: [],
                writer: Spin::new(extra),
                filled: AtomicU32::new(0),
            }
        }
    }

    /// A reference to the object in slot `i`.
    #[inline]
    pub fn get(&self, pin: &CpuPin, i: usize) -> Option<EpochRc<T>> {
        loop {
            // Acquire: the object is fully built.
            let found = block(self.slots.place(pin, i)?.load(Acquire))?;
            // SAFETY: each change of a slot is made in the table's present array, and drops the old reference after
            // that. The contents of a replaced array were in the table when it was replaced, and a reader of the old
            // array began before that.
            if let Some(found) = unsafe { EpochRc::try_from_found(found, pin) } {
                return Some(found);
            }
            platform::relax();
        }
    }

    /// Whether slot `i` has an object and is marked, without a lock.
    pub fn looks_marked(&self, pin: &CpuPin, i: usize) -> bool {
        // Relaxed: the object itself is not accessed.
        let word = self.slots.place(pin, i).map(|place| place.load(Relaxed));
        word.is_some_and(|word| block(word).is_some() && is_marked(word))
    }

    /// The part of `range` that is below the table's end; `None` if that is empty.
    fn within(&self, pin: &CpuPin, range: Range<usize>) -> Option<Range<usize>> {
        let range = range.start..range.end.min(self.room(pin));
        (!range.is_empty()).then_some(range)
    }

    /// Whether slot `i` has an object, without a lock.
    fn has(&self, pin: &CpuPin, i: usize) -> bool {
        // Relaxed: the object itself is not accessed.
        let word = self.slots.place(pin, i).map(|place| place.load(Relaxed));
        word.and_then(block).is_some()
    }

    /// Number of slots in `range` that are not empty, without a lock; `None` if the table ends before the range.
    pub fn taken(&self, pin: &CpuPin, range: Range<usize>) -> Option<usize> {
        let range = self.within(pin, range)?;
        Some(range.filter(|&i| self.has(pin, i)).count())
    }

    /// The first object in a slot of `range`, with its index, without a lock; `None` if the table ends before the range.
    pub fn first_in(
        &self,
        pin: &CpuPin,
        range: Range<usize>,
    ) -> Option<Option<(usize, EpochRc<T>)>> {
        let mut range = self.within(pin, range)?;
        Some(range.find_map(|i| Some((i, self.get(pin, i)?))))
    }

    /// One more than the last slot, without a lock. Slots below it may not exist.
    pub fn room(&self, pin: &CpuPin) -> usize {
        self.slots.end(pin)
    }

    /// The last slot with an object, if there is one. `step` slots are looked at in one section.
    fn last(&self, step: usize) -> Option<usize> {
        let mut end = usize::MAX;
        while end > 0 {
            let pin = pin();
            // The table's end is never lowered.
            end = end.min(self.room(&pin));
            let from = end.saturating_sub(step);
            if let Some(i) = (from..end).rfind(|&i| self.has(&pin, i)) {
                return Some(i);
            }
            end = from;
        }
        None
    }

    /// A table of the same references and marks, only as large as needed. A table of at most `step` slots is copied in one
    /// hold of the lock, as it is at one moment. A larger one is copied `step` slots at a time, and the copy of a slot is
    /// what the slot had at some moment of the call: an object that a writer moves meanwhile may be copied twice or not
    /// at all. `extra` gets the number of slots of the copy, and the index of the first without an object.
    ///
    /// # Errors
    /// No memory.
    pub fn copy(&self, step: usize, extra: impl FnOnce(usize, usize) -> W) -> Result<Self, NoRoom> {
        let (last, slots, whole) = loop {
            // No lock is held where memory is allocated, so that the thread can wait for memory there. Acquire: what has been put so
            // often is seen.
            let filled = self.filled.load(Acquire);
            let last = self.last(step);
            let slots = last.map(|last| self.slots.empty_like(last));
            let locked = self.lock();
            let whole = locked.len() <= step;
            // Of a large table, slots may be filled behind `last`, as if after the copy.
            if whole && self.filled.load(Relaxed) != filled && self.last(step) != last {
                continue;
            }
            match (last, slots) {
                (Some(last), Some(slots)) => break (last, slots?, whole.then_some(locked)),
                _ => return Ok(Self::new(extra(0, 0))),
            }
        };
        let mut free = None;
        let mut copy_step = |locked: &RcTableGuard<'_, T, W, C>, first: usize| {
            for i in (first..=last).take(step) {
                let pin = locked.writer.pin();
                // Relaxed: the lock is held, and the copy is not shared yet.
                let word = locked.word(i);
                let Some(found) = block(word) else {
                    free = free.or(Some(i));
                    continue;
                };
                let Some(to) = slots.place(pin, i) else {
                    // The slots around `i` were made after `empty_like` looked.
                    free = free.or(Some(i));
                    continue;
                };
                // SAFETY: as in `RcTableGuard::get`. The slot of the copy owns the new reference.
                let held = mem::ManuallyDrop::new(unsafe { EpochRc::from_raw(found) });
                mem::forget(EpochRc::clone(&held));
                to.store(word, Relaxed);
            }
        };
        match whole {
            Some(locked) => copy_step(&locked, 0),
            None => (0..=last)
                .step_by(step)
                .for_each(|first| copy_step(&self.lock(), first)),
        }
        let count = slots.count(&pin());
        let mut copy = Self::new(extra(count, free.unwrap_or(last + 1)));
        copy.slots = slots;
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
        self.slots.all().filter_map(|place| {
            let word = place.swap(ptr::null_mut(), Relaxed);
            // SAFETY: the swap took the slot's reference.
            block(word).map(|b| unsafe { EpochRc::from_raw(b) })
        })
    }
}

impl<T: Send + Sync + 'static, W, C: LockClass> Drop for RcTable<T, W, C> {
    fn drop(&mut self) {
        self.drain().for_each(drop);
    }
}

/// A table, locked for changes.
pub struct RcTableGuard<'a, T: Send + Sync + 'static, W, C: LockClass> {
    table: &'a RcTable<T, W, C>,
    writer: SpinGuard<'a, W, C>,
}

impl<T: Send + Sync + 'static, W, C: LockClass> RcTableGuard<'_, T, W, C> {
    fn place(&self, i: usize) -> Option<&BlockPtr<T>> {
        self.table.slots.place(self.writer.pin(), i)
    }

    /// As `place`, of a slot that exists.
    fn made(&self, i: usize) -> &BlockPtr<T> {
        self.place(i).expect("the slot was made before it is used")
    }

    fn word(&self, i: usize) -> *mut Block<T> {
        self.place(i).map_or(ptr::null_mut(), |p| p.load(Relaxed))
    }

    /// One more than the last slot. Slots below it may not exist; they are free.
    pub fn len(&self) -> usize {
        self.table.slots.end(self.writer.pin())
    }

    /// The number of slots that exist.
    pub fn count(&self) -> usize {
        self.table.slots.count(self.writer.pin())
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

    /// Whether slot `i` exists.
    pub fn exists(&self, i: usize) -> bool {
        self.place(i).is_some()
    }

    /// Makes slot `i`, if it does not exist, and others beside it. Copies a bounded number of slots, see `rc_slots`.
    /// Allocates under the lock.
    ///
    /// # Errors
    /// No memory.
    pub fn make(&mut self, epoch: &Epoch, i: usize) -> Result<(), NoRoom> {
        // SAFETY: the lock is held.
        unsafe { self.table.slots.make(epoch, self.writer.pin(), i) }
    }

    /// Puts `new` into slot `i`, which exists, with or without a mark; returns the old object, if there was one. A mark or
    /// reservation of the slot has ended.
    pub fn put(&mut self, i: usize, new: EpochRc<T>, mark: bool) -> Option<EpochRc<T>> {
        let word = new.into_raw().as_ptr();
        self.swap(i, word.map_addr(|a| a | mark_bit(mark)))
    }

    /// Empties slot `i` and clears its mark; returns its object. `None`, with nothing changed, if it has none: a reservation
    /// stays.
    pub fn take(&mut self, i: usize) -> Option<EpochRc<T>> {
        if self.has(i) {
            self.swap(i, ptr::null_mut())
        } else {
            None
        }
    }

    /// Reserves slot `i`, which exists and is free, for a later `put`. Readers find it empty.
    pub fn reserve(&mut self, i: usize) {
        self.made(i)
            .store(ptr::without_provenance_mut(MARK), Relaxed);
    }

    /// Frees slot `i`, if it is reserved.
    pub fn cancel(&mut self, i: usize) {
        if self.is_reserved(i) {
            self.made(i).store(ptr::null_mut(), Relaxed);
        }
    }

    fn swap(&mut self, i: usize, word: *mut Block<T>) -> Option<EpochRc<T>> {
        let place = self.made(i);
        // No atomic swap: the lock is held. Release: a reader that finds the object finds it fully built.
        let old = place.load(Relaxed);
        place.store(word, Release);
        if !word.is_null() {
            // Release: for `copy`, which looks at the slots after this.
            let filled = self.table.filled.load(Relaxed);
            self.table.filled.store(filled.wrapping_add(1), Release);
        }
        // SAFETY: the slot's reference was replaced, so the caller owns it now.
        block(old).map(|b| unsafe { EpochRc::from_raw(b) })
    }

    /// Sets or clears the mark of slot `i`, if that has an object.
    pub fn set_mark(&mut self, i: usize, on: bool) {
        let word = self.word(i);
        if block(word).is_some() {
            let marked = word.map_addr(|a| a & !MARK | mark_bit(on));
            self.made(i).store(marked, Release);
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
