//! What is told of an object's attachments: System V memory counts them.

/// The owner of an object, which is told when a mapping attaches it and when one has ended. The map's lock is held in both calls.
pub trait Watch: Send + Sync {
    /// A mapping has attached the object. Called with preemption off; must not sleep.
    fn attached(&self);

    /// An attachment has ended, and its page-table entries are gone. May sleep, and may end base references on the object.
    fn detached(&self);
}
