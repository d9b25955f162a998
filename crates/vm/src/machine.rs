//! What the virtual memory system asks of a machine.
//!
//! The kernel implements [`Machine`] on real memory and interrupts, the host laboratory on an arena and simulated
//! CPUs. It is used generically, never through `dyn`, so a call costs what the implementation costs.
#![expect(
    unsafe_code,
    reason = "declares an unsafe trait: callers dereference what `frame` returns"
)]

use core::ptr::NonNull;

use crate::page::Pfn;

/// A machine: memory frames, CPUs, their distances and a clock.
///
/// # Safety
///
/// [`frame`](Machine::frame) must return, for each frame of the [`PageArray`](crate::page::PageArray) that is not
/// `Absent`, a page-aligned pointer to 4096 bytes that stay readable and writable as long as the machine lives, the
/// same on each call, disjoint for different frames, and adjoining for adjoining frames, with one provenance. [`frame_of`](Machine::frame_of) must be its inverse.
pub unsafe trait Machine: Send + Sync + 'static {
    /// The bytes of a frame, through the direct map.
    fn frame(&self, pfn: Pfn) -> NonNull<u8>;

    /// The frame that holds an address of the direct map; `None` for any other address.
    fn frame_of(&self, address: *const u8) -> Option<Pfn>;

    /// Number of CPUs; they are numbered from 0.
    fn ncpus(&self) -> usize;

    /// Number of memory domains; they are numbered from 0.
    fn ndomains(&self) -> usize;

    /// The memory domain next to a CPU.
    fn domain_of(&self, cpu: usize) -> usize;

    /// All domains in order of distance from `domain`, itself first.
    fn domains_by_distance(&self, domain: usize) -> &[u8];

    /// Monotonic time in nanoseconds.
    fn now_ns(&self) -> u64;
}
