//! Sockets of the internet: connections, ports, datagrams, and what they cost their users.
#![cfg(not(shuttle))]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use cred::Charge;
use net::SocketError;
use net::inet::pair::State;
use net::inet::ports::{self, Protocol};
use support::{nap, on};
use task::park::Deadline;
use users::inet::{V4, V6, bind, connect, listener, pair, port, send_to, tcp, udp};
use users::{
    AGAIN, PIPE, REFUSED, RESET, accept, become_user, beside, events, join, of, poll, receive, send,
};
use vfs::error::FsError;
use vfs::file::o;
use vfs::poll::PollMask;

const TIMED_OUT: SocketError = SocketError::File(FsError::TimedOut);

/// How many sockets of a protocol have a port, and how many ends are remembered.
fn counts() -> (usize, usize) {
    let (mut sockets, mut waits) = (0, 0);
    ports::each(Protocol::Tcp, |_, _| sockets += 1);
    ports::each(Protocol::Udp, |_, _| sockets += 1);
    ports::each_wait(|_, _| waits += 1);
    (sockets, waits)
}

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
fn a_client_without_room_is_late() {
    on(2, || {
        let (server, number) = listener(V4, 0);
        let first = tcp(V4);
        assert_eq!(connect(&first, V4, number), Ok(()));
        let late = tcp(V4);
        late.set_flags(o::NONBLOCK);
        assert_eq!(connect(&late, V4, number), Err(SocketError::InProgress));
        assert_eq!(connect(&late, V4, number), Err(SocketError::Already));
        assert_eq!(
            (send(&late, b"x"), receive(&late, 1)),
            (Err(AGAIN), Err(AGAIN))
        );
        assert_eq!(events(&late), PollMask::NONE);
        // One that gives up leaves nothing.
        let gone = tcp(V4);
        gone.set_flags(o::NONBLOCK);
        assert_eq!(connect(&gone, V4, number), Err(SocketError::InProgress));
        drop(gone);
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
            let new = tcp(V4);
            new.set_flags(o::NONBLOCK);
            assert_eq!(connect(&new, V4, number), Err(SocketError::InProgress));
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
