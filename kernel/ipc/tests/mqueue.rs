//! POSIX message queues: names, orders, handovers, ends, charges, and many threads.
#![cfg(not(shuttle))]

mod queues;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use cred::{Charge, Cred};
use hal::uio::IoBuf;
use ipc::mqueue::{self, MAX_QUEUES, Shape};
use queues::*;
use task::current::current;
use task::park::Deadline;
use vfs::FdTable;
use vfs::error::FsError;
use vfs::file::o;
use vfs::poll::PollMask;

#[test]
fn the_highest_priority_comes_first_and_equals_in_order() {
    on(1, || {
        let q = queue(200);
        let priority = |n: u8| u32::from(n.wrapping_mul(37) % 5);
        (0..150).for_each(|n| send(&q, n, priority(n)).expect("room"));
        let mut wanted: Vec<u8> = (0..150).collect();
        // A sort that keeps the order of equals.
        wanted.sort_by_key(|&n| std::cmp::Reverse(priority(n)));
        let got: Vec<u8> = (0..150).map(|_| receive(&q).expect("a message")).collect();
        assert_eq!(got, wanted);
        assert_eq!(count(&q), 0);
    });
}

#[test]
fn a_queue_is_charged_until_its_last_end_and_not_longer() {
    on(2, || {
        let maker = user(1000);
        let held = || maker.payer.held(Charge::Queues);
        let open = |name: &[u8], flags, limit| {
            let mut how = how(flags, 10, 8);
            how.limit = limit;
            mqueue::open(&maker, name, how)
        };
        const EACH: u64 = 10 * (8 + 48 + 48);
        let first = open(b"a", MAKE, EACH).expect("within the limit");
        assert_eq!(held(), EACH);
        assert_eq!(
            open(b"b", MAKE, 2 * EACH - 1).err(),
            Some(FsError::TooManyFiles)
        );
        assert_eq!(
            (held(), open(b"b", o::RDWR, 0).err()),
            (EACH, Some(FsError::NotFound))
        );
        let second = open(b"a", o::RDONLY, 0).expect("one that exists is free");
        drop(first);
        mqueue::unlink(&maker, b"a").expect("its owner");
        assert_eq!(held(), EACH);
        drop(second);
        assert_eq!(held(), 0);
        // The other order, with messages.
        let only = open(b"a", MAKE, EACH).expect("within the limit");
        send(&only, 1, 1).expect("room");
        drop(only);
        assert_eq!(held(), EACH);
        mqueue::unlink(&maker, b"a").expect("its owner");
        assert_eq!(held(), 0);
        assert_eq!(mqueue::unlink(&maker, b"a"), Err(FsError::NotFound));
    });
}

#[test]
fn there_are_so_many_queues_and_more_for_the_privileged() {
    on(1, || {
        MAX_QUEUES.store(2, std::sync::atomic::Ordering::Relaxed);
        let maker = user(1000);
        let make = |name: &[u8]| mqueue::open(&maker, name, how(MAKE, 1, 1));
        let kept = [make(b"a").expect("one"), make(b"b").expect("two")];
        assert_eq!(make(b"c").err(), Some(FsError::NoSpace));
        assert!(open("c", MAKE, 1).is_ok());
        unlink("c").expect("privileged");
        assert_eq!(make(b"c").err(), Some(FsError::NoSpace));
        drop(kept);
        unlink("a").expect("privileged");
        assert!(make(b"c").is_ok());
    });
}

#[test]
fn what_forbids_a_queue_is_told_in_the_order_of_linux() {
    on(1, || {
        MAX_QUEUES.store(1, std::sync::atomic::Ordering::Relaxed);
        let maker = user(1000);
        let make = |name: &[u8], messages, limit| {
            let mut how = how(MAKE, messages, 1);
            how.limit = limit;
            mqueue::open(&maker, name, how)
        };
        // Neither a size that there is not nor one beyond the limit takes a place.
        assert_eq!(make(b"a", 0, 0).err(), Some(FsError::Invalid));
        assert_eq!(make(b"a", 1, 0).err(), Some(FsError::TooManyFiles));
        let _kept = make(b"a", 1, 1 << 20).expect("a place");
        for (messages, limit) in [(0, 0), (0, 1 << 20), (1, 0), (1, 1 << 20)] {
            assert_eq!(make(b"b", messages, limit).err(), Some(FsError::NoSpace));
        }
        unlink("a").expect("privileged");
    });
}

#[test]
fn sizes_have_bounds() {
    on(1, || {
        let (root, other) = (Cred::root(), user(1000));
        let shape = |messages, size, cred| Shape::new(Some([messages, size]), cred).ok();
        let of = |messages, size| Some(Shape { messages, size });
        assert_eq!(shape(10, 8192, &other), of(10, 8192));
        assert_eq!(shape(11, 8192, &other), None);
        assert_eq!(shape(10, 8193, &other), None);
        assert_eq!(shape(65536, 16 << 20, &root), of(65536, 16 << 20));
        assert_eq!(shape(65537, 1, &root), None);
        assert_eq!(shape(1, (16 << 20) + 1, &root), None);
        for bad in [[0, 1], [1, 0], [-1, 1], [i64::MIN, i64::MIN]] {
            assert_eq!(Shape::new(Some(bad), &root), Err(FsError::Invalid));
        }
        mqueue::MAX_MESSAGES.store(4, SeqCst);
        assert_eq!(Shape::new(None, &root).ok(), of(4, 8192));
    });
}

#[test]
fn only_owners_and_the_privileged_remove_names() {
    on(1, || {
        let (maker, other) = (user(1000), user(1001));
        let q = mqueue::open(&maker, b"q", how(MAKE, 1, 8)).expect("a queue");
        assert_eq!(
            mqueue::open(&other, b"q", how(o::RDONLY, 1, 8)).err(),
            Some(FsError::Access)
        );
        assert_eq!(mqueue::unlink(&other, b"q"), Err(FsError::Perm));
        assert_eq!(
            q.inode().map(|inode| (inode.uid(), inode.nlink())),
            Some((1000, 1))
        );
        unlink("q").expect("privileged");
        assert_eq!(q.inode().map(|inode| inode.nlink()), Some(0));
    });
}

#[test]
fn waiting_receivers_are_served_in_turn_and_a_late_one_does_not_overtake() {
    on(2, || {
        let q = queue(4);
        let got = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        for n in 0..2 {
            let (q, got) = (q.clone(), got.clone());
            spawn(None, move || {
                got[n].store(receive(&q).expect("sent").into(), SeqCst)
            });
            nap(2);
        }
        q.set_flags(o::RDWR | o::NONBLOCK);
        send(&q, 7, 0).expect("handed over");
        // The message is the first receiver's already.
        assert_eq!((receive(&q), count(&q)), (Err(FsError::WouldBlock), 0));
        send(&q, 8, 9).expect("handed over");
        wait_for_ends(2);
        assert_eq!([got[0].load(SeqCst), got[1].load(SeqCst)], [7, 8]);
    });
}

#[test]
fn waiting_senders_get_room_in_turn_and_then_by_priority() {
    on(2, || {
        let q = queue(1);
        send(&q, 0, 0).expect("room");
        for (byte, priority) in [(1, 0), (2, 9)] {
            let q = q.clone();
            spawn(None, move || send(&q, byte, priority).expect("room, later"));
            nap(2);
        }
        assert_eq!(
            [receive(&q), receive(&q), receive(&q)],
            [Ok(0), Ok(1), Ok(2)]
        );
        wait_for_ends(2);
        assert_eq!(count(&q), 0);
    });
}

#[test]
fn ended_waits_leave_nothing_behind() {
    on(2, || {
        let q = queue(1);
        let soon = || Deadline::after(MS);
        assert_eq!(receive_until(&q, soon()), Err(FsError::TimedOut));
        assert_eq!(receive_until(&q, Deadline::now()), Err(FsError::TimedOut));
        send(&q, 1, 0).expect("nobody takes it");
        assert_eq!(count(&q), 1);
        assert_eq!(send_until(&q, 2, 0, soon()), Err(FsError::TimedOut));
        let (tid, other) = (current().tid(), q.clone());
        spawn(None, move || {
            nap(2);
            interrupt(tid);
            drop(other);
        });
        assert_eq!(send(&q, 3, 0), Err(FsError::Interrupted));
        threads::take_signal();
        wait_for_ends(1);
        assert_eq!((receive(&q), count(&q)), (Ok(1), 0));
    });
}

/// What is in a queue stays when its sender ends, and is what the queue's maker pays for.
#[test]
fn a_message_is_charged_to_its_sender_only_until_there_is_room_for_it() {
    on(2, || {
        let (maker, sender) = (user(1000), user(1001));
        let q = mqueue::open(&maker, b"q", how(MAKE, 1, 100)).expect("a queue");
        let held = move |kind| (maker.payer.held(kind), sender.payer.held(kind));
        let before = [Charge::Memory, Charge::Queues, Charge::Names].map(&held);
        drop(current().replace_cred(Arc::new(user(1001))));
        let send = |q: &_| mqueue::send(q, mqueue::Message::new(0, vec![0; 100]), Deadline::Never);
        send(&q).expect("room");
        assert_eq!(
            [Charge::Memory, Charge::Queues, Charge::Names].map(&held),
            before
        );
        let (memory, other) = (before[0].1, q.clone());
        spawn(None, move || {
            drop(current().replace_cred(Arc::new(user(1001))));
            send(&other).expect("room");
        });
        while held(Charge::Memory).1 < memory + 100 {
            nap(1);
        }
        drop(mqueue::receive(&q, Deadline::Never));
        wait_for_ends(1);
        assert_eq!(
            [Charge::Memory, Charge::Queues, Charge::Names].map(&held),
            before
        );
    });
}

/// What a queue with a name takes is known to the leak check, whatever it is made of.
#[test]
fn queues_that_are_left_behind_are_counted() {
    on(1, || {
        let bytes = ipc::table_bytes;
        let empty = bytes();
        for n in 0..40 {
            let q = mqueue::open(
                &Cred::root(),
                format!("q{n}").as_bytes(),
                how(MAKE, 5, 9000),
            );
            let q = q.expect("a queue");
            let made = bytes();
            for len in [0, 1, 33, 3000, 9000] {
                let message = mqueue::Message::new(0, vec![0; len]);
                mqueue::send(&q, message, Deadline::Never).expect("room");
            }
            let texts = bytes() - made;
            assert!((12034..=4096 + 3 * 4096 + 65).contains(&texts), "{texts}");
            drop(mqueue::receive(&q, Deadline::Never));
        }
        assert!((40 * 12_000..40 * 24_000).contains(&(bytes() - empty)));
        (0..40).for_each(|n| unlink(&format!("q{n}")).expect("a name"));
        assert_eq!(bytes(), empty);
    });
}

#[test]
fn polls_tell_of_messages_and_room() {
    on(2, || {
        let q = queue(1);
        assert_eq!(q.poll(None), PollMask::WRITE);
        send(&q, 1, 0).expect("room");
        assert_eq!(q.poll(None), PollMask::READ);
        receive(&q).expect("a message");
        assert_eq!(q.poll(None), PollMask::WRITE);
    });
}

#[test]
fn a_process_is_told_once_and_only_of_what_nobody_waits_for() {
    on(2, || {
        let (q, told) = (queue(4), Arc::new(Told::default()));
        register(&q, &told).expect("the first");
        assert_eq!(register(&q, &told), Err(FsError::Busy));
        send(&q, 1, 0).expect("room");
        assert_eq!(told.seen(), (1, 0));
        // Not for a queue that has messages.
        register(&q, &told).expect("it has ended");
        send(&q, 2, 0).expect("room");
        assert_eq!(told.seen(), (1, 0));
        receive(&q).and(receive(&q)).expect("two");
        // Not for a message that is handed over.
        let other = q.clone();
        spawn(None, move || assert_eq!(receive(&other), Ok(3)));
        nap(2);
        send(&q, 3, 0).expect("handed over");
        wait_for_ends(1);
        assert_eq!(told.seen(), (1, 0));
        send(&q, 4, 0).expect("room");
        assert_eq!(told.seen(), (2, 0));
    });
}

#[test]
fn a_registration_ends_with_a_descriptor_of_its_process_or_with_the_process() {
    on(2, || {
        let (q, told) = (queue(4), Arc::new(Told::default()));
        register(&q, &told).expect("the first");
        mqueue::unregister(&q).expect("a queue");
        assert_eq!(told.seen(), (0, 1));
        register(&q, &told).expect("it has ended");
        let table = FdTable::new();
        let fd = table.add(q.clone(), true, 0, 10).expect("room");
        // Another process closes its own.
        let copy = table.fork().expect("memory");
        spawn(None, move || drop(copy));
        wait_for_ends(1);
        assert_eq!(told.seen(), (0, 1));
        drop(table.remove(fd));
        assert_eq!(told.seen(), (0, 2));
        register(&q, &told).expect("it has ended");
        assert_eq!(register(&q, &told), Err(FsError::Busy));
        told.dead.store(1, SeqCst);
        register(&q, &told).expect("that of a dead process counts for nothing");
    });
}

#[test]
fn what_a_read_shows() {
    on(1, || {
        let q = queue(4);
        send(&q, 1, 0).expect("room");
        let mut text = [0; 100];
        let n = q.read_at(&mut IoBuf::Fill(&mut text), 0).expect("text");
        let wanted = "QSIZE:1          NOTIFY:0     SIGNO:0     NOTIFY_PID:0     \n";
        assert_eq!(std::str::from_utf8(&text[..n]), Ok(wanted));
        let n = q.read_at(&mut IoBuf::Fill(&mut text), 55).expect("text");
        assert_eq!(&text[..n], &wanted.as_bytes()[55..]);
        assert_eq!(q.read_at(&mut IoBuf::Fill(&mut text), 80), Ok(0));
    });
}

/// Each message is received once, whatever the threads do, and the queue is empty then.
#[test]
fn many_senders_and_receivers() {
    const EACH: u32 = 200;
    const THREADS: u32 = 4;
    on(4, || {
        let (q, sum) = (queue(3), Arc::new(AtomicU32::new(0)));
        for n in 0..THREADS {
            let from = q.clone();
            spawn(None, move || {
                for i in 0..EACH {
                    send(&from, (i % 100) as u8, n).expect("room, in the end");
                }
            });
            let (to, sum) = (q.clone(), sum.clone());
            spawn(None, move || {
                let mut left = EACH;
                while left > 0 {
                    match receive_until(&to, Deadline::after(MS / 10)) {
                        Ok(byte) => {
                            sum.fetch_add(byte.into(), SeqCst);
                            left -= 1;
                        }
                        Err(why) => assert_eq!(why, FsError::TimedOut),
                    }
                }
            });
        }
        wait_for_ends(2 * THREADS);
        let each: u32 = (0..EACH).map(|i| i % 100).sum();
        assert_eq!((sum.load(SeqCst), count(&q)), (each * THREADS, 0));
    });
}
