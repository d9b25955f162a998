//! What is too much to free at once: chains of removed directories, and file systems.
//!
//! Guarantee: the end of a dentry or of a file system takes a bounded time wherever it happens, often with preemption off,
//! after a grace period. Mechanism: what is left after [`AT_ONCE`] steps waits on a list for the background thread, which
//! goes through it with preemption on.

use alloc::boxed::Box;
use alloc::sync::Arc;

use ksync::{IrqSpin, Mutex};

use super::dentry::{self, Dentry};
use super::mount::Tree;

ksync::lock_class!(pub FinishLock, "freeing leftovers", rank = 39);
ksync::lock_class!(pub LeftoverLock, "leftovers", rank = 155);

/// Held by the thread that frees them: another one that asks finds them gone.
static FINISH: Mutex<(), FinishLock> = Mutex::new(());

/// Dentries that end at once.
pub const AT_ONCE: usize = 32;

enum What {
    /// A directory, perhaps the last use of it, and those above that only it holds.
    Chain(Arc<Dentry>),
    /// The rest of a file system.
    Tree(Tree),
}

struct Leftover {
    what: What,
    next: Option<Box<Leftover>>,
}

static LEFT: IrqSpin<Option<Box<Leftover>>, LeftoverLock> = IrqSpin::new(None);

fn push(what: What) {
    // Small, so the reserve behind the kernel heap may pay for it.
    let mut new = Box::new(Leftover { what, next: None });
    let mut left = LEFT.lock();
    new.next = left.take();
    *left = Some(new);
}

/// Leaves the end of a chain of directories to the background.
pub fn leave_chain(from: Arc<Dentry>) {
    push(What::Chain(from));
}

/// Leaves the end of a file system to the background.
pub fn leave_tree(tree: Tree) {
    push(What::Tree(tree));
}

/// Frees what has been left; tells whether there was something. Preemption is on.
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
                What::Tree(mut tree) => drop(tree.fall(usize::MAX)),
            }
            at = next;
        }
    }
}
