//! Messages of netlink, as they are read and written: a head, a structure of the kind of message, and attributes.
//!
//! A message begins at a multiple of four bytes, and so does an attribute. Numbers are in the machine's order.

use alloc::vec::Vec;

use crate::error::{Result, SocketError};

/// Bytes of a message's head: a struct nlmsghdr.
pub const HEAD: usize = 16;
/// Bytes of an attribute's head: a struct nlattr.
const ATTRIBUTE: usize = 4;
/// The bits of an attribute's number that say what it is.
const KIND: u16 = 0x3fff;

/// Flags of a message, named as in netlink(7) without their prefix `NLM_F_`.
pub mod flag {
    /// It asks for something.
    pub const REQUEST: u16 = 1;
    /// Others of the same answer follow, and an end.
    pub const MULTI: u16 = 2;
    /// The sender asks for a reply even if there is no error.
    pub const ACK: u16 = 4;
    /// The rows of an answer were chosen as the request says.
    pub const FILTERED: u16 = 0x20;
    /// The head of the message alone is repeated.
    pub const CAPPED: u16 = 0x100;
    /// Attributes that explain an error follow.
    pub const TEXT: u16 = 0x200;
    /// Any of these asks for all rows of a table.
    pub const DUMP: u16 = 0x300;
}

/// Kinds of messages of all protocols.
pub mod kind {
    /// An error, or with the error 0 the reply to [`super::flag::ACK`].
    pub const ERROR: u16 = 2;
    /// The end of an answer.
    pub const DONE: u16 = 3;
    /// The first kind that a protocol has itself.
    pub const FIRST: u16 = 16;
}

/// The attribute of an error, or of an end, that is a text about it.
pub const TEXT: u16 = 1;

/// A request.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The kind.
    pub kind: u16,
    /// The flags.
    pub flags: u16,
    /// A number that the answer has, too.
    pub sequence: u32,
    /// What follows the head.
    pub body: &'a [u8],
    /// All of it.
    pub whole: &'a [u8],
}

/// What the head of a message has that answers a request.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Its flags.
    pub flags: u16,
    /// The request's number.
    pub sequence: u32,
    /// The port of the socket that has asked.
    pub port: u32,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error.
    pub error: SocketError,
    /// What a program may print, if it asks for that.
    pub text: Option<&'static str>,
}

impl<E: Into<SocketError>> From<E> for Refusal {
    fn from(error: E) -> Refusal {
        Refusal {
            error: error.into(),
            text: None,
        }
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let part = bytes.get(at..at + 2)?;
    part.try_into().ok().map(u16::from_ne_bytes)
}

/// The word at an offset, if there is one.
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let part = bytes.get(at..at + 4)?;
    part.try_into().ok().map(u32::from_ne_bytes)
}

/// The requests that a program has sent at once. They end where one does not say a length that fits.
pub fn requests(mut bytes: &[u8]) -> impl Iterator<Item = Request<'_>> {
    core::iter::from_fn(move || {
        let len = word(bytes, 0)? as usize;
        let whole = bytes.get(..len).filter(|_| len >= HEAD)?;
        bytes = &bytes[len.next_multiple_of(4).min(bytes.len())..];
        Some(Request {
            kind: half(whole, 4)?,
            flags: half(whole, 6)?,
            sequence: word(whole, 8)?,
            body: &whole[HEAD..],
            whole,
        })
    })
}

/// The attributes behind the first `head` bytes of a body: number and contents. They end where one does not say a length that fits.
pub fn attributes(body: &[u8], head: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(head.next_multiple_of(4)..).unwrap_or_default();
    core::iter::from_fn(move || {
        let len = usize::from(half(rest, 0)?);
        let kind = half(rest, 2)? & KIND;
        let data = rest.get(ATTRIBUTE..len)?;
        rest = &rest[len.next_multiple_of(4).min(rest.len())..];
        Some((kind, data))
    })
}

/// The contents of the last attribute with this number.
pub fn attribute(body: &[u8], head: usize, kind: u16) -> Option<&[u8]> {
    attributes(body, head)
        .filter(|(found, _)| *found == kind)
        .last()
        .map(|(_, data)| data)
}

/// The word in such an attribute.
///
/// # Errors
/// `OutOfRange` if it is shorter.
pub fn word_attribute(body: &[u8], head: usize, kind: u16) -> Result<Option<u32>> {
    match attribute(body, head, kind) {
        None => Ok(None),
        Some(data) => word(data, 0).map(Some).ok_or(SocketError::OutOfRange),
    }
}

/// A datagram that is being written. What does not fit into its room is left out, and [`fits`](Self::fits) says so.
pub struct Writer {
    bytes: Vec<u8>,
    fits: bool,
}

/// Where a message or an attribute begins whose length is not known yet.
#[must_use]
pub struct Open(usize);

impl Writer {
    /// An empty one with room for so many bytes.
    ///
    /// # Errors
    /// `NoBuffers`.
    pub fn new(room: usize) -> Result<Writer> {
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(room)
            .map_err(|_| SocketError::NoBuffers)?;
        Ok(Writer { bytes, fits: true })
    }

    /// The bytes until now.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether all had room.
    pub fn fits(&self) -> bool {
        self.fits
    }

    /// Takes back what was written behind the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
        self.fits = true;
    }

    /// Adds bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        if self.fits && bytes.len() <= self.bytes.capacity() - self.bytes.len() {
            self.bytes.extend_from_slice(bytes);
        } else {
            self.fits = false;
        }
    }

    /// Adds zeroes up to the next multiple of four bytes.
    pub fn pad(&mut self) {
        let missing = self.bytes.len().next_multiple_of(4) - self.bytes.len();
        self.put(&[0; 3][..missing]);
    }

    /// Begins a message.
    pub fn begin(&mut self, kind: u16, answer: Answer) -> Open {
        let open = Open(self.bytes.len());
        self.put(&[0; 4]);
        self.put(&kind.to_ne_bytes());
        self.put(&answer.flags.to_ne_bytes());
        self.put(&answer.sequence.to_ne_bytes());
        self.put(&answer.port.to_ne_bytes());
        open
    }

    /// Ends it: writes its length.
    pub fn end(&mut self, Open(at): Open) {
        let len = (self.bytes.len() - at) as u32;
        if let Some(field) = self.bytes.get_mut(at..at + 4) {
            field.copy_from_slice(&len.to_ne_bytes());
        }
        self.pad();
    }

    /// Adds an attribute.
    pub fn attribute(&mut self, kind: u16, data: &[u8]) {
        let len = (ATTRIBUTE + data.len()) as u16;
        self.put(&len.to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(data);
        self.pad();
    }

    /// Adds an attribute that is a word.
    pub fn word(&mut self, kind: u16, word: u32) {
        self.attribute(kind, &word.to_ne_bytes());
    }

    /// Adds an attribute that is a text, with its NUL.
    pub fn text(&mut self, kind: u16, text: &[u8]) {
        let len = (ATTRIBUTE + text.len() + 1) as u16;
        self.put(&len.to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(text);
        self.put(&[0]);
        self.pad();
    }
}
