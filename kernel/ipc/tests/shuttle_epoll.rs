//! Epolls whose entries are added, changed, removed, woken and waited for at once on two CPUs, with a switch possible at every access to an
//! atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p ipc --release --test shuttle_epoll`; `PANTALA_SCHEDULES` says how many schedules each
//! test tries.
#![cfg(shuttle)]

mod epolls;

use std::sync::Arc;

use ksync::atomic::{AtomicU32, Ordering::SeqCst};

use cred::Charge;
use epolls::pipe_users::threads::{Stopped, everywhere, stop_everywhere};
use epolls::pipe_users::{become_user, pair, read, write};
use epolls::*;
use task::park::Deadline;
use vfs::error::FsError;
use vfs::file::{FileRef, o};

/// As `everywhere`, and under the schedules in which the second thread is stopped once.
fn three(test: impl Fn() + Send + Sync + Copy + 'static) {
    everywhere(test);
    stop_everywhere(Stopped::Third, test);
}

/// Waits for one event; none may be lost.
fn wait_one(e: &FileRef) -> u64 {
    let found = wait_until(e, 1, Deadline::Never).expect("no signal");
    found[0].data
}

/// An event comes beside the look of a thread that waits, and beside its sleep.
fn event_beside_wait(flags: u32) {
    on(2, move || {
        let (c, e) = (counter(0), epoll());
        assert_eq!(add(&e, &c, 3, IN | flags), Ok(()));
        let counts = c.clone();
        spawn(None, move || {
            for _ in 0..2 {
                count(&counts);
            }
        });
        let mut sum = 0;
        while sum < 2 {
            assert_eq!(wait_one(&e), 3);
            sum += take(&c).unwrap_or(0);
            if flags == ONESHOT {
                assert_eq!(change(&e, &c, 3, IN | flags), Ok(()));
            }
        }
        wait_for_ends(1);
    });
}

#[test]
fn no_event_is_lost_beside_a_wait() {
    everywhere(|| event_beside_wait(ET));
    everywhere(|| event_beside_wait(0));
    everywhere(|| event_beside_wait(ONESHOT));
}

/// The file becomes ready while it is added.
#[test]
fn no_event_is_lost_beside_an_addition() {
    everywhere(|| {
        on(2, || {
            let (c, e) = (counter(0), epoll());
            let counts = c.clone();
            spawn(None, move || count(&counts));
            assert_eq!(add(&e, &c, 3, IN | ET), Ok(()));
            assert_eq!(wait_one(&e), 3);
            wait_for_ends(1);
        });
    });
}

/// One thread waits while another adds the file, which is ready.
#[test]
fn an_addition_wakes_a_wait() {
    everywhere(|| {
        on(2, || {
            let e = epoll();
            let adds = e.clone();
            let c = counter(1);
            let added = c.clone();
            spawn(None, move || assert_eq!(add(&adds, &added, 3, IN), Ok(())));
            assert_eq!(wait_one(&e), 3);
            wait_for_ends(1);
            drop(c);
        });
    });
}

/// A pipe is written to while its entry is changed, and looked at by a third thread.
#[test]
fn no_event_is_lost_beside_a_change() {
    three(|| {
        on(2, || {
            let (from, to) = pair(o::NONBLOCK);
            let e = epoll();
            assert_eq!(add(&e, &from, 3, IN | ONESHOT), Ok(()));
            let (changes, file) = (e.clone(), from.clone());
            spawn(None, move || {
                assert_eq!(change(&changes, &file, 3, IN | ET), Ok(()));
            });
            spawn(None, move || {
                assert_eq!(write(&to, b"a"), Ok(1));
                assert_eq!(write(&to, b"b"), Ok(1));
                nap(1);
            });
            let mut got = 0;
            while got < 2 {
                assert_eq!(wait_one(&e), 3);
                got += read(&from, 2).map_or(0, |bytes| bytes.len());
            }
            wait_for_ends(2);
        });
    });
}

/// An entry is changed while another thread looks at it, and finds nothing: it hears the next event.
#[test]
fn a_change_beside_a_look_leaves_the_entry_registered() {
    everywhere(|| {
        on(2, || {
            let (c, e) = (counter(1), epoll());
            assert_eq!(add(&e, &c, 3, IN), Ok(()));
            assert_eq!(ready(&e), [3]);
            assert_eq!(take(&c), Ok(1));
            let (changes, file) = (e.clone(), c.clone());
            spawn(None, move || {
                assert_eq!(change(&changes, &file, 3, IN | ET), Ok(()));
            });
            assert_eq!(ready(&e), []);
            wait_for_ends(1);
            count(&c);
            assert_eq!(ready(&e), [3]);
        });
    });
}

/// An entry is removed while its file becomes ready, and added again: the new entry has its event.
#[test]
fn a_removal_beside_a_wake_leaves_no_trace() {
    everywhere(|| {
        on(2, || {
            let (c, e) = (counter(0), epoll());
            assert_eq!(add(&e, &c, 3, IN | ET), Ok(()));
            let counts = c.clone();
            spawn(None, move || count(&counts));
            assert_eq!(remove(&e, &c, 3), Ok(()));
            assert_eq!(ready(&e), []);
            assert_eq!(add(&e, &c, 4, IN | ET), Ok(()));
            assert_eq!(wait_one(&e), 4);
            wait_for_ends(1);
        });
    });
}

/// The last reference to a file is dropped while another thread waits, and a third adds to the counter.
#[test]
fn a_close_takes_the_entry_out() {
    everywhere(|| {
        on(2, || {
            let user = become_user(7);
            let e = epoll();
            let (c, d) = (counter(0), counter(0));
            assert_eq!(add(&e, &c, 3, IN | ET), Ok(()));
            assert_eq!(add(&e, &d, 4, IN), Ok(()));
            let counts = d.clone();
            spawn(None, move || {
                count(&c);
                drop(c);
                count(&counts);
            });
            while wait_one(&e) != 4 {}
            wait_for_ends(1);
            assert_eq!(ready(&e), [4]);
            assert_eq!(user.held(Charge::Watches), 1);
        });
    });
}

/// The epoll, its file, and the entry end at once.
#[test]
fn an_entry_ends_once() {
    everywhere(|| {
        on(2, || {
            let user = become_user(7);
            let (c, e) = (counter(0), epoll());
            assert_eq!(add(&e, &c, 3, IN), Ok(()));
            assert_eq!(add(&e, &c, 4, IN), Ok(()));
            let (file, removes) = (c.clone(), e.clone());
            spawn(None, move || {
                let gone = remove(&removes, &file, 3);
                assert_eq!(gone, Ok(()));
                drop(removes);
                count(&file);
            });
            drop(e);
            drop(c);
            wait_for_ends(1);
            assert_eq!(user.held(Charge::Watches), 0);
        });
    });
}

/// The file and the epoll are closed at once.
#[test]
fn a_file_and_its_epoll_are_closed_at_once() {
    everywhere(|| {
        on(2, || {
            let user = become_user(7);
            let (c, e) = (counter(0), epoll());
            assert_eq!(add(&e, &c, 3, IN), Ok(()));
            spawn(None, move || drop(e));
            count(&c);
            drop(c);
            wait_for_ends(1);
            assert_eq!(user.held(Charge::Watches), 0);
        });
    });
}

/// Two threads add one file by one descriptor: one entry is made.
#[test]
fn one_of_two_additions_fails() {
    everywhere(|| {
        on(2, || {
            let user = become_user(7);
            let (c, e) = (counter(1), epoll());
            let failed = Arc::new(AtomicU32::new(0));
            let adds = {
                let (c, e, failed) = (c.clone(), e.clone(), failed.clone());
                move || {
                    if let Err(error) = add(&e, &c, 3, IN) {
                        assert_eq!(error, FsError::Exists);
                        failed.fetch_add(1, SeqCst);
                    }
                }
            };
            spawn(None, adds.clone());
            adds();
            drop(adds);
            wait_for_ends(1);
            assert_eq!(failed.load(SeqCst), 1);
            assert_eq!(user.held(Charge::Watches), 1);
            assert_eq!(ready(&e), [3]);
        });
    });
}

/// Each of two threads that share an epoll gets one of two events, whichever thread a wake-up chooses.
#[test]
fn two_events_serve_two_waits() {
    three(|| {
        on(2, || {
            let e = epoll();
            let (c, d) = (counter(0), counter(0));
            assert_eq!(add(&e, &c, 3, IN | ET), Ok(()));
            assert_eq!(add(&e, &d, 4, IN | ET), Ok(()));
            let waits = e.clone();
            spawn(None, move || {
                wait_one(&waits);
            });
            spawn(None, move || {
                count(&c);
                count(&d);
                nap(1);
            });
            wait_one(&e);
            wait_for_ends(2);
        });
    });
}

/// Two scans at once: a wait with timeout 0 finds what is ready, though another thread looks at it.
#[test]
fn a_look_of_one_thread_hides_nothing_from_another() {
    everywhere(|| {
        on(2, || {
            let (c, e) = (counter(1), epoll());
            assert_eq!(add(&e, &c, 3, IN), Ok(()));
            let looks = e.clone();
            spawn(None, move || assert_eq!(ready(&looks), [3]));
            assert_eq!(ready(&e), [3]);
            wait_for_ends(1);
        });
    });
}

/// An event reaches a wait on an epoll that is in another, beside a look at the inner one.
#[test]
fn no_event_is_lost_between_epolls() {
    everywhere(|| {
        on(2, || {
            let (c, inner, outer) = (counter(0), epoll(), epoll());
            assert_eq!(add(&inner, &c, 3, IN), Ok(()));
            let counts = c.clone();
            spawn(None, move || count(&counts));
            assert_eq!(add(&outer, &inner, 4, IN | ET), Ok(()));
            ready(&inner);
            assert_eq!(wait_one(&outer), 4);
            wait_for_ends(1);
        });
    });
}

/// Two exclusive epolls: each of two events reaches a thread.
#[test]
fn exclusive_events_are_not_lost() {
    three(|| {
        on(2, || {
            let c = counter(0);
            let (e, f) = (epoll(), epoll());
            assert_eq!(add(&e, &c, 3, 1 | EXCLUSIVE | ET), Ok(()));
            assert_eq!(add(&f, &c, 3, 1 | EXCLUSIVE | ET), Ok(()));
            spawn(None, move || {
                wait_one(&f);
            });
            let counts = c.clone();
            spawn(None, move || {
                // Each time at least one of those that sleep is woken.
                for _ in 0..4 {
                    count(&counts);
                    nap(1);
                }
            });
            wait_one(&e);
            wait_for_ends(2);
        });
    });
}
