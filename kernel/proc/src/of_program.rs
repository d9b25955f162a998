//! What crates above keep for the program that a process runs: until it ends, or the process runs another one.

use alloc::boxed::Box;
use core::any::Any;

use crate::process::Process;

/// What is kept. Threads of the process use it at once, so it has locks of its own.
pub trait OfProgram: Any + Send + Sync {
    /// The program ends; no other thread of the process is left. Sleeping context.
    fn end(&self);
    /// Itself, to be told from what other crates keep.
    fn as_any(&self) -> &dyn Any;
}

impl Process {
    /// What is kept, if something was.
    pub fn of_program(&self) -> Option<&dyn OfProgram> {
        let kept = self.seldom.get()?.of_program.get()?;
        Some(&**kept)
    }

    /// What is kept, made by `make` at first use; `None` if that has no memory. Allocates.
    pub fn of_program_or(
        &self,
        make: fn() -> Option<Box<dyn OfProgram>>,
    ) -> Option<&dyn OfProgram> {
        let kept = self.seldom().of_program.get_or_make(make)?;
        Some(&**kept)
    }
}

/// The program of `p` ends, by the end of its last thread or by execve.
pub(super) fn end(p: &Process) {
    if let Some(kept) = p.of_program() {
        kept.end();
    }
}
