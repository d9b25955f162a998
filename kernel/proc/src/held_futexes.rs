//! What a thread has of the futexes with priority inheritance that it owns and others wait for. `doc/futexes.md` explains it.

use ksync::Spin;
use ksync::atomic::AtomicU32;
use task::idlist::{IdLinks, IdList};

use crate::lock;

/// The kind of the list of first waiters.
pub enum FirstWaiter {}

/// The lists of a thread as an owner, and its place on the list of another owner.
#[derive(Default)]
pub struct HeldFutexes {
    /// Locks that it owns.
    pub list: Spin<Held, lock::HeldFutexesLock>,
    /// Its links on the list of the owner of the lock for which it is the first waiter. Under the lock of that list.
    pub links: IdLinks,
    /// The highest priority that a waiter lends it. Written under the lock of `list`.
    pub lent: AtomicU32,
}

/// The locks that a thread owns and others wait for.
#[derive(Default)]
pub struct Held {
    /// The first waiter of each.
    pub waiters: IdList<FirstWaiter>,
    /// The thread ends, or calls execve: no lock is added.
    pub closed: bool,
}
