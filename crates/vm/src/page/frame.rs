//! Access to the bytes of a frame.
//!
//! These functions are safe to call because the rules of [`Page`](crate::page::Page) control access to frames: the
//! caller owns the frame (fresh from the allocator), or holds it busy, or reads it under a pin and its frame is freed
//! after a grace period only. A fault that copies a page to the front reads it without any of these: its check comes
//! after the copy, and a copy of a page that has gone is discarded before anything maps it. Bytes that user programs
//! map may change under a reader; they are plain data without invariants, and the kernel copies before it interprets.
//! Frames that hold typed kernel data (slabs, stacks, page tables) are passed here only by their owner, or in a copy
//! that is discarded.

use core::ptr;
use core::slice;

use crate::Machine;
use crate::page::{PAGE_SIZE, Pfn};

/// Fills a frame with zeros. The caller owns the frame.
#[inline]
pub fn zero_frame<M: Machine>(machine: &M, pfn: Pfn) {
    let frame = machine.frame(pfn).as_ptr();
    // SAFETY: `Machine` gives PAGE_SIZE writable bytes; the caller owns the frame, so no reference to them exists.
    unsafe { zero_page(frame) }
}

/// Copies a whole frame. The caller owns `to`, which is another frame. It holds `from` busy, or discards the copy if
/// `from` turns out to have left its object.
#[inline]
pub fn copy_frame<M: Machine>(machine: &M, to: Pfn, from: Pfn) {
    assert!(to != from);
    let (to, from) = (machine.frame(to).as_ptr(), machine.frame(from).as_ptr());
    // SAFETY: two different frames are disjoint and PAGE_SIZE long; `to` is owned, `from` is read as plain data.
    unsafe { copy_page(to, from) }
}

/// Copies bytes out of a frame from `offset`. The caller holds it busy.
pub fn read_frame<M: Machine>(machine: &M, pfn: Pfn, offset: usize, buf: &mut [u8]) {
    assert!(offset <= PAGE_SIZE && buf.len() <= PAGE_SIZE - offset);
    let from = machine.frame(pfn).as_ptr().wrapping_add(offset);
    // SAFETY: the range lies in the frame as asserted; `buf` is exclusively borrowed, so it is no part of the frame.
    unsafe { ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) }
}

/// Copies bytes into a frame at `offset`. The caller holds it busy.
pub fn write_frame<M: Machine>(machine: &M, pfn: Pfn, offset: usize, buf: &[u8]) {
    assert!(offset <= PAGE_SIZE && buf.len() <= PAGE_SIZE - offset);
    let to = machine.frame(pfn).as_ptr().wrapping_add(offset);
    // SAFETY: the range lies in the frame as asserted; there are no references into it except during `with_frame`
    // calls, whose callers hold the page busy to read plain data.
    unsafe { ptr::copy_nonoverlapping(buf.as_ptr(), to, buf.len()) }
}

/// Lends bytes `offset..offset + len` of a frame. The caller holds it busy; `f` must copy before it interprets, because
/// a user program that maps the frame may write at the same time.
pub fn with_frame<M: Machine, R>(
    machine: &M,
    pfn: Pfn,
    offset: usize,
    len: usize,
    f: impl FnOnce(&[u8]) -> R,
) -> R {
    assert!(offset <= PAGE_SIZE && len <= PAGE_SIZE - offset);
    let at = machine.frame(pfn).as_ptr().wrapping_add(offset);
    // SAFETY: the range lies in the frame as asserted and stays mapped; see the module for concurrent writers.
    f(unsafe { slice::from_raw_parts(at, len) })
}

/// Lends bytes `offset..offset + len` of a frame for writing. The caller owns the frame, or serialises writers by its
/// busy state and its object's rules.
pub fn with_frame_mut<M: Machine, R>(
    machine: &M,
    pfn: Pfn,
    offset: usize,
    len: usize,
    f: impl FnOnce(&mut [u8]) -> R,
) -> R {
    assert!(offset <= PAGE_SIZE && len <= PAGE_SIZE - offset);
    let at = machine.frame(pfn).as_ptr().wrapping_add(offset);
    // SAFETY: as in `with_frame`; other kernel writers are kept out by the caller.
    f(unsafe { slice::from_raw_parts_mut(at, len) })
}

/// Zeroes a page by one string instruction: a general `memset` without vector registers takes three, because of its
/// ends.
///
/// # Safety
///
/// `page` is page-aligned and PAGE_SIZE bytes may be written there.
#[cfg(all(target_arch = "x86_64", target_os = "none"))]
#[inline]
unsafe fn zero_page(page: *mut u8) {
    // SAFETY: writes exactly the page; the direction flag is clear by the calling convention.
    unsafe {
        core::arch::asm!("rep stosq", inout("rdi") page => _, inout("rcx") PAGE_SIZE / 8 => _, in("rax") 0,
            options(nostack, preserves_flags));
    }
}

/// Copies a page by one string instruction.
///
/// # Safety
///
/// Both are page-aligned and different, PAGE_SIZE bytes may be read at `from` and written at `to`.
#[cfg(all(target_arch = "x86_64", target_os = "none"))]
#[inline]
unsafe fn copy_page(to: *mut u8, from: *const u8) {
    // SAFETY: reads and writes exactly the pages; the direction flag is clear by the calling convention.
    unsafe {
        core::arch::asm!("rep movsq", inout("rdi") to => _, inout("rsi") from => _, inout("rcx") PAGE_SIZE / 8 => _,
            options(nostack, preserves_flags));
    }
}

/// As in the kernel, with the host's vector instructions.
///
/// # Safety
///
/// PAGE_SIZE bytes may be written at `page`.
#[cfg(not(all(target_arch = "x86_64", target_os = "none")))]
unsafe fn zero_page(page: *mut u8) {
    // SAFETY: as the caller promises.
    unsafe { ptr::write_bytes(page, 0, PAGE_SIZE) }
}

/// As in the kernel, with the host's vector instructions.
///
/// # Safety
///
/// PAGE_SIZE bytes may be read at `from` and written at `to`, and they are disjoint.
#[cfg(not(all(target_arch = "x86_64", target_os = "none")))]
unsafe fn copy_page(to: *mut u8, from: *const u8) {
    // SAFETY: as the caller promises.
    unsafe { ptr::copy_nonoverlapping(from, to, PAGE_SIZE) }
}
