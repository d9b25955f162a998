//! /proc/net and /proc/sys/net. As for a process without privileges in Linux, no address of the kernel is shown.

use net::accept::MOST;
use net::inet::endpoint::{Endpoint, Family};
use net::inet::pair::State;
use net::inet::ports::{self, Ended, Entry, Owner, Place};
use net::inet::protocol::Protocol;
use net::inet::settings;
use net::interface::{self, Prefix};
use net::names::Name;
use net::option::SEND_DEFAULT;
use net::shown::Use;
use vfs::dynamic::{Fixed, Text};
use vfs::error::{FsError, Result};
use vfs::put;

use super::settings::{line, parse};
use super::tree::Tree;

/// The entries of /proc/net.
pub const ROOT: Tree = &[
    ("dev", Fixed::File(dev)),
    ("if_inet6", Fixed::File(if_inet6)),
    ("route", Fixed::File(route)),
    ("sockstat", Fixed::File(sockstat)),
    ("tcp", Fixed::File(|t| tcp(t, Family::V4))),
    ("tcp6", Fixed::File(|t| tcp(t, Family::V6))),
    (
        "udp",
        Fixed::File(|t| datagrams(t, Protocol::Udp, Family::V4)),
    ),
    (
        "udp6",
        Fixed::File(|t| datagrams(t, Protocol::Udp, Family::V6)),
    ),
    (
        "udplite",
        Fixed::File(|t| datagrams(t, Protocol::UdpLite, Family::V4)),
    ),
    (
        "udplite6",
        Fixed::File(|t| datagrams(t, Protocol::UdpLite, Family::V6)),
    ),
    ("unix", Fixed::File(unix)),
];

/// The entries of /proc/sys/net.
pub const SETTINGS: Tree = &[
    ("core", Fixed::Dir(CORE)),
    ("ipv4", Fixed::Dir(IPV4)),
    ("unix", Fixed::Dir(UNIX)),
];

const CORE: Tree = &[
    ("rmem_default", Fixed::File(buffer)),
    ("rmem_max", Fixed::File(buffer)),
    (
        "somaxconn",
        Fixed::Setting(
            |t| line(t, settings::max_backlog()),
            |data| checked(settings::set_max_backlog(parse(data)?)),
        ),
    ),
    ("wmem_default", Fixed::File(buffer)),
    ("wmem_max", Fixed::File(buffer)),
];

const IPV4: Tree = &[
    (
        "ip_local_port_range",
        Fixed::Setting(port_range, set_port_range),
    ),
    (
        "ip_unprivileged_port_start",
        Fixed::Setting(
            |t| line(t, settings::unprivileged_start()),
            |data| checked(settings::set_unprivileged_start(parse(data)?)),
        ),
    ),
    ("tcp_fin_timeout", Fixed::File(|t| line(t, 60))),
    ("tcp_max_syn_backlog", Fixed::File(|t| line(t, MOST as u64))),
];

const UNIX: Tree = &[("max_dgram_qlen", Fixed::File(|t| line(t, 10)))];

fn buffer(out: &mut Text) -> Result<()> {
    line(out, SEND_DEFAULT as u64)
}

fn checked(set: bool) -> Result<()> {
    if set { Ok(()) } else { Err(FsError::Invalid) }
}

fn port_range(out: &mut Text) -> Result<()> {
    let (first, last) = settings::port_range();
    put!(out, "{first}\t{last}\n");
    Ok(())
}

fn set_port_range(data: &[u8]) -> Result<()> {
    let mut words = data
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let (Some(first), Some(last), None) = (words.next(), words.next(), words.next()) else {
        return Err(FsError::Invalid);
    };
    checked(settings::set_port_range(parse(first)?, parse(last)?))
}

fn dev(out: &mut Text) -> Result<()> {
    out.push(b"Inter-|   Receive                                                |  Transmit\n");
    out.push(b" face |bytes    packets errs drop fifo frame compressed multicast|");
    out.push(b"bytes    packets errs drop fifo colls carrier compressed\n");
    // There are no packets.
    for interface in interface::all() {
        put!(out, "{:>6}:", text(interface.name));
        for width in [8, 7, 4, 4, 4, 5, 10, 9, 8, 7, 4, 4, 4, 5, 7, 10] {
            put!(out, " {:width$}", 0);
        }
        out.push(b"\n");
    }
    Ok(())
}

/// Addresses of IPv6: all are of the host, and permanent.
fn if_inet6(out: &mut Text) -> Result<()> {
    for interface in interface::all() {
        let of_v6 = |prefix: &&Prefix| prefix.ip.as_v4().is_none();
        for Prefix { ip, len } in interface.addresses.iter().filter(of_v6) {
            let (number, name) = (u128::from_be_bytes(ip.0), text(interface.name));
            put!(
                out,
                "{number:032x} {:02x} {len:02x} 10 80 {name:>8}\n",
                interface.index
            );
        }
    }
    Ok(())
}

fn text(name: &[u8]) -> &str {
    core::str::from_utf8(name).unwrap_or("?")
}

/// The main table of routes, which is empty: what is local is in another one.
fn route(out: &mut Text) -> Result<()> {
    out.push(
        b"Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n",
    );
    Ok(())
}

/// Numbers of sockets: those of the internet are counted if they have a port.
fn sockstat(out: &mut Text) -> Result<()> {
    let (mut local, mut tcp, mut udp, mut lite, mut waits) = (0, 0, 0, 0, 0);
    net::shown::each(|_| local += 1);
    ports::each(Protocol::Tcp, |_, _| tcp += 1);
    ports::each(Protocol::Udp, |_, _| udp += 1);
    ports::each(Protocol::UdpLite, |_, _| lite += 1);
    ports::each_wait(|_, _| waits += 1);
    let used = local + tcp + udp + lite;
    put!(out, "sockets: used {used}\n");
    put!(
        out,
        "TCP: inuse {tcp} orphan 0 tw {waits} alloc {tcp} mem 0\n"
    );
    put!(out, "UDP: inuse {udp} mem 0\nUDPLITE: inuse {lite}\n");
    out.push(b"RAW: inuse 0\nFRAG: inuse 0 memory 0\n");
    Ok(())
}

/// An address as words of the machine's order, as Linux prints it.
fn put_endpoint(out: &mut Text, endpoint: Endpoint, family: Family) {
    let v4 = endpoint.ip.as_v4().unwrap_or_default();
    match family {
        Family::V4 => put!(out, "{:08X}", u32::from_ne_bytes(v4)),
        Family::V6 => {
            for word in endpoint.ip.0.chunks_exact(4) {
                let word = word.try_into().unwrap_or_default();
                put!(out, "{:08X}", u32::from_ne_bytes(word));
            }
        }
    }
    put!(out, ":{:04X}", endpoint.port);
}

/// The fields of a line from the addresses to the inode.
fn put_socket(
    out: &mut Text,
    (local, remote): (Endpoint, Endpoint),
    family: Family,
    state: State,
    queued: usize,
    (uid, ino): (u32, u64),
) {
    put_endpoint(out, local, family);
    out.push(b" ");
    put_endpoint(out, remote, family);
    let state = state as u8;
    put!(
        out,
        " {state:02X} 00000000:{queued:08X} 00:00000000 00000000 {uid:5}        0 {ino}"
    );
}

fn endpoints(place: &Place, entry: &Entry) -> (Endpoint, Endpoint) {
    let local = Endpoint {
        ip: entry.ip,
        port: place.port,
    };
    let nobody = Endpoint {
        ip: entry.family.any(),
        port: 0,
    };
    (local, place.remote.unwrap_or(nobody))
}

/// The names of the columns from the number on to the inode.
fn put_names(out: &mut Text, family: Family) {
    out.push(b"  sl  local_address ");
    out.push(match family {
        Family::V4 => b"rem_address  ".as_slice(),
        Family::V6 => b"                        remote_address                       ",
    });
    out.push(b" st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode");
}

/// Ends the line that began at `start`. As in Linux, lines of IPv4 are padded.
fn end_line(out: &mut Text, start: usize, family: Family, width: usize) {
    if family == Family::V4 {
        out.pad(start, width);
    }
    out.push(b"\n");
}

fn tcp(out: &mut Text, family: Family) -> Result<()> {
    const WIDTH: usize = 149;
    let start = out.position();
    put_names(out, family);
    end_line(out, start, family, WIDTH);
    let mut number = 0;
    ports::each(Protocol::Tcp, |place, entry| {
        let (state, queued) = match &entry.owner {
            Owner::Listener(listener) => (State::Listen, listener.queue.load().0),
            Owner::Side(pair, side) => (pair.state(*side), pair.end(*side).inbox.queued(true)),
            _ => return,
        };
        if entry.family != family || state == State::Close {
            return;
        }
        let start = out.position();
        put!(out, "{number:4}: ");
        let owner = (entry.uid, place.ino);
        put_socket(out, endpoints(place, entry), family, state, queued, owner);
        out.push(b" 1 0000000000000000 20 0 0 10 -1");
        end_line(out, start, family, WIDTH);
        number += 1;
    });
    ports::each_wait(|end: &Ended, left| {
        if end.family != family {
            return;
        }
        let start = out.position();
        put!(out, "{number:4}: ");
        put_endpoint(out, end.local, family);
        out.push(b" ");
        put_endpoint(out, end.remote, family);
        let state = match end.over {
            true => State::TimeWait,
            false => State::FinWait2,
        };
        // In hundredths of seconds.
        let (state, left) = (state as u8, left / 10_000_000);
        put!(
            out,
            " {state:02X} 00000000:00000000 03:{left:08X} 00000000     0        0 0 3 0000000000000000"
        );
        end_line(out, start, family, WIDTH);
        number += 1;
    });
    Ok(())
}

/// The sockets of UDP or UDP-Lite.
fn datagrams(out: &mut Text, protocol: Protocol, family: Family) -> Result<()> {
    const WIDTH: usize = 127;
    let start = out.position();
    if family == Family::V4 {
        out.push(b" ");
    }
    put_names(out, family);
    out.push(b" ref pointer drops");
    end_line(out, start, family, WIDTH);
    let mut number = 0;
    ports::each(protocol, |place, entry| {
        let Owner::Receiver(receiver) = &entry.owner else {
            return;
        };
        if entry.family != family {
            return;
        }
        let state = match place.remote {
            Some(_) => State::Established,
            None => State::Close,
        };
        let start = out.position();
        put!(out, "{number:5}: ");
        let (owner, queued) = ((entry.uid, place.ino), receiver.account.used());
        put_socket(out, endpoints(place, entry), family, state, queued, owner);
        let dropped = receiver.dropped();
        put!(out, " 2 0000000000000000 {dropped}");
        end_line(out, start, family, WIDTH);
        number += 1;
    });
    Ok(())
}

/// The local sockets.
fn unix(out: &mut Text) -> Result<()> {
    const ACCEPTS: u32 = 0x1_0000;
    out.push(b"Num       RefCount Protocol Flags    Type St Inode Path\n");
    net::shown::each(|socket| {
        let (flags, state) = match socket.used() {
            Use::Nothing => (0, 1),
            Use::Listening => (ACCEPTS, 1),
            Use::Connected => (0, 3),
        };
        let kind = socket.kind as u32;
        put!(
            out,
            "0000000000000000: 00000002 00000000 {flags:08X} {kind:04X} {state:02X} {:5}",
            socket.ino
        );
        match socket.name.get().map(|name| &**name) {
            None => {}
            Some(Name::Path(path)) => {
                out.push(b" ");
                out.push(path);
            }
            Some(Name::Abstract(text)) => {
                out.push(b" @");
                for &byte in text {
                    out.push(&[if byte == 0 { b'@' } else { byte }]);
                }
            }
        }
        out.push(b"\n");
    });
    Ok(())
}
