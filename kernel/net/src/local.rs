//! Local sockets: AF_UNIX. `transfer` has their sends and receives.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use cred::{MemoryCharge, Payer};
use ksync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use ksync::{Mutex, Once, Spin};
use task::current::current;
use task::park::{Deadline, Interruptible, Step, park_and_pass_on};
use task::wait::{Cause, WaitQueue, Waiter};
use vfs::attr::Attr;
use vfs::error::FsError;
use vfs::ino::new_ino;
use vfs::inode::mode;
use vfs::lock::LockSlot;
use vfs::poll::PollMask;

use crate::accept::MOST;
use crate::connection::{Connection, Listener};
use crate::error::{Result, SocketError};
use crate::ids::Ids;
use crate::in_flight::{self, Carrier, Node};
use crate::inbox::{self, Inbox};
use crate::names::{self, Bound, Name, Target};
use crate::option::{Options, SEND_DEFAULT};
use crate::packets::Sent;
use crate::shown::{Shown, Use};
use crate::socket::{Accepted, Address, Type};
use crate::wait::{self, gave_up};

ksync::lock_class!(pub BindLock, "socket binding", rank = 40);
ksync::lock_class!(pub LinkLock, "socket link", rank = 87);

/// What the lock of a link guards, besides changes of the socket's use.
struct Link {
    /// What a datagram socket is connected to.
    to: Option<Peer>,
}

/// The other side of a connection.
#[derive(Clone)]
pub struct Peer {
    /// What it receives from.
    pub inbox: Arc<Inbox>,
    /// Its name.
    pub name: Option<Arc<Name>>,
    /// Its ids when it was connected, or called listen(2).
    pub ids: Ids,
}

/// A local socket.
pub struct LocalSocket {
    pub(crate) kind: Type,
    pub(crate) inbox: Arc<Inbox>,
    /// What it has sent in packets.
    pub(crate) sent: Arc<Sent>,
    pub(crate) options: Options,
    link: Spin<Link, LinkLock>,
    /// The other side of a stream or seqpacket connection. Set under the link's lock.
    peer: Once<Peer>,
    /// Set under the link's lock.
    listener: Once<Arc<Listener>>,
    /// The name that leads here. Set under the lock of bindings.
    bound: Once<Arc<Bound>>,
    /// Its use; and its name: that of `bound`, or the listener's by which it was accepted.
    shown: Arc<Shown>,
    binding: Mutex<(), BindLock>,
    /// The socket itself writes no more. Atomic.
    pub(crate) send_shut: AtomicBool,
    /// Callers of poll(2), which wait for another use of the socket.
    changes: WaitQueue,
    owner: (u32, u32),
    payer: Payer,
    locks: LockSlot,
    _charge: MemoryCharge,
}

/// Bytes of a socket's objects, but for its inbox where that is charged with what is in it.
const OBJECTS: usize = size_of::<LocalSocket>() + size_of::<Sent>() + 4 * size_of::<usize>();

fn new_inbox(kind: Type, payer: Payer, limit: usize) -> Inbox {
    match kind {
        Type::Stream => Inbox::stream(payer, limit),
        _ => Inbox::packets(),
    }
}

impl LocalSocket {
    /// A socket that is not connected. May wait for memory.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn new(kind: Type) -> Result<LocalSocket> {
        mem::admit_process()?;
        let inbox = Arc::new(new_inbox(kind, current().payer(), SEND_DEFAULT));
        Ok(Self::with(kind, inbox))
    }

    fn with(kind: Type, inbox: Arc<Inbox>) -> LocalSocket {
        let me = current();
        let (cred, payer) = (me.cred(), me.payer());
        LocalSocket {
            kind,
            inbox,
            sent: Arc::new(Sent::new()),
            options: Options::default(),
            link: Spin::new(Link { to: None }),
            peer: Once::new(),
            listener: Once::new(),
            bound: Once::new(),
            shown: Shown::add(new_ino(), kind),
            binding: Mutex::new(()),
            send_shut: AtomicBool::new(false),
            changes: WaitQueue::new(),
            owner: (cred.fsuid, cred.fsgid),
            payer,
            locks: LockSlot::new(),
            _charge: MemoryCharge::new(payer, OBJECTS + inbox::BYTES),
        }
    }

    /// Two sockets that are connected to each other. May wait for memory.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn pair(kind: Type) -> Result<(LocalSocket, LocalSocket)> {
        let a = Self::new(kind)?;
        // What was made must be closed, for it can be seen.
        let b = Self::new(kind).inspect_err(|_| a.close())?;
        a.join_pair(&b);
        b.join_pair(&a);
        Ok((a, b))
    }

    fn join_pair(&self, other: &LocalSocket) {
        let peer = Peer {
            inbox: other.inbox.clone(),
            name: None,
            ids: Ids::of_peer(),
        };
        if self.kind.connects() {
            self.shown.set_used(Use::Connected);
            let _ = self.peer.set(peer);
        } else {
            self.inbox.set_partner(peer.inbox.address());
            self.link.lock().to = Some(peer);
        }
    }

    /// The socket of a connection that was accepted. It shows ids if its listener does.
    fn accepted(kind: Type, connection: Connection, listener: &Listener, ids: bool) -> LocalSocket {
        connection.server.set_wants_ids(ids);
        let socket = Self::with(kind, connection.server);
        socket.shown.set_used(Use::Connected);
        let _ = socket.shown.name.set(listener.name.clone());
        let _ = socket.peer.set(Peer {
            inbox: connection.client,
            name: connection.client_name,
            ids: connection.client_ids,
        });
        socket
    }

    /// What the socket receives from.
    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// The other side of a stream or seqpacket connection.
    #[inline]
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.get()
    }

    /// What a datagram socket is connected to.
    pub(crate) fn to(&self) -> Option<Peer> {
        self.link.lock().to.clone()
    }

    /// The socket's name.
    pub(crate) fn own_name(&self) -> Option<Arc<Name>> {
        self.shown.name.get().cloned()
    }

    /// Whether it listens.
    pub fn listens(&self) -> bool {
        self.listener.get().is_some()
    }

    /// bind(2).
    pub(crate) fn bind(&self, address: &[u8]) -> Result<()> {
        let name = Name::parse(address)?;
        let one = self.binding.lock();
        if self.shown.name.get().is_some() {
            return Err(FsError::Invalid.into());
        }
        let target = match self.kind {
            Type::Datagram => Target::Inbox(self.inbox.clone()),
            _ => Target::Idle,
        };
        let bound = match name {
            Some(name) => names::bind(self.kind, name, target)?,
            None => names::bind_any(self.kind, &target)?,
        };
        let _ = self.shown.name.set(bound.name.clone());
        let _ = self.bound.set(bound);
        drop(one);
        Ok(())
    }

    /// Gives the socket a name if it shows ids and has none, as Linux does before it sends.
    pub(crate) fn bind_for_ids(&self) -> Result<()> {
        if self.inbox.wants_ids() && self.shown.name.get().is_none() {
            match self.bind(&names::AF_UNIX.to_le_bytes()) {
                Err(SocketError::File(FsError::Invalid)) => {}
                bound => return bound,
            }
        }
        Ok(())
    }

    /// listen(2).
    pub(crate) fn listen(&self, backlog: usize) -> Result<()> {
        if !self.kind.connects() {
            return Err(FsError::NotSupported.into());
        }
        let bound = self.bound.get().ok_or(FsError::Invalid)?;
        mem::admit_process()?;
        let inbox = self.inbox.clone();
        let new = Listener::new(
            bound.name.clone(),
            inbox,
            self.payer,
            backlog,
            Ids::of_peer(),
        );
        let new = Arc::new(new);
        let link = self.link.lock();
        match self.shown.used() {
            Use::Connected => return Err(FsError::Invalid.into()),
            Use::Listening => {
                drop(link);
                if let Some(listener) = self.listener.get() {
                    listener.set_backlog(backlog.min(MOST), Ids::of_peer());
                }
                return Ok(());
            }
            Use::Nothing => self.shown.set_used(Use::Listening),
        }
        let _ = self.listener.set(new.clone());
        drop(link);
        bound.lead_to(Target::Listener(new));
        self.changes.wake_all();
        Ok(())
    }

    /// accept(2).
    pub(crate) fn accept(&self, nonblocking: bool) -> Result<Accepted> {
        if !self.kind.connects() {
            return Err(FsError::NotSupported.into());
        }
        let listener = self.listener.get().ok_or(FsError::Invalid)?;
        mem::admit_process()?;
        let connection = wait::accept(listener, nonblocking, self.options.deadline(false))?;
        let peer = Name::address(connection.client_name.as_deref());
        let ids = self.inbox.wants_ids();
        let socket = Self::accepted(self.kind, connection, listener, ids);
        Ok(Accepted {
            socket: Box::new(socket),
            peer,
        })
    }

    /// connect(2).
    pub(crate) fn connect(&self, address: &[u8], nonblocking: bool) -> Result<()> {
        const AF_UNSPEC: u16 = 0;
        if !self.kind.connects() && names::family(address) == Some(AF_UNSPEC) {
            self.redirect(None);
            return Ok(());
        }
        let name = Name::parse(address)?.ok_or(FsError::Invalid)?;
        self.bind_for_ids()?;
        let bound = names::find(self.kind, &name)?;
        match bound.target() {
            Target::Listener(listener) if self.kind.connects() => {
                self.connect_to(&listener, nonblocking)
            }
            Target::Inbox(inbox) if !self.kind.connects() => {
                let partner = inbox.state().partner;
                if partner != 0 && partner != self.inbox.address() {
                    return Err(FsError::Perm.into());
                }
                self.redirect(Some(Peer {
                    inbox,
                    name: Some(bound.name.clone()),
                    ids: Ids::NOBODY,
                }));
                Ok(())
            }
            _ => Err(FsError::ConnectionRefused.into()),
        }
    }

    /// Connects a datagram socket to another peer, or to none. What came from others is dropped, as in Linux.
    fn redirect(&self, to: Option<Peer>) {
        let partner = to.as_ref().map_or(0, |peer| peer.inbox.address());
        let old = core::mem::replace(&mut self.link.lock().to, to);
        self.inbox.set_partner(partner);
        if let Some(old) = old
            && old.inbox.address() != partner
            && self.inbox.state().readable
        {
            self.inbox.flush();
            if old.inbox.state().partner == self.inbox.address() {
                old.inbox.set_error(FsError::ConnectionReset);
            }
        }
        self.changes.wake_all();
    }

    /// The peer of a datagram socket is closed.
    pub(crate) fn forget(&self, gone: &Arc<Inbox>) {
        let mut link = self.link.lock();
        let same = |peer: &Peer| Arc::ptr_eq(&peer.inbox, gone);
        let old = if link.to.as_ref().is_some_and(same) {
            link.to.take()
        } else {
            None
        };
        drop(link);
        if old.is_some() {
            self.inbox.set_partner(0);
        }
    }

    fn connect_to(&self, listener: &Arc<Listener>, nonblocking: bool) -> Result<()> {
        mem::admit_process()?;
        let server = Arc::new(new_inbox(self.kind, current().payer(), self.sent.limit()));
        // Until it is accepted, nobody knows whether the server asks for ids.
        server.set_wants_ids(true);
        let mut call = Connect {
            socket: self,
            listener,
            server,
            ids: Ids::of_peer(),
        };
        let joined = match call.attempt() {
            Ok(false) if nonblocking => return Err(FsError::WouldBlock.into()),
            Ok(false) => wait_for_room(&mut call, self.options.deadline(true)),
            result => result.map(|_| ()),
        };
        joined?;
        self.inbox.set_payer(listener.payer);
        self.changes.wake_all();
        Ok(())
    }

    /// shutdown(2).
    pub(crate) fn shutdown(&self, reads: bool, writes: bool) {
        if reads {
            self.inbox.shut(None);
            if let Some(listener) = self.listener.get() {
                listener.end();
            }
        }
        if writes {
            self.send_shut.store(true, SeqCst);
            if let Some(peer) = self.peer() {
                let cause = if reads { Cause::HangUp } else { Cause::Input };
                peer.inbox.shut(Some(cause));
            }
            self.sent.writers.wake_all();
        }
        self.changes.wake_all();
        // Callers of poll on this side may wait for the end of its writes.
        self.inbox.pollers.wake_all();
    }

    /// The last descriptor was closed.
    pub(crate) fn close(&self) {
        if let Some(bound) = self.bound.get() {
            names::unbind(bound);
        }
        if let Some(listener) = self.listener.get() {
            listener.close();
        }
        let unread = self.inbox.close();
        if let Some(peer) = self.peer() {
            peer.inbox.fail(unread.then_some(FsError::ConnectionReset));
        }
        let to = self.link.lock().to.take();
        drop(to);
        self.shown.remove();
        in_flight::note_close();
    }

    /// Registers a waiter with all that may change what [`poll`](Self::poll) finds.
    fn listen_to(&self, w: &mut Waiter) {
        w.listen(&self.changes);
        w.listen_except(&self.inbox.pollers, Cause::Room);
        if let Some(listener) = self.listener.get() {
            w.listen(&listener.pollers);
        }
        if let Some(peer) = self.peer() {
            // What this socket sends is no news for itself.
            w.listen_except(&peer.inbox.pollers, Cause::Input);
        }
        if self.kind != Type::Stream {
            w.listen(&self.sent.pollers);
        }
    }

    /// As [`vfs::file::FileOps::listen_for_signals`]. What comes, and the end, are told in the own inbox; and so is room in that of
    /// the peer.
    pub(crate) fn listen_for_signals(&self, w: &mut Waiter) {
        w.listen_except(&self.inbox.pollers, Cause::Room);
        if self.kind != Type::Stream {
            w.listen(&self.sent.pollers);
        }
    }

    /// As [`vfs::file::FileOps::poll`].
    pub(crate) fn poll(&self, waiter: Option<&mut Waiter>) -> PollMask {
        let peer = match self.kind {
            Type::Datagram => self.to(),
            _ => None,
        };
        if let Some(w) = waiter {
            self.listen_to(w);
            match &peer {
                // Connected to itself: the later of two registrations counts.
                Some(peer) if Arc::ptr_eq(&peer.inbox, &self.inbox) => {
                    w.listen(&self.inbox.pollers)
                }
                Some(peer) => w.listen_except(&peer.inbox.pollers, Cause::Input),
                None => {}
            }
        }
        let own = self.inbox.state();
        let other = self.peer().or(peer.as_ref()).map(|peer| peer.inbox.state());
        let mut mask = PollMask::NONE;
        if own.error {
            mask |= PollMask::ERR;
        }
        let silent = self.kind.connects() && other.is_some_and(|other| other.shut);
        if own.shut && (silent || self.send_shut.load(Relaxed)) {
            mask |= PollMask::HUP;
        }
        if own.shut {
            mask |= PollMask::RDHUP | PollMask::READ;
        }
        if own.readable {
            mask |= PollMask::READ;
        }
        if let Some(listener) = self.listener.get() {
            if listener.is_ready() {
                mask |= PollMask::READ;
            }
            return mask;
        }
        if self.kind.connects() && other.is_none() {
            mask |= PollMask::HUP;
        }
        let room = match (self.kind, other) {
            (Type::Stream, other) => other.is_none_or(|other| other.writable),
            (_, Some(other)) if self.kind == Type::Datagram => {
                let known = other.partner == self.inbox.address();
                self.sent.is_writable() && (known || !other.full)
            }
            _ => self.sent.is_writable(),
        };
        if room {
            mask |= PollMask::WRITE | BAND;
        }
        mask
    }

    /// For getsockname(2).
    pub(crate) fn address(&self) -> Address {
        Name::address(self.shown.name.get().map(|name| &**name))
    }

    /// For getpeername(2).
    pub(crate) fn peer_address(&self) -> Result<Address> {
        let to = self.to();
        let peer = self.peer().or(to.as_ref()).ok_or(FsError::NotConnected)?;
        Ok(Name::address(peer.name.as_deref()))
    }

    /// For fstat(2).
    pub(crate) fn attr(&self) -> Attr {
        let (uid, gid) = self.owner;
        Attr {
            uid,
            gid,
            ..Attr::unnamed(self.shown.ino, mode::SOCK | 0o777)
        }
    }

    /// The locks that programs take.
    pub(crate) fn locks(&self) -> &LockSlot {
        &self.locks
    }

    /// Sets what may be sent and not received.
    pub(crate) fn set_send_limit(&self, bytes: usize) {
        let limit = Options::send_limit(bytes);
        self.sent.set_limit(limit);
        if let (Type::Stream, Some(peer)) = (self.kind, self.peer()) {
            peer.inbox.set_limit(limit);
        }
    }
}

impl Node for LocalSocket {
    fn each_carrier(&self, f: &mut dyn FnMut(&dyn Carrier)) {
        f(&*self.inbox);
        let mut waiting: Vec<Arc<Inbox>> = Vec::new();
        if let Some(listener) = self.listener.get() {
            listener.inboxes(&mut waiting);
        }
        waiting.iter().for_each(|inbox| f(&**inbox));
    }
}

/// POLLWRBAND, which Linux reports with room.
pub(crate) const BAND: PollMask = PollMask(0x200);

/// A call of connect, as the state of a step.
struct Connect<'a> {
    socket: &'a LocalSocket,
    listener: &'a Arc<Listener>,
    server: Arc<Inbox>,
    ids: Ids,
}

impl Connect<'_> {
    /// Puts the connection into the listener's queue, and makes the socket connected. Returns whether there was room.
    fn attempt(&mut self) -> Result<bool> {
        let (socket, listener) = (self.socket, self.listener);
        listener.try_add(|ids| {
            let _link = socket.link.lock();
            match socket.shown.used() {
                Use::Connected => return Err(SocketError::IsConnected),
                Use::Listening => return Err(FsError::Invalid.into()),
                Use::Nothing => socket.shown.set_used(Use::Connected),
            }
            let _ = socket.peer.set(Peer {
                inbox: self.server.clone(),
                name: Some(listener.name.clone()),
                ids,
            });
            Ok(Connection {
                server: self.server.clone(),
                client: socket.inbox.clone(),
                client_name: socket.own_name(),
                client_ids: self.ids,
            })
        })
    }
}

fn wait_for_room(call: &mut Connect, deadline: Deadline) -> Result<()> {
    let step = |call: &mut Connect, w: &mut Waiter| {
        w.listen(&call.listener.connectors);
        match call.attempt() {
            Ok(false) => Step::Wait,
            Ok(true) => Step::Done(Ok(())),
            Err(e) => Step::Done(Err(e)),
        }
    };
    let pass_on = |call: &mut Connect| {
        call.listener.connectors.wake_one();
    };
    park_and_pass_on(call, deadline, Interruptible::Yes, step, pass_on)
        .unwrap_or_else(|e| Err(gave_up(e, deadline)))
}
