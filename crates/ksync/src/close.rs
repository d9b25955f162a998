//! Closing all of a node's parts, so that nothing comes in while it goes.

use crate::shim::fence_after_rmw;

/// A part of a node: something, nothing, or closed. All changes are read-modify-writes.
pub trait Part {
    /// Whether nothing is in it, and it is not closed. A hint.
    fn is_empty(&self) -> bool;

    /// Closes it if it is empty: nothing comes in from now on, and what was done before it was emptied is done.
    fn close(&self) -> bool;

    /// Opens it again, by whoever has closed it.
    fn open(&self);
}

/// Closes all parts of a node if all are empty, called by each who has emptied one: part `first`. Of all who empty parts
/// one closes the node in the end, if nothing comes in again. The caller is pinned.
///
/// Mechanism: parts are closed in their order, by a compare-and-swap each. One that fails at the very first leaves the node
/// to another, who is closing it or will empty it. One that fails further on opens what it has closed and looks again:
/// meanwhile another may have emptied the rest, found a closed part, and left the node to it.
pub fn close_all<P: Part, const N: usize>(parts: &[P; N], first: usize) -> bool {
    // Neighbours go one after the other, so the next one is the likeliest to be in use.
    let (before, behind) = parts.split_at(first);
    loop {
        // After what was emptied, or opened: otherwise two could leave the node to each other.
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
        // The first goes last: until then nobody else closes.
        parts[..closed].iter().rev().for_each(P::open);
    }
}
