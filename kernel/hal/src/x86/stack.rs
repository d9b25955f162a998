//! Kernel stacks: mapped in a region of their own, with an unmapped guard below each.
//!
//! Guarantee: a thread's stack is on the node of the CPU that made the thread, if that node has memory. Mechanism: a CPU that
//! frees a stack of its own node puts it into its cache. When the cache is full, stacks go to a pool of their node; when that
//! is full, half of it is unmapped with a single flush. A CPU takes unmapped slots from the pool several at a time. So most
//! stacks are mapped without a lock, and stacks that two CPUs map seldom share a cache line of a page table. The list of free
//! slots costs no memory: the number of the next free slot is in the (not present) page-table entry of a slot's guard.
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::lock::BootLock;
use super::paging::{self, Kind, STACKS, STACKS_END};
use super::stack_cache::{CACHED, HANDFUL, StackCache};
use super::{cpu, frames, ipi, memory, percpu, preempt};
use crate::limits::{MAX_NODES, PAGE_SIZE};

/// Bytes of a stack.
pub const STACK_SIZE: usize = if cfg!(debug_assertions) {
    16 << 10
} else {
    8 << 10
};
const STACK_PAGES: u64 = (STACK_SIZE / PAGE_SIZE) as u64;
/// Bytes of address space for a stack; the lower half is the guard.
const SLOT: u64 = 2 * STACK_SIZE as u64;
const SLOTS: u32 = ((STACKS_END - STACKS) / SLOT) as u32;
/// The most stacks in the pool of a node; they stay mapped.
const POOLED: usize = 64;
const NO_SLOT: u32 = u32::MAX;

/// Memory for a stack ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoStack;

/// A mapped stack, owned by this value; dropping it frees the stack.
#[derive(Debug)]
pub struct KernelStack {
    slot: u32,
    /// The node on which the stack was to be allocated.
    node: u32,
}

/// Calls `f` with this CPU's cache, with preemption off.
fn with_cache<R>(f: impl FnOnce(&mut StackCache) -> R) -> R {
    preempt::disable();
    // SAFETY: this is the CPU's own cache, with preemption off, and no interrupt handler uses it; `f` does not call this
    // function.
    let result = f(unsafe { &mut *percpu::area().stacks.get() });
    preempt::enable();
    result
}

/// The unused stacks of a node that are mapped.
#[derive(Clone, Copy)]
struct Mapped {
    slots: [u32; POOLED],
    used: usize,
}

struct Pool {
    /// One for each node.
    mapped: [Mapped; MAX_NODES],
    /// Head of the list of unmapped slots.
    free: u32,
    /// The first slot that was never used.
    next: u32,
}

static POOL: BootLock<Pool> = BootLock::new(Pool {
    mapped: [Mapped {
        slots: [0; POOLED],
        used: 0,
    }; MAX_NODES],
    free: NO_SLOT,
    next: 0,
});
/// The number of stacks given away by [`KernelStack::keep`]. Atomic; changed at boot.
static PERMANENT: AtomicUsize = AtomicUsize::new(0);
/// Whether stacks are zeroed before use, so that their depth can be measured later. Atomic; written at boot.
static MEASURED: AtomicBool = AtomicBool::new(cfg!(debug_assertions));
/// The deepest use found, in bytes. Atomic.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);

fn slot_base(slot: u32) -> u64 {
    STACKS + u64::from(slot) * SLOT
}

fn pages(slot: u32) -> impl Iterator<Item = u64> {
    let bottom = slot_base(slot) + SLOT - STACK_SIZE as u64;
    (0..STACK_PAGES).map(move |page| bottom + page * PAGE_SIZE as u64)
}

impl KernelStack {
    /// Allocates a stack, on this CPU's node if it has memory.
    ///
    /// # Errors
    /// [`NoStack`] when memory is short.
    pub fn alloc() -> Result<Self, NoStack> {
        let (node, cached) = with_cache(|cache| {
            let slots = &cache.slots[..cache.used];
            cache.used = cache.used.saturating_sub(1);
            (percpu::area().node, slots.last().copied())
        });
        let slot = match cached {
            Some(slot) => slot,
            None => from_pool(node)?,
        };
        Ok(Self::prepared(slot, node))
    }

    /// Allocates a stack, on `node` if it has memory.
    ///
    /// # Errors
    /// [`NoStack`] when memory is short.
    pub(super) fn on_node(node: u32) -> Result<Self, NoStack> {
        from_pool(node).map(|slot| Self::prepared(slot, node))
    }

    fn prepared(slot: u32, node: u32) -> Self {
        let stack = Self { slot, node };
        if MEASURED.load(Ordering::Relaxed) {
            stack.wipe();
        }
        stack
    }

    /// Address behind the highest byte; a multiple of the page size.
    pub fn top(&self) -> u64 {
        slot_base(self.slot) + SLOT
    }

    /// Keeps the stack for good, and returns its top.
    pub(super) fn keep(self) -> u64 {
        PERMANENT.fetch_add(1, Ordering::Relaxed);
        let top = self.top();
        core::mem::forget(self);
        top
    }

    fn bottom(&self) -> *mut u64 {
        (self.top() - STACK_SIZE as u64) as *mut u64
    }

    fn wipe(&self) {
        // SAFETY: the stack is mapped and no thread runs on it.
        unsafe { ptr::write_bytes(self.bottom().cast::<u8>(), 0, STACK_SIZE) };
    }

    /// Bytes that were used since the stack was zeroed.
    fn depth(&self) -> usize {
        let words = STACK_SIZE / 8;
        // SAFETY: the stack is mapped and no thread runs on it.
        let untouched = (0..words)
            .take_while(|&i| unsafe { *self.bottom().add(i) } == 0)
            .count();
        STACK_SIZE - untouched * 8
    }
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        if MEASURED.load(Ordering::Relaxed) {
            HIGH_WATER.fetch_max(self.depth(), Ordering::Relaxed);
        }
        let kept = with_cache(|cache| {
            let kept = cache.used < CACHED && percpu::area().node == self.node;
            if kept {
                cache.slots[cache.used] = self.slot;
                cache.used += 1;
            }
            kept
        });
        if !kept {
            to_pool(self.slot, self.node as usize);
        }
    }
}

/// Maps a slot that this CPU has taken before; if it has none, takes a mapped stack from the pool of `node`, or maps a slot of
/// the pool and takes a handful more for this CPU. Frames are of `node` if possible. Takes the pool's lock. If there is no
/// memory, the slot goes back.
fn from_pool(node: u32) -> Result<u32, NoStack> {
    let node = node as usize;
    let bare = with_cache(|cache| {
        cache.bare_used = cache.bare_used.checked_sub(1)?;
        Some(cache.bare[cache.bare_used])
    });
    let slot = match bare {
        Some(slot) => slot,
        None => {
            let mut pool = POOL.lock();
            let mapped = &mut pool.mapped[node];
            if mapped.used > 0 {
                mapped.used -= 1;
                return Ok(mapped.slots[mapped.used]);
            }
            let slot = pool.take_bare().ok_or(NoStack)?;
            // Interrupts are off. This may be another CPU than the one whose cache was empty, and its cache may be full.
            with_cache(|cache| {
                while cache.bare_used < HANDFUL
                    && let Some(slot) = pool.take_bare()
                {
                    cache.bare[cache.bare_used] = slot;
                    cache.bare_used += 1;
                }
            });
            slot
        }
    };
    map(slot, node).inspect_err(|_| retire(&[slot]))?;
    Ok(slot)
}

impl Pool {
    /// Takes a slot that is not mapped; `None` if there is none, or no memory for the tables above its guard.
    fn take_bare(&mut self) -> Option<u32> {
        if self.free != NO_SLOT {
            let slot = self.free;
            let guard = paging::kernel_entry(slot_base(slot)).ok()?;
            self.free = (guard.load(Ordering::Relaxed) >> 12) as u32;
            guard.store(0, Ordering::Relaxed);
            return Some(slot);
        }
        let fresh = self.next;
        (fresh < SLOTS).then(|| {
            self.next += 1;
            fresh
        })
    }
}

/// Maps all pages of a slot, with frames of `node` if possible. If it fails, none is mapped.
fn map(slot: u32, node: usize) -> Result<(), NoStack> {
    for va in pages(slot) {
        let entry = paging::kernel_entry(va).map_err(|_| NoStack);
        let frame = frames::alloc_zeroed(node).ok_or(NoStack);
        match (entry, frame) {
            (Ok(entry), Ok(pfn)) => {
                with_cache(|cache| cache.frames += 1);
                entry.store(paging::leaf(pfn, Kind::Data), Ordering::Release);
            }
            (_, frame) => {
                if let Ok(pfn) = frame {
                    frames::free(pfn);
                }
                unmap(&[slot]);
                return Err(NoStack);
            }
        }
    }
    Ok(())
}

/// Calls `each` with the entries of all pages of the slots.
fn for_each_entry(slots: &[u32], each: impl Fn(&AtomicU64)) {
    for va in slots.iter().flat_map(|&slot| pages(slot)) {
        // The tables exist if anything is mapped at this address.
        if let Ok(entry) = paging::kernel_entry(va) {
            each(entry);
        }
    }
}

/// Unmaps slots with one flush, for which it waits for the other CPUs, and frees their frames. Called without a lock.
fn unmap(slots: &[u32]) {
    /// The present bit. A cleared entry keeps its frame number until the flush is done.
    const PRESENT: u64 = 1;
    for_each_entry(slots, |entry| {
        entry.fetch_and(!PRESENT, Ordering::SeqCst);
    });
    ipi::flush_kernel();
    for_each_entry(slots, |entry| {
        let old = entry.swap(0, Ordering::Relaxed);
        if old != 0 {
            with_cache(|cache| cache.frames -= 1);
            frames::free(paging::leaf_frame(old));
        }
    });
}

/// Puts unmapped slots on the free list.
fn retire(slots: &[u32]) {
    let mut pool = POOL.lock();
    for &slot in slots {
        // The tables exist if the slot was ever mapped. If they do not, and there is no memory for them, the slot is lost.
        if let Ok(guard) = paging::kernel_entry(slot_base(slot)) {
            guard.store(u64::from(pool.free) << 12, Ordering::Relaxed);
            pool.free = slot;
        }
    }
}

/// Puts a stack into the pool of `node`. If the pool is full, half of it is unmapped, by [`unmap`]. Takes the pool's lock.
fn to_pool(slot: u32, node: usize) {
    let mut surplus = [0; POOLED / 2];
    {
        let mut pool = POOL.lock();
        let mapped = &mut pool.mapped[node];
        if mapped.used < POOLED {
            mapped.slots[mapped.used] = slot;
            mapped.used += 1;
            return;
        }
        let keep = POOLED - surplus.len();
        surplus.copy_from_slice(&mapped.slots[keep..]);
        mapped.slots[keep] = slot;
        mapped.used = keep + 1;
    }
    unmap(&surplus);
    retire(&surplus);
}

/// Frames of stacks in the caches and pools. Exact as long as no thread is made or ends.
pub fn frames_cached() -> usize {
    // SAFETY: the word is written by its CPU only; a value read meanwhile may be an old one.
    let cached: usize = caches()
        .map(|cache| unsafe { ptr::addr_of!((*cache).used).read_volatile() })
        .sum();
    let pooled: usize = POOL.lock().mapped.iter().map(|mapped| mapped.used).sum();
    (cached + pooled) * STACK_PAGES as usize
}

/// Pointers to the caches of all CPUs, whose words are read only.
fn caches() -> impl Iterator<Item = *mut StackCache> {
    (0..cpu::count())
        .filter_map(percpu::of)
        .map(|area| area.stacks.get())
}

/// Frames of the stacks that CPUs keep for good.
pub fn frames_permanent() -> usize {
    PERMANENT.load(Ordering::Relaxed) * STACK_PAGES as usize
}

/// Frames of one stack.
pub const FRAMES_PER_STACK: usize = STACK_PAGES as usize;

/// Frames of all mapped stacks, cached ones included. Exact as long as no thread is made or ends.
pub fn frames_in_use() -> usize {
    // SAFETY: as in `frames_cached`.
    let frames = |cache: *mut StackCache| unsafe { ptr::addr_of!((*cache).frames).read_volatile() };
    caches().map(frames).sum::<isize>() as usize
}

/// Enables the measurement of stacks, which is always enabled in debug builds. Called at boot.
pub fn measure() {
    MEASURED.store(true, Ordering::Relaxed);
}

/// The deepest stack use, in bytes, among the stacks freed so far; 0 if they are not [measured](measure).
pub fn high_water() -> usize {
    HIGH_WATER.load(Ordering::Relaxed)
}

/// Whether an address is in the region of stacks and mapped.
pub(super) fn is_stack(address: u64) -> bool {
    (STACKS..STACKS_END).contains(&address) && paging::is_mapped(address)
}

const _: () = assert!(memory::DIRECT_MAP < STACKS);
