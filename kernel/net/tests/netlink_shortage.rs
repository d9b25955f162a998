//! Sockets of AF_NETLINK while memory is low: no thread waits for memory with a lock that others need.
#![cfg(not(shuttle))]

#[path = "../../proc/tests/memory_users/mod.rs"]
mod memory_users;
#[path = "../../proc/tests/programs/mod.rs"]
mod programs;
#[path = "../../proc/tests/support/mod.rs"]
mod support;
mod users;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use memory_users::{in_need, lives, with_killer};
use programs::{until, until_asleep};
use support::{kill, me, nap, user_mode};
use users::netlink::{DUMP, ROUTES, request, socket};
use users::{beside, peek, receive, send};
use vfs::file::FileRef;

/// Starts a process that the killer does not choose. In turn `n` it receives from the socket.
fn receiver(file: &FileRef, turn: &Arc<AtomicU32>, n: u32) -> u32 {
    let (file, turn) = (file.clone(), turn.clone());
    let pid = beside(move || {
        me().set_oom_adj(-1000, true);
        until(|| turn.load(SeqCst) >= n);
        let _ = receive(&file, 9999);
        drop(file);
        user_mode();
    });
    until_asleep(pid);
    pid
}

/// The memory of the one that is killed may be what the other one waits for.
#[test]
fn a_receiver_that_is_killed_does_not_wait_for_one_that_waits_for_memory() {
    with_killer(2, || {
        me().set_oom_adj(-1000, true);
        // Each datagram has one row.
        let file = socket(1);
        assert_eq!(send(&file, &request(ROUTES, DUMP, &[0; 12])), Ok(28));
        // A look sends the next one, so that there is one for each.
        assert!(peek(&file, 9999).is_ok());
        let turn = Arc::new(AtomicU32::new(0));
        let (waits, killed) = (receiver(&file, &turn, 1), receiver(&file, &turn, 2));
        in_need(|| {
            turn.store(1, SeqCst);
            nap(30);
            assert!(lives(waits), "it waits for the second datagram's memory");
            turn.store(2, SeqCst);
            nap(30);
            assert!(lives(killed), "so does this one");
            assert!(kill(killed, 9));
            nap(30);
            assert!((lives(waits), lives(killed)) == (true, false));
        });
        until(|| !lives(waits));
    });
}
