//! Sockets of the internet over the loopback interface.

use crate::harness::*;
use crate::inet_calls::*;
use crate::socket_calls::{
    DGRAM, ERR, HUP, IN, OUT, RDHUP, STREAM, beside, ended, events, recv, recv_with, send,
};
use user::sys;

const TCP: i32 = libc::IPPROTO_TCP;
const SOL: i32 = libc::SOL_SOCKET;
const NAME: i64 = libc::SYS_getsockname;
const PEER: i64 = libc::SYS_getpeername;

tests! { "inet";
    a_connection_carries_bytes {
        for family in FAMILIES {
            let own = loopback(family);
            let (server, port) = ok!(listener(own, 5));
            is!((state(server), option(server, SOL, libc::SO_ACCEPTCONN)), (Ok(10), Ok(1)));
            let client = ok!(tcp(family));
            is!(state(client), Ok(7));
            is!(events(client), OUT | HUP);
            ok!(connect(client, own, port));
            is!(send(client, b"before"), Ok(6));
            is!(await_events(server, IN), IN);
            let (mut raw, mut len) = ([9u8; 110], 110u32);
            let accepted = ok!(sc!(SYS_accept4, server, raw.as_mut_ptr(), &raw mut len, libc::SOCK_CLOEXEC)) as i32;
            is!(ok!(sc!(SYS_fcntl, accepted, libc::F_GETFD)), 1);
            is!(raw[..len as usize], ok!(named(NAME, client)));
            is!(named(NAME, accepted), Ok(address(own, port)));
            is!(named(PEER, client), Ok(address(own, port)));
            is!(named(PEER, accepted), named(NAME, client));
            is!((state(client), state(accepted)), (Ok(1), Ok(1)));
            is!(events(client), OUT);
            is!(await_events(accepted, IN), IN);
            is!(recv(accepted, 9), Ok(b"before".to_vec()));
            is!(sys::write(accepted, b"after"), Ok(5));
            is!(recv(client, 9), Ok(b"after".to_vec()));
            fails!(connect(client, own, port), EISCONN);
            fails!(connect(server, own, port), EISCONN);
            fails!(sc!(SYS_listen, client, 1), EINVAL);
            fails!(sc!(SYS_accept, client, 0, 0), EINVAL);
            fails!(bind(client, own, 0), EINVAL);
            is!((option(client, SOL, libc::SO_TYPE), option(client, SOL, libc::SO_PROTOCOL), option(client, SOL, libc::SO_DOMAIN)),
                (Ok(STREAM), Ok(TCP), Ok(family)));
            // The kernel's own addresses.
            let mut left = 0i32;
            is!(send(client, b"12345"), Ok(5));
            await_events(accepted, IN);
            ok!(sc!(SYS_ioctl, accepted, libc::FIONREAD, &raw mut left));
            is!(left, 5);
        }
    }
    kinds_of_sockets {
        for family in FAMILIES {
            for (kind, protocol) in [(STREAM, TCP), (DGRAM, libc::IPPROTO_UDP)] {
                holds!(sc!(SYS_socket, family, kind, protocol).is_ok());
            }
            fails!(sc!(SYS_socket, family, STREAM, libc::IPPROTO_UDP), EPROTONOSUPPORT);
            fails!(sc!(SYS_socket, family, libc::SOCK_SEQPACKET, 0), ESOCKTNOSUPPORT);
            fails!(sc!(SYS_socket, family, 11, 0), EINVAL);
            fails!(sc!(SYS_socket, family, STREAM, -1i32), EINVAL);
            fails!(sc!(SYS_socketpair, family, STREAM, 0, [0i32; 2].as_mut_ptr()), EOPNOTSUPP);
        }
    }
    addresses {
        let fd = ok!(tcp(V4));
        fails!(bind(fd, "192.0.2.1", 0), EADDRNOTAVAIL);
        fails!(bind(fd, "::1", 0), EAFNOSUPPORT);
        let raw = address("127.0.0.1", 0);
        fails!(sc!(SYS_bind, fd, raw.as_ptr(), 8), EINVAL);
        fails!(sc!(SYS_connect, fd, raw.as_ptr(), 8), EINVAL);
        fails!(connect(fd, "::1", 9), EAFNOSUPPORT);
        is!(named(NAME, fd), Ok(address("0.0.0.0", 0)));
        fails!(named(PEER, fd), ENOTCONN);
        ok!(bind(fd, "127.3.2.1", 0));
        let mine = ok!(named(NAME, fd));
        is!(mine[4..8], [127, 3, 2, 1]);
        holds!(port_of(&mine) >= 1024);
        fails!(bind(fd, "127.0.0.1", 0), EINVAL);
        let six = ok!(tcp(V6));
        fails!(bind(six, "127.0.0.1", 0), EINVAL);
        fails!(bind(six, "2001:db8::1", 0), EADDRNOTAVAIL);
        is!(named(NAME, six), Ok(address("::", 0)));
        // A listener at all addresses is reached at each; the client's address is chosen.
        let (server, port) = ok!(listener("0.0.0.0", 9));
        for (to, reached) in [("127.0.0.1", "127.0.0.1"), ("127.8.8.8", "127.8.8.8"), ("0.0.0.0", "127.0.0.1")] {
            let client = ok!(tcp(V4));
            ok!(connect(client, to, port));
            let accepted = ok!(accept(server));
            is!(named(NAME, accepted), Ok(address(reached, port)));
            is!(ok!(named(PEER, accepted))[4..8], [127, 0, 0, 1]);
            is!(named(PEER, accepted), named(NAME, client));
        }
        let (_one, port) = ok!(listener("127.0.0.2", 9));
        fails!(connect(ok!(tcp(V4)), "127.0.0.1", port), ECONNREFUSED);
    }
    mapped_addresses {
        let (server, port) = ok!(listener("::", 9));
        let (four, six, mapped) = (ok!(tcp(V4)), ok!(tcp(V6)), ok!(tcp(V6)));
        ok!(connect(four, "127.0.0.1", port));
        let accepted = ok!(accept(server));
        is!(named(NAME, accepted), Ok(address("::ffff:127.0.0.1", port)));
        is!(named(PEER, accepted), Ok(address("::ffff:127.0.0.1", ok!(crate::inet_calls::port(four)))));
        ok!(connect(six, "::1", port));
        is!(named(NAME, ok!(accept(server))), Ok(address("::1", port)));
        ok!(connect(mapped, "::ffff:127.0.0.1", port));
        is!(named(PEER, mapped), Ok(address("::ffff:127.0.0.1", port)));
        let none = ok!(tcp(V4));
        fails!(bind(none, "0.0.0.0", port), EADDRINUSE);
        fails!(set_option(server, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1), EINVAL);
        // With IPV6_V6ONLY the addresses of IPv4 are free.
        let only = ok!(tcp(V6));
        ok!(set_option(only, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1));
        fails!(bind(only, "::ffff:127.0.0.1", 0), EINVAL);
        ok!(bind(only, "::", 0));
        ok!(sc!(SYS_listen, only, 1));
        let port = ok!(crate::inet_calls::port(only));
        fails!(connect(ok!(tcp(V4)), "127.0.0.1", port), ECONNREFUSED);
        ok!(bind(none, "0.0.0.0", port));
        ok!(connect(ok!(tcp(V6)), "::1", port));
    }
    ports {
        for family in FAMILIES {
            let own = loopback(family);
            let (server, port) = ok!(listener(own, 5));
            let second = ok!(tcp(family));
            fails!(bind(second, own, port), EADDRINUSE);
            ok!(set_option(second, SOL, libc::SO_REUSEADDR, 1));
            fails!(bind(second, own, port), EADDRINUSE);
            ok!(sys::close(server));
            ok!(bind(second, own, port));
            // Both allow it, and neither listens.
            let third = ok!(tcp(family));
            fails!(bind(third, own, port), EADDRINUSE);
            ok!(set_option(third, SOL, libc::SO_REUSEADDR, 1));
            ok!(bind(third, own, port));
            ok!(sc!(SYS_listen, second, 1));
            fails!(sc!(SYS_listen, third, 1), EADDRINUSE);
        }
        // Another address of the machine.
        let (_server, port) = ok!(listener("127.0.0.1", 5));
        ok!(bind(ok!(tcp(V4)), "127.0.0.2", port));
        fails!(bind(ok!(tcp(V4)), "0.0.0.0", port), EADDRINUSE);
        ok!(bind(ok!(udp(V4)), "127.0.0.1", port));
    }
    ports_that_need_a_capability {
        let status = in_child(|| {
            let _ = sys::become_user(65534, &[]);
            let Ok(fd) = tcp(V4) else { return 1 };
            let low = bind(fd, "127.0.0.1", 81);
            i32::from(low != Err(libc::EACCES) || bind(fd, "127.0.0.1", 0).is_err())
        })?;
        is!(status, 0);
    }
    shared_ports {
        let make = |port| -> Result<i32, i32> {
            let fd = tcp(V4)?;
            set_option(fd, SOL, libc::SO_REUSEPORT, 1)?;
            bind(fd, "127.0.0.1", port)?;
            sc!(SYS_listen, fd, 64)?;
            quick(fd)?;
            Ok(fd)
        };
        let first = ok!(make(0));
        let port = ok!(crate::inet_calls::port(first));
        let second = ok!(make(port));
        fails!(bind(ok!(tcp(V4)), "127.0.0.1", port), EADDRINUSE);
        let clients: Vec<i32> = (0..32).filter_map(|_| tcp(V4).ok()).collect();
        for &fd in &clients { ok!(connect(fd, "127.0.0.1", port)); }
        let count = |fd| std::iter::from_fn(|| accept(fd).ok()).count();
        let (one, two) = (count(first), count(second));
        holds!(one + two == 32 && one > 0 && two > 0);
        ok!(sys::close(second));
        for _ in 0..8 { ok!(connect(ok!(tcp(V4)), "127.0.0.1", port)); }
        is!(count(first), 8);
    }
    nobody_listens {
        for family in FAMILIES {
            let own = loopback(family);
            let (gone, port) = ok!(listener(own, 1));
            ok!(sys::close(gone));
            let fd = ok!(tcp(family));
            fails!(connect(fd, own, port), ECONNREFUSED);
            is!(option(fd, SOL, libc::SO_ERROR), Ok(0));
            is!(state(fd), Ok(7));
            // The socket can be used again.
            let (server, port) = ok!(listener(own, 1));
            ok!(connect(fd, own, port));
            ok!(accept(server));
            let fd = ok!(tcp(family));
            fails!(recv(fd, 1), ENOTCONN);
            fails!(send(fd, b"x"), EPIPE);
            fails!(sc!(SYS_shutdown, fd, libc::SHUT_WR), ENOTCONN);
        }
    }
    connects_that_do_not_wait {
        for family in FAMILIES {
            let own = loopback(family);
            let (server, port) = ok!(listener(own, 5));
            let fd = ok!(tcp(family));
            ok!(quick(fd));
            fails!(connect(fd, own, port), EINPROGRESS);
            is!(await_events(fd, OUT), OUT);
            is!(option(fd, SOL, libc::SO_ERROR), Ok(0));
            is!(connect(fd, own, port), Ok(0));
            fails!(connect(fd, own, port), EISCONN);
            ok!(accept(server));
            ok!(sys::close(server));
            let fd = ok!(tcp(family));
            ok!(quick(fd));
            fails!(connect(fd, own, port), EINPROGRESS);
            is!(await_events(fd, IN | OUT | RDHUP), IN | OUT | RDHUP | ERR | HUP);
            is!(option(fd, SOL, libc::SO_ERROR), Ok(libc::ECONNREFUSED));
            is!(option(fd, SOL, libc::SO_ERROR), Ok(0));
            fails!(connect(fd, own, port), ECONNABORTED);
            let fd = ok!(tcp(family));
            ok!(quick(fd));
            fails!(connect(fd, own, port), EINPROGRESS);
            await_events(fd, OUT);
            fails!(connect(fd, own, port), ECONNREFUSED);
        }
    }
    backlogs {
        let (server, port) = ok!(listener("127.0.0.1", 1));
        let (one, two, late) = (ok!(tcp(V4)), ok!(tcp(V4)), ok!(tcp(V4)));
        ok!(connect(one, "127.0.0.1", port));
        ok!(connect(two, "127.0.0.1", port));
        ok!(quick(late));
        fails!(connect(late, "127.0.0.1", port), EINPROGRESS);
        is!((state(late), events(late)), (Ok(2), 0));
        fails!(connect(late, "127.0.0.1", port), EALREADY);
        fails!(recv(late, 1), EAGAIN);
        fails!(send(late, b"x"), EAGAIN);
        // Once there is room the connection comes about; in Linux when it is tried again, within some seconds.
        ok!(accept(server));
        let mut list = [u64::from(late as u32) | OUT << 32];
        is!(sc!(SYS_poll, list.as_mut_ptr(), 1, 9000), Ok(1));
        is!((list[0] >> 48, state(late)), (OUT, Ok(1)));
        is!(send(late, b"late"), Ok(4));
        ok!(accept(server));
        let last = ok!(accept(server));
        is!(recv(last, 9), Ok(b"late".to_vec()));
        // A listener that is closed resets those that wait.
        let lost = ok!(tcp(V4));
        ok!(connect(lost, "127.0.0.1", port));
        ok!(sys::close(server));
        fails!(recv(lost, 1), ECONNRESET);
        is!(recv(lost, 1), Ok(vec![]));
    }
    each_way_ends_by_itself {
        for family in FAMILIES {
            let (a, b) = ok!(pair(family));
            is!(send(a, b"last"), Ok(4));
            ok!(sc!(SYS_shutdown, a, libc::SHUT_WR));
            fails!(send(a, b"x"), EPIPE);
            is!(await_events(b, RDHUP), RDHUP);
            for _ in 0..100 { if state(a) == Ok(5) { break; } nap_us(10_000); }
            is!((state(a), state(b)), (Ok(5), Ok(8)));
            is!(events(b), IN | OUT | RDHUP);
            is!(events(a), OUT);
            is!(recv(b, 9), Ok(b"last".to_vec()));
            is!((recv(b, 9), recv(b, 9)), (Ok(vec![]), Ok(vec![])));
            is!(send(b, b"back"), Ok(4));
            is!(recv(a, 9), Ok(b"back".to_vec()));
            ok!(sc!(SYS_shutdown, b, libc::SHUT_WR));
            is!(await_events(a, IN), IN | HUP);
            is!((state(a), state(b)), (Ok(7), Ok(7)));
            is!(events(b), IN | OUT | RDHUP | HUP);
            is!(recv(a, 9), Ok(vec![]));
            fails!(sc!(SYS_shutdown, a, libc::SHUT_WR), ENOTCONN);
            fails!(named(PEER, a), ENOTCONN);
        }
        let (a, b) = ok!(pair(V4));
        ok!(sc!(SYS_shutdown, a, libc::SHUT_RD));
        is!(events(a), IN | OUT | RDHUP);
        is!(recv(a, 9), Ok(vec![]));
        is!(send(b, b"x"), Ok(1));
        nap_us(10_000);
        is!(recv(a, 9), Ok(b"x".to_vec()));
        is!(events(b), OUT);
    }
    a_close_ends_and_a_write_to_it_resets {
        let (a, b) = ok!(pair(V4));
        is!(send(a, b"last"), Ok(4));
        ok!(sys::close(a));
        await_events(b, RDHUP);
        is!(recv(b, 9), Ok(b"last".to_vec()));
        is!(recv(b, 9), Ok(vec![]));
        is!(send(b, b"x"), Ok(1));
        is!(await_events(b, ERR), ERR | HUP);
        is!(events(b), IN | OUT | RDHUP | HUP | ERR);
        is!(recv(b, 9), Ok(vec![]));
        is!(option(b, SOL, libc::SO_ERROR), Ok(libc::EPIPE));
        fails!(send(b, b"x"), EPIPE);
        let status = in_child(|| {
            let _ = sys::default_signal(libc::SIGPIPE);
            let _ = sys::write(b, b"x");
            1
        })?;
        is!(status, libc::SIGPIPE);
    }
    resets {
        // Bytes that were not read.
        let (a, b) = ok!(pair(V4));
        is!((send(a, b"unread"), send(b, b"last")), (Ok(6), Ok(4)));
        await_events(b, IN);
        ok!(sys::close(b));
        await_events(a, ERR);
        is!(events(a), IN | OUT | RDHUP | HUP | ERR);
        is!(state(a), Ok(7));
        is!(recv(a, 9), Ok(b"last".to_vec()));
        fails!(recv(a, 9), ECONNRESET);
        is!(recv(a, 9), Ok(vec![]));
        fails!(send(a, b"x"), EPIPE);
        // SO_LINGER with no time.
        let (a, b) = ok!(pair(V6));
        ok!(linger(b, 0));
        ok!(sys::close(b));
        await_events(a, ERR);
        fails!(send(a, b"x"), ECONNRESET);
        fails!(send(a, b"x"), EPIPE);
        is!(recv(a, 9), Ok(vec![]));
        // After the end of its writes.
        let (a, b) = ok!(pair(V4));
        ok!(linger(b, 0));
        ok!(sc!(SYS_shutdown, b, libc::SHUT_WR));
        await_events(a, RDHUP);
        ok!(sys::close(b));
        await_events(a, ERR);
        is!(option(a, SOL, libc::SO_ERROR), Ok(libc::EPIPE));
    }
    the_end_is_remembered {
        let serve = |reuse| -> Result<(i32, i32, u16), i32> {
            let server = tcp(V4)?;
            set_option(server, SOL, libc::SO_REUSEADDR, reuse)?;
            bind(server, "127.0.0.1", 0)?;
            sc!(SYS_listen, server, 5)?;
            let port = port(server)?;
            let client = tcp(V4)?;
            connect(client, "127.0.0.1", port)?;
            let accepted = accept(server)?;
            sys::close(server)?;
            Ok((client, accepted, port))
        };
        let again = |reuse, port| -> Result<u64, i32> {
            let fd = tcp(V4)?;
            set_option(fd, SOL, libc::SO_REUSEADDR, reuse)?;
            bind(fd, "127.0.0.1", port)
        };
        // The side that closes first has to wait, here the server; while the connection is there, too.
        let (client, accepted, port) = ok!(serve(1));
        fails!(again(0, port), EADDRINUSE);
        ok!(sys::close(accepted));
        await_events(client, RDHUP);
        fails!(again(0, port), EADDRINUSE);
        ok!(sys::close(client));
        nap_us(10_000);
        fails!(again(0, port), EADDRINUSE);
        is!(again(1, port), Ok(0));
        let (client, accepted, port) = ok!(serve(0));
        ok!(sys::close(client));
        await_events(accepted, RDHUP);
        ok!(sys::close(accepted));
        nap_us(10_000);
        is!(again(0, port), Ok(0));
        // A reset leaves nothing.
        let (client, accepted, port) = ok!(serve(0));
        ok!(linger(accepted, 0));
        ok!(sys::close(accepted));
        await_events(client, ERR);
        is!(again(0, port), Ok(0));
    }
    waits_end {
        let (a, b) = ok!(pair(V4));
        let child = ok!(beside(|| {
            nap_us(20_000);
            (0..40).all(|n| send(a, &[n; 10_000]) == Ok(10_000))
        }));
        let mut sum = 0;
        while sum < 400_000 { sum += ok!(recv(b, 10_000)).len(); }
        holds!(ended(child));
        let child = ok!(beside(|| {
            let _ = sys::close(b);
            (0..5).all(|_| { nap_us(3000); send(a, b"ab") == Ok(2) })
        }));
        is!(recv_with(b, 9, libc::MSG_WAITALL), Ok(b"ababababa".to_vec()));
        ok!(sys::close(a));
        is!(recv_with(b, 9, libc::MSG_WAITALL), Ok(b"b".to_vec()));
        holds!(ended(child));
        let (a, b) = ok!(pair(V4));
        let limit = [0u64, 20_000];
        ok!(sc!(SYS_setsockopt, b, SOL, libc::SO_RCVTIMEO, limit.as_ptr(), 16));
        fails!(recv(b, 1), EAGAIN);
        // A writer fills what there is, and waits; the reader makes room.
        ok!(quick(a));
        let mut sent = 0;
        while let Ok(n) = send(a, &[7; 50_000]) { sent += n; }
        holds!(sent >= 50_000);
        fails!(send(a, b"x"), EAGAIN);
        is!(events(a), 0);
        let mut got = 0;
        while events(a) & OUT == 0 { got += ok!(recv(b, 50_000)).len() as u64; }
        holds!(got > 0 && got <= sent);
        // A thread in accept.
        let (server, port) = ok!(listener("127.0.0.1", 1));
        let child = ok!(beside(|| accept(server).is_ok_and(|fd| recv(fd, 9) == Ok(b"hello".to_vec()))));
        nap_us(10_000);
        let client = ok!(tcp(V4));
        ok!(connect(client, "127.0.0.1", port));
        is!(send(client, b"hello"), Ok(5));
        holds!(ended(child));
    }
    looks_and_drops {
        let (a, b) = ok!(pair(V4));
        is!(send(a, b"0123456789"), Ok(10));
        await_events(b, IN);
        is!(recv_with(b, 4, libc::MSG_PEEK), Ok(b"0123".to_vec()));
        let mut none = [9u8; 4];
        is!(sc!(SYS_recvfrom, b, none.as_mut_ptr(), 4, libc::MSG_TRUNC, 0, 0), Ok(4));
        is!(none, [9; 4]);
        let (mut raw, mut len) = ([0u8; 28], 28u32);
        is!(sc!(SYS_recvfrom, b, none.as_mut_ptr(), 4, 0, raw.as_mut_ptr(), &raw mut len), Ok(4));
        is!((&none, len), (b"4567", 0));
        fails!(recv_with(b, 1, libc::MSG_ERRQUEUE), EAGAIN);
        is!(recv(b, 9), Ok(b"89".to_vec()));
        fails!(recv_with(b, 1, libc::MSG_DONTWAIT), EAGAIN);
        fails!(recv_with(b, 0, libc::MSG_DONTWAIT), EAGAIN);
    }
    options {
        let fd = ok!(tcp(V4));
        let least = [(libc::TCP_NODELAY, 0), (libc::TCP_CORK, 0), (libc::TCP_KEEPIDLE, 7200), (libc::TCP_KEEPINTVL, 75), (libc::TCP_KEEPCNT, 9)];
        for (number, default) in least { is!(option(fd, TCP, number), Ok(default)); }
        for number in [libc::TCP_NODELAY, libc::TCP_CORK] {
            ok!(set_option(fd, TCP, number, 7));
            is!(option(fd, TCP, number), Ok(1));
        }
        for (number, most) in [(libc::TCP_KEEPIDLE, 32_767), (libc::TCP_KEEPINTVL, 32_767), (libc::TCP_KEEPCNT, 127)] {
            ok!(set_option(fd, TCP, number, most));
            is!(option(fd, TCP, number), Ok(most));
            fails!(set_option(fd, TCP, number, most + 1), EINVAL);
            fails!(set_option(fd, TCP, number, 0), EINVAL);
        }
        ok!(set_option(fd, TCP, libc::TCP_USER_TIMEOUT, 5000));
        is!(option(fd, TCP, libc::TCP_USER_TIMEOUT), Ok(5000));
        fails!(set_option(fd, TCP, libc::TCP_USER_TIMEOUT, -1), EINVAL);
        fails!(set_option(fd, TCP, 999, 1), ENOPROTOOPT);
        fails!(option(fd, TCP, 999), ENOPROTOOPT);
        let value = 1u8;
        fails!(sc!(SYS_setsockopt, fd, TCP, libc::TCP_NODELAY, &raw const value, 1), EINVAL);
        ok!(sc!(SYS_setsockopt, fd, libc::IPPROTO_IP, libc::IP_TOS, &raw const value, 1));
        is!(option(fd, libc::IPPROTO_IP, libc::IP_TTL), Ok(64));
        fails!(set_option(fd, libc::IPPROTO_IP, libc::IP_TTL, 256), EINVAL);
        fails!(option(ok!(udp(V4)), TCP, libc::TCP_NODELAY), EOPNOTSUPP | ENOPROTOOPT);
        // What a listener has, its connections have.
        ok!(set_option(fd, SOL, libc::SO_KEEPALIVE, 1));
        ok!(bind(fd, "127.0.0.1", 0));
        ok!(sc!(SYS_listen, fd, 1));
        let client = ok!(tcp(V4));
        ok!(connect(client, "127.0.0.1", ok!(port(fd))));
        let accepted = ok!(accept(fd));
        is!((option(accepted, TCP, libc::TCP_NODELAY), option(accepted, TCP, libc::TCP_KEEPCNT)), (Ok(1), Ok(127)));
        is!(option(accepted, SOL, libc::SO_KEEPALIVE), Ok(1));
    }
    one_device {
        const BIND: i32 = libc::SO_BINDTODEVICE;
        let device = |fd: i32, room: u32| {
            let (mut name, mut len) = ([b'x'; 20], room);
            sc!(SYS_getsockopt, fd, SOL, BIND, name.as_mut_ptr(), &raw mut len).map(|_| name[..len as usize].to_vec())
        };
        let bind_to = |fd: i32, name: &[u8]| sc!(SYS_setsockopt, fd, SOL, BIND, name.as_ptr(), name.len());
        let fd = ok!(tcp(V4));
        is!((device(fd, 0), device(fd, 20)), (Ok(vec![]), Ok(vec![])));
        fails!(bind_to(fd, b"none\0"), ENODEV);
        fails!(sc!(SYS_setsockopt, fd, SOL, BIND, 1, 3), EFAULT);
        ok!(bind_to(fd, b""));
        ok!(bind_to(fd, b"lo"));
        is!(device(fd, 16), Ok(b"lo\0".to_vec()));
        fails!(device(fd, 15), EINVAL);
        // A connection has its listener's.
        ok!(bind(fd, "127.0.0.1", 0));
        ok!(sc!(SYS_listen, fd, 1));
        let client = ok!(tcp(V4));
        ok!(connect(client, "127.0.0.1", ok!(port(fd))));
        is!(device(ok!(accept(fd)), 16), Ok(b"lo\0".to_vec()));
        let status = in_child(|| {
            let _ = sys::become_user(1000, &[]);
            let first = tcp(V4).and_then(|new| bind_to(new, b"lo\0")).is_ok();
            i32::from(!first || bind_to(fd, b"") != Err(libc::EPERM))
        })?;
        is!(status, 0);
        ok!(bind_to(fd, b"\0"));
        is!(device(fd, 16), Ok(vec![]));
    }
    late_clients_are_shut_down {
        for how in [libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR] {
            let (server, port) = ok!(listener("127.0.0.1", 0));
            ok!(connect(ok!(tcp(V4)), "127.0.0.1", port));
            let late = ok!(tcp(V4));
            ok!(quick(late));
            fails!(connect(late, "127.0.0.1", port), EINPROGRESS);
            is!((state(late), events(late)), (Ok(2), 0));
            fails!(sc!(SYS_listen, late, 1), EINVAL);
            ok!(sc!(SYS_shutdown, late, how));
            is!((state(late), events(late)), (Ok(7), OUT | ERR | HUP));
            is!(option(late, SOL, libc::SO_ERROR), Ok(libc::ECONNRESET));
            fails!(recv(late, 1), ENOTCONN);
            fails!(send(late, b"x"), EPIPE);
            // It may be used as if it were new.
            fails!(connect(late, "127.0.0.1", port), EINPROGRESS);
            ok!(sc!(SYS_shutdown, late, how));
            is!(option(late, SOL, libc::SO_ERROR), Ok(libc::ECONNRESET));
            fails!(sc!(SYS_shutdown, late, how), ENOTCONN);
            ok!(sc!(SYS_listen, late, 1));
            is!(state(late), Ok(10));
            ok!(sys::close(server));
        }
    }
    late_clients_time_out {
        let (_server, port) = ok!(listener("127.0.0.1", 0));
        ok!(connect(ok!(tcp(V4)), "127.0.0.1", port));
        let (late, blocks) = (ok!(tcp(V4)), ok!(tcp(V4)));
        for fd in [late, blocks] {
            ok!(set_option(fd, TCP, libc::TCP_SYNCNT, 1));
        }
        ok!(quick(late));
        fails!(connect(late, "127.0.0.1", port), EINPROGRESS);
        is!(await_events(late, OUT), 0);
        fails!(connect(blocks, "127.0.0.1", port), ETIMEDOUT);
        is!(await_events(late, OUT) & (ERR | HUP | RDHUP | OUT), ERR | HUP | OUT);
        is!(state(late), Ok(7));
        fails!(sc!(SYS_listen, late, 1), EINVAL);
        fails!(connect(late, "127.0.0.1", port), ETIMEDOUT);
        ok!(sc!(SYS_listen, late, 1));
    }
    listeners_listen_again {
        for said in [false, true] {
            let (mut server, port) = ok!(listener("127.0.0.1", 1));
            if said {
                ok!(sys::close(server));
                server = ok!(tcp(V4));
                ok!(bind(server, "127.0.0.1", port));
                ok!(sc!(SYS_listen, server, 1));
            }
            ok!(sc!(SYS_shutdown, server, libc::SHUT_WR));
            is!(state(server), Ok(10));
            ok!(sc!(SYS_shutdown, server, libc::SHUT_RD));
            is!((state(server), events(server)), (Ok(7), OUT | HUP));
            is!(option(server, SOL, libc::SO_ACCEPTCONN), Ok(0));
            fails!(sc!(SYS_shutdown, server, libc::SHUT_RD), ENOTCONN);
            fails!(sc!(SYS_accept, server, 0, 0), EINVAL);
            fails!(connect(ok!(tcp(V4)), "127.0.0.1", port), ECONNREFUSED);
            // A port that bind has said stays.
            let other = ok!(tcp(V4));
            is!(bind(other, "127.0.0.1", port).is_ok(), !said);
            ok!(sys::close(other));
            ok!(sc!(SYS_listen, server, 1));
            is!((state(server), events(server)), (Ok(10), 0));
            let now = ok!(crate::inet_calls::port(server));
            holds!(!said || now == port);
            let client = ok!(tcp(V4));
            ok!(connect(client, "127.0.0.1", now));
            ok!(accept(server));
            // One that was shut down may also connect.
            let (again, _) = ok!(listener("127.0.0.1", 1));
            ok!(sc!(SYS_shutdown, again, libc::SHUT_RDWR));
            ok!(connect(again, "127.0.0.1", now));
            is!(state(again), Ok(1));
            ok!(accept(server));
        }
    }
    one_end_of_epoll {
        let (server, port) = ok!(listener("127.0.0.1", 5));
        let epoll = ok!(sc!(SYS_epoll_create1, 0)) as i32;
        let watch = |fd: i32, wanted: u64| {
            let event = libc::epoll_event { events: wanted as u32 | libc::EPOLLET as u32, u64: fd as u64 };
            sc!(SYS_epoll_ctl, epoll, libc::EPOLL_CTL_ADD, fd, &raw const event)
        };
        let next = || {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            let n = sc!(SYS_epoll_wait, epoll, &raw mut event, 1, 1000)?;
            Ok::<_, i32>(if n == 0 { (0, 0) } else { (event.u64 as i32, u64::from(event.events)) })
        };
        ok!(watch(server, IN));
        let client = ok!(tcp(V4));
        ok!(connect(client, "127.0.0.1", port));
        is!(next(), Ok((server, IN)));
        let accepted = ok!(accept(server));
        ok!(watch(accepted, IN | RDHUP));
        is!(send(client, b"x"), Ok(1));
        is!(next(), Ok((accepted, IN)));
        ok!(sc!(SYS_shutdown, client, libc::SHUT_WR));
        is!(next(), Ok((accepted, IN | RDHUP)));
        ok!(sys::close(accepted));
        ok!(watch(client, IN));
        let (fd, found) = ok!(next());
        holds!(fd == client && found & ERR != 0);
    }
}
