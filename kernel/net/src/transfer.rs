//! Sends and receives of local sockets.

use alloc::boxed::Box;
use alloc::sync::Arc;

use hal::uio::IoBuf;
use ksync::atomic::Ordering::SeqCst;
use task::current::current;
use task::park::{Deadline, Interruptible, Step, park, park_and_pass_on};
use task::wait::{Cause, Waiter};
use vfs::attr::Attr;
use vfs::error::FsError;
use vfs::lock::LockSlot;
use vfs::poll::PollMask;

use crate::error::{Result, SocketError};
use crate::ids::Ids;
use crate::in_flight::Node;
use crate::inbox::{Got, Inbox, Pushed, Take};
use crate::local::LocalSocket;
use crate::names::{self, AF_UNIX, Name, Target};
use crate::option::Options;
use crate::packets::{Packet, Sent};
use crate::rights::Rights;
use crate::socket::{Accepted, Address, Message, Receive, Received, Socket, Type};
use crate::wait::{self, gave_up};

/// A packet that is to be added to an inbox, as the state of a step.
struct Push<'a> {
    inbox: &'a Inbox,
    packet: Option<Box<Packet>>,
    sender: usize,
    peer: bool,
}

impl Push<'_> {
    fn attempt(&mut self) -> Result<Pushed> {
        self.inbox
            .try_push(&mut self.packet, self.sender, self.peer)
    }

    fn step(&mut self, w: &mut Waiter) -> Step<Result<Pushed>> {
        w.listen(&self.inbox.writers);
        match self.attempt() {
            Ok(Pushed::Full) => Step::Wait,
            result => Step::Done(result),
        }
    }
}

/// What a sender waits for: room in its account.
struct Reservation<'a> {
    socket: &'a LocalSocket,
    /// The inbox of the peer of a connection, which may be shut meanwhile.
    peer: Option<&'a Inbox>,
    cost: usize,
}

impl Reservation<'_> {
    /// Charges the account if it has room. `None` if it has none.
    fn attempt(&self) -> Option<Result<()>> {
        if self.socket.send_shut.load(SeqCst) || self.peer.is_some_and(Inbox::is_shut) {
            return Some(Err(SocketError::QuietPipe));
        }
        self.socket.sent.reserve(self.cost).then_some(Ok(()))
    }

    /// Waits for room, and charges the account. Fails with `QuietPipe` if the socket may send no more, or its peer receives none.
    fn wait(mut self, nonblocking: bool, deadline: Deadline) -> Result<()> {
        if let Some(result) = self.attempt() {
            return result;
        }
        if nonblocking {
            return Err(FsError::WouldBlock.into());
        }
        park(&mut self, deadline, Interruptible::Yes, |call, w| {
            w.listen(&call.socket.sent.writers);
            if let Some(peer) = call.peer {
                w.listen(&peer.writers);
            }
            call.attempt().map_or(Step::Wait, Step::Done)
        })
        .unwrap_or_else(|e| Err(gave_up(e, deadline)))
    }
}

impl LocalSocket {
    /// The ids that go with what is sent to `to`: those that the sender claims, or its own if either side asks for them.
    fn sender_ids(&self, to: &Inbox, claimed: Option<Ids>) -> Option<Ids> {
        if claimed.is_some() || !(self.inbox.wants_ids() || to.wants_ids()) {
            return claimed;
        }
        Some(Ids::of_sender())
    }

    fn send_stream(&self, buf: &mut IoBuf, message: Message) -> Result<usize> {
        let peer = self.peer().ok_or(FsError::NotConnected)?;
        if self.send_shut.load(SeqCst) || buf.remaining() == 0 && peer.inbox.state().shut {
            return Err(FsError::BrokenPipe.into());
        }
        let from = self.sender_ids(&peer.inbox, message.ids);
        let mut rights = message.rights;
        let deadline = self.options.deadline(true);
        let how = (message.nonblocking, deadline);
        match wait::put_all(&peer.inbox, buf, from, &mut rights, how) {
            (0, Err(e)) => Err(e),
            (total, _) => Ok(total),
        }
    }

    /// Sends a packet to a socket, whose inbox is `to`; `peer` says whether that is the peer of a connection.
    fn send_packet(
        &self,
        to: &Inbox,
        peer: bool,
        buf: &mut IoBuf,
        message: Message,
    ) -> Result<usize> {
        let len = buf.remaining();
        let sent: &Arc<Sent> = &self.sent;
        let cost = Packet::cost_of(len, sent)?;
        let deadline = self.options.deadline(true);
        let from = self.sender_ids(to, message.ids);
        Reservation {
            socket: self,
            peer: peer.then_some(to),
            cost,
        }
        .wait(message.nonblocking, deadline)?;
        let mut packet = Packet::new(buf, sent, current().payer(), self.own_name(), from)?;
        packet.rights = message.rights;
        let mut push = Push {
            inbox: to,
            packet: Some(packet),
            sender: self.inbox.address(),
            peer,
        };
        let pushed = match push.attempt()? {
            Pushed::Full if message.nonblocking => return Err(FsError::WouldBlock.into()),
            Pushed::Full => {
                let signals = Interruptible::Yes;
                park_and_pass_on(&mut push, deadline, signals, Push::step, |push| {
                    push.inbox.writers.wake_one();
                })
                .unwrap_or_else(|e| Err(gave_up(e, deadline)))?
            }
            pushed => pushed,
        };
        match pushed {
            Pushed::Yes => Ok(len),
            Pushed::Closed if !peer => Err(FsError::ConnectionRefused.into()),
            Pushed::Stranger => Err(FsError::Perm.into()),
            _ => Err(SocketError::QuietPipe),
        }
    }

    fn send_datagram(&self, buf: &mut IoBuf, message: Message) -> Result<usize> {
        self.bind_for_ids()?;
        if let Some(address) = message.addressed() {
            let name = Name::parse(address)?.ok_or(FsError::Invalid)?;
            Packet::cost_of(buf.remaining(), &self.sent)?;
            let Target::Inbox(to) = names::find(self.kind, &name)?.target() else {
                return Err(FsError::ConnectionRefused.into());
            };
            return self.send_packet(&to, false, buf, message);
        }
        let to = self.to().ok_or(FsError::NotConnected)?;
        let sent = self.send_packet(&to.inbox, false, buf, message);
        if sent == Err(FsError::ConnectionRefused.into()) {
            self.forget(&to.inbox);
        }
        sent
    }

    /// Receives once: waits until there is something, or the end.
    fn get(
        &self,
        buf: &mut IoBuf,
        how: Take,
        nonblocking: bool,
        deadline: Deadline,
    ) -> Result<Got> {
        match self.inbox.try_take(buf, how)? {
            // As in Linux, a datagram socket that was shut down still says that it would have to wait.
            Some(got) if self.kind != Type::Datagram || !nonblocking || !got.is_end() => {
                return Ok(self.fed(got));
            }
            _ if nonblocking => return Err(FsError::WouldBlock.into()),
            _ => {}
        }
        wait::get(&self.inbox, buf, how, deadline).map(|got| self.fed(got))
    }

    /// Has the peer's owner told of the room that a receive has made for a writer that found none.
    fn fed(&self, got: Got) -> Got {
        if got.feeds
            && let Some(peer) = self.peer()
        {
            peer.inbox.tell(Cause::Relief);
        }
        got
    }

    /// What a call returns for what was received. Ends the registrations of sockets in flight.
    fn received(&self, got: Got, total: usize) -> Received {
        Rights::pass(&got.copies);
        let name = match self.peer() {
            Some(peer) if !got.is_end() => peer.name.as_deref(),
            _ => got.name.as_deref(),
        };
        let ids = self.inbox.wants_ids() && !got.is_end();
        Received {
            bytes: total,
            whole: got.whole.max(total),
            from: name.map(|name| Name::address(Some(name))),
            ids: ids.then(|| got.from.unwrap_or(Ids::NOBODY)),
            stamp: got.stamp,
            files: got.rights.map_or(got.copies, |rights| rights.arrive()),
            ..Received::default()
        }
    }

    fn receive_stream(&self, buf: &mut IoBuf, how: Receive) -> Result<Received> {
        let deadline = self.options.deadline(false);
        let mut take = Take {
            peek: how.peek,
            by_sender: self.inbox.wants_ids(),
            sender: None,
        };
        let mut first = self.get(buf, take, how.nonblocking, deadline)?;
        let mut total = first.bytes;
        take.sender = Some(first.from);
        while how.all && !how.peek && !first.ended && buf.remaining() > 0 {
            let Ok(got) = self.get(buf, take, how.nonblocking, deadline) else {
                break;
            };
            total += got.bytes;
            first.ended = got.ended;
            first.rights = got.rights;
        }
        Ok(self.received(first, total))
    }
}

impl Socket for LocalSocket {
    fn domain(&self) -> u32 {
        AF_UNIX.into()
    }

    fn kind(&self) -> Type {
        self.kind
    }

    fn bind(&self, address: &[u8]) -> Result<()> {
        self.bind(address)
    }

    fn listen(&self, backlog: usize) -> Result<()> {
        self.listen(backlog)
    }

    fn accept(&self, nonblocking: bool) -> Result<Accepted> {
        self.accept(nonblocking)
    }

    fn connect(&self, address: &[u8], nonblocking: bool) -> Result<()> {
        self.connect(address, nonblocking)
    }

    fn name(&self) -> Address {
        self.address()
    }

    fn peer_name(&self) -> Result<Address> {
        self.peer_address()
    }

    fn shutdown(&self, reads: bool, writes: bool) -> Result<()> {
        self.shutdown(reads, writes);
        Ok(())
    }

    fn send(&self, buf: &mut IoBuf, message: Message) -> Result<usize> {
        match self.kind {
            Type::Stream => match (message.addressed(), self.peer()) {
                (Some(_), Some(_)) => Err(SocketError::IsConnected),
                (Some(_), None) => Err(FsError::NotSupported.into()),
                _ => self.send_stream(buf, message),
            },
            Type::SeqPacket => {
                let peer = self.peer().ok_or(FsError::NotConnected)?;
                self.send_packet(&peer.inbox, true, buf, message)
            }
            Type::Datagram | Type::Raw => self.send_datagram(buf, message),
        }
    }

    fn receive(&self, buf: &mut IoBuf, how: Receive) -> Result<Received> {
        match (self.kind, self.peer()) {
            (Type::Stream, None) => return Err(FsError::Invalid.into()),
            (Type::SeqPacket, None) => return Err(FsError::NotConnected.into()),
            (Type::Stream, Some(_)) => return self.receive_stream(buf, how),
            _ => {}
        }
        let take = Take {
            peek: how.peek,
            ..Take::default()
        };
        let got = self.get(buf, take, how.nonblocking, self.options.deadline(false))?;
        let total = got.bytes;
        Ok(self.received(got, total))
    }

    fn poll(&self, waiter: Option<&mut Waiter>) -> PollMask {
        self.poll(waiter)
    }

    fn listen_for_signals(&self, waiter: &mut Waiter) {
        self.listen_for_signals(waiter);
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn send_limit(&self) -> usize {
        self.sent.limit()
    }

    fn set_send_limit(&self, bytes: usize) {
        self.set_send_limit(bytes);
    }

    fn listens(&self) -> bool {
        self.listens()
    }

    fn take_error(&self) -> Option<SocketError> {
        self.inbox.take_error().map(SocketError::File)
    }

    fn queued(&self) -> Result<usize> {
        if self.listens() {
            return Err(FsError::Invalid.into());
        }
        Ok(self.inbox.queued(self.kind.connects()))
    }

    fn unreceived(&self) -> Result<usize> {
        Ok(match (self.kind, self.peer()) {
            (Type::Stream, Some(peer)) => peer.inbox.queued(true),
            _ => self.sent.used(),
        })
    }

    fn shows_ids(&self) -> Option<bool> {
        Some(self.inbox.wants_ids())
    }

    fn show_ids(&self, on: bool) {
        self.inbox.set_wants_ids(on);
    }

    fn stamp_packets(&self, on: bool) {
        self.inbox().set_wants_stamps(on);
    }

    fn peer_ids(&self) -> Option<Ids> {
        let to = self.to();
        let peer = self.peer().or(to.as_ref())?;
        (peer.ids != Ids::NOBODY).then_some(peer.ids)
    }

    fn attr(&self) -> Attr {
        self.attr()
    }

    fn locks(&self) -> &LockSlot {
        self.locks()
    }

    fn close(&self) {
        self.close();
    }

    fn node(&self) -> Option<&dyn Node> {
        Some(self)
    }
}
