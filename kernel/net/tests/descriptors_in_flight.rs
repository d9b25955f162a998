//! Descriptors in messages: where they come out, how many there may be, and what becomes of sockets that only messages refer to.
#![cfg(not(shuttle))]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use cred::Charge;
use net::{SocketError, collect, in_flight};
use proc::rlimit::Resource;
use support::{me, on};
use users::*;
use vfs::file::{File, FileOps, FileRef, Kind, o};
use vfs::poll::PollMask;
use vm_host::random::Random;

/// A file that counts its closes.
struct Counted(Arc<AtomicU32>);

impl FileOps for Counted {
    fn close(&self, _: &File) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn counted() -> (FileRef, Arc<AtomicU32>) {
    let closed = Arc::new(AtomicU32::new(0));
    let kind = Kind::Other(Box::new(Counted(closed.clone())));
    (File::open(None, kind, o::RDWR), closed)
}

#[test]
fn descriptors_come_with_the_bytes_that_they_were_sent_with() {
    on(1, || {
        let (a, b) = quick_pair(STREAM);
        let (x, _) = counted();
        let (y, _) = counted();
        assert_eq!(send(&a, b"P"), Ok(1));
        assert_eq!(send_files(&a, b"Q", &[&x]), Ok(1));
        assert_eq!(send(&a, b"R"), Ok(1));
        assert_eq!(send_files(&a, b"ST", &[&x, &y]), Ok(2));
        assert_eq!(send(&a, b"U"), Ok(1));
        let same = |files: &[FileRef], what: &[&FileRef]| {
            files.len() == what.len() && files.iter().zip(what).all(|(a, b)| FileRef::ptr_eq(a, b))
        };
        let (bytes, files) = receive_files(&b, 9).expect("bytes");
        assert_eq!(bytes, b"PQ");
        assert!(same(&files, &[&x]));
        let (bytes, got) = peek(&b, 9).expect("bytes");
        assert_eq!(bytes, b"RST");
        assert!(same(&got.files, &[&x, &y]));
        let (bytes, files) = receive_files(&b, 2).expect("bytes");
        assert_eq!(bytes, b"RS");
        assert!(same(&files, &[&x, &y]), "with the first byte");
        let (bytes, files) = receive_files(&b, 9).expect("bytes");
        assert_eq!(bytes, b"TU");
        assert!(files.is_empty());
    });
}

#[test]
fn descriptors_in_flight_keep_files_open_and_are_closed_with_the_socket() {
    on(1, || {
        for kind in TYPES {
            let (a, b) = quick_pair(kind);
            let (x, closed) = counted();
            assert_eq!(send_files(&a, b"1", &[&x]), Ok(1));
            assert_eq!(send_files(&a, b"2", &[&x, &x]), Ok(1));
            drop(x);
            let (_, files) = receive_files(&b, 1).expect("a file");
            drop(files);
            assert_eq!(closed.load(SeqCst), 0);
            drop(a);
            assert_eq!(closed.load(SeqCst), 0);
            drop(b);
            assert_eq!(closed.load(SeqCst), 1);
        }
    });
}

#[test]
fn a_socket_in_flight_works_when_it_arrives() {
    on(1, || {
        for kind in TYPES {
            let (a, b) = quick_pair(STREAM);
            let (c, d) = quick_pair(kind);
            assert_eq!(send_files(&a, b"x", &[&d]), Ok(1));
            drop(d);
            assert_eq!((in_flight::count(), collect()), (1, 0));
            assert_eq!(send(&c, b"hello"), Ok(5));
            let (_, files) = receive_files(&b, 1).expect("a socket");
            assert_eq!(in_flight::count(), 0);
            assert_eq!(receive(&files[0], 9), Ok(b"hello".to_vec()));
        }
    });
}

/// A socket in its own queue, two in each other's, and a ring of many, with a file that shows when it is closed.
#[test]
fn cycles_are_collected() {
    on(1, || {
        for kind in TYPES {
            for length in [1, 2, 30] {
                let pairs: Vec<_> = (0..length).map(|_| quick_pair(kind)).collect();
                let (x, closed) = counted();
                let mut peers = Vec::new();
                for (i, (a, _)) in pairs.iter().enumerate() {
                    // Into the queue of pair i's second socket.
                    let next = &pairs[(i + 1) % length].1;
                    assert_eq!(send_files(a, b"x", &[next, &x]), Ok(1));
                    peers.push(a.clone());
                }
                drop((pairs, x));
                // The writing ends are open, and lead nowhere.
                assert_eq!(in_flight::count(), length);
                assert_eq!(closed.load(SeqCst), 0);
                assert_eq!(collect(), length);
                assert_eq!(closed.load(SeqCst), 1);
                assert_eq!(in_flight::count(), 0);
                for a in peers {
                    let gone = events(&a);
                    assert!(kind == DATAGRAM || gone.intersects(PollMask::HUP));
                }
            }
        }
    });
}

#[test]
fn a_cycle_that_can_be_reached_stays() {
    on(1, || {
        let (a, b) = quick_pair(STREAM);
        let (c, d) = quick_pair(STREAM);
        let (out, reachable) = quick_pair(STREAM);
        let (x, closed) = counted();
        // b and d lie in each other's queues, and b in that of a socket that is open.
        assert_eq!(send_files(&a, b"x", &[&d, &x]), Ok(1));
        assert_eq!(send_files(&c, b"x", &[&b, &x]), Ok(1));
        assert_eq!(send_files(&out, b"x", &[&b]), Ok(1));
        drop((a, b, c, d, x));
        assert_eq!(collect(), 0);
        let (_, files) = receive_files(&reachable, 1).expect("b");
        assert_eq!(collect(), 0);
        let (_, inner) = receive_files(&files[0], 1).expect("d and x");
        assert_eq!(closed.load(SeqCst), 0);
        drop(files);
        // b now lies in d's queue only, and d is open here.
        assert_eq!(collect(), 0);
        drop(inner);
        // Neither is open: d had the last reference to b in its queue.
        collect();
        assert_eq!((in_flight::count(), closed.load(SeqCst)), (0, 1));
    });
}

/// A listener that lies in the queue of a connection that waits for its accept.
#[test]
fn a_listener_in_its_own_backlog_is_collected() {
    on(1, || {
        let server = listener(STREAM, "\0s", 3);
        let client = socket(STREAM);
        assert_eq!(connect(&client, "\0s"), Ok(()));
        let (x, closed) = counted();
        assert_eq!(send_files(&client, b"x", &[&server, &x]), Ok(1));
        drop(x);
        assert_eq!(collect(), 0, "it is open");
        drop(server);
        assert_eq!(collect(), 1);
        assert_eq!((in_flight::count(), closed.load(SeqCst)), (0, 1));
        assert!(events(&client).intersects(PollMask::HUP));
        assert!(bind(&socket(STREAM), "\0s").is_ok());
    });
}

/// Thirty thousand sockets, each in the queue of the next: their end does not need as many frames of stack.
#[test]
fn a_long_chain_ends_without_a_deep_stack() {
    on(1, || {
        let length = 30_000;
        let (x, closed) = counted();
        let mut last = x;
        for _ in 0..length {
            let (a, b) = pair(STREAM);
            assert_eq!(send_files(&a, b"x", &[&last]), Ok(1));
            last = b;
        }
        assert!(in_flight::count() >= length - 1);
        drop(last);
        assert_eq!((in_flight::count(), closed.load(SeqCst)), (0, 1));
    });
}

#[test]
fn a_user_has_a_limited_number_in_flight() {
    on(1, || {
        let payer = become_user(1000);
        let most = me().rlimit(Resource::Nofile) as usize;
        let (a, b) = pair(STREAM);
        let (x, _) = counted();
        let all = vec![&x; 200];
        let mut sent = 0;
        let error = loop {
            match send_files(&a, b"x", &all) {
                Ok(_) => sent += 200,
                Err(e) => break e,
            }
        };
        assert_eq!(error, SocketError::TooManyInFlight);
        assert!(sent <= most && sent + 400 > most, "{sent} of {most}");
        assert_eq!(payer.held(Charge::InFlight) as usize, sent);
        assert!(receive_files(&b, 1).is_ok());
        assert_eq!(send_files(&a, b"x", &all), Ok(1));
        drop((a, b));
        assert_eq!(payer.held(Charge::InFlight), 0);
        // What nobody can receive is collected before the limit is felt.
        let mut open = Vec::new();
        for _ in 0..most {
            let (c, d) = pair(DATAGRAM);
            assert_eq!(send_files(&c, b"x", &[&d, &d]), Ok(1));
            // No close has it collected.
            open.push(c);
        }
    });
}

/// Closes collect what was left, now and then.
#[test]
fn closes_collect() {
    on(1, || {
        let mut most = 0;
        for _ in 0..300 {
            let (a, b) = pair(STREAM);
            assert_eq!(send_files(&a, b"x", &[&b]), Ok(1));
            drop((a, b));
            most = most.max(in_flight::count());
        }
        assert!(most < 50, "{most}");
    });
}

/// Threads that send sockets to and fro, receive and close them, beside one that collects: what arrives works, and at the end nothing is left.
#[test]
fn collections_beside_sends_and_receives() {
    on(4, || {
        let (hub, out) = pair(DATAGRAM);
        for seed in 0..3 {
            let (hub, out) = (hub.clone(), out.clone());
            beside(move || {
                let mut random = Random(seed + 1);
                let mut mine: Vec<(FileRef, FileRef)> = Vec::new();
                for _ in 0..200 {
                    match random.below(4) {
                        0 => mine.push(quick_pair(STREAM)),
                        1 if !mine.is_empty() => {
                            // The socket, with a message to be found in it.
                            let at = random.below(mine.len());
                            let (a, b) = mine.swap_remove(at);
                            assert_eq!(send_files(&a, b"m", &[&b]), Ok(1));
                            if random.below(2) == 0 {
                                hub.set_flags(o::NONBLOCK);
                                let _ = send_files(&hub, b"h", &[&b]);
                            }
                        }
                        2 => {
                            out.set_flags(o::NONBLOCK);
                            if let Ok((_, files)) = receive_files(&out, 1) {
                                let (bytes, own) =
                                    receive_files(&files[0], 1).expect("a message is in it");
                                assert_eq!((bytes, own.len()), (b"m".to_vec(), 1));
                            }
                        }
                        _ => {
                            mine.pop();
                        }
                    }
                }
            });
        }
        beside(|| {
            for _ in 0..100 {
                collect();
                task::sched::yield_now();
            }
        });
        join(4);
        drop((hub, out));
        collect();
        assert_eq!(in_flight::count(), 0);
    });
}
