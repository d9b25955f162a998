//! A connection of TCP: two inboxes, and which of the ways between them have ended.
//!
//! Guarantee: the two sides agree on the state. What one side has sent before its end is received before the end; a reset may drop it.

use alloc::sync::Arc;

use cred::{MemoryCharge, Payer};
use ksync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use task::wait::Cause;
use task::wait::WaitQueue;
use vfs::error::FsError;

use super::endpoint::{Endpoint, Family};
use super::late;
use super::ports::{self, Ended};
use crate::accept::{AcceptQueue, Added, Pending};
use crate::error::Result;
use crate::inbox::Inbox;

/// The side that has connected.
pub const CLIENT: usize = 0;
/// The side that was accepted, or will be.
pub const SERVER: usize = 1;

/// States of a socket, with Linux's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Bytes go both ways.
    Established = 1,
    /// The listener has no room yet.
    SynSent = 2,
    /// This side writes no more.
    FinWait2 = 5,
    /// Both have ended, this side first.
    TimeWait = 6,
    /// Not connected, or no more.
    Close = 7,
    /// The other side writes no more.
    CloseWait = 8,
    /// It listens.
    Listen = 10,
}

/// Bits of a pair's state.
mod bit {
    pub const CONNECTED: u32 = 1;
    pub const REFUSED: u32 = 2;
    pub const RESET: u32 = 4;
    /// The client, or by one place higher the server, writes no more.
    pub const ENDED: u32 = 8;
    /// The server was the first to end.
    pub const SERVER_FIRST: u32 = 32;
    /// The connect has failed; `REFUSED` follows once the client's inbox has the error.
    pub const FAILED: u32 = 64;
}

fn ended(side: usize) -> u32 {
    bit::ENDED << side
}

/// One side of a connection. All is constant.
pub struct End {
    /// What it receives from.
    pub inbox: Arc<Inbox>,
    /// Its address.
    pub at: Endpoint,
    /// The family of its socket.
    pub family: Family,
    /// Whether it allowed others to have its port.
    pub reuse: bool,
    /// The user.
    pub payer: Payer,
}

/// A connection.
pub struct Pair {
    ends: [End; 2],
    /// Atomic.
    state: AtomicU32,
    /// Threads that wait until the client is connected, or refused.
    pub waiting: WaitQueue,
    /// When a late client is tried again; `late` has it.
    pub(super) due: AtomicU64,
    _charge: MemoryCharge,
}

/// Bytes of a connection, and of what is known of a late client.
const BYTES: usize = size_of::<Pair>() + 2 * size_of::<usize>() + late::BYTES;

impl Pair {
    /// One that is not connected yet, charged to the client's user.
    pub fn new(client: End, server: End) -> Pair {
        Pair {
            _charge: MemoryCharge::new(client.payer, BYTES),
            ends: [client, server],
            state: AtomicU32::new(0),
            waiting: WaitQueue::new(),
            due: AtomicU64::new(0),
        }
    }

    /// A side.
    pub fn end(&self, side: usize) -> &End {
        &self.ends[side]
    }

    fn has(&self, bits: u32) -> bool {
        self.state.load(SeqCst) & bits != 0
    }

    /// Whether it is connected, or was.
    pub fn is_connected(&self) -> bool {
        self.has(bit::CONNECTED)
    }

    /// Whether the client was refused.
    pub fn is_refused(&self) -> bool {
        self.has(bit::REFUSED)
    }

    /// Whether it was reset.
    pub fn is_reset(&self) -> bool {
        self.has(bit::RESET)
    }

    /// Sets a bit that says how the connect has ended; returns whether it had not.
    fn decide(&self, result: u32) -> bool {
        let set = |now: u32| (now & (bit::CONNECTED | bit::FAILED) == 0).then_some(now | result);
        self.state.fetch_update(SeqCst, SeqCst, set).is_ok()
    }

    /// Whether it is known how the connect ends.
    pub fn is_decided(&self) -> bool {
        self.has(bit::CONNECTED | bit::FAILED)
    }

    /// Makes it connected; returns whether it is, and the client has not given up before.
    pub fn set_connected(&self) -> bool {
        self.decide(bit::CONNECTED)
    }

    /// The connect has failed, of which the client hears; returns whether it had not ended before. Wakes the client. Called without a lock.
    pub fn fail(self: &Arc<Self>, error: FsError) -> bool {
        if !self.decide(bit::FAILED) {
            return false;
        }
        // Its inbox is not shut: the client may connect again, and does so only after it was refused, so that the error is of this connect.
        self.end(CLIENT).inbox.set_error(error);
        self.state.fetch_or(bit::REFUSED, SeqCst);
        Arc::<Pair>::wake(self.clone());
        true
    }

    /// The state of a side.
    pub fn state(&self, side: usize) -> State {
        let now = self.state.load(SeqCst);
        let (own, other) = (now & ended(side) != 0, now & ended(1 - side) != 0);
        match (own, other) {
            _ if now & (bit::RESET | bit::REFUSED) != 0 => State::Close,
            _ if now & bit::CONNECTED == 0 => State::SynSent,
            (true, true) => State::Close,
            (true, false) => State::FinWait2,
            (false, true) => State::CloseWait,
            (false, false) => State::Established,
        }
    }

    fn ended(&self, side: usize, over: bool) -> Ended {
        let end = self.end(side);
        Ended {
            local: end.at,
            remote: self.end(1 - side).at,
            family: end.family,
            reuse: end.reuse,
            over,
            payer: end.payer,
        }
    }

    /// The writes of a side end: the other side finds the end behind what was sent. Takes the lock of the other's inbox, and of ports; sleeps.
    pub fn finish(&self, side: usize) {
        let mark = |now: u32| {
            let first = now & (ended(0) | ended(1)) == 0;
            let first = if first && side == SERVER {
                bit::SERVER_FIRST
            } else {
                0
            };
            (now & (ended(side) | bit::RESET) == 0).then_some(now | ended(side) | first)
        };
        let Ok(before) = self.state.fetch_update(SeqCst, SeqCst, mark) else {
            return;
        };
        self.end(1 - side).inbox.shut(Some(Cause::Input));
        // Callers of poll on this side may wait for the end of its writes.
        self.end(side).inbox.pollers.wake_all();
        if before & ended(1 - side) != 0 {
            ports::remember(self.ended(1 - side, true));
            self.forget_if_reset();
        }
    }

    /// A side is closed, after [`finish`](Self::finish): if it was the first to end, that is remembered.
    pub fn note_close(&self, side: usize) {
        let now = self.state.load(SeqCst);
        let first = usize::from(now & bit::SERVER_FIRST != 0);
        if now & bit::RESET == 0 && first == side {
            ports::remember(self.ended(side, now & ended(1 - side) != 0));
            self.forget_if_reset();
        }
    }

    /// A reset beside that may have come before what is remembered.
    fn forget_if_reset(&self) {
        if self.state.load(SeqCst) & bit::RESET != 0 {
            let [a, b] = [CLIENT, SERVER].map(|side| self.end(side).at);
            ports::forget(a, b);
            ports::forget(b, a);
        }
    }

    /// A side resets the connection: the next call of the other one fails, and both have ended. Takes the locks of both inboxes, one after the
    /// other, and of ports; sleeps.
    pub fn reset(&self, side: usize) {
        let before = self.state.fetch_or(bit::RESET, SeqCst);
        // As in Linux, a side that has found the end hears of a broken pipe.
        let error = match before & ended(side) != 0 {
            true => FsError::BrokenPipe,
            false => FsError::ConnectionReset,
        };
        self.end(side).inbox.fail(None);
        self.end(1 - side).inbox.fail(Some(error));
        if before & bit::RESET == 0 {
            self.forget_if_reset();
        }
    }
}

impl Pending for Arc<Pair> {
    type Client = Arc<Pair>;

    fn connected(&self) -> Option<Arc<Pair>> {
        self.set_connected().then(|| self.clone())
    }

    fn wake(client: Arc<Pair>) {
        client.waiting.wake_all();
        client.end(CLIENT).inbox.pollers.wake_all();
    }

    fn reset(self) {
        if self.is_connected() {
            self.end(SERVER).inbox.close();
            Pair::reset(&self, SERVER);
            Self::wake(self);
        } else {
            self.fail(FsError::ConnectionRefused);
        }
    }
}

/// A listener: its queue, and what its connections get from it. All else is constant.
pub struct TcpListener {
    /// Connections, and the port.
    pub queue: AcceptQueue<Arc<Pair>, u16>,
    /// The family.
    pub family: Family,
    /// SO_REUSEADDR.
    pub reuse: bool,
    /// Bytes that the server may have sent, and nobody received, on each.
    pub send_limit: usize,
    /// The user.
    pub payer: Payer,
}

impl TcpListener {
    /// A client asks for a connection, for the first time or again.
    ///
    /// # Errors
    /// `ConnectionRefused` if it does not listen at this port any more, or the client has given up; `NoMemory`.
    pub fn offer(&self, pair: &Arc<Pair>) -> Result<Added> {
        self.queue.add_or_wait(|port, added| {
            let goes_on = pair.end(SERVER).at.port == port
                && match added {
                    Added::Connected => pair.set_connected(),
                    _ => !pair.is_decided(),
                };
            match goes_on {
                true => Ok(pair.clone()),
                false => Err(FsError::ConnectionRefused.into()),
            }
        })
    }
}
