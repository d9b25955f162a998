//! What the calling thread has to undo of semaphores at its end.
//!
//! The crate that has semaphores keeps its adjustments in a slot, by a type that this crate does not know. Threads share a slot as
//! CLONE_SYSVSEM says; execve keeps it; the end of its last thread drops it, which makes the adjustments.

use alloc::sync::Arc;
use ksync::atomic::Ordering;

use task::current::current;

use crate::UserThreadExt;
use crate::undo_slot::UndoSlot;

/// The slot of the calling thread, which is made if it has none; `None` for a thread that has no process.
pub fn own() -> Option<Arc<UndoSlot>> {
    let me = current();
    let user = me.user();
    let slot = me
        .own(&user.own)?
        .borrow_mut()
        .undo
        .get_or_insert_default()
        .clone();
    user.undo_at
        .store(Arc::as_ptr(&slot).addr(), Ordering::Relaxed);
    Some(slot)
}

/// Ends the calling thread's use of its slot: at its end, and for unshare(2). The last use makes the adjustments, for which it may sleep.
pub fn leave() {
    let me = current();
    let user = me.user();
    user.undo_at.store(0, Ordering::Relaxed);
    let slot = me
        .own(&user.own)
        .and_then(|own| own.borrow_mut().undo.take());
    drop(slot);
}
