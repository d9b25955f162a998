//! The answers of AF_NETLINK that have several datagrams, received on two CPUs at once, with a switch possible at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p net --release --test shuttle_netlink`; `PANTALA_SCHEDULES` says how many schedules each
//! test tries.
#![cfg(shuttle)]

#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use std::sync::Arc;

use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use support::on;
use users::netlink::*;
use users::{beside, join, receive, send};

/// Runs `test` on two CPUs in random schedules.
fn at_random(test: impl Fn() + Send + Sync + Copy + 'static) {
    let schedules = vm_host::random_schedules::asked(300);
    shuttle::check_random(move || on(2, test), schedules);
}

/// Two receivers that wait get each datagram of a table once, whichever of them makes the next one.
#[test]
fn two_receivers_of_a_table() {
    at_random(|| {
        let file = socket(1);
        file.set_flags(0);
        let (rows, ends) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        for (count, own) in [(2, file.clone()), (1, file.clone())] {
            let (rows, ends) = (rows.clone(), ends.clone());
            beside(move || {
                for _ in 0..count {
                    let bytes = receive(&own, 9999).expect("a datagram");
                    match kinds(&bytes)[..] {
                        [(20, _)] => rows.fetch_add(1, SeqCst),
                        [(3, 0)] => ends.fetch_add(1, SeqCst),
                        _ => panic!("a datagram of something else"),
                    };
                }
            });
        }
        assert_eq!(send(&file, &request(ADDRESSES, DUMP, &[0; 8])), Ok(24));
        join(2);
        assert_eq!((rows.load(SeqCst), ends.load(SeqCst)), (2, 1));
    });
}

/// Of two tables that are asked for at once, one is sent, and the other too or it is refused; neither is mixed into the other.
#[test]
fn two_tables_at_once() {
    at_random(|| {
        let file = socket(1);
        let theirs = file.clone();
        beside(move || {
            assert_eq!(send(&theirs, &request(LINKS, DUMP, &[0; 16])), Ok(32));
        });
        assert_eq!(send(&file, &request(ADDRESSES, DUMP, &[0; 8])), Ok(24));
        join(1);
        let mut got = Vec::new();
        while let Ok(bytes) = receive(&file, 9999) {
            got.extend(kinds(&bytes));
        }
        let got: Vec<u16> = got.into_iter().map(|m| m.0).collect();
        // The refusal is sent while the first datagram of the other waits, or has not been sent yet.
        let of_links = [[16, 2, 3].to_vec(), [2, 16, 3].to_vec()];
        let of_addresses = [[20, 2, 20, 3].to_vec(), [2, 20, 20, 3].to_vec()];
        assert!(
            of_links.contains(&got) || of_addresses.contains(&got),
            "{got:?}"
        );
    });
}

/// Two processes bind sockets to one number: one of them has it.
#[test]
fn two_binds_to_one_number() {
    at_random(|| {
        let taken = Arc::new(AtomicU32::new(0));
        for _ in 0..2 {
            let taken = taken.clone();
            beside(move || {
                let file = socket(1);
                if bind(&file, 77).is_ok() {
                    assert_eq!(taken.fetch_add(1, SeqCst), 0);
                    assert_eq!(port(&file), 77);
                    taken.fetch_sub(1, SeqCst);
                }
                drop(file);
            });
        }
        join(2);
        assert_eq!(bind(&socket(1), 77), Ok(()));
    });
}
