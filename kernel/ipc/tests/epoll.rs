//! Epolls: what is reported of each state of the files, and how often; changes of the set; limits.
#![cfg(not(shuttle))]

mod epolls;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use cred::Charge;
use epolls::pipe_users::{
    self as users, become_user, call, fifo, fill_but, open, pair, read, write,
};
use epolls::*;
use ipc::epoll::{Event, MAX_WATCHES, wait};
use task::park::Deadline;
use task::time::monotonic_ns;
use vfs::error::FsError;
use vfs::file::{FileRef, o};
use vfs::poll::PollMask;

const NOTHING: [u64; 0] = [];

#[test]
fn an_event_has_linuxs_layout() {
    let event = event(0x8000_0001, 0x1122_3344_5566_7788);
    let bytes = event.to_bytes();
    assert_eq!(
        bytes,
        [
            1, 0, 0, 0x80, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11
        ]
    );
    assert_eq!(Event::from_bytes(bytes), event);
}

#[test]
fn a_level_is_reported_as_long_as_it_lasts() {
    on(1, || {
        let (from, to) = pair(0);
        let e = epoll();
        assert_eq!(add(&e, &from, 3, IN), Ok(()));
        assert_eq!(ready(&e), NOTHING);
        assert_eq!(write(&to, b"ab"), Ok(2));
        for _ in 0..3 {
            assert_eq!(now(&e), [(IN, 3)]);
        }
        assert_eq!(read(&from, 1).map(|b| b.len()), Ok(1));
        assert_eq!(now(&e), [(IN, 3)]);
        assert_eq!(read(&from, 1).map(|b| b.len()), Ok(1));
        assert_eq!(ready(&e), NOTHING);
        drop(to);
        assert_eq!(now(&e), [(HUP, 3)], "a hang-up is always reported");
    });
}

#[test]
fn an_edge_is_reported_once_for_each_write() {
    on(1, || {
        let (from, to) = pair(0);
        let e = epoll();
        assert_eq!(write(&to, b"a"), Ok(1));
        assert_eq!(add(&e, &from, 3, IN | ET), Ok(()));
        assert_eq!(now(&e), [(IN, 3)], "ready when it is added");
        assert_eq!(ready(&e), NOTHING);
        // Each write counts, also to a pipe that has bytes.
        for _ in 0..3 {
            assert_eq!(write(&to, b"b"), Ok(1));
            assert_eq!(write(&to, b"b"), Ok(1));
            assert_eq!(now(&e), [(IN, 3)]);
            assert_eq!(ready(&e), NOTHING);
        }
        // A read is no event for the reader.
        assert_eq!(read(&from, 2).map(|b| b.len()), Ok(2));
        assert_eq!(ready(&e), NOTHING);
        assert_eq!(change(&e, &from, 3, IN | ET), Ok(()));
        assert_eq!(ready(&e), [3], "a change looks again");
        drop(to);
        assert_eq!(now(&e), [(IN | HUP, 3)]);
    });
}

/// What a reader takes out of a full pipe is an event for the other end alone.
#[test]
fn room_is_an_edge_for_writers_and_none_for_readers() {
    on(1, || {
        let (from, to) = pair(0);
        let e = epoll();
        fill_but(&to, 0);
        assert_eq!(add(&e, &from, 3, IN | ET), Ok(()));
        assert_eq!(add(&e, &to, 4, OUT | ET), Ok(()));
        assert_eq!(now(&e), [(IN, 3)]);
        assert_eq!(read(&from, 5000).map(|b| b.len()), Ok(5000));
        assert_eq!(now(&e), [(OUT, 4)]);
        assert_eq!(read(&from, 5000).map(|b| b.len()), Ok(5000));
        assert_eq!(ready(&e), NOTHING);
        drop(from);
        assert_eq!(now(&e), [(OUT | ERR, 4)]);
    });
}

#[test]
fn both_sides_of_a_fifo_are_one_entry() {
    on(1, || {
        let fifo = fifo();
        let both = open(&fifo, o::RDWR).expect("opens at once");
        let e = epoll();
        assert_eq!(add(&e, &both, 3, IN | OUT | ET), Ok(()));
        assert_eq!(now(&e), [(OUT, 3)]);
        assert_eq!(write(&both, b"x"), Ok(1));
        assert_eq!(now(&e), [(IN | OUT, 3)]);
    });
}

#[test]
fn a_oneshot_entry_is_off_until_it_is_changed() {
    on(1, || {
        let c = counter(1);
        let e = epoll();
        assert_eq!(add(&e, &c, 3, IN | ONESHOT), Ok(()));
        assert_eq!(ready(&e), [3]);
        assert_eq!(ready(&e), NOTHING);
        count(&c);
        assert_eq!(ready(&e), NOTHING, "no event turns it on");
        assert_eq!(change(&e, &c, 3, IN | ONESHOT), Ok(()));
        assert_eq!(ready(&e), [3]);
        assert_eq!(take(&c), Ok(2));
        assert_eq!(change(&e, &c, 3, IN | ONESHOT), Ok(()));
        assert_eq!(ready(&e), NOTHING);
        count(&c);
        assert_eq!(ready(&e), [3]);
    });
}

#[test]
fn an_event_that_cannot_be_delivered_comes_again_first() {
    on(1, || {
        let files: Vec<_> = (0..3).map(|_| counter(1)).collect();
        let e = epoll();
        for (fd, file) in files.iter().enumerate() {
            let flags = [ET, ONESHOT, 0][fd];
            assert_eq!(add(&e, file, fd as i32, IN | flags), Ok(()));
        }
        let fails = || wait::wait(&e, 9, Deadline::now(), &mut |_| Err(FsError::Fault));
        assert_eq!(fails(), Err(FsError::Fault));
        assert_eq!(fails(), Err(FsError::Fault));
        let mut room = 2;
        let part = wait::wait(&e, 9, Deadline::now(), &mut |_| {
            room -= 1;
            if room == 0 {
                Err(FsError::Fault)
            } else {
                Ok(())
            }
        });
        assert_eq!(part, Ok(1), "one event had room");
        assert_eq!(ready(&e), [1, 2]);
        assert_eq!(ready(&e), [2]);
    });
}

#[test]
fn ready_entries_take_turns() {
    on(1, || {
        let files: Vec<_> = (0..5).map(|_| counter(1)).collect();
        let e = epoll();
        for (fd, file) in files.iter().enumerate() {
            assert_eq!(add(&e, file, fd as i32, IN), Ok(()));
        }
        let mut seen = Vec::new();
        for _ in 0..5 {
            let two = wait_until(&e, 2, Deadline::now()).expect("no wait");
            seen.extend(two.iter().map(|e| e.data));
        }
        assert_eq!(seen, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
        assert_eq!(wait_until(&e, 100, Deadline::now()).map(|f| f.len()), Ok(5));
    });
}

#[test]
fn the_set_of_entries_is_by_file_and_descriptor() {
    on(1, || {
        let (c, d, e) = (counter(1), counter(1), epoll());
        assert_eq!(change(&e, &c, 3, IN), Err(FsError::NotFound));
        assert_eq!(remove(&e, &c, 3), Err(FsError::NotFound));
        assert_eq!(add(&e, &c, 3, IN), Ok(()));
        assert_eq!(add(&e, &c, 3, OUT), Err(FsError::Exists));
        // Another descriptor of the same file, and another file with the same descriptor.
        assert_eq!(add(&e, &c, 4, OUT), Ok(()));
        assert_eq!(add(&e, &d, 3, IN | OUT), Ok(()));
        assert_eq!(now(&e), [(IN, 3), (OUT, 4), (IN | OUT, 3)]);
        assert_eq!(remove(&e, &c, 3), Ok(()));
        assert_eq!(remove(&e, &c, 3), Err(FsError::NotFound));
        assert_eq!(now(&e), [(OUT, 4), (IN | OUT, 3)]);
        assert_eq!(change(&e, &c, 4, 0), Ok(()));
        assert_eq!(now(&e), [(IN | OUT, 3)]);
        assert_eq!(add(&e, &e, 5, IN), Err(FsError::Invalid));
        assert_eq!(add(&c, &d, 5, IN), Err(FsError::Invalid));
    });
}

#[test]
fn an_entry_goes_with_the_last_reference_to_its_file() {
    on(1, || {
        let user = become_user(7);
        let (c, e) = (counter(1), epoll());
        let held = user.held(Charge::Watches);
        let again = c.clone();
        assert_eq!(add(&e, &c, 3, IN), Ok(()));
        drop(c);
        assert_eq!(ready(&e), [3]);
        assert_eq!(user.held(Charge::Watches), held + 1);
        drop(again);
        assert_eq!(ready(&e), NOTHING);
        assert_eq!(user.held(Charge::Watches), held);
        // And with the epoll.
        let c = counter(1);
        assert_eq!(add(&e, &c, 3, IN), Ok(()));
        drop(e);
        assert_eq!(user.held(Charge::Watches), held);
        count(&c);
    });
}

#[test]
fn only_exclusive_flags_go_with_exclusive() {
    on(1, || {
        let (c, e) = (counter(1), epoll());
        assert_eq!(
            add(&e, &c, 3, IN | EXCLUSIVE | ONESHOT),
            Err(FsError::Invalid)
        );
        assert_eq!(add(&e, &epoll(), 4, 1 | EXCLUSIVE), Err(FsError::Invalid));
        assert_eq!(add(&e, &c, 3, 1 | EXCLUSIVE | ET), Ok(()));
        assert_eq!(change(&e, &c, 3, 1), Err(FsError::Invalid));
        assert_eq!(add(&e, &c, 4, 1), Ok(()));
        assert_eq!(change(&e, &c, 4, 1 | EXCLUSIVE), Err(FsError::Invalid));
        assert_eq!(ready(&e), [3, 4]);
    });
}

#[test]
fn epolls_and_timers_are_charged() {
    on(1, || {
        let user = become_user(1000);
        let held = || user.held(Charge::Memory);
        let before = held();
        let e = epoll();
        let with_epoll = held();
        let t = ipc::timerfd::make(false, 0).expect("memory");
        assert!(before < with_epoll && with_epoll < held());
        drop((e, t));
        nap(10);
        assert_eq!(held(), before);
    });
}

#[test]
fn a_user_has_a_limited_number_of_entries() {
    on(1, || {
        let user = become_user(7);
        MAX_WATCHES.store(user.held(Charge::Watches) + 2, SeqCst);
        let (c, e) = (counter(1), epoll());
        for fd in 0..2 {
            assert_eq!(add(&e, &c, fd, IN), Ok(()));
        }
        assert_eq!(add(&e, &c, 2, IN), Err(FsError::NoSpace));
        assert_eq!(add(&e, &c, 1, IN), Err(FsError::Exists));
        assert_eq!(remove(&e, &c, 0), Ok(()));
        assert_eq!(add(&e, &c, 2, IN), Ok(()));
        assert_eq!(ready(&e), [1, 2]);
    });
}

#[test]
fn a_file_has_many_entries() {
    on(1, || {
        let (c, e) = (counter(0), epoll());
        for fd in 0..3000 {
            assert_eq!(add(&e, &c, fd, IN), Ok(()));
        }
        count(&c);
        let all = wait_until(&e, 5000, Deadline::now()).expect("no wait");
        assert_eq!(all.len(), 3000);
        drop(e);
        let e = epoll();
        assert_eq!(add(&e, &c, 1000, IN), Ok(()));
    });
}

#[test]
fn epolls_are_in_others_without_cycles() {
    on(1, || {
        let c = counter(0);
        let e: Vec<_> = (0..6).map(|_| epoll()).collect();
        assert_eq!(add(&e[4], &c, 9, IN), Ok(()));
        for i in 0..4 {
            assert_eq!(add(&e[i], &e[i + 1], 9, IN), Ok(()));
        }
        for file in &e[..5] {
            assert_eq!(ready(file), NOTHING);
        }
        count(&c);
        for file in &e[..5] {
            assert_eq!((ready(file), file.poll(None)), (vec![9], PollMask::READ));
        }
        assert_eq!(take(&c), Ok(1));
        for file in &e[..5] {
            assert_eq!(ready(file), NOTHING);
        }
        // Neither above nor below.
        assert_eq!(add(&e[5], &e[0], 9, IN), Err(FsError::Loop));
        assert_eq!(add(&e[4], &e[5], 9, IN), Err(FsError::Loop));
        assert_eq!(add(&e[3], &e[5], 9, IN), Ok(()));
        assert_eq!(add(&e[4], &e[0], 9, IN), Err(FsError::Loop));
        assert_eq!(add(&e[1], &e[0], 9, IN), Err(FsError::Loop));
        // Once it is taken out, the other way round.
        assert_eq!(remove(&e[0], &e[1], 9), Ok(()));
        assert_eq!(add(&e[4], &e[0], 9, IN), Ok(()));
        assert_eq!(add(&e[0], &e[1], 9, IN), Err(FsError::Loop));
    });
}

#[test]
fn an_epoll_is_not_in_too_many_others() {
    on(1, || {
        let inner = epoll();
        let outer: Vec<_> = (0..101).map(|_| epoll()).collect();
        for e in &outer {
            assert_eq!(add(e, &inner, 3, IN), Ok(()));
        }
        // Each of these is at the end of a way for each of those.
        let top = epoll();
        for e in &outer[..100] {
            assert_eq!(add(&top, e, 3, IN), Ok(()));
        }
        assert_eq!(add(&top, &outer[100], 3, IN), Err(FsError::Invalid));
        assert_eq!(remove(&top, &outer[0], 3), Ok(()));
        assert_eq!(add(&top, &outer[100], 3, IN), Ok(()));
    });
}

#[test]
fn an_edge_goes_through_epolls() {
    on(1, || {
        let c = counter(0);
        let (outer, inner) = (epoll(), epoll());
        assert_eq!(add(&inner, &c, 3, IN), Ok(()));
        assert_eq!(add(&outer, &inner, 4, IN | ET), Ok(()));
        count(&c);
        assert_eq!(ready(&outer), [4]);
        assert_eq!(ready(&outer), NOTHING, "no new event");
        assert_eq!(ready(&inner), [3]);
        count(&c);
        assert_eq!(ready(&outer), [4]);
        // The entry of an epoll goes with it.
        drop(inner);
        count(&c);
        assert_eq!(ready(&outer), NOTHING);
    });
}

/// Starts an epoll_wait(2) for one event.
fn waiter(e: &FileRef) -> Arc<epolls::pipe_users::Outcome<Vec<Event>>> {
    let e = e.clone();
    call(move || wait_until(&e, 1, Deadline::after(50 * MS))).1
}

#[test]
fn a_wait_ends_with_an_event_a_signal_or_its_time() {
    on(2, || {
        let (c, e) = (counter(0), epoll());
        assert_eq!(add(&e, &c, 3, IN), Ok(()));
        let begun = monotonic_ns();
        assert_eq!(wait_until(&e, 1, Deadline::At(begun + 5 * MS)), Ok(vec![]));
        assert!(monotonic_ns() - begun >= 5 * MS);
        let waits = waiter(&e);
        assert!(waits.waits());
        count(&c);
        assert_eq!(waits.get(), Ok(vec![event(IN, 3)]));
        assert_eq!(take(&c), Ok(1));
        let other = e.clone();
        let (tid, waits) = call(move || wait_until(&other, 1, Deadline::Never));
        interrupt(tid);
        assert_eq!(waits.get(), Err(FsError::Interrupted));
        // Of a set that is changed meanwhile.
        let waits = waiter(&e);
        let d = counter(1);
        assert_eq!(add(&e, &d, 4, IN), Ok(()));
        assert_eq!(waits.get(), Ok(vec![event(IN, 4)]));
        assert_eq!(change(&e, &d, 4, 0), Ok(()));
        let waits = waiter(&e);
        assert!(waits.waits());
        assert_eq!(change(&e, &d, 4, IN), Ok(()));
        assert_eq!(waits.get(), Ok(vec![event(IN, 4)]));
    });
}

/// One event with EPOLLET is for one of the threads that wait for an epoll; a level is for all, one after another.
#[test]
fn an_edge_wakes_one_thread_and_a_level_all() {
    on(2, || {
        for (flags, woken) in [(ET, 1), (0, 3)] {
            let (c, e) = (counter(0), epoll());
            assert_eq!(add(&e, &c, 3, IN | flags), Ok(()));
            let waits: Vec<_> = (0..3).map(|_| waiter(&e)).collect();
            count(&c);
            nap(5);
            let done = waits.iter().filter(|w| !w.waits()).count();
            assert_eq!(done, woken);
            nap(60);
        }
    });
}

/// Of several epolls with EPOLLEXCLUSIVE one is woken, and another one by the next event; of those without each.
#[test]
fn an_exclusive_event_wakes_one_epoll() {
    on(2, || {
        for (flags, woken) in [(EXCLUSIVE, 1), (0, 3)] {
            let c = counter(0);
            let all: Vec<_> = (0..3).map(|_| epoll()).collect();
            for e in &all {
                assert_eq!(add(e, &c, 3, 1 | flags), Ok(()));
            }
            let waits: Vec<_> = all.iter().map(waiter).collect();
            let done = || waits.iter().filter(|w| !w.waits()).count();
            count(&c);
            nap(5);
            assert_eq!(done(), woken);
            count(&c);
            nap(5);
            assert_eq!(done(), (2 * woken).min(3), "they take turns");
            nap(60);
        }
    });
}

/// An exclusive epoll that nobody waits for takes no event from one that somebody waits for.
#[test]
fn an_exclusive_event_is_for_an_epoll_with_a_thread() {
    on(2, || {
        let c = counter(0);
        let (idle, busy) = (epoll(), epoll());
        assert_eq!(add(&idle, &c, 3, 1 | EXCLUSIVE), Ok(()));
        assert_eq!(add(&busy, &c, 3, 1 | EXCLUSIVE), Ok(()));
        let waits = waiter(&busy);
        count(&c);
        assert_eq!(waits.get(), Ok(vec![event(1, 3)]));
        assert_eq!(ready(&idle), [3]);
    });
}

/// poll(2) of an epoll, and an epoll of it, are woken by one event.
#[test]
fn an_event_wakes_polls_of_the_epoll() {
    on(2, || {
        let (c, e, outer) = (counter(0), epoll(), epoll());
        assert_eq!(add(&e, &c, 3, IN), Ok(()));
        assert_eq!(add(&outer, &e, 4, IN), Ok(()));
        let mut polled = users::Polled::new(&[(&e, PollMask::READ)]);
        let (_, polls) = call(move || Ok(polled.wait(Deadline::Never)));
        let waits = waiter(&outer);
        assert!(polls.waits() && waits.waits());
        count(&c);
        assert_eq!(polls.get(), Ok(Ok(1)));
        assert_eq!(waits.get(), Ok(vec![event(IN & 0x41, 4)]));
    });
}

/// Threads that share an epoll take what writers put into pipes: nothing is left, and each thread sleeps in between.
#[test]
fn threads_that_share_an_epoll_leave_nothing() {
    const FILES: usize = 6;
    const EVENTS: u64 = 300;
    for flags in [0, ET, ONESHOT] {
        on(4, move || {
            let e = epoll();
            let files: Arc<Vec<_>> = Arc::new((0..FILES).map(|_| counter(0)).collect());
            for (fd, file) in files.iter().enumerate() {
                assert_eq!(add(&e, file, fd as i32, IN | flags), Ok(()));
            }
            let sum = Arc::new(AtomicU64::new(0));
            for _ in 0..3 {
                let (e, files, sum) = (e.clone(), files.clone(), sum.clone());
                spawn(None, move || {
                    while sum.load(SeqCst) < EVENTS {
                        let found = wait_until(&e, 2, Deadline::after(20 * MS));
                        for event in found.expect("no signal") {
                            let file = &files[event.data as usize];
                            sum.fetch_add(take(file).unwrap_or(0), SeqCst);
                            if flags == ONESHOT {
                                let fd = event.data as i32;
                                assert_eq!(change(&e, file, fd, IN | flags), Ok(()));
                            }
                        }
                    }
                });
            }
            for i in 0..EVENTS {
                count(&files[i as usize % FILES]);
                hal::time::spin_ns(i % 7 * 3000);
            }
            let until = monotonic_ns() + 15 * MS;
            while sum.load(SeqCst) < EVENTS {
                // The threads' own timeouts come later.
                assert!(
                    monotonic_ns() < until,
                    "an event was lost: {}",
                    sum.load(SeqCst)
                );
                nap(1);
            }
            wait_for_ends(3);
        });
    }
}

/// Files are added, closed and written to beside a thread that waits.
#[test]
fn files_come_and_go_beside_a_wait() {
    on(4, || {
        let user = become_user(9);
        let held = user.held(Charge::Watches);
        let e = epoll();
        let stop = Arc::new(AtomicUsize::new(0));
        for cpu in 0..3 {
            let (e, stop) = (e.clone(), stop.clone());
            spawn(None, move || {
                let keep = counter(0);
                for i in 0..60 {
                    let fd = cpu * 1000 + i;
                    let c = counter(u64::from(i % 2 == 0));
                    assert_eq!(
                        add(&e, &c, fd, IN | if i % 3 == 0 { ET } else { 0 }),
                        Ok(())
                    );
                    assert_eq!(add(&e, &keep, fd, IN), Ok(()));
                    count(&c);
                    hal::time::spin_ns(2000);
                    assert_eq!(remove(&e, &keep, fd), Ok(()));
                    if i % 4 == 0 {
                        assert_eq!(remove(&e, &c, fd), Ok(()));
                    }
                }
                stop.fetch_add(1, SeqCst);
            });
        }
        while stop.load(SeqCst) < 3 {
            assert!(wait_until(&e, 3, Deadline::after(MS)).is_ok());
        }
        wait_for_ends(3);
        assert_eq!(ready(&e), NOTHING);
        assert_eq!(user.held(Charge::Watches), held);
    });
}

/// A queue calls 256 listeners at most. The other epolls look again by themselves, and miss nothing.
#[test]
fn a_file_in_very_many_epolls_reaches_them_all() {
    on(2, || {
        let c = counter(0);
        let all: Vec<FileRef> = (0..300).map(|_| epoll()).collect();
        for e in &all {
            assert_eq!(add(e, &c, 3, IN), Ok(()));
        }
        for e in &all {
            assert_eq!(ready(e), NOTHING);
        }
        let last = all[299].clone();
        let heard = Arc::new(AtomicU64::new(0));
        let at = heard.clone();
        spawn(None, move || {
            let found = wait_until(&last, 1, Deadline::after(1000 * MS)).expect("an event");
            assert_eq!(found.len(), 1);
            at.store(monotonic_ns(), SeqCst);
        });
        nap(20);
        assert_eq!(heard.load(SeqCst), 0);
        let counted = monotonic_ns();
        count(&c);
        wait_for_ends(1);
        assert!(heard.load(SeqCst) - counted < 10 * MS);
        for e in &all {
            assert_eq!(ready(e), [3]);
        }
    });
}
