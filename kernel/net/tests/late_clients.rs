//! Clients of TCP that wait for room at a listener, and listeners that are shut down.
#![cfg(not(shuttle))]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use net::SocketError;
use net::inet::ports;
use support::{nap, on};
use task::park::Deadline;
use users::inet::{V4, bind, connect, counts, crowded, late_client, listener, port, tcp};
use users::{AGAIN, REFUSED, RESET, accept, beside, events, join, of, poll, receive, send};
use vfs::error::FsError;
use vfs::file::o;
use vfs::poll::PollMask;

const TIMED_OUT: SocketError = SocketError::File(FsError::TimedOut);

#[test]
fn a_client_without_room_is_late() {
    on(2, || {
        let (server, number, _first, late) = crowded();
        assert_eq!(connect(&late, V4, number), Err(SocketError::Already));
        assert_eq!(
            (send(&late, b"x"), receive(&late, 1)),
            (Err(AGAIN), Err(AGAIN))
        );
        assert_eq!(events(&late), PollMask::NONE);
        // One that gives up leaves nothing.
        drop(late_client(number));
        // One that waits.
        let waits = tcp(V4);
        beside(move || {
            assert_eq!(connect(&waits, V4, number), Ok(()));
            assert_eq!(receive(&waits, 9), Ok(b"for it".to_vec()));
        });
        nap(20);
        drop(accept(&server).expect("the first"));
        assert_eq!(events(&late), PollMask::WRITE);
        assert_eq!(connect(&late, V4, number), Ok(()));
        assert_eq!(connect(&late, V4, number), Err(SocketError::IsConnected));
        drop(accept(&server).expect("the late one"));
        let last = accept(&server).expect("the one that waited");
        assert_eq!(send(&last, b"for it"), Ok(6));
        join(1);
        // A listener that is closed refuses those that are late.
        let (one, two) = (tcp(V4), tcp(V4));
        two.set_flags(o::NONBLOCK);
        assert_eq!(connect(&one, V4, number), Ok(()));
        assert_eq!(connect(&two, V4, number), Err(SocketError::InProgress));
        drop(server);
        assert_eq!(receive(&one, 1), Err(RESET));
        assert_eq!(connect(&two, V4, number), Err(REFUSED));
        let (_server, number) = listener(V4, 0);
        two.set_flags(0);
        assert_eq!(connect(&two, V4, number), Ok(()), "it can be used again");
        // The port that bind has chosen stays if a connect fails.
        let before = counts().0;
        let bound = tcp(V4);
        assert_eq!(bind(&bound, V4, 0), Ok(()));
        let own = port(&bound);
        assert_eq!(connect(&bound, V4, own), Err(REFUSED));
        assert_eq!((port(&bound), counts().0), (own, before + 1));
    });
}

/// So many clients that the listener's list is full, nonblocking, with a TCP_SYNCNT of 1.
fn too_many(number: u16) -> Vec<vfs::file::FileRef> {
    let one = |_| {
        let client = tcp(V4);
        client.set_flags(o::NONBLOCK);
        let set = of(&client).set_option(6, 7, &1_i32.to_ne_bytes());
        assert_eq!(set, Ok(()));
        assert_eq!(connect(&client, V4, number), Err(SocketError::InProgress));
        client
    };
    (0..200).map(one).collect()
}

#[test]
fn clients_without_room_time_out() {
    on(2, || {
        net::inet::late::start();
        let (server, number) = listener(V4, 0);
        let clients = too_many(number);
        let blocks = tcp(V4);
        let set = of(&blocks).set_option(6, 7, &1_i32.to_ne_bytes());
        assert_eq!(set, Ok(()));
        beside(move || {
            assert_eq!(connect(&blocks, V4, number), Err(TIMED_OUT));
            drop(blocks);
        });
        // Linux's: tried again after a second, and not after two more.
        let (first, listed, last) = (&clients[0], &clients[1], &clients[199]);
        assert_eq!(events(first), PollMask::WRITE);
        nap(2500);
        for late in [listed, last] {
            assert_eq!(events(late), PollMask::NONE);
            assert_eq!(connect(late, V4, number), Err(SocketError::Already));
        }
        let failed = PollMask::ERR | PollMask::HUP;
        for late in [listed, last] {
            let found = poll(late, PollMask::NONE, Deadline::after(20_000_000_000));
            assert_eq!(found, Ok(failed));
        }
        assert_eq!(of(listed).take_error(), Some(TIMED_OUT));
        assert_eq!(connect(last, V4, number), Err(TIMED_OUT));
        join(1);
        // None is left in the list.
        server.set_flags(o::NONBLOCK);
        drop(accept(&server).expect("the first"));
        assert_eq!(accept(&server).map(|_| ()), Err(AGAIN));
        assert_eq!(connect(last, V4, number), Err(SocketError::InProgress));
        assert_eq!(connect(last, V4, number), Ok(()), "it can be used again");
        drop((clients, server));
        ports::drain();
        assert_eq!(counts(), (0, 0));
    });
}

/// A client for which even the list of late ones was too long is connected, or refused, by an attempt that comes later.
#[test]
fn clients_are_tried_again() {
    on(1, || {
        net::inet::late::start();
        for closes in [false, true] {
            let (server, number) = listener(V4, 0);
            let clients = too_many(number);
            let mut accepted = Vec::new();
            server.set_flags(o::NONBLOCK);
            while let (false, Ok(one)) = (closes, accept(&server)) {
                accepted.push(one);
            }
            assert!(closes || accepted.len() == 129, "{}", accepted.len());
            let open = (!closes).then_some(server);
            if let Some(server) = &open {
                // Room for all that were tried in vain.
                assert_eq!(of(server).listen(100), Ok(()));
            }
            let last = &clients[199];
            assert_eq!(events(last), PollMask::NONE);
            let wanted = PollMask::WRITE;
            assert!(poll(last, wanted, Deadline::after(20_000_000_000)).is_ok());
            let found = connect(last, V4, number);
            let expected = if closes { Err(REFUSED) } else { Ok(()) };
            assert_eq!(found, expected);
        }
    });
}

/// A client that comes when others are late does not pass them.
#[test]
fn late_clients_are_connected_in_order() {
    on(1, || {
        let (server, number) = listener(V4, 0);
        let clients: Vec<_> = (0..4).map(|_| tcp(V4)).collect();
        for client in &clients {
            client.set_flags(o::NONBLOCK);
            assert_eq!(connect(client, V4, number), Err(SocketError::InProgress));
        }
        // Longer by one: the second has room.
        assert_eq!(of(&server).listen(1), Ok(()));
        for client in &clients {
            let _new = late_client(number);
            let accepted = accept(&server).expect("one of them");
            let raw = of(&accepted).peer_name().expect("a peer").0;
            assert_eq!(raw[2..4], port(client).to_be_bytes());
            assert_eq!(events(client), PollMask::WRITE);
        }
    });
}

#[test]
fn a_late_client_is_shut_down() {
    on(2, || {
        for blocks in [false, true] {
            let (server, number) = listener(V4, 0);
            let first = tcp(V4);
            assert_eq!(connect(&first, V4, number), Ok(()));
            let late = tcp(V4);
            if blocks {
                let waits = late.clone();
                beside(move || {
                    assert_eq!(connect(&waits, V4, number), Err(RESET));
                    drop(waits);
                });
                nap(20);
            } else {
                late.set_flags(o::NONBLOCK);
                assert_eq!(connect(&late, V4, number), Err(SocketError::InProgress));
            }
            assert_eq!(of(&late).shutdown(false, true), Ok(()));
            if blocks {
                join(1);
            } else {
                let failed = PollMask::ERR | PollMask::HUP | PollMask::WRITE;
                assert_eq!(events(&late), failed);
                assert_eq!(of(&late).take_error(), Some(RESET));
            }
            late.set_flags(o::NONBLOCK);
            // Its place in the list is gone, and it may listen, or connect.
            drop(accept(&server).expect("the first"));
            server.set_flags(o::NONBLOCK);
            assert_eq!(accept(&server).map(|_| ()), Err(AGAIN));
            if blocks {
                assert_eq!(of(&late).listen(1), Ok(()));
            } else {
                assert_eq!(connect(&late, V4, number), Err(SocketError::InProgress));
                assert_eq!(send(&late, b"x"), Ok(1));
            }
        }
    });
}

#[test]
fn a_listener_that_was_shut_down_listens_again() {
    on(1, || {
        for chooses in [false, true] {
            let (server, number) = listener(V4, 1);
            let waits = tcp(V4);
            assert_eq!(connect(&waits, V4, number), Ok(()));
            let server = match chooses {
                false => server,
                true => {
                    drop(server);
                    let server = tcp(V4);
                    assert_eq!(bind(&server, V4, number), Ok(()));
                    assert_eq!(of(&server).listen(1), Ok(()));
                    server
                }
            };
            assert_eq!(of(&server).shutdown(true, false), Ok(()));
            assert_eq!(receive(&waits, 1), Err(RESET));
            assert_eq!(events(&server), PollMask::WRITE | PollMask::HUP);
            assert_eq!(connect(&tcp(V4), V4, number), Err(REFUSED));
            // As in Linux, a port that bind has not said is free.
            let other = tcp(V4);
            assert_eq!(bind(&other, V4, number).is_ok(), !chooses);
            drop(other);
            assert_eq!(of(&server).listen(1), Ok(()));
            assert!(!chooses || port(&server) == number);
            let client = tcp(V4);
            assert_eq!(connect(&client, V4, port(&server)), Ok(()));
            let accepted = accept(&server).expect("a connection");
            assert_eq!(send(&client, b"x"), Ok(1));
            assert_eq!(receive(&accepted, 9), Ok(b"x".to_vec()));
        }
        ports::drain();
        assert_eq!(counts(), (0, 0));
    });
}
