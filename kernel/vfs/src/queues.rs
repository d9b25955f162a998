//! The function that opens POSIX message queues, which a crate above has.

use alloc::sync::Arc;
use core::any::Any;

use ksync::Once;

use super::error::{FsError, Result};
use super::file::Kind;

/// Opens what a node of a queue keeps. Fails with `NotFound` if the queue has ended.
pub type Open = fn(&Arc<dyn Any + Send + Sync>) -> Result<Kind>;

hal::machine_static! {
    static OPEN: Once<Open> = Once::new();
}

/// Sets the function. Called once, at boot, before there are queues.
pub fn set_open(open: Open) {
    OPEN.get_or_init(|| open);
}

/// Opens a queue.
///
/// # Errors
/// Those of the function; `NoDevAddr` if there is none.
pub(super) fn open(queue: &Arc<dyn Any + Send + Sync>) -> Result<Kind> {
    OPEN.get().ok_or(FsError::NoDevAddr)?(queue)
}
