//! Allocation that can fail.

use alloc::{
    alloc::{Layout, alloc},
    boxed::Box,
};

/// Boxes `value`, or returns it if memory is short.
pub fn try_box<T>(value: T) -> Result<Box<T>, T> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        return Ok(Box::new(value));
    }
    // SAFETY: the layout is not of size zero.
    let block = unsafe { alloc(layout) }.cast::<T>();
    if block.is_null() {
        return Err(value);
    }
    // SAFETY: fresh memory with the layout of `T`, from the allocator that `Box` uses.
    Ok(unsafe {
        block.write(value);
        Box::from_raw(block)
    })
}

/// Puts a copy of a large value into a box, not by way of the stack; `None` if there is no memory.
pub fn try_box_copy<T: Copy>(from: &T) -> Option<Box<T>> {
    let layout = Layout::new::<T>();
    if layout.size() == 0 {
        return Some(Box::new(*from));
    }
    // SAFETY: the layout is not of size zero.
    let block = unsafe { alloc(layout) }.cast::<T>();
    if block.is_null() {
        return None;
    }
    // SAFETY: fresh memory with the layout of `T`, from the allocator that `Box` uses, and a value that may be copied.
    Some(unsafe {
        block.copy_from_nonoverlapping(from, 1);
        Box::from_raw(block)
    })
}
