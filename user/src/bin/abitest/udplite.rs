//! UDP-Lite over the loopback interface.

use crate::inet_calls::{
    FAMILIES, V4, await_events, bind, connect, loopback, option, port, send_to, set_option, udp,
};
use crate::socket_calls::{DGRAM, ERR, recv, send};
use user::sys;

const SOL: i32 = libc::SOL_SOCKET;
const LITE: i32 = libc::IPPROTO_UDPLITE;
/// UDPLITE_SEND_CSCOV and UDPLITE_RECV_CSCOV.
const SENT: i32 = 10;
const WANTED: i32 = 11;

/// socket(2), nonblocking.
fn lite(family: i32) -> Result<i32, i32> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
    sc!(SYS_socket, family, kind, LITE).map(|fd| fd as i32)
}

/// A sender, and a receiver with its port.
fn two(family: i32) -> Result<(i32, i32, u16), i32> {
    let (a, b) = (lite(family)?, lite(family)?);
    bind(b, loopback(family), 0)?;
    Ok((a, b, port(b)?))
}

/// The lines of a file of /proc/net that end with the columns of a port.
fn line_of(family: i32, port: u16) -> Option<String> {
    let path = if family == V4 {
        "/proc/net/udplite"
    } else {
        "/proc/net/udplite6"
    };
    let text = std::fs::read_to_string(path).ok()?;
    let local = format!(":{port:04X}");
    let of_port = |line: &&str| {
        line.split_whitespace()
            .nth(1)
            .is_some_and(|at| at.ends_with(&local))
    };
    text.lines().skip(1).find(of_port).map(String::from)
}

tests! { "udplite";
    ports_of_its_own {
        for family in FAMILIES {
            let own = loopback(family);
            let (a, b, number) = ok!(two(family));
            let kind = [libc::SO_TYPE, libc::SO_PROTOCOL, libc::SO_DOMAIN].map(|o| option(a, SOL, o));
            is!(kind, [Ok(DGRAM), Ok(LITE), Ok(family)]);
            let (other, heavy) = (ok!(udp(family)), ok!(udp(family)));
            ok!(bind(other, own, number));
            fails!(bind(a, own, number), EADDRINUSE);
            is!(send_to(a, b"lite", own, number), Ok(4));
            is!(send_to(heavy, b"heavy", own, number), Ok(5));
            is!((recv(b, 9), recv(other, 9)), (Ok(b"lite".to_vec()), Ok(b"heavy".to_vec())));
            fails!(recv(b, 9), EAGAIN);
            fails!(recv(other, 9), EAGAIN);
            ok!(connect(a, own, number));
            is!(send(a, b"peer"), Ok(4));
            is!(recv(b, 9), Ok(b"peer".to_vec()));
            ok!(sys::close(b));
            is!(send(a, b"x"), Ok(1));
            await_events(a, ERR);
            fails!(send(a, b"x"), ECONNREFUSED);
            fails!(sc!(SYS_socket, family, libc::SOCK_STREAM, LITE), EPROTONOSUPPORT);
            fails!(sc!(SYS_socketpair, family, libc::SOCK_DGRAM, LITE, [0u64; 1].as_mut_ptr()), EOPNOTSUPP);
        }
    }
    coverage_is_kept {
        for family in FAMILIES {
            let (lite, other) = (ok!(lite(family)), ok!(udp(family)));
            for number in [SENT, WANTED] {
                is!(option(lite, LITE, number), Ok(0));
                for (given, kept) in [(0, 0), (1, 8), (7, 8), (8, 8), (20, 20), (-1, 8), (65_535, 65_535), (65_536, 65_535)] {
                    ok!(set_option(lite, LITE, number, given));
                    is!(option(lite, LITE, number), Ok(kept));
                }
                ok!(set_option(lite, libc::IPPROTO_UDP, number, 30));
                is!(option(lite, LITE, number), Ok(30));
                fails!(sc!(SYS_setsockopt, lite, LITE, number, [0u8; 4].as_ptr(), 3), EINVAL);
                for level in [LITE, libc::IPPROTO_UDP] {
                    fails!(set_option(other, level, number, 8), ENOPROTOOPT);
                    is!(option(other, level, number), Ok(0));
                }
            }
            fails!(set_option(lite, LITE, 99, 0), ENOPROTOOPT);
            fails!(option(lite, LITE, 99), ENOPROTOOPT);
        }
    }
    packets_without_the_coverage_asked_for {
        let cases = [
            (None, None, [true, true, true]),
            (None, Some(0), [true, true, true]),
            (Some(8), None, [true, true, true]),
            (Some(8), Some(0), [true, false, false]),
            (Some(8), Some(8), [true, true, true]),
            (Some(8), Some(9), [true, false, false]),
            (Some(20), Some(30), [true, true, false]),
            (Some(0), Some(50), [true, true, true]),
        ];
        for (sent, wanted, arrives) in cases {
            for (len, arrives) in [0, 12, 13].into_iter().zip(arrives) {
                let (a, b, number) = ok!(two(V4));
                if let Some(sent) = sent { ok!(set_option(a, LITE, SENT, sent)); }
                if let Some(wanted) = wanted { ok!(set_option(b, LITE, WANTED, wanted)); }
                is!(send_to(a, &vec![7; len], "127.0.0.1", number), Ok(len as u64));
                is!(recv(b, 99).is_ok(), arrives);
                let drops = line_of(V4, number).and_then(|line| line.split_whitespace().last()?.parse().ok());
                is!(drops, Some(u32::from(!arrives)));
                for fd in [a, b] { ok!(sys::close(fd)); }
            }
        }
    }
    files_that_tell {
        let heads = [
            ("udplite", "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops            \n"),
            ("udplite6", "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"),
        ];
        for (name, head) in heads {
            let text = std::fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
            holds!(text.starts_with(head));
        }
        for family in FAMILIES {
            let (a, _b, number) = ok!(two(family));
            ok!(connect(a, loopback(family), number));
            let line = line_of(family, number).unwrap_or_default();
            let columns: Vec<&str> = line.split_whitespace().collect();
            is!(columns.len(), 13);
            is!(columns[3], "07");
            let mine = line_of(family, ok!(port(a))).unwrap_or_default();
            is!(mine.split_whitespace().nth(3), Some("01"));
            if family == V4 { is!((line.len(), mine.len()), (127, 127)); }
        }
    }
}
