//! Sends, receives and poll of sockets of TCP.

use hal::uio::IoBuf;
use ksync::atomic::Ordering::{Relaxed, SeqCst};
use task::wait::{Cause, Waiter};
use vfs::attr::Attr;
use vfs::error::FsError;
use vfs::lock::LockSlot;
use vfs::poll::PollMask;

use super::option;
use super::pair::State;
use super::tcp::{Phase, Side, TcpSocket};
use crate::error::{Result, SocketError};
use crate::inbox::{Got, Take};
use crate::option::Options;
use crate::socket::{Accepted, Address, Message, OPTION, Receive, Received, Socket, Type};
use crate::wait;

/// The number of TCP.
const PROTOCOL: u32 = 6;
/// Bytes of a struct tcp_info in Linux 6.1.
const INFO: usize = 232;
/// The largest piece of a stream over loopback: its MTU without heads.
const PIECE: u32 = 65_483;

impl TcpSocket {
    /// The side of a connection, after a wait for it if the socket is late.
    fn side_or_wait(&self, nonblocking: bool) -> Result<Option<&Side>> {
        if let Some(side) = self.side() {
            return Ok(Some(side));
        }
        match self.late() {
            None => Ok(None),
            Some(_) if nonblocking => Err(FsError::WouldBlock.into()),
            Some(pair) => {
                self.wait_for(&pair).map_err(|e| match e {
                    SocketError::InProgress => FsError::WouldBlock.into(),
                    e => e,
                })?;
                Ok(self.side())
            }
        }
    }

    /// The error of a write that cannot be.
    fn write_error(&self) -> SocketError {
        let error = self.inbox.take_error().unwrap_or(FsError::BrokenPipe);
        error.into()
    }

    fn send_stream(&self, buf: &mut IoBuf, message: Message) -> Result<usize> {
        if message.rights.is_some() || message.ids.is_some() {
            return Err(FsError::Invalid.into());
        }
        let side = self.side_or_wait(message.nonblocking)?;
        let Some(side) = side else {
            return Err(self.write_error());
        };
        if self.send_shut.load(SeqCst) || buf.remaining() == 0 && side.pair.is_reset() {
            return Err(self.write_error());
        }
        let how = (message.nonblocking, self.base.options.deadline(true));
        match wait::put_all(side.peer(), buf, None, &mut None, how) {
            (total, Ok(())) => Ok(total),
            (total, Err(SocketError::File(FsError::BrokenPipe))) => {
                if side.pair.is_reset() || self.send_shut.load(SeqCst) {
                    return match total {
                        0 => Err(self.write_error()),
                        total => Ok(total),
                    };
                }
                // The other side is closed, and had read all. As in Linux, this write is answered by a reset, and the next one fails.
                side.pair.reset(1 - side.at);
                Ok(total + buf.remaining())
            }
            (0, Err(e)) => Err(e),
            (total, Err(_)) => Ok(total),
        }
    }

    fn get(&self, buf: &mut IoBuf, take: Take, how: Receive) -> Result<Got> {
        let got = match self.inbox.try_take(buf, take)? {
            Some(got) => got,
            None if how.nonblocking => return Err(FsError::WouldBlock.into()),
            None => wait::get(&self.inbox, buf, take, self.base.options.deadline(false))?,
        };
        if got.feeds
            && let Some(side) = self.side()
        {
            side.peer().tell(Cause::Relief);
        }
        Ok(got)
    }

    /// As [`get`](Self::get), and drops what it takes, `most` bytes.
    fn drop_bytes(&self, most: usize, take: Take, how: Receive) -> Result<Got> {
        let mut scratch = [0; 512];
        let mut total = Got::default();
        while total.bytes < most {
            let n = scratch.len().min(most - total.bytes);
            let how = Receive {
                nonblocking: how.nonblocking || total.bytes > 0,
                ..how
            };
            match self.get(&mut IoBuf::Fill(&mut scratch[..n]), take, how) {
                Ok(got) => {
                    total.bytes += got.bytes;
                    total.ended = got.ended;
                    if got.ended {
                        break;
                    }
                }
                Err(e) if total.bytes == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(total)
    }

    fn receive_stream(&self, buf: &mut IoBuf, how: Receive) -> Result<Received> {
        if self.side_or_wait(how.nonblocking)?.is_none() {
            let error = self.inbox.take_error().unwrap_or(FsError::NotConnected);
            return Err(error.into());
        }
        let take = Take {
            peek: how.peek,
            ..Take::default()
        };
        let mut total = 0;
        loop {
            let got = match how.discard && !how.peek && buf.remaining() > 0 {
                true => self.drop_bytes(buf.remaining(), take, how),
                false => self.get(buf, take, how),
            };
            let ended = match got {
                Ok(got) => {
                    total += got.bytes;
                    got.ended || how.discard
                }
                Err(e) if total == 0 => return Err(e),
                Err(_) => true,
            };
            if ended || !how.all || how.peek || buf.remaining() == 0 {
                break;
            }
        }
        Ok(Received {
            bytes: total,
            whole: total,
            ..Received::default()
        })
    }

    /// Registers a waiter with all that may change what poll finds.
    fn listen_to(&self, w: &mut Waiter) {
        w.listen(&self.base.changes);
        w.listen_except(&self.inbox.pollers, Cause::Room);
        if let Some(listener) = self.listener.get() {
            w.listen(&listener.queue.pollers);
        }
        if let Some(side) = self.side() {
            // What this socket sends is no news for itself.
            w.listen_except(&side.peer().pollers, Cause::Input);
        }
    }

    /// What poll finds on a socket without a connection.
    fn poll_idle(&self) -> PollMask {
        if let Some(listener) = self.listening() {
            return match listener.queue.is_ready() {
                true => PollMask::READ,
                false => PollMask::NONE,
            };
        }
        let link = self.link.lock();
        let (late, failed) = (link.late.is_some(), link.phase == Phase::Connecting);
        drop(link);
        let mut mask = PollMask::NONE;
        if late {
            return mask;
        }
        mask |= PollMask::WRITE | PollMask::HUP;
        if failed {
            mask |= PollMask::READ | PollMask::RDHUP;
        }
        if self.inbox.state().error {
            mask |= PollMask::ERR;
        }
        mask
    }

    fn poll_side(&self, side: &Side) -> PollMask {
        let own = self.inbox.state();
        let closed = side.state() == State::Close;
        let (reads, writes) = (
            own.shut || own.deaf || closed,
            self.send_shut.load(Relaxed) || side.pair.is_reset(),
        );
        let mut mask = PollMask::NONE;
        if own.error {
            mask |= PollMask::ERR;
        }
        if closed || reads && writes {
            mask |= PollMask::HUP;
        }
        if reads {
            mask |= PollMask::READ | PollMask::RDHUP;
        }
        if own.readable {
            mask |= PollMask::READ;
        }
        let other = side.peer().state();
        // A write to a side that is closed does not wait.
        if writes || other.writable || other.shut {
            mask |= PollMask::WRITE;
        }
        mask
    }

    /// A struct tcp_info: the state, and what is constant over loopback.
    fn info(&self, out: &mut [u8; OPTION]) -> usize {
        out.fill(0);
        out[0] = self.state() as u8;
        let mut word = |at: usize, value: u32| {
            out[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        };
        // Timeout of a repetition, in microseconds; pieces that are sent and received; window and path.
        word(8, 200_000);
        word(16, PIECE);
        word(20, PIECE);
        word(80, 10);
        word(84, PIECE);
        word(60, 65_535);
        INFO
    }
}

impl Socket for TcpSocket {
    fn domain(&self) -> u32 {
        self.base.family.number().into()
    }

    fn kind(&self) -> Type {
        Type::Stream
    }

    fn protocol(&self) -> u32 {
        PROTOCOL
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
        self.link.lock().local.address(self.base.family)
    }

    fn peer_name(&self) -> Result<Address> {
        let side = self.side().ok_or(FsError::NotConnected)?;
        if side.state() == State::Close {
            return Err(FsError::NotConnected.into());
        }
        let peer = side.pair.end(1 - side.at).at;
        Ok(peer.address(self.base.family))
    }

    fn shutdown(&self, reads: bool, writes: bool) -> Result<()> {
        self.shutdown(reads, writes)
    }

    fn send(&self, buf: &mut IoBuf, message: Message) -> Result<usize> {
        self.send_stream(buf, message)
    }

    fn receive(&self, buf: &mut IoBuf, how: Receive) -> Result<Received> {
        self.receive_stream(buf, how)
    }

    fn poll(&self, waiter: Option<&mut Waiter>) -> PollMask {
        if let Some(w) = waiter {
            self.listen_to(w);
        }
        match self.side() {
            Some(side) => self.poll_side(side),
            None => self.poll_idle(),
        }
    }

    fn listen_for_signals(&self, waiter: &mut Waiter) {
        waiter.listen_except(&self.inbox.pollers, Cause::Room);
        if let Some(listener) = self.listener.get() {
            waiter.listen(&listener.queue.pollers);
        }
    }

    /// Bytes of a stream have no times.
    fn stamp_packets(&self, _: bool) {}

    fn options(&self) -> &Options {
        &self.base.options
    }

    fn send_limit(&self) -> usize {
        self.send_limit.load(Relaxed)
    }

    fn set_send_limit(&self, bytes: usize) {
        self.set_send_limit(bytes);
    }

    fn listens(&self) -> bool {
        self.listening().is_some()
    }

    fn take_error(&self) -> Option<SocketError> {
        self.side();
        self.inbox.take_error().map(SocketError::File)
    }

    fn queued(&self) -> Result<usize> {
        if self.listens() {
            return Err(FsError::Invalid.into());
        }
        Ok(self.inbox.queued(true))
    }

    /// None: what was sent is with the other side, which is as if it were acknowledged.
    fn unreceived(&self) -> Result<usize> {
        Ok(0)
    }

    fn set_option(&self, level: i32, option: u32, value: &[u8]) -> Result<()> {
        let bound = self.link.lock().place.is_some();
        self.base.set_option(level, option, value, bound)
    }

    fn option(&self, level: i32, option: u32, out: &mut [u8; OPTION]) -> Result<usize> {
        if (level, option) == option::INFO {
            return Ok(self.info(out));
        }
        let of = (self.base.family, Type::Stream);
        self.base.inet.show(level, option, out, of)
    }

    fn attr(&self) -> Attr {
        self.base.attr()
    }

    fn locks(&self) -> &LockSlot {
        &self.base.locks
    }

    fn close(&self) {
        self.close();
    }
}
