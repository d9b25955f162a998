//! Local sockets.

use crate::harness::*;
use crate::socket_calls::*;
use user::sys;

/// Receives; returns the first words of the control messages, zeros if there are none.
fn control_of(fd: i32) -> Result<[u64; 4], i32> {
    let mut control = [0u64; 4];
    let mut byte = [0u8];
    let buffer = [byte.as_mut_ptr() as u64, 1];
    let mut header = [
        0,
        0,
        buffer.as_ptr() as u64,
        1,
        control.as_mut_ptr() as u64,
        32,
        0,
    ];
    sc!(SYS_recvmsg, fd, header.as_mut_ptr(), 0)?;
    Ok(control)
}

tests! { "socket";
    a_stream_joins_and_packets_do_not {
        for kind in TYPES {
            let (a, b) = ok!(quick(kind));
            fails!(recv(b, 9), EAGAIN);
            is!((send(a, b"one "), send(a, b"two")), (Ok(4), Ok(3)));
            if kind == STREAM {
                is!(recv(b, 9), Ok(b"one two".to_vec()));
            } else {
                let flags = libc::MSG_TRUNC | libc::MSG_PEEK;
                is!(sc!(SYS_recvfrom, b, [0u8; 2].as_mut_ptr(), 2, flags, 0, 0), Ok(4));
                is!(recv(b, 9), Ok(b"one ".to_vec()));
                let (bytes, _, flags) = ok!(receive(b, 2, 0, 0));
                is!((bytes, flags), (b"tw".to_vec(), libc::MSG_TRUNC));
            }
            fails!(recv(b, 9), EAGAIN);
            is!(send(a, b""), Ok(0));
            is!(recv(b, 9), if kind == STREAM { Err(libc::EAGAIN) } else { Ok(vec![]) });
            is!(sys::write(b, b"back"), Ok(4));
            let mut got = [0; 4];
            is!((sys::read(a, &mut got), &got), (Ok(4), b"back"));
            fails!(sc!(SYS_lseek, a, 0, 0), ESPIPE);
            fails!(sc!(SYS_pread64, a, got.as_mut_ptr(), 4, 0), ESPIPE);
        }
    }
    limits_of_what_is_not_received {
        for kind in TYPES {
            let (a, b) = ok!(quick(kind));
            is!(option(a, libc::SO_SNDBUF), Ok(212_992));
            holds!(events(a) == OUT);
            let mut sent = 0;
            while send(a, &[1; 1000]).is_ok() { sent += 1; }
            holds!((50..=220).contains(&sent));
            fails!(send(a, &[1; 1000]), EAGAIN);
            is!(events(a), 0);
            let mut got = 0;
            while events(a) & OUT == 0 { ok!(recv(b, 1000)); got += 1; }
            holds!(got * 2 > sent);
            ok!(set_option(a, libc::SO_SNDBUF, 8000));
            is!(option(a, libc::SO_SNDBUF), Ok(16_000));
            while recv(b, 1000).is_ok() {}
            if kind == STREAM {
                holds!(ok!(send(a, &[1; 100_000])) < 100_000);
            } else {
                fails!(send(a, &[1; 16_000]), EMSGSIZE);
                is!(send(a, &[1; 15_000]), Ok(15_000));
            }
        }
    }
    closed_peers {
        for kind in TYPES {
            let (a, b) = ok!(quick(kind));
            is!(send(b, b"last"), Ok(4));
            ok!(sys::close(b));
            is!(events(a), if kind == DGRAM { IN | OUT } else { IN | OUT | HUP | RDHUP });
            is!(recv(a, 9), Ok(b"last".to_vec()));
            is!(recv(a, 9), if kind == DGRAM { Err(libc::EAGAIN) } else { Ok(vec![]) });
            is!(send(a, b"x"), Err(if kind == DGRAM { libc::ECONNREFUSED } else { libc::EPIPE }));
        }
        let (a, b) = ok!(quick(STREAM));
        is!((send(a, b"unread"), send(b, b"last")), (Ok(6), Ok(4)));
        ok!(sys::close(b));
        is!(events(a), IN | OUT | HUP | RDHUP | ERR);
        is!(recv(a, 9), Ok(b"last".to_vec()));
        fails!(recv(a, 9), ECONNRESET);
        is!(recv(a, 9), Ok(vec![]));
        let (a, b) = ok!(quick(SEQPACKET));
        is!(send(a, b"unread"), Ok(6));
        ok!(sys::close(b));
        is!((option(a, libc::SO_ERROR), option(a, libc::SO_ERROR)), (Ok(libc::ECONNRESET), Ok(0)));
    }
    a_write_to_nobody_is_a_signal_for_streams_alone {
        for (kind, signal) in [(STREAM, libc::SIGPIPE), (SEQPACKET, 0), (DGRAM, 0)] {
            let status = in_child(|| {
                let _ = sys::default_signal(libc::SIGPIPE);
                let Ok((a, b)) = pair(kind) else { return 1 };
                let _ = sys::close(b);
                let sent = send(a, b"x");
                let _ = sys::write(a, b"x");
                i32::from(sent.is_ok())
            })?;
            is!(status, signal);
        }
    }
    shutdowns {
        for kind in [STREAM, SEQPACKET] {
            for how in 0..3 {
                let (a, b) = ok!(quick(kind));
                is!((send(a, b"AA"), send(b, b"BB")), (Ok(2), Ok(2)));
                ok!(sc!(SYS_shutdown, a, how));
                let (reads, writes) = (how != 1, how != 0);
                let mask = |reads, writes| IN | OUT | if reads { RDHUP } else { 0 } | if reads && writes { HUP } else { 0 };
                is!((events(a), events(b)), (mask(reads, writes), mask(writes, reads)));
                let end = |over| if over { Ok(vec![]) } else { Err(libc::EAGAIN) };
                is!((recv(a, 9), recv(a, 9)), (Ok(b"BB".to_vec()), end(reads)));
                is!((recv(b, 9), recv(b, 9)), (Ok(b"AA".to_vec()), end(writes)));
                let sent = |over| if over { Err(libc::EPIPE) } else { Ok(1) };
                is!((send(a, b"x"), send(b, b"x")), (sent(writes), sent(reads)));
            }
        }
        let (a, b) = ok!(quick(DGRAM));
        ok!(sc!(SYS_shutdown, a, libc::SHUT_RD));
        fails!(send(b, b"x"), EPIPE);
        fails!(recv(a, 1), EAGAIN);
        is!(send(a, b"x"), Ok(1));
    }
    waits_end_with_what_they_wait_for {
        for kind in TYPES {
            let (a, b) = ok!(pair(kind));
            let child = ok!(beside(|| {
                nap_us(20_000);
                (0..40).all(|n| send(a, &[n; 10_000]) == Ok(10_000))
            }));
            let mut sum = 0;
            while sum < 400_000 { sum += ok!(recv(b, 10_000)).len(); }
            holds!(ended(child));
        }
        let (a, b) = ok!(pair(STREAM));
        let child = ok!(beside(|| {
            let _ = sys::close(b);
            (0..5).all(|_| { nap_us(3000); send(a, b"ab") == Ok(2) })
        }));
        is!(recv_with(b, 9, libc::MSG_WAITALL), Ok(b"ababababa".to_vec()));
        ok!(sys::close(a));
        is!(recv_with(b, 9, libc::MSG_WAITALL), Ok(b"b".to_vec()));
        holds!(ended(child));
        let (_a, b) = ok!(pair(STREAM));
        let limit = [0u64, 20_000];
        ok!(sc!(SYS_setsockopt, b, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit.as_ptr(), 16));
        fails!(recv(b, 1), EAGAIN);
        fails!(recv_with(b, 1, libc::MSG_DONTWAIT), EAGAIN);
        let bad = [0u64, 1_000_000];
        fails!(sc!(SYS_setsockopt, b, libc::SOL_SOCKET, libc::SO_RCVTIMEO, bad.as_ptr(), 16), EDOM);
    }
    connections_by_path_and_by_name {
        for kind in [STREAM, SEQPACKET] {
            for name in [format!("{}/s", scratch()), name("c")] {
                let server = ok!(listener(kind, &name, 1));
                let client = ok!(socket(kind));
                ok!(connect(client, &name));
                is!(send(client, b"before"), Ok(6));
                is!(events(server), IN);
                let (mut raw, mut len) = ([9u8; 110], 110u32);
                let accepted = ok!(sc!(SYS_accept4, server, raw.as_mut_ptr(), &raw mut len, libc::SOCK_CLOEXEC)) as i32;
                is!((len, raw[0]), (2, 1));
                is!(ok!(sc!(SYS_fcntl, accepted, libc::F_GETFD)), 1);
                is!(recv(accepted, 9), Ok(b"before".to_vec()));
                is!(send(accepted, b"after"), Ok(5));
                is!(recv(client, 9), Ok(b"after".to_vec()));
                let mut whole = address(&name);
                if !name.starts_with('\0') { whole.push(0); }
                is!(named(libc::SYS_getsockname, accepted), Ok(whole.clone()));
                is!(named(libc::SYS_getpeername, client), Ok(whole));
                is!(named(libc::SYS_getpeername, accepted), Ok(vec![1, 0]));
                fails!(connect(client, &name), EISCONN);
                fails!(sc!(SYS_listen, client, 1), EINVAL);
                is!((option(server, libc::SO_ACCEPTCONN), option(client, libc::SO_ACCEPTCONN)), (Ok(1), Ok(0)));
                for fd in [server, client, accepted] { ok!(sys::close(fd)); }
            }
        }
    }
    names_belong_to_one_socket {
        let dir = scratch();
        let path = format!("{dir}/s");
        for kind in TYPES {
            let (a, b) = (ok!(socket(kind)), ok!(socket(kind)));
            ok!(bind(a, &name("n")));
            fails!(bind(a, &name("m")), EINVAL);
            fails!(bind(b, &name("n")), EADDRINUSE);
            ok!(sys::close(a));
            ok!(bind(b, &name("n")));
            ok!(sys::close(b));
        }
        let a = ok!(socket(STREAM));
        ok!(bind(a, &path));
        let mut stat = sys::zeroed_stat();
        ok!(sc!(SYS_stat, crate::harness::path(&path), &raw mut stat));
        is!(stat.st_mode & libc::S_IFMT, libc::S_IFSOCK);
        ok!(sys::close(a));
        let b = ok!(socket(STREAM));
        fails!(bind(b, &path), EADDRINUSE);
        fails!(connect(b, &path), ECONNREFUSED);
        fails!(sys::open(&path, libc::O_RDWR, 0), ENXIO);
        fails!(bind(b, &format!("{dir}/none/s")), ENOENT);
        ok!(std::fs::remove_file(&path).map_err(|e| e.raw_os_error().unwrap_or(0)));
        ok!(bind(b, &path));
        fails!(connect(ok!(socket(STREAM)), &path), ECONNREFUSED);
        fails!(connect(ok!(socket(DGRAM)), &path), EPROTOTYPE);
        let c = ok!(socket(STREAM));
        ok!(bind(c, ""));
        let auto = ok!(named(libc::SYS_getsockname, c));
        is!((auto.len(), auto[2]), (8, 0));
    }
    backlogs {
        let name = name("b");
        let server = ok!(listener(STREAM, &name, 1));
        let clients = [ok!(socket(STREAM)), ok!(socket(STREAM)), ok!(socket(STREAM | libc::SOCK_NONBLOCK))];
        ok!(connect(clients[0], &name));
        ok!(connect(clients[1], &name));
        fails!(connect(clients[2], &name), EAGAIN);
        ok!(sc!(SYS_fcntl, clients[2], libc::F_SETFL, 0));
        let child = ok!(beside(|| connect(clients[2], &name).is_ok()));
        nap_us(10_000);
        for _ in 0..3 { ok!(sc!(SYS_accept, server, 0, 0)); }
        holds!(ended(child));
        ok!(sc!(SYS_fcntl, server, libc::F_SETFL, libc::O_NONBLOCK));
        fails!(sc!(SYS_accept, server, 0, 0), EAGAIN);
        // A connection whose address cannot be told ends.
        let lost = ok!(socket(STREAM));
        ok!(connect(lost, &name));
        let mut len = 110u32;
        fails!(sc!(SYS_accept, server, 8, &raw mut len), EFAULT);
        is!(recv(lost, 1), Ok(vec![]));
        let last = ok!(socket(STREAM));
        ok!(connect(last, &name));
        ok!(sys::close(server));
        fails!(recv(last, 1), ECONNRESET);
        is!(recv(last, 1), Ok(vec![]));
        fails!(connect(ok!(socket(STREAM)), &name), ECONNREFUSED);
    }
    datagrams_by_address {
        let (x, y) = (name("x"), name("y"));
        let (a, b) = (ok!(socket(DGRAM | libc::SOCK_NONBLOCK)), ok!(socket(DGRAM | libc::SOCK_NONBLOCK)));
        ok!(bind(a, &x));
        ok!(bind(b, &y));
        is!(send_to(a, b"hello", &y), Ok(5));
        let (mut raw, mut len, mut bytes) = ([0u8; 110], 110u32, [0u8; 9]);
        is!(sc!(SYS_recvfrom, b, bytes.as_mut_ptr(), 9, 0, raw.as_mut_ptr(), &raw mut len), Ok(5));
        is!(raw[..len as usize], address(&x)[..]);
        ok!(connect(b, &x));
        is!(send(b, b"back"), Ok(4));
        is!(recv(a, 9), Ok(b"back".to_vec()));
        let c = ok!(socket(DGRAM | libc::SOCK_NONBLOCK));
        fails!(send_to(c, b"x", &y), EPERM);
        fails!(connect(c, &y), EPERM);
        fails!(send_to(c, b"x", &name("z")), ECONNREFUSED);
        for _ in 0..11 { is!(send_to(c, b"x", &x), Ok(1)); }
        fails!(send_to(c, b"x", &x), EAGAIN);
        fails!(send(c, b"x"), ENOTCONN);
        fails!(sc!(SYS_listen, c, 1), EOPNOTSUPP);
        fails!(sc!(SYS_accept, c, 0, 0), EOPNOTSUPP);
        ok!(sc!(SYS_connect, b, [0u64; 2].as_ptr(), 16));
        fails!(send(b, b"x"), ENOTCONN);
        let (s, t) = ok!(pair(STREAM));
        fails!(send_to(s, b"x", &x), EISCONN);
        // An address without bytes is none.
        is!(sc!(SYS_sendto, s, b"z".as_ptr(), 1, 0, [0u8; 2].as_ptr(), 0), Ok(1));
        is!(recv(t, 9), Ok(b"z".to_vec()));
        fails!(sc!(SYS_sendto, ok!(socket(STREAM)), b"x".as_ptr(), 1, 0, [0u8; 2].as_ptr(), 0), ENOTCONN);
        fails!(send_to(ok!(socket(STREAM)), b"x", &x), EOPNOTSUPP);
    }
    descriptors_in_messages {
        let (a, b) = ok!(pair(STREAM));
        let (r, w) = ok!(sys::pipe(0));
        is!(send(a, b"P"), Ok(1));
        is!(send_with(a, b"Q", &control(libc::SCM_RIGHTS, &[r])), Ok(1));
        is!(send(a, b"R"), Ok(1));
        is!(send_with(a, b"S", &control(libc::SCM_RIGHTS, &[r, w])), Ok(1));
        let (bytes, words, flags) = ok!(receive(b, 99, 99, libc::MSG_CMSG_CLOEXEC));
        is!((bytes, flags & !libc::MSG_CMSG_CLOEXEC), (b"PQ".to_vec(), 0));
        let got = descriptors(&words);
        is!(got.len(), 1);
        holds!(same(got[0], r));
        is!(ok!(sc!(SYS_fcntl, got[0], libc::F_GETFD)), 1);
        let (bytes, words, _) = ok!(receive(b, 99, 99, 0));
        is!(bytes, b"RS".to_vec());
        let got = descriptors(&words);
        holds!(got.len() == 2 && same(got[0], r) && same(got[1], w));
        is!(sys::write(got[1], b"through"), Ok(7));
        let mut text = [0; 7];
        is!((sys::read(r, &mut text), &text), (Ok(7), b"through"));
        is!(send_with(a, b"T", &control(libc::SCM_RIGHTS, &[r, w])), Ok(1));
        let (_, words, flags) = ok!(receive(b, 9, 20, 0));
        is!((descriptors(&words).len(), flags), (1, libc::MSG_CTRUNC));
        is!(send_with(a, b"T", &control(libc::SCM_RIGHTS, &[r, w])), Ok(1));
        is!(ok!(receive(b, 9, 0, 0)), (b"T".to_vec(), vec![], libc::MSG_CTRUNC));
        fails!(send_with(a, b"x", &control(libc::SCM_RIGHTS, &[999])), EBADF);
        fails!(send_with(a, b"x", &control(libc::SCM_RIGHTS, &[r; 254])), EINVAL);
        fails!(send_with(a, b"x", &control(77, &[])), EINVAL);
        is!(send_with(a, b"", &control(libc::SCM_RIGHTS, &[r])), Ok(0));
        fails!(recv_with(b, 9, libc::MSG_DONTWAIT), EAGAIN);
    }
    ids_of_senders_and_peers {
        let (a, b) = ok!(pair(STREAM));
        let ids = |fd| {
            let (mut ids, mut len) = ([0i32; 3], 12u32);
            sc!(SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_PEERCRED, ids.as_mut_ptr(), &raw mut len).map(|_| ids)
        };
        let pid = std::process::id() as i32;
        let uid = ok!(sc!(SYS_geteuid)) as i32;
        let gid = ok!(sc!(SYS_getegid)) as i32;
        is!(ids(a), Ok([pid, uid, gid]));
        is!(ids(ok!(socket(STREAM))), Ok([0, -1, -1]));
        is!(send(a, b"early"), Ok(5));
        ok!(set_option(b, libc::SO_PASSCRED, 1));
        is!(option(b, libc::SO_PASSCRED), Ok(1));
        let head = |words: &[i32]| words[..4] == [28, 0, libc::SOL_SOCKET, libc::SCM_CREDENTIALS];
        let (bytes, words, _) = ok!(receive(b, 99, 64, 0));
        holds!(bytes == b"early" && head(&words) && words[4..7] == [0, 65534, 65534]);
        is!(send(a, b"own"), Ok(3));
        let (_, words, _) = ok!(receive(b, 99, 64, 0));
        holds!(head(&words) && words[4..7] == [pid, uid, gid]);
        let status = in_child(|| {
            let _ = sys::become_user(65534, &[]);
            let me = std::process::id() as i32;
            let claim = |ids: [i32; 3]| send_with(a, b"x", &control(libc::SCM_CREDENTIALS, &ids));
            let denied = [[me, 0, 65534], [me, 65534, 0], [1, 65534, 65534]].map(claim);
            let allowed = claim([me, 65534, 65534]);
            i32::from(denied != [Err(libc::EPERM); 3] || allowed != Ok(1))
        })?;
        is!(status, 0);
    }
    options {
        let fd = ok!(socket(SEQPACKET));
        is!((option(fd, libc::SO_TYPE), option(fd, libc::SO_DOMAIN), option(fd, libc::SO_PROTOCOL)), (Ok(SEQPACKET), Ok(1), Ok(0)));
        is!(option(fd, libc::SO_RCVBUF), Ok(212_992));
        ok!(set_option(fd, libc::SO_SNDBUF, 1));
        ok!(set_option(fd, libc::SO_RCVBUF, 1));
        is!((option(fd, libc::SO_SNDBUF), option(fd, libc::SO_RCVBUF)), (Ok(4608), Ok(2304)));
        for number in [libc::SO_REUSEADDR, libc::SO_KEEPALIVE] {
            is!(option(fd, number), Ok(0));
            ok!(set_option(fd, number, 5));
            is!(option(fd, number), Ok(1));
        }
        let linger = [1i32, 7];
        ok!(sc!(SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_LINGER, linger.as_ptr(), 8));
        let (mut got, mut len) = ([0i32; 2], 8u32);
        ok!(sc!(SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_LINGER, got.as_mut_ptr(), &raw mut len));
        is!((got, len), (linger, 8));
        fails!(set_option(fd, libc::SO_TYPE, 1), ENOPROTOOPT);
        fails!(sc!(SYS_setsockopt, fd, 6, 1, got.as_ptr(), 4), EOPNOTSUPP);
    }
    packets_have_times {
        let (a, b) = ok!(pair(DGRAM));
        let (stamp, fine) = (libc::SO_TIMESTAMP, libc::SO_TIMESTAMPNS);
        is!(option(a, stamp), Ok(0));
        ok!(set_option(a, fine, 1));
        ok!(set_option(a, stamp, 1));
        is!((option(a, stamp), option(a, fine)), (Ok(1), Ok(0)));
        ok!(set_option(a, libc::SO_PASSSEC, 1));
        is!(option(a, libc::SO_PASSSEC), Ok(1));
        let before = std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_secs());
        // The time when it came, not when it is received.
        ok!(sys::write(b, b"x"));
        nap_us(20_000);
        let control = ok!(control_of(a));
        is!(control[..2], [32, (stamp as u64) << 32 | libc::SOL_SOCKET as u64]);
        holds!((before..before + 3).contains(&control[2]) && control[3] < 1_000_000);
        let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_micros() as u64);
        holds!(now - (control[2] * 1_000_000 + control[3]) >= 20_000);
        ok!(set_option(a, fine, 1));
        ok!(sys::write(b, b"x"));
        is!(ok!(control_of(a))[1] >> 32, fine as u64);
        ok!(set_option(a, stamp, 0));
        is!(option(a, fine), Ok(0));
        ok!(sys::write(b, b"x"));
        is!(ok!(control_of(a)), [0; 4]);
        // Those of a stream have none.
        let (a, b) = ok!(pair(STREAM));
        ok!(set_option(a, stamp, 1));
        ok!(sys::write(b, b"x"));
        is!(ok!(control_of(a)), [0; 4]);
    }
    queued_bytes_and_links {
        let (a, b) = ok!(quick(STREAM));
        is!((send(a, b"abc"), send(a, b"de")), (Ok(3), Ok(2)));
        let mut n = 0i32;
        ok!(sc!(SYS_ioctl, b, libc::FIONREAD, &raw mut n));
        is!(n, 5);
        let (c, d) = ok!(quick(DGRAM));
        is!((send(c, b"abc"), send(c, b"de")), (Ok(3), Ok(2)));
        ok!(sc!(SYS_ioctl, d, libc::FIONREAD, &raw mut n));
        is!(n, 3);
        let mut stat = sys::zeroed_stat();
        ok!(sc!(SYS_fstat, a, &raw mut stat));
        is!(stat.st_mode & libc::S_IFMT, libc::S_IFSOCK);
        let link = std::fs::read_link(format!("/proc/self/fd/{a}")).unwrap_or_default();
        is!(link.to_str(), Some(format!("socket:[{}]", stat.st_ino).as_str()));
        let on = 0i32;
        ok!(sc!(SYS_ioctl, a, libc::FIONBIO, &raw const on));
        is!(ok!(sc!(SYS_fcntl, a, libc::F_GETFL)) & libc::O_NONBLOCK as u64, 0);
    }
    the_list_of_sockets {
        let name = name("shown");
        let fd = ok!(listener(STREAM, &name, 1));
        let list = std::fs::read("/proc/net/unix").unwrap_or_default();
        let list = String::from_utf8_lossy(&list).into_owned();
        let line = |text: &str| list.lines().find(|line| line.ends_with(text)).map(str::to_owned);
        holds!(list.starts_with("Num"));
        let shown = line(&name.replace('\0', "@")).unwrap_or_default();
        let fields: Vec<&str> = shown.split_whitespace().collect();
        let mut stat = sys::zeroed_stat();
        ok!(sc!(SYS_fstat, fd, &raw mut stat));
        is!(fields.len(), 8);
        is!(fields[3..7], ["00010000", "0001", "01", stat.st_ino.to_string().as_str()]);
    }
    several_messages_at_once {
        let (a, b) = ok!(quick(DGRAM));
        let texts = [*b"one", *b"two", *b"six"];
        let buffers = texts.each_ref().map(|text| [text.as_ptr() as u64, 3]);
        let mut list: Vec<u64> = buffers.iter().flat_map(|buffer| [0, 0, buffer.as_ptr() as u64, 1, 0, 0, 0, 0]).collect();
        is!(sc!(SYS_sendmmsg, a, list.as_mut_ptr(), 3, 0), Ok(3));
        is!((list[7], list[15], list[23]), (3, 3, 3));
        let mut room = [[0u8; 5]; 4];
        let buffers = room.each_mut().map(|room| [room.as_mut_ptr() as u64, 5]);
        let mut list: Vec<u64> = buffers.iter().flat_map(|buffer| [0, 0, buffer.as_ptr() as u64, 1, 0, 0, 0, 0]).collect();
        is!(sc!(SYS_recvmmsg, b, list.as_mut_ptr(), 4, 0, 0), Ok(3));
        is!((list[7] as u32, &room[1][..3]), (3, &b"two"[..]));
        fails!(sc!(SYS_recvmmsg, b, list.as_mut_ptr(), 4, 0, 0), EAGAIN);
        fails!(sc!(SYS_recvmmsg, b, list.as_mut_ptr(), 4, 0, [-1i64, 0].as_ptr()), EINVAL);
    }
    a_user_has_few_descriptors_in_flight {
        let status = in_child(|| {
            let limit = [64u64, 64];
            let _ = sc!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, limit.as_ptr(), 0);
            let _ = sys::become_user(12_345, &[]);
            let Ok((a, b)) = quick(STREAM) else { return 1 };
            let all = control(libc::SCM_RIGHTS, &[b; 20]);
            let mut sent = 0;
            let error = loop {
                match send_with(a, b"x", &all) {
                    Ok(_) => sent += 20,
                    Err(e) => break e,
                }
                if sent > 500 { return 2 }
            };
            if error != libc::ETOOMANYREFS || sent < 60 { return 3 }
            i32::from(receive(b, 1, 4000, 0).is_err())
        })?;
        is!(status, 0);
    }
    sockets_in_their_own_queues {
        for kind in TYPES {
            for _ in 0..200 {
                let (a, b) = ok!(pair(kind));
                is!(send_with(a, b"x", &control(libc::SCM_RIGHTS, &[a, b])), Ok(1));
                is!(send_with(b, b"x", &control(libc::SCM_RIGHTS, &[a, b])), Ok(1));
                ok!(sys::close(a));
                ok!(sys::close(b));
            }
        }
        // A file that only such a socket refers to is closed in the end.
        let (r, w) = ok!(sys::pipe(libc::O_NONBLOCK));
        let (a, b) = ok!(pair(STREAM));
        is!(send_with(a, b"x", &control(libc::SCM_RIGHTS, &[b, w])), Ok(1));
        for fd in [a, b, w] { ok!(sys::close(fd)); }
        let over = soon(|| {
            // Closes of other sockets have it collected.
            for _ in 0..400 {
                if let Ok((a, b)) = pair(STREAM) {
                    let _ = (sys::close(a), sys::close(b));
                }
            }
            sys::read(r, &mut [0]) == Ok(0)
        });
        holds!(over);
    }
}
