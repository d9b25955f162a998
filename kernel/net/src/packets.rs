//! Packets on their way to a datagram or seqpacket socket.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use cred::{MemoryCharge, Payer};
use hal::uio::IoBuf;
use ksync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use task::wait::{Cause, WaitQueue};
use vfs::error::FsError;

use crate::address::Name;
use crate::error::{Result, SocketError};
use crate::ids::Ids;
use crate::inet::endpoint::{Endpoint, Ip};
use crate::option::SEND_DEFAULT;
use crate::rights::Rights;

/// Packets that may wait at a socket from senders that it is not connected to, less one: Linux's max_dgram_qlen.
const QUEUE: usize = 10;
/// Bytes that Linux takes of the limit for a packet besides its contents' buffer.
const HEAD: usize = 256;
const TAIL: usize = 320;
/// Bytes by which the largest packet is smaller than the limit.
pub(crate) const LEAST_ROOM: usize = 32;

/// What a socket has sent in packets that nobody has received, and the threads that wait until it is less.
pub struct Sent {
    used: AtomicUsize,
    limit: AtomicUsize,
    /// A send has found no room since the last wake-up. Atomic.
    starved: AtomicBool,
    /// Senders that wait for room.
    pub writers: WaitQueue,
    /// Callers of poll(2).
    pub pollers: WaitQueue,
}

impl Sent {
    /// Nothing yet.
    pub fn new() -> Sent {
        Sent {
            used: AtomicUsize::new(0),
            limit: AtomicUsize::new(SEND_DEFAULT),
            starved: AtomicBool::new(false),
            writers: WaitQueue::new(),
            pollers: WaitQueue::new(),
        }
    }

    /// The limit, in bytes as Linux counts them.
    pub fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Sets the limit, and wakes senders.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, SeqCst);
        self.wake();
    }

    /// What counts now.
    pub fn used(&self) -> usize {
        self.used.load(SeqCst)
    }

    /// Whether poll(2) reports room.
    pub fn is_writable(&self) -> bool {
        self.used() * 4 <= self.limit()
    }

    /// Counts a packet, if less than the limit was used before.
    pub fn reserve(&self, cost: usize) -> bool {
        let more = |used| (used < self.limit()).then_some(used + cost);
        let done = self.used.fetch_update(SeqCst, SeqCst, more).is_ok();
        if !done {
            self.starved.store(true, SeqCst);
        }
        done
    }

    fn give_back(&self, cost: usize) {
        let before = self.used.fetch_sub(cost, SeqCst);
        let limit = self.limit();
        if before * 4 > limit && (before - cost) * 4 <= limit {
            self.wake();
        }
    }

    fn wake(&self) {
        if !self.writers.is_empty() {
            self.writers.wake_all();
        }
        // The owner gets a signal only if a send has found no room, as in Linux.
        let starved = self.starved.load(SeqCst) && self.starved.swap(false, SeqCst);
        if starved {
            self.pollers.wake_all_for(Cause::Room);
        } else if !self.pollers.is_empty() {
            self.pollers.wake_all();
        }
    }
}

impl Default for Sent {
    fn default() -> Self {
        Self::new()
    }
}

/// The way of a packet of the internet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// From where.
    pub from: Endpoint,
    /// To which address.
    pub to: Ip,
    /// The hops that it had left.
    pub hops: u8,
    /// Its type of service, or traffic class.
    pub class: u8,
    /// The bytes that its checksum covers, if that are not all.
    pub covered: Option<u16>,
}

/// A packet. Not to be dropped with a lock of this crate held if it has descriptors.
pub struct Packet {
    data: Vec<u8>,
    /// The sender's name, if it has one.
    pub name: Option<Arc<Name>>,
    /// The sender's ids, if anybody asked for them.
    pub from: Option<Ids>,
    /// Its way, if it came over the internet.
    pub route: Option<Route>,
    /// Descriptors.
    pub rights: Option<Box<Rights>>,
    /// When it was added, in nanoseconds of real time, if the receiver asks for that; else 0.
    pub stamp: u64,
    sent: Arc<Sent>,
    cost: usize,
    _charge: MemoryCharge,
}

impl Drop for Packet {
    fn drop(&mut self) {
        self.sent.give_back(self.cost);
    }
}

/// What Linux counts for a packet of `len` bytes: its buffer, whose size is a power of two or a number of pages, and two records.
pub(crate) fn cost(len: usize) -> usize {
    let whole = len + TAIL;
    let buffer = if whole <= 8192 {
        whole.next_power_of_two().max(512)
    } else {
        whole.next_multiple_of(4096)
    };
    buffer + HEAD
}

impl Packet {
    /// Makes a packet of all that `buf` has, charged to `payer`, for which `sent` has been charged by [`Packet::cost_of`]; the charge goes with the packet, or
    /// back. May wait for memory.
    ///
    /// # Errors
    /// `Fault`, `NoBuffers`.
    pub fn new(
        buf: &mut IoBuf,
        sent: &Arc<Sent>,
        payer: Payer,
        name: Option<Arc<Name>>,
        from: Option<Ids>,
    ) -> Result<Box<Packet>> {
        Self::make(buf, sent, payer, (name, from), mem::admit_process)
    }

    /// As [`new`](Self::new), of the kernel's own bytes, which have no sender; does not wait for memory.
    ///
    /// # Errors
    /// `NoBuffers`.
    pub fn at_once(bytes: &[u8], sent: &Arc<Sent>, payer: Payer) -> Result<Box<Packet>> {
        let mut from = IoBuf::Drain(bytes);
        Self::make(&mut from, sent, payer, (None, None), mem::admit)
    }

    /// As [`new`](Self::new). `of` is what is known of the sender; `admit` says whether there is memory.
    fn make(
        buf: &mut IoBuf,
        sent: &Arc<Sent>,
        payer: Payer,
        of: (Option<Arc<Name>>, Option<Ids>),
        admit: fn() -> core::result::Result<(), mem::NoMemory>,
    ) -> Result<Box<Packet>> {
        let (name, from) = of;
        let len = buf.remaining();
        let mut packet = Packet {
            data: Vec::new(),
            name,
            from,
            route: None,
            rights: None,
            stamp: 0,
            sent: sent.clone(),
            cost: cost(len),
            _charge: MemoryCharge::new(payer, len + size_of::<Packet>()),
        };
        admit().map_err(|_| SocketError::NoBuffers)?;
        packet
            .data
            .try_reserve_exact(len)
            .map_err(|_| SocketError::NoBuffers)?;
        packet.data.resize(len, 0);
        if buf.take(&mut packet.data)? < len {
            return Err(FsError::Fault.into());
        }
        Ok(Box::new(packet))
    }

    /// What a packet of `len` bytes counts in [`Sent`].
    ///
    /// # Errors
    /// `MessageTooLong` if it may never be sent.
    pub fn cost_of(len: usize, sent: &Sent) -> Result<usize> {
        if len > sent.limit().saturating_sub(LEAST_ROOM) {
            return Err(FsError::MessageTooLong.into());
        }
        Ok(cost(len))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Copies the contents into `buf`, as far as it has room; returns the bytes.
    ///
    /// # Errors
    /// `Fault` if not all of that could be copied.
    pub fn copy(&self, buf: &mut IoBuf) -> Result<usize> {
        let want = self.data.len().min(buf.remaining());
        if want > 0 && buf.put(&self.data[..want])? < want {
            return Err(FsError::Fault.into());
        }
        Ok(want)
    }
}

/// A queue of packets.
#[derive(Default)]
pub struct Packets {
    list: VecDeque<Box<Packet>>,
    bytes: usize,
}

impl Packets {
    /// Makes room for one more. Fails with `NoBuffers`.
    pub fn prepare(&mut self) -> Result<()> {
        self.list.try_reserve(1).map_err(|_| SocketError::NoBuffers)
    }

    /// Adds a packet, after [`prepare`](Self::prepare).
    pub fn push(&mut self, packet: Box<Packet>) {
        self.bytes += packet.len();
        self.list.push_back(packet);
    }

    /// The oldest.
    pub fn first(&self) -> Option<&Packet> {
        self.list.front().map(|packet| &**packet)
    }

    /// Takes the oldest.
    pub fn pop(&mut self) -> Option<Box<Packet>> {
        let packet = self.list.pop_front()?;
        self.bytes -= packet.len();
        if self.list.is_empty() && self.list.capacity() > 4 * QUEUE {
            self.list = VecDeque::new();
        }
        Some(packet)
    }

    /// Bytes of all.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether senders that the socket is not connected to must wait.
    pub fn is_full(&self) -> bool {
        self.list.len() > QUEUE
    }

    /// Calls `f` with all descriptors.
    pub fn each_rights(&self, f: impl FnMut(&Rights)) {
        self.list
            .iter()
            .filter_map(|p| p.rights.as_deref())
            .for_each(f);
    }

    /// Takes the first descriptors with a socket among them; the packet stays.
    pub fn take_rights(&mut self) -> Option<Box<Rights>> {
        let has = |p: &&mut Box<Packet>| p.rights.as_ref().is_some_and(|r| r.has_sockets());
        self.list.iter_mut().find(has)?.rights.take()
    }
}
