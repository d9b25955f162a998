//! Memory for the array of [`Page`]s.
//!
//! Guarantee: on a machine with several nodes, the record of a frame lies on the frame's own node, if that has memory left,
//! so a CPU that uses local pages uses local records. Mechanism: the array has a region of addresses of its own and is mapped
//! in chunks: 2 MiB of records for 128 MiB of memory. A chunk is allocated on the node that has most of its frames. With one
//! node the array lies in the direct map, whose mappings are larger.
use core::mem::size_of;
use core::{ptr, slice};

use vm::page::Page;

use super::super::frames::EARLY;
use super::super::{memory, paging};
use crate::limits::{MAX_NODES, PAGE_SIZE};

/// Frames of a chunk: those of a large page.
const CHUNK: u32 = 512;
/// Frames whose records are in a chunk.
const DESCRIBED: u32 = CHUNK * (PAGE_SIZE / size_of::<Page>()) as u32;

/// Allocates and zeroes the array for a machine with `nodes` nodes and frames below `max_pfn`. Called once.
///
/// # Panics
/// If there is not enough memory.
pub(super) fn make(max_pfn: u32, nodes: usize) -> &'static [Page] {
    let bytes = max_pfn as usize * size_of::<Page>();
    let frames = bytes.div_ceil(PAGE_SIZE) as u32;
    // Kernels with heap labels use the region, too: the tool that watches memory accesses recognises the array by its
    // addresses.
    let start = if nodes > 1 || cfg!(feature = "heap-labels") {
        spread(frames);
        paging::PAGES as *mut u8
    } else {
        memory::direct(u64::from(take(frames, 0, 1)) << 12)
    };
    // SAFETY: the frames have been allocated for the array, and are mapped one behind the other from a page boundary on;
    // zeros are a valid `Page`.
    unsafe {
        ptr::write_bytes(start, 0, frames as usize * PAGE_SIZE);
        slice::from_raw_parts(start.cast::<Page>(), max_pfn as usize)
    }
}

/// Maps `frames` frames of the array in its region, each chunk on its node.
fn spread(frames: u32) {
    for (chunk, first) in (0..frames).step_by(CHUNK as usize).enumerate() {
        let described = chunk as u32 * DESCRIBED;
        let node = main_node(described, described + DESCRIBED);
        let count = CHUNK.min(frames - first);
        let pfn = take(count, node, if count == CHUNK { CHUNK } else { 1 });
        paging::map_pages(
            u64::from(first) << 12,
            u64::from(pfn) << 12,
            u64::from(count) << 12,
        )
        .expect("boot needs memory for its page tables");
    }
}

/// Allocates frames that are never freed: aligned and on the node if possible, and any others if not.
fn take(count: u32, node: u32, align: u32) -> u32 {
    let mut early = EARLY.lock();
    early
        .take_aligned(count, node, align)
        .or_else(|| early.take(count, node, u32::MAX))
        .expect("boot needs memory for the page array")
}

/// The node that has most of the free frames in `start..end`.
fn main_node(start: u32, end: u32) -> u32 {
    let mut have = [0u32; MAX_NODES];
    for range in EARLY.lock().ranges() {
        let common = range.end.min(end).saturating_sub(range.start.max(start));
        have[range.node as usize % MAX_NODES] += common;
    }
    let most = have
        .iter()
        .enumerate()
        .max_by_key(|&(node, &count)| (count, MAX_NODES - node));
    most.map_or(0, |(node, _)| node as u32)
}
