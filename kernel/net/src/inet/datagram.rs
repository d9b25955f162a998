//! Sockets of UDP and of UDP-Lite.
//!
//! Guarantee: a packet arrives whole, once, at the socket that its address says, or is dropped: if nobody is there, or the receiver has not read
//! what its SO_RCVBUF allows. A sender never waits. What waits at a socket is charged to the user of that socket.

use alloc::sync::Arc;

use cred::Payer;
use hal::uio::IoBuf;
use ksync::Spin;
use ksync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use task::wait::{Cause, Waiter};
use vfs::attr::Attr;
use vfs::error::FsError;
use vfs::lock::LockSlot;
use vfs::poll::PollMask;

use super::base::Base;
use super::control::{self, Asked};
use super::coverage::Coverage;
use super::endpoint::{AF_UNSPEC, Endpoint, Family, Ip};
use super::option;
use super::ports::{self, Owner, Place};
use super::protocol::Protocol;
use crate::address::{Type, family};
use crate::error::{Result, SocketError};
use crate::inbox::{self, Inbox, Pushed, Take};
use crate::local::{BAND, LinkLock};
use crate::option::{Options, SEND_DEFAULT};
use crate::packets::{self, Packet, Route, Sent};
use crate::socket::{Accepted, Address, Message, OPTION, Receive, Received, Socket};
use crate::wait;

/// Bytes of the largest packet, without heads.
const LARGEST_V4: usize = 65_507;
const LARGEST_V6: usize = 65_527;

/// What a packet arrives at. All is constant, or has a lock of its own.
pub struct Receiver {
    /// What waits to be read.
    pub inbox: Inbox,
    /// How much that is, as Linux counts it, and may be: SO_RCVBUF.
    pub account: Arc<Sent>,
    /// The options of UDP-Lite about checksums.
    coverage: Coverage,
    /// Packets that were dropped, for want of room or of coverage. Atomic.
    dropped: AtomicUsize,
    payer: Payer,
}

/// A receiver that a look-up has found.
struct Known {
    to: Endpoint,
    from: Endpoint,
    generation: u64,
    receiver: Arc<Receiver>,
}

/// What the lock of a link guards.
struct Link {
    place: Option<Place>,
    /// The socket's address. While it is connected, the address of the connection.
    local: Endpoint,
    /// The address that bind(2) has said, and whether it has chosen the port.
    bound: Ip,
    chosen: bool,
    remote: Option<Endpoint>,
    known: Option<Known>,
}

/// A socket of UDP or of UDP-Lite.
pub struct UdpSocket {
    base: Base,
    /// Which of both. Constant.
    protocol: Protocol,
    receiver: Arc<Receiver>,
    link: Spin<Link, LinkLock>,
    /// It sends no more. Atomic.
    send_shut: AtomicBool,
    /// SO_SNDBUF, which is only kept: packets do not wait at their sender. Atomic.
    send_limit: AtomicUsize,
}

/// Bytes of a socket's objects.
const OBJECTS: usize = size_of::<UdpSocket>()
    + size_of::<Receiver>()
    + size_of::<Sent>()
    + inbox::BYTES
    + 6 * size_of::<usize>();

impl UdpSocket {
    /// A socket of UDP. May wait for memory.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn new(family: Family) -> Result<UdpSocket> {
        Self::of(family, Protocol::Udp)
    }

    /// As [`new`](Self::new), of UDP-Lite.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn lite(family: Family) -> Result<UdpSocket> {
        Self::of(family, Protocol::UdpLite)
    }

    fn of(family: Family, protocol: Protocol) -> Result<UdpSocket> {
        mem::admit_process()?;
        let base = Base::new(family, Type::Datagram, OBJECTS);
        let any = family.any();
        Ok(UdpSocket {
            receiver: Arc::new(Receiver {
                inbox: Inbox::packets(),
                account: Arc::new(Sent::new()),
                coverage: Coverage::new(),
                dropped: AtomicUsize::new(0),
                payer: base.payer,
            }),
            base,
            protocol,
            link: Spin::new(Link {
                place: None,
                local: Endpoint { ip: any, port: 0 },
                bound: any,
                chosen: false,
                remote: None,
                known: None,
            }),
            send_shut: AtomicBool::new(false),
            send_limit: AtomicUsize::new(SEND_DEFAULT),
        })
    }

    /// Takes a port if the socket has none, for this endpoint. Called with the lock of bindings held.
    fn take_port(&self, to: Endpoint, chosen: bool) -> Result<()> {
        let owner = Owner::Receiver(self.receiver.clone());
        let entry = self.base.entry(to.ip, owner);
        let place = self.base.take_port(self.protocol, to.port, entry)?;
        let mut link = self.link.lock();
        link.place = Some(place);
        link.local = Endpoint {
            ip: to.ip,
            port: place.port,
        };
        link.bound = to.ip;
        link.chosen = chosen;
        Ok(())
    }

    /// As [`take_port`](Self::take_port), any port.
    fn take_any(&self) -> Result<()> {
        let link = self.link.lock();
        let (taken, local) = (link.place.is_some(), link.local);
        drop(link);
        match taken {
            true => Ok(()),
            // As in Linux.
            false => self.take_port(local, false).map_err(|e| match e {
                SocketError::AddressInUse => FsError::WouldBlock.into(),
                e => e,
            }),
        }
    }

    fn disconnect(&self) -> Result<()> {
        mem::admit_process()?;
        let owner = Owner::Receiver(self.receiver.clone());
        let (remote, place, bound, chosen) = {
            let link = self.link.lock();
            (link.remote, link.place, link.bound, link.chosen)
        };
        let (Some(_), Some(old)) = (remote, place) else {
            return Ok(());
        };
        let entry = self.base.entry(bound, owner);
        let place = if chosen {
            Some(ports::part(self.protocol, old, entry)?)
        } else {
            None
        };
        let mut link = self.link.lock();
        link.remote = None;
        link.place = place;
        link.local.ip = bound;
        if !chosen {
            link.local.port = 0;
        }
        let known = link.known.take();
        drop(link);
        drop(known);
        if !chosen {
            ports::release(self.protocol, old);
        }
        Ok(())
    }

    fn connect_to(&self, to: Endpoint) -> Result<()> {
        let bound = self.link.lock().bound;
        let to = self.base.to_reach(to, bound)?;
        self.take_any()?;
        mem::admit_process()?;
        let ip = if bound.is_any() {
            to.ip.source()
        } else {
            bound
        };
        let owner = Owner::Receiver(self.receiver.clone());
        let place = self.link.lock().place.ok_or(SocketError::NotAvailable)?;
        let entry = self.base.entry(ip, owner);
        let joined = ports::join(self.protocol, place, to, entry)?;
        let mut link = self.link.lock();
        link.place = Some(joined);
        link.local.ip = ip;
        link.remote = Some(to);
        let old = link.known.take();
        drop(link);
        drop(old);
        Ok(())
    }

    /// Where a message goes, and on which way, without what depends on its length. One without an address goes to the peer.
    fn route(&self, message: &Message) -> Result<(Endpoint, Route)> {
        let to = match message.to {
            None => None,
            Some(raw) => Some(self.destination(raw)?),
        };
        if self.link.lock().place.is_none() && to.is_some() {
            let one = self.base.binding.lock();
            self.take_any()?;
            drop(one);
        }
        let link = self.link.lock();
        let (local, remote) = (link.local, link.remote);
        drop(link);
        let to = to.or(remote).ok_or(SocketError::NoDestination)?;
        let asked = Asked::read(message.control, self.base.family, to.ip)?;
        // A peer is one that can be reached.
        let to = self.base.to_reach(to, local.ip)?;
        let v4 = to.ip.as_v4().is_some();
        let ip = match asked.source.filter(|ip| !ip.is_any()) {
            Some(ip) if ip.is_local() && ip.as_v4().is_some() == v4 => ip,
            Some(_) => return Err(FsError::Invalid.into()),
            None if local.ip.is_any() => to.ip.source(),
            None => local.ip,
        };
        let (hops, class) = match v4 {
            true => (option::TTL, option::TOS),
            false => (option::HOPS, option::TCLASS),
        };
        let port = local.port;
        let route = Route {
            from: Endpoint { ip, port },
            to: to.ip,
            hops: asked.hops.unwrap_or(self.base.inet.get(hops) as u8),
            class: asked.class.unwrap_or(self.base.inet.get(class) as u8),
            covered: None,
        };
        Ok((to, route))
    }

    fn destination(&self, raw: &[u8]) -> Result<Endpoint> {
        let mut copy = [0; 16];
        let raw = match raw.get(..16) {
            // As in Linux, an address of no family is one of IPv4 here.
            Some(raw) if self.base.family == Family::V4 && family(raw) == Some(AF_UNSPEC) => {
                copy.copy_from_slice(raw);
                copy[..2].copy_from_slice(&Family::V4.number().to_le_bytes());
                &copy[..]
            }
            _ => raw,
        };
        let to = Endpoint::parse(self.base.family, raw, true)?;
        match to.port {
            0 => Err(FsError::Invalid.into()),
            _ => Ok(to),
        }
    }

    /// The socket at an endpoint, for packets from another.
    fn find(&self, to: Endpoint, from: Endpoint) -> Option<Arc<Receiver>> {
        let generation = ports::generation(self.protocol, to.port);
        let link = self.link.lock();
        if let Some(known) = &link.known
            && (known.to, known.from, known.generation) == (to, from, generation)
        {
            return Some(known.receiver.clone());
        }
        drop(link);
        let (generation, receiver) = ports::receiver(self.protocol, to, from);
        let known = receiver.clone().map(|receiver| Known {
            to,
            from,
            generation,
            receiver,
        });
        let old = core::mem::replace(&mut self.link.lock().known, known);
        drop(old);
        receiver
    }

    fn send_packet(&self, buf: &mut IoBuf, message: Message) -> Result<usize> {
        if message.rights.is_some() || message.ids.is_some() {
            return Err(FsError::Invalid.into());
        }
        let len = buf.remaining();
        if len > usize::from(u16::MAX) {
            return Err(FsError::MessageTooLong.into());
        }
        let (to, mut route) = self.route(&message)?;
        let v4 = to.ip.as_v4().is_some();
        if len > if v4 { LARGEST_V4 } else { LARGEST_V6 } {
            return Err(FsError::MessageTooLong.into());
        }
        if let Some(error) = self.receiver.inbox.take_error() {
            return Err(error.into());
        }
        if self.send_shut.load(Relaxed) {
            return Err(SocketError::QuietPipe);
        }
        route.covered = self.receiver.coverage.of_packet(len);
        let found = match self.find(to, route.from) {
            Some(receiver) => receiver.deliver(buf, route)?,
            None => {
                swallow(buf)?;
                false
            }
        };
        // As the message of ICMP does in Linux, which comes after the send.
        if !found && self.link.lock().remote == Some(to) {
            self.receiver.inbox.set_error(FsError::ConnectionRefused);
        }
        Ok(len)
    }
}

/// Reads all that a send has, which goes nowhere.
fn swallow(buf: &mut IoBuf) -> Result<()> {
    let mut scratch = [0; 512];
    while buf.remaining() > 0 {
        if buf.take(&mut scratch)? == 0 {
            return Err(FsError::Fault.into());
        }
    }
    Ok(())
}

impl Receiver {
    /// Packets that were dropped, for want of room or of coverage.
    pub fn dropped(&self) -> usize {
        self.dropped.load(Relaxed)
    }

    /// Adds a packet, or drops it if there is no room, or its checksum covers less than the socket asks for; returns whether the socket is open.
    /// Takes the inbox's lock; may sleep.
    ///
    /// # Errors
    /// `Fault`, `NoBuffers`.
    fn deliver(&self, buf: &mut IoBuf, route: Route) -> Result<bool> {
        let cost = packets::cost(buf.remaining());
        if !self.coverage.admits(route.covered) || !self.account.reserve(cost) {
            swallow(buf)?;
            self.dropped.fetch_add(1, Relaxed);
            return Ok(true);
        }
        let mut packet = Packet::new(buf, &self.account, self.payer, None, None)?;
        packet.route = Some(route);
        let pushed = self.inbox.try_push(&mut Some(packet), 0, true)?;
        Ok(!matches!(pushed, Pushed::Closed))
    }
}

impl Socket for UdpSocket {
    fn domain(&self) -> u32 {
        self.base.family.number().into()
    }

    fn kind(&self) -> Type {
        Type::Datagram
    }

    fn protocol(&self) -> u32 {
        self.protocol.number()
    }

    fn bind(&self, address: &[u8]) -> Result<()> {
        let to = self.base.to_bind(address)?;
        let _one = self.base.binding.lock();
        if self.link.lock().place.is_some() {
            return Err(FsError::Invalid.into());
        }
        self.take_port(to, true)
    }

    fn listen(&self, _: usize) -> Result<()> {
        Err(FsError::NotSupported.into())
    }

    fn accept(&self, _: bool) -> Result<Accepted> {
        Err(FsError::NotSupported.into())
    }

    fn connect(&self, address: &[u8], _: bool) -> Result<()> {
        let _one = self.base.binding.lock();
        if family(address).ok_or(FsError::Invalid)? == AF_UNSPEC {
            self.disconnect()?;
        } else {
            let to = Endpoint::parse(self.base.family, address, true)?;
            self.connect_to(to)?;
        }
        self.base.changes.wake_all();
        Ok(())
    }

    fn name(&self) -> Address {
        self.link.lock().local.address(self.base.family)
    }

    fn peer_name(&self) -> Result<Address> {
        let remote = self.link.lock().remote.ok_or(FsError::NotConnected)?;
        Ok(remote.address(self.base.family))
    }

    fn shutdown(&self, reads: bool, writes: bool) -> Result<()> {
        if reads {
            self.receiver.inbox.stop_reading();
        }
        if writes {
            self.send_shut.store(true, Relaxed);
        }
        self.base.changes.wake_all();
        match self.link.lock().remote {
            Some(_) => Ok(()),
            None => Err(FsError::NotConnected.into()),
        }
    }

    fn send(&self, buf: &mut IoBuf, message: Message) -> Result<usize> {
        self.send_packet(buf, message)
    }

    fn receive(&self, buf: &mut IoBuf, how: Receive) -> Result<Received> {
        let take = Take {
            peek: how.peek,
            ..Take::default()
        };
        let inbox = &self.receiver.inbox;
        let got = match inbox.try_take(buf, take)? {
            // As in Linux, a socket that was shut down still says that it would have to wait.
            Some(got) if !how.nonblocking || !got.is_end() => got,
            _ if how.nonblocking => return Err(FsError::WouldBlock.into()),
            _ => wait::get(inbox, buf, take, self.base.options.deadline(false))?,
        };
        let route = got.route.as_ref();
        let (options, family) = (&self.base.inet, self.base.family);
        let notes = route.map(|route| control::told(options, family, route));
        Ok(Received {
            bytes: got.bytes,
            whole: got.whole,
            from: route.map(|route| route.from.address(family)),
            notes: notes.unwrap_or_default(),
            stamp: got.stamp,
            ..Received::default()
        })
    }

    fn poll(&self, waiter: Option<&mut Waiter>) -> PollMask {
        let inbox = &self.receiver.inbox;
        if let Some(w) = waiter {
            w.listen(&self.base.changes);
            w.listen(&inbox.pollers);
        }
        let state = inbox.state();
        let mut mask = PollMask::WRITE | BAND;
        if state.error {
            mask |= PollMask::ERR;
        }
        if state.deaf {
            mask |= PollMask::READ | PollMask::RDHUP;
            if self.send_shut.load(Relaxed) {
                mask |= PollMask::HUP;
            }
        }
        if state.readable {
            mask |= PollMask::READ;
        }
        mask
    }

    fn listen_for_signals(&self, waiter: &mut Waiter) {
        waiter.listen_except(&self.receiver.inbox.pollers, Cause::Room);
    }

    fn stamp_packets(&self, on: bool) {
        self.receiver.inbox.set_wants_stamps(on);
    }

    fn options(&self) -> &Options {
        &self.base.options
    }

    fn send_limit(&self) -> usize {
        self.send_limit.load(Relaxed)
    }

    fn set_send_limit(&self, bytes: usize) {
        self.send_limit.store(Options::send_limit(bytes), Relaxed);
    }

    fn set_receive_limit(&self, bytes: usize) {
        self.base.options.set_receive_buffer(bytes);
        let limit = self.base.options.receive_buffer();
        self.receiver.account.set_limit(limit);
    }

    fn listens(&self) -> bool {
        false
    }

    fn take_error(&self) -> Option<SocketError> {
        self.receiver.inbox.take_error().map(SocketError::File)
    }

    fn queued(&self) -> Result<usize> {
        Ok(self.receiver.inbox.queued(false))
    }

    fn unreceived(&self) -> Result<usize> {
        Ok(0)
    }

    fn set_option(&self, level: i32, option: u32, value: &[u8]) -> Result<()> {
        if let option::UDP | option::UDPLITE = level {
            let lite = self.protocol == Protocol::UdpLite;
            return self.receiver.coverage.set(option, value, lite);
        }
        let bound = self.link.lock().place.is_some();
        self.base.set_option(level, option, value, bound)
    }

    fn option(&self, level: i32, option: u32, out: &mut [u8; OPTION]) -> Result<usize> {
        if let option::UDP | option::UDPLITE = level {
            let value = self.receiver.coverage.get(option)?;
            out[..4].copy_from_slice(&value.to_ne_bytes());
            return Ok(4);
        }
        let of = (self.base.family, Type::Datagram);
        self.base.inet.show(level, option, out, of)
    }

    fn attr(&self) -> Attr {
        self.base.attr()
    }

    fn locks(&self) -> &LockSlot {
        &self.base.locks
    }

    fn close(&self) {
        let mut link = self.link.lock();
        let (place, known) = (link.place.take(), link.known.take());
        drop(link);
        if let Some(place) = place {
            ports::release(self.protocol, place);
        }
        drop(known);
        self.receiver.inbox.close();
    }
}
