//! Control messages of datagrams: what a send asks for its packet, and what a receive is told of it.
//!
//! As in Linux the packet's version of the internet protocol decides, not the socket's family: a socket of IPv6 that sends to an address of IPv4 is asked
//! at the level of IPv4, and the messages of the other level are ignored.

use alloc::vec::Vec;

use vfs::error::FsError;

use super::endpoint::{Family, Ip};
use super::option::{self, IP, IPV6, InetOptions};
use crate::error::Result;
use crate::packets::Route;
use crate::socket::{Control, Note};

/// IP_TOS, IP_TTL and IP_PKTINFO, whose messages have the numbers of the options.
const TOS: i32 = option::TOS.1 as i32;
const TTL: i32 = option::TTL.1 as i32;
const PKTINFO: i32 = option::PKTINFO.1 as i32;
/// IPV6_PKTINFO.
const PKTINFO6: i32 = 50;
/// IPV6_HOPLIMIT.
const HOPLIMIT: i32 = 52;
/// IPV6_DONTFRAG.
const DONTFRAG: i32 = 62;
/// IPV6_TCLASS.
const TCLASS: i32 = option::TCLASS.1 as i32;

/// What the control messages of a send ask for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The address that the packet is to come from; `None` for the socket's.
    pub source: Option<Ip>,
    /// The hops that it is to have left; `None` for what the socket's options say.
    pub hops: Option<u8>,
    /// Its type of service, or traffic class; `None` likewise.
    pub class: Option<u8>,
}

/// The int that a message consists of, if it is at least `least`, and at most 255.
///
/// # Errors
/// `Invalid`.
fn int(data: &[u8], least: i32) -> Result<i32> {
    let word = <[u8; 4]>::try_from(data).map(i32::from_ne_bytes);
    let word = word.ok().filter(|word| (least..=255).contains(word));
    Ok(word.ok_or(FsError::Invalid)?)
}

/// As [`int`], where -1 leaves it to the socket.
fn int_or_default(data: &[u8]) -> Result<Option<u8>> {
    Ok(u8::try_from(int(data, -1)?).ok())
}

/// The address of a struct in6_pktinfo.
///
/// # Errors
/// `Invalid` if it is shorter.
fn of_pktinfo6(data: &[u8]) -> Result<Ip> {
    match data.first_chunk() {
        Some(&ip) if data.len() >= 20 => Ok(Ip(ip)),
        _ => Err(FsError::Invalid.into()),
    }
}

impl Asked {
    /// What the control messages of a send to `to` ask for, by a socket of this family. The last of a kind counts.
    ///
    /// # Errors
    /// `Invalid` for a value that it cannot have, and for a kind that is not known.
    pub fn read(control: &[Control], family: Family, to: Ip) -> Result<Asked> {
        let mut asked = Asked::default();
        let v4 = to.as_v4().is_some();
        for message in control {
            let data = message.data;
            match (message.level, message.kind) {
                (IP, kind) if v4 => asked.read_v4(kind, data)?,
                (IPV6, kind) if !v4 => asked.read_v6(kind, data)?,
                (IPV6, PKTINFO6) if family == Family::V6 => {
                    let source = of_pktinfo6(data)?;
                    source.as_v4().ok_or(FsError::Invalid)?;
                    asked.source = Some(source);
                }
                // UDP_SEGMENT is there: a packet that is not divided would be another one.
                (option::UDP, _) => return Err(FsError::Invalid.into()),
                _ => {}
            }
        }
        Ok(asked)
    }

    fn read_v4(&mut self, kind: i32, data: &[u8]) -> Result<()> {
        match (kind, data) {
            (PKTINFO, [_, _, _, _, a, b, c, d, _, _, _, _]) => {
                self.source = Some(Ip::v4([*a, *b, *c, *d]));
            }
            (TTL, _) => self.hops = Some(int(data, 1)? as u8),
            (TOS, [byte]) => self.class = Some(*byte),
            (TOS, _) => self.class = Some(int(data, 0)? as u8),
            _ => return Err(FsError::Invalid.into()),
        }
        Ok(())
    }

    fn read_v6(&mut self, kind: i32, data: &[u8]) -> Result<()> {
        match kind {
            PKTINFO6 => self.source = Some(of_pktinfo6(data)?),
            HOPLIMIT => self.hops = int_or_default(data)?,
            TCLASS => self.class = int_or_default(data)?,
            // No packet is divided.
            DONTFRAG if int(data, 0)? <= 1 => {}
            _ => return Err(FsError::Invalid.into()),
        }
        Ok(())
    }
}

/// The control messages that tell a socket of this family, with these options, of a packet's way. Without memory for one it is missing.
pub fn told(options: &InetOptions, family: Family, route: &Route) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut add = |of: (i32, u32), kind: i32, parts: &[&[u8]]| {
        if !options.is_on(of) || notes.try_reserve(1).is_err() {
            return;
        }
        let (mut data, mut len) = ([0; 20], 0);
        for part in parts {
            data[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        notes.push(Note {
            level: of.0,
            kind,
            data: (data, len),
        });
    };
    let interface = crate::interface::INDEX.to_ne_bytes();
    let hops = i32::from(route.hops).to_ne_bytes();
    if family == Family::V6 {
        add(option::RECVPKTINFO6, PKTINFO6, &[&route.to.0, &interface]);
    }
    match route.to.as_v4() {
        Some(to) => {
            add(option::PKTINFO, PKTINFO, &[&interface, &to, &to]);
            add(option::RECVTTL, TTL, &[&hops]);
            add(option::RECVTOS, TOS, &[&[route.class]]);
        }
        None => {
            let class = i32::from(route.class).to_ne_bytes();
            add(option::RECVHOPLIMIT, HOPLIMIT, &[&hops]);
            add(option::RECVTCLASS, TCLASS, &[&class]);
        }
    }
    notes
}
