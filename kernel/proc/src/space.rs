//! A process's use of an address space.

use alloc::sync::Arc;

use mem::Space;

/// A use of an address space by processes: the end of the last use empties the space. CPUs that are still in the space,
/// and threads that look at it from outside, hold the [`Space`] alone.
pub struct SpaceUser {
    space: Arc<Space>,
    /// The use has ended, and the space has been emptied.
    ended: bool,
}

impl SpaceUser {
    /// The first use of a space.
    pub fn new(space: Arc<Space>) -> Arc<Self> {
        Arc::new(SpaceUser {
            space,
            ended: false,
        })
    }

    /// The space.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Ends one process's use. If it was the last, the space is emptied, which sleeps, and the result is the number of kibibytes
    /// that were resident; else the result is 0. A use that is dropped ends in the same way.
    pub(super) fn end(self: Arc<Self>) -> u64 {
        Arc::into_inner(self).map_or(0, |mut last| {
            last.ended = true;
            mem::clear(&last.space)
        })
    }
}

impl Drop for SpaceUser {
    fn drop(&mut self) {
        if !self.ended {
            mem::clear(&self.space);
        }
    }
}
