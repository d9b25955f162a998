//! Sockets of AF_NETLINK: their numbers, answers of several datagrams, what they hold, and requests that make no sense.
#![cfg(not(shuttle))]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use std::collections::BTreeSet;

use cred::Charge;
use net::SocketError;
use net::inet::endpoint::Ip;
use net::interface::{self, Fate};
use net::netlink::message::{attribute, requests};
use net::netlink::ports::Port;
use support::{nap, on};
use task::park::Deadline;
use users::netlink::*;
use users::{become_user, beside, events, join, of, peek, poll, receive, send};
use vfs::error::FsError;
use vfs::file::FileRef;
use vfs::poll::PollMask;
use vm_host::random::Random;

const DONE: u16 = 3;
const ERROR: u16 = 2;
const NEWROUTE: u16 = 24;
/// Room for a table whole.
const WHOLE: usize = 3776;
const LOST: SocketError = SocketError::File(FsError::NoBuffers);

fn kinds_of(answer: Vec<Vec<(u16, u32)>>) -> Vec<Vec<u16>> {
    let of_datagram = |datagram: Vec<(u16, u32)>| datagram.into_iter().map(|m| m.0).collect();
    answer.into_iter().map(of_datagram).collect()
}

#[test]
fn rows_of_interfaces_are_found_by_number_and_name_and_routes_by_address() {
    let lo = interface::by_index(1).expect("loopback");
    assert_eq!((lo.name, lo.mtu), (&b"lo"[..], 65_536));
    assert_eq!(interface::by_name(b"lo").map(|found| found.index), Some(1));
    assert!(interface::by_name(b"l").is_none() && interface::by_name(b"").is_none());
    for none in [0, 2, u32::MAX] {
        assert!(interface::by_index(none).is_none());
    }
    assert_eq!(interface::all().count(), 1);
    // Sockets and routes agree on what is local.
    let fate = |ip: Ip| interface::route_to(ip).map(|route| route.fate);
    let mut random = Random(1);
    for _ in 0..1000 {
        let v4 = Ip::v4([random.below(2) as u8 + 126, 0, 0, random.below(9) as u8]);
        let mut v6 = Ip::LOOPBACK6;
        v6.0[random.below(16)] ^= random.below(2) as u8;
        for ip in [v4, v6] {
            assert_eq!(fate(ip).is_some(), ip.is_local(), "{ip:?}");
        }
    }
    assert_eq!(fate(Ip::v4([127, 255, 255, 255])), Some(Fate::Broadcast));
    assert_eq!(fate(Ip::v4([127, 255, 255, 254])), Some(Fate::Local));
    assert_eq!(
        interface::route_to(Ip::LOOPBACK4).map(|r| r.to.len),
        Some(32)
    );
    assert_eq!((fate(Ip::ANY4), fate(Ip::ANY6)), (None, None));
    assert_eq!(fate(Ip(0x0100_007fu128.to_be_bytes())), None);
}

#[test]
fn a_number_is_one_sockets_until_it_is_closed() {
    on(1, || {
        let sockets: Vec<FileRef> = (0..200).map(|_| socket(WHOLE)).collect();
        sockets.iter().for_each(|s| assert_eq!(bind(s, 0), Ok(())));
        let numbers: BTreeSet<u32> = sockets.iter().map(port).collect();
        assert_eq!((numbers.len(), numbers.contains(&0)), (200, false));
        let own = port(&sockets[0]);
        assert!(numbers.iter().all(|&n| n == own || n >> 31 == 1));
        let other = socket(WHOLE);
        // Whether one is taken is asked twice: the first time must not give it back.
        for _ in 0..2 {
            assert_eq!(bind(&other, own), Err(SocketError::AddressInUse));
        }
        drop(sockets);
        assert_eq!(bind(&other, own), Ok(()));
        assert_eq!(bind(&other, own), Ok(()));
        assert_eq!(
            bind(&other, own + 1),
            Err(SocketError::File(FsError::Invalid))
        );
    });
}

#[test]
fn the_first_number_that_no_socket_has_is_taken_or_none() {
    on(1, || {
        let first = |numbers: &[u32]| Port::first_free(numbers.iter().copied());
        let number = |port: &Option<Port>| port.as_ref().map(Port::number);
        let one = first(&[1 << 31, 7]);
        assert_eq!(number(&one), Some(1 << 31));
        let other = first(&[1 << 31, 7]);
        assert_eq!(number(&other), Some(7));
        for _ in 0..2 {
            assert!(first(&[1 << 31, 7]).is_none() && first(&[]).is_none());
        }
        drop(one);
        assert_eq!(number(&first(&[7, 1 << 31])), Some(1 << 31));
    });
}

#[test]
fn a_table_is_sent_as_it_is_received() {
    on(1, || {
        let all = request(ROUTES, DUMP, &[0; 12]);
        let one = request(
            LINKS,
            REQUEST,
            &[&[0; 4][..], &[1, 0, 0, 0], &[0; 8]].concat(),
        );
        let whole = kinds_of(ask(&socket(WHOLE), &all).expect("an answer"));
        let row = NEWROUTE;
        assert_eq!(whole, [vec![row; 4], vec![DONE]]);
        // Two rows of 60 bytes fit. The row of IPv6 is longer, and leaves no room for the end.
        let parts = kinds_of(ask(&socket(130), &all).expect("an answer"));
        assert_eq!(parts, [vec![row, row], vec![row], vec![row], vec![DONE]]);
        let file = socket(1);
        assert_eq!(send(&file, &all), Ok(28));
        // Another one has to wait; a request for one row has not.
        assert_eq!(send(&file, &all), Ok(28));
        assert_eq!(send(&file, &one), Ok(32));
        let mut kinds = Vec::new();
        while let Ok(bytes) = receive(&file, 9999) {
            kinds.extend(users::netlink::kinds(&bytes));
        }
        let busy = (ERROR, (-16i32) as u32);
        assert_eq!(kinds[1], busy);
        assert_eq!(kinds[2].0, 16);
        kinds.drain(1..3);
        let kinds: Vec<u16> = kinds.into_iter().map(|m| m.0).collect();
        assert_eq!(kinds, [NEWROUTE, NEWROUTE, NEWROUTE, NEWROUTE, DONE]);
        // Then there is room for the next.
        assert_eq!(ask(&file, &all).map(|answer| answer.len()), Ok(5));
    });
}

#[test]
fn what_waits_is_bounded_and_charged_to_the_sockets_user() {
    on(1, || {
        let payer = become_user(1000);
        let before = payer.held(Charge::Memory);
        let file = socket(1);
        assert_eq!(bind(&file, 0), Ok(()));
        let made = payer.held(Charge::Memory);
        assert!(made > before);
        of(&file).set_receive_limit(1);
        let many = request(LINKS, DUMP, &[0; 16]).repeat(5000);
        assert_eq!(send(&file, &many), Ok(many.len()));
        let held = payer.held(Charge::Memory) - made;
        assert!((100..20_000).contains(&held), "{held} bytes");
        assert!(!(events(&file) & PollMask::ERR).is_empty());
        assert_eq!(receive(&file, 9999), Err(LOST));
        // Looks do not fill the queue either.
        for _ in 0..50 {
            assert!(peek(&file, 9999).is_ok());
        }
        assert!(payer.held(Charge::Memory) - made < 20_000);
        let mut last = 0;
        while let Ok(bytes) = receive(&file, 9999) {
            last = kinds(&bytes).last().expect("a message").0;
        }
        assert_eq!(last, DONE);
        assert_eq!(payer.held(Charge::Memory), made);
        assert_eq!(send(&file, &many), Ok(many.len()));
        drop(file);
        assert_eq!(payer.held(Charge::Memory), before);
    });
}

#[test]
fn a_receiver_waits_for_an_answer() {
    on(2, || {
        let file = socket(1);
        file.set_flags(0);
        let theirs = file.clone();
        beside(move || {
            nap(3);
            assert_eq!(send(&theirs, &request(ADDRESSES, DUMP, &[0; 8])), Ok(24));
        });
        let kind = |bytes: Vec<u8>| kinds(&bytes)[0].0;
        let got: Vec<u16> = (0..3)
            .map(|_| kind(receive(&file, 9999).expect("a datagram")))
            .collect();
        assert_eq!(got, [20, 20, DONE]);
        join(1);
        let theirs = file.clone();
        beside(move || {
            nap(3);
            assert_eq!(send(&theirs, &request(LINKS, ACK, &[])), Ok(16));
        });
        let found = poll(&file, PollMask::READ, Deadline::Never);
        assert_eq!(found, Ok(PollMask::READ));
        join(1);
    });
}

/// Requests that are partly right: no answer is malformed, none is missing where an acknowledgement was asked for, and all memory comes back.
#[test]
fn requests_at_random_have_answers_that_can_be_read() {
    on(1, || {
        let payer = become_user(1000);
        let before = payer.held(Charge::Memory);
        let mut random = Random(7);
        for round in 0..3000 {
            let file = socket([1, 130, WHOLE][random.below(3)]);
            let strict = u32::to_ne_bytes(random.below(2) as u32);
            assert_eq!(of(&file).set_option(270, 12, &strict), Ok(()));
            assert_eq!(of(&file).set_option(270, 11, &strict), Ok(()));
            let kind = [16, 18, 19, 20, 22, 24, 26, 30, 34, 54][random.below(10)];
            let flags = [REQUEST, ACK, DUMP, DUMP | ACK][random.below(4)];
            let mut body = vec![0; random.below(40)];
            for _ in 0..random.below(6) {
                let len = body.len().max(1);
                if let Some(byte) = body.get_mut(random.below(len)) {
                    *byte = [0, 1, 2, 3, 4, 8, 10, 12, 15, 29, 127, 255][random.below(12)];
                }
            }
            let request = request(kind, flags, &body);
            let answer = ask(&file, &request).expect("an answer");
            let messages: Vec<_> = answer.concat();
            if flags != REQUEST && !(flags & 0x300 != 0 && body.is_empty()) {
                let last = messages.last().map(|m| m.0);
                assert!(
                    [Some(DONE), Some(ERROR)].contains(&last),
                    "{round}: {request:?}"
                );
            }
        }
        assert_eq!(payer.held(Charge::Memory), before);
    });
}

#[test]
fn messages_and_attributes_that_do_not_say_their_lengths_end_the_reading() {
    let one = request(LINKS, REQUEST, &[1; 5]);
    let mut two = one.clone();
    two.resize(24, 0);
    two.extend(&one);
    assert_eq!(
        requests(&two).map(|r| r.body.len()).collect::<Vec<_>>(),
        [5, 5]
    );
    for cut in 1..21 {
        assert_eq!(requests(&two[..45 - cut]).count(), 1, "{cut}");
    }
    for len in [0u32, 15, 22, u32::MAX] {
        let mut wrong = one.clone();
        wrong[..4].copy_from_slice(&len.to_ne_bytes());
        assert_eq!(requests(&wrong).count(), 0, "{len}");
    }
    let body = [9, 9, 9, 9, 5, 0, 1, 0, 7, 0, 0, 0, 6, 0, 2, 0x80, 8, 8];
    assert_eq!(attribute(&body, 4, 1), Some(&[7][..]));
    assert_eq!(attribute(&body, 4, 2), Some(&[8, 8][..]));
    assert_eq!(attribute(&body[..17], 4, 2), None);
    assert_eq!(attribute(&body, 40, 2), None);
    assert_eq!(attribute(&[3, 0, 1, 0], 0, 1), None);
}
