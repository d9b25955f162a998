//! Datagrams of the internet over the loopback interface, and what tells of the interface.

use crate::harness::*;
use crate::inet_calls::*;
use crate::socket_calls::{DGRAM, ERR, HUP, IN, OUT, RDHUP, events, recv, recv_with, send};
use user::sys;

const SOL: i32 = libc::SOL_SOCKET;
const IP: i32 = libc::IPPROTO_IP;
const NAME: i64 = libc::SYS_getsockname;
const PEER: i64 = libc::SYS_getpeername;

/// Two sockets of a family, the second at a port, which is returned.
fn two(family: i32) -> Result<(i32, i32, u16), i32> {
    let (a, b) = (udp(family)?, udp(family)?);
    bind(b, loopback(family), 0)?;
    Ok((a, b, port(b)?))
}

/// recvfrom(2): the bytes and the address.
fn receive_from(fd: i32) -> Result<(Vec<u8>, Vec<u8>), i32> {
    let (mut bytes, mut raw, mut len) = ([0u8; 99], [0u8; 99], 99u32);
    let (to, at) = (bytes.as_mut_ptr(), raw.as_mut_ptr());
    let n = sc!(SYS_recvfrom, fd, to, 99, 0, at, &raw mut len)?;
    Ok((bytes[..n as usize].to_vec(), raw[..len as usize].to_vec()))
}

/// recvmsg(2): the words of the control messages.
fn notes(fd: i32) -> Result<Vec<i32>, i32> {
    crate::socket_calls::receive(fd, 99, 128, 0).map(|(_, words, _)| words)
}

tests! { "udp";
    packets_keep_their_bounds {
        for family in FAMILIES {
            let own = loopback(family);
            let (a, b, port) = ok!(two(family));
            is!((events(a), events(b)), (OUT, OUT));
            fails!(recv(b, 9), EAGAIN);
            is!(send_to(a, b"one", own, port), Ok(3));
            is!(send_to(a, b"", own, port), Ok(0));
            is!(send_to(a, b"three", own, port), Ok(5));
            is!(events(b), IN | OUT);
            let mut left = 0i32;
            ok!(sc!(SYS_ioctl, b, libc::FIONREAD, &raw mut left));
            is!(left, 3);
            let from = ok!(crate::inet_calls::port(a));
            is!(receive_from(b), Ok((b"one".to_vec(), address(own, from))));
            is!(recv(b, 9), Ok(vec![]));
            let flags = libc::MSG_TRUNC | libc::MSG_PEEK;
            is!(sc!(SYS_recvfrom, b, [0u8; 2].as_mut_ptr(), 2, flags, 0, 0), Ok(5));
            let (bytes, _, flags) = ok!(crate::socket_calls::receive(b, 2, 0, 0));
            is!((bytes, flags), (b"th".to_vec(), libc::MSG_TRUNC));
            fails!(recv(b, 9), EAGAIN);
            fails!(send(a, b"x"), EDESTADDRREQ);
            fails!(sys::write(a, b"x"), EDESTADDRREQ);
            fails!(send_to(a, b"x", own, 0), EINVAL);
            let most = if family == V4 { 65_507 } else { 65_527 };
            is!(send_to(a, &vec![1; most], own, port), Ok(most as u64));
            is!(recv(b, 70_000).map(|got| got.len()), Ok(most));
            fails!(send_to(a, &vec![1; most + 1], own, port), EMSGSIZE);
            fails!(sc!(SYS_listen, a, 1), EOPNOTSUPP);
            fails!(sc!(SYS_accept, a, 0, 0), EOPNOTSUPP);
            is!((option(a, SOL, libc::SO_TYPE), option(a, SOL, libc::SO_PROTOCOL)), (Ok(DGRAM), Ok(17)));
        }
    }
    connected_sockets_hear_their_peer_alone {
        for family in FAMILIES {
            let own = loopback(family);
            let (a, b, port) = ok!(two(family));
            fails!(named(PEER, a), ENOTCONN);
            ok!(connect(a, own, port));
            is!(named(PEER, a), Ok(address(own, port)));
            let mine = ok!(crate::inet_calls::port(a));
            is!(named(NAME, a), Ok(address(own, mine)));
            is!(send(a, b"to b"), Ok(4));
            is!(receive_from(b), Ok((b"to b".to_vec(), address(own, mine))));
            let c = ok!(udp(family));
            is!(send_to(c, b"from c", own, mine), Ok(6));
            is!(send_to(b, b"from b", own, mine), Ok(6));
            is!(recv(a, 9), Ok(b"from b".to_vec()));
            fails!(recv(a, 9), EAGAIN);
            // Another peer, and none.
            let d = ok!(udp(family));
            ok!(bind(d, own, 0));
            is!(send_to(a, b"x", own, ok!(crate::inet_calls::port(d))), Ok(1));
            is!(recv(d, 9), Ok(b"x".to_vec()));
            ok!(connect(a, own, ok!(crate::inet_calls::port(d))));
            is!(send(a, b"y"), Ok(1));
            is!(recv(d, 9), Ok(b"y".to_vec()));
            ok!(sc!(SYS_connect, a, [0u64; 4].as_ptr(), 28));
            fails!(named(PEER, a), ENOTCONN);
            fails!(send(a, b"x"), EDESTADDRREQ);
        }
    }
    a_port_of_nobody {
        for family in FAMILIES {
            let own = loopback(family);
            let (a, b, port) = ok!(two(family));
            ok!(sys::close(b));
            is!(send_to(a, b"x", own, port), Ok(1));
            is!(option(a, SOL, libc::SO_ERROR), Ok(0));
            ok!(connect(a, own, port));
            is!(send(a, b"x"), Ok(1));
            await_events(a, ERR);
            is!(events(a), OUT | ERR);
            fails!(send(a, b"x"), ECONNREFUSED);
            is!(send(a, b"x"), Ok(1));
            await_events(a, ERR);
            fails!(recv(a, 9), ECONNREFUSED);
            fails!(recv(a, 9), EAGAIN);
            is!(send(a, b"x"), Ok(1));
            await_events(a, ERR);
            is!(option(a, SOL, libc::SO_ERROR), Ok(libc::ECONNREFUSED));
        }
        fails!(send_to(ok!(udp(V4)), b"x", "255.255.255.255", 9), EACCES | ENETUNREACH);
    }
    what_is_not_received_is_bounded {
        let (a, b, port) = ok!(two(V4));
        ok!(set_option(b, SOL, libc::SO_RCVBUF, 4096));
        is!(option(b, SOL, libc::SO_RCVBUF), Ok(8192));
        for _ in 0..200 { is!(send_to(a, &[1; 500], "127.0.0.1", port), Ok(500)); }
        let count = std::iter::from_fn(|| recv(b, 600).ok()).count();
        holds!((2..=16).contains(&count));
        // There is room again.
        is!(send_to(a, b"again", "127.0.0.1", port), Ok(5));
        is!(recv(b, 9), Ok(b"again".to_vec()));
    }
    ports {
        let (_a, _b, port) = ok!(two(V4));
        let other = ok!(udp(V4));
        fails!(bind(other, "127.0.0.1", port), EADDRINUSE);
        fails!(bind(other, "0.0.0.0", port), EADDRINUSE);
        ok!(bind(other, "127.0.0.2", port));
        fails!(bind(other, "127.0.0.2", 0), EINVAL);
        // The most special address wins.
        let all = ok!(udp(V4));
        let one = ok!(udp(V4));
        for fd in [all, one] { ok!(set_option(fd, SOL, libc::SO_REUSEADDR, 1)); }
        ok!(bind(all, "0.0.0.0", 0));
        let port = ok!(crate::inet_calls::port(all));
        ok!(bind(one, "127.0.0.7", port));
        is!(send_to(other, b"1", "127.0.0.7", port), Ok(1));
        is!(send_to(other, b"2", "127.0.0.8", port), Ok(1));
        is!((recv(one, 9), recv(all, 9)), (Ok(b"1".to_vec()), Ok(b"2".to_vec())));
        // A socket of IPv6 hears IPv4.
        let six = ok!(udp(V6));
        ok!(bind(six, "::", 0));
        let port = ok!(crate::inet_calls::port(six));
        is!(send_to(other, b"4", "127.0.0.1", port), Ok(1));
        is!(receive_from(six), Ok((b"4".to_vec(), address("::ffff:127.0.0.2", ok!(crate::inet_calls::port(other))))));
        is!(send_to(six, b"6", "127.0.0.2", ok!(crate::inet_calls::port(other))), Ok(1));
        is!(recv(other, 9), Ok(b"6".to_vec()));
    }
    shutdowns {
        let (a, b, port) = ok!(two(V4));
        fails!(sc!(SYS_shutdown, a, libc::SHUT_WR), ENOTCONN);
        let a2 = ok!(udp(V4));
        ok!(connect(a2, "127.0.0.1", port));
        ok!(sc!(SYS_shutdown, a2, libc::SHUT_RDWR));
        fails!(send(a2, b"x"), EPIPE);
        fails!(recv(a2, 9), EAGAIN);
        is!(events(a2), IN | OUT | RDHUP | HUP);
        ok!(sc!(SYS_fcntl, a2, libc::F_SETFL, 0));
        is!(recv(a2, 9), Ok(vec![]));
        is!(send_to(b, b"x", "127.0.0.1", ok!(crate::inet_calls::port(a2))), Ok(1));
        is!(recv(a2, 9), Ok(b"x".to_vec()));
    }
    whence_and_whither {
        let (a, b, port) = ok!(two(V4));
        ok!(set_option(b, IP, libc::IP_PKTINFO, 1));
        ok!(set_option(b, IP, libc::IP_RECVTTL, 1));
        ok!(set_option(a, IP, libc::IP_TTL, 9));
        is!(send_to(a, b"x", "127.0.0.1", port), Ok(1));
        let local = i32::from_ne_bytes([127, 0, 0, 1]);
        is!(ok!(notes(b)), vec![28, 0, IP, libc::IP_PKTINFO, 1, local, local, 0, 20, 0, IP, libc::IP_TTL, 9, 0]);
        let (a, b, port) = ok!(two(V6));
        ok!(set_option(b, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1));
        is!(send_to(a, b"x", "::1", port), Ok(1));
        let words = ok!(notes(b));
        is!(words[..4], [36, 0, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO]);
        is!(words[4..9], [0, 0, 0, 1 << 24, 1]);
    }
    several_messages_in_one_call {
        let (a, b, port) = ok!(two(V4));
        ok!(connect(a, "127.0.0.1", port));
        let texts = [b"one".as_slice(), b"two2", b"three"];
        let buffers: Vec<[u64; 2]> = texts.iter().map(|t| [t.as_ptr() as u64, t.len() as u64]).collect();
        let mut list: Vec<[u64; 8]> = buffers.iter().map(|b| [0, 0, b.as_ptr() as u64, 1, 0, 0, 0, 0]).collect();
        is!(sc!(SYS_sendmmsg, a, list.as_mut_ptr(), 3, 0), Ok(3));
        is!([list[0][7], list[1][7], list[2][7]], [3, 4, 5]);
        let mut got = [[0u8; 9]; 4];
        let buffers: Vec<[u64; 2]> = got.iter_mut().map(|g| [g.as_mut_ptr() as u64, 9]).collect();
        let mut list: Vec<[u64; 8]> = buffers.iter().map(|b| [0, 0, b.as_ptr() as u64, 1, 0, 0, 0, 0]).collect();
        is!(sc!(SYS_recvmmsg, b, list.as_mut_ptr(), 4, libc::MSG_WAITFORONE, 0), Ok(3));
        is!((&got[0][..3], &got[2][..5], list[2][7]), (b"one".as_slice(), b"three".as_slice(), 5));
        fails!(recv_with(b, 9, libc::MSG_DONTWAIT), EAGAIN);
    }
    the_interface {
        let fd = ok!(udp(V4));
        let mut request = [0u8; 40];
        request[..2].copy_from_slice(b"lo");
        let ask = |number: u64, request: &mut [u8; 40]| sc!(SYS_ioctl, fd, number, request.as_mut_ptr());
        ok!(ask(0x8913, &mut request));
        is!(u16::from_ne_bytes([request[16], request[17]]), (libc::IFF_UP | libc::IFF_LOOPBACK | libc::IFF_RUNNING) as u16);
        ok!(ask(0x8915, &mut request));
        is!(request[16..24], [2, 0, 0, 0, 127, 0, 0, 1]);
        ok!(ask(0x8933, &mut request));
        is!(request[16..20], [1, 0, 0, 0]);
        ok!(ask(0x8921, &mut request));
        is!(request[16..20], 65_536u32.to_ne_bytes());
        request[..4].copy_from_slice(b"none");
        fails!(ask(0x8913, &mut request), ENODEV);
        let mut list = [0u8; 400];
        let mut head = [400u64, list.as_mut_ptr() as u64];
        ok!(sc!(SYS_ioctl, fd, 0x8912, head.as_mut_ptr()));
        holds!(head[0] as u32 >= 40 && list.starts_with(b"lo\0"));
        fails!(sc!(SYS_ioctl, fd, 0x8999, 0), ENOTTY | EINVAL | EFAULT);
    }
    files_that_tell {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let (server, port) = ok!(listener("127.0.0.1", 5));
        let client = ok!(tcp(V4));
        ok!(connect(client, "127.0.0.1", port));
        let accepted = ok!(accept(server));
        let mine = ok!(crate::inet_calls::port(client));
        let tcp4 = text("/proc/net/tcp");
        holds!(tcp4.starts_with("  sl  local_address rem_address   st tx_queue rx_queue"));
        let lines = [
            format!(" 0100007F:{port:04X} 00000000:0000 0A "),
            format!(" 0100007F:{port:04X} 0100007F:{mine:04X} 01 "),
            format!(" 0100007F:{mine:04X} 0100007F:{port:04X} 01 "),
        ];
        for line in &lines { holds!(tcp4.contains(line.as_str())); }
        ok!(sys::close(client));
        await_events(accepted, RDHUP);
        ok!(sys::close(accepted));
        nap_us(10_000);
        let wait = format!(" 0100007F:{mine:04X} 0100007F:{port:04X} 06 ");
        holds!(text("/proc/net/tcp").contains(&wait));
        let (_server, port) = ok!(listener("::1", 5));
        let line = format!(" 00000000000000000000000001000000:{port:04X} 00000000000000000000000000000000:0000 0A ");
        holds!(text("/proc/net/tcp6").contains(&line));
        let (_a, _b, port) = ok!(two(V4));
        holds!(text("/proc/net/udp").contains(&format!(" 0100007F:{port:04X} 00000000:0000 07 ")));
        holds!(text("/proc/net/dev").contains("lo:"));
        holds!(text("/proc/net/sockstat").contains("TCP: inuse "));
        let range = text("/proc/sys/net/ipv4/ip_local_port_range");
        is!(range.split_whitespace().count(), 2);
        holds!(text("/proc/sys/net/core/somaxconn").trim().parse::<u32>().is_ok());
    }
}
