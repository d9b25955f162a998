//! Listeners: connections on their way from connect(2) to accept(2).
//!
//! Guarantee: a connection is in the queue from the moment in which the client is connected, in order, until it is accepted or the listener is
//! closed.
//! A listener that is closed gets none. Threads that wait for a connection or for room are woken one at a time, and a woken one that does not use
//! what came wakes the next.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use cred::Payer;
use ksync::Spin;
use task::wait::{Cause, WaitQueue};
use vfs::error::FsError;

use crate::address::Name;
use crate::error::{Result, SocketError};
use crate::ids::Ids;
use crate::inbox::Inbox;

ksync::lock_class!(pub ListenerLock, "socket listener", rank = 85);

/// The longest backlog: Linux's somaxconn.
const MOST: usize = 4096;

/// A connection that waits for accept.
pub struct Connection {
    /// What the server is to receive from.
    pub server: Arc<Inbox>,
    /// What the client receives from.
    pub client: Arc<Inbox>,
    /// The client's name.
    pub client_name: Option<Arc<Name>>,
    /// The client's ids.
    pub client_ids: Ids,
}

struct Waiting {
    queue: VecDeque<Connection>,
    /// One less than the connections that may wait.
    backlog: usize,
    /// No more connections come: the listener is closed or was shut down.
    ended: bool,
    /// Those of the process that called listen(2) last.
    ids: Ids,
}

/// A listener's queue.
pub struct Listener {
    waiting: Spin<Waiting, ListenerLock>,
    /// Threads in accept.
    pub acceptors: WaitQueue,
    /// Threads in connect, which wait for room.
    pub connectors: WaitQueue,
    /// The listening socket's, with the callers of poll(2). Constant.
    inbox: Arc<Inbox>,
    /// The listener's name. Constant.
    pub name: Arc<Name>,
    /// The user of the server, which pays for what it will send. Constant.
    pub payer: Payer,
}

/// The result of an attempt to accept.
pub enum Next {
    /// A connection.
    Connection(Connection),
    /// There is none yet.
    Wait,
    /// There will be none.
    Ended,
}

impl Listener {
    /// A listener with this name, of the socket with this inbox.
    pub fn new(
        name: Arc<Name>,
        inbox: Arc<Inbox>,
        payer: Payer,
        backlog: usize,
        ids: Ids,
    ) -> Listener {
        Listener {
            waiting: Spin::new(Waiting {
                queue: VecDeque::new(),
                backlog: backlog.min(MOST),
                ended: false,
                ids,
            }),
            acceptors: WaitQueue::new(),
            connectors: WaitQueue::new(),
            inbox,
            name,
            payer,
        }
    }

    /// listen(2) once more.
    pub fn set_backlog(&self, backlog: usize, ids: Ids) {
        let mut waiting = self.waiting.lock();
        waiting.backlog = backlog.min(MOST);
        waiting.ids = ids;
        drop(waiting);
        self.connectors.wake_all();
    }

    /// Adds a connection, if there is room: with the listener's lock held, `join` makes the client connected, to a process with the ids that it is
    /// given, and returns the connection. Returns whether there was room.
    ///
    /// # Errors
    /// `ConnectionRefused` by a listener that has ended; `NoMemory`; those of `join`.
    pub fn try_add(&self, join: impl FnOnce(Ids) -> Result<Connection>) -> Result<bool> {
        let mut waiting = self.waiting.lock();
        if waiting.ended {
            return Err(FsError::ConnectionRefused.into());
        }
        if waiting.queue.len() > waiting.backlog {
            return Ok(false);
        }
        waiting
            .queue
            .try_reserve(1)
            .map_err(|_| SocketError::File(FsError::NoMemory))?;
        let connection = join(waiting.ids)?;
        waiting.queue.push_back(connection);
        let room = waiting.queue.len() <= waiting.backlog;
        drop(waiting);
        if !self.acceptors.is_empty() {
            self.acceptors.wake_one();
        }
        self.inbox.tell(Cause::Input);
        if room && !self.connectors.is_empty() {
            self.connectors.wake_one();
        }
        Ok(true)
    }

    /// Takes the oldest connection.
    pub fn try_accept(&self) -> Next {
        let mut waiting = self.waiting.lock();
        let Some(connection) = waiting.queue.pop_front() else {
            return if waiting.ended {
                Next::Ended
            } else {
                Next::Wait
            };
        };
        let more = !waiting.queue.is_empty();
        drop(waiting);
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

    /// Adds the servers' inboxes of all connections to `to`; none without memory.
    pub fn inboxes(&self, to: &mut Vec<Arc<Inbox>>) {
        let waiting = self.waiting.lock();
        if to.try_reserve(waiting.queue.len()).is_ok() {
            to.extend(waiting.queue.iter().map(|c| c.server.clone()));
        }
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
            let Some(connection) = self.waiting.lock().queue.pop_front() else {
                return;
            };
            connection.server.close();
            connection.client.fail(Some(FsError::ConnectionReset));
        }
    }

    fn wake_all(&self) {
        self.acceptors.wake_all();
        self.connectors.wake_all();
        self.inbox.pollers.wake_all();
    }
}
