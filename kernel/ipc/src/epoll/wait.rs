//! epoll_wait(2).

use task::park::{Deadline, Interruptible, ParkError, Step, park_and_pass_on};
use task::wait::Waiter;
use vfs::error::{FsError, Result};
use vfs::file::FileRef;

use super::event::Event;
use super::file::set_of;
use super::set::Set;

/// A wait, as the state of a step.
struct Waiting<'a> {
    set: &'a Set,
    most: usize,
    deliver: &'a mut dyn FnMut(Event) -> Result<()>,
    error: Option<FsError>,
}

impl Waiting<'_> {
    /// Reports what is ready; `None` if nothing is.
    fn look(&mut self, waiter: Option<&mut Waiter>) -> Option<Result<usize>> {
        let (deliver, error) = (&mut self.deliver, &mut self.error);
        let mut take = |event| deliver(event).map_err(|e| *error = Some(e));
        match self.set.scan(self.most, &mut take, waiter) {
            (0, false) => None,
            (0, true) => Some(Err(self.error.unwrap_or(FsError::Fault))),
            (n, _) => Some(Ok(n)),
        }
    }

    /// Wakes another thread if something is left for it.
    fn pass_on(&mut self) {
        let left = !self.set.ready.lock().list.is_empty();
        if left {
            self.set.waiters.wake_one();
        }
    }
}

/// Waits until an entry of `epoll` is ready, and passes the events of those that are, at most `most`, to `deliver`. If that fails, its event
/// is not lost. Returns how many events were taken; 0 after `deadline`.
///
/// # Errors
/// `Invalid` if the file is no epoll; `Interrupted` if a signal came first; that of `deliver` for the first event.
pub fn wait(
    epoll: &FileRef,
    most: usize,
    deadline: Deadline,
    deliver: &mut dyn FnMut(Event) -> Result<()>,
) -> Result<usize> {
    let set = set_of(epoll).ok_or(FsError::Invalid)?;
    let mut waiting = Waiting {
        set,
        most,
        deliver,
        error: None,
    };
    if let Some(result) = waiting.look(None) {
        return result;
    }
    if deadline == Deadline::now() {
        return Ok(0);
    }
    let ended = park_and_pass_on(
        &mut waiting,
        deadline,
        Interruptible::Yes,
        |waiting, w| {
            w.listen(&waiting.set.waiters);
            waiting.look(Some(w)).map_or(Step::Wait, Step::Done)
        },
        Waiting::pass_on,
    );
    match ended {
        Ok(result) => result,
        Err(ParkError::Timeout) => Ok(0),
        Err(ParkError::Signal) => Err(FsError::Interrupted),
    }
}
