//! The waits of sockets, for all families: for bytes, for room, for a connection.

use alloc::boxed::Box;

use hal::uio::IoBuf;
use task::park::{Deadline, Interruptible, ParkError, Step, park_and_pass_on};
use task::wait::Waiter;
use vfs::error::FsError;

use crate::accept::{AcceptQueue, Next, Pending};
use crate::error::{Result, SocketError};
use crate::ids::Ids;
use crate::inbox::{Got, Inbox, Take};
use crate::rights::Rights;

/// The error of a call whose wait has ended without result.
pub fn gave_up(e: ParkError, deadline: Deadline) -> SocketError {
    match (e, deadline) {
        (ParkError::Timeout, _) => FsError::WouldBlock.into(),
        (ParkError::Signal, Deadline::Never) => FsError::Interrupted.into(),
        (ParkError::Signal, _) => SocketError::InterruptedForGood,
    }
}

/// A write to a stream, as the state of a step.
struct Put<'a, 'b, 'c> {
    inbox: &'a Inbox,
    buf: &'b mut IoBuf<'c>,
    from: Option<Ids>,
    rights: &'b mut Option<Box<Rights>>,
}

impl Put<'_, '_, '_> {
    fn step(&mut self, w: &mut Waiter) -> Step<Result<usize>> {
        w.listen(&self.inbox.writers);
        match self.inbox.try_put(self.buf, self.from, self.rights) {
            Ok(None) => Step::Wait,
            Ok(Some(n)) => Step::Done(Ok(n)),
            Err(e) => Step::Done(Err(e)),
        }
    }
}

/// A receive, as the state of a step.
struct Get<'a, 'b, 'c> {
    inbox: &'a Inbox,
    buf: &'b mut IoBuf<'c>,
    how: Take,
}

impl Get<'_, '_, '_> {
    fn step(&mut self, w: &mut Waiter) -> Step<Result<Got>> {
        w.listen(&self.inbox.readers);
        match self.inbox.try_take(self.buf, self.how) {
            Ok(None) => Step::Wait,
            Ok(Some(got)) => Step::Done(Ok(got)),
            Err(e) => Step::Done(Err(e)),
        }
    }
}

/// Writes some of `buf` to a stream, as [`Inbox::try_put`]; `None` for `nonblocking` if it would have to wait for room.
fn put(
    inbox: &Inbox,
    buf: &mut IoBuf,
    from: Option<Ids>,
    rights: &mut Option<Box<Rights>>,
    (nonblocking, deadline): (bool, Deadline),
) -> Result<usize> {
    match inbox.try_put(buf, from, rights)? {
        Some(n) => return Ok(n),
        None if nonblocking => return Err(FsError::WouldBlock.into()),
        None => {}
    }
    let mut put = Put {
        inbox,
        buf,
        from,
        rights,
    };
    let signals = Interruptible::Yes;
    park_and_pass_on(&mut put, deadline, signals, Put::step, |put| {
        put.inbox.writers.wake_one();
    })
    .unwrap_or_else(|e| Err(gave_up(e, deadline)))
}

/// Writes all of `buf` to a stream, and waits for room. Returns the bytes, and the error that has ended it before.
pub fn put_all(
    inbox: &Inbox,
    buf: &mut IoBuf,
    from: Option<Ids>,
    rights: &mut Option<Box<Rights>>,
    how: (bool, Deadline),
) -> (usize, Result<()>) {
    let mut total = 0;
    while buf.remaining() > 0 {
        match put(inbox, buf, from, rights, how) {
            Ok(n) => total += n,
            Err(e) => return (total, Err(e)),
        }
    }
    (total, Ok(()))
}

/// Receives once, as [`Inbox::try_take`], and waits until there is something.
pub fn get(inbox: &Inbox, buf: &mut IoBuf, how: Take, deadline: Deadline) -> Result<Got> {
    let mut get = Get { inbox, buf, how };
    let signals = Interruptible::Yes;
    park_and_pass_on(&mut get, deadline, signals, Get::step, |get| {
        get.inbox.readers.wake_one();
    })
    .unwrap_or_else(|e| Err(gave_up(e, deadline)))
}

/// Takes a connection from a listener's queue, and waits until there is one.
///
/// # Errors
/// `WouldBlock` for `nonblocking`; `Invalid` if there will be none; those of a wait.
pub fn accept<C: Pending, S: Copy>(
    queue: &AcceptQueue<C, S>,
    nonblocking: bool,
    deadline: Deadline,
) -> Result<C> {
    let next = match queue.try_accept() {
        Next::Wait if nonblocking => return Err(FsError::WouldBlock.into()),
        Next::Wait => wait_for_connection(queue, deadline)?,
        next => next,
    };
    match next {
        Next::Connection(connection) => Ok(connection),
        _ => Err(FsError::Invalid.into()),
    }
}

fn wait_for_connection<C: Pending, S: Copy>(
    mut queue: &AcceptQueue<C, S>,
    deadline: Deadline,
) -> Result<Next<C>> {
    let step = |queue: &mut &AcceptQueue<C, S>, w: &mut Waiter| {
        w.listen(&queue.acceptors);
        match queue.try_accept() {
            Next::Wait => Step::Wait,
            next => Step::Done(next),
        }
    };
    park_and_pass_on(&mut queue, deadline, Interruptible::Yes, step, |queue| {
        queue.acceptors.wake_one();
    })
    .map_err(|e| gave_up(e, deadline))
}
