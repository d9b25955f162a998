//! What a socket receives from: a queue under one lock, and the threads that wait for it.
//!
//! Guarantee: a thread that listens to one of the queues and then finds that it must wait is woken by the next change that may end the wait.
//! Readers and writers are woken one at a time, and a woken one wakes the next if it leaves something for it, as at a pipe; a writer that waits
//! for room in a stream is woken when three quarters are free. No inbox refers to a socket.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr;

use cred::Payer;
use hal::uio::IoBuf;
use ksync::atomic::{AtomicBool, Ordering::Relaxed};
use ksync::{Mutex, MutexGuard};
use task::time::realtime_ns;
use task::wait::{Cause, WaitQueue};
use vfs::error::FsError;
use vfs::file::FileRef;

use crate::address::Name;
use crate::error::{Result, SocketError};
use crate::ids::Ids;
use crate::in_flight::Carrier;
use crate::packets::{Packet, Packets, Route};
use crate::rights::Rights;
use crate::stream::Stream;

ksync::lock_class!(pub InboxLock, "socket queue", rank = 53);

/// What may be in an inbox.
enum Queue {
    Stream(Stream),
    Packets(Packets),
}

/// What an inbox's lock guards.
struct Content {
    queue: Queue,
    /// The owner reads no more, or the writer writes no more. Set for good.
    shut: bool,
    /// The owner reads no more than what is in it, of a writer that does not learn of it. Set for good.
    deaf: bool,
    /// The owner is closed.
    closed: bool,
    /// What the next call of the owner fails with.
    error: Option<FsError>,
    /// A stream's writer has found no room since there was some.
    starved: bool,
    /// The address of the inbox of the datagram socket that the owner is connected to; 0 without one.
    partner: usize,
}

impl Content {
    fn is_empty(&self) -> bool {
        match &self.queue {
            Queue::Stream(stream) => stream.is_empty(),
            Queue::Packets(packets) => packets.is_empty(),
        }
    }
}

/// The content, locked.
type Locked<'a> = MutexGuard<'a, Content, InboxLock>;

/// An inbox.
pub struct Inbox {
    content: Mutex<Content, InboxLock>,
    /// Receivers that found nothing.
    pub(crate) readers: WaitQueue,
    /// Senders that found no room.
    pub(crate) writers: WaitQueue,
    /// Callers of poll(2) and the like, on either side.
    pub(crate) pollers: WaitQueue,
    /// Whether the receiver asks for the ids of senders (SO_PASSCRED). Atomic.
    wants_ids: AtomicBool,
    /// Whether the receiver asks for the times of packets. Atomic.
    wants_stamps: AtomicBool,
}

/// How to receive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Take {
    /// Leave it there.
    pub peek: bool,
    /// Do not mix bytes of different senders.
    pub by_sender: bool,
    /// The sender of the bytes that were taken before: with `by_sender`, none of another one are added.
    pub sender: Option<Option<Ids>>,
}

/// What was received.
#[derive(Default)]
pub struct Got {
    /// Bytes that were copied.
    pub bytes: usize,
    /// Bytes of the packet.
    pub whole: usize,
    /// The sender's ids, where they are known.
    pub from: Option<Ids>,
    /// The sender's name, if a packet had one.
    pub name: Option<Arc<Name>>,
    /// Whence and whither it came over the internet, if it did.
    pub route: Option<Route>,
    /// The descriptors, if they were taken.
    pub rights: Option<Box<Rights>>,
    /// The descriptors, if they were only looked at.
    pub copies: Vec<FileRef>,
    /// Whether no further bytes may be added to these.
    pub ended: bool,
    /// When a packet came, if the receiver asked for that then; else 0.
    pub stamp: u64,
    /// Whether there is room now for a writer that found none.
    pub feeds: bool,
    /// Whether there is nothing, and nothing will come.
    end: bool,
}

impl Got {
    /// Whether it is the end, and nothing else.
    pub fn is_end(&self) -> bool {
        self.end
    }
}

/// The state of an inbox, for poll(2).
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// There is something in it.
    pub readable: bool,
    /// See [`Inbox::shut`].
    pub shut: bool,
    /// See [`Inbox::stop_reading`].
    pub deaf: bool,
    /// A call would fail.
    pub error: bool,
    /// A stream with room.
    pub writable: bool,
    /// Packets of senders that the owner is not connected to would have to wait.
    pub full: bool,
    /// See [`Inbox::set_partner`].
    pub partner: usize,
}

/// The result of an attempt to add a packet.
pub enum Pushed {
    /// It is there.
    Yes,
    /// The sender must wait.
    Full,
    /// Nobody will receive it: the owner is closed.
    Closed,
    /// The owner reads no more.
    Shut,
    /// The owner is connected to another socket.
    Stranger,
}

/// Bytes of an inbox with its reference counts.
pub const BYTES: usize = size_of::<Inbox>() + 2 * size_of::<usize>();

impl Inbox {
    /// One for a stream whose writer may have `limit` bytes in it, charged to the writer's user.
    pub fn stream(payer: Payer, limit: usize) -> Inbox {
        Self::with(Queue::Stream(Stream::new(payer, BYTES, limit)))
    }

    /// One for packets.
    pub fn packets() -> Inbox {
        Self::with(Queue::Packets(Packets::default()))
    }

    fn with(queue: Queue) -> Inbox {
        Inbox {
            content: Mutex::new(Content {
                queue,
                shut: false,
                deaf: false,
                closed: false,
                error: None,
                starved: false,
                partner: 0,
            }),
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            pollers: WaitQueue::new(),
            wants_ids: AtomicBool::new(false),
            wants_stamps: AtomicBool::new(false),
        }
    }

    /// What stands for this inbox in [`set_partner`](Self::set_partner).
    pub fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Whether the receiver asks for the ids of senders.
    pub fn wants_ids(&self) -> bool {
        self.wants_ids.load(Relaxed)
    }

    /// Sets whether it does.
    pub fn set_wants_ids(&self, on: bool) {
        self.wants_ids.store(on, Relaxed);
    }

    /// Sets whether the receiver asks for the times of packets.
    pub fn set_wants_stamps(&self, on: bool) {
        self.wants_stamps.store(on, Relaxed);
    }

    fn wake_reader(&self) {
        if !self.readers.is_empty() {
            self.readers.wake_one();
        }
    }

    fn wake_writer(&self) {
        if !self.writers.is_empty() {
            self.writers.wake_one();
        }
    }

    /// Wakes the callers of poll(2) and the like; epolls only of sockets that look for this: the owner for input, senders for room. The
    /// owner of the open file gets a signal about `cause`, if it asks for them, unless that is room, which is for senders.
    pub(crate) fn tell(&self, cause: Cause) {
        if !self.pollers.is_empty() {
            self.pollers.wake_all_for(cause);
        }
    }

    fn wake_all(&self, cause: Option<Cause>) {
        self.readers.wake_all();
        self.writers.wake_all();
        match cause {
            Some(cause) => self.pollers.wake_all_for(cause),
            None => self.pollers.wake_all(),
        };
    }

    /// Tries to write to a stream; `None` if the caller must wait. Takes `rights` with the first byte. Takes the inbox's lock, and holds it
    /// while it copies; may sleep.
    ///
    /// # Errors
    /// `BrokenPipe` if it is shut; `Fault`, `NoBuffers` if nothing could be written.
    pub fn try_put(
        &self,
        buf: &mut IoBuf,
        from: Option<Ids>,
        rights: &mut Option<Box<Rights>>,
    ) -> Result<Option<usize>> {
        let mut c = self.content.lock();
        if c.shut {
            return Err(FsError::BrokenPipe.into());
        }
        let Queue::Stream(stream) = &mut c.queue else {
            return Err(FsError::Invalid.into());
        };
        if !stream.has_room() {
            c.starved = true;
            return Ok(None);
        }
        let empty = stream.is_empty();
        let put = stream.put(buf, from, rights);
        let (filled, room) = (!stream.is_empty(), stream.has_room());
        drop(c);
        if filled {
            if empty {
                self.wake_reader();
            }
            self.tell(Cause::Input);
        }
        // Also if nothing could be copied: no other wake-up than the one that this writer had may come.
        if room {
            self.wake_writer();
        }
        put.map(Some)
    }

    /// Tries to add a packet of the socket whose inbox has the address `sender`. `peer` says that it is the peer
    /// of a connection, which the owner always hears. Takes the packet only if it is added.
    pub fn try_push(
        &self,
        packet: &mut Option<Box<Packet>>,
        sender: usize,
        peer: bool,
    ) -> Result<Pushed> {
        let mut c = self.content.lock();
        if c.closed {
            return Ok(Pushed::Closed);
        }
        let known = peer || c.partner == sender;
        if !known && c.partner != 0 {
            return Ok(Pushed::Stranger);
        }
        if c.shut {
            return Ok(Pushed::Shut);
        }
        let Queue::Packets(packets) = &mut c.queue else {
            return Ok(Pushed::Closed);
        };
        if !known && packets.is_full() {
            return Ok(Pushed::Full);
        }
        packets.prepare()?;
        if let Some(mut packet) = packet.take() {
            if self.wants_stamps.load(Relaxed) {
                packet.stamp = realtime_ns();
            }
            packets.push(packet);
        }
        drop(c);
        self.wake_reader();
        self.tell(Cause::Input);
        Ok(Pushed::Yes)
    }

    /// Tries to receive; `None` if the caller must wait. At the end there is a [`Got`] without bytes, whose `ended` is set. Takes the inbox's
    /// lock, and holds it while it copies; may sleep.
    ///
    /// # Errors
    /// That of the inbox, once; `Fault` if nothing could be copied. Nothing was taken.
    pub fn try_take(&self, buf: &mut IoBuf, how: Take) -> Result<Option<Got>> {
        let mut c = self.content.lock();
        let packets = matches!(c.queue, Queue::Packets(_));
        let empty = c.is_empty();
        // A stream's bytes come before the error, as in Linux; packets come after it. That of a broken pipe is the next write's.
        let for_writes = !packets && c.error == Some(FsError::BrokenPipe);
        if (packets || empty)
            && !for_writes
            && let Some(error) = c.error.take()
        {
            return Err(error.into());
        }
        if empty {
            let end = Got {
                ended: true,
                end: true,
                ..Got::default()
            };
            return Ok((c.shut || c.deaf).then_some(end));
        }
        match &mut c.queue {
            Queue::Stream(_) => self.take_stream(c, buf, how).map(Some),
            Queue::Packets(packets) => {
                let got = take_packet(packets, buf, how);
                let (more, full) = (!packets.is_empty(), packets.is_full());
                drop(c);
                if more {
                    self.wake_reader();
                }
                if !full {
                    self.wake_writer();
                    self.tell(Cause::Room);
                }
                let (got, packet) = got?;
                // Frees the sender's account, and wakes senders.
                drop(packet);
                Ok(Some(got))
            }
        }
    }

    /// The part of [`try_take`](Self::try_take) for a stream that is not empty.
    fn take_stream(&self, mut c: Locked<'_>, buf: &mut IoBuf, how: Take) -> Result<Got> {
        if how.peek {
            let got = peek_stream(&c, buf, how);
            drop(c);
            self.wake_reader();
            return got;
        }
        let Queue::Stream(stream) = &mut c.queue else {
            return Err(FsError::Invalid.into());
        };
        if how.by_sender && how.sender.is_some_and(|s| s != stream.next_sender()) {
            drop(c);
            self.wake_reader();
            return Ok(Got {
                ended: true,
                ..Got::default()
            });
        }
        let tight = !stream.is_writable();
        let taken = stream.take(buf, how.by_sender);
        let relieved = tight && stream.is_writable();
        let more = !stream.is_empty();
        let feeds = relieved && core::mem::take(&mut c.starved);
        drop(c);
        if relieved {
            self.wake_writer();
            self.tell(Cause::Room);
        }
        // Also if nothing could be copied, as in `try_put`.
        if more {
            self.wake_reader();
        }
        let taken = taken?;
        Ok(Got {
            bytes: taken.bytes,
            whole: taken.bytes,
            from: taken.from,
            rights: taken.rights,
            ended: taken.ended,
            feeds,
            ..Got::default()
        })
    }

    /// Says that nothing more will come, or that nothing more will be read, and wakes all; the owner gets a signal about `cause`.
    /// Takes the inbox's lock.
    pub fn shut(&self, cause: Option<Cause>) {
        self.content.lock().shut = true;
        self.wake_all(cause);
    }

    /// Says that the owner reads no more once it has read what is in it. Takes the inbox's lock.
    pub fn stop_reading(&self) {
        self.content.lock().deaf = true;
        self.wake_all(None);
    }

    /// Whether it takes nothing any more. Takes the inbox's lock.
    pub fn is_shut(&self) -> bool {
        self.content.lock().shut
    }

    /// As [`shut`](Self::shut), and the owner's next call fails. Takes the inbox's lock.
    pub fn fail(&self, error: Option<FsError>) {
        let mut c = self.content.lock();
        c.shut = true;
        // A receiver hears of a reset, even if the writer has already heard of a broken pipe.
        c.error = match c.error {
            Some(FsError::BrokenPipe) => error.or(c.error),
            old => old.or(error),
        };
        drop(c);
        self.wake_all(Some(Cause::HangUp));
    }

    /// The owner's next call fails. Takes the inbox's lock.
    pub fn set_error(&self, error: FsError) {
        self.content.lock().error = Some(error);
        self.wake_all(None);
    }

    /// Ends the inbox and drops what is in it; returns whether that was anything. Called without a lock of this crate.
    pub fn close(&self) -> bool {
        let mut c = self.content.lock();
        c.shut = true;
        c.closed = true;
        let unread = !c.is_empty();
        drop(c);
        self.wake_all(None);
        self.flush();
        unread
    }

    /// Drops what is in it. Called without a lock of this crate.
    pub fn flush(&self) {
        loop {
            let mut c = self.content.lock();
            let (rights, packet) = match &mut c.queue {
                Queue::Stream(stream) => (stream.clear(), None),
                Queue::Packets(packets) => (None, packets.pop()),
            };
            drop(c);
            if rights.is_none() && packet.is_none() {
                // There is room now.
                self.writers.wake_all();
                self.tell(Cause::Room);
                return;
            }
            drop((rights, packet));
        }
    }

    /// Takes the error.
    pub fn take_error(&self) -> Option<FsError> {
        self.content.lock().error.take()
    }

    /// Sets the inbox of the socket that the owner is connected to: others may not send then. Wakes senders.
    pub fn set_partner(&self, partner: usize) {
        self.content.lock().partner = partner;
        self.writers.wake_all();
        self.pollers.wake_all();
    }

    /// Sets what a stream's writer may have in it, in bytes.
    pub fn set_limit(&self, limit: usize) {
        if let Queue::Stream(stream) = &mut self.content.lock().queue {
            stream.set_limit(limit);
        }
        self.wake_writer();
        self.tell(Cause::Room);
    }

    /// Sets the user of a stream's writer.
    pub fn set_payer(&self, payer: Payer) {
        if let Queue::Stream(stream) = &mut self.content.lock().queue {
            stream.set_payer(payer, BYTES);
        }
    }

    /// The state now.
    pub fn state(&self) -> State {
        let c = self.content.lock();
        let (writable, full) = match &c.queue {
            Queue::Stream(stream) => (stream.is_writable(), false),
            Queue::Packets(packets) => (true, packets.is_full()),
        };
        State {
            readable: !c.is_empty(),
            shut: c.shut,
            deaf: c.deaf,
            error: c.error.is_some(),
            writable,
            full,
            partner: c.partner,
        }
    }

    /// Bytes that can be read: of the first packet, or with `all` of all packets.
    pub fn queued(&self, all: bool) -> usize {
        match &self.content.lock().queue {
            Queue::Stream(stream) => stream.len(),
            Queue::Packets(packets) if all => packets.bytes(),
            Queue::Packets(packets) => packets.first().map_or(0, Packet::len),
        }
    }

    /// Takes descriptors, with a socket among them, out of a message.
    fn take_rights(&self) -> Option<Box<Rights>> {
        match &mut self.content.lock().queue {
            Queue::Stream(stream) => stream.take_rights(),
            Queue::Packets(packets) => packets.take_rights(),
        }
    }
}

impl Carrier for Inbox {
    fn each_file(&self, f: &mut dyn FnMut(&FileRef)) {
        let c = self.content.lock();
        let each = |rights: &Rights| rights.each(&mut *f);
        match &c.queue {
            Queue::Stream(stream) => stream.each_rights(each),
            Queue::Packets(packets) => packets.each_rights(each),
        }
    }

    fn drop_sockets(&self) {
        while let Some(rights) = self.take_rights() {
            drop(rights);
        }
    }
}

fn peek_stream(c: &Content, buf: &mut IoBuf, how: Take) -> Result<Got> {
    let Queue::Stream(stream) = &c.queue else {
        return Err(FsError::Invalid.into());
    };
    let (taken, rights) = stream.peek(buf, how.by_sender)?;
    Ok(Got {
        bytes: taken.bytes,
        whole: taken.bytes,
        from: taken.from,
        copies: rights.map_or(Ok(Vec::new()), Rights::copies)?,
        ended: true,
        ..Got::default()
    })
}

/// Copies the first packet, and takes it unless it is only looked at.
fn take_packet(
    packets: &mut Packets,
    buf: &mut IoBuf,
    how: Take,
) -> Result<(Got, Option<Box<Packet>>)> {
    let first = packets
        .first()
        .ok_or(SocketError::File(FsError::WouldBlock))?;
    let mut got = Got {
        bytes: first.copy(buf)?,
        whole: first.len(),
        from: first.from,
        name: first.name.clone(),
        stamp: first.stamp,
        route: first.route,
        ended: true,
        ..Got::default()
    };
    if how.peek {
        let rights = first.rights.as_ref();
        got.copies = rights.map_or(Ok(Vec::new()), |r| r.copies())?;
        return Ok((got, None));
    }
    let mut packet = packets.pop();
    got.rights = packet.as_mut().and_then(|packet| packet.rights.take());
    Ok((got, packet))
}
