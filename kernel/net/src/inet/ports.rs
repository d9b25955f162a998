//! Which socket has which port, for each protocol.
//!
//! Guarantee: two sockets share a port only if their addresses do not meet, or both allow it. A packet and a connect find the socket whose
//! address, and peer, say most; sockets that share a port by SO_REUSEPORT get their part each.
//!
//! Mechanism: shards by port. A shard's lock is held for binds, connects and closes on its ports, and for the look-up of a listener or of a
//! datagram's receiver; never to send on a connection. A datagram socket keeps what a look-up has found while the shard's generation stays.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Bound::{Excluded, Unbounded};
use core::ops::RangeInclusive;

use cred::{MemoryCharge, Payer};
use ksync::Spin;
use ksync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use task::current::current;
use task::time::monotonic_ns;

use super::datagram::Receiver;
use super::endpoint::{Endpoint, Family, Ip};
use super::joined::{self, Joined, Rules};
use super::pair::{Pair, TcpListener};
use super::protocol::Protocol;
use super::settings;
use crate::error::{Result, SocketError};

ksync::lock_class!(pub PortLock, "ports", rank = 84);

/// Shards of a protocol's ports, and those of UDP-Lite, which few use.
const SHARDS: usize = 256;
const SHARDS_LITE: usize = 16;
/// Ends of connections that a shard remembers.
const WAITS: usize = 64;
/// How long it does: Linux's TIME_WAIT.
const WAIT_NS: u64 = 60_000_000_000;
/// Sockets without a peer that one port has at most, which a look-up may have to choose from, and those of one user.
const MOST: usize = 4096;
const MOST_OF_USER: usize = 1024;
/// Sockets that [`each`] copies in one hold.
const BATCH: usize = 64;

/// What a port belongs to.
#[derive(Clone)]
pub enum Owner {
    /// A TCP socket that neither listens nor is connected.
    Idle,
    /// A listener.
    Listener(Arc<TcpListener>),
    /// One side of a connection.
    Side(Arc<Pair>, usize),
    /// A socket of UDP or UDP-Lite.
    Receiver(Arc<Receiver>),
}

/// What is known of a socket that has a port.
#[derive(Clone)]
pub struct Entry {
    /// The socket's family.
    pub family: Family,
    /// Its address, which may be that of all.
    pub ip: Ip,
    /// The address of all of IPv6 does not stand for those of IPv4.
    pub only_v6: bool,
    /// SO_REUSEADDR.
    pub reuse: bool,
    /// SO_REUSEPORT.
    pub share: bool,
    /// The user.
    pub uid: u32,
    /// The port was chosen for a connect, together with its peer: other such connects, to other peers, may have it, too.
    pub auto: bool,
    /// What it is.
    pub owner: Owner,
}

/// Where a socket is in the table: its port, its peer, its address, and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The port.
    pub port: u16,
    /// To what it is connected.
    pub remote: Option<Endpoint>,
    /// The address that the entry has, too.
    ip: Ip,
    /// The inode's number.
    pub ino: u64,
}

/// Bytes of an entry.
pub const BYTES: usize = 2 * (size_of::<Entry>() + size_of::<Place>()) + joined::BYTES;

/// The end of one side of a connection.
#[derive(Clone, Copy)]
pub struct Ended {
    /// This side.
    pub local: Endpoint,
    /// The other.
    pub remote: Endpoint,
    /// Its family.
    pub family: Family,
    /// SO_REUSEADDR.
    pub reuse: bool,
    /// Whether the other side has ended, too: TIME_WAIT, else FIN_WAIT2.
    pub over: bool,
    /// The user.
    pub payer: Payer,
}

/// An end that is remembered, because this side has ended first.
struct Wait {
    end: Ended,
    until: u64,
    _charge: MemoryCharge,
}

#[derive(Default)]
struct Bucket {
    /// Changed by `put` and `take` only.
    entries: BTreeMap<Place, Entry>,
    /// Those of the entries that have a peer.
    joined: Joined,
    waits: VecDeque<Wait>,
}

/// A shard.
struct Shard {
    bucket: Spin<Bucket, PortLock>,
    /// How often a socket has begun or ceased to be found here. Atomic; changed with the lock held.
    generation: AtomicU64,
}

impl Shard {
    const fn new() -> Shard {
        Shard {
            bucket: Spin::new(Bucket {
                entries: BTreeMap::new(),
                joined: Joined::new(),
                waits: VecDeque::new(),
            }),
            generation: AtomicU64::new(0),
        }
    }
}

hal::machine_static! {
    static TCP: [Shard; SHARDS] = [const { Shard::new() }; SHARDS];
    static UDP: [Shard; SHARDS] = [const { Shard::new() }; SHARDS];
    static UDP_LITE: [Shard; SHARDS_LITE] = [const { Shard::new() }; SHARDS_LITE];
}

fn shards(protocol: Protocol) -> &'static [Shard] {
    match protocol {
        Protocol::Tcp => TCP.as_slice(),
        Protocol::Udp => UDP.as_slice(),
        Protocol::UdpLite => UDP_LITE.as_slice(),
    }
}

fn shard(protocol: Protocol, port: u16) -> &'static Shard {
    let all = shards(protocol);
    &all[usize::from(port) % all.len()]
}

fn place(Endpoint { ip, port }: Endpoint, remote: Option<Endpoint>, ino: u64) -> Place {
    Place {
        port,
        remote,
        ip,
        ino,
    }
}

/// All places of a port without a peer.
fn alone(port: u16) -> RangeInclusive<Place> {
    let at = |ip| Endpoint { ip: Ip(ip), port };
    place(at([0; 16]), None, 0)..=place(at([255; 16]), None, u64::MAX)
}

/// All places of an endpoint with this peer.
fn between(local: Endpoint, remote: Endpoint) -> RangeInclusive<Place> {
    place(local, Some(remote), 0)..=place(local, Some(remote), u64::MAX)
}

impl Place {
    fn local(&self) -> Endpoint {
        let (ip, port) = (self.ip, self.port);
        Endpoint { ip, port }
    }
}

impl Entry {
    fn rules(&self) -> Rules {
        Rules {
            auto: self.auto,
            reuse: self.reuse,
            share: self.share,
            uid: if self.share { self.uid } else { 0 },
        }
    }

    /// Whether packets to `ip` are for it.
    fn covers(&self, ip: Ip) -> bool {
        let v4 = ip.as_v4().is_some();
        self.ip == ip || self.ip == Ip::ANY4 && v4 || self.ip == Ip::ANY6 && !(self.only_v6 && v4)
    }

    fn meets(&self, other: &Entry) -> bool {
        self.covers(other.ip) || other.covers(self.ip)
    }

    fn shares_with(&self, other: &Entry) -> bool {
        self.share && other.share && self.uid == other.uid
    }

    fn listens(&self) -> bool {
        matches!(self.owner, Owner::Listener(_))
    }

    /// Whether both may have the port. A listener shares it only by SO_REUSEPORT.
    fn may_join(&self, other: &Entry) -> bool {
        !self.meets(other)
            || self.shares_with(other)
            || self.reuse && other.reuse && !other.listens()
    }
}

impl Bucket {
    /// Adds a socket, or changes what is known of it; returns what was.
    fn put(&mut self, place: Place, entry: Entry) -> Option<Entry> {
        if place.remote.is_some() {
            self.joined.add(place.local(), entry.rules());
        }
        let old = self.entries.insert(place, entry);
        if let (Some(old), Some(_)) = (&old, place.remote) {
            self.joined.remove(place.local(), old.rules());
        }
        old
    }

    /// Takes a socket out.
    fn take(&mut self, place: &Place) -> Option<Entry> {
        let old = self.entries.remove(place);
        if let (Some(old), Some(_)) = (&old, place.remote) {
            self.joined.remove(place.local(), old.rules());
        }
        old
    }

    /// Whether a socket with this address is connected so.
    fn is_joined(&self, local: Endpoint, remote: Endpoint) -> bool {
        self.entries.range(between(local, remote)).next().is_some()
    }

    /// Whether one more socket of this user, without a peer, may have this port.
    fn has_place(&self, port: u16, uid: u32) -> bool {
        let (mut all, mut own) = (0, 0);
        for (_, entry) in self.entries.range(alone(port)) {
            all += 1;
            own += usize::from(entry.uid == uid);
        }
        all < MOST && own < MOST_OF_USER
    }

    /// Whether `new` may have this port.
    fn is_free(&self, port: u16, new: &Entry) -> bool {
        let mut alone = self.entries.range(alone(port));
        alone.all(|(_, e)| new.may_join(e))
            && self.has_place(port, new.uid)
            && self
                .joined
                .allow(Endpoint { ip: new.ip, port }, new.only_v6, &new.rules())
            && !self.waits.iter().any(|w| w.forbids(port, new))
    }

    /// Whether a connect from `local` to `remote` may choose this port: as in Linux, if only such connects have it.
    fn is_free_towards(&self, local: Endpoint, remote: Endpoint) -> bool {
        let mut alone = self.entries.range(alone(local.port));
        alone.next().is_none() && self.joined.are_auto(local.port) && !self.is_joined(local, remote)
    }

    /// Forgets ends that are over.
    fn tidy(&mut self) {
        if self.waits.is_empty() {
            return;
        }
        let now = monotonic_ns();
        self.waits.retain(|w| w.until > now);
    }

    /// The entry without a peer, among those that `suits` accepts, that says most about packets to `to`.
    fn best(&self, to: Endpoint, from: Endpoint, suits: impl Fn(&Entry) -> bool) -> Option<&Entry> {
        let score = |e: &Entry| (e.ip == to.ip, e.family == Family::V4);
        let found = || {
            let all = self.entries.range(alone(to.port)).map(|(_, e)| e);
            all.filter(|e| e.covers(to.ip) && suits(e))
        };
        let top = found().map(score).max()?;
        let equal = || found().filter(|e| score(e) == top);
        let sharing = equal().filter(|e| e.share).count();
        match sharing {
            0 => equal().last(),
            n => equal().filter(|e| e.share).nth(from.choice() % n),
        }
    }
}

impl Wait {
    fn is_of(&self, local: Endpoint, remote: Endpoint) -> bool {
        (self.end.local, self.end.remote) == (local, remote)
    }

    fn forbids(&self, port: u16, new: &Entry) -> bool {
        let end = &self.end;
        end.local.port == port && new.covers(end.local.ip) && !(end.reuse && new.reuse)
    }
}

/// Gives `port` to a socket. The caller has waited for memory.
///
/// # Errors
/// `AddressInUse`.
pub fn bind(protocol: Protocol, port: u16, ino: u64, entry: Entry) -> Result<Place> {
    let mut bucket = shard(protocol, port).bucket.lock();
    bucket.tidy();
    if !bucket.is_free(port, &entry) {
        return Err(SocketError::AddressInUse);
    }
    Ok(add(protocol, &mut bucket, port, ino, entry))
}

/// Adds a socket without a peer.
fn add(protocol: Protocol, bucket: &mut Bucket, port: u16, ino: u64, entry: Entry) -> Place {
    let place = place(Endpoint { ip: entry.ip, port }, None, ino);
    bucket.put(place, entry);
    shard(protocol, port).generation.fetch_add(1, Release);
    place
}

/// The ports that the kernel chooses from, each once, from any one on.
fn choices() -> impl Iterator<Item = u16> {
    let (first, last) = settings::port_range();
    let count = u32::from(last - first) + 1;
    let seed = (monotonic_ns() >> 6) as u32 ^ current().tid() << 8;
    let start = seed.wrapping_mul(0x9e37_79b1) >> 8;
    (0..count).map(move |i| first + (start.wrapping_add(i) % count) as u16)
}

/// Gives a free port to a socket. The caller has waited for memory.
///
/// # Errors
/// `AddressInUse` if there is none.
pub fn bind_any(protocol: Protocol, ino: u64, entry: Entry) -> Result<Place> {
    // Two sockets that share a port by SO_REUSEADDR ask for it: one that is chosen is nobody else's.
    let alone = Entry {
        reuse: false,
        share: false,
        ..entry.clone()
    };
    for port in choices() {
        let mut bucket = shard(protocol, port).bucket.lock();
        bucket.tidy();
        if bucket.is_free(port, &alone) {
            return Ok(add(protocol, &mut bucket, port, ino, entry));
        }
    }
    Err(SocketError::AddressInUse)
}

/// Gives a port to a socket of TCP that connects to `remote`: one that no socket has, or only such connects to other peers. The end of an older
/// connection is no obstacle. The caller has waited for memory.
///
/// # Errors
/// `NotAvailable` if there is none.
pub fn connect_any(ino: u64, remote: Endpoint, mut entry: Entry) -> Result<Place> {
    const TCP: Protocol = Protocol::Tcp;
    entry.auto = true;
    for port in choices() {
        let mut bucket = shard(TCP, port).bucket.lock();
        if bucket.is_free_towards(Endpoint { ip: entry.ip, port }, remote) {
            return Ok(add_joined(TCP, &mut bucket, port, remote, ino, entry));
        }
    }
    Err(SocketError::NotAvailable)
}

/// Makes a socket a listener.
///
/// # Errors
/// `AddressInUse` if another one listens there.
pub fn listen(place: Place, entry: Entry) -> Result<()> {
    let shard = shard(Protocol::Tcp, place.port);
    let mut bucket = shard.bucket.lock();
    let mut others = bucket.entries.range(alone(place.port));
    if others.any(|(p, e)| *p != place && e.listens() && e.meets(&entry) && !e.shares_with(&entry))
    {
        return Err(SocketError::AddressInUse);
    }
    let old = bucket.put(place, entry);
    drop(bucket);
    drop(old);
    Ok(())
}

/// Changes what is known of a socket that has this place.
pub fn set_entry(place: Place, entry: Entry) {
    let mut bucket = shard(Protocol::Tcp, place.port).bucket.lock();
    let old = bucket.put(place, entry);
    drop(bucket);
    drop(old);
}

/// Moves a socket to its peer, as one that is connected to `remote`, and whose port others may have. The caller has waited for memory.
///
/// # Errors
/// `NotAvailable` if a socket of TCP is connected so; nothing has changed then.
pub fn join(protocol: Protocol, old: Place, remote: Endpoint, entry: Entry) -> Result<Place> {
    let mut bucket = shard(protocol, old.port).bucket.lock();
    let local = Endpoint {
        ip: entry.ip,
        port: old.port,
    };
    if protocol == Protocol::Tcp && bucket.is_joined(local, remote) {
        return Err(SocketError::NotAvailable);
    }
    let gone = bucket.take(&old);
    let place = add_joined(protocol, &mut bucket, old.port, remote, old.ino, entry);
    drop(bucket);
    drop(gone);
    Ok(place)
}

/// Adds a socket that was accepted from `remote`. The caller has waited for memory.
pub fn join_accepted(port: u16, remote: Endpoint, ino: u64, entry: Entry) -> Place {
    // A client that is closed may have left its port to another while its server is not closed yet: both are here.
    let mut bucket = shard(Protocol::Tcp, port).bucket.lock();
    add_joined(Protocol::Tcp, &mut bucket, port, remote, ino, entry)
}

fn add_joined(
    protocol: Protocol,
    bucket: &mut Bucket,
    port: u16,
    remote: Endpoint,
    ino: u64,
    entry: Entry,
) -> Place {
    let local = Endpoint { ip: entry.ip, port };
    bucket.waits.retain(|w| !w.is_of(local, remote));
    let place = place(local, Some(remote), ino);
    bucket.put(place, entry);
    shard(protocol, port).generation.fetch_add(1, Release);
    place
}

/// Moves a socket that was connected, and is no more, away from its peer. The caller has waited for memory.
///
/// # Errors
/// `AddressInUse` if as many have the port as may; nothing has changed then.
pub fn part(protocol: Protocol, old: Place, entry: Entry) -> Result<Place> {
    let mut bucket = shard(protocol, old.port).bucket.lock();
    if !bucket.has_place(old.port, entry.uid) {
        return Err(SocketError::AddressInUse);
    }
    let gone = bucket.take(&old);
    let place = add(protocol, &mut bucket, old.port, old.ino, entry);
    drop(bucket);
    drop(gone);
    Ok(place)
}

/// Takes a socket out of the table.
pub fn release(protocol: Protocol, place: Place) {
    let shard = shard(protocol, place.port);
    let mut bucket = shard.bucket.lock();
    let old = bucket.take(&place);
    shard.generation.fetch_add(1, Release);
    // An empty map keeps a node of a kibibyte, and there may be one in each shard.
    let maps = bucket.entries.is_empty().then(|| {
        let bucket = &mut *bucket;
        (
            core::mem::take(&mut bucket.entries),
            core::mem::take(&mut bucket.joined),
        )
    });
    drop(bucket);
    drop((old, maps));
}

/// The listener that a connect from `from` to `to` meets.
pub fn listener(to: Endpoint, from: Endpoint) -> Option<Arc<TcpListener>> {
    let bucket = shard(Protocol::Tcp, to.port).bucket.lock();
    match &bucket.best(to, from, Entry::listens)?.owner {
        Owner::Listener(listener) => Some(listener.clone()),
        _ => None,
    }
}

/// How often the sockets of this port, among others, have changed.
pub fn generation(protocol: Protocol, port: u16) -> u64 {
    shard(protocol, port).generation.load(Acquire)
}

/// The datagram socket that a packet from `from` to `to` is for, and the generation in which it is.
pub fn receiver(protocol: Protocol, to: Endpoint, from: Endpoint) -> (u64, Option<Arc<Receiver>>) {
    let shard = shard(protocol, to.port);
    let bucket = shard.bucket.lock();
    let generation = shard.generation.load(Acquire);
    let mut joined = bucket.entries.range(between(to, from));
    let entry = joined.next().map(|(_, e)| e);
    let found = match entry.or_else(|| bucket.best(to, from, |_| true)) {
        Some(Entry {
            owner: Owner::Receiver(receiver),
            ..
        }) => Some(receiver.clone()),
        _ => None,
    };
    (generation, found)
}

/// Remembers the end of a connection for a minute, as Linux does; the oldest are forgotten if there are too many.
pub fn remember(end: Ended) {
    if mem::admit_process().is_err() {
        return;
    }
    let mut bucket = shard(Protocol::Tcp, end.local.port).bucket.lock();
    bucket.tidy();
    bucket.waits.retain(|w| !w.is_of(end.local, end.remote));
    if bucket.waits.len() >= WAITS {
        bucket.waits.pop_front();
    }
    if bucket.waits.try_reserve(1).is_err() {
        return;
    }
    bucket.waits.push_back(Wait {
        end,
        until: monotonic_ns().saturating_add(WAIT_NS),
        _charge: MemoryCharge::new(end.payer, 2 * size_of::<Wait>()),
    });
}

/// Forgets the end of a connection, which was reset.
pub fn forget(local: Endpoint, remote: Endpoint) {
    let mut bucket = shard(Protocol::Tcp, local.port).bucket.lock();
    bucket.waits.retain(|w| !w.is_of(local, remote));
}

/// Forgets all ends of connections, before memory is accounted for.
pub fn drain() {
    for shard in shards(Protocol::Tcp) {
        let waits = core::mem::take(&mut shard.bucket.lock().waits);
        drop(waits);
    }
}

/// Calls `f` with all sockets of a protocol that have a port, with no lock held. One that is made, closed or connected meanwhile may be missing, or
/// be there twice. Without memory for a few of them, there are none.
pub fn each(protocol: Protocol, mut f: impl FnMut(&Place, &Entry)) {
    let mut some: Vec<(Place, Entry)> = Vec::new();
    if some.try_reserve(BATCH).is_err() {
        return;
    }
    for shard in shards(protocol) {
        let mut from = Unbounded;
        loop {
            let bucket = shard.bucket.lock();
            let entries = bucket.entries.range((from, Unbounded)).take(BATCH);
            some.extend(entries.map(|(place, entry)| (*place, entry.clone())));
            drop(bucket);
            some.iter().for_each(|(place, entry)| f(place, entry));
            let Some((last, _)) = some.last() else {
                break;
            };
            from = Excluded(*last);
            some.clear();
        }
    }
}

/// Calls `f` with all ends of connections, and the nanoseconds for which each is remembered. As [`each`].
pub fn each_wait(mut f: impl FnMut(&Ended, u64)) {
    let now = monotonic_ns();
    for shard in shards(Protocol::Tcp) {
        let mut all: Vec<(Ended, u64)> = Vec::new();
        let bucket = shard.bucket.lock();
        if all.try_reserve(bucket.waits.len()).is_ok() {
            let left = bucket.waits.iter().filter(|w| w.until > now);
            all.extend(left.map(|w| (w.end, w.until - now)));
        }
        drop(bucket);
        all.iter().for_each(|(end, left)| f(end, *left));
    }
}
