//! The global allocator: a run of boot memory first, then the slab heap of the VM.
//!
//! A CPU takes from, and gives to, the ready objects that its own area points to; only if there are none, or too many,
//! does it look further.
//!
//! What boot allocated is never given back, for it is the machine's own bookkeeping and lives as
//! long as the machine; a `dealloc` of it is recognised by its address.
#![expect(unsafe_code, reason = "the trait of the global allocator is unsafe")]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use hal::percpu;
use vm::Rights;
use vm::slab::Slab;

use crate::machine::slab;
use crate::shortage;

/// The allocator behind `alloc`.
struct KernelHeap {
    /// Next free byte of the boot run, its length, and its start.  Atomic; constant once the slab serves.
    next: AtomicUsize,
    len: AtomicUsize,
    start: AtomicUsize,
    /// Null until the slab serves, then that slab for good.
    slab: AtomicPtr<Slab>,
}

#[global_allocator]
static HEAP: KernelHeap = KernelHeap {
    next: AtomicUsize::new(0),
    len: AtomicUsize::new(0),
    start: AtomicUsize::new(0),
    slab: AtomicPtr::new(ptr::null_mut()),
};

impl KernelHeap {
    #[cold]
    #[inline(never)]
    fn alloc_cold(&self, layout: Layout) -> *mut u8 {
        let Some(slab) = self.slab() else {
            return self.boot_alloc(layout);
        };
        let vm = crate::machine::vm();
        let get = |rights| slab.alloc(&vm.machine, &vm.alloc, layout, rights);
        let object = get(Rights::Kernel);
        if object.is_null() {
            shortage::last_resort(layout, get)
        } else {
            object
        }
    }

    #[cold]
    #[inline(never)]
    fn dealloc_cold(&self, object: *mut u8, layout: Layout) {
        if let Some(slab) = self.slab() {
            let vm = crate::machine::vm();
            slab.dealloc(&vm.machine, &vm.alloc, object, layout);
        }
    }

    fn boot_alloc(&self, layout: Layout) -> *mut u8 {
        // One CPU runs at this time.
        let at = self
            .next
            .load(Ordering::Relaxed)
            .next_multiple_of(layout.align());
        let end = at + layout.size();
        if at == 0 || end > self.start.load(Ordering::Relaxed) + self.len.load(Ordering::Relaxed) {
            return ptr::null_mut();
        }
        self.next.store(end, Ordering::Relaxed);
        ptr::with_exposed_provenance_mut(at)
    }

    #[inline]
    fn is_boot(&self, object: *mut u8) -> bool {
        object
            .addr()
            .wrapping_sub(self.start.load(Ordering::Relaxed))
            < self.len.load(Ordering::Relaxed)
    }

    /// The slab, once it serves.
    #[inline]
    fn slab(&self) -> Option<&'static Slab> {
        // SAFETY: null, or the address of a slab that lives for ever.
        unsafe { self.slab.load(Ordering::Relaxed).as_ref() }
    }

    /// What this CPU has ready, or else the allocator.
    #[inline(always)]
    fn give(&self, layout: Layout) -> *mut u8 {
        let pin = ksync::pin();
        if let Some(ready) = percpu::heap_objects(&pin)
            && let Some(object) = ready.alloc(&pin, layout)
        {
            return object;
        }
        drop(pin);
        self.alloc_cold(layout)
    }
}

// SAFETY: both sources give disjoint memory of the layout asked for, and take back only their own.
unsafe impl GlobalAlloc for KernelHeap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let object = self.give(layout);
        #[cfg(feature = "heap-labels")]
        hal::heap_labels::made(object, layout.size());
        object
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        if self.is_boot(object) {
            return;
        }
        #[cfg(feature = "heap-labels")]
        hal::heap_labels::gone(object);
        let pin = ksync::pin();
        if let Some(ready) = percpu::heap_objects(&pin)
            && ready.dealloc(&pin, object, layout)
        {
            return;
        }
        drop(pin);
        self.dealloc_cold(object, layout);
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.is_boot(object) && Slab::same_place(layout, size) {
            return object;
        }
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else {
            return ptr::null_mut();
        };
        // SAFETY: `wanted` has the old alignment and a size that the caller vouches for.
        let new = unsafe { self.alloc(wanted) };
        if !new.is_null() {
            // SAFETY: two live objects, of at least that many bytes each.
            unsafe {
                ptr::copy_nonoverlapping(object, new, layout.size().min(size));
                self.dealloc(object, layout);
            }
        }
        new
    }
}

/// Gives the heap its first memory: `len` bytes of the direct map at `start`.  Once, at boot.
pub fn give_boot_memory(start: *mut u8, len: usize) {
    let start = start.expose_provenance();
    HEAP.start.store(start, Ordering::Relaxed);
    HEAP.len.store(len, Ordering::Relaxed);
    HEAP.next.store(start, Ordering::Relaxed);
}

/// From now on the slab serves; what is left of the boot run stays unused.  The VM and its slab are set.
pub fn use_slab() {
    HEAP.slab
        .store(ptr::from_ref(slab()).cast_mut(), Ordering::Release);
}

/// Lets this CPU find its ready objects without a search.  Once for each CPU, after [`use_slab`].
pub fn use_own_objects(pin: &ksync::CpuPin) {
    percpu::set_heap_objects(pin, slab().objects(pin.cpu()));
}
