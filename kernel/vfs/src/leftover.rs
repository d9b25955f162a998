//! What takes too long to free at once: chains of removed directories, whole file systems, files that were mounted, and watches of
//! file systems that are gone.
//!
//! Guarantee: dropping the last reference to a dentry or to a file system takes a bounded time. It may happen anywhere, and
//! often happens with preemption off, after a grace period. Mechanism: what is left after some steps, or at the first regular
//! file, is put on a list of its kind (`backlog`). A background thread frees it, with preemption on.

use ksync::Mutex;

use super::notify::table;
use super::{dentry, place, superblock};

ksync::lock_class!(pub FinishLock, "freeing leftovers", rank = 39);

hal::machine_static! {
    /// Held by the thread that frees what is on the lists. A second thread waits until the first has finished.
    static FINISH: Mutex<(), FinishLock> = Mutex::new(());
}

/// Frees what is on the lists, and returns whether there was anything. Called by the background thread, with preemption on.
/// Sleeps.
pub fn finish() -> bool {
    let _alone = FINISH.lock();
    let mut any = false;
    while dentry::finish_chains()
        | superblock::finish_trees()
        | place::finish_files()
        | table::finish_unmounted()
    {
        any = true;
    }
    any
}
