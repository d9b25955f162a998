//! What boot passes to the kernel.

/// What the machine consists of, for `kmain`.
#[derive(Clone, Copy, Debug)]
pub struct BootInfo {
    /// Number of CPUs that run; they are numbered from 0.
    pub ncpus: usize,
    /// Frames of memory.
    pub frames: usize,
}
