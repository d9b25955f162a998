//! A heap that fails allocations: a test makes it its global allocator.
//!
//! Only allocations whose failure the VM must handle are failed: the nodes of an object's index, and objects
//! themselves, whose layouts [`learn`] has recorded. Entries, chains and layers are small, few for each operation, and
//! never failed: a kernel keeps a reserve for them. All state is per thread.
#![expect(unsafe_code, reason = "implements the unsafe trait `GlobalAlloc`")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Most layouts that can be recorded.
const KINDS: usize = 8;

/// Sizes and alignments; 0 for an unused entry.
type Kinds = [(usize, usize); KINDS];

/// See the module.
pub struct Heap;

thread_local! {
    /// Whether this thread's requests are recorded as layouts that may fail.
    static LEARNS: Cell<bool> = const { Cell::new(false) };
    static KNOWN: Cell<Kinds> = const { Cell::new([(0, 0); KINDS]) };
    /// Number of requests until one fails; 0 for never.
    static LEFT: Cell<u32> = const { Cell::new(0) };
    /// Number of requests from one failure to the next; 0 for never.
    static PERIOD: Cell<u32> = const { Cell::new(0) };
    /// Bytes that this thread has allocated and not freed; it may free blocks of other threads.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    /// Number of requests while layouts were recorded.
    static ASKED: Cell<usize> = const { Cell::new(0) };
    /// Number of requests with preemption off, as under a spin lock.
    static PINNED: Cell<usize> = const { Cell::new(0) };
    /// What is called at each request.
    static ALSO: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Whether the caller has preemption off.
#[cfg(feature = "threads")]
fn is_pinned() -> bool {
    ksync::host::preempt_count() > 0
}

/// As above, where the platform of `ksync` is somebody else's: this is not known.
#[cfg(not(feature = "threads"))]
fn is_pinned() -> bool {
    false
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

/// Blocks of this layout may fail from now on.
pub fn know(layout: Layout) {
    let mut known = KNOWN.get();
    if !known.contains(&kind(layout)) {
        if let Some(free) = known.iter_mut().find(|kind| kind.0 == 0) {
            *free = kind(layout);
        }
        KNOWN.set(known);
    }
}

// SAFETY: the system's allocator, or a failure.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if LEARNS.get() {
            ASKED.set(ASKED.get() + 1);
            PINNED.set(PINNED.get() + usize::from(is_pinned()));
        }
        if refuses(layout) {
            return std::ptr::null_mut();
        }
        // Not for requests that it makes itself.
        if let Some(also) = ALSO.take() {
            also();
            ALSO.set(Some(also));
        }
        LIVE.set(LIVE.get() + layout.size() as isize);
        // SAFETY: the caller's conditions are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // A thread that ends frees its thread-locals, this one among them.
        let _ended = LIVE.try_with(|live| live.set(live.get() - layout.size() as isize));
        // SAFETY: all blocks are the system's.
        unsafe { System.dealloc(block, layout) };
    }
}

/// Records the layouts that `act` allocates: they may fail from now on.
pub fn learn<R>(act: impl FnOnce() -> R) -> R {
    LEARNS.set(true);
    let result = act();
    LEARNS.set(false);
    result
}

/// How many blocks `act` asks for.
pub fn blocks(act: impl FnOnce()) -> usize {
    let (known, before) = (KNOWN.get(), ASKED.get());
    learn(act);
    KNOWN.set(known);
    ASKED.get() - before
}

/// Runs `act` without failing the layouts that `without` allocates. For blocks that must not fail but have the same
/// layout as others that may.
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

/// Calls `also` at each request of `act`, as the heap of a kernel takes frames for some.
pub fn with_each<R>(also: fn(), act: impl FnOnce() -> R) -> R {
    ALSO.set(Some(also));
    let result = act();
    ALSO.set(None);
    result
}

/// Bytes that this thread has allocated and not freed.
pub fn live() -> isize {
    LIVE.get()
}

/// Number of blocks allocated with preemption off, while layouts were recorded, since the last call.
pub fn asked_under_locks() -> usize {
    PINNED.replace(0)
}

/// Fails the `n`-th block from now on.
pub fn refuse_once(n: u32) {
    PERIOD.set(0);
    LEFT.set(n);
}

/// Number of blocks until one fails; 0 for none.
pub fn left() -> u32 {
    LEFT.get()
}

/// Fails no more blocks. Returns whether the pending failure has happened.
pub fn refuse_none() -> bool {
    PERIOD.set(0);
    LEFT.replace(0) == 0
}

/// Fails each `period`-th block while `act` runs, counted over all calls; none if `period` is 0.
pub fn refuse_each<R>(period: u32, left: &Cell<u32>, act: impl FnOnce() -> R) -> R {
    PERIOD.set(period);
    LEFT.set(left.get().min(period));
    let result = act();
    left.set(LEFT.get());
    refuse_none();
    result
}
