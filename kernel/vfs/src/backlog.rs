//! A list of what takes too long to free at once, and waits for the background thread.

use alloc::boxed::Box;

use ksync::IrqSpin;

ksync::lock_class!(pub LeftoverLock, "leftovers", rank = 155);

/// Dentries that are freed at once.
pub const AT_ONCE: usize = 32;

struct Leftover<T> {
    what: T,
    next: Option<Box<Leftover<T>>>,
}

/// The list, the newest first.
pub struct Backlog<T>(IrqSpin<Option<Box<Leftover<T>>>, LeftoverLock>);

impl<T> Backlog<T> {
    /// An empty list.
    pub const fn new() -> Self {
        Backlog(IrqSpin::new(None))
    }

    /// Puts `what` on the list.
    pub fn push(&self, what: T) {
        // Small, so the reserve can serve this allocation when memory is short.
        let mut new = Box::new(Leftover { what, next: None });
        let mut left = self.0.lock();
        new.next = left.take();
        *left = Some(new);
    }

    /// Takes all off the list and has `free` free it; returns whether there was anything.
    pub fn finish(&self, mut free: impl FnMut(T)) -> bool {
        let first = self.0.lock().take();
        let any = first.is_some();
        let mut at = first;
        while let Some(leftover) = at {
            let Leftover { what, next } = *leftover;
            free(what);
            at = next;
        }
        any
    }
}
