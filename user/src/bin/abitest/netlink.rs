//! Sockets of AF_NETLINK, and what NETLINK_ROUTE says of a machine with no interface but loopback.

use crate::inet_calls::{option, set_option};
use crate::netlink_calls::*;
use crate::socket_calls::{DGRAM, ERR, IN, OUT, events, named, receive, recv, recv_with};
use user::sys;

const SOL: i32 = libc::SOL_SOCKET;
const NAME: i64 = libc::SYS_getsockname;
const PEER: i64 = libc::SYS_getpeername;
const BIND: i64 = libc::SYS_bind;
const CONNECT: i64 = libc::SYS_connect;
const GETLINK: u16 = libc::RTM_GETLINK;
const GETADDR: u16 = libc::RTM_GETADDR;
const GETROUTE: u16 = libc::RTM_GETROUTE;
const ERROR: u16 = libc::NLMSG_ERROR as u16;
/// An address of IPv4 in the form of IPv6.
const MAPPED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1];
const DONE: u16 = libc::NLMSG_DONE as u16;
const MULTI: u16 = libc::NLM_F_MULTI as u16;
const FILTERED: u16 = 0x20;
const CAPPED: u16 = 0x100;
const TEXT: u16 = 0x200;
const V4: u8 = libc::AF_INET as u8;
const V6: u8 = libc::AF_INET6 as u8;
const CAP_ACK: i32 = 10;
const EXT_ACK: i32 = 11;
const STRICT: i32 = 12;
/// `::1`.
const ONE: [u8; 16] = 1u128.to_be_bytes();
const LOCALHOST: [u8; 4] = [127, 0, 0, 1];

/// A socket where requests that make no sense are refused.
fn strict() -> Result<i32, i32> {
    let fd = socket(RAW, 0)?;
    set_option(fd, LEVEL, STRICT, 1)?;
    Ok(fd)
}

/// sendto(2).
fn send_to(fd: i32, bytes: &[u8], to: &[u8]) -> Result<u64, i32> {
    sc!(
        SYS_sendto,
        fd,
        bytes.as_ptr(),
        bytes.len(),
        0,
        to.as_ptr(),
        to.len()
    )
}

/// The rows of an answer: all but the end, which must be there, with this errno, and all must have these flags.
fn rows(answer: Vec<Message>, errno: i32, flags: u16) -> Result<Vec<Message>, String> {
    rows_with(answer, errno, (flags, flags))
}

/// As [`rows`], with flags of the rows and of the end.
fn rows_with(
    mut answer: Vec<Message>,
    errno: i32,
    flags: (u16, u16),
) -> Result<Vec<Message>, String> {
    let last = answer.pop().ok_or("no answer")?;
    if (last.kind, last.errno(), last.body.len(), last.flags) != (DONE, errno, 4, flags.1) {
        return Err(format!("the end is {last:x?}"));
    }
    for message in &answer {
        if (message.flags, message.sequence) != (flags.0, SEQUENCE) {
            return Err(format!("flags of {message:x?}"));
        }
    }
    Ok(answer)
}

/// Addresses as an answer has them: the structure, the address.
fn addresses(answer: &[Message]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let both = |m: &Message| (m.body[..8].to_vec(), m.attribute(8, 1).unwrap_or_default());
    answer.iter().map(both).collect()
}

/// Routes as an answer has them: family and length, type, table, destination, interface.
fn routes(answer: &[Message]) -> Vec<(u8, u8, u8, u32, Vec<u8>, u32)> {
    let parts = |m: &Message| {
        let to = m.attribute(12, 1).unwrap_or_default();
        let (table, by) = (m.number(12, 15).unwrap_or(0), m.number(12, 4).unwrap_or(0));
        (m.body[0], m.body[1], m.body[7], table, to, by)
    };
    answer.iter().map(parts).collect()
}

/// A struct ifaddrmsg of loopback.
fn loopback(family: u8, len: u8) -> Vec<u8> {
    vec![family, len, 0x80, 254, 1, 0, 0, 0]
}

tests! { "netlink";
    kinds_of_sockets_and_protocols {
        for (kind, number) in [(RAW, 3), (DGRAM, 2)] {
            let fd = ok!(socket(kind, 0));
            is!(option(fd, SOL, libc::SO_TYPE), Ok(number));
            is!(option(fd, SOL, libc::SO_DOMAIN), Ok(libc::AF_NETLINK));
            is!(option(fd, SOL, libc::SO_PROTOCOL), Ok(0));
            is!(option(fd, SOL, libc::SO_ERROR), Ok(0));
            is!(option(fd, SOL, libc::SO_ACCEPTCONN), Ok(0));
            is!(events(fd), OUT);
            fails!(sc!(SYS_listen, fd, 1), EOPNOTSUPP);
            fails!(sc!(SYS_accept, fd, 0, 0), EOPNOTSUPP);
            fails!(sc!(SYS_shutdown, fd, libc::SHUT_RDWR), EOPNOTSUPP);
            fails!(sc!(SYS_sendto, fd, [0u8].as_ptr(), 0, 0, 0, 0), ENODATA);
            fails!(sys::write(fd, b""), ENODATA);
            fails!(sc!(SYS_sendto, fd, [0u8].as_ptr(), 1, libc::MSG_OOB, 0, 0), EOPNOTSUPP);
            fails!(recv_with(fd, 1, libc::MSG_OOB), EOPNOTSUPP);
            fails!(recv_with(fd, 1, libc::MSG_ERRQUEUE), EAGAIN);
            let mut left = 0i32;
            fails!(sc!(SYS_ioctl, fd, libc::FIONREAD, &raw mut left), ENOTTY);
            fails!(sc!(SYS_ioctl, fd, libc::TIOCOUTQ, &raw mut left), ENOTTY);
        }
        for kind in [libc::SOCK_STREAM, libc::SOCK_SEQPACKET, libc::SOCK_RDM] {
            fails!(socket(kind, 0), ESOCKTNOSUPPORT);
        }
        for protocol in [1, 22, 31, 32, 1000] {
            fails!(socket(RAW, protocol), EPROTONOSUPPORT);
        }
        fails!(sc!(SYS_socketpair, libc::AF_NETLINK, RAW, 0, [0u32; 2].as_mut_ptr()), EOPNOTSUPP);
    }
    a_port_is_one_sockets {
        let pid = std::process::id();
        let (a, b) = (ok!(socket(RAW, 0)), ok!(socket(RAW, 0)));
        is!(named(NAME, a), Ok(address(0, 0)));
        fails!(call_with(BIND, a, &address(0, 0)[..11]), EINVAL);
        fails!(call_with(BIND, a, &[2; 12]), EINVAL);
        ok!(call_with(BIND, a, &address(0, 0)));
        is!(named(NAME, a), Ok(address(pid, 0)));
        // Again, and to another one.
        ok!(call_with(BIND, a, &address(pid, 0)));
        fails!(call_with(BIND, a, &address(0, 0)), EINVAL);
        fails!(call_with(BIND, a, &address(pid + 1, 0)), EINVAL);
        fails!(call_with(BIND, b, &address(pid, 0)), EADDRINUSE);
        ok!(call_with(BIND, b, &address(0, 0)));
        let other = word(&ok!(named(NAME, b)), 4);
        holds!(other >> 31 == 1);
        // A send and a connect choose one, too.
        let (c, d) = (ok!(socket(RAW, 0)), ok!(socket(RAW, 0)));
        ok!(send(c, b"xx"));
        ok!(call_with(CONNECT, d, &address(0, 0)));
        let (c, d) = (word(&ok!(named(NAME, c)), 4), word(&ok!(named(NAME, d)), 4));
        holds!(c != 0 && d != 0 && c != d && ![c, d].contains(&other));
        // A closed socket's is free.
        ok!(sys::close(a));
        let e = ok!(socket(RAW, 0));
        let mut raw = address(0, 0x8000_0001);
        raw.extend([0; 9]);
        ok!(call_with(BIND, e, &raw));
        is!(named(NAME, e), Ok(address(pid, 0x8000_0001)));
        ok!(call_with(BIND, ok!(socket(RAW, 0)), &address(pid + 0x100_0000, 0)));
    }
    where_a_send_goes {
        ok!(alone());
        let fd = ok!(socket(RAW, 0));
        let one = request(GETLINK, REQUEST, &link(0, 1, 0, 0));
        is!(named(PEER, fd), Ok(address(0, 0)));
        is!(send_to(fd, &one, &address(0, 0)), Ok(32));
        is!(ok!(waiting(fd)).len(), 1);
        is!(send_to(fd, &one, &[]), Ok(32));
        is!(ok!(waiting(fd)).len(), 1);
        fails!(send_to(fd, &one, &address(0, 0)[..11]), EINVAL);
        fails!(send_to(fd, &one, &[2; 12]), EINVAL);
        fails!(send_to(fd, &one, &address(0x7654_3210, 0)), ECONNREFUSED);
        fails!(call_with(CONNECT, fd, &address(0, 0)[..11]), EINVAL);
        fails!(call_with(CONNECT, fd, &[16]), EINVAL);
        fails!(call_with(CONNECT, fd, &[2; 12]), EINVAL);
        ok!(call_with(CONNECT, fd, &address(0x7654_3210, 0)));
        is!(named(PEER, fd), Ok(address(0x7654_3210, 0)));
        fails!(send(fd, &one), ECONNREFUSED);
        // It hears its peer alone.
        is!(send_to(fd, &one, &address(0, 0)), Ok(32));
        ok!(call_with(CONNECT, fd, &[0; 2]));
        is!(named(PEER, fd), Ok(address(0, 0)));
        is!(ok!(waiting(fd)), vec![]);
        is!(send(fd, &one), Ok(32));
        is!(ok!(waiting(fd)).len(), 1);
        let most = 212_992 - 32;
        is!(send(fd, &vec![0; most]), Ok(most as u64));
        fails!(send(fd, &vec![0; most + 1]), EMSGSIZE);
        fails!(sc!(SYS_sendto, fd, 8, 32, 0, 0, 0), EFAULT);
        fails!(crate::socket_calls::send_with(fd, &one, &crate::socket_calls::control(libc::SCM_RIGHTS, &[0])), EINVAL);
    }
    interfaces {
        ok!(alone());
        let fd = ok!(socket(RAW, 0));
        let named_lo = |number| [link(0, 0, 0, 0), attribute(number, b"lo\0")].concat();
        let all = rows(ok!(ask(fd, GETLINK, DUMP, &link(0, 0, 0, 0))), 0, MULTI)?;
        let short = rows(ok!(ask(fd, GETLINK, DUMP, &[17])), 0, MULTI)?;
        let packet = rows(ok!(ask(fd, GETLINK, DUMP, &link(17, 9, 0, 0))), 0, MULTI)?;
        is!((all.len(), short.len(), packet.len()), (1, 1, 1));
        for body in [link(0, 1, 0, 0), named_lo(3), named_lo(53)] {
            let mut one = ok!(ask(fd, GETLINK, REQUEST, &body));
            is!(one.len(), 1);
            is!(one[0].flags, 0);
            one.extend(rows(ok!(ask(fd, GETLINK, DUMP, &link(0, 0, 0, 0))), 0, MULTI)?);
            for lo in one {
                is!(lo.kind, libc::RTM_NEWLINK);
                is!(lo.port, word(&ok!(named(NAME, fd)), 4));
                // ARPHRD_LOOPBACK; IFF_UP, IFF_LOOPBACK, IFF_RUNNING, IFF_LOWER_UP.
                is!((lo.body[0], lo.body[2], lo.body[3]), (0, 4, 3));
                is!((word(&lo.body, 4), word(&lo.body, 8), word(&lo.body, 12)), (1, 0x1_0049, 0));
                is!(lo.attribute(16, 3), Some(b"lo\0".to_vec()));
                is!((lo.attribute(16, 1), lo.attribute(16, 2)), (Some(vec![0; 6]), Some(vec![0; 6])));
                is!((lo.number(16, 4), lo.number(16, 13)), (Some(65_536), Some(1000)));
                is!(lo.attribute(16, 6), Some(b"noqueue\0".to_vec()));
                is!((lo.attribute(16, 16), lo.attribute(16, 17), lo.attribute(16, 33)), (Some(vec![0]), Some(vec![0]), Some(vec![1])));
                is!((lo.attribute(16, 23).map(|s| s.len()), lo.attribute(16, 7).map(|s| s.len())), (Some(200), Some(96)));
            }
        }
        for (body, errno) in [
            (link(0, 9, 0, 0), libc::ENODEV),
            ([link(0, 0, 0, 0), attribute(3, b"nosuch\0")].concat(), libc::ENODEV),
            (link(0, 0, 0, 0), libc::EINVAL),
            (link(0, u32::MAX, 0, 0), libc::EINVAL),
            (vec![0; 4], libc::EINVAL),
            ([link(0, 0, 0, 0), attribute(3, &[b'x'; 16])].concat(), libc::ERANGE),
            ([link(0, 0, 0, 0), attribute(53, &[b'x'; 127])].concat(), libc::ENODEV),
            ([link(0, 0, 0, 0), attribute(53, &[b'x'; 128])].concat(), libc::ERANGE),
        ] {
            is!(end(&ok!(ask(fd, GETLINK, REQUEST, &body))), (ERROR, errno));
        }
        // As IPv6 sees it, and bridges.
        let v6 = rows(ok!(ask(fd, GETLINK, DUMP, &link(V6, 0, 0, 0))), 0, MULTI)?;
        is!((v6.len(), v6[0].body[0], v6[0].attribute(16, 3)), (1, V6, Some(b"lo\0".to_vec())));
        is!(rows(ok!(ask(fd, GETLINK, DUMP, &link(7, 0, 0, 0))), 0, MULTI)?, vec![]);
        let of_bridge = [link(0, 0, 0, 0), attribute(10, &5u32.to_ne_bytes())].concat();
        is!(rows(ok!(ask(fd, GETLINK, DUMP, &of_bridge)), 0, MULTI)?, vec![]);
        let fd = ok!(strict());
        is!(rows(ok!(ask(fd, GETLINK, DUMP, &link(0, 0, 0, 0))), 0, MULTI)?.len(), 1);
        is!(rows(ok!(ask(fd, GETLINK, DUMP, &link(0, 1, 0, 0))), libc::EINVAL, MULTI)?, vec![]);
        is!(rows(ok!(ask(fd, GETLINK, DUMP, &[0])), libc::EINVAL, MULTI)?, vec![]);
        is!(end(&ok!(ask(fd, GETLINK, REQUEST, &link(0, 1, 1, 0)))), (ERROR, libc::EINVAL));
    }
    addresses_of_interfaces {
        ok!(alone());
        let fd = ok!(socket(DGRAM, 0));
        let v4 = (loopback(V4, 8), LOCALHOST.to_vec());
        let v6 = (loopback(V6, 128), ONE.to_vec());
        let family = |family: u8, index: u8| vec![family, 0, 0, 0, index, 0, 0, 0];
        for (asked, expected) in [(0, vec![v4.clone(), v6.clone()]), (17, vec![v4.clone(), v6.clone()]), (V4, vec![v4.clone()]), (V6, vec![v6.clone()])] {
            // Without the option, the interface does not matter, nor the length of the structure.
            for body in [family(asked, 9), vec![asked]] {
                let all = rows(ok!(ask(fd, GETADDR, DUMP, &body)), 0, MULTI)?;
                is!(addresses(&all), expected);
                is!(all[0].kind, libc::RTM_NEWADDR);
                for address in &all {
                    is!(address.number(8, 8), Some(0x80));
                    is!(address.attribute(8, 6).map(|times| times[..8].to_vec()), Some(vec![0xff; 8]));
                }
            }
        }
        let all = rows(ok!(ask(fd, GETADDR, DUMP, &family(V4, 0))), 0, MULTI)?;
        is!((all[0].attribute(8, 2), all[0].attribute(8, 3)), (Some(LOCALHOST.to_vec()), Some(b"lo\0".to_vec())));
        // One alone: of IPv6.
        for number in [1, 2] {
            let one = ok!(ask(fd, GETADDR, REQUEST, &[family(V6, 0), attribute(number, &ONE)].concat()));
            is!((addresses(&one), one[0].flags), (vec![v6.clone()], 0));
        }
        let other = [family(V6, 0), attribute(1, &[1; 16])].concat();
        is!(end(&ok!(ask(fd, GETADDR, REQUEST, &other))), (ERROR, libc::EADDRNOTAVAIL));
        is!(end(&ok!(ask(fd, GETADDR, REQUEST, &family(V6, 0)))), (ERROR, libc::EINVAL));
        let one = [family(V4, 0), attribute(2, &LOCALHOST)].concat();
        is!(end(&ok!(ask(fd, GETADDR, REQUEST, &one))), (ERROR, libc::EOPNOTSUPP));
        is!(end(&ok!(ask(fd, GETADDR, REQUEST, &family(0, 0)))), (ERROR, libc::EOPNOTSUPP));
        let fd = ok!(strict());
        for asked in [0, V4, V6] {
            let all = rows(ok!(ask(fd, GETADDR, DUMP, &family(asked, 1))), 0, MULTI | FILTERED)?;
            is!(all.len(), if asked == 0 { 2 } else { 1 });
            is!(rows(ok!(ask(fd, GETADDR, DUMP, &family(asked, 9))), libc::ENODEV, MULTI | FILTERED)?, vec![]);
        }
        is!(rows(ok!(ask(fd, GETADDR, DUMP, &[V4, 8, 0, 0, 0, 0, 0, 0])), libc::EINVAL, MULTI)?, vec![]);
        is!(rows(ok!(ask(fd, GETADDR, DUMP, &[V4])), libc::EINVAL, MULTI)?, vec![]);
    }
    tables_of_routes {
        ok!(alone());
        let fd = ok!(socket(RAW, 0));
        let v4 = |len, fate, to: [u8; 4]| (V4, len, fate, 255, to.to_vec(), 1);
        let of_v4 = vec![v4(8, 2, [127, 0, 0, 0]), v4(32, 2, LOCALHOST), v4(32, 3, [127, 255, 255, 255])];
        let of_v6 = vec![(V6, 128, 2, 255, ONE.to_vec(), 1)];
        let both = [of_v4.clone(), of_v6.clone()].concat();
        for (family, expected) in [(0, &both), (17, &both), (V4, &of_v4), (V6, &of_v6)] {
            for body in [route(family, 0, [254, 3, 1], 0), vec![family]] {
                let all = rows(ok!(ask(fd, GETROUTE, DUMP, &body)), 0, MULTI)?;
                is!(routes(&all), *expected);
                for route in all.iter().filter(|route| route.body[0] == V4) {
                    is!(route.attribute(12, 7), Some(LOCALHOST.to_vec()));
                }
            }
        }
        let announced = route(V6, 0, [0; 3], 0x800);
        is!(rows(ok!(ask(fd, GETROUTE, DUMP, &announced)), 0, MULTI)?, vec![]);
        let fd = ok!(strict());
        let table = |family, number: u32| [route(family, 0, [0; 3], 0), attribute(15, &number.to_ne_bytes())].concat();
        let by = |number: u32| [route(V4, 0, [0; 3], 0), attribute(4, &number.to_ne_bytes())].concat();
        let chosen = MULTI | FILTERED;
        for (body, expected) in [
            (table(V4, 254), &vec![]),
            (table(V6, 254), &vec![]),
            (table(0, 254), &vec![]),
            (table(0, 77), &vec![]),
            (table(V4, 255), &of_v4),
            (table(V6, 255), &of_v6),
            (route(V4, 0, [255, 0, 0], 0), &of_v4),
            (route(V4, 0, [0, 3, 0], 0), &vec![]),
            (route(V4, 0, [0, 2, 0], 0), &of_v4),
            (route(V4, 0, [0, 0, 3], 0), &of_v4[2..].to_vec()),
            (route(V4, 0, [0; 3], 0x200), &vec![]),
            (by(1), &of_v4),
        ] {
            is!(routes(&rows(ok!(ask(fd, GETROUTE, DUMP, &body)), 0, chosen)?), *expected);
        }
        let all = ok!(ask(fd, GETROUTE, DUMP, &route(0, 0, [0; 3], 0)));
        is!(routes(&rows_with(all, 0, (chosen, MULTI))?), both);
        is!(rows(ok!(ask(fd, GETROUTE, DUMP, &table(V6, 77))), libc::ENOENT, chosen)?, vec![]);
        is!(rows(ok!(ask(fd, GETROUTE, DUMP, &by(9))), libc::ENODEV, MULTI)?, vec![]);
        for body in [vec![V4], route(V4, 24, [0; 3], 0), [route(V4, 0, [0; 3], 0), attribute(1, &LOCALHOST)].concat()] {
            is!(rows(ok!(ask(fd, GETROUTE, DUMP, &body)), libc::EINVAL, MULTI)?, vec![]);
        }
    }
    the_way_to_an_address {
        ok!(alone());
        let fd = ok!(socket(RAW, 0));
        let to = |ip: &[u8], flags| {
            let family = if ip.len() == 4 { V4 } else { V6 };
            [route(family, 8 * ip.len() as u8, [0; 3], flags), attribute(1, ip)].concat()
        };
        for (ip, fate) in [(LOCALHOST, 2), ([127, 3, 4, 5], 2), ([127, 255, 255, 255], 3)] {
            let one = ok!(ask(fd, GETROUTE, REQUEST, &to(&ip, 0)));
            is!(routes(&one), vec![(V4, 32, fate, 254, ip.to_vec(), 1)]);
            is!((one[0].flags, one[0].attribute(12, 7)), (0, Some(LOCALHOST.to_vec())));
            is!(one[0].number(12, 25), Some(0));
            // RTM_F_CLONED, and that the address is this machine's.
            is!(word(&one[0].body, 8) & 0x8000_0200, 0x8000_0200);
        }
        // From an address.
        let from = |ip: [u8; 4]| [to(&LOCALHOST, 0), attribute(2, &ip)].concat();
        let one = ok!(ask(fd, GETROUTE, REQUEST, &from(LOCALHOST)));
        is!((one[0].body[2], one[0].attribute(12, 2), one[0].attribute(12, 7)), (32, Some(LOCALHOST.to_vec()), None));
        is!(routes(&ok!(ask(fd, GETROUTE, REQUEST, &to(&ONE, 0)))), vec![(V6, 128, 2, 255, ONE.to_vec(), 1)]);
        // RTM_F_FIB_MATCH: the route itself.
        let one = ok!(ask(fd, GETROUTE, REQUEST, &to(&[127, 3, 4, 5], 0x2000)));
        is!((one[0].body[1], one[0].attribute(12, 1)), (8, Some(vec![127, 0, 0, 0])));
        let by = |number: u32| [to(&LOCALHOST, 0), attribute(4, &number.to_ne_bytes())].concat();
        is!(routes(&ok!(ask(fd, GETROUTE, REQUEST, &by(1)))).len(), 1);
        for (body, errno) in [
            (to(&[8; 4], 0), libc::ENETUNREACH),
            (to(&[255; 4], 0), libc::ENETUNREACH),
            (to(&[0x20; 16], 0), libc::ENETUNREACH),
            (to(&MAPPED, 0), libc::ENETUNREACH),
            (route(V6, 0, [0; 3], 0), libc::ENETUNREACH),
            (by(9), libc::ENODEV),
            (to(&[127; 3], 0), libc::ERANGE),
            (vec![V4], libc::EINVAL),
            (vec![0; 12], libc::EOPNOTSUPP),
        ] {
            let mut body = body;
            body[0] = if errno == libc::ERANGE { V4 } else { body[0] };
            is!(end(&ok!(ask(fd, GETROUTE, REQUEST, &body))), (ERROR, errno));
        }
        let body = [route(V4, 8, [0; 3], 0), attribute(1, &LOCALHOST)].concat();
        is!(routes(&ok!(ask(fd, GETROUTE, REQUEST, &body))).len(), 1);
        let fd = ok!(strict());
        is!(end(&ok!(ask(fd, GETROUTE, REQUEST, &body))), (ERROR, libc::EINVAL));
        let body = [route(V4, 0, [0; 3], 0), attribute(1, &LOCALHOST)].concat();
        is!(end(&ok!(ask(fd, GETROUTE, REQUEST, &body))), (ERROR, libc::EINVAL));
        is!(routes(&ok!(ask(fd, GETROUTE, REQUEST, &to(&LOCALHOST, 0)))).len(), 1);
        is!(routes(&ok!(ask(fd, GETROUTE, REQUEST, &route(V4, 32, [0; 3], 0)))).len(), 1);
        is!(end(&ok!(ask(fd, GETROUTE, REQUEST, &route(V4, 24, [0; 3], 0)))), (ERROR, libc::EINVAL));
    }
    rules_and_neighbours {
        ok!(alone());
        let fd = ok!(socket(RAW, 0));
        let rule = |m: &Message| (m.number(12, 6).unwrap_or(0), m.number(12, 15).unwrap_or(0), m.body[7]);
        for (family, expected) in [(V4, vec![(0, 255, 1), (32_766, 254, 1), (32_767, 253, 1)]), (V6, vec![(0, 255, 1), (32_766, 254, 1)])] {
            let all = rows(ok!(ask(fd, libc::RTM_GETRULE, DUMP, &[[family, 0, 0, 0], [0; 4], [0; 4]].concat())), 0, MULTI)?;
            is!(all.iter().map(rule).collect::<Vec<_>>(), expected);
            is!(all[0].kind, libc::RTM_NEWRULE);
        }
        is!(rows(ok!(ask(fd, libc::RTM_GETRULE, DUMP, &[17; 12])), libc::EAFNOSUPPORT, MULTI)?, vec![]);
        for family in [0, V4, V6] {
            is!(rows(ok!(ask(fd, libc::RTM_GETNEIGH, DUMP, &[[family, 0, 0, 0], [0; 4], [0; 4]].concat())), 0, MULTI)?, vec![]);
        }
    }
    errors_and_acknowledgements {
        ok!(alone());
        let fd = ok!(socket(RAW, 0));
        let none = request(GETLINK, REQUEST, &link(0, 9, 0, 0));
        let one = link(0, 1, 0, 0);
        // An error repeats the request, and another reply its head.
        let repeats = |reply: &Message, flags: u16, errno: i32, request: &[u8]| {
            let port = word(&named(NAME, fd).unwrap_or_default(), 4);
            (reply.kind, reply.flags, reply.sequence, reply.port) == (ERROR, flags, SEQUENCE, port)
                && reply.errno() == errno && reply.body[4..] == *request
        };
        ok!(send(fd, &none));
        let got = ok!(waiting(fd));
        holds!(got.len() == 1 && repeats(&got[0], 0, libc::ENODEV, &none));
        let got = ok!(ask(fd, GETLINK, ACK, &one));
        is!((got.len(), got[0].kind), (2, libc::RTM_NEWLINK));
        holds!(repeats(&got[1], CAPPED, 0, &request(GETLINK, ACK, &one)[..16]));
        // What is no request, and what is for all protocols, is acknowledged and no more.
        for (kind, flags) in [(GETLINK, 4), (0, ACK), (2, ACK), (3, ACK), (15, ACK)] {
            let got = ok!(ask(fd, kind, flags, &one));
            holds!(got.len() == 1 && repeats(&got[0], CAPPED, 0, &request(kind, flags, &one)[..16]));
        }
        is!(ok!(ask(fd, GETLINK, 0x300, &one)), vec![]);
        is!(ok!(ask(fd, 0, REQUEST, &one)), vec![]);
        is!(ok!(ask(fd, GETLINK, DUMP, &[])), vec![]);
        is!(end(&ok!(ask(fd, GETLINK, ACK, &[]))), (ERROR, 0));
        for kind in [124, 200, 65_535] {
            is!(end(&ok!(ask(fd, kind, REQUEST, &one))), (ERROR, libc::EOPNOTSUPP));
        }
        is!(end(&ok!(ask(fd, 54, DUMP, &one))), (ERROR, libc::EOPNOTSUPP));
        // Several in one send, the last of which is cut.
        let mut several = [none.clone(), request(GETLINK, ACK, &one), none.clone()].concat();
        ok!(send(fd, &several));
        is!(ok!(waiting(fd)).iter().map(|m| m.kind).collect::<Vec<_>>(), vec![ERROR, libc::RTM_NEWLINK, ERROR, ERROR]);
        several.pop();
        ok!(send(fd, &several));
        is!(ok!(waiting(fd)).len(), 3);
        for len in [15u32, 33] {
            let mut wrong = none.clone();
            wrong[..4].copy_from_slice(&len.to_ne_bytes());
            ok!(send(fd, &wrong));
            is!(ok!(waiting(fd)), vec![]);
        }
        // NETLINK_CAP_ACK.
        ok!(set_option(fd, LEVEL, CAP_ACK, 1));
        ok!(send(fd, &none));
        holds!(repeats(&ok!(waiting(fd))[0], CAPPED, libc::ENODEV, &none[..16]));
        // NETLINK_EXT_ACK: an error may have a text.
        ok!(set_option(fd, LEVEL, EXT_ACK, 1));
        ok!(set_option(fd, LEVEL, STRICT, 1));
        let got = ok!(ask(fd, GETLINK, DUMP, &link(0, 1, 0, 0)));
        is!((got.len(), got[0].kind, got[0].flags), (1, DONE, MULTI | TEXT));
        holds!(got[0].attribute(4, 1).is_some_and(|text| text.len() > 9 && text.ends_with(b"\0")));
    }
    receiving {
        ok!(alone());
        let fd = ok!(socket(RAW, 0));
        fails!(recv(fd, 9), EAGAIN);
        let one = request(GETLINK, REQUEST, &link(0, 1, 0, 0));
        ok!(sys::write(fd, &one));
        is!(events(fd), IN | OUT);
        let flags = libc::MSG_PEEK | libc::MSG_TRUNC;
        let whole = ok!(sc!(SYS_recvfrom, fd, [0u8; 2].as_mut_ptr(), 2, flags, 0, 0));
        holds!(whole > 300);
        is!(ok!(recv_with(fd, 9, libc::MSG_PEEK)).len(), 9);
        let (mut raw, mut len) = ([9u8; 20], 20u32);
        is!(sc!(SYS_recvfrom, fd, [0u8; 9].as_mut_ptr(), 9, libc::MSG_PEEK, raw.as_mut_ptr(), &raw mut len), Ok(9));
        is!(raw[..len as usize], address(0, 0)[..]);
        let (bytes, _, flags) = ok!(receive(fd, 9, 0, 0));
        is!((bytes.len(), flags), (9, libc::MSG_TRUNC));
        fails!(recv(fd, 9), EAGAIN);
        // NETLINK_PKTINFO and SO_PASSCRED.
        ok!(set_option(fd, LEVEL, 3, 1));
        ok!(set_option(fd, SOL, libc::SO_PASSCRED, 1));
        is!(option(fd, SOL, libc::SO_PASSCRED), Ok(1));
        ok!(sys::write(fd, &one));
        let (bytes, words, _) = ok!(receive(fd, 9999, 100, 0));
        is!(bytes.len() as u64, whole);
        let group = [20, 0, LEVEL, 3, 0];
        let ids = [28, 0, SOL, libc::SCM_CREDENTIALS, 0, 0, 0];
        holds!(words.windows(5).any(|part| part == group) && words.windows(7).any(|part| part == ids));
        // read(2), by a thread that waits; a wait with an end.
        ok!(sc!(SYS_fcntl, fd, libc::F_SETFL, 0));
        let child = ok!(crate::socket_calls::beside(|| sys::read(fd, &mut [0; 9999]) == Ok(whole as usize)));
        ok!(sc!(SYS_nanosleep, [0i64, 20_000_000].as_ptr(), 0));
        ok!(sys::write(fd, &one));
        holds!(crate::socket_calls::ended(child));
        ok!(sc!(SYS_setsockopt, fd, SOL, libc::SO_RCVTIMEO, [0i64, 20_000].as_ptr(), 16));
        fails!(recv(fd, 9), EAGAIN);
        ok!(sys::write(fd, &one));
        fails!(sc!(SYS_recvfrom, fd, 8, 9999, 0, 0, 0), EFAULT);
    }
    epoll_sees_answers {
        ok!(alone());
        let (fd, set) = (ok!(socket(RAW, 0)), ok!(sc!(SYS_epoll_create1, 0)));
        let entry = [libc::EPOLLIN as u32 | libc::EPOLLET as u32, 7, 0];
        ok!(sc!(SYS_epoll_ctl, set, libc::EPOLL_CTL_ADD, fd, entry.as_ptr()));
        let mut out = [0u32; 3];
        let mut wait = || sc!(SYS_epoll_wait, set, out.as_mut_ptr(), 1, 0).map(|n| (n, out[0], out[1]));
        is!(ok!(wait()).0, 0);
        ok!(send(fd, &request(GETADDR, DUMP, &[0; 8])));
        is!(wait(), Ok((1, libc::EPOLLIN as u32, 7)));
        is!(ok!(wait()).0, 0);
        is!(ok!(waiting(fd)).len(), 3);
    }
    what_is_not_received_is_bounded {
        ok!(alone());
        let fd = ok!(socket(RAW, 0));
        ok!(set_option(fd, SOL, libc::SO_RCVBUF, 1));
        is!(option(fd, SOL, libc::SO_RCVBUF), Ok(2304));
        let many = request(GETLINK, REQUEST, &link(0, 1, 0, 0)).repeat(9);
        is!(send(fd, &many), Ok(9 * 32));
        is!(events(fd), IN | OUT | ERR);
        fails!(recv(fd, 9999), ENOBUFS);
        let left = ok!(waiting(fd)).len();
        holds!((1..9).contains(&left));
        ok!(send(fd, &many));
        is!(option(fd, SOL, libc::SO_ERROR), Ok(libc::ENOBUFS));
        is!(ok!(waiting(fd)).len(), left);
        // NETLINK_NO_ENOBUFS.
        ok!(set_option(fd, LEVEL, 5, 1));
        ok!(send(fd, &many));
        is!(ok!(waiting(fd)).len(), left);
        // A table needs room for one datagram alone.
        is!(end(&ok!(ask(fd, GETROUTE, DUMP, &route(0, 0, [0; 3], 0)))), (DONE, 0));
    }
    settings {
        let fd = ok!(socket(RAW, 0));
        for number in [3, 4, 5, 8, 10, 11, 12] {
            is!(option(fd, LEVEL, number), Ok(0));
            ok!(set_option(fd, LEVEL, number, 7));
            is!(option(fd, LEVEL, number), Ok(1));
            // What is too short is 0.
            ok!(sc!(SYS_setsockopt, fd, LEVEL, number, [1u8].as_ptr(), 1));
            is!(option(fd, LEVEL, number), Ok(0));
        }
        for number in [1, 2, 13, 99] {
            fails!(option(fd, LEVEL, number), ENOPROTOOPT);
        }
        fails!(set_option(fd, LEVEL, 99, 1), ENOPROTOOPT);
        fails!(set_option(fd, libc::IPPROTO_TCP, 1, 1), ENOPROTOOPT);
        fails!(option(fd, libc::IPPROTO_IP, 1), ENOPROTOOPT);
        // Groups.
        let list = |room: u32| {
            let (mut words, mut len) = ([0u32; 2], room);
            sc!(SYS_getsockopt, fd, LEVEL, 9, words.as_mut_ptr(), &raw mut len).map(|_| (words, len))
        };
        is!(list(8), Ok(([0; 2], 0)));
        for group in [1, 5, 33, 36] {
            ok!(set_option(fd, LEVEL, 1, group));
        }
        is!(list(8), Ok(([0x11, 9], 8)));
        is!(list(4), Ok(([0x11, 0], 8)));
        is!(list(0), Ok(([0; 2], 8)));
        ok!(set_option(fd, LEVEL, 2, 1));
        ok!(set_option(fd, LEVEL, 2, 36));
        ok!(set_option(fd, LEVEL, 2, 6));
        is!(list(8), Ok(([0x10, 1], 8)));
        is!(named(NAME, fd), Ok(address(0, 0x10)));
        for group in [0, -1, 9999] {
            fails!(set_option(fd, LEVEL, 1, group), EINVAL);
        }
        fails!(sc!(SYS_setsockopt, fd, LEVEL, 1, [5u8].as_ptr(), 1), EINVAL);
        ok!(set_option(fd, SOL, libc::SO_SNDBUF, 32_768));
        is!(option(fd, SOL, libc::SO_SNDBUF), Ok(65_536));
        ok!(set_option(fd, SOL, libc::SO_REUSEADDR, 1));
    }
    changes_need_a_capability {
        ok!(alone());
        let up = libc::IFF_UP as u32;
        let fd = ok!(socket(RAW, 0));
        // What is so already can be asked for; that an interface has another type of hardware cannot.
        is!(end(&ok!(ask(fd, libc::RTM_NEWLINK, ACK, &link(0, 1, up, up)))), (ERROR, 0));
        is!(end(&ok!(ask(fd, libc::RTM_SETLINK, ACK, &link(0, 1, up, up)))), (ERROR, 0));
        is!(end(&ok!(ask(fd, libc::RTM_NEWLINK, ACK, &link(0, 0, 0, 0)))), (ERROR, libc::ENODEV));
        is!(end(&ok!(ask(fd, libc::RTM_NEWLINK, ACK, &link(0, 9, up, up)))), (ERROR, libc::ENODEV));
        is!(end(&ok!(ask(fd, libc::RTM_SETLINK, ACK, &link(0, 0, 0, 0)))), (ERROR, libc::EINVAL));
        holds!(end(&ok!(ask(fd, libc::RTM_DELLINK, ACK, &link(0, 1, 0, 0)))).1 != 0);
        ok!(sc!(SYS_setresuid, 1000, 1000, 1000));
        for (number, kind) in [(0, libc::RTM_NEWLINK), (0, libc::RTM_DELLINK), (0, libc::RTM_SETLINK), (2, libc::RTM_NEWADDR), (2, libc::RTM_DELROUTE)] {
            let got = ok!(ask(fd, kind, ACK, &link(number, 1, up, up)));
            is!(end(&got), (ERROR, libc::EPERM));
        }
        // Such a user is answered, but sends to no other socket.
        let mine = ok!(socket(RAW, 0));
        let one = request(GETLINK, REQUEST, &link(0, 1, 0, 0));
        is!(send_to(mine, &one, &address(0, 0)), Ok(32));
        is!(ok!(waiting(mine)).len(), 1);
        let to = [route(V4, 32, [0; 3], 0), attribute(1, &LOCALHOST)].concat();
        is!(ok!(ask(mine, GETROUTE, REQUEST, &to))[0].number(12, 25), Some(1000));
        for to in [address(77, 0), address(0, 1)] {
            fails!(send_to(mine, &one, &to), EPERM);
            fails!(call_with(CONNECT, mine, &to), EPERM);
        }
        ok!(call_with(CONNECT, mine, &address(0, 0)));
        fails!(set_option(mine, LEVEL, 8, 1), EPERM);
        ok!(call_with(BIND, ok!(socket(RAW, 0)), &address(0, 1)));
        ok!(set_option(mine, LEVEL, 1, 1));
    }
}
