//! Sockets of the internet: connections, ports, datagrams, and what they cost their users.
#![cfg(not(shuttle))]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use cred::Charge;
use net::SocketError;
use net::inet::pair::State;
use net::inet::ports;
use net::inet::protocol::Protocol;
use support::{nap, on};
use task::park::Deadline;
use users::inet::{V4, V6, bind, connect, counts, listener, pair, port, send_to, tcp, udp};
use users::{
    AGAIN, PIPE, REFUSED, RESET, accept, become_user, beside, events, join, of, poll, receive, send,
};
use vfs::error::FsError;
use vfs::poll::PollMask;

#[test]
fn a_connection_carries_bytes_and_ends() {
    on(1, || {
        for family in [V4, V6] {
            let (a, b) = pair(family);
            assert_eq!((send(&a, b"one"), send(&a, b"two")), (Ok(3), Ok(3)));
            assert_eq!(receive(&b, 9), Ok(b"onetwo".to_vec()));
            assert_eq!(send(&b, b"last"), Ok(4));
            assert_eq!(of(&b).shutdown(false, true), Ok(()));
            assert_eq!(receive(&a, 9), Ok(b"last".to_vec()));
            assert_eq!(receive(&a, 9), Ok(vec![]));
            assert_eq!(send(&b, b"x"), Err(PIPE));
            assert_eq!(send(&a, b"x"), Ok(1));
            drop(b);
            assert_eq!(receive(&a, 9), Ok(vec![]), "the end came before the reset");
            assert_eq!(send(&a, b"x"), Err(PIPE));
            drop(a);
            ports::drain();
            assert_eq!(counts(), (0, 0));
        }
    });
}

#[test]
fn a_write_to_a_closed_side_is_answered_by_a_reset() {
    on(1, || {
        let (a, b) = pair(V4);
        drop(b);
        assert_eq!(counts(), (1, 1), "the side that closed first is remembered");
        assert_eq!(send(&a, b"x"), Ok(1));
        assert_eq!(counts(), (1, 0), "and no more after a reset");
        assert!(events(&a).intersects(PollMask::ERR));
        assert_eq!(of(&a).take_error(), Some(PIPE));
        assert_eq!(send(&a, b"x"), Err(PIPE));
        let (a, b) = pair(V4);
        assert_eq!(send(&a, b"unread"), Ok(6));
        drop(b);
        assert_eq!(receive(&a, 9), Err(RESET));
        assert_eq!(receive(&a, 9), Ok(vec![]));
    });
}

/// The side that ends first is remembered, for a minute.
#[test]
fn ends_are_remembered() {
    on(1, || {
        let (server, number) = listener(V4, 1);
        let client = tcp(V4);
        assert_eq!(connect(&client, V4, number), Ok(()));
        let accepted = accept(&server).expect("a connection");
        drop(server);
        drop(accepted);
        drop(client);
        let mut states = Vec::new();
        ports::each_wait(|end, left| {
            states.push((end.local.port, end.over, left > 50_000_000_000))
        });
        assert_eq!(states, [(number, true, true)]);
        assert_eq!(bind(&tcp(V4), V4, number), Err(SocketError::AddressInUse));
        ports::drain();
        assert_eq!(bind(&tcp(V4), V4, number), Ok(()));
    });
}

/// However many connections end, so many ends are remembered at most.
#[test]
fn remembered_ends_are_bounded() {
    on(1, || {
        let (server, number) = listener(V4, 1);
        let most = 100;
        for _ in 0..most {
            let client = tcp(V4);
            assert_eq!(connect(&client, V4, number), Ok(()));
            drop(accept(&server).expect("a connection"));
        }
        let (sockets, waits) = counts();
        assert_eq!(sockets, 1);
        assert!(waits < most, "the server's ends lie in one shard: {waits}");
    });
}

#[test]
fn a_listener_that_is_shut_down_wakes_its_pollers() {
    on(2, || {
        let (server, _) = listener(V4, 0);
        let polled = server.clone();
        beside(move || {
            let found = poll(&polled, PollMask::READ, Deadline::Never);
            assert_eq!(found.map(|found| found.intersects(PollMask::HUP)), Ok(true));
            drop(polled);
        });
        nap(20);
        assert_eq!(of(&server).shutdown(true, true), Ok(()));
        join(1);
    });
}

#[test]
fn options_that_libraries_set_are_kept() {
    on(1, || {
        let socket = udp(V6);
        // IP_RECVERR by resolvers; IPV6_RECVERR; IPV6_MULTICAST_HOPS by Java.
        for (level, option, value) in [(0, 11, 1), (41, 25, 1), (41, 18, 3), (41, 18, -1_i32)] {
            let set = of(&socket).set_option(level, option, &value.to_ne_bytes());
            assert_eq!(set, Ok(()), "{level} {option}");
        }
    });
}

#[test]
fn ports_are_given_once() {
    on(1, || {
        assert!(net::inet::settings::set_port_range(40_000, 40_003));
        let sockets: Vec<_> = (0..4).map(|_| tcp(V4)).collect();
        let mut numbers: Vec<u16> = Vec::new();
        for socket in &sockets {
            assert_eq!(bind(socket, V4, 0), Ok(()));
            numbers.push(port(socket));
        }
        numbers.sort_unstable();
        assert_eq!(numbers, [40_000, 40_001, 40_002, 40_003]);
        assert_eq!(bind(&tcp(V4), V4, 0), Err(SocketError::AddressInUse));
        assert_eq!(bind(&udp(V4), V4, 0), Ok(()), "another protocol");
        let (_, number) = {
            drop(sockets);
            listener(V4, 1)
        };
        let clients: Vec<_> = (0..4).map(|_| tcp(V4)).collect();
        let refused = clients
            .iter()
            .filter(|c| connect(c, V4, number) == Err(REFUSED));
        assert_eq!(
            refused.count(),
            4,
            "the listener is gone, and each gives its port back"
        );
    });
}

/// As in Linux, connects to different peers may have one port.
#[test]
fn a_port_is_chosen_together_with_the_peer() {
    on(1, || {
        assert!(net::inet::settings::set_port_range(40_000, 40_003));
        let listeners: Vec<_> = (5000..5003)
            .map(|number| {
                let server = tcp(V4);
                assert_eq!(bind(&server, V4, number), Ok(()));
                assert_eq!(of(&server).listen(9), Ok(()));
                (server, number)
            })
            .collect();
        // Not a port that bind has given.
        let bound = tcp(V4);
        assert_eq!(bind(&bound, V4, 0), Ok(()));
        let mut clients = Vec::new();
        for (server, number) in &listeners {
            let mut numbers = Vec::new();
            for _ in 0..3 {
                let client = tcp(V4);
                assert_eq!(connect(&client, V4, *number), Ok(()));
                let accepted = accept(server).expect("a connection");
                assert_eq!(send(&client, &number.to_be_bytes()), Ok(2));
                assert_eq!(receive(&accepted, 9), Ok(number.to_be_bytes().to_vec()));
                numbers.push(port(&client));
                clients.push((client, accepted));
            }
            numbers.push(port(&bound));
            numbers.sort_unstable();
            assert_eq!(numbers, [40_000, 40_001, 40_002, 40_003]);
            let more = tcp(V4);
            let answer = connect(&more, V4, *number);
            assert_eq!(answer, Err(SocketError::NotAvailable));
            assert_eq!(port(&more), 0);
        }
        let other = tcp(V4);
        assert_eq!(bind(&other, V4, 0), Err(SocketError::AddressInUse));
        drop((clients, listeners, bound));
        ports::drain();
        assert_eq!(counts(), (0, 0));
    });
}

/// However many sockets a user binds to one port, a packet has few to choose from.
#[test]
fn sockets_of_one_port_are_bounded() {
    on(1, || {
        let bound = |number| {
            let socket = udp(V4);
            of(&socket).options().keep(net::option::REUSEADDR, true);
            let answer = bind(&socket, V4, number);
            (socket, answer)
        };
        let mut sockets = Vec::new();
        let refused = loop {
            match bound(5000) {
                (socket, Ok(())) => sockets.push(socket),
                (_, Err(e)) => break e,
            }
        };
        assert_eq!((sockets.len(), refused), (1024, SocketError::AddressInUse));
        // One that has a peer leaves its place to another, and cannot come back.
        assert_eq!(connect(&sockets[0], V4, 5000), Ok(()));
        sockets.push(bound(5000).0);
        let nowhere = of(&sockets[0]).connect(&[0, 0], false);
        assert_eq!(nowhere, Err(SocketError::AddressInUse));
        assert!(of(&sockets[0]).peer_name().is_ok(), "nothing has changed");
        drop(sockets.pop());
        assert_eq!(of(&sockets[0]).connect(&[0, 0], false), Ok(()));
        // More than one batch of the list, each once.
        assert_eq!(counts().0, 1024);
        drop(sockets);
        assert_eq!(counts().0, 0);
    });
}

/// What a bind finds of the connections at a port, as for each one of them.
#[test]
fn binds_meet_connections() {
    on(1, || {
        let reusing = |family, reuse| {
            let socket = tcp(family);
            of(&socket).options().keep(net::option::REUSEADDR, reuse);
            socket
        };
        let free = |to: &[u8], family, reuse, only: i32| {
            let socket = reusing(family, reuse);
            if family == V6 {
                let set = of(&socket).set_option(41, 26, &only.to_ne_bytes());
                assert_eq!(set, Ok(()));
            }
            of(&socket).bind(to).is_ok()
        };
        let any = |family: net::inet::endpoint::Family| {
            let (ip, port) = (family.any(), 5000);
            net::inet::endpoint::Endpoint { ip, port }.address(family).0
        };
        let second = [2, 0, 19, 136, 127, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        let (loop4, loop6) = (users::inet::at(V4, 5000), users::inet::at(V6, 5000));
        for reuse in [false, true] {
            let server = reusing(V4, reuse);
            assert_eq!(bind(&server, V4, 5000), Ok(()));
            assert_eq!(of(&server).listen(1), Ok(()));
            let both: Vec<_> = (0..100)
                .map(|_| {
                    let client = tcp(V4);
                    assert_eq!(connect(&client, V4, 5000), Ok(()));
                    (client, accept(&server).expect("a connection"))
                })
                .collect();
            drop(server);
            for asks in [false, true] {
                let shares = reuse && asks;
                assert_eq!(free(&loop4, V4, asks, 0), shares);
                assert_eq!(free(&any(V4), V4, asks, 0), shares);
                assert_eq!(free(&any(V6), V6, asks, 0), shares);
                assert!(free(&any(V6), V6, asks, 1));
                assert!(free(&loop6, V6, asks, 0));
                assert!(free(&second, V4, asks, 0));
            }
            drop(both);
            ports::drain();
            assert!(free(&any(V6), V6, false, 0));
            assert_eq!(counts(), (0, 0));
        }
    });
}

#[test]
fn datagrams_find_their_socket() {
    on(1, || {
        let (a, b) = (udp(V4), udp(V4));
        assert_eq!(bind(&b, V4, 0), Ok(()));
        let number = port(&b);
        assert_eq!(send_to(&a, b"one", V4, number), Ok(3));
        assert_eq!(receive(&b, 9), Ok(b"one".to_vec()));
        assert_eq!(send(&a, b"x"), Err(SocketError::NoDestination));
        assert_eq!(connect(&a, V4, number), Ok(()));
        assert_eq!(send(&a, b"two"), Ok(3));
        assert_eq!(receive(&b, 9), Ok(b"two".to_vec()));
        // What a look-up has found is not used once the socket is closed, or another one has its port.
        drop(b);
        assert_eq!(send(&a, b"x"), Ok(1));
        assert_eq!(send(&a, b"x"), Err(REFUSED));
        let c = udp(V4);
        assert_eq!(bind(&c, V4, number), Ok(()));
        assert_eq!(send(&a, b"three"), Ok(5));
        assert_eq!(receive(&c, 9), Ok(b"three".to_vec()));
        // One that is connected to the sender says more.
        let d = udp(V4);
        of(&d).options().keep(net::option::REUSEADDR, true);
        assert_eq!(bind(&d, V4, number), Err(SocketError::AddressInUse));
        assert_eq!(receive(&c, 9), Err(AGAIN));
    });
}

/// Sockets and what lies in them are charged to their user, and all of it is given back.
#[test]
fn sockets_are_charged() {
    on(1, || {
        let (server, number) = listener(V4, 1);
        let payer = become_user(1000);
        let before = payer.held(Charge::Memory);
        let client = tcp(V4);
        assert_eq!(connect(&client, V4, number), Ok(()));
        assert_eq!(send(&client, &[1; 100_000]), Ok(100_000));
        assert!(payer.held(Charge::Memory) >= before + 100_000);
        let (a, b) = (udp(V4), udp(V4));
        assert_eq!(bind(&b, V4, 0), Ok(()));
        let so_far = payer.held(Charge::Memory);
        for _ in 0..10 {
            assert_eq!(send_to(&a, &[1; 5000], V4, port(&b)), Ok(5000));
        }
        assert!(payer.held(Charge::Memory) >= so_far + 50_000);
        drop((a, b));
        let accepted = accept(&server).expect("a connection");
        drop((client, accepted, server));
        ports::drain();
        assert_eq!(payer.held(Charge::Memory), before);
        assert_eq!(counts(), (0, 0));
    });
}

/// What a receiver does not read is bounded by its own limit, and a sender does not wait.
#[test]
fn datagrams_are_dropped_without_room() {
    on(1, || {
        let (a, b) = (udp(V4), udp(V4));
        assert_eq!(bind(&b, V4, 0), Ok(()));
        of(&b).set_receive_limit(10_000);
        for _ in 0..100 {
            assert_eq!(send_to(&a, &[1; 1000], V4, port(&b)), Ok(1000));
        }
        let count = (0..100).take_while(|_| receive(&b, 1000).is_ok()).count();
        assert!((5..=20).contains(&count), "{count}");
        let mut dropped = 0;
        ports::each(Protocol::Udp, |_, entry| {
            if let ports::Owner::Receiver(receiver) = &entry.owner {
                dropped += receiver.dropped();
            }
        });
        assert_eq!(dropped + count, 100);
    });
}

#[test]
fn states_are_told() {
    on(1, || {
        let state = |file: &vfs::file::FileRef| {
            let mut out = [0; net::socket::OPTION];
            assert_eq!(of(file).option(6, 11, &mut out), Ok(232));
            out[0]
        };
        let (server, number) = listener(V4, 1);
        let client = tcp(V4);
        assert_eq!(
            (state(&server), state(&client)),
            (State::Listen as u8, State::Close as u8)
        );
        assert_eq!(connect(&client, V4, number), Ok(()));
        assert_eq!(state(&client), State::Established as u8);
        let accepted = accept(&server).expect("a connection");
        assert_eq!(of(&client).shutdown(false, true), Ok(()));
        assert_eq!(
            (state(&client), state(&accepted)),
            (State::FinWait2 as u8, State::CloseWait as u8)
        );
        assert_eq!(of(&client).shutdown(false, true), Ok(()), "once more");
        assert_eq!(of(&accepted).shutdown(false, true), Ok(()));
        assert_eq!(
            (state(&client), state(&accepted)),
            (State::Close as u8, State::Close as u8)
        );
        assert_eq!(
            of(&client).shutdown(false, true),
            Err(FsError::NotConnected.into())
        );
    });
}
