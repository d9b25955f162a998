//! Control messages of datagrams, and UDP-Lite.
#![cfg(not(shuttle))]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use net::SocketError;
use net::error::Result;
use net::inet::endpoint::{Endpoint, Family, Ip};
use net::inet::ports::{self, Owner};
use net::inet::protocol::Protocol;
use net::socket::{Control, Message, OPTION, Receive};
use support::on;
use users::inet::{V4, V6, at, bind, connect, counts, lite, port, send_to, tcp, udp};
use users::{AGAIN, REFUSED, of, receive, receive_with, send, send_with};
use vfs::error::FsError;
use vfs::file::FileRef;

const IP: i32 = 0;
const IPV6: i32 = 41;
const UDP: i32 = 17;
const LITE: i32 = 136;
/// UDPLITE_SEND_CSCOV, UDPLITE_RECV_CSCOV.
const SEND: u32 = 10;
const RECEIVE: u32 = 11;
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

#[test]
fn udp_lite_has_its_own_ports() {
    on(1, || {
        for family in [V4, V6] {
            let (a, b, other) = (lite(family), lite(family), udp(family));
            assert_eq!((of(&a).protocol(), of(&other).protocol()), (136, 17));
            assert_eq!(bind(&b, family, 0), Ok(()));
            let number = port(&b);
            assert_eq!(bind(&a, family, number), Err(SocketError::AddressInUse));
            assert_eq!(bind(&other, family, number), Ok(()));
            assert_eq!(connect(&a, family, number), Ok(()));
            assert_eq!(send(&a, b"lite"), Ok(4));
            assert_eq!(receive(&other, 9), Err(AGAIN));
            assert_eq!(receive(&b, 9), Ok(b"lite".to_vec()));
            let heavy = udp(family);
            assert_eq!(send_to(&heavy, b"heavy", family, number), Ok(5));
            assert_eq!(receive(&b, 9), Err(AGAIN));
            assert_eq!(receive(&other, 9), Ok(b"heavy".to_vec()));
            // What a look-up has found is not used after a change of the right table.
            drop(b);
            assert_eq!(send(&a, b"x"), Ok(1));
            assert_eq!(send(&a, b"x"), Err(REFUSED));
            let next = lite(family);
            assert_eq!(bind(&next, family, number), Ok(()));
            assert_eq!(send(&a, b"next"), Ok(4));
            assert_eq!(receive(&next, 9), Ok(b"next".to_vec()));
            assert_eq!(of(&a).connect(&[0, 0], false), Ok(()));
            drop((a, next, other, heavy));
            assert_eq!(counts(), (0, 0));
        }
    });
}

#[test]
fn coverage_is_kept() {
    on(1, || {
        let (socket, other) = (lite(V4), udp(V4));
        for option in [SEND, RECEIVE] {
            assert_eq!(get(&socket, LITE, option), Ok(0));
            for (given, kept) in [(0, 0), (1, 8), (8, 8), (20, 20), (-1, 8), (65_536, 65_535)] {
                assert_eq!(set(&socket, LITE, option, given), Ok(()));
                assert_eq!(get(&socket, LITE, option), Ok(kept));
            }
            assert_eq!(set(&socket, UDP, option, 30), Ok(()));
            assert_eq!(get(&socket, UDP, option), Ok(30));
            let answer = of(&socket).set_option(LITE, option, &[8, 0, 0]);
            assert_eq!(answer, Err(INVALID));
            for level in [UDP, LITE] {
                assert_eq!(set(&other, level, option, 8), Err(SocketError::NoOption));
                assert_eq!(get(&other, level, option), Ok(0));
            }
        }
        assert_eq!(set(&socket, LITE, 99, 8), Err(SocketError::NoOption));
    });
}

/// Which packets arrive, for the coverage that each side asks for, and the bytes of the packet, as on Linux.
#[test]
fn packets_without_the_coverage_asked_for_are_dropped() {
    on(1, || {
        let cases = [
            (None, None, [true, true, true]),
            (None, Some(0), [true, true, true]),
            (Some(8), None, [true, true, true]),
            (Some(8), Some(0), [true, false, false]),
            (Some(8), Some(8), [true, true, true]),
            (Some(8), Some(9), [true, false, false]),
            (Some(20), Some(20), [true, true, true]),
            (Some(20), Some(30), [true, true, false]),
            (Some(0), Some(50), [true, true, true]),
        ];
        for (sent, wanted, arrives) in cases {
            for (len, arrives) in [0, 12, 13].into_iter().zip(arrives) {
                let (from, to) = (lite(V6), lite(V6));
                assert_eq!(bind(&to, V6, 0), Ok(()));
                for (file, option, value) in [(&from, SEND, sent), (&to, RECEIVE, wanted)] {
                    let answer = value.map(|value| set(file, LITE, option, value));
                    assert!(answer.is_none_or(|answer| answer.is_ok()));
                }
                let bytes = vec![7; len];
                assert_eq!(send_to(&from, &bytes, V6, port(&to)), Ok(len));
                let mut dropped = 0;
                ports::each(Protocol::UdpLite, |_, entry| {
                    if let Owner::Receiver(receiver) = &entry.owner {
                        dropped += receiver.dropped();
                    }
                });
                let expected = if arrives { Ok(bytes) } else { Err(AGAIN) };
                assert_eq!(receive(&to, 99), expected, "{sent:?} {wanted:?} {len}");
                assert_eq!(dropped, usize::from(!arrives));
            }
        }
    });
}
