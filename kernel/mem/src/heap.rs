//! The global allocator: a range of boot memory first, then the slab heap of the VM.
//!
//! An allocation takes an object from the ready objects of the CPU, to which the per-CPU area points, and a free puts the
//! object back there. Only if there is no ready object, or too many, is the slab asked.
//!
//! Objects that boot allocated are never freed: they belong to structures that live as long as the machine. `dealloc`
//! recognises them by their address and does nothing.
#![expect(unsafe_code, reason = "the trait of the global allocator is unsafe")]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use hal::percpu;
use vm::Rights;
use vm::slab::Slab;

use crate::machine::slab;
use crate::shortage;

/// The state of the global allocator.
struct KernelHeap {
    /// Address of the next free byte of the boot memory, the length of that memory, and its start. Atomic; constant once the
    /// slab is in use.
    next: AtomicUsize,
    len: AtomicUsize,
    start: AtomicUsize,
    /// Null until [`use_slab`], and the slab from then on.
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
    /// Allocates from the slab, or from the boot memory before [`use_slab`]. When no memory is left above the reserve, the policy
    /// says what to do: it may sleep where the caller may. Null if that fails, too.
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

    /// Allocates from the boot memory; null if there is none or not enough.
    fn boot_alloc(&self, layout: Layout) -> *mut u8 {
        // Only the boot CPU runs.
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

    /// The slab; `None` before [`use_slab`].
    #[inline]
    fn slab(&self) -> Option<&'static Slab> {
        // SAFETY: null, or the address of a slab that lives for ever.
        unsafe { self.slab.load(Ordering::Relaxed).as_ref() }
    }

    /// Allocates from the ready objects of this CPU, or else by `alloc_cold`.
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

/// Gives the heap `len` bytes of the direct map at `start`, from which it allocates until [`use_slab`]. Called once, at boot.
pub fn give_boot_memory(start: *mut u8, len: usize) {
    let start = start.expose_provenance();
    HEAP.start.store(start, Ordering::Relaxed);
    HEAP.len.store(len, Ordering::Relaxed);
    HEAP.next.store(start, Ordering::Relaxed);
}

/// Makes the slab serve all allocations from now on; the rest of the boot memory stays unused. Called once, after the VM and
/// its slab have been set up.
pub fn use_slab() {
    HEAP.slab
        .store(ptr::from_ref(slab()).cast_mut(), Ordering::Release);
}

/// Records the ready objects of this CPU in its per-CPU area. Called once for each CPU, after [`use_slab`].
pub fn use_own_objects(pin: &ksync::CpuPin) {
    percpu::set_heap_objects(pin, slab().objects(pin.cpu()));
}
