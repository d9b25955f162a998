//! Closing all parts of an empty node, so that nothing is inserted while it is unlinked.

use crate::shim::fence_after_rmw;

/// A part of a node: filled, empty, or closed. All changes are read-modify-writes.
pub trait Part {
    /// Whether it is empty and not closed. A hint.
    fn is_empty(&self) -> bool;

    /// Closes it if it is empty: nothing can be inserted from now on, and what preceded its emptying is visible.
    fn close(&self) -> bool;

    /// Opens it again; called by the CPU that has closed it.
    fn open(&self);
}

/// Closes all parts of a node if all are empty. To be called by each CPU that has emptied a part: part `first`. If
/// several CPUs empty parts and nothing is inserted again, exactly one of them closes the node in the end. The caller
/// is pinned.
///
/// Mechanism: parts are closed in order, by a compare-and-swap each. If closing fails at the very first part, another
/// CPU is closing the node, or will empty that part and call this. If it fails at a later part, the parts closed so far
/// are opened, and all are checked again: meanwhile another CPU may have emptied the rest, found a closed part, and
/// left the node to this CPU.
pub fn close_all<P: Part, const N: usize>(parts: &[P; N], first: usize) -> bool {
    // Neighbours are often emptied one after the other, so the next part is the most likely to be in use.
    let (before, behind) = parts.split_at(first);
    loop {
        // A full fence after a part was emptied, or parts were opened: without it two CPUs could leave the node to each
        // other.
        fence_after_rmw();
        if !behind.iter().chain(before).all(P::is_empty) {
            return false;
        }
        let Some(closed) = parts.iter().position(|part| !part.close()) else {
            return true;
        };
        if closed == 0 {
            return false;
        }
        // The first part is opened last: until then no other CPU can begin to close the node.
        parts[..closed].iter().rev().for_each(P::open);
    }
}
