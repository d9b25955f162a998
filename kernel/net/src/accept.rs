//! What a listener has: connections on their way from connect(2) to accept(2), for all families.
//!
//! Guarantee: a connection is in the queue from the moment in which the client is connected, in order, until it is accepted or the listener is
//! closed. A listener that is closed gets none. Threads that wait for a connection or for room are woken one at a time, and a woken one that does
//! not use what came wakes the next.
//!
//! A family may also let clients that find no room be *late*: they are in a second list, not connected yet, and each moves to the queue when
//! there is room. A client that comes later than a late one does not pass it. While a client is late the queue is not empty, so that an accept
//! admits it.

use alloc::collections::VecDeque;

use ksync::Spin;
use task::wait::{Cause, WaitQueue};
use vfs::error::FsError;

use crate::error::{Result, SocketError};

ksync::lock_class!(pub ListenerLock, "socket listener", rank = 85);

/// The longest backlog: Linux's somaxconn.
pub const MOST: usize = 4096;

/// A connection that waits for accept.
pub trait Pending {
    /// What wakes a client that was late.
    type Client;
    /// It was late, and is connected now; `None` if the client has given up. Called with the listener's lock held.
    fn connected(&self) -> Option<Self::Client>;
    /// Wakes such a client. Called without a lock.
    fn wake(client: Self::Client);
    /// The listener is closed. Called without a lock.
    fn reset(self);
}

struct Waiting<C, S> {
    queue: VecDeque<C>,
    late: VecDeque<C>,
    /// One less than the connections that may wait.
    backlog: usize,
    /// No more connections come: the listener is closed or was shut down.
    ended: bool,
    state: S,
}

impl<C, S> Waiting<C, S> {
    fn has_room(&self) -> bool {
        self.queue.len() <= self.backlog
    }

    /// Moves the first late client to the queue, if there is one, and room and memory for it.
    fn admit(&mut self) -> Option<C::Client>
    where
        C: Pending,
    {
        if !self.has_room() || self.late.is_empty() || self.queue.try_reserve(1).is_err() {
            return None;
        }
        while let Some(connection) = self.late.pop_front() {
            if let Some(client) = connection.connected() {
                self.queue.push_back(connection);
                return Some(client);
            }
            // One that has given up refers to the connection until it has found it gone from here, so this frees nothing under the lock.
        }
        None
    }
}

/// Connections that wait, and threads that wait for one. `S` is what the last call of listen(2) says of its caller.
pub struct AcceptQueue<C, S> {
    waiting: Spin<Waiting<C, S>, ListenerLock>,
    /// Threads in accept.
    pub acceptors: WaitQueue,
    /// Threads in connect, which wait for room.
    pub connectors: WaitQueue,
    /// Callers of poll(2).
    pub pollers: WaitQueue,
}

/// The result of an attempt to accept.
pub enum Next<C> {
    /// A connection.
    Connection(C),
    /// There is none yet.
    Wait,
    /// There will be none.
    Ended,
}

/// The result of an attempt to connect by a client that may be late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is connected.
    Connected,
    /// It will be.
    Late,
    /// Nothing refers to it: too many are late.
    Dropped,
}

impl<C: Pending, S: Copy> AcceptQueue<C, S> {
    /// An empty queue for one connection more than `backlog`.
    pub fn new(backlog: usize, state: S) -> Self {
        AcceptQueue {
            waiting: Spin::new(Waiting {
                queue: VecDeque::new(),
                late: VecDeque::new(),
                backlog,
                ended: false,
                state,
            }),
            acceptors: WaitQueue::new(),
            connectors: WaitQueue::new(),
            pollers: WaitQueue::new(),
        }
    }

    /// listen(2) once more.
    pub fn set_backlog(&self, backlog: usize, state: S) {
        let mut waiting = self.waiting.lock();
        waiting.backlog = backlog;
        waiting.state = state;
        drop(waiting);
        while self.admit_late() {}
        self.wake_all();
    }

    /// Moves the first late client to the queue, if there is one and room for it; returns whether it did.
    fn admit_late(&self) -> bool {
        let Some(client) = self.waiting.lock().admit() else {
            return false;
        };
        C::wake(client);
        self.wake_acceptor();
        true
    }

    /// Adds a connection, if there is room: with the listener's lock held, `join` makes the client connected, given what the last call of
    /// listen(2) said, and returns the connection. Returns whether there was room.
    ///
    /// # Errors
    /// `ConnectionRefused` by a listener that has ended; `NoMemory`; those of `join`.
    pub fn try_add(&self, join: impl FnOnce(S) -> Result<C>) -> Result<bool> {
        let mut waiting = self.waiting.lock();
        if waiting.ended {
            return Err(FsError::ConnectionRefused.into());
        }
        if !waiting.has_room() {
            return Ok(false);
        }
        waiting
            .queue
            .try_reserve(1)
            .map_err(|_| SocketError::File(FsError::NoMemory))?;
        let connection = join(waiting.state)?;
        waiting.queue.push_back(connection);
        let room = waiting.has_room();
        drop(waiting);
        self.wake_acceptor();
        if room && !self.connectors.is_empty() {
            self.connectors.wake_one();
        }
        Ok(true)
    }

    /// Adds a connection that `join` makes, as late if there is no room or others are late, of which there may be as many as connections. Does
    /// not call `join` if there are more.
    ///
    /// # Errors
    /// `ConnectionRefused` by a listener that has ended; `NoMemory`; those of `join`.
    pub fn add_or_wait(&self, join: impl FnOnce(S, Added) -> Result<C>) -> Result<Added> {
        let mut waiting = self.waiting.lock();
        if waiting.ended {
            return Err(FsError::ConnectionRefused.into());
        }
        let room = waiting.has_room() && waiting.late.is_empty();
        let (most, state) = (waiting.backlog.max(LATE), waiting.state);
        let waiting_now = &mut *waiting;
        let (list, added) = match room {
            true => (&mut waiting_now.queue, Added::Connected),
            false if waiting_now.late.len() < most => (&mut waiting_now.late, Added::Late),
            false => return Ok(Added::Dropped),
        };
        list.try_reserve(1)
            .map_err(|_| SocketError::File(FsError::NoMemory))?;
        list.push_back(join(state, added)?);
        drop(waiting);
        if room {
            self.wake_acceptor();
        }
        Ok(added)
    }

    /// Begins to take connections, after [`close`](Self::close) once more.
    pub fn open(&self, backlog: usize, state: S) {
        let mut waiting = self.waiting.lock();
        waiting.ended = false;
        waiting.backlog = backlog;
        waiting.state = state;
    }

    /// Takes a late client, which gives up, out of the list.
    pub fn remove_late(&self, same: impl Fn(&C) -> bool) {
        let mut waiting = self.waiting.lock();
        let at = waiting.late.iter().position(same);
        let gone = at.and_then(|at| waiting.late.remove(at));
        drop(waiting);
        drop(gone);
    }

    /// Takes the oldest connection.
    pub fn try_accept(&self) -> Next<C> {
        let mut waiting = self.waiting.lock();
        let Some(connection) = waiting.queue.pop_front() else {
            return if waiting.ended {
                Next::Ended
            } else {
                Next::Wait
            };
        };
        // There is memory for it: the place of the one that was taken.
        let admitted = waiting.admit();
        let more = !waiting.queue.is_empty();
        drop(waiting);
        if let Some(client) = admitted {
            C::wake(client);
            self.pollers.wake_all_for(Cause::Input);
        }
        if !self.connectors.is_empty() {
            self.connectors.wake_one();
        }
        if more && !self.acceptors.is_empty() {
            self.acceptors.wake_one();
        }
        Next::Connection(connection)
    }

    /// Whether a connection waits.
    pub fn is_ready(&self) -> bool {
        !self.waiting.lock().queue.is_empty()
    }

    /// Connections that wait, and the backlog.
    pub fn load(&self) -> (usize, usize) {
        let waiting = self.waiting.lock();
        (waiting.queue.len(), waiting.backlog)
    }

    /// Calls `f` with the connections, under the lock.
    pub fn each(&self, f: impl FnOnce(&VecDeque<C>)) {
        f(&self.waiting.lock().queue);
    }

    /// Whether it refuses further connections.
    pub fn is_ended(&self) -> bool {
        self.waiting.lock().ended
    }

    /// Refuses further connections. Those that wait can still be accepted.
    pub fn end(&self) {
        self.waiting.lock().ended = true;
        self.wake_all();
    }

    /// Refuses further connections, and resets those that wait. Called without a lock.
    pub fn close(&self) {
        self.end();
        loop {
            let mut waiting = self.waiting.lock();
            let next = waiting
                .queue
                .pop_front()
                .or_else(|| waiting.late.pop_front());
            drop(waiting);
            match next {
                Some(connection) => connection.reset(),
                None => return,
            }
        }
    }

    fn wake_acceptor(&self) {
        if !self.acceptors.is_empty() {
            self.acceptors.wake_one();
        }
        self.pollers.wake_all_for(Cause::Input);
    }

    fn wake_all(&self) {
        self.acceptors.wake_all();
        self.connectors.wake_all();
        self.pollers.wake_all();
    }
}

/// Clients that may be late at the least.
const LATE: usize = 128;
