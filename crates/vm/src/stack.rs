//! Stacks that belong to one CPU each.

use core::array;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed};

use crate::page::Pfn;

/// An atomic word that one CPU uses as plain memory.
pub(crate) trait Word {
    /// The type of its contents.
    type Value: Copy + PartialEq;
    /// A word of zero.
    fn zero() -> Self;
    /// Reads the word.
    fn get(&self) -> Self::Value;
    /// Writes the word.
    fn put(&self, value: Self::Value);
}

/// A frame number as such a word.
pub(crate) struct PfnWord(AtomicU32);

impl Word for PfnWord {
    type Value = Pfn;
    fn zero() -> Self {
        PfnWord(AtomicU32::new(0))
    }
    fn get(&self) -> Pfn {
        Pfn(self.0.load(Relaxed))
    }
    fn put(&self, value: Pfn) {
        self.0.store(value.0, Relaxed);
    }
}

impl Word for AtomicPtr<u8> {
    type Value = *mut u8;
    fn zero() -> Self {
        AtomicPtr::new(ptr::null_mut())
    }
    fn get(&self) -> *mut u8 {
        self.load(Relaxed)
    }
    fn put(&self, value: *mut u8) {
        self.store(value, Relaxed);
    }
}

/// A stack of at most `N` values. Only its CPU changes it, with preemption off, by plain loads and stores. Other CPUs
/// may read the length at any time, and the contents while the owner is known not to change them.
#[repr(C)]
pub(crate) struct Stack<W, const N: usize> {
    len: AtomicU32,
    slots: [W; N],
}

impl<W: Word, const N: usize> Stack<W, N> {
    pub(crate) fn new() -> Stack<W, N> {
        Stack {
            len: AtomicU32::new(0),
            slots: array::from_fn(|_| W::zero()),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Relaxed) as usize
    }

    #[inline]
    pub(crate) fn pop(&self) -> Option<W::Value> {
        let last = self.len().checked_sub(1)?;
        self.set_len(last);
        // The remainder, a mask, avoids the bounds check: `last` is below N.
        Some(self.slots[last % N].get())
    }

    /// Adds a value unless there are already `limit`, which is at most N. Returns whether it did.
    #[inline]
    pub(crate) fn push(&self, value: W::Value, limit: usize) -> bool {
        let len = self.len();
        if len >= limit {
            return false;
        }
        self.slots[len % N].put(value);
        self.set_len(len + 1);
        true
    }

    /// Moves the oldest values to `to`, as many as fit; returns them. As for [`give_oldest`](Self::give_oldest).
    pub(crate) fn take_oldest<'a>(&self, to: &'a mut [W::Value]) -> &'a [W::Value] {
        let taken = self.give_oldest(to.len(), |oldest| {
            for (to, slot) in to.iter_mut().zip(oldest) {
                *to = slot.get();
            }
        });
        &to[..taken]
    }

    /// Passes the oldest values, at most `most`, to `f`, which does not use the stack, and removes them; returns their number. The
    /// newest values fill the gap, in their order: moving all the remaining ones down would cost more than a warm cache gains.
    pub(crate) fn give_oldest(&self, most: usize, f: impl FnOnce(&[W])) -> usize {
        let len = self.len();
        let taken = len.min(most);
        f(&self.slots[..taken]);
        let left = len - taken;
        let movers = left.min(taken);
        for at in 0..movers {
            self.slots[at].put(self.slots[len - movers + at].get());
        }
        self.set_len(left);
        taken
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = W::Value> {
        self.slots[..self.len()].iter().map(W::get)
    }

    #[inline]
    fn set_len(&self, len: usize) {
        // Relaxed: a checker on another CPU reads the slots only while the owner is known not to change them, which
        // orders the reads.
        self.len.store(len as u32, Relaxed);
    }
}
