//! Listeners of local sockets.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

use cred::Payer;
use task::wait::Cause;
use vfs::error::FsError;

use crate::accept::{AcceptQueue, MOST, Pending};
use crate::address::Name;
use crate::error::Result;
use crate::ids::Ids;
use crate::inbox::Inbox;

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

impl Pending for Connection {
    type Client = ();

    fn connected(&self) -> Option<()> {
        Some(())
    }

    fn wake((): ()) {}

    fn reset(self) {
        self.server.close();
        self.client.fail(Some(FsError::ConnectionReset));
    }
}

/// A listener: its queue, with the ids of the process that called listen(2) last.
pub struct Listener {
    queue: AcceptQueue<Connection, Ids>,
    /// The listening socket's, whose owner is told of connections. Constant.
    inbox: Arc<Inbox>,
    /// The listener's name. Constant.
    pub name: Arc<Name>,
    /// The user of the server, which pays for what it will send. Constant.
    pub payer: Payer,
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
            queue: AcceptQueue::new(backlog.min(MOST), ids),
            inbox,
            name,
            payer,
        }
    }

    /// As [`AcceptQueue::try_add`]; and the owner of the listening socket gets a signal, if it asks for them.
    ///
    /// # Errors
    /// Those of that.
    pub fn try_add(&self, join: impl FnOnce(Ids) -> Result<Connection>) -> Result<bool> {
        let added = self.queue.try_add(join)?;
        if added {
            self.inbox.tell(Cause::Input);
        }
        Ok(added)
    }

    /// Adds the servers' inboxes of all connections to `to`; none without memory.
    pub fn inboxes(&self, to: &mut Vec<Arc<Inbox>>) {
        self.queue.each(|queue| {
            if to.try_reserve(queue.len()).is_ok() {
                to.extend(queue.iter().map(|c| c.server.clone()));
            }
        });
    }
}

impl Deref for Listener {
    type Target = AcceptQueue<Connection, Ids>;

    fn deref(&self) -> &Self::Target {
        &self.queue
    }
}
