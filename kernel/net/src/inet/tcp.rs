//! Sockets of TCP: names, listeners and connects. `stream` has their sends and receives, `shutdown` their ends.

use alloc::boxed::Box;
use alloc::sync::Arc;

use ksync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use ksync::{Once, Spin, SpinGuard};
use task::current::current;
use task::park::{Deadline, Interruptible, ParkError, Step, park};
use task::wait::Waiter;
use vfs::error::FsError;

use super::base::Base;
use super::endpoint::{AF_UNSPEC, Endpoint, Family, Ip};
use super::late::{self, Late};
use super::option;
use super::pair::{CLIENT, End, Pair, SERVER, State, TcpListener};
use super::ports::{self, Owner, Place};
use super::protocol::Protocol;
use super::settings;
use crate::accept::{AcceptQueue, Added};
use crate::address::{Type, family};
use crate::error::{Result, SocketError};
use crate::inbox::{self, Inbox};
use crate::local::LinkLock;
use crate::option::{Options, SEND_DEFAULT};
use crate::socket::Accepted;
use crate::wait;

/// How far connect(2) has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not called, or failed.
    Unconnected,
    /// It was, and has not told its result yet.
    Connecting,
    /// It has succeeded.
    Connected,
}

/// What the lock of a link guards.
pub(super) struct Link {
    /// Where the socket is in the table of ports.
    pub place: Option<Place>,
    /// Its address.
    pub local: Endpoint,
    /// The address that bind(2) has said, and whether it has chosen the port: both stay if a connect fails.
    pub bound: Ip,
    chosen: bool,
    /// Whether bind(2) has said the port, which stays if the socket ceases to listen.
    pub fixed: bool,
    pub phase: Phase,
    /// What a client that is late waits for.
    pub late: Option<(Arc<Pair>, Arc<TcpListener>)>,
}

/// A side of a connection.
pub(super) struct Side {
    pub pair: Arc<Pair>,
    pub at: usize,
}

impl Side {
    /// What the other side receives from.
    pub fn peer(&self) -> &Inbox {
        &self.pair.end(1 - self.at).inbox
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.pair.state(self.at)
    }
}

/// A socket of TCP.
pub struct TcpSocket {
    pub(super) base: Base,
    pub(super) inbox: Arc<Inbox>,
    pub(super) link: Spin<Link, LinkLock>,
    /// Set under the link's lock.
    side: Once<Side>,
    pub(super) listener: Once<Arc<TcpListener>>,
    /// The socket itself writes no more. Atomic.
    pub(super) send_shut: AtomicBool,
    /// What it may have sent, and nobody received. Atomic.
    pub(super) send_limit: AtomicUsize,
}

/// Bytes of a socket's objects, but for the inbox, which is charged with what is in it.
const OBJECTS: usize = size_of::<TcpSocket>() + 2 * size_of::<usize>();

impl TcpSocket {
    /// A socket that is not connected. May wait for memory.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn new(family: Family) -> Result<TcpSocket> {
        mem::admit_process()?;
        let inbox = Arc::new(Inbox::stream(current().payer(), SEND_DEFAULT));
        Ok(Self::with(family, inbox))
    }

    fn with(family: Family, inbox: Arc<Inbox>) -> TcpSocket {
        TcpSocket {
            base: Base::new(family, Type::Stream, OBJECTS + inbox::BYTES),
            inbox,
            link: Spin::new(Link {
                place: None,
                local: Endpoint {
                    ip: family.any(),
                    port: 0,
                },
                bound: family.any(),
                chosen: false,
                fixed: false,
                phase: Phase::Unconnected,
                late: None,
            }),
            side: Once::new(),
            listener: Once::new(),
            send_shut: AtomicBool::new(false),
            send_limit: AtomicUsize::new(SEND_DEFAULT),
        }
    }

    /// Its side of a connection, if it is connected, or was.
    #[inline]
    pub(super) fn side(&self) -> Option<&Side> {
        self.side.get().or_else(|| self.look_for_answer())
    }

    /// Looks whether a client that was late is connected now, or was refused.
    fn look_for_answer(&self) -> Option<&Side> {
        let mut link = self.link.lock();
        let (pair, _) = link.late.as_ref()?;
        let (connected, refused) = (pair.is_connected(), pair.is_refused());
        if !connected && !refused {
            return None;
        }
        let late = link.late.take();
        if let (Some((pair, _)), true) = (&late, connected) {
            let pair = pair.clone();
            let _ = self.side.set(Side { pair, at: CLIENT });
        }
        if connected {
            drop(link);
        } else {
            self.give_up_place(link);
        }
        if let Some((pair, _)) = &late {
            late::remove(pair);
        }
        drop(late);
        self.side.get()
    }

    /// A connect has failed: the socket has the address and the port that bind(2) has chosen, or none. The place is taken out under the lock, so of
    /// this and another connect, which may have begun meanwhile, each gives up its own.
    fn give_up_place(&self, mut link: SpinGuard<'_, Link, LinkLock>) {
        let (bound, chosen) = (link.bound, link.chosen);
        if chosen && link.place.is_some_and(|place| place.remote.is_none()) {
            link.local.ip = bound;
            return;
        }
        let Some(place) = link.place.take() else {
            return;
        };
        link.local = Endpoint {
            ip: bound,
            port: if chosen { place.port } else { 0 },
        };
        drop(link);
        if !chosen {
            return ports::release(Protocol::Tcp, place);
        }
        // What it adds is as large as what it takes out, so without memory it may be done, too.
        let _ = mem::admit_process();
        let entry = self.base.entry(bound, Owner::Idle);
        let Ok(kept) = ports::part(Protocol::Tcp, place, entry) else {
            // Too many others have the port.
            let mut link = self.link.lock();
            if link.place.is_none() {
                link.local.port = 0;
            }
            drop(link);
            return ports::release(Protocol::Tcp, place);
        };
        let mut link = self.link.lock();
        match link.place {
            None => link.place = Some(kept),
            // A bind to the same address has come meanwhile, and has the same place: it is in use.
            Some(place) if place == kept => {}
            Some(_) => {
                drop(link);
                ports::release(Protocol::Tcp, kept);
            }
        }
    }

    /// The state, as Linux numbers it.
    pub fn state(&self) -> State {
        match self.side() {
            Some(side) => side.state(),
            None if self.listening().is_some() => State::Listen,
            None if self.link.lock().late.is_some() => State::SynSent,
            None => State::Close,
        }
    }

    pub(super) fn bind(&self, raw: &[u8]) -> Result<()> {
        let to = self.base.to_bind(raw)?;
        let one = self.base.binding.lock();
        {
            let link = self.link.lock();
            if link.place.is_some() || link.phase != Phase::Unconnected {
                return Err(FsError::Invalid.into());
            }
        }
        self.take_port(to, true)?;
        self.link.lock().fixed = to.port != 0;
        drop(one);
        Ok(())
    }

    /// Called with the lock of bindings held.
    fn take_port(&self, to: Endpoint, chosen: bool) -> Result<Place> {
        let entry = self.base.entry(to.ip, Owner::Idle);
        let place = self.base.take_port(Protocol::Tcp, to.port, entry)?;
        let mut link = self.link.lock();
        link.place = Some(place);
        link.local = Endpoint {
            ip: to.ip,
            port: place.port,
        };
        link.bound = to.ip;
        link.chosen = chosen;
        Ok(place)
    }

    pub(super) fn listen(&self, backlog: usize) -> Result<()> {
        let backlog = backlog.min(settings::max_backlog() as usize);
        let one = self.base.binding.lock();
        let (phase, place, bound) = {
            let link = self.link.lock();
            (link.phase, link.place, link.bound)
        };
        if let (Some(listener), Some(place)) = (self.listening(), place) {
            listener.queue.set_backlog(backlog, place.port);
            return Ok(());
        }
        if phase != Phase::Unconnected {
            return Err(FsError::Invalid.into());
        }
        let place = match place {
            Some(place) => place,
            None => {
                let to = Endpoint { ip: bound, port: 0 };
                self.take_port(to, false)?
            }
        };
        mem::admit_process()?;
        let mut entry = self.base.entry(bound, Owner::Idle);
        let listener = self.listener.get_or_init(|| {
            Arc::new(TcpListener {
                queue: AcceptQueue::new(backlog, place.port),
                family: self.base.family,
                reuse: entry.reuse,
                send_limit: self.send_limit.load(Relaxed),
                payer: self.base.payer,
            })
        });
        entry.owner = Owner::Listener(listener.clone());
        listener.queue.open(backlog, place.port);
        if let Err(e) = ports::listen(place, entry) {
            listener.queue.close();
            return Err(e);
        }
        drop(one);
        self.base.changes.wake_all();
        Ok(())
    }

    /// Its queue, if it listens: not before listen(2), nor after shutdown(2).
    pub(super) fn listening(&self) -> Option<&TcpListener> {
        let listener = self.listener.get()?;
        (!listener.queue.is_ended()).then_some(listener)
    }

    pub(super) fn accept(&self, nonblocking: bool) -> Result<Accepted> {
        let listener = self.listener.get().ok_or(FsError::Invalid)?;
        mem::admit_process()?;
        let deadline = self.base.options.deadline(false);
        let pair = wait::accept(&listener.queue, nonblocking, deadline)?;
        let (end, other) = (pair.end(SERVER), pair.end(CLIENT).at);
        let socket = Self::with(self.base.family, end.inbox.clone());
        socket.base.options.inherit(&self.base.options);
        socket.base.inet.inherit(&self.base.inet);
        socket.send_limit.store(listener.send_limit, Relaxed);
        let entry = socket
            .base
            .entry(end.at.ip, Owner::Side(pair.clone(), SERVER));
        let place = ports::join_accepted(end.at.port, other, socket.base.ino, entry);
        {
            let mut link = socket.link.lock();
            link.place = Some(place);
            link.local = end.at;
            link.phase = Phase::Connected;
        }
        let _ = socket.side.set(Side { pair, at: SERVER });
        Ok(Accepted {
            peer: other.address(self.base.family),
            socket: Box::new(socket),
        })
    }

    pub(super) fn connect(&self, raw: &[u8], nonblocking: bool) -> Result<()> {
        let one = self.base.binding.lock();
        self.side();
        if family(raw).ok_or(FsError::Invalid)? == AF_UNSPEC {
            return self.disconnect();
        }
        let to = Endpoint::parse(self.base.family, raw, false)?;
        let phase = self.link.lock().phase;
        match phase {
            Phase::Connected => return Err(SocketError::IsConnected),
            Phase::Connecting => {}
            Phase::Unconnected if self.listening().is_some() => {
                return Err(SocketError::IsConnected);
            }
            Phase::Unconnected => {
                self.begin(to)?;
                if nonblocking {
                    // As in Linux, also if it is connected, or refused, already.
                    return Err(SocketError::InProgress);
                }
            }
        }
        drop(one);
        self.finish_connect(nonblocking)
    }

    /// connect(2) to no address.
    fn disconnect(&self) -> Result<()> {
        if self.side().is_some() || self.listening().is_some() {
            return Err(FsError::NotSupported.into());
        }
        let mut link = self.link.lock();
        // Once more: another thread may have seen since that the connect has succeeded.
        if link.late.is_some() || self.side.get().is_some() {
            return Err(FsError::NotSupported.into());
        }
        link.phase = Phase::Unconnected;
        drop(link);
        self.inbox.take_error();
        Ok(())
    }

    /// Takes a port, and finds the listener. Afterwards the socket is connected, late or refused, which [`finish_connect`](Self::finish_connect)
    /// tells. Called with the lock of bindings held.
    fn begin(&self, to: Endpoint) -> Result<()> {
        mem::admit_process()?;
        let local = self.link.lock().local;
        let to = self.base.to_reach(to, local.ip)?;
        let place = self.link.lock().place;
        let ip = if local.ip.is_any() {
            to.ip.source()
        } else {
            local.ip
        };
        let mut entry = self.base.entry(ip, Owner::Idle);
        entry.auto = place.is_none();
        let joined = match place {
            Some(old) => ports::join(Protocol::Tcp, old, to, entry)?,
            None => ports::connect_any(self.base.ino, to, entry)?,
        };
        let at = Endpoint {
            ip,
            port: joined.port,
        };
        let (auto, old) = {
            let mut link = self.link.lock();
            link.local = at;
            (place.is_none(), link.place.replace(joined))
        };
        // A connect that failed before may have given the socket its port back meanwhile.
        if let Some(old) = old.filter(|_| auto) {
            ports::release(Protocol::Tcp, old);
        }
        // As in Linux, nothing is told any more of a connect that has failed before.
        self.inbox.take_error();
        let Some(listener) = ports::listener(to, at) else {
            self.refuse(FsError::ConnectionRefused);
            return Ok(());
        };
        let pair = Arc::new(self.pair_with(at, to, &listener));
        let mut entry = self.base.entry(ip, Owner::Side(pair.clone(), CLIENT));
        entry.auto = auto;
        ports::set_entry(joined, entry);
        self.ask(pair, listener);
        Ok(())
    }

    /// Asks the listener for the connection.
    fn ask(&self, pair: Arc<Pair>, listener: Arc<TcpListener>) {
        self.inbox.set_limit(listener.send_limit);
        match listener.offer(&pair) {
            Ok(added) => {
                self.inbox.set_payer(listener.payer);
                if added != Added::Connected {
                    late::add(Late {
                        pair: pair.clone(),
                        listener: listener.clone(),
                        listed: added == Added::Late,
                        tries: 0,
                        most: self.base.inet.get(option::SYNCNT) as u32,
                    });
                }
                let mut link = self.link.lock();
                link.phase = Phase::Connecting;
                link.late = Some((pair, listener));
                drop(link);
                self.base.changes.wake_all();
            }
            Err(SocketError::File(e)) => self.refuse(e),
            Err(_) => self.refuse(FsError::ConnectionRefused),
        }
    }

    fn pair_with(&self, at: Endpoint, to: Endpoint, listener: &TcpListener) -> Pair {
        let limit = self.send_limit.load(Relaxed);
        let client = End {
            inbox: self.inbox.clone(),
            at,
            family: self.base.family,
            reuse: self.base.entry(at.ip, Owner::Idle).reuse,
            payer: self.base.payer,
        };
        let server = End {
            inbox: Arc::new(Inbox::stream(self.base.payer, limit)),
            at: to,
            family: listener.family,
            reuse: listener.reuse,
            payer: listener.payer,
        };
        Pair::new(client, server)
    }

    /// A connect that has begun has failed.
    fn refuse(&self, error: FsError) {
        // Before another connect can begin, which this error is not about.
        self.inbox.set_error(error);
        let mut link = self.link.lock();
        link.phase = Phase::Connecting;
        self.give_up_place(link);
        self.base.changes.wake_all();
    }

    /// Waits until a connect that has begun is over, and tells its result.
    fn finish_connect(&self, nonblocking: bool) -> Result<()> {
        let late = match self.side() {
            Some(_) => None,
            None => self.late(),
        };
        if let Some(pair) = late {
            if nonblocking {
                return Err(SocketError::Already);
            }
            self.wait_for(&pair)?;
        }
        self.side();
        let mut link = self.link.lock();
        // Under the lock, for another thread may see it, too, and the connect that it is about may be another.
        let connected = self.side.get().is_some();
        // Another connect may have begun after this one has failed.
        if connected || link.late.is_none() {
            link.phase = match connected {
                true => Phase::Connected,
                false => Phase::Unconnected,
            };
        }
        drop(link);
        if connected {
            return Ok(());
        }
        let error = self.inbox.take_error().map(SocketError::File);
        Err(error.unwrap_or(SocketError::Aborted))
    }

    /// What a client that is late waits for.
    pub(super) fn late(&self) -> Option<Arc<Pair>> {
        let link = self.link.lock();
        link.late.as_ref().map(|(pair, _)| pair.clone())
    }

    /// Waits until a client that is late is connected, or refused. The connect goes on if the wait ends before.
    pub(super) fn wait_for(&self, pair: &Arc<Pair>) -> Result<()> {
        let deadline = self.base.options.deadline(true);
        let mut pair = pair.clone();
        park(&mut pair, deadline, Interruptible::Yes, wait_step).map_err(|e| match (e, deadline) {
            (ParkError::Timeout, _) => SocketError::InProgress,
            (ParkError::Signal, Deadline::Never) => FsError::Interrupted.into(),
            (ParkError::Signal, _) => SocketError::InterruptedForGood,
        })
    }

    /// Sets what may be sent and not received.
    pub(super) fn set_send_limit(&self, bytes: usize) {
        let limit = Options::send_limit(bytes);
        self.send_limit.store(limit, Relaxed);
        if let Some(side) = self.side() {
            side.peer().set_limit(limit);
        }
    }
}

fn wait_step(pair: &mut Arc<Pair>, w: &mut Waiter) -> Step<()> {
    w.listen(&pair.waiting);
    match pair.is_connected() || pair.is_refused() {
        true => Step::Done(()),
        false => Step::Wait,
    }
}
