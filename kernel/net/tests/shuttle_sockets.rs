//! Sockets that are used, closed, connected and collected at once on two CPUs, with a switch possible at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p net --release --test shuttle_sockets`; `PANTALA_SCHEDULES` says how many schedules each
//! test tries.
#![cfg(shuttle)]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use std::sync::Arc;

use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use net::{SocketError, collect, in_flight};
use support::on;
use task::park::Deadline;
use users::*;
use vfs::file::{FileRef, o};
use vfs::poll::PollMask;

/// Runs `test` on two CPUs in random schedules.
fn at_random(test: impl Fn() + Send + Sync + Copy + 'static) {
    let schedules = vm_host::random_schedules::asked(300);
    shuttle::check_random(move || on(2, test), schedules);
}

/// One side sends and the other is closed: the send succeeds or finds nobody, and the sender learns of the end.
#[test]
fn a_close_beside_a_send() {
    at_random(|| {
        for kind in [STREAM, SEQPACKET] {
            let (a, b) = pair(kind);
            beside(move || {
                match send(&a, b"x") {
                    Ok(n) => assert_eq!(n, 1),
                    Err(e) => assert!([PIPE, SocketError::QuietPipe].contains(&e)),
                }
                match receive(&a, 9) {
                    Ok(bytes) => assert!(bytes.is_empty()),
                    Err(e) => assert_eq!(e, RESET),
                }
            });
            drop(b);
            join(1);
        }
    });
}

/// A receiver that may be about to sleep, and a shutdown or a close of the other side.
#[test]
fn a_shutdown_and_a_close_beside_a_receive() {
    at_random(|| {
        let (a, b) = pair(STREAM);
        let reads = b.clone();
        beside(move || {
            let got = receive(&reads, 9).expect("bytes or the end");
            assert!(got.is_empty() || got == b"x");
        });
        beside(move || {
            assert_eq!(receive(&b, 9).map(|got| got.len() < 2), Ok(true));
        });
        assert_eq!(send(&a, b"x"), Ok(1));
        assert_eq!(of(&a).shutdown(false, true), Ok(()));
        drop(a);
        join(2);
    });
}

/// Two senders that wait for room, a receiver that makes it, and a close.
#[test]
fn senders_that_wait_get_room_or_an_end() {
    at_random(|| {
        let (a, b) = pair(STREAM);
        of(&a).set_send_limit(1);
        assert_eq!(send(&a, &[1; 4608]), Ok(4608));
        for _ in 0..2 {
            let a = a.clone();
            beside(move || {
                assert!([Ok(1), Err(PIPE)].contains(&send(&a, b"x")));
            });
        }
        assert_eq!(receive(&b, 4000).map(|got| got.len()), Ok(4000));
        drop(b);
        join(2);
    });
}

#[test]
fn a_poll_beside_a_send_and_a_close() {
    at_random(|| {
        let (a, b) = pair(SEQPACKET);
        let polls = a.clone();
        beside(move || {
            let found = poll(&polls, PollMask::READ, Deadline::Never);
            assert!(found.is_ok_and(|found| found.intersects(PollMask::READ)));
        });
        beside(move || {
            assert_eq!(send(&b, b"x"), Ok(1));
            drop(b);
        });
        assert_eq!(receive(&a, 9), Ok(b"x".to_vec()));
        join(2);
    });
}

/// A client connects, or waits for room, while the listener is closed: it is refused, or reset.
#[test]
fn a_connect_beside_the_close_of_the_listener() {
    at_random(|| {
        let server = listener(STREAM, "\0s", 0);
        assert_eq!(connect(&socket(STREAM), "\0s"), Ok(()));
        for _ in 0..2 {
            beside(|| {
                let client = socket(STREAM);
                match connect(&client, "\0s") {
                    Ok(()) => assert!([Err(RESET), Ok(vec![])].contains(&receive(&client, 9))),
                    Err(e) => assert_eq!(e, REFUSED),
                }
            });
        }
        drop(accept(&server));
        drop(server);
        join(2);
    });
}

/// S lies in R's queue, and in its own. One thread receives it from R and then what is in it, or closes R, beside a collection.
#[test]
fn a_collection_beside_a_receive() {
    at_random(|| {
        let (to_r, r) = pair(STREAM);
        let (to_s, s) = pair(STREAM);
        assert_eq!(send_files(&to_s, b"m", &[&s]), Ok(1));
        assert_eq!(send_files(&to_r, b"s", &[&s]), Ok(1));
        drop(s);
        beside(move || {
            let (_, files) = receive_files(&r, 1).expect("S can be reached");
            drop(r);
            let (bytes, own) = receive_files(&files[0], 1).expect("its message is there");
            assert_eq!((bytes, own.len()), (b"m".to_vec(), 1));
            // It can be received no more.
            assert_eq!(send_files(&to_s, b"m", &[&files[0]]), Ok(1));
        });
        assert_eq!(collect(), 0);
        join(1);
        drop(to_r);
        collect();
        assert_eq!(in_flight::count(), 0);
    });
}

/// As above, and it is first looked at: then R lies in its own queue, and is closed.
#[test]
fn a_collection_beside_a_look() {
    at_random(|| {
        let (to_r, r) = pair(DATAGRAM);
        let (to_s, s) = pair(STREAM);
        assert_eq!(send_files(&to_s, b"m", &[&s]), Ok(1));
        assert_eq!(send_files(&to_r, b"s", &[&s]), Ok(1));
        assert_eq!(send_files(&to_r, b"r", &[&r]), Ok(1));
        drop(s);
        beside(move || {
            let (_, got) = peek(&r, 1).expect("S can be reached");
            drop(r);
            let (bytes, own) = receive_files(&got.files[0], 1).expect("its message is there");
            assert_eq!((bytes, own.len()), (b"m".to_vec(), 1));
        });
        collect();
        join(1);
        drop((to_r, to_s));
        collect();
        assert_eq!(in_flight::count(), 0);
    });
}

/// Sockets are sent to and fro by two threads beside a collection; each arrives with what is in it.
#[test]
fn a_collection_beside_sends() {
    at_random(|| {
        let (a, b) = pair(DATAGRAM);
        let arrived = Arc::new(AtomicU32::new(0));
        for (from, to) in [(a.clone(), b.clone()), (b, a)] {
            let arrived = arrived.clone();
            beside(move || {
                let (x, y) = pair(STREAM);
                assert_eq!(send_files(&x, b"m", &[&y]), Ok(1));
                assert_eq!(send_files(&from, b"s", &[&y]), Ok(1));
                drop((x, y));
                let (_, files) = receive_files(&from, 1).expect("the other's");
                let got: Vec<FileRef> = files;
                got[0].set_flags(o::NONBLOCK);
                let (bytes, _) = receive_files(&got[0], 1).expect("its message");
                assert_eq!(bytes, b"m");
                arrived.fetch_add(1, SeqCst);
                drop(to);
            });
        }
        collect();
        join(2);
        assert_eq!(arrived.load(SeqCst), 2);
        collect();
        assert_eq!(in_flight::count(), 0);
    });
}
