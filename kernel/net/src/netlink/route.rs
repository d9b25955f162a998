//! NETLINK_ROUTE: what a request asks, and the answer. The tables are those of [`interface`], which programs cannot change.
//!
//! As in Linux, a program that asks for it (NETLINK_GET_STRICT_CHK) is refused what makes no sense in a request, and else is given more
//! rows than it may have meant.

use vfs::error::FsError;

use super::listing::{Chosen, Listing, Routes, Table};
use super::message::{
    Answer, Refusal, Request, Writer, attribute, attributes, flag, word, word_attribute,
};
use super::rows::{self, Asked, LOCAL_TABLE, MAIN_TABLE};
use crate::error::SocketError;
use crate::inet::endpoint::{AF_INET, AF_INET6, AF_UNSPEC, Family, Ip};
use crate::interface::{self, Interface, NAME_ROOM};

/// Kinds of requests, named as in rtnetlink(7) without their prefix `RTM_`.
mod rtm {
    pub const NEWLINK: u16 = 16;
    pub const GETLINK: u16 = 18;
    pub const SETLINK: u16 = 19;
    pub const GETADDR: u16 = 22;
    pub const GETROUTE: u16 = 26;
    pub const GETNEIGH: u16 = 30;
    pub const GETRULE: u16 = 34;
    /// The last one that Linux 6.1 has.
    pub const LAST: u16 = 123;
    /// Whether a kind only asks: they come in fours.
    pub const fn asks(kind: u16) -> bool {
        kind % 4 == 2
    }
}

/// Bytes of the structures that requests begin with: struct ifinfomsg, ifaddrmsg, rtmsg, ndmsg and fib_rule_hdr.
const LINK_HEAD: usize = 16;
const ADDRESS_HEAD: usize = 8;
const ROUTE_HEAD: usize = 12;
/// AF_BRIDGE.
const BRIDGE: u8 = 7;
/// IFLA_EXT_MASK: which attributes an answer has of those that none has here.
const EXT_MASK: u16 = 29;
/// IFLA_IFNAME, and IFLA_ALT_IFNAME, for names that no interface here has besides that, and their bytes with the NUL.
const IFNAME: u16 = 3;
const ALT_IFNAME: u16 = 53;
const ALT_NAME_ROOM: usize = 128;

/// What an answer depends on besides the request.
#[derive(Clone, Copy)]
pub struct Asker {
    /// The port of the socket.
    pub port: u32,
    /// NETLINK_GET_STRICT_CHK.
    pub strict: bool,
    /// The user.
    pub uid: u32,
    /// The user may change what there is: CAP_NET_ADMIN.
    pub may_change: bool,
}

/// What a request gets.
pub enum Reply {
    /// Nothing but an acknowledgement, where that is asked for.
    Done,
    /// One message.
    Row(Writer),
    /// All rows of a table, and no acknowledgement.
    List(Listing),
}

/// Why a request is refused whose words make no sense.
const NONSENSE: Refusal = Refusal {
    error: SocketError::File(FsError::Invalid),
    text: Some("The request has values or attributes that it cannot have"),
};
const UNSUPPORTED: Refusal = Refusal {
    error: SocketError::File(FsError::NotSupported),
    text: None,
};
const UNCHANGEABLE: Refusal = Refusal {
    error: SocketError::File(FsError::NotSupported),
    text: Some("Interfaces, addresses and routes cannot be changed"),
};

/// Answers a request of the protocol, of a kind from [`super::message::kind::FIRST`] on. May wait for memory.
///
/// # Errors
/// `Perm` for a change without the capability, else `NotSupported`; `Invalid`, `OutOfRange`, `NoDevice`, `NotAvailable`, `Unreachable`; `NoBuffers`.
pub fn answer(request: &Request, asker: Asker) -> Result<Reply, Refusal> {
    if request.kind > rtm::LAST {
        return Err(UNSUPPORTED);
    }
    // As in Linux.
    let Some(&family) = request.body.first() else {
        return Ok(Reply::Done);
    };
    let reply = Answer {
        flags: 0,
        sequence: request.sequence,
        port: asker.port,
    };
    if !rtm::asks(request.kind) {
        return change(request, asker);
    }
    if request.flags & flag::DUMP != 0 {
        let strict = asker.strict;
        let none = Chosen::default();
        let (rows, chosen) = match request.kind {
            rtm::GETLINK => (links(request.body, family, strict), none),
            rtm::GETADDR => addresses(request.body, family, strict),
            rtm::GETROUTE => routes(request.body, family, strict),
            rtm::GETNEIGH => (neighbours(request.body, strict), none),
            rtm::GETRULE => (rules(request.body, family, strict), none),
            _ => return Err(UNSUPPORTED),
        };
        return Ok(Reply::List(Listing::new(rows, reply, chosen)));
    }
    let mut out = Writer::new(rows::LONGEST)?;
    match (request.kind, u16::from(family)) {
        (rtm::GETLINK, _) => link(&mut out, reply, request.body, asker.strict)?,
        (rtm::GETADDR, AF_INET6) => address(&mut out, reply, request.body)?,
        (rtm::GETROUTE, AF_INET | AF_INET6) => way(&mut out, reply, request.body, asker)?,
        _ => return Err(UNSUPPORTED),
    }
    Ok(Reply::Row(out))
}

/// A family that has tables of its own; `None` for others, which in Linux stand for all.
fn family_of(number: u8) -> Option<Family> {
    match u16::from(number) {
        AF_INET => Some(Family::V4),
        AF_INET6 => Some(Family::V6),
        _ => None,
    }
}

/// Whether a request has a head of so many bytes, and behind it these attributes alone.
fn is_well_formed(body: &[u8], head: usize, known: &[u16]) -> bool {
    body.len() >= head && attributes(body, head).all(|(kind, _)| known.contains(&kind))
}

fn all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn links(body: &[u8], family: u8, strict: bool) -> Result<Table, Refusal> {
    const MASTER: u16 = 10;
    const NO_MASTER: u32 = u32::MAX;
    const LINKINFO: u16 = 18;
    const NETNS: u16 = 46;
    if strict {
        let known = [EXT_MASK, MASTER, LINKINFO, NETNS];
        if !is_well_formed(body, LINK_HEAD, &known) || !all_zero(&body[1..LINK_HEAD]) {
            return Err(NONSENSE);
        }
        // There are no other namespaces.
        if attribute(body, LINK_HEAD, NETNS).is_some() {
            return Err(UNSUPPORTED);
        }
    }
    let master = word_attribute(body, LINK_HEAD, MASTER)?.unwrap_or(0);
    // No interface is part of a bridge, or of another one.
    if family == BRIDGE || ![0, NO_MASTER].contains(&master) {
        return Ok(Table::Empty);
    }
    let shown = match u16::from(family) {
        AF_INET6 => family,
        _ => AF_UNSPEC as u8,
    };
    Ok(Table::Interfaces(shown))
}

/// As all that follow for tables: the rows, and whether the request has chosen among them.
fn addresses(body: &[u8], family: u8, strict: bool) -> (Result<Table, Refusal>, Chosen) {
    let family = family_of(family);
    let none = Chosen::default();
    let chosen = Chosen {
        rows: true,
        end: true,
    };
    if !strict {
        return (Ok(Table::Addresses(family, 0)), none);
    }
    if !is_well_formed(body, ADDRESS_HEAD, &[]) || !all_zero(&body[1..4]) {
        return (Err(NONSENSE), none);
    }
    match word(body, 4).unwrap_or(0) {
        0 => (Ok(Table::Addresses(family, 0)), none),
        index if interface::by_index(index).is_none() => (Err(FsError::NoDevice.into()), chosen),
        index => (Ok(Table::Addresses(family, index)), chosen),
    }
}

/// Flags of a request for routes: those that answers about single addresses have left behind, and those that routers have announced.
const CLONED: u32 = 0x200;
const ANNOUNCED: u32 = 0x800;

fn routes(body: &[u8], family: u8, strict: bool) -> (Result<Table, Refusal>, Chosen) {
    const OIF: u16 = 4;
    const TABLE: u16 = 15;
    let all = Routes {
        family: family_of(family),
        fate: 0,
        interface: 0,
    };
    let flags = word(body, 8).unwrap_or(0);
    if !strict {
        let none = flags & ANNOUNCED != 0;
        let table = if none {
            Table::Empty
        } else {
            Table::Routes(all)
        };
        return (Ok(table), Chosen::default());
    }
    let [_, to, from, tos, table, by, scope, fate] = *body.first_chunk().unwrap_or(&[0; 8]);
    let sensible = is_well_formed(body, ROUTE_HEAD, &[OIF, TABLE])
        && [to, from, tos, scope] == [0; 4]
        && flags & !(CLONED | ANNOUNCED) == 0;
    let (table_number, interface) = match (
        word_attribute(body, ROUTE_HEAD, TABLE),
        word_attribute(body, ROUTE_HEAD, OIF),
    ) {
        (Ok(number), Ok(interface)) if sensible => {
            (number.unwrap_or(u32::from(table)), interface.unwrap_or(0))
        }
        _ => return (Err(NONSENSE), Chosen::default()),
    };
    if interface != 0 && interface::by_index(interface).is_none() {
        return (Err(FsError::NoDevice.into()), Chosen::default());
    }
    let end = (flags, by, fate, table_number, interface) != (0, 0, 0, 0, 0);
    let rows = match table_number {
        // All routes are the kernel's, and in one table.
        _ if flags != 0 || ![0, rows::BY_KERNEL].contains(&by) => Ok(Table::Empty),
        0 | LOCAL_TABLE => Ok(Table::Routes(Routes {
            fate,
            interface,
            ..all
        })),
        MAIN_TABLE => Ok(Table::Empty),
        _ if all.family.is_none() => Ok(Table::Empty),
        _ => Err(FsError::NotFound.into()),
    };
    (rows, Chosen { rows: true, end })
}

/// Neighbours have addresses of hardware, which no loopback interface asks for.
fn neighbours(body: &[u8], strict: bool) -> Result<Table, Refusal> {
    match strict && body.len() < ROUTE_HEAD {
        true => Err(NONSENSE),
        false => Ok(Table::Empty),
    }
}

fn rules(body: &[u8], family: u8, strict: bool) -> Result<Table, Refusal> {
    if strict && (!is_well_formed(body, ROUTE_HEAD, &[]) || !all_zero(&body[1..ROUTE_HEAD])) {
        return Err(NONSENSE);
    }
    match (family_of(family), u16::from(family)) {
        (None, AF_UNSPEC) => Ok(Table::Rules(None)),
        (None, _) => Err(SocketError::WrongFamily.into()),
        (family, _) => Ok(Table::Rules(family)),
    }
}

/// The interface that a request names: by number, or by name. `None` if it does neither.
fn named(body: &[u8]) -> Result<Option<Interface>, Refusal> {
    if body.len() < LINK_HEAD {
        return Err(NONSENSE);
    }
    let index = word(body, 4).unwrap_or(0);
    let of_kind = |kind, room| attribute(body, LINK_HEAD, kind).map(|name| (name, room));
    let name = of_kind(IFNAME, NAME_ROOM).or(of_kind(ALT_IFNAME, ALT_NAME_ROOM));
    let found = match (index as i32, name) {
        (1.., _) => interface::by_index(index),
        (_, Some((name, room))) => {
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            if name.len() >= room {
                return Err(SocketError::OutOfRange.into());
            }
            interface::by_name(name)
        }
        _ => return Ok(None),
    };
    found.map(Some).ok_or(FsError::NoDevice.into())
}

fn link(out: &mut Writer, reply: Answer, body: &[u8], strict: bool) -> Result<(), Refusal> {
    let asked = body.len() >= LINK_HEAD && {
        // Everything but the family and the number.
        all_zero(&body[1..4]) && all_zero(&body[8..LINK_HEAD])
    };
    if strict && !asked {
        return Err(NONSENSE);
    }
    let interface = named(body)?.ok_or(NONSENSE)?;
    rows::interface(out, reply, &interface, AF_UNSPEC as u8);
    Ok(())
}

/// The bytes of an address of a family. One of IPv4 in the form of IPv6 is nobody's: `otherwise`.
fn ip(family: Family, data: &[u8], otherwise: SocketError) -> Result<Ip, Refusal> {
    let ip = match family {
        Family::V4 => data.first_chunk().map(|&bytes| Ip::v4(bytes)),
        Family::V6 => data.first_chunk().map(|&bytes| Ip(bytes)),
    };
    match ip {
        None => Err(SocketError::OutOfRange.into()),
        Some(ip) if family == Family::V6 && ip.as_v4().is_some() => Err(otherwise.into()),
        Some(ip) => Ok(ip),
    }
}

/// An address of IPv6, by itself.
fn address(out: &mut Writer, reply: Answer, body: &[u8]) -> Result<(), Refusal> {
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    let data = attribute(body, ADDRESS_HEAD, LOCAL).or(attribute(body, ADDRESS_HEAD, ADDRESS));
    let nobody = SocketError::NotAvailable;
    let asked = ip(Family::V6, data.ok_or(NONSENSE)?, nobody)?;
    let found = interface::all().find_map(|interface| {
        let mut all = interface.addresses.iter();
        let prefix = all.find(|prefix| prefix.ip == asked)?;
        Some((interface, prefix))
    });
    let (interface, prefix) = found.ok_or(SocketError::NotAvailable)?;
    rows::address(out, reply, &interface, prefix);
    Ok(())
}

/// The way to one address.
fn way(out: &mut Writer, reply: Answer, body: &[u8], asker: Asker) -> Result<(), Refusal> {
    const DST: u16 = 1;
    const SRC: u16 = 2;
    const IIF: u16 = 3;
    const OIF: u16 = 4;
    const UID: u16 = 25;
    const LOOKUP_TABLE: u32 = 0x1000;
    const FIB_MATCH: u32 = 0x2000;
    let (Some(&[family, to, from, ..]), Some(flags)) = (body.first_chunk::<8>(), word(body, 8))
    else {
        return Err(NONSENSE);
    };
    let family = family_of(family).ok_or(UNSUPPORTED)?;
    let whole = if family == Family::V4 { 32 } else { 128 };
    let (dst, src) = (
        attribute(body, ROUTE_HEAD, DST),
        attribute(body, ROUTE_HEAD, SRC),
    );
    if asker.strict {
        let fits = |data: Option<&[u8]>, len| len == whole || len == 0 && data.is_none();
        if !fits(dst, to) || !fits(src, from) || !all_zero(&body[4..8]) {
            return Err(NONSENSE);
        }
    }
    // Packets that come from an interface go nowhere else.
    if attribute(body, ROUTE_HEAD, IIF).is_some() {
        return Err(UNSUPPORTED);
    }
    let read = |data| ip(family, data, SocketError::Unreachable);
    let to = dst.map_or(Ok(family.any()), read)?;
    let from = src.map(read).transpose()?;
    let from = from.filter(|ip| !ip.is_any());
    let out_of = word_attribute(body, ROUTE_HEAD, OIF)?.unwrap_or(0);
    if out_of != 0 && interface::by_index(out_of).is_none() {
        return Err(match family {
            Family::V4 => FsError::NoDevice.into(),
            Family::V6 => SocketError::Unreachable.into(),
        });
    }
    let asked = Asked {
        to,
        from,
        table: flags & LOOKUP_TABLE != 0,
        uid: word_attribute(body, ROUTE_HEAD, UID)?.unwrap_or(asker.uid),
    };
    let by = route_of(&asked, family)
        .filter(|by| [0, by.interface].contains(&out_of))
        .ok_or(SocketError::Unreachable)?;
    if flags & FIB_MATCH != 0 {
        rows::route(out, reply, &by);
    } else {
        rows::way(out, reply, &asked, &by);
    }
    Ok(())
}

/// The route of a packet. One to the address of all of IPv4 stays here, as in Linux.
fn route_of(asked: &Asked, family: Family) -> Option<interface::Route> {
    if asked.from.is_some_and(|from| !from.is_local()) {
        return None;
    }
    let to = match family {
        Family::V4 if asked.to.is_any() => asked.to.source(),
        _ => asked.to,
    };
    interface::route_to(to)
}

/// A change. One that asks for what is so already is done: that an interface is up, for instance.
fn change(request: &Request, asker: Asker) -> Result<Reply, Refusal> {
    if !asker.may_change {
        return Err(FsError::Perm.into());
    }
    let body = request.body;
    let interface = match (request.kind, named(body)) {
        (rtm::NEWLINK | rtm::SETLINK, Ok(Some(interface))) => interface,
        // Programs ask so whether the kernel knows this kind of request.
        (rtm::NEWLINK, Ok(None)) => return Err(FsError::NoDevice.into()),
        (rtm::SETLINK, Ok(None)) => return Err(NONSENSE),
        (rtm::NEWLINK | rtm::SETLINK, Err(refusal)) => return Err(refusal),
        _ => return Err(UNCHANGEABLE),
    };
    let (flags, mask) = (word(body, 8).unwrap_or(0), word(body, 12).unwrap_or(0));
    // As in Linux, flags without a mask are all flags.
    let mask = if mask == 0 && flags != 0 { !0 } else { mask };
    let same = (flags ^ interface.flags) & mask == 0;
    let mut others = attributes(body, LINK_HEAD);
    match same && others.all(|(kind, _)| [IFNAME, EXT_MASK].contains(&kind)) {
        true => Ok(Reply::Done),
        false => Err(UNCHANGEABLE),
    }
}
