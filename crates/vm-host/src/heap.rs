//! A heap that refuses blocks: a test makes it its global allocator.
//!
//! Blocks that the VM can do without are refused: the nodes of an object's index, and objects themselves, as [`learn`] has seen them.
//! Entries, chains and layers are small, few for each operation, and never refused: a kernel keeps a reserve for such. What
//! is refused is each thread's own affair.
#![expect(unsafe_code, reason = "implements the unsafe trait `GlobalAlloc`")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Layouts that can be learnt.
const KINDS: usize = 8;

/// Sizes and alignments; 0 where there is none.
type Kinds = [(usize, usize); KINDS];

/// See the module.
pub struct Heap;

thread_local! {
    /// What of this thread's requests is noted as one that may be refused.
    static LEARNS: Cell<bool> = const { Cell::new(false) };
    static KNOWN: Cell<Kinds> = const { Cell::new([(0, 0); KINDS]) };
    /// How many requests more until one is refused; 0 for never.
    static LEFT: Cell<u32> = const { Cell::new(0) };
    /// After how many requests the next one is refused; 0 for never.
    static PERIOD: Cell<u32> = const { Cell::new(0) };
    /// Bytes that this thread has asked for and not given back; it may give others' back.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// Requests with preemption off, as under a spin lock.
    static PINNED: Cell<usize> = const { Cell::new(0) };
}

fn refuses(layout: Layout) -> bool {
    if LEARNS.get() {
        know(layout);
    }
    let left = LEFT.get();
    if left == 0 || !KNOWN.get().contains(&kind(layout)) {
        return false;
    }
    LEFT.set(if left > 1 { left - 1 } else { PERIOD.get() });
    left == 1
}

fn kind(layout: Layout) -> (usize, usize) {
    (layout.size(), layout.align())
}

/// Blocks of this layout may be refused from now on.
pub fn know(layout: Layout) {
    let mut known = KNOWN.get();
    if !known.contains(&kind(layout)) {
        if let Some(free) = known.iter_mut().find(|kind| kind.0 == 0) {
            *free = kind(layout);
        }
        KNOWN.set(known);
    }
}

// SAFETY: the system's allocator, or a refusal.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if LEARNS.get() && ksync::host::preempt_count() > 0 {
            PINNED.set(PINNED.get() + 1);
        }
        if refuses(layout) {
            return std::ptr::null_mut();
        }
        LIVE.set(LIVE.get() + layout.size() as isize);
        // SAFETY: the caller's conditions are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // A thread that ends gives back its thread-locals, this one among them.
        let _ended = LIVE.try_with(|live| live.set(live.get() - layout.size() as isize));
        // SAFETY: all blocks are the system's.
        unsafe { System.dealloc(block, layout) };
    }
}

/// Notes what `act` asks for: such blocks may be refused from now on.
pub fn learn<R>(act: impl FnOnce() -> R) -> R {
    LEARNS.set(true);
    let result = act();
    LEARNS.set(false);
    result
}

/// Runs `act`, and refuses nothing meanwhile of the layouts that `without` asks for: those that cannot be refused happen to be as large
/// as others that can.
pub fn spare<R>(without: impl FnOnce(), act: impl FnOnce() -> R) -> R {
    let (known, left) = (KNOWN.replace([(0, 0); KINDS]), LEFT.replace(0));
    learn(without);
    LEFT.set(left);
    let spared = KNOWN.replace(known);
    KNOWN.set(known.map(|kind| if spared.contains(&kind) { (0, 0) } else { kind }));
    let result = act();
    KNOWN.set(known);
    result
}

/// Bytes that this thread has asked for and not given back.
pub fn live() -> isize {
    LIVE.get()
}

/// How many blocks have been asked for with preemption off, while something was learnt, since this was asked last.
pub fn asked_under_locks() -> usize {
    PINNED.replace(0)
}

/// Refuses the `n`-th block from now on.
pub fn refuse_once(n: u32) {
    PERIOD.set(0);
    LEFT.set(n);
}

/// Refuses nothing more. Whether there is nothing left that was to be refused.
pub fn refuse_none() -> bool {
    PERIOD.set(0);
    LEFT.replace(0) == 0
}

/// Refuses each `period`-th block while `act` runs, one after the other in all calls; none if that is 0.
pub fn refuse_each<R>(period: u32, left: &Cell<u32>, act: impl FnOnce() -> R) -> R {
    PERIOD.set(period);
    LEFT.set(left.get().min(period));
    let result = act();
    left.set(LEFT.get());
    refuse_none();
    result
}
