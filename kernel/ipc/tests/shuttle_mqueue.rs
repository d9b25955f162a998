//! POSIX message queues: sends, receives, deadlines, registrations, opens and removals of several threads, with a switch possible at every access to
//! an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p ipc --release --test shuttle_mqueue`.
#![cfg(shuttle)]

mod queues;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use queues::*;
use task::park::Deadline;
use threads::{everywhere, explore};
use vfs::error::FsError;
use vfs::file::o;

/// Runs `test` on three CPUs, and on two as `everywhere` does.
fn on_three(test: impl Fn() + Send + Sync + Copy + 'static) {
    explore(move || on(3, test));
    everywhere(move || on(2, test));
}

/// Two threads send through a queue with one place, and two receive: each message comes once.
#[test]
fn two_senders_and_two_receivers() {
    on_three(|| {
        let (q, sum) = (queue(1), Arc::new(AtomicU32::new(0)));
        for n in 0..2u8 {
            let from = q.clone();
            spawn(None, move || {
                send(&from, 1 << (2 * n), n.into()).expect("room");
                send(&from, 2 << (2 * n), n.into()).expect("room");
            });
        }
        let (to, got) = (q.clone(), sum.clone());
        spawn(None, move || {
            for _ in 0..2 {
                got.fetch_add(receive(&to).expect("a message").into(), SeqCst);
            }
        });
        for _ in 0..2 {
            sum.fetch_add(receive(&q).expect("a message").into(), SeqCst);
        }
        wait_for_ends(3);
        assert_eq!((sum.load(SeqCst), count(&q)), (15, 0));
    });
}

/// A receiver's wait ends by its deadline beside a send, and another receiver takes what it does not: nothing is lost, nothing comes twice.
#[test]
fn a_send_beside_the_deadline_of_a_receiver() {
    on_three(|| {
        let q = queue(1);
        let sender = q.clone();
        spawn(None, move || {
            hal::time::spin_ns(100_000);
            send(&sender, 5, 0).expect("room");
        });
        let (late, taken) = (q.clone(), Arc::new(AtomicU32::new(0)));
        let own = taken.clone();
        spawn(None, move || {
            if receive_until(&late, Deadline::after(100_000)).is_ok() {
                own.fetch_add(1, SeqCst);
            }
        });
        if receive_until(&q, Deadline::after(100_000)).is_ok() {
            taken.fetch_add(1, SeqCst);
        }
        wait_for_ends(2);
        assert_eq!(taken.load(SeqCst) as usize + count(&q), 1);
    });
}

/// A sender's wait ends by its deadline beside a receive: its message is in the queue if and only if the call says so.
#[test]
fn a_receive_beside_the_deadline_of_a_sender() {
    on_three(|| {
        let q = queue(1);
        send(&q, 1, 0).expect("room");
        let receiver = q.clone();
        spawn(None, move || {
            hal::time::spin_ns(100_000);
            assert_eq!(receive(&receiver), Ok(1));
        });
        let other = q.clone();
        let sent = Arc::new(AtomicU32::new(0));
        let own = sent.clone();
        spawn(None, move || {
            if send_until(&other, 2, 0, Deadline::after(100_000)).is_ok() {
                own.fetch_add(1, SeqCst);
            }
        });
        if send_until(&q, 3, 0, Deadline::after(100_000)).is_ok() {
            sent.fetch_add(1, SeqCst);
        }
        wait_for_ends(2);
        assert_eq!(sent.load(SeqCst) as usize, count(&q));
    });
}

/// A queue's last descriptor is closed and its name removed, while another thread opens or makes one: its charges go back once.
#[test]
fn an_open_beside_the_end_of_a_queue() {
    on_three(|| {
        let q = queue(1);
        send(&q, 9, 0).expect("room");
        spawn(None, move || drop(q));
        spawn(None, || {
            let opened = open("queue", MAKE, 1).expect("one or the other");
            match count(&opened) {
                // The old one.
                1 => assert_eq!(receive(&opened), Ok(9)),
                n => assert_eq!(n, 0),
            }
            send(&opened, 8, 0).expect("room");
            assert_eq!(receive(&opened), Ok(8));
        });
        unlink("queue").expect("it has the name");
        wait_for_ends(2);
        match unlink("queue") {
            Ok(()) | Err(FsError::NotFound) => {}
            Err(why) => panic!("{why:?}"),
        }
        // None is left that counts.
        ipc::mqueue::MAX_QUEUES.store(1, SeqCst);
        let made = ipc::mqueue::open(&user(1000), b"new", how(MAKE, 1, 1));
        assert!(made.is_ok());
        assert_eq!(open("queue", o::RDWR, 1).err(), Some(FsError::NotFound));
    });
}

/// A registration beside a send and its removal: the process is told once, of one of the two.
#[test]
fn a_registration_ends_once() {
    on_three(|| {
        let (q, told) = (queue(2), Arc::new(Told::default()));
        register(&q, &told).expect("the first");
        for byte in 0..2 {
            let q = q.clone();
            spawn(None, move || send(&q, byte, 0).expect("room"));
        }
        ipc::mqueue::unregister(&q).expect("a queue");
        wait_for_ends(2);
        let (arrived, removed) = told.seen();
        assert_eq!((arrived + removed, count(&q)), (1, 2));
    });
}

/// A poll that is about to sleep beside a send.
#[test]
fn a_poll_hears_of_a_message() {
    use task::park::{Interruptible, Step, park};
    on_three(|| {
        let q = queue(1);
        let from = q.clone();
        spawn(None, move || send(&from, 1, 0).expect("room"));
        let other = q.clone();
        spawn(None, move || assert_eq!(receive(&other), Ok(1)));
        // Either it is there or it was taken: then there is room.
        let mut polled = &q;
        park(
            &mut polled,
            Deadline::Never,
            Interruptible::No,
            |q, w| match q.poll(Some(w)) {
                ready if ready.is_empty() => Step::Wait,
                _ => Step::Done(()),
            },
        )
        .expect("no deadline");
        wait_for_ends(2);
    });
}
