//! Names, listeners and connections.
#![cfg(not(shuttle))]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use net::SocketError;
use net::ids::Ids;
use net::socket::Receive;
use support::{nap, on};
use task::park::Deadline;
use users::*;
use vfs::error::FsError;
use vfs::file::o;
use vfs::poll::PollMask;

const INVALID: SocketError = SocketError::File(FsError::Invalid);

#[test]
fn a_connection_carries_bytes_both_ways() {
    on(1, || {
        for kind in [STREAM, SEQPACKET] {
            for name in ["/s", "\0name"] {
                let name = format!("{name}{}", kind as u32);
                let server = listener(kind, &name, 1);
                let client = socket(kind);
                assert_eq!(connect(&client, &name), Ok(()));
                assert_eq!(send(&client, b"before"), Ok(6));
                assert_eq!(events(&server), PollMask::READ);
                let accepted = accept(&server).expect("a connection");
                assert_eq!(receive(&accepted, 9), Ok(b"before".to_vec()));
                assert_eq!(send(&accepted, b"after"), Ok(5));
                assert_eq!(receive(&client, 9), Ok(b"after".to_vec()));
                let mut full = address(&name);
                if !name.starts_with('\0') {
                    full.push(0);
                }
                assert_eq!(of(&client).peer_name().map(|a| a.0), Ok(full.clone()));
                assert_eq!(of(&accepted).name().0, full);
                assert_eq!(of(&accepted).peer_name().map(|a| a.0), Ok(vec![1, 0]));
                let ids = Some(Ids {
                    pid: 1,
                    uid: 0,
                    gid: 0,
                });
                assert_eq!(of(&client).peer_ids(), ids);
                assert_eq!(of(&accepted).peer_ids(), ids);
            }
        }
    });
}

#[test]
fn a_name_belongs_to_one_socket() {
    on(1, || {
        for kind in TYPES {
            let first = socket(kind);
            assert_eq!(bind(&first, "\0n"), Ok(()));
            assert_eq!(bind(&first, "\0m"), Err(INVALID), "one name");
            let second = socket(kind);
            assert_eq!(bind(&second, "\0n"), Err(SocketError::AddressInUse));
            drop(first);
            assert_eq!(
                bind(&second, "\0n"),
                Ok(()),
                "an abstract name is free again"
            );
        }
        let first = socket(STREAM);
        assert_eq!(bind(&first, "/s"), Ok(()));
        drop(first);
        let second = socket(STREAM);
        assert_eq!(bind(&second, "/s"), Err(SocketError::AddressInUse));
        assert_eq!(connect(&second, "/s"), Err(REFUSED), "its socket is closed");
        assert_eq!(connect(&socket(DATAGRAM), "/s"), Err(REFUSED));
        assert_eq!(bind(&second, "/none/s"), Err(FsError::NotFound.into()));
        assert_eq!(bind(&second, ""), Ok(()), "any name");
        assert_eq!(of(&second).name().0.len(), 8);
    });
}

#[test]
fn a_connect_meets_the_right_socket_or_none() {
    on(1, || {
        let client = socket(STREAM);
        assert_eq!(connect(&client, "\0none"), Err(REFUSED));
        assert_eq!(connect(&client, "/none"), Err(FsError::NotFound.into()));
        let idle = socket(STREAM);
        assert_eq!(bind(&idle, "/idle"), Ok(()));
        assert_eq!(connect(&client, "/idle"), Err(REFUSED));
        let packets = listener(SEQPACKET, "/packets", 1);
        assert_eq!(connect(&client, "/packets"), Err(SocketError::WrongType));
        assert_eq!(
            of(&socket(DATAGRAM)).listen(1),
            Err(FsError::NotSupported.into())
        );
        assert_eq!(of(&client).listen(1), Err(INVALID), "without a name");
        let server = listener(STREAM, "/s", 1);
        assert_eq!(connect(&server, "/s"), Err(INVALID));
        assert_eq!(connect(&client, "/s"), Ok(()));
        assert_eq!(connect(&client, "/s"), Err(SocketError::IsConnected));
        assert_eq!(of(&client).listen(1), Err(INVALID));
        let third = socket(STREAM);
        become_user(1000);
        let denied = connect(&third, "/s");
        assert_eq!(denied, Err(FsError::Access.into()), "0755 of root");
        drop(packets);
    });
}

#[test]
fn a_full_backlog_keeps_clients_waiting() {
    on(2, || {
        let server = listener(STREAM, "\0s", 1);
        let clients: Vec<_> = (0..3).map(|_| socket(STREAM)).collect();
        assert_eq!(connect(&clients[0], "\0s"), Ok(()));
        assert_eq!(
            connect(&clients[1], "\0s"),
            Ok(()),
            "one more than the backlog"
        );
        clients[2].set_flags(o::NONBLOCK);
        assert_eq!(connect(&clients[2], "\0s"), Err(AGAIN));
        clients[2].set_flags(0);
        of(&clients[2]).options().set_timeout(true, 2_000_000);
        assert_eq!(connect(&clients[2], "\0s"), Err(AGAIN));
        of(&clients[2]).options().set_timeout(true, 0);
        let waits = clients[2].clone();
        beside(move || assert_eq!(connect(&waits, "\0s"), Ok(())));
        nap(3);
        let first = accept(&server).expect("the first");
        assert_eq!(send(&clients[0], b"0"), Ok(1));
        assert_eq!(receive(&first, 9), Ok(b"0".to_vec()));
        join(1);
        assert!(accept(&server).is_ok() && accept(&server).is_ok());
        server.set_flags(o::NONBLOCK);
        assert_eq!(accept(&server).map(drop), Err(AGAIN));
    });
}

#[test]
fn an_accept_waits_for_a_client() {
    on(2, || {
        let server = listener(STREAM, "\0s", 5);
        for _ in 0..2 {
            let theirs = server.clone();
            beside(move || {
                let accepted = accept(&theirs).expect("a connection");
                assert_eq!(receive(&accepted, 9), Ok(b"x".to_vec()));
            });
        }
        nap(3);
        for _ in 0..2 {
            let client = socket(STREAM);
            assert_eq!(connect(&client, "\0s"), Ok(()));
            assert_eq!(send(&client, b"x"), Ok(1));
        }
        join(2);
        let theirs = server.clone();
        beside(move || {
            assert!(poll(&theirs, PollMask::READ, Deadline::Never).is_ok());
        });
        nap(3);
        assert_eq!(connect(&socket(STREAM), "\0s"), Ok(()));
        join(1);
    });
}

#[test]
fn the_close_of_a_listener_resets_who_waits() {
    on(2, || {
        let server = listener(STREAM, "\0s", 0);
        let client = socket(STREAM);
        assert_eq!(connect(&client, "\0s"), Ok(()));
        assert_eq!(send(&client, b"x"), Ok(1));
        beside(|| assert_eq!(connect(&socket(STREAM), "\0s"), Err(REFUSED)));
        nap(2);
        drop(server);
        join(1);
        assert_eq!(receive(&client, 9), Err(RESET));
        assert_eq!(receive(&client, 9), Ok(vec![]));
        assert_eq!(send(&client, b"x"), Err(PIPE));
        assert_eq!(connect(&socket(STREAM), "\0s"), Err(REFUSED));
        let server = listener(STREAM, "\0s", 0);
        let theirs = server.clone();
        beside(move || assert_eq!(accept(&theirs).map(drop), Err(INVALID)));
        nap(2);
        assert_eq!(of(&server).shutdown(true, false), Ok(()));
        join(1);
        assert_eq!(connect(&socket(STREAM), "\0s"), Err(REFUSED));
    });
}

#[test]
fn datagrams_go_by_address_or_to_the_peer() {
    on(2, || {
        let (a, b) = (socket(DATAGRAM), socket(DATAGRAM));
        assert_eq!((bind(&a, "\0a"), bind(&b, "/b")), (Ok(()), Ok(())));
        assert_eq!(send_to(&a, b"hello", "/b"), Ok(5));
        let (bytes, got) = receive_with(&b, 9, Receive::default()).expect("a packet");
        assert_eq!(bytes, b"hello");
        assert_eq!(got.from.map(|a| a.0), Some(address("\0a")));
        assert_eq!(connect(&b, "\0a"), Ok(()));
        assert_eq!(send(&b, b"back"), Ok(4));
        assert_eq!(receive(&a, 9), Ok(b"back".to_vec()));
        // A socket that is connected hears its peer alone.
        let c = socket(DATAGRAM);
        let denied = SocketError::File(FsError::Perm);
        assert_eq!(send_to(&c, b"x", "/b"), Err(denied));
        assert_eq!(connect(&c, "/b"), Err(denied));
        assert_eq!(send_to(&c, b"x", "\0none"), Err(REFUSED));
        assert_eq!(of(&b).connect(&[0, 0], false), Ok(()), "to nobody");
        assert_eq!(send(&b, b"x"), Err(FsError::NotConnected.into()));
        assert_eq!(send_to(&c, b"x", "/b"), Ok(1));
        // The queue of one that is not connected is short.
        c.set_flags(o::NONBLOCK);
        for _ in 0..10 {
            assert_eq!(send_to(&c, b"x", "/b"), Ok(1));
        }
        assert_eq!(send_to(&c, b"x", "/b"), Err(AGAIN));
        assert_eq!(connect(&c, "/b"), Ok(()));
        assert!(!events(&c).intersects(PollMask::WRITE));
        c.set_flags(0);
        let theirs = c.clone();
        beside(move || assert_eq!(send(&theirs, b"y"), Ok(1)));
        let polls = c.clone();
        beside(move || assert!(poll(&polls, PollMask::WRITE, Deadline::Never).is_ok()));
        nap(2);
        for _ in 0..5 {
            assert_eq!(receive(&b, 1), Ok(b"x".to_vec()));
        }
        join(2);
    });
}

#[test]
fn clients_and_servers_by_the_dozen() {
    on(4, || {
        let server = listener(SEQPACKET, "/s", 2);
        for _ in 0..3 {
            let server = server.clone();
            beside(move || {
                for _ in 0..20 {
                    let accepted = accept(&server).expect("a connection");
                    let got = receive(&accepted, 9).expect("a packet");
                    assert_eq!(send(&accepted, &got), Ok(got.len()));
                }
            });
        }
        for n in 0..6u8 {
            beside(move || {
                for _ in 0..10 {
                    let client = socket(SEQPACKET);
                    assert_eq!(connect(&client, "/s"), Ok(()));
                    assert_eq!(send(&client, &[n; 3]), Ok(3));
                    assert_eq!(receive(&client, 9), Ok(vec![n; 3]));
                }
            });
        }
        join(9);
    });
}
