//! Sockets that are connected to each other: what sends, receives, shutdowns and closes do to either side.
#![cfg(not(shuttle))]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cred::Charge;
use net::SocketError;
use net::ids::Ids;
use net::socket::{Message, Receive};
use support::{nap, on};
use task::park::Deadline;
use users::*;
use vfs::error::FsError;
use vfs::inode::mode;
use vfs::poll::PollMask;

const IN: PollMask = PollMask(0x41);
const OUT: PollMask = PollMask(0x304);
const HUP: PollMask = PollMask::HUP;
const RDHUP: PollMask = PollMask::RDHUP;
const ERR: PollMask = PollMask::ERR;

#[test]
fn a_stream_joins_what_was_sent_and_packets_do_not() {
    on(1, || {
        for kind in TYPES {
            let (a, b) = quick_pair(kind);
            assert_eq!(receive(&b, 9), Err(AGAIN));
            assert_eq!(send(&a, b"one "), Ok(4));
            assert_eq!(send(&a, b"two"), Ok(3));
            assert_eq!(send(&b, b"back"), Ok(4));
            let first = receive(&b, 9).expect("bytes");
            match kind {
                STREAM => assert_eq!(first, b"one two"),
                _ => {
                    assert_eq!(first, b"one ");
                    assert_eq!(receive(&b, 2), Ok(b"tw".to_vec()), "the rest is lost");
                }
            }
            assert_eq!(receive(&b, 9), Err(AGAIN));
            assert_eq!(receive(&a, 9), Ok(b"back".to_vec()));
        }
    });
}

#[test]
fn an_empty_packet_arrives_and_an_empty_write_to_a_stream_does_not() {
    on(1, || {
        for kind in TYPES {
            let (a, b) = quick_pair(kind);
            assert_eq!(send(&a, b""), Ok(0));
            let got = receive(&b, 9);
            assert_eq!(
                got,
                if kind == STREAM {
                    Err(AGAIN)
                } else {
                    Ok(vec![])
                }
            );
        }
    });
}

#[test]
fn a_receiver_waits_for_bytes_and_a_sender_for_room() {
    on(2, || {
        for kind in TYPES {
            let (a, b) = pair(kind);
            let theirs = a.clone();
            beside(move || {
                nap(3);
                let bytes: Vec<u8> = (0..400_000u32).map(|n| n as u8).collect();
                for part in bytes.chunks(50_000) {
                    assert_eq!(send(&theirs, part), Ok(part.len()));
                }
            });
            let mut all = Vec::new();
            while all.len() < 400_000 {
                all.extend(receive(&b, 50_000).expect("bytes"));
                nap(1);
            }
            assert!(all.iter().enumerate().all(|(i, &b)| b == i as u8));
            join(1);
            drop(a);
        }
    });
}

#[test]
fn what_is_not_received_has_a_limit() {
    on(1, || {
        for kind in TYPES {
            let (a, b) = quick_pair(kind);
            let mut sent = 0;
            while send(&a, &[1; 1000]).is_ok() {
                sent += 1;
            }
            assert!((90..=213).contains(&sent), "{kind:?} {sent}");
            assert!(!events(&a).intersects(OUT));
            let mut got = 0;
            while !events(&a).intersects(OUT) {
                assert!(receive(&b, 1000).is_ok());
                got += 1;
            }
            assert!(got * 4 >= sent * 3 - 8, "{kind:?} {got} of {sent}");
            of(&a).set_send_limit(3000);
            let most = of(&a).send_limit();
            assert_eq!(most, 6000);
            while receive(&b, 1000).is_ok() {}
            let large = send(&a, &[2; 20_000]);
            match kind {
                STREAM => assert_eq!(large, Ok(most)),
                _ => assert_eq!(large, Err(FsError::MessageTooLong.into())),
            }
        }
    });
}

#[test]
fn memory_of_what_was_sent_is_charged_to_the_sender() {
    on(1, || {
        let payer = become_user(1000);
        let before = payer.held(Charge::Memory);
        for kind in TYPES {
            let (a, b) = quick_pair(kind);
            let made = payer.held(Charge::Memory);
            assert!(made > before);
            assert_eq!(send(&a, &[1; 100_000]), Ok(100_000));
            assert!(payer.held(Charge::Memory) >= made + 100_000);
            drop(a);
            assert_eq!(receive(&b, 100_000).map(|got| got.len()), Ok(100_000));
            drop(b);
            assert_eq!(payer.held(Charge::Memory), before);
        }
    });
}

#[test]
fn a_closed_peer_is_an_end_a_reset_or_nobody() {
    on(1, || {
        for kind in TYPES {
            let (a, b) = quick_pair(kind);
            assert_eq!(send(&b, b"last"), Ok(4));
            drop(b);
            match kind {
                DATAGRAM => assert_eq!(events(&a), IN | OUT),
                _ => assert_eq!(events(&a), IN | OUT | HUP | RDHUP),
            }
            assert_eq!(receive(&a, 9), Ok(b"last".to_vec()));
            let (end, sent) = match kind {
                STREAM => (Ok(vec![]), PIPE),
                SEQPACKET => (Ok(vec![]), SocketError::QuietPipe),
                _ => (Err(AGAIN), REFUSED),
            };
            assert_eq!(receive(&a, 9), end);
            assert_eq!(send(&a, b"x"), Err(sent));
            if kind == DATAGRAM {
                let error = FsError::NotConnected.into();
                assert_eq!(send(&a, b"x"), Err(error), "the peer is forgotten");
            }
        }
    });
}

#[test]
fn a_peer_that_had_not_read_all_resets_the_connection() {
    on(1, || {
        let (a, b) = quick_pair(STREAM);
        assert_eq!(send(&a, b"unread"), Ok(6));
        assert_eq!(send(&b, b"last"), Ok(4));
        drop(b);
        assert_eq!(events(&a), IN | OUT | HUP | RDHUP | ERR);
        assert_eq!(receive(&a, 9), Ok(b"last".to_vec()));
        assert_eq!(receive(&a, 9), Err(RESET));
        assert_eq!(receive(&a, 9), Ok(vec![]));
        let (a, b) = quick_pair(SEQPACKET);
        assert_eq!(send(&a, b"unread"), Ok(6));
        assert_eq!(send(&b, b"last"), Ok(4));
        drop(b);
        assert_eq!(receive(&a, 9), Err(RESET), "packets come after the error");
        assert_eq!(receive(&a, 9), Ok(b"last".to_vec()));
        let (a, b) = quick_pair(STREAM);
        assert_eq!(send(&a, b"unread"), Ok(6));
        drop(b);
        assert_eq!(of(&a).take_error(), Some(RESET));
        assert_eq!(of(&a).take_error(), None);
    });
}

/// The events and the results that Linux has for each kind of shutdown, seen from the side that makes it and the other.
#[test]
fn a_shutdown_ends_its_direction_and_leaves_what_is_there() {
    on(1, || {
        for kind in [STREAM, SEQPACKET] {
            let pipe = if kind == STREAM {
                PIPE
            } else {
                SocketError::QuietPipe
            };
            for (reads, writes) in [(true, false), (false, true), (true, true)] {
                let (a, b) = quick_pair(kind);
                assert_eq!((send(&a, b"AA"), send(&b, b"BB")), (Ok(2), Ok(2)));
                assert_eq!(of(&a).shutdown(reads, writes), Ok(()));
                let mask = |reads, writes| {
                    let end = if reads { RDHUP } else { PollMask::NONE };
                    let all = if reads && writes { HUP } else { PollMask::NONE };
                    IN | OUT | end | all
                };
                assert_eq!(events(&a), mask(reads, writes));
                assert_eq!(events(&b), mask(writes, reads));
                let end = |ended| if ended { Ok(vec![]) } else { Err(AGAIN) };
                assert_eq!(receive(&a, 9), Ok(b"BB".to_vec()));
                assert_eq!(receive(&a, 9), end(reads));
                assert_eq!(receive(&b, 9), Ok(b"AA".to_vec()));
                assert_eq!(receive(&b, 9), end(writes));
                let sent = |ended| if ended { Err(pipe) } else { Ok(1) };
                assert_eq!(send(&a, b"x"), sent(writes));
                assert_eq!(send(&b, b"x"), sent(reads));
            }
        }
        let (a, b) = quick_pair(DATAGRAM);
        assert_eq!(of(&a).shutdown(true, false), Ok(()));
        assert_eq!(send(&b, b"x"), Err(SocketError::QuietPipe));
        assert_eq!(receive(&a, 9), Err(AGAIN));
        assert_eq!(send(&a, b"x"), Ok(1));
        assert_eq!(of(&a).shutdown(false, true), Ok(()));
        assert_eq!(send(&a, b"x"), Err(SocketError::QuietPipe));
        assert_eq!(events(&a), IN | OUT | HUP | RDHUP);
    });
}

#[test]
fn threads_that_wait_are_woken_by_shutdown_and_close() {
    on(2, || {
        for kind in [STREAM, SEQPACKET] {
            for by_close in [false, true] {
                let (a, b) = pair(kind);
                let reads = a.clone();
                beside(move || assert_eq!(receive(&reads, 9), Ok(vec![])));
                let polls = a.clone();
                beside(move || {
                    let found = poll(&polls, RDHUP, Deadline::Never).expect("an end");
                    assert!(found.intersects(RDHUP));
                });
                nap(3);
                if !by_close {
                    assert_eq!(of(&b).shutdown(false, true), Ok(()));
                }
                drop(b);
                join(2);
            }
            let (a, b) = pair(kind);
            beside(move || {
                let error = loop {
                    if let Err(e) = send(&a, &[1; 5000]) {
                        break e;
                    }
                };
                assert!([PIPE, SocketError::QuietPipe].contains(&error));
            });
            nap(5);
            drop(b);
            join(1);
        }
    });
}

/// A sender whose account is full hears that its peer receives no more.
#[test]
fn a_sender_of_packets_is_woken_when_its_peer_receives_no_more() {
    on(2, || {
        let (a, b) = quick_pair(SEQPACKET);
        while send(&a, &[1; 4000]).is_ok() {}
        assert_eq!(of(&b).shutdown(true, false), Ok(()));
        assert_eq!(send(&a, &[1; 4000]), Err(SocketError::QuietPipe));
        let (a, b) = pair(SEQPACKET);
        beside(move || {
            let error = loop {
                if let Err(e) = send(&a, &[1; 4000]) {
                    break e;
                }
            };
            assert!([PIPE, SocketError::QuietPipe].contains(&error));
        });
        nap(5);
        assert_eq!(of(&b).shutdown(true, false), Ok(()));
        join(1);
        drop(b);
    });
}

#[test]
fn a_poll_waits_for_bytes_and_for_room() {
    on(2, || {
        for kind in TYPES {
            let (a, b) = quick_pair(kind);
            let polls = b.clone();
            beside(move || assert_eq!(poll(&polls, IN, Deadline::Never), Ok(IN)));
            nap(2);
            assert_eq!(send(&a, b"x"), Ok(1));
            join(1);
            while send(&a, &[1; 4000]).is_ok() {}
            let polls = a.clone();
            beside(move || assert_eq!(poll(&polls, OUT, Deadline::Never), Ok(OUT)));
            nap(2);
            while receive(&b, 4000).is_ok() {}
            join(1);
        }
    });
}

#[test]
fn a_look_takes_nothing() {
    on(1, || {
        for kind in TYPES {
            let (a, b) = quick_pair(kind);
            assert_eq!((send(&a, b"abc"), send(&a, b"def")), (Ok(3), Ok(3)));
            for _ in 0..2 {
                let (bytes, got) = peek(&b, 2).expect("bytes");
                assert_eq!(bytes, b"ab");
                assert_eq!(got.whole, if kind == STREAM { 2 } else { 3 });
            }
            assert_eq!(of(&b).queued(), Ok(if kind == DATAGRAM { 3 } else { 6 }));
            assert_eq!(receive(&b, 3), Ok(b"abc".to_vec()));
            assert_eq!(receive(&b, 3), Ok(b"def".to_vec()));
        }
    });
}

#[test]
fn a_receive_of_all_waits_until_all_is_there() {
    on(2, || {
        let (a, b) = pair(STREAM);
        let sends = a.clone();
        beside(move || {
            for n in 0..5 {
                assert_eq!(send(&sends, &[n; 2]), Ok(2));
                nap(1);
            }
        });
        let how = Receive {
            all: true,
            ..Receive::default()
        };
        let got = receive_with(&b, 9, how).map(|(bytes, _)| bytes);
        assert_eq!(got, Ok(vec![0, 0, 1, 1, 2, 2, 3, 3, 4]));
        join(1);
        drop(a);
        let got = receive_with(&b, 9, how).map(|(bytes, _)| bytes);
        assert_eq!(got, Ok(vec![4]), "the end ends it");
    });
}

#[test]
fn a_timeout_ends_a_wait() {
    on(1, || {
        let (a, b) = pair(STREAM);
        of(&b).options().set_timeout(false, 2_000_000);
        assert_eq!(receive(&b, 1), Err(AGAIN));
        of(&a).options().set_timeout(true, 2_000_000);
        assert_eq!(send(&a, &[1; 300_000]), Ok(212_992));
        assert_eq!(send(&a, &[1; 300_000]), Err(AGAIN));
        let (a, _b) = pair(DATAGRAM);
        of(&a).options().set_timeout(true, 2_000_000);
        assert_eq!(send(&a, &[1; 200_000]), Ok(200_000));
        assert_eq!(
            send(&a, &[1; 200_000]),
            Ok(200_000),
            "less than the limit was used"
        );
        assert_eq!(send(&a, &[1; 200_000]), Err(AGAIN));
    });
}

#[test]
fn ids_of_senders_are_shown_and_bytes_of_different_ones_not_mixed() {
    on(1, || {
        for kind in TYPES {
            let (a, b) = quick_pair(kind);
            let claim = |uid| Message {
                ids: Some(Ids {
                    pid: 1,
                    uid,
                    gid: 7,
                }),
                ..Message::default()
            };
            assert_eq!(send(&a, b"early"), Ok(5));
            of(&b).show_ids(true);
            assert_eq!(send_with(&a, b"x", claim(5)), Ok(1));
            assert_eq!(send_with(&a, b"y", claim(5)), Ok(1));
            assert_eq!(send_with(&a, b"z", claim(6)), Ok(1));
            assert_eq!(send(&a, b"own"), Ok(3));
            let mut seen = Vec::new();
            while let Ok((bytes, got)) = receive_with(&b, 99, Receive::default()) {
                let ids = got.ids.expect("they are asked for");
                seen.push((String::from_utf8(bytes).expect("text"), ids.uid, ids.gid));
            }
            let of = |text: &str, uid, gid| (text.to_owned(), uid, gid);
            let mut expected = vec![of("early", 65534, 65534), of("xy", 5, 7)];
            if kind != STREAM {
                expected[1] = of("x", 5, 7);
                expected.push(of("y", 5, 7));
            }
            expected.extend([of("z", 6, 7), of("own", 0, 0)]);
            assert_eq!(seen, expected);
        }
    });
}

#[test]
fn a_socket_without_a_peer_transfers_nothing() {
    on(2, || {
        let (plain, packets) = (socket(STREAM), socket(SEQPACKET));
        let own = socket(DATAGRAM);
        assert_eq!(events(&plain), OUT | HUP);
        assert_eq!(events(&packets), OUT | HUP);
        assert_eq!(events(&own), OUT);
        let unconnected = SocketError::File(FsError::NotConnected);
        assert_eq!(receive(&plain, 1), Err(FsError::Invalid.into()));
        assert_eq!(receive(&packets, 1), Err(unconnected));
        for file in [&plain, &packets, &own] {
            assert_eq!(send(file, b"x"), Err(unconnected));
            assert!(of(file).peer_name().is_err());
            assert_eq!(of(file).name().0, [1, 0]);
            let attr = file.attr().expect("a socket");
            assert_eq!(attr.mode, mode::SOCK | 0o777);
        }
        assert_ne!(
            plain.attr().expect("a socket").ino,
            own.attr().expect("a socket").ino
        );
        // A poll that began before the connect learns of it.
        let connected = Arc::new(AtomicBool::new(false));
        let (theirs, seen) = (plain.clone(), connected.clone());
        let server = listener(STREAM, "\0x", 1);
        beside(move || {
            while poll(&theirs, IN, Deadline::Never) != Ok(IN) {
                nap(1);
            }
            assert!(seen.load(SeqCst));
        });
        nap(2);
        assert_eq!(connect(&plain, "\0x"), Ok(()));
        let accepted = accept(&server).expect("a connection");
        connected.store(true, SeqCst);
        assert_eq!(send(&accepted, b"x"), Ok(1));
        join(1);
    });
}

/// Many small writes and reads, by several threads on both sides: each byte arrives once.
#[test]
fn several_threads_on_each_side_lose_nothing() {
    on(4, || {
        for kind in TYPES {
            let (a, b) = pair(kind);
            of(&a).set_send_limit(4608);
            const EACH: usize = 300;
            for _ in 0..3 {
                let sends = a.clone();
                beside(move || {
                    for n in 0..EACH {
                        assert_eq!(send(&sends, &vec![1; 100 + n % 7]), Ok(100 + n % 7));
                    }
                });
            }
            let sum = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            for _ in 0..3 {
                let (reads, sum) = (b.clone(), sum.clone());
                beside(move || {
                    loop {
                        let got = receive(&reads, 150).expect("bytes or the end");
                        if got == b"end" || got.is_empty() {
                            break;
                        }
                        sum.fetch_add(got.len(), SeqCst);
                    }
                });
            }
            join(3);
            let all = 3 * (0..EACH).map(|n| 100 + n % 7).sum::<usize>();
            while sum.load(SeqCst) < all {
                nap(1);
            }
            for _ in 0..3 {
                match kind {
                    DATAGRAM => assert_eq!(send(&a, b"end"), Ok(3)),
                    _ => assert_eq!(of(&a).shutdown(false, true), Ok(())),
                }
            }
            join(3);
            assert_eq!(sum.load(SeqCst), all);
        }
    });
}
