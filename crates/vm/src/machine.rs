//! What the virtual memory system requires of a machine.
//!
//! The kernel implements [`Machine`] on real memory and interrupts, the host tests on an arena and simulated CPUs. It
//! is used as a generic parameter, never through `dyn`, so that a call has no overhead.
#![expect(
    unsafe_code,
    reason = "declares an unsafe trait: callers dereference what `frame` returns"
)]

use core::ptr::NonNull;

use ksync::atomic::AtomicU64;

use crate::page::{Pfn, copy_frame, zero_frame};
use crate::tlb::{CpuSet, Gather};

/// The sizes that a stack and its space would have after a fault below the stack, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// The stack, up to its top: RLIMIT_STACK's measure.
    pub stack: u64,
    /// All mappings: RLIMIT_AS's measure.
    pub space: u64,
    /// All locked mappings, if the stack is locked: RLIMIT_MEMLOCK's measure.
    pub locked: Option<u64>,
}

/// A machine: memory frames, CPUs, NUMA distances and a clock.
///
/// # Safety
///
/// [`frame`](Machine::frame) must return, for each frame of the [`PageArray`](crate::page::PageArray) that is not
/// `Absent`, a page-aligned pointer to 4096 bytes that stay readable and writable as long as the machine lives, the
/// same on each call, disjoint for different frames, and adjoining for adjoining frames, with one provenance. The
/// address of a frame is congruent to its physical address modulo 4 MiB, the largest run.
/// [`frame_of`](Machine::frame_of) must be its inverse.
pub unsafe trait Machine: Send + Sync + 'static {
    /// The bytes of a frame, through the direct map.
    fn frame(&self, pfn: Pfn) -> NonNull<u8>;

    /// The frame that holds an address of the direct map; `None` for any other address.
    fn frame_of(&self, address: *const u8) -> Option<Pfn>;

    /// Number of CPUs; they are numbered from 0.
    fn ncpus(&self) -> usize;

    /// Number of memory domains; they are numbered from 0.
    fn ndomains(&self) -> usize;

    /// The memory domain nearest to a CPU.
    fn domain_of(&self, cpu: usize) -> usize;

    /// All domains in order of distance from `domain`, which comes first.
    fn domains_by_distance(&self, domain: usize) -> &[u8];

    /// A monotonic clock that is cheap to read, in its own unit: a nanosecond or somewhat less.
    fn ticks(&self) -> u64;

    /// Invalidates cached translations on each CPU of `cpus`, this one included if it is a member, and returns when all
    /// have done so. Invalidates [`Gather::runs`]; or everything if the gather [is full](Gather::is_full), after
    /// loading the root that the pmap which the CPU runs has at that moment ([`Pmap::root_info`]).
    ///
    /// A machine whose CPUs tag translations asks [`Asids`](crate::asid::Asids) what a request means for each CPU.
    ///
    /// Invalidating an address also drops the cached upper levels for it. The call is made with preemption off and
    /// interrupts on, and without locks that an interrupt handler takes; two CPUs may flush each other at once.
    ///
    /// The machine itself drops the cached translations of an address whose access faulted on that CPU.
    ///
    /// [`Pmap::root_info`]: crate::pmap::Pmap::root_info
    fn flush(&self, cpus: &CpuSet, what: &Gather);

    /// Whether the caller should abandon a long operation because its process is about to end.
    fn must_stop(&self) -> bool {
        false
    }

    /// Whether the caller's resource limits allow a stack to grow so. Called with the map's lock held.
    fn may_grow(&self, to: &Growth) -> bool;

    /// Copies the present contents of a device's frame to a frame of memory that the caller owns. Called pinned.
    fn copy_device(&self, to: Pfn, from: Pfn);

    /// Fills the words of a new page table, in a frame that the caller owns: with a copy of `template`, which does not
    /// change, or with zeros.
    #[inline]
    fn fill_table(&self, pfn: Pfn, template: Option<Pfn>)
    where
        Self: Sized,
    {
        match template {
            Some(template) => copy_frame(self, pfn, template),
            None => zero_frame(self, pfn),
        }
    }

    /// The words of a page table, as atomics.
    ///
    /// Machines under a model checker, whose atomics are not plain words, store them elsewhere.
    #[inline]
    fn table_words(&self, pfn: Pfn) -> &[AtomicU64; 512] {
        // SAFETY: `frame` gives 4096 aligned bytes that live as long as the machine, any of which are valid words;
        // while the frame is a page table it is accessed as atomics alone.
        unsafe { self.frame(pfn).cast::<[AtomicU64; 512]>().as_ref() }
    }
}
