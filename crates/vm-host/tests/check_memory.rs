//! The check of the allocator takes no memory while it walks: the heap of a kernel takes its frames from the lists that are
//! walked, and one that is moved to a magazine meanwhile looks as if it were free twice.
#![cfg(not(any(loom, shuttle)))]

use std::cell::Cell;

use ksync::host::set_cpu;
use ksync::pin;
use vm::alloc::{Blocks, Place};
use vm::{PageAllocator, Rights};
use vm_host::Arena;
use vm_host::heap::{Heap, with_each};

#[global_allocator]
static HEAP: Heap = Heap;

thread_local! {
    /// The allocator of whose frames the heap consists.
    static BELOW: Cell<Option<&'static PageAllocator>> = const { Cell::new(None) };
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

/// With an empty magazine, so that a burst of frames moves there.
fn take_a_frame() {
    let below = BELOW.get().expect("it is set");
    below.drain(&pin());
    below.alloc(&pin(), Rights::Kernel).expect("there are some");
    TAKEN.set(TAKEN.get() + 1);
}

#[test]
fn what_the_check_allocates_is_not_free_twice() {
    set_cpu(0);
    let arena = Arena::new(2000, 1, 1);
    let mut alloc = arena.allocator();
    alloc.allow_reservations();
    let alloc: &'static PageAllocator = Box::leak(Box::new(alloc));
    BELOW.set(Some(alloc));
    let (blocks, place) = (Blocks::default(), |index| Place { object: 64, index });
    for index in [3, 4] {
        let placed = alloc.alloc_at(&pin(), (place(index), &blocks), true, || true);
        assert!(placed.is_ok());
    }
    alloc.drain(&pin());
    let census = with_each(take_a_frame, || alloc.check()).expect("all is well");
    assert!(TAKEN.get() > 0, "the check needs memory");
    assert_eq!(census.allocated, TAKEN.get() + 2);
    assert_eq!(census.reserved, 510);
}
