//! The bytes on their way to a stream socket, with what was sent along with them.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use cred::{MemoryCharge, Payer};
use hal::uio::IoBuf;
use vfs::error::FsError;
use vfs::pipe::ring::Ring;

use crate::error::{Result, SocketError};
use crate::ids::Ids;
use crate::rights::Rights;

/// Bytes that count for a segment, against the limit.
const SEGMENT: usize = 256;

/// A run of bytes of one sender.
struct Segment {
    len: usize,
    from: Option<Ids>,
    /// Descriptors that came with them, until the first byte is received. A boundary follows the last byte then.
    rights: Option<Box<Rights>>,
}

/// A queue of bytes. Without segments all bytes are plain: from a sender that is not known, and without descriptors.
pub struct Stream {
    ring: Ring,
    segments: VecDeque<Segment>,
    /// For the room of the segments, to the writer's user.
    charge: MemoryCharge,
}

/// What a receive has taken from a stream.
#[derive(Default)]
pub struct Taken {
    /// Bytes.
    pub bytes: usize,
    /// Their sender, if any bytes were taken and it is known.
    pub from: Option<Ids>,
    /// The descriptors.
    pub rights: Option<Box<Rights>>,
    /// Whether no further bytes may be added to these.
    pub ended: bool,
}

impl Stream {
    /// An empty one, for `limit` bytes, charged with `around` bytes besides to the user of the writer.
    pub fn new(payer: Payer, around: usize, limit: usize) -> Stream {
        let mut ring = Ring::new(limit);
        ring.begin(payer, around, limit);
        Stream {
            ring,
            segments: VecDeque::new(),
            charge: MemoryCharge::new(payer, 0),
        }
    }

    /// Changes the limit, in bytes. Without memory it stays.
    pub fn set_limit(&mut self, limit: usize) {
        let _ = self.ring.limit_to(limit);
    }

    /// Charges it to another user, with `around` bytes besides.
    pub fn set_payer(&mut self, payer: Payer, around: usize) {
        let limit = self.ring.limit();
        self.ring.begin(payer, around, limit);
        self.charge = MemoryCharge::new(payer, self.charge.bytes());
    }

    /// Bytes that can be read.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// What counts against the limit.
    pub fn used(&self) -> usize {
        self.ring.len() + self.segments.len() * SEGMENT
    }

    /// Whether anything can be written.
    pub fn has_room(&self) -> bool {
        self.used() < self.ring.limit()
    }

    /// Whether so little is in it that poll(2) reports room, and writers are woken: a quarter of the limit, as in Linux.
    pub fn is_writable(&self) -> bool {
        self.used() * 4 <= self.ring.limit()
    }

    /// Writes bytes from `buf` until it or the room is used up, and with the first of them `rights`, which are taken. Returns the bytes. May wait
    /// for memory.
    ///
    /// # Errors
    /// `Fault`, `NoBuffers`; nothing was written.
    pub fn put(
        &mut self,
        buf: &mut IoBuf,
        from: Option<Ids>,
        rights: &mut Option<Box<Rights>>,
    ) -> Result<usize> {
        let plain = from.is_none() && rights.is_none() && self.segments.is_empty();
        if !plain {
            self.segments
                .try_reserve(2)
                .map_err(|_| SocketError::NoBuffers)?;
            self.charge
                .resize(self.segments.capacity() * size_of::<Segment>());
        }
        let before = self.ring.len();
        let n = self.ring.fill(buf).map_err(no_buffers)?;
        if plain || n == 0 {
            return Ok(n);
        }
        if self.segments.is_empty() && before > 0 {
            self.push(before, None, None);
        }
        self.push(n, from, rights.take());
        Ok(n)
    }

    /// Adds a segment, for which there is room, or makes the last one longer.
    fn push(&mut self, len: usize, from: Option<Ids>, rights: Option<Box<Rights>>) {
        match self.segments.back_mut() {
            Some(last) if rights.is_none() && last.rights.is_none() && last.from == from => {
                last.len += len;
            }
            _ => self.segments.push_back(Segment { len, from, rights }),
        }
    }

    /// The sender of the next byte.
    pub fn next_sender(&self) -> Option<Ids> {
        self.segments.front()?.from
    }

    /// How many bytes one receive may take, and whether a boundary follows these. `by_sender`: bytes of different senders are not
    /// mixed.
    fn span(&self, by_sender: bool) -> (usize, bool) {
        let Some(first) = self.segments.front() else {
            return (self.ring.len(), false);
        };
        let mut span = 0;
        for s in &self.segments {
            if by_sender && s.from != first.from {
                return (span, true);
            }
            span += s.len;
            if s.rights.is_some() {
                return (span, true);
            }
        }
        (span, false)
    }

    /// Takes bytes into `buf`: up to its end, up to a boundary, or all.
    ///
    /// # Errors
    /// `Fault` if nothing could be copied; nothing was taken.
    pub fn take(&mut self, buf: &mut IoBuf, by_sender: bool) -> Result<Taken> {
        if self.segments.is_empty() {
            let bytes = self.ring.drain(buf)?;
            return Ok(Taken {
                bytes,
                ..Taken::default()
            });
        }
        let (span, boundary) = self.span(by_sender);
        let asked = buf.remaining();
        if boundary {
            buf.limit(span);
        }
        let mut taken = Taken {
            from: self.next_sender(),
            bytes: self.ring.drain(buf)?,
            ..Taken::default()
        };
        taken.ended = boundary && (taken.bytes == span || taken.bytes < asked);
        let mut left = taken.bytes;
        while left > 0
            && let Some(first) = self.segments.front_mut()
        {
            let n = left.min(first.len);
            left -= n;
            first.len -= n;
            // At most one segment of the span has any.
            taken.rights = taken.rights.take().or(first.rights.take());
            if first.len == 0 {
                self.segments.pop_front();
            }
        }
        taken.ended |= taken.rights.is_some();
        Ok(taken)
    }

    /// As [`take`](Self::take), and takes nothing. The second value: the descriptors that belong to the bytes.
    ///
    /// # Errors
    /// `Fault`.
    pub fn peek(&self, buf: &mut IoBuf, by_sender: bool) -> Result<(Taken, Option<&Rights>)> {
        let (span, boundary) = self.span(by_sender);
        if boundary {
            buf.limit(span);
        }
        let bytes = self.ring.copy(0, buf)?;
        let mut end = 0;
        let mut rights = None;
        for s in &self.segments {
            if end >= bytes {
                break;
            }
            end += s.len;
            rights = s.rights.as_deref();
            if rights.is_some() {
                break;
            }
        }
        let taken = Taken {
            bytes,
            from: self.next_sender(),
            rights: None,
            ended: true,
        };
        Ok((taken, rights))
    }

    /// Calls `f` with all descriptors.
    pub fn each_rights(&self, f: impl FnMut(&Rights)) {
        self.segments
            .iter()
            .filter_map(|s| s.rights.as_deref())
            .for_each(f);
    }

    /// Takes the first descriptors with a socket among them.
    pub fn take_rights(&mut self) -> Option<Box<Rights>> {
        let has = |s: &&mut Segment| s.rights.as_ref().is_some_and(|r| r.has_sockets());
        self.segments.iter_mut().find(has)?.rights.take()
    }

    /// Drops all bytes, ends the charge, and takes the next descriptors, if there are any; to be called until there are none.
    pub fn clear(&mut self) -> Option<Box<Rights>> {
        self.ring.release();
        while let Some(s) = self.segments.pop_front() {
            if s.rights.is_some() {
                return s.rights;
            }
        }
        self.segments = VecDeque::new();
        self.charge = MemoryCharge::NONE;
        None
    }
}

/// Want of memory for what is sent has an error of its own.
fn no_buffers(e: FsError) -> SocketError {
    match e {
        FsError::NoMemory => SocketError::NoBuffers,
        e => e.into(),
    }
}
