//! What takes too long to free at once: chains of removed directories, whole file systems, and files that were mounted.
//!
//! Guarantee: dropping the last reference to a dentry or to a file system takes a bounded time. It may happen anywhere, and
//! often happens with preemption off, after a grace period. Mechanism: what is left after [`AT_ONCE`] steps, or at the first
//! regular file, is put on a list. A background thread frees it, with preemption on.

use alloc::boxed::Box;
use alloc::sync::Arc;

use ksync::{IrqSpin, Mutex};

use super::dentry::{self, Dentry};
use super::kept::Kept;
use super::mount::Tree;

ksync::lock_class!(pub FinishLock, "freeing leftovers", rank = 39);
ksync::lock_class!(pub LeftoverLock, "leftovers", rank = 155);

hal::machine_static! {
    /// Held by the thread that frees what is on the list. A second thread waits until the first has finished.
    static FINISH: Mutex<(), FinishLock> = Mutex::new(());
}

/// Dentries that are freed at once.
pub const AT_ONCE: usize = 32;

enum What {
    /// A reference to a directory, perhaps the last one; with it go the directories above that nothing else refers to.
    Chain(Arc<Dentry>),
    /// What is left of a file system.
    Tree(Tree),
    /// The pages of a file that was mounted.
    File(Kept),
}

struct Leftover {
    what: What,
    next: Option<Box<Leftover>>,
}

hal::machine_static! {
    static LEFT: IrqSpin<Option<Box<Leftover>>, LeftoverLock> = IrqSpin::new(None);
}

fn push(what: What) {
    // Small, so the reserve can serve this allocation when memory is short.
    let mut new = Box::new(Leftover { what, next: None });
    let mut left = LEFT.lock();
    new.next = left.take();
    *left = Some(new);
}

/// Puts a chain of directories on the list for the background thread.
pub fn leave_chain(from: Arc<Dentry>) {
    push(What::Chain(from));
}

/// Puts the rest of a file system on the list for the background thread.
pub fn leave_tree(tree: Tree) {
    push(What::Tree(tree));
}

/// Puts the pages of a file on the list for the background thread.
pub fn leave_file(pages: Kept) {
    push(What::File(pages));
}

/// Frees what is on the list, and returns whether there was anything. Called by the background thread, with preemption on.
/// Sleeps.
pub fn finish() -> bool {
    let _alone = FINISH.lock();
    let mut any = false;
    loop {
        let first = LEFT.lock().take();
        let Some(first) = first else { return any };
        any = true;
        let mut at = Some(first);
        while let Some(leftover) = at {
            let Leftover { what, next } = *leftover;
            match what {
                What::Chain(from) => drop(dentry::end_chain(Some(from), usize::MAX)),
                What::File(pages) => drop(pages),
                What::Tree(mut tree) => drop(tree.fall(usize::MAX, true)),
            }
            at = next;
        }
    }
}
