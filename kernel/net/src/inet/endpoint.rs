//! Internet addresses and ports, and the struct sockaddr of both families.
//!
//! An address of IPv4 is kept as the address of IPv6 that stands for it, `::ffff:a.b.c.d`, so that all below is written once.

use alloc::vec::Vec;

use vfs::error::FsError;

use crate::address::{Address, family};
use crate::error::{Result, SocketError};

/// The number of IPv4.
pub const AF_INET: u16 = 2;
/// The number of IPv6.
pub const AF_INET6: u16 = 10;
/// The number of no family.
pub const AF_UNSPEC: u16 = 0;
/// Bytes of a struct sockaddr_in.
const SHORT: usize = 16;
/// Bytes of a struct sockaddr_in6, and the fewest that a program may pass.
const LONG: usize = 28;
const LONG_LEAST: usize = 24;

/// The family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// AF_INET.
    V4,
    /// AF_INET6.
    V6,
}

/// An address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ip(pub [u8; 16]);

impl Ip {
    /// `::`.
    pub const ANY6: Ip = Ip([0; 16]);
    /// `0.0.0.0`.
    pub const ANY4: Ip = Ip::v4([0; 4]);
    /// `127.0.0.1`.
    pub const LOOPBACK4: Ip = Ip::v4([127, 0, 0, 1]);
    /// `::1`.
    pub const LOOPBACK6: Ip = Ip(1u128.to_be_bytes());

    /// An address of IPv4.
    pub const fn v4([a, b, c, d]: [u8; 4]) -> Ip {
        Ip([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, a, b, c, d])
    }

    /// The bytes of an address of IPv4.
    pub fn as_v4(self) -> Option<[u8; 4]> {
        match self.0 {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }

    /// Whether it stands for all addresses of its family.
    pub fn is_any(self) -> bool {
        self == Ip::ANY6 || self == Ip::ANY4
    }

    /// Whether it is an address of this machine: today, of the loopback interface.
    pub fn is_local(self) -> bool {
        match self.as_v4() {
            Some([first, ..]) => first == 127,
            None => self == Ip::LOOPBACK6,
        }
    }

    /// The address that a packet to this one, which is local, comes from if its socket has none.
    pub fn source(self) -> Ip {
        match self.as_v4() {
            Some(_) => Ip::LOOPBACK4,
            None => Ip::LOOPBACK6,
        }
    }

    /// Where a connect to this address leads: to the machine itself if it is the address of all.
    ///
    /// # Errors
    /// `Unreachable` if it is no address of this machine.
    pub fn destination(self) -> Result<Ip> {
        let ip = if self.is_any() { self.source() } else { self };
        match ip.is_local() {
            true => Ok(ip),
            false => Err(SocketError::Unreachable),
        }
    }
}

impl Family {
    /// The address of all.
    pub fn any(self) -> Ip {
        match self {
            Family::V4 => Ip::ANY4,
            Family::V6 => Ip::ANY6,
        }
    }

    /// The family's number.
    pub fn number(self) -> u16 {
        match self {
            Family::V4 => AF_INET,
            Family::V6 => AF_INET6,
        }
    }
}

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// The address.
    pub ip: Ip,
    /// The port; 0 for none.
    pub port: u16,
}

impl Endpoint {
    /// A number by which one of several sockets is chosen for a peer: the same for the same peer.
    pub fn choice(self) -> usize {
        let bytes = self.ip.0.iter();
        let ip = bytes.fold(0u32, |h, &b| h.rotate_left(5) ^ u32::from(b));
        let mixed = (ip ^ u32::from(self.port)).wrapping_mul(0x9e37_79b1);
        (mixed >> 16) as usize
    }

    /// The endpoint in a struct sockaddr of this family. With `foreign` a socket of IPv6 takes addresses of IPv4, too.
    ///
    /// # Errors
    /// `Invalid` if it is too short; `WrongFamily`.
    pub fn parse(own: Family, raw: &[u8], foreign: bool) -> Result<Endpoint> {
        let number = family(raw).ok_or(FsError::Invalid)?;
        let as_v4 = own == Family::V4 || foreign && number == AF_INET;
        let least = if as_v4 { SHORT } else { LONG_LEAST };
        if raw.len() < least {
            return Err(FsError::Invalid.into());
        }
        let port = u16::from_be_bytes([raw[2], raw[3]]);
        let expected = if as_v4 { AF_INET } else { AF_INET6 };
        if number != expected {
            return Err(SocketError::WrongFamily);
        }
        let mut ip = Ip([0; 16]);
        if as_v4 {
            ip = Ip::v4([raw[4], raw[5], raw[6], raw[7]]);
        } else {
            ip.0.copy_from_slice(&raw[8..24]);
        }
        Ok(Endpoint { ip, port })
    }

    /// As a struct sockaddr of this family. In one of IPv4 an address of IPv6 is all zeros.
    pub fn address(self, family: Family) -> Address {
        let mut raw = Vec::new();
        raw.extend_from_slice(&family.number().to_le_bytes());
        raw.extend_from_slice(&self.port.to_be_bytes());
        match family {
            Family::V4 => {
                raw.extend_from_slice(&self.ip.as_v4().unwrap_or_default());
                raw.resize(SHORT, 0);
            }
            Family::V6 => {
                // Flow, address, scope.
                raw.resize(8, 0);
                raw.extend_from_slice(&self.ip.0);
                raw.resize(LONG, 0);
            }
        }
        Address(raw)
    }
}
