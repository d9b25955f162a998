//! Event counters, eventfd(2): what reads and writes add and take, and what they wait for.
#![cfg(not(shuttle))]

mod pipe_users;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use hal::uio::IoBuf;
use pipe_users::threads::{interrupt, nap, spawn, wait_for_ends};
use pipe_users::{AGAIN, call, events, on};
use vfs::error::FsError::{self, Interrupted, Invalid};
use vfs::eventfd::EventCounter;
use vfs::file::{File, FileRef, Kind, Whence, o};
use vfs::poll::PollMask;
use vm_host::random::Random;

/// The largest count.
const MOST: u64 = u64::MAX - 1;

/// eventfd(2).
fn counter(count: u64, semaphore: bool) -> FileRef {
    let counter = EventCounter::new(count, semaphore);
    File::open(None, Kind::Other(Box::new(counter)), o::RDWR)
}

fn nonblocking(count: u64, semaphore: bool) -> FileRef {
    let file = counter(count, semaphore);
    file.set_flags(o::NONBLOCK);
    file
}

fn add(file: &FileRef, value: u64) -> Result<usize, FsError> {
    file.write(&mut IoBuf::Drain(&value.to_ne_bytes()))
}

fn take(file: &FileRef) -> Result<u64, FsError> {
    let mut bytes = [0; 8];
    let n = file.read(&mut IoBuf::Fill(&mut bytes))?;
    assert_eq!(n, 8);
    Ok(u64::from_ne_bytes(bytes))
}

#[test]
fn a_read_takes_the_whole_count() {
    on(1, || {
        let file = nonblocking(5, false);
        assert_eq!(take(&file), Ok(5));
        assert_eq!(take(&file), Err(AGAIN));
        assert_eq!(add(&file, 2), Ok(8));
        assert_eq!(add(&file, 40), Ok(8));
        assert_eq!(take(&file), Ok(42));
    });
}

#[test]
fn a_semaphores_read_takes_one() {
    on(1, || {
        let file = nonblocking(2, true);
        assert_eq!(add(&file, 1), Ok(8));
        for _ in 0..3 {
            assert_eq!(take(&file), Ok(1));
        }
        assert_eq!(take(&file), Err(AGAIN));
    });
}

#[test]
fn a_count_of_0_may_be_added_and_is_no_event() {
    on(1, || {
        let file = nonblocking(0, false);
        assert_eq!(add(&file, 0), Ok(8));
        assert_eq!(take(&file), Err(AGAIN));
        assert_eq!(events(&file), PollMask::WRITE);
    });
}

/// eventfd(2): "The maximum value that may be stored in the counter is the largest unsigned 64-bit value minus 1".
#[test]
fn a_count_beyond_the_largest_is_not_added() {
    on(1, || {
        let file = nonblocking(1, false);
        assert_eq!(add(&file, MOST), Err(AGAIN));
        assert_eq!(add(&file, MOST - 1), Ok(8));
        assert_eq!(add(&file, 1), Err(AGAIN));
        assert_eq!(add(&file, 0), Ok(8));
        assert_eq!(take(&file), Ok(MOST));
        assert_eq!(add(&file, MOST), Ok(8));
        assert_eq!(take(&file), Ok(MOST));
        assert_eq!(add(&file, u64::MAX), Err(Invalid));
    });
}

#[test]
fn a_buffer_of_less_than_eight_bytes_is_invalid() {
    on(1, || {
        let file = nonblocking(7, false);
        for len in [0, 1, 7] {
            let mut bytes = vec![0; len];
            assert_eq!(file.read(&mut IoBuf::Fill(&mut bytes)), Err(Invalid));
            assert_eq!(file.write(&mut IoBuf::Drain(&bytes)), Err(Invalid));
        }
        assert_eq!(take(&file), Ok(7), "nothing was taken");
    });
}

#[test]
fn a_larger_buffer_gets_and_gives_eight_bytes() {
    on(1, || {
        let file = nonblocking(7, false);
        let mut bytes = [0xff; 20];
        assert_eq!(file.read(&mut IoBuf::Fill(&mut bytes)), Ok(8));
        assert_eq!(bytes[..8], 7u64.to_ne_bytes());
        assert_eq!(bytes[8..], [0xff; 12]);
        bytes[..8].copy_from_slice(&9u64.to_ne_bytes());
        assert_eq!(file.write(&mut IoBuf::Drain(&bytes)), Ok(8));
        assert_eq!(take(&file), Ok(9));
    });
}

/// poll(2) on Linux: readable from 1 on, writable as long as 1 can be added.
#[test]
fn readiness_follows_the_count() {
    on(1, || {
        let both = PollMask::READ | PollMask::WRITE;
        let cases = [
            (0, PollMask::WRITE),
            (1, both),
            (MOST - 1, both),
            (MOST, PollMask::READ),
        ];
        for (count, ready) in cases {
            assert_eq!(events(&counter(count, false)), ready, "{count}");
            assert_eq!(events(&counter(count, true)), ready, "{count}");
        }
    });
}

#[test]
fn a_read_waits_for_a_count() {
    on(2, || {
        let file = counter(0, false);
        let theirs = file.clone();
        let (_, got) = call(move || take(&theirs));
        assert_eq!(add(&file, 0), Ok(8));
        nap(50);
        assert!(got.waits());
        assert_eq!(add(&file, 3), Ok(8));
        assert_eq!(got.get(), Ok(3));
    });
}

#[test]
fn a_write_waits_until_its_value_can_be_added() {
    on(2, || {
        let file = counter(MOST - 5, true);
        let theirs = file.clone();
        let (_, put) = call(move || add(&theirs, 7));
        for _ in 0..2 {
            assert!(put.waits());
            assert_eq!(take(&file), Ok(1));
            nap(1);
        }
        assert_eq!(put.get(), Ok(8));
        assert_eq!(events(&file), PollMask::READ, "it is full");
    });
}

#[test]
fn a_smaller_write_does_not_wait_behind_a_larger_one() {
    on(2, || {
        let file = counter(MOST - 5, false);
        let theirs = file.clone();
        let (_, put) = call(move || add(&theirs, 100));
        assert_eq!(add(&file, 5), Ok(8));
        assert!(put.waits());
        assert_eq!(take(&file), Ok(MOST));
        assert_eq!(put.get(), Ok(8));
        assert_eq!(take(&file), Ok(100));
    });
}

#[test]
fn one_write_wakes_as_many_semaphore_readers_as_it_adds() {
    on(2, || {
        let file = counter(0, true);
        let readers: Vec<_> = (0..5)
            .map(|_| {
                let file = file.clone();
                call(move || take(&file)).1
            })
            .collect();
        assert_eq!(add(&file, 3), Ok(8));
        nap(5);
        assert_eq!(readers.iter().filter(|got| got.waits()).count(), 2);
        assert_eq!(add(&file, 2), Ok(8));
        readers.iter().for_each(|got| assert_eq!(got.get(), Ok(1)));
    });
}

#[test]
fn of_several_readers_one_gets_the_count() {
    on(2, || {
        let file = counter(0, false);
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let file = file.clone();
                call(move || take(&file)).1
            })
            .collect();
        assert_eq!(add(&file, 9), Ok(8));
        nap(5);
        assert_eq!(readers.iter().filter(|got| got.waits()).count(), 2);
        for value in [10, 11] {
            assert_eq!(add(&file, value), Ok(8));
            nap(5);
        }
        let mut all: Vec<_> = readers.iter().map(|got| got.get()).collect();
        all.sort_by_key(|got| got.unwrap_or(0));
        assert_eq!(all, [Ok(9), Ok(10), Ok(11)]);
    });
}

#[test]
fn a_signal_ends_a_call_that_waits_and_changes_nothing() {
    on(2, || {
        let file = counter(0, false);
        let theirs = file.clone();
        let (tid, got) = call(move || take(&theirs));
        interrupt(tid);
        assert_eq!(got.get(), Err(Interrupted));
        assert_eq!(add(&file, MOST), Ok(8));
        let theirs = file.clone();
        let (tid, put) = call(move || add(&theirs, 1));
        interrupt(tid);
        assert_eq!(put.get(), Err(Interrupted));
        assert_eq!(take(&file), Ok(MOST));
    });
}

#[test]
fn a_counter_has_no_position() {
    on(1, || {
        let file = nonblocking(1, false);
        for (offset, whence) in [(0, Whence::Set), (100, Whence::Cur), (-5, Whence::End)] {
            assert_eq!(file.seek(offset, whence), Ok(0));
        }
        let mut bytes = [0; 8];
        let read = file.read_at(&mut IoBuf::Fill(&mut bytes), 0);
        assert_eq!(read, Err(FsError::NotSeekable));
        assert_eq!(take(&file), Ok(1));
        let (a, b) = (file.attr(), counter(0, false).attr());
        assert_ne!(a.map(|a| a.ino), b.map(|b| b.ino));
    });
}

/// Random calls on a counter and on a plain number.
#[test]
fn a_counter_does_what_a_number_does() {
    on(1, || {
        let mut random = Random(0xe7e47);
        for semaphore in [false, true] {
            let file = nonblocking(3, semaphore);
            let mut number: u64 = 3;
            for _ in 0..3000 {
                if random.one_in(2) {
                    let value = match random.below_u64(3) {
                        0 => random.below_u64(4),
                        1 => MOST - random.below_u64(4),
                        // About what there is room for.
                        _ => (MOST - number)
                            .saturating_sub(random.below_u64(3))
                            .saturating_add(random.below_u64(3)),
                    };
                    let sum = number.checked_add(value).filter(|&sum| sum <= MOST);
                    let expected = match value {
                        u64::MAX => Err(Invalid),
                        _ => sum.map(|_| 8).ok_or(AGAIN),
                    };
                    assert_eq!(add(&file, value), expected, "{number} + {value}");
                    number = sum.unwrap_or(number);
                } else {
                    let got = if semaphore { number.min(1) } else { number };
                    let expected = (got > 0).then_some(got).ok_or(AGAIN);
                    assert_eq!(take(&file), expected);
                    number -= got;
                }
            }
        }
    });
}

/// Writers and readers on four CPUs: what is added is taken once, in semaphore mode and without.
#[test]
fn no_count_is_lost_between_threads() {
    for semaphore in [false, true] {
        on(4, move || {
            let file = counter(0, semaphore);
            let (added, taken) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            for n in 0..3 {
                let (file, added) = (file.clone(), added.clone());
                spawn(None, move || {
                    let mut random = Random(0xadd + n);
                    for _ in 0..100 {
                        let value = random.below_u64(5);
                        assert_eq!(add(&file, value), Ok(8));
                        added.fetch_add(value, SeqCst);
                        if random.one_in(8) {
                            nap(1);
                        }
                    }
                });
            }
            for _ in 0..3 {
                let (file, taken) = (file.clone(), taken.clone());
                spawn(None, move || {
                    // The last value for each reader is a large one.
                    loop {
                        let got = take(&file).expect("a count");
                        taken.fetch_add(got % (1 << 32), SeqCst);
                        if got >= 1 << 32 || taken.load(SeqCst) > 1 << 31 {
                            return;
                        }
                    }
                });
            }
            wait_for_ends(3);
            while taken.load(SeqCst) < added.load(SeqCst) {
                nap(1);
            }
            nap(5);
            assert_eq!(taken.load(SeqCst), added.load(SeqCst));
            assert!(added.load(SeqCst) > 300);
            assert_eq!(events(&file), PollMask::WRITE, "nothing is left");
            // The readers end.
            taken.store(1 << 32, SeqCst);
            while pipe_users::threads::ended() < 6 {
                assert_eq!(add(&file, 1), Ok(8));
                nap(1);
            }
        });
    }
}
