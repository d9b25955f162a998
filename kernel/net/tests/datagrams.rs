//! Control messages of datagrams.
#![cfg(not(shuttle))]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use net::SocketError;
use net::error::Result;
use net::inet::endpoint::{Endpoint, Family, Ip};
use net::socket::{Control, Message, OPTION, Receive};
use support::on;
use users::inet::{V4, V6, at, port, tcp, udp};
use users::{of, receive_with, send_with};
use vfs::error::FsError;
use vfs::file::FileRef;

const IP: i32 = 0;
const IPV6: i32 = 41;
const UDP: i32 = 17;
const INVALID: SocketError = SocketError::File(FsError::Invalid);

fn set(file: &FileRef, level: i32, option: u32, value: i32) -> Result<()> {
    of(file).set_option(level, option, &value.to_ne_bytes())
}

fn get(file: &FileRef, level: i32, option: u32) -> Result<i32> {
    let mut out = [0; OPTION];
    let len = of(file).option(level, option, &mut out)?;
    assert_eq!(len, 4);
    Ok(i32::from_ne_bytes([out[0], out[1], out[2], out[3]]))
}

/// sendmsg(2) with control messages of level, type and contents.
fn send_told(from: &FileRef, to: &[u8], control: &[(i32, i32, &[u8])]) -> Result<usize> {
    let control: Vec<_> = control
        .iter()
        .map(|&(level, kind, data)| Control { level, kind, data })
        .collect();
    let message = Message {
        to: Some(to),
        control: &control,
        ..Message::default()
    };
    send_with(from, b"x", message)
}

/// Level, type and contents of the control messages of a receive.
fn told(from: &FileRef) -> Result<Vec<(i32, i32, Vec<u8>)>> {
    let (_, got) = receive_with(from, 9, Receive::default())?;
    let notes = got.notes.iter();
    let all = notes.map(|n| (n.level, n.kind, n.data.0[..n.data.1].to_vec()));
    Ok(all.collect())
}

/// A sender, and a receiver that is told hops and class at both levels.
fn asking(family: Family) -> (FileRef, FileRef) {
    let (from, to) = (udp(family), udp(family));
    let any = Endpoint {
        ip: family.any(),
        port: 0,
    };
    assert_eq!(of(&to).bind(&any.address(family).0), Ok(()));
    for (level, option) in [(IP, 12), (IP, 13), (IPV6, 51), (IPV6, 66)] {
        let answer = set(&to, level, option, 1);
        assert_eq!(answer.is_ok(), family == V6 || level == IP);
    }
    (from, to)
}

fn int(value: i32) -> [u8; 4] {
    value.to_ne_bytes()
}

#[test]
fn a_send_says_hops_and_class_of_its_packet() {
    on(1, || {
        let (from, to) = asking(V6);
        let own = at(V6, port(&to));
        for (option, value) in [(16, 7), (67, 0x24)] {
            assert_eq!(set(&from, IPV6, option, value), Ok(()));
        }
        let of_packet = |hops: i32, class: i32| {
            Ok(vec![
                (IPV6, 52, int(hops).to_vec()),
                (IPV6, 67, int(class).to_vec()),
            ])
        };
        let cases: [(&[_], i32, i32); 5] = [
            (&[], 7, 0x24),
            (&[(IPV6, 52, &int(2)[..])], 2, 0x24),
            (&[(IPV6, 67, &int(0xff)[..]), (IPV6, 52, &int(0))], 0, 0xff),
            (&[(IPV6, 52, &int(3)), (IPV6, 52, &int(-1))], 7, 0x24),
            (&[(IP, 2, &int(5)), (IP, 99, b"")], 7, 0x24),
        ];
        for (control, hops, class) in cases {
            assert_eq!(send_told(&from, &own, control), Ok(1));
            assert_eq!(told(&to), of_packet(hops, class));
        }
        let (four, others) = asking(V4);
        for (option, value) in [(2, 9), (1, 0x28)] {
            assert_eq!(set(&four, IP, option, value), Ok(()));
        }
        let of_packet =
            |hops: i32, class| Ok(vec![(IP, 2, int(hops).to_vec()), (IP, 1, vec![class])]);
        let cases: [(&[_], i32, u8); 4] = [
            (&[], 9, 0x28),
            (&[(IP, 2, &int(5)[..]), (IP, 1, b"\x14")], 5, 0x14),
            (&[(IP, 1, &int(0x14))], 9, 0x14),
            (&[(IPV6, 52, &int(5)), (IPV6, 99, b"")], 9, 0x28),
        ];
        for (control, hops, class) in cases {
            // A socket of IPv6 that hears IPv4 is told at that level.
            for receiver in [&others, &to] {
                let to = at(V4, port(receiver));
                assert_eq!(send_told(&four, &to, control), Ok(1));
                assert_eq!(told(receiver), of_packet(hops, class));
            }
        }
    });
}

#[test]
fn control_messages_of_a_send_are_checked() {
    on(1, || {
        let (six, to6) = asking(V6);
        let (four, to4) = asking(V4);
        let (to6, to4) = (at(V6, port(&to6)), at(V4, port(&to4)));
        let long = [3, 0, 0, 0, 0];
        let bad: [(i32, i32, &[u8]); 10] = [
            (IPV6, 52, &int(256)),
            (IPV6, 52, &int(-2)),
            (IPV6, 52, &long),
            (IPV6, 52, &[3]),
            (IPV6, 67, &int(256)),
            (IPV6, 67, &long),
            (IPV6, 50, &[0; 19]),
            (IPV6, 62, &int(2)),
            (IPV6, 199, &int(1)),
            (UDP, 103, &[1, 0]),
        ];
        for message in bad {
            assert_eq!(send_told(&six, &to6, &[message]), Err(INVALID));
        }
        let bad: [(i32, i32, &[u8]); 9] = [
            (IP, 2, &int(0)),
            (IP, 2, &int(256)),
            (IP, 2, &long),
            (IP, 2, &[3]),
            (IP, 1, &int(256)),
            (IP, 1, &int(-1)),
            (IP, 1, &[3, 0]),
            (IP, 8, &[0; 11]),
            (IP, 99, &int(1)),
        ];
        for message in bad {
            // By the address, not by the socket.
            let six_to_four = Endpoint {
                ip: Ip::LOOPBACK4,
                port: 9,
            };
            let six_to_four = six_to_four.address(V6).0;
            assert_eq!(send_told(&four, &to4, &[message]), Err(INVALID));
            assert_eq!(send_told(&six, &six_to_four, &[message]), Err(INVALID));
            assert_eq!(send_told(&six, &to6, &[message]), Ok(1));
        }
    });
}

#[test]
fn types_of_service_are_kept() {
    on(1, || {
        let (datagram, stream) = (udp(V6), tcp(V6));
        for (given, kept) in [(0x1c, 0x1c), (256, 0), (-1, 255), (511, 255)] {
            assert_eq!(set(&datagram, IP, 1, given), Ok(()));
            assert_eq!(get(&datagram, IP, 1), Ok(kept));
        }
        for (given, kept) in [(0x1c, Ok(0x1c)), (-1, Ok(0)), (-2, Err(INVALID))] {
            let answer = set(&datagram, IPV6, 67, given);
            assert_eq!(answer.and_then(|()| get(&datagram, IPV6, 67)), kept);
        }
        // The bits about congestion are TCP's.
        for (level, option) in [(IP, 1), (IPV6, 67)] {
            assert_eq!(set(&stream, level, option, 255), Ok(()));
            assert_eq!(get(&stream, level, option), Ok(252));
        }
    });
}
