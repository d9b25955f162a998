//! System V objects: memory, semaphores and message queues.
//!
//! [`registry`] finds objects by id and key, [`perm`] has their owners and modes, [`charge`] what their makers pay. `doc/system-v.md`
//! describes them.

pub mod charge;
pub mod error;
pub mod msg;
pub mod perm;
pub(crate) mod present;
pub mod registry;
pub mod sem;
pub mod shm;
pub(crate) mod trim;

/// Sets the objects up. Called once, at boot, after the files.
pub(crate) fn init() {
    shm::init();
    sem::init();
    msg::init();
}

/// Bytes of the heap of tables and of objects, which stay until they are removed: for the accounting of the heap.
pub(crate) fn bytes() -> usize {
    shm::registry().bytes() + sem::registry().bytes() + msg::registry().bytes()
}
