//! Allocation that can fail.

use alloc::{
    alloc::{Layout, alloc},
    boxed::Box,
};
use core::ptr::NonNull;

/// Fresh memory with the layout of `T`, from the allocator that `Box` uses; `None` if memory is short.
fn room<T>() -> Option<NonNull<T>> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        return Some(NonNull::dangling());
    }
    // SAFETY: the layout is not of size zero.
    NonNull::new(unsafe { alloc(layout) }.cast())
}

/// Boxes `value`, or returns it if memory is short.
pub fn try_box<T>(value: T) -> Result<Box<T>, T> {
    let Some(block) = room::<T>() else {
        return Err(value);
    };
    // SAFETY: from `room`, and written first.
    Ok(unsafe {
        block.write(value);
        Box::from_raw(block.as_ptr())
    })
}

/// Puts a copy of a large value into a box, not by way of the stack; `None` if memory is short.
pub fn try_box_copy<T: Copy>(from: &T) -> Option<Box<T>> {
    let block = room::<T>()?;
    // SAFETY: from `room`, and written first, with a value that may be copied.
    Some(unsafe {
        block.copy_from_nonoverlapping(NonNull::from(from), 1);
        Box::from_raw(block.as_ptr())
    })
}
