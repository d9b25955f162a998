//! A socket of AF_NETLINK.
//!
//! Guarantee: a request is answered by the call that sends it: when send(2) returns, the answer is in the socket's queue, or its first datagram is, or
//! the queue was full, and the next receive fails with `NoBuffers`. What is in the queue is bounded by SO_RCVBUF and charged to the user that made the
//! socket. Nobody but the kernel sends to it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use cred::{Cap, MemoryCharge, Payer};
use hal::uio::IoBuf;
use ksync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use ksync::{Mutex, Spin};
use proc::UserThreadExt;
use task::current::current;
use task::wait::{Cause, Waiter};
use vfs::attr::Attr;
use vfs::error::FsError;
use vfs::ino::new_ino;
use vfs::inode::mode;
use vfs::lock::LockSlot;
use vfs::poll::PollMask;

use super::address::{AF_NETLINK, Endpoint};
use super::listing::Listing;
use super::message::{self, Answer, Refusal, Request, Writer, flag, kind};
use super::option::{self, LEVEL, Settings};
use super::ports::{self, Port};
use super::route::{self, Asker, Reply};
use crate::address::{Type, family};
use crate::error::{Result, SocketError};
use crate::ids::Ids;
use crate::inbox::{Inbox, Take};
use crate::local::{BAND, BindLock, LinkLock};
use crate::option::{Options, SEND_DEFAULT};
use crate::packets::{self, Packet, Sent};
use crate::socket::{Accepted, Address, Message, Note, OPTION, Receive, Received, Socket};
use crate::wait;

ksync::lock_class!(pub ListingLock, "netlink listing", rank = 51);

/// Bytes of a datagram of a listing: with its head, less than a page, as programs have room for.
const ROOM: usize = 3776;

/// What the lock of a link guards.
#[derive(Default)]
struct Link {
    port: Option<Port>,
    /// To where a send without an address goes.
    to: Endpoint,
}

/// What became of a request that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Performed {
    /// It is answered.
    Done,
    /// Its answer has begun, and has an end of its own.
    Begun,
}

/// A socket of NETLINK_ROUTE.
pub struct NetlinkSocket {
    /// SOCK_RAW or SOCK_DGRAM, which are the same. Constant.
    kind: Type,
    /// The errno of an error, which only the crate `syscall` knows. Constant.
    number: fn(SocketError) -> u16,
    /// Bytes of a datagram of a listing. Constant.
    room: usize,
    inbox: Inbox,
    /// How much is in the inbox, as Linux counts it, and may be: SO_RCVBUF.
    account: Arc<Sent>,
    /// Something was lost since the inbox was last seen empty: more is lost without a word. Atomic.
    congested: AtomicBool,
    link: Spin<Link, LinkLock>,
    /// Held by one bind at a time.
    binding: Mutex<(), BindLock>,
    /// The listing of which not all was sent.
    listing: Mutex<Option<Listing>, ListingLock>,
    options: Options,
    /// Settings of this family.
    settings: Settings,
    /// SO_SNDBUF, which bounds one send. Atomic.
    send_limit: AtomicUsize,
    ino: u64,
    payer: Payer,
    owner: (u32, u32),
    /// Its maker had the capability to change what there is, without which nobody changes it by this socket. Constant.
    may_change: bool,
    locks: LockSlot,
    _charge: MemoryCharge,
}

/// Bytes of a socket's objects.
const OBJECTS: usize =
    size_of::<NetlinkSocket>() + size_of::<Sent>() + 2 * size_of::<usize>() + ports::BYTES;

impl NetlinkSocket {
    /// A socket of NETLINK_ROUTE, of a type that is one of packets without connections; `number` says which errno stands for an error in messages. Charged to the
    /// caller's user. May wait for memory.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn new(kind: Type, number: fn(SocketError) -> u16) -> Result<NetlinkSocket> {
        Self::with_room(kind, number, ROOM)
    }

    /// As [`new`](Self::new), with listings in datagrams of up to `room` bytes, or of one row.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn with_room(
        kind: Type,
        number: fn(SocketError) -> u16,
        room: usize,
    ) -> Result<NetlinkSocket> {
        mem::admit_process()?;
        let me = current();
        let (cred, payer) = (me.cred(), me.payer());
        Ok(NetlinkSocket {
            kind,
            number,
            room,
            inbox: Inbox::packets(),
            account: Arc::new(Sent::new()),
            congested: AtomicBool::new(false),
            link: Spin::new(Link::default()),
            binding: Mutex::new(()),
            listing: Mutex::new(None),
            options: Options::default(),
            settings: Settings::default(),
            send_limit: AtomicUsize::new(SEND_DEFAULT),
            ino: new_ino(),
            payer,
            owner: (cred.fsuid, cred.fsgid),
            may_change: cred.capable(Cap::NetAdmin),
            locks: LockSlot::new(),
            _charge: MemoryCharge::new(payer, OBJECTS),
        })
    }

    fn port(&self) -> Option<u32> {
        self.link.lock().port.as_ref().map(Port::number)
    }

    /// Takes a number if the socket has none: `wanted`, or for 0 any. Returns the one that it has.
    ///
    /// # Errors
    /// `AddressInUse`, `NoMemory`; `Invalid` if it has another one than `wanted`.
    fn take_port(&self, wanted: Option<u32>) -> Result<u32> {
        let _one = self.binding.lock();
        if let Some(port) = self.port() {
            return match wanted {
                Some(wanted) if wanted != port => Err(FsError::Invalid.into()),
                _ => Ok(port),
            };
        }
        mem::admit_process()?;
        let port = match wanted {
            None | Some(0) => Port::choose(current().process().pid()),
            Some(wanted) => Port::take(wanted),
        };
        let port = port.ok_or(SocketError::AddressInUse)?;
        let number = port.number();
        self.link.lock().port = Some(port);
        Ok(number)
    }

    /// Adds a datagram to the queue; returns whether it is not lost. If there is no room, or no memory, the next receive fails. A socket that is connected
    /// to another one hears that alone, as in Linux.
    fn deliver(&self, bytes: &[u8]) -> bool {
        self.hears_another() || self.arrive(bytes)
    }

    /// As [`deliver`](Self::deliver); does not wait for memory.
    fn deliver_at_once(&self, bytes: &[u8]) -> bool {
        let make = |bytes: &[u8]| Packet::at_once(bytes, &self.account, self.payer);
        self.hears_another() || self.arrive_as(bytes, make)
    }

    /// Whether the socket is connected to another one.
    fn hears_another(&self) -> bool {
        self.link.lock().to.port != 0
    }

    /// As [`deliver`](Self::deliver), also to a socket that is connected.
    fn arrive(&self, bytes: &[u8]) -> bool {
        self.arrive_as(bytes, |bytes| {
            let mut from = IoBuf::Drain(bytes);
            Packet::new(&mut from, &self.account, self.payer, None, None)
        })
    }

    /// As [`arrive`](Self::arrive), with the function that makes the packet.
    fn arrive_as(&self, bytes: &[u8], make: impl Fn(&[u8]) -> Result<Box<Packet>>) -> bool {
        if self.congested.load(Relaxed) {
            return false;
        }
        let push = || self.inbox.try_push(&mut Some(make(bytes)?), 0, true);
        let arrived = self.account.reserve(packets::cost(bytes.len())) && push().is_ok();
        if !arrived {
            self.lose();
        }
        arrived
    }

    /// Says that a datagram was lost: once, as in Linux, until the inbox is empty.
    fn lose(&self) {
        if !self.settings.is_on(option::NO_ENOBUFS) && !self.congested.swap(true, Relaxed) {
            self.inbox.set_error(FsError::NoBuffers);
        }
    }

    /// Lets datagrams in again, if those before the loss were received.
    fn relieve(&self) {
        if self.account.used() == 0 {
            self.congested.store(false, Relaxed);
        }
    }

    /// Answers the requests in `bytes`, of a socket with this port.
    fn handle(&self, bytes: &[u8], port: u32) {
        let (uid, may_change) = {
            let cred = current().cred();
            (cred.uid, self.may_change && cred.capable(Cap::NetAdmin))
        };
        let asker = Asker {
            port,
            strict: self.settings.is_on(option::GET_STRICT_CHK),
            uid,
            may_change,
        };
        // There may be thousands.
        let go_on = |_: &Request| !current().kill_pending();
        for request in message::requests(bytes).take_while(go_on) {
            let result = self.perform(&request, asker);
            let asked = request.flags & flag::ACK != 0 && result != Ok(Performed::Begun);
            if asked || result.is_err() {
                self.acknowledge(&request, port, result.err());
            }
        }
    }

    /// Does what a request says, and sends what it asks for.
    fn perform(&self, request: &Request, asker: Asker) -> Result<Performed, Refusal> {
        if request.flags & flag::REQUEST == 0 || request.kind < kind::FIRST {
            return Ok(Performed::Done);
        }
        match route::answer(request, asker)? {
            Reply::Done => {}
            Reply::Row(row) => {
                self.deliver(row.bytes());
            }
            Reply::List(listing) => return self.begin(listing),
        }
        Ok(Performed::Done)
    }

    /// Sends the reply that says how a request has ended.
    fn acknowledge(&self, request: &Request, port: u32, refusal: Option<Refusal>) {
        match self.acknowledgement(request, port, refusal) {
            Ok((reply, _charge)) => {
                self.deliver(reply.bytes());
            }
            Err(_) => self.lose(),
        }
    }

    /// The reply that says how a request has ended, and its charge. As in Linux it repeats one that failed, unless NETLINK_CAP_ACK is on.
    fn acknowledgement(
        &self,
        request: &Request,
        port: u32,
        refusal: Option<Refusal>,
    ) -> Result<(Writer, MemoryCharge)> {
        /// Bytes of the reply's own head, and of the error.
        const OTHERS: usize = 2 * message::HEAD;
        let text = refusal.and_then(|refusal| refusal.text);
        let text = text.filter(|_| self.settings.is_on(option::EXT_ACK));
        let capped = refusal.is_none() || self.settings.is_on(option::CAP_ACK);
        let repeated = match capped {
            true => &request.whole[..message::HEAD],
            false => request.whole,
        };
        let mut flags = if capped { flag::CAPPED } else { 0 };
        if text.is_some() {
            flags |= flag::TEXT;
        }
        let answer = Answer {
            flags,
            sequence: request.sequence,
            port,
        };
        let room = OTHERS + repeated.len() + text.map_or(0, |text| text.len() + message::HEAD);
        let charge = MemoryCharge::new(self.payer, room);
        let mut out = Writer::new(room)?;
        let reply = out.begin(kind::ERROR, answer);
        let errno = refusal.map_or(0, |refusal| (self.number)(refusal.error));
        out.put(&(-i32::from(errno)).to_ne_bytes());
        out.put(repeated);
        out.pad();
        if let Some(text) = text {
            out.text(message::TEXT, text.as_bytes());
        }
        out.end(reply);
        Ok((out, charge))
    }

    /// Begins a listing. Waits for memory, if need be; then takes the listing's lock, and may sleep.
    ///
    /// # Errors
    /// `Busy` while there is another one.
    fn begin(&self, listing: Listing) -> Result<Performed, Refusal> {
        let _ = mem::admit_process();
        let mut current = self.listing.lock();
        if current.is_some() {
            return Err(FsError::Busy.into());
        }
        *current = Some(listing);
        self.proceed(&mut current);
        Ok(Performed::Begun)
    }

    /// Sends the next datagram of the listing, if there is one and no more than half of the room for what waits to be received is used. Does not wait for
    /// memory: a thread that is killed so that there is some must not wait for one that holds the lock.
    fn proceed(&self, current: &mut Option<Listing>) {
        let half = self.account.limit() / 2;
        let Some(listing) = current.as_mut().filter(|_| self.account.used() <= half) else {
            return;
        };
        match listing.write(self.room, self.number, self.settings.is_on(option::EXT_ACK)) {
            // The next receive tries again what is lost.
            Ok((datagram, _)) if !self.deliver_at_once(datagram.bytes()) => {}
            Ok((_, Some(done))) => listing.advance(done),
            Ok((_, None)) => *current = None,
            Err(_) => self.lose(),
        }
    }

    /// As [`proceed`](Self::proceed), after a wait for memory, if need be. Takes the listing's lock; may sleep.
    fn go_on(&self) {
        if self.listing.lock().is_some() {
            let _ = mem::admit_process();
            self.proceed(&mut self.listing.lock());
        }
    }

    /// Where a send goes.
    ///
    /// # Errors
    /// `Invalid`, `Perm`; `ConnectionRefused` for another socket: none listens to anything but the kernel; `NotSupported` for a group.
    fn check_destination(&self, message: &Message) -> Result<()> {
        let to = match message.addressed() {
            Some(raw) => {
                let to = Endpoint::parse(raw)?;
                to.check()?;
                to
            }
            None => self.link.lock().to,
        };
        match to {
            Endpoint { port: 0, groups: 0 } => Ok(()),
            Endpoint { groups: 0, .. } => Err(FsError::ConnectionRefused.into()),
            _ => Err(FsError::NotSupported.into()),
        }
    }
}

/// Copies all that a send has, charged to `payer` while it is needed.
///
/// # Errors
/// `NoBuffers`, `Fault`.
fn copied(buf: &mut IoBuf, payer: Payer) -> Result<(Vec<u8>, MemoryCharge)> {
    let len = buf.remaining();
    let charge = MemoryCharge::new(payer, len);
    mem::admit_process().map_err(|_| SocketError::NoBuffers)?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| SocketError::NoBuffers)?;
    bytes.resize(len, 0);
    match buf.take(&mut bytes)? {
        n if n == len => Ok((bytes, charge)),
        _ => Err(FsError::Fault.into()),
    }
}

impl Socket for NetlinkSocket {
    fn domain(&self) -> u32 {
        AF_NETLINK.into()
    }

    fn kind(&self) -> Type {
        self.kind
    }

    fn bind(&self, address: &[u8]) -> Result<()> {
        let Endpoint { port, groups } = Endpoint::parse(address)?;
        self.take_port(Some(port))?;
        self.settings.set_first_groups(groups);
        Ok(())
    }

    fn listen(&self, _: usize) -> Result<()> {
        Err(FsError::NotSupported.into())
    }

    fn accept(&self, _: bool) -> Result<Accepted> {
        Err(FsError::NotSupported.into())
    }

    fn connect(&self, address: &[u8], _: bool) -> Result<()> {
        let to = match family(address) {
            Some(0) => Endpoint::default(),
            _ => {
                let to = Endpoint::parse(address)?;
                to.check()?;
                self.take_port(None)?;
                to
            }
        };
        self.link.lock().to = to;
        Ok(())
    }

    fn name(&self) -> Address {
        Endpoint {
            port: self.port().unwrap_or(0),
            groups: self.settings.first_groups(),
        }
        .address()
    }

    fn peer_name(&self) -> Result<Address> {
        Ok(self.link.lock().to.address())
    }

    fn shutdown(&self, _: bool, _: bool) -> Result<()> {
        Err(FsError::NotSupported.into())
    }

    fn send(&self, buf: &mut IoBuf, message: Message) -> Result<usize> {
        let len = buf.remaining();
        if len == 0 {
            return Err(FsError::NoData.into());
        }
        if message.rights.is_some() {
            return Err(FsError::Invalid.into());
        }
        self.check_destination(&message)?;
        let port = self.take_port(None)?;
        if len > self.send_limit().saturating_sub(packets::LEAST_ROOM) {
            return Err(FsError::MessageTooLong.into());
        }
        let (bytes, _charge) = copied(buf, self.payer)?;
        self.handle(&bytes, port);
        Ok(len)
    }

    fn receive(&self, buf: &mut IoBuf, how: Receive) -> Result<Received> {
        let take = Take {
            peek: how.peek,
            ..Take::default()
        };
        self.relieve();
        // What could not be sent for want of memory.
        if self.account.used() == 0 {
            self.go_on();
        }
        let got = match self.inbox.try_take(buf, take)? {
            Some(got) => got,
            None if how.nonblocking => return Err(FsError::WouldBlock.into()),
            None => wait::get(&self.inbox, buf, take, self.options.deadline(false))?,
        };
        self.relieve();
        self.go_on();
        // All is from the kernel, and to no group.
        let mut notes = Vec::new();
        if self.settings.is_on(option::PKTINFO) && notes.try_reserve(1).is_ok() {
            notes.push(Note {
                level: LEVEL,
                kind: option::PKTINFO as i32,
                data: ([0; 20], size_of::<u32>()),
            });
        }
        Ok(Received {
            bytes: got.bytes,
            whole: got.whole,
            from: Some(Endpoint::default().address()),
            ids: self.inbox.wants_ids().then_some(Ids {
                pid: 0,
                uid: 0,
                gid: 0,
            }),
            notes,
            stamp: got.stamp,
            ..Received::default()
        })
    }

    fn poll(&self, waiter: Option<&mut Waiter>) -> PollMask {
        if let Some(w) = waiter {
            w.listen(&self.inbox.pollers);
        }
        let state = self.inbox.state();
        let mut mask = PollMask::WRITE | BAND;
        if state.error {
            mask |= PollMask::ERR;
        }
        if state.readable {
            mask |= PollMask::READ;
        }
        mask
    }

    fn listen_for_signals(&self, waiter: &mut Waiter) {
        waiter.listen_except(&self.inbox.pollers, Cause::Room);
    }

    fn stamp_packets(&self, on: bool) {
        self.inbox.set_wants_stamps(on);
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn send_limit(&self) -> usize {
        self.send_limit.load(Relaxed)
    }

    fn set_send_limit(&self, bytes: usize) {
        self.send_limit.store(Options::send_limit(bytes), Relaxed);
    }

    fn set_receive_limit(&self, bytes: usize) {
        self.options.set_receive_buffer(bytes);
        self.account.set_limit(self.options.receive_buffer());
    }

    fn listens(&self) -> bool {
        false
    }

    fn take_error(&self) -> Option<SocketError> {
        self.inbox.take_error().map(SocketError::File)
    }

    fn queued(&self) -> Result<usize> {
        Err(FsError::NotTty.into())
    }

    fn unreceived(&self) -> Result<usize> {
        Err(FsError::NotTty.into())
    }

    fn shows_ids(&self) -> Option<bool> {
        Some(self.inbox.wants_ids())
    }

    fn show_ids(&self, on: bool) {
        self.inbox.set_wants_ids(on);
    }

    fn set_option(&self, level: i32, option: u32, value: &[u8]) -> Result<()> {
        self.settings.set(level, option, value)
    }

    fn option(&self, level: i32, option: u32, out: &mut [u8; OPTION]) -> Result<usize> {
        self.settings.show(level, option, out)
    }

    fn attr(&self) -> Attr {
        let (uid, gid) = self.owner;
        Attr {
            uid,
            gid,
            ..Attr::unnamed(self.ino, mode::SOCK | 0o777)
        }
    }

    fn tell(&self, bytes: &[u8]) {
        self.arrive(bytes);
    }

    fn locks(&self) -> &LockSlot {
        &self.locks
    }

    fn close(&self) {
        let port = self.link.lock().port.take();
        drop(port);
        self.inbox.close();
    }
}
