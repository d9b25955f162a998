//! Processes of a test beside one another, and their waits for files: for the tests of the crates over `proc`, which have `support` as a module.
#![allow(dead_code, reason = "no test uses all of it")]

use proc::wait4::Children;
use task::park::{self, Deadline, Interruptible, ParkError, Step};
use vfs::file::FileRef;
use vfs::poll::PollMask;

use crate::support::{exited, fork, wait};

/// poll(2) of one file.
pub fn poll(file: &FileRef, wanted: PollMask, deadline: Deadline) -> Result<PollMask, ParkError> {
    let mut state = (file.clone(), wanted);
    park::park(&mut state, deadline, Interruptible::Yes, |state, w| {
        let always = PollMask::ERR | PollMask::HUP;
        let found = state.0.poll(Some(w)) & (state.1 | always);
        match found.is_empty() {
            true => Step::Wait,
            false => Step::Done(found),
        }
    })
}

/// Starts a process that does something beside the caller, and shares what the function has; returns its pid.
pub fn beside(what: impl FnOnce() + Send + Sync + 'static) -> u32 {
    let what = std::sync::Mutex::new(Some(what));
    fork(move || {
        let what = what.lock().expect("not poisoned").take();
        what.expect("one process runs it")();
        0
    })
}

/// Waits for the ends of so many children.
pub fn join(count: usize) {
    for _ in 0..count {
        let (_, status) = wait(Children::Any).expect("a child");
        assert_eq!(status, exited(0));
    }
}
