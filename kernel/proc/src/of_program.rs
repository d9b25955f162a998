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
        let place = &self.seldom().of_program;
        if place.get().is_none() {
            // Made before it is put there: nothing is allocated while another thread waits. One that comes second is not needed.
            let _second = place.set(make()?);
        }
        loop {
            match place.get() {
                Some(kept) => return Some(&**kept),
                // Another thread is just putting its own there.
                None => ksync::relax(),
            }
        }
    }
}

/// The program of `p` ends, by the end of its last thread or by execve.
pub(super) fn end(p: &Process) {
    if let Some(kept) = p.of_program() {
        kept.end();
    }
}
