//! Control messages of datagrams: hops, and type of service or traffic class (RFC 3542).

use crate::inet_calls::*;
use crate::socket_calls::receive;

const IP: i32 = libc::IPPROTO_IP;
const V6_LEVEL: i32 = libc::IPPROTO_IPV6;
const HOPLIMIT: i32 = libc::IPV6_HOPLIMIT;
const TCLASS: i32 = libc::IPV6_TCLASS;

/// A control message of a level and a type.
type Control<'a> = (i32, i32, &'a [u8]);

fn raw((level, kind, data): Control) -> Vec<u8> {
    let mut raw = Vec::new();
    raw.extend((16 + data.len() as u64).to_ne_bytes());
    raw.extend(level.to_ne_bytes());
    raw.extend(kind.to_ne_bytes());
    raw.extend(data);
    raw.resize(raw.len().next_multiple_of(8), 0);
    raw
}

/// sendmsg(2) of one byte with control messages.
fn send(fd: i32, text: &str, port: u16, control: &[Control]) -> Result<u64, i32> {
    let to = address(text, port);
    let control: Vec<u8> = control.iter().flat_map(|&one| raw(one)).collect();
    let buffer = [b"x".as_ptr() as u64, 1];
    let header = [
        to.as_ptr() as u64,
        to.len() as u64,
        buffer.as_ptr() as u64,
        1,
        control.as_ptr() as u64,
        control.len() as u64,
        0,
    ];
    sc!(SYS_sendmsg, fd, header.as_ptr(), 0)
}

/// The control messages of a receive, as bytes.
fn told(fd: i32) -> Result<Vec<u8>, i32> {
    let (_, words, _) = receive(fd, 9, 128, libc::MSG_DONTWAIT)?;
    Ok(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
}

/// A sender, and a receiver that is told hops and class at the levels that it has; its port.
fn asking(family: i32) -> Result<(i32, i32, u16), i32> {
    let (from, to) = (udp(family)?, udp(family)?);
    bind(to, if family == V4 { "0.0.0.0" } else { "::" }, 0)?;
    for option in [libc::IP_RECVTTL, libc::IP_RECVTOS] {
        set_option(to, IP, option, 1)?;
    }
    if family == V6 {
        for option in [libc::IPV6_RECVHOPLIMIT, libc::IPV6_RECVTCLASS] {
            set_option(to, V6_LEVEL, option, 1)?;
        }
    }
    Ok((from, to, port(to)?))
}

fn int(value: i32) -> [u8; 4] {
    value.to_ne_bytes()
}

/// What a receiver is told at the level of IPv6.
fn at_v6(hops: i32, class: i32) -> Vec<u8> {
    let (hops, class) = (int(hops), int(class));
    [
        raw((V6_LEVEL, HOPLIMIT, &hops)),
        raw((V6_LEVEL, TCLASS, &class)),
    ]
    .concat()
}

/// And at that of IPv4.
fn at_v4(hops: i32, class: u8) -> Vec<u8> {
    let hops = int(hops);
    [
        raw((IP, libc::IP_TTL, &hops)),
        raw((IP, libc::IP_TOS, &[class])),
    ]
    .concat()
}

tests! { "ancillary";
    packets_of_ipv6 {
        let (from, to, port) = ok!(asking(V6));
        ok!(set_option(from, V6_LEVEL, libc::IPV6_UNICAST_HOPS, 7));
        ok!(set_option(from, V6_LEVEL, TCLASS, 0x24));
        let cases: [(&[Control], i32, i32); 6] = [
            (&[], 7, 0x24),
            (&[(V6_LEVEL, HOPLIMIT, &int(2))], 2, 0x24),
            (&[(V6_LEVEL, TCLASS, &int(0xff)), (V6_LEVEL, HOPLIMIT, &int(0))], 0, 0xff),
            (&[(V6_LEVEL, HOPLIMIT, &int(-1))], 7, 0x24),
            (&[(V6_LEVEL, HOPLIMIT, &int(5)), (V6_LEVEL, HOPLIMIT, &int(6))], 6, 0x24),
            // Not of this level.
            (&[(IP, libc::IP_TTL, &int(5)), (IP, 99, b"")], 7, 0x24),
        ];
        for (control, hops, class) in cases {
            is!(send(from, "::1", port, control), Ok(1));
            is!(told(to), Ok(at_v6(hops, class)));
        }
    }
    packets_of_ipv4 {
        let (from, four, port4) = ok!(asking(V4));
        let (_, six, port6) = ok!(asking(V6));
        ok!(set_option(from, IP, libc::IP_TTL, 9));
        ok!(set_option(from, IP, libc::IP_TOS, 0x28));
        let cases: [(&[Control], i32, u8); 4] = [
            (&[], 9, 0x28),
            (&[(IP, libc::IP_TTL, &int(5)), (IP, libc::IP_TOS, b"\x14")], 5, 0x14),
            (&[(IP, libc::IP_TOS, &int(0x14))], 9, 0x14),
            (&[(V6_LEVEL, HOPLIMIT, &int(5)), (V6_LEVEL, 199, b"")], 9, 0x28),
        ];
        for (control, hops, class) in cases {
            for (to, port) in [(four, port4), (six, port6)] {
                is!(send(from, "127.0.0.1", port, control), Ok(1));
                is!(told(to), Ok(at_v4(hops, class)));
            }
        }
    }
    addresses_of_ipv4_by_a_socket_of_ipv6 {
        let (from, to, port) = ok!(asking(V6));
        ok!(set_option(from, IP, libc::IP_TTL, 9));
        ok!(set_option(from, V6_LEVEL, libc::IPV6_UNICAST_HOPS, 7));
        ok!(set_option(to, V6_LEVEL, libc::IPV6_RECVPKTINFO, 1));
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1, 1, 0, 0, 0];
        let info = raw((V6_LEVEL, libc::IPV6_PKTINFO, &mapped));
        let (text, hops) = ("::ffff:127.0.0.1", int(5));
        is!(send(from, text, port, &[(V6_LEVEL, HOPLIMIT, &hops), (V6_LEVEL, libc::IPV6_PKTINFO, &mapped)]), Ok(1));
        is!(told(to), Ok([info.clone(), at_v4(9, 0)].concat()));
        is!(send(from, text, port, &[(IP, libc::IP_TTL, &hops)]), Ok(1));
        is!(told(to), Ok([info, at_v4(5, 0)].concat()));
        fails!(send(from, text, port, &[(V6_LEVEL, libc::IPV6_PKTINFO, &[0; 20])]), EINVAL);
    }
    what_a_send_cannot_ask {
        let (six, _six, port6) = ok!(asking(V6));
        let (four, _four, port4) = ok!(asking(V4));
        let long = [3u8, 0, 0, 0, 0];
        let bad: [Control; 10] = [
            (V6_LEVEL, HOPLIMIT, &int(256)),
            (V6_LEVEL, HOPLIMIT, &int(-2)),
            (V6_LEVEL, HOPLIMIT, &long),
            (V6_LEVEL, HOPLIMIT, &[3]),
            (V6_LEVEL, TCLASS, &int(256)),
            (V6_LEVEL, TCLASS, &int(-2)),
            (V6_LEVEL, TCLASS, &long),
            (V6_LEVEL, libc::IPV6_PKTINFO, &[0; 19]),
            (V6_LEVEL, 199, &int(1)),
            (libc::IPPROTO_UDP, 99, &int(1)),
        ];
        for message in bad { fails!(send(six, "::1", port6, &[message]), EINVAL); }
        let bad: [Control; 10] = [
            (IP, libc::IP_TTL, &int(0)),
            (IP, libc::IP_TTL, &int(256)),
            (IP, libc::IP_TTL, &long),
            (IP, libc::IP_TTL, &[3]),
            (IP, libc::IP_TOS, &int(256)),
            (IP, libc::IP_TOS, &int(-1)),
            (IP, libc::IP_TOS, &[3, 0]),
            (IP, libc::IP_PKTINFO, &[0; 11]),
            (IP, 99, &int(1)),
            (libc::IPPROTO_UDP, 99, &int(1)),
        ];
        for message in bad { fails!(send(four, "127.0.0.1", port4, &[message]), EINVAL); }
    }
    values_that_are_kept {
        let (four, six, stream) = (ok!(udp(V4)), ok!(udp(V6)), ok!(tcp(V6)));
        for (given, kept) in [(0x1c, 0x1c), (256, 0), (-1, 255), (511, 255)] {
            ok!(set_option(four, IP, libc::IP_TOS, given));
            is!(option(four, IP, libc::IP_TOS), Ok(kept));
        }
        for (given, kept) in [(0x1c, 0x1c), (255, 255), (-1, 0)] {
            ok!(set_option(six, V6_LEVEL, TCLASS, given));
            is!(option(six, V6_LEVEL, TCLASS), Ok(kept));
        }
        for bad in [256, -2] { fails!(set_option(six, V6_LEVEL, TCLASS, bad), EINVAL); }
        for (level, number) in [(V6_LEVEL, libc::IPV6_RECVTCLASS), (IP, libc::IP_RECVTOS)] {
            is!(option(six, level, number), Ok(0));
            ok!(set_option(six, level, number, 5));
            is!(option(six, level, number), Ok(1));
        }
        fails!(set_option(four, V6_LEVEL, libc::IPV6_RECVTCLASS, 1), ENOPROTOOPT);
        // The bits about congestion are TCP's.
        for (level, number) in [(IP, libc::IP_TOS), (V6_LEVEL, TCLASS)] {
            ok!(set_option(stream, level, number, 255));
            is!(option(stream, level, number), Ok(252));
        }
    }
}
