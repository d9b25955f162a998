//! Page frames for this crate's own use: page tables, stacks, per-CPU areas.
//!
//! At boot they are taken from the memory map. What is left is passed on in [`BootInfo`](crate::BootInfo), and from then on
//! frames come from the allocator that [`set_source`] was given.
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::lock::BootLock;
use super::memory;
use crate::limits::{MAX_NODES, PAGE_SIZE};

/// The most free ranges that the early allocator records.
pub(super) const MAX_RANGES: usize = 128;
/// First frame beyond the first MiB, which firmware uses, and where CPUs start.
const LOW_END: u32 = 0x100;

/// A range of usable page frames on one node.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameRange {
    /// First frame.
    pub start: u32,
    /// One past the last frame.
    pub end: u32,
    /// NUMA node.
    pub node: u32,
}

/// The early allocator: it takes frames from the ends of the free ranges.
pub(super) struct Early {
    ranges: [FrameRange; MAX_RANGES],
    used: usize,
}

pub(super) static EARLY: BootLock<Early> = BootLock::new(Early::new());

impl Early {
    const fn new() -> Self {
        Self {
            ranges: [FrameRange {
                start: 0,
                end: 0,
                node: 0,
            }; MAX_RANGES],
            used: 0,
        }
    }

    /// Adds a free range. If there are too many ranges it stays unused.
    pub(super) fn add(&mut self, range: FrameRange) {
        if range.start < range.end && self.used < MAX_RANGES {
            self.ranges[self.used] = range;
            self.used += 1;
        }
    }

    /// Takes the frames `start..end` out of the free ranges. If there is no room for the upper part of a range that is split,
    /// that part stays unused.
    pub(super) fn reserve(&mut self, start: u32, end: u32) {
        for i in 0..self.used {
            let range = self.ranges[i];
            if end <= range.start || range.end <= start {
                continue;
            }
            self.ranges[i].end = start.max(range.start);
            self.add(FrameRange {
                start: end.max(range.start),
                end: range.end,
                ..range
            });
        }
    }

    /// Assigns the free frames among `start..end` to `node`. Splits the ranges that reach beyond an end; if there is no
    /// room for another range, such a range keeps its node.
    pub(super) fn set_node(&mut self, start: u32, end: u32, node: u32) {
        for boundary in [start, end] {
            for i in 0..self.used {
                let range = self.ranges[i];
                if range.start < boundary && boundary < range.end && self.used < MAX_RANGES {
                    self.ranges[i].end = boundary;
                    self.add(FrameRange {
                        start: boundary,
                        ..range
                    });
                }
            }
        }
        for range in &mut self.ranges[..self.used] {
            if start <= range.start && range.end <= end {
                range.node = node;
            }
        }
    }

    /// Takes `count` consecutive frames below frame number `limit`: on `node` if possible, or else on any node. Returns the first.
    /// A range that reaches beyond the limit, or lies in the first MiB, is not used at all.
    pub(super) fn take(&mut self, count: u32, node: u32, limit: u32) -> Option<u32> {
        let fits = |r: &FrameRange| r.end <= limit && r.end - r.start >= count && r.end > LOW_END;
        let ranges = &mut self.ranges[..self.used];
        let at = ranges
            .iter()
            .position(|r| r.node == node && fits(r))
            .or_else(|| ranges.iter().position(fits))?;
        ranges[at].end -= count;
        Some(ranges[at].end)
    }

    /// Takes `count` consecutive frames of `node`; the first is a multiple of `align`, a power of two.
    pub(super) fn take_aligned(&mut self, count: u32, node: u32, align: u32) -> Option<u32> {
        let place = |r: &FrameRange| {
            let at = r.end.checked_sub(count)? & !(align - 1);
            (r.node == node && at >= r.start.max(LOW_END)).then_some(at)
        };
        let mut ranges = self.ranges[..self.used].iter();
        let at = ranges.find_map(place)?;
        self.reserve(at, at + count);
        Some(at)
    }

    /// The free ranges, in no order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = FrameRange> {
        self.ranges[..self.used]
            .iter()
            .copied()
            .filter(|r| r.start < r.end)
    }

    /// Ends early allocation: the frames that are free now belong to the caller.
    pub(super) fn hand_over(&mut self) -> Self {
        core::mem::replace(self, Self::new())
    }
}

/// The allocator of frames after boot.
#[derive(Clone, Copy)]
pub struct Source {
    /// Allocates a frame, on `node` if possible. Its contents are undefined.
    pub alloc: fn(node: usize) -> Option<u32>,
    /// Frees a frame.
    pub free: fn(u32),
}

static SOURCE: AtomicPtr<Source> = AtomicPtr::new(ptr::null_mut());

/// Sets the allocator of frames. Called once, at boot.
pub fn set_source(source: &'static Source) {
    SOURCE.store(ptr::from_ref(source).cast_mut(), Ordering::Release);
}

fn source() -> Option<&'static Source> {
    // SAFETY: only references that are valid for ever are stored.
    unsafe { SOURCE.load(Ordering::Acquire).as_ref() }
}

/// The end of the frames that the boot page tables map: those of the first 4 GiB.
const BOOT_LIMIT: u32 = 1 << 20;

/// Allocates a frame, on `node` if possible, and zeroes it; `None` when memory is short. Before [`set_source`] it takes one that
/// the boot page tables map, under the lock of the early allocator.
pub(super) fn alloc_zeroed(node: usize) -> Option<u32> {
    let pfn = match source() {
        Some(source) => (source.alloc)(node)?,
        None => EARLY
            .lock()
            .take(1, node.min(MAX_NODES) as u32, BOOT_LIMIT)?,
    };
    // SAFETY: the frame has just been allocated, and the direct map covers it.
    unsafe { ptr::write_bytes(memory::frame(pfn).as_ptr(), 0, PAGE_SIZE) };
    Some(pfn)
}

/// Frees a frame of [`alloc_zeroed`]. Does nothing before [`set_source`].
pub(super) fn free(pfn: u32) {
    if let Some(source) = source() {
        (source.free)(pfn);
    }
}
