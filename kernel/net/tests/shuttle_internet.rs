//! Connections that are made, used and closed at once on two CPUs, with a switch possible at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p net --release --test shuttle_internet`; `PANTALA_SCHEDULES` says how many schedules each
//! test tries.
#![cfg(shuttle)]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use net::SocketError;
use net::inet::ports;
use net::inet::protocol::Protocol;
use support::on;
use task::park::Deadline;
use users::inet::{
    V4, bind, connect, crowded, late_client, listener, pair, port, send_to, tcp, udp,
};
use users::{AGAIN, PIPE, REFUSED, RESET, accept, beside, join, of, poll, receive, send};
use vfs::file::o;
use vfs::poll::PollMask;

/// Runs `test` on two CPUs in random schedules. Afterwards no socket has a port.
fn at_random(test: impl Fn() + Send + Sync + Copy + 'static) {
    let schedules = vm_host::random_schedules::asked(300);
    let whole = move || {
        test();
        let mut left = 0;
        ports::each(Protocol::Tcp, |_, _| left += 1);
        ports::each(Protocol::Udp, |_, _| left += 1);
        ports::each(Protocol::UdpLite, |_, _| left += 1);
        assert_eq!(left, 0);
    };
    shuttle::check_random(move || on(2, whole), schedules);
}

/// One side sends and receives while the other one, which has read or has not, is closed.
#[test]
fn a_close_beside_a_send() {
    at_random(|| {
        for unread in [false, true] {
            let (a, b) = pair(V4);
            if unread {
                assert_eq!(send(&a, b"u"), Ok(1));
            }
            beside(move || {
                match send(&a, b"x") {
                    Ok(n) => assert_eq!(n, 1),
                    Err(e) => assert!([PIPE, RESET].contains(&e)),
                }
                match receive(&a, 9) {
                    Ok(bytes) => assert!(bytes.is_empty()),
                    Err(e) => assert_eq!(e, RESET),
                }
                drop(a);
            });
            drop(b);
            join(1);
        }
    });
}

/// Both sides are closed at once; one of them is the first.
#[test]
fn closes_of_both_sides() {
    at_random(|| {
        ports::drain();
        let (a, b) = pair(V4);
        beside(move || drop(a));
        drop(b);
        join(1);
        let mut ends = Vec::new();
        ports::each_wait(|end, _| ends.push(end.over));
        assert_eq!(ends, [true]);
    });
}

/// A receiver that may be about to sleep, and the end of the other side's writes.
#[test]
fn an_end_beside_a_receive() {
    at_random(|| {
        let (a, b) = pair(V4);
        beside(move || {
            assert_eq!(receive(&b, 9), Ok(b"x".to_vec()));
            assert_eq!(receive(&b, 9), Ok(vec![]));
            drop(b);
        });
        assert_eq!(send(&a, b"x"), Ok(1));
        assert_eq!(of(&a).shutdown(false, true), Ok(()));
        assert_eq!(receive(&a, 9), Ok(vec![]));
        drop(a);
        join(1);
    });
}

/// Clients connect, or are late, while the listener accepts one and is closed: each is accepted, refused or reset.
#[test]
fn connects_beside_accept_and_close() {
    at_random(|| {
        let (server, number) = listener(V4, 0);
        for _ in 0..2 {
            beside(move || {
                let client = tcp(V4);
                match connect(&client, V4, number) {
                    Ok(()) => {
                        let got = receive(&client, 9);
                        assert!([Err(RESET), Ok(vec![]), Ok(b"x".to_vec())].contains(&got));
                    }
                    Err(e) => assert_eq!(e, REFUSED),
                }
                drop(client);
            });
        }
        if let Ok(accepted) = accept(&server) {
            let sent = send(&accepted, b"x");
            assert!([Ok(1), Err(PIPE), Err(RESET)].contains(&sent));
        }
        drop(server);
        join(2);
    });
}

/// A client that is late polls, beside the accept that makes room, or gives up.
#[test]
fn a_late_client_beside_accept() {
    at_random(|| {
        for gives_up in [false, true] {
            let (server, number, first, late) = crowded();
            beside(move || {
                if !gives_up {
                    let found = poll(&late, PollMask::WRITE, Deadline::Never);
                    assert_eq!(found, Ok(PollMask::WRITE));
                    assert_eq!(connect(&late, V4, number), Ok(()));
                    assert_eq!(send(&late, b"x"), Ok(1));
                }
                drop(late);
            });
            drop(accept(&server).expect("the first"));
            server.set_flags(if gives_up { o::NONBLOCK } else { 0 });
            match accept(&server) {
                Ok(accepted) => {
                    let got = receive(&accepted, 9);
                    assert_eq!(got, Ok(if gives_up { vec![] } else { b"x".to_vec() }));
                    drop(accepted);
                }
                Err(e) => assert!(gives_up && e == AGAIN),
            }
            drop((server, first));
            join(1);
        }
    });
}

/// A client that is late is shut down beside the accept that makes room: it is connected first, or the listener never sees it.
#[test]
fn a_shutdown_of_a_late_client_beside_accept() {
    at_random(|| {
        let (server, number, first, late) = crowded();
        beside(move || {
            assert_eq!(of(&late).shutdown(true, true), Ok(()));
            let error = of(&late).take_error();
            assert!([None, Some(RESET)].contains(&error));
            // It is one of the two for good.
            let again = of(&late).listen(1);
            assert_eq!(again.is_ok(), error.is_some());
            drop(late);
        });
        drop(accept(&server).expect("the first"));
        server.set_flags(o::NONBLOCK);
        match accept(&server) {
            Ok(accepted) => assert_eq!(receive(&accepted, 9), Ok(vec![])),
            Err(e) => assert_eq!(e, AGAIN),
        }
        join(1);
        drop((server, first));
    });
}

/// A client that was refused connects to another listener, while a poll of the same socket finds that it was refused.
#[test]
fn a_refused_client_connects_again_beside_a_poll() {
    at_random(|| {
        let ((full, number), (other, next)) = (listener(V4, 0), listener(V4, 0));
        let first = tcp(V4);
        assert_eq!(connect(&first, V4, number), Ok(()));
        let late = late_client(number);
        let polled = late.clone();
        beside(move || {
            of(&polled).poll(None);
            drop(polled);
        });
        let closed = beside(move || drop(full));
        assert!(closed > 0);
        loop {
            match connect(&late, V4, number) {
                Err(SocketError::Already) => task::sched::yield_now(),
                Err(e) => {
                    assert_eq!(e, REFUSED);
                    break;
                }
                Ok(()) => panic!("a listener that is full is closed"),
            }
        }
        late.set_flags(0);
        assert_eq!(connect(&late, V4, next), Ok(()));
        assert!(port(&late) != 0);
        let accepted = accept(&other).expect("the connection");
        assert_eq!(send(&late, b"x"), Ok(1));
        assert_eq!(receive(&accepted, 9), Ok(b"x".to_vec()));
        join(2);
        drop((accepted, late, other, first));
    });
}

/// A packet to a socket that is closed meanwhile, and whose port another one takes, arrives at one of the two or nowhere.
#[test]
fn a_datagram_beside_a_close_and_a_bind() {
    at_random(|| {
        let (a, b) = (udp(V4), udp(V4));
        assert_eq!(bind(&b, V4, 0), Ok(()));
        let number = port(&b);
        assert_eq!(send_to(&a, b"0", V4, number), Ok(1));
        assert_eq!(receive(&b, 9), Ok(b"0".to_vec()));
        beside(move || {
            assert_eq!(send_to(&a, b"1", V4, number), Ok(1));
            drop(a);
        });
        drop(b);
        let c = udp(V4);
        assert_eq!(bind(&c, V4, number), Ok(()));
        join(1);
        assert!([Ok(b"1".to_vec()), Err(AGAIN)].contains(&receive(&c, 9)));
        drop(c);
    });
}

/// Two binds to any port, of sockets that would share one if they asked for it.
#[test]
fn binds_to_any_port_beside_one_another() {
    at_random(|| {
        assert!(net::inet::settings::set_port_range(40_000, 40_001));
        let (a, b) = (tcp(V4), tcp(V4));
        for socket in [&a, &b] {
            of(socket).options().keep(net::option::REUSEADDR, true);
            let socket = socket.clone();
            beside(move || {
                assert_eq!(bind(&socket, V4, 0), Ok(()));
                drop(socket);
            });
        }
        join(2);
        assert_ne!(port(&a), port(&b));
        drop((a, b));
    });
}

/// A connect that chooses the one port there is, and a bind to it: one succeeds.
#[test]
fn a_connect_beside_a_bind() {
    at_random(|| {
        assert!(net::inet::settings::set_port_range(40_000, 40_000));
        let server = tcp(V4);
        assert_eq!(bind(&server, V4, 5000), Ok(()));
        assert_eq!(of(&server).listen(4), Ok(()));
        let (a, b) = (tcp(V4), tcp(V4));
        let other = a.clone();
        beside(move || {
            let _ = connect(&other, V4, 5000);
            drop(other);
        });
        let answer = bind(&b, V4, 40_000);
        join(1);
        let both = (port(&a), answer);
        let either = [(40_000, Err(SocketError::AddressInUse)), (0, Ok(()))];
        assert!(either.contains(&both), "{both:?}");
        drop((a, b, server));
    });
}

/// Two binds to one port: one succeeds.
#[test]
fn binds_beside_one_another() {
    at_random(|| {
        let (a, b) = (tcp(V4), tcp(V4));
        let (x, y) = (a.clone(), b.clone());
        beside(move || {
            let _ = bind(&x, V4, 5000);
            drop(x);
        });
        beside(move || {
            let _ = bind(&y, V4, 5000);
            drop(y);
        });
        join(2);
        let both = [port(&a), port(&b)];
        assert!(both == [5000, 0] || both == [0, 5000]);
        drop((a, b));
    });
}
