//! Kernel stacks: those of the host's threads.

/// Frames of a thread's stack: none of the machine's.
pub const FRAMES_PER_STACK: usize = 0;
