//! What setsockopt(2) sets at the levels of the internet protocols.
//!
//! Between two sockets of one machine there are no packets, nothing is lost, and no side vanishes. So most of these settings have nothing to do:
//! bytes arrive at once, whether TCP_NODELAY is set or TCP_CORK, and no timeout of TCP ever runs out, but that of a connect without room. They are kept and shown.

use ksync::atomic::{AtomicI32, Ordering::Relaxed};
use vfs::error::FsError;

use super::endpoint::Family;
use crate::address::Type;
use crate::error::{Result, SocketError};

/// The level of IPv4.
pub const IP: i32 = 0;
/// The level of TCP.
pub const TCP: i32 = 6;
/// The level of UDP.
pub const UDP: i32 = 17;
/// The level of UDP-Lite.
pub const UDPLITE: i32 = 136;
/// The level of IPv6.
pub const IPV6: i32 = 41;

/// An option that is a number.
struct Number {
    level: i32,
    option: u32,
    least: i32,
    most: i32,
    default: i32,
}

const fn number(level: i32, option: u32, range: (i32, i32), default: i32) -> Number {
    Number {
        level,
        option,
        least: range.0,
        most: range.1,
        default,
    }
}

/// A switch: every value but 0 is 1.
const SWITCH: (i32, i32) = (i32::MIN, i32::MAX);
/// IP_TOS.
pub const TOS: (i32, u32) = (IP, 1);
/// IP_PKTINFO.
pub const PKTINFO: (i32, u32) = (IP, 8);
/// IP_RECVTTL.
pub const RECVTTL: (i32, u32) = (IP, 12);
/// IP_RECVTOS.
pub const RECVTOS: (i32, u32) = (IP, 13);
/// IP_TTL.
pub const TTL: (i32, u32) = (IP, 2);
/// IPV6_V6ONLY.
pub const V6ONLY: (i32, u32) = (IPV6, 26);
/// IPV6_RECVPKTINFO.
pub const RECVPKTINFO6: (i32, u32) = (IPV6, 49);
/// IPV6_RECVHOPLIMIT.
pub const RECVHOPLIMIT: (i32, u32) = (IPV6, 51);
/// IPV6_RECVTCLASS.
pub const RECVTCLASS: (i32, u32) = (IPV6, 66);
/// IPV6_TCLASS.
pub const TCLASS: (i32, u32) = (IPV6, 67);
/// IPV6_UNICAST_HOPS.
pub const HOPS: (i32, u32) = (IPV6, 16);
/// TCP_INFO.
pub const INFO: (i32, u32) = (TCP, 11);
/// TCP_SYNCNT.
pub const SYNCNT: (i32, u32) = (TCP, 7);

const NUMBERS: &[Number] = &[
    number(IP, TOS.1, (0, 255), 0),
    number(IP, TTL.1, (1, 255), 64),
    number(IP, PKTINFO.1, SWITCH, 0),
    number(IP, 10, (0, 5), 1),
    // IP_RECVERR and its like: nothing is ever in the queue of errors.
    number(IP, 11, SWITCH, 0),
    number(IP, RECVTTL.1, SWITCH, 0),
    number(IP, RECVTOS.1, SWITCH, 0),
    number(IPV6, HOPS.1, (0, 255), 64),
    // IPV6_MULTICAST_HOPS.
    number(IPV6, 18, (-1, 255), 1),
    number(IPV6, 23, (0, 5), 1),
    number(IPV6, 25, SWITCH, 0),
    number(IPV6, V6ONLY.1, SWITCH, 0),
    number(IPV6, RECVPKTINFO6.1, SWITCH, 0),
    number(IPV6, RECVHOPLIMIT.1, SWITCH, 0),
    number(IPV6, RECVTCLASS.1, SWITCH, 0),
    number(IPV6, TCLASS.1, (0, 255), 0),
    // TCP_NODELAY, TCP_MAXSEG, TCP_CORK.
    number(TCP, 1, SWITCH, 0),
    number(TCP, 2, (88, 32_767), 536),
    number(TCP, 3, SWITCH, 0),
    // TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_SYNCNT, TCP_LINGER2.
    number(TCP, 4, (1, 32_767), 7200),
    number(TCP, 5, (1, 32_767), 75),
    number(TCP, 6, (1, 127), 9),
    number(TCP, SYNCNT.1, (1, 127), 6),
    number(TCP, 8, (-1, 120), 60),
    // TCP_DEFER_ACCEPT, TCP_QUICKACK, TCP_USER_TIMEOUT, TCP_FASTOPEN of a listener.
    number(TCP, 9, (0, i32::MAX), 0),
    number(TCP, 12, SWITCH, 1),
    number(TCP, 18, (0, i32::MAX), 0),
    number(TCP, 23, (0, i32::MAX), 0),
];

/// The settings of one socket. Each is atomic.
pub struct InetOptions {
    values: [AtomicI32; NUMBERS.len()],
}

impl Default for InetOptions {
    fn default() -> Self {
        InetOptions {
            values: core::array::from_fn(|i| AtomicI32::new(NUMBERS[i].default)),
        }
    }
}

fn index(of: (i32, u32)) -> Option<usize> {
    NUMBERS.iter().position(|n| (n.level, n.option) == of)
}

/// Whether a socket has options of this level.
fn has_level(level: i32, family: Family, kind: Type) -> bool {
    match level {
        IP => true,
        IPV6 => family == Family::V6,
        TCP => kind == Type::Stream,
        _ => false,
    }
}

/// The number that a program passes: an int, or at the level of IPv4 a byte.
fn word(level: i32, value: &[u8]) -> Result<i32> {
    match (value, level) {
        ([a, b, c, d, ..], _) => Ok(i32::from_ne_bytes([*a, *b, *c, *d])),
        ([byte, ..], IP) => Ok(i32::from(*byte)),
        _ => Err(FsError::Invalid.into()),
    }
}

impl InetOptions {
    /// The value of an option of the list.
    pub fn get(&self, of: (i32, u32)) -> i32 {
        index(of).map_or(0, |at| self.values[at].load(Relaxed))
    }

    /// Whether a switch is on.
    pub fn is_on(&self, of: (i32, u32)) -> bool {
        self.get(of) != 0
    }

    /// Sets an option.
    ///
    /// # Errors
    /// `NoOption`; `Invalid` for a value that it cannot have.
    pub fn set(&self, level: i32, option: u32, value: &[u8], of: (Family, Type)) -> Result<()> {
        let at = index((level, option)).ok_or(SocketError::NoOption)?;
        if !has_level(level, of.0, of.1) {
            return Err(SocketError::NoOption);
        }
        let n = &NUMBERS[at];
        let word = word(level, value)?;
        let value = match word {
            word if (n.least, n.most) == SWITCH => i32::from(word != 0),
            // As in Linux, of a type of service the lowest byte counts.
            word if (level, option) == TOS => word & 0xff,
            -1 if [TTL, HOPS, TCLASS, (IPV6, 18)].contains(&(level, option)) => n.default,
            word if (n.least..=n.most).contains(&word) => word,
            // As in Linux, negative seconds to wait for data are none.
            word if (level, option) == (TCP, 9) && word < 0 => 0,
            _ => return Err(FsError::Invalid.into()),
        };
        // The two bits about congestion are TCP's own.
        let value = match (level, option) {
            TOS | TCLASS if of.1 == Type::Stream => value & !3,
            _ => value,
        };
        self.values[at].store(value, Relaxed);
        Ok(())
    }

    /// Puts the value of an option into `out`; returns the bytes.
    ///
    /// # Errors
    /// `NoOption`.
    pub fn show(
        &self,
        level: i32,
        option: u32,
        out: &mut [u8],
        of: (Family, Type),
    ) -> Result<usize> {
        let at = index((level, option)).ok_or(SocketError::NoOption)?;
        if !has_level(level, of.0, of.1) {
            return Err(SocketError::NoOption);
        }
        let word = self.values[at].load(Relaxed).to_ne_bytes();
        out[..4].copy_from_slice(&word);
        Ok(4)
    }

    /// Takes over the settings of another socket.
    pub fn inherit(&self, from: &InetOptions) {
        for (own, other) in self.values.iter().zip(&from.values) {
            own.store(other.load(Relaxed), Relaxed);
        }
    }
}
