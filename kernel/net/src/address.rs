//! Types of sockets and their addresses.

use alloc::vec::Vec;

use vfs::error::FsError;

use crate::error::{Result, SocketError};

/// The number of the family.
pub const AF_UNIX: u16 = 1;
/// Bytes of the family's number.
const FAMILY: usize = 2;
/// The longest address that a program may pass.
const LONGEST: usize = 110;
/// The type of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Type {
    /// Bytes (SOCK_STREAM).
    Stream = 1,
    /// Packets without a connection (SOCK_DGRAM).
    Datagram = 2,
    /// Packets as the protocol has them (SOCK_RAW).
    Raw = 3,
    /// Packets over a connection (SOCK_SEQPACKET).
    SeqPacket = 5,
}

impl Type {
    /// Whether such a socket sends over a connection alone.
    pub fn connects(self) -> bool {
        matches!(self, Type::Stream | Type::SeqPacket)
    }
}

/// A socket's address: the family and what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(pub Vec<u8>);

/// The name of a socket, not empty in an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// A path.
    Path(Vec<u8>),
    /// The bytes after the leading zero.
    Abstract(Vec<u8>),
}

/// The family of an address, if it is long enough for one.
pub fn family(address: &[u8]) -> Option<u16> {
    Some(u16::from_le_bytes([*address.first()?, *address.get(1)?]))
}

impl Name {
    /// The name in an address; `None` if it has no name.
    ///
    /// # Errors
    /// `Invalid`, `NoMemory`.
    pub fn parse(address: &[u8]) -> Result<Option<Name>> {
        if family(address) != Some(AF_UNIX) || address.len() > LONGEST {
            return Err(FsError::Invalid.into());
        }
        let text = &address[FAMILY..];
        Ok(match text.first() {
            None => None,
            Some(0) => Some(Name::Abstract(copied(&text[1..])?)),
            Some(_) => {
                let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
                Some(Name::Path(copied(&text[..end])?))
            }
        })
    }

    /// The address of a socket with this name, or of one without.
    pub fn address(name: Option<&Name>) -> Address {
        let mut out = Vec::new();
        out.extend_from_slice(&AF_UNIX.to_le_bytes());
        match name {
            None => {}
            Some(Name::Path(path)) => {
                out.extend_from_slice(path);
                out.push(0);
            }
            Some(Name::Abstract(text)) => {
                out.push(0);
                out.extend_from_slice(text);
            }
        }
        Address(out)
    }
}

/// A copy.
///
/// # Errors
/// `NoMemory`.
pub fn copied(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())
        .map_err(|_| SocketError::File(FsError::NoMemory))?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}
