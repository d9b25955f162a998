//! A place for what threads that share it have to undo of semaphores.

use alloc::boxed::Box;
use core::any::Any;

use ksync::Once;

/// The place; what is in it was made by a crate above, and its drop undoes.
#[derive(Default)]
pub struct UndoSlot(Once<Box<dyn Any + Send + Sync>>);

impl UndoSlot {
    /// What is in it, made by `make` if it is empty.
    pub fn get_or_make(
        &self,
        make: fn() -> Box<dyn Any + Send + Sync>,
    ) -> &(dyn Any + Send + Sync) {
        &**self.0.get_or_init(make)
    }
}
