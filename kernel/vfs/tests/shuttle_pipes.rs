//! Pipes and event counters whose ends are used and closed at once on two CPUs, with a switch possible at every access to an
//! atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vfs --release --test shuttle_pipes`; `PANTALA_SCHEDULES` says how many schedules each
//! test tries.
#![cfg(shuttle)]

mod pipe_users;

use std::cell::RefCell;
use std::sync::Arc;

use hal::uio::IoBuf;
use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use pipe_users::threads::{Stopped, everywhere, nap, spawn, stop_everywhere, wait_for_ends};
use pipe_users::{Polled, fifo, fill_but, on, open, pair, pipe_of, read, write};
use task::current::current;
use task::park::Deadline;
use task::sched::{self, CpuMask};
use vfs::error::FsError::{BrokenPipe, WouldBlock};
use vfs::eventfd::EventCounter;
use vfs::file::{File, FileRef, Kind, o};
use vfs::pipe::{DEFAULT_SIZE, PAGE};
use vfs::poll::PollMask;

/// Runs `test` under random schedules, and under those in which its body, its first thread or its second one is stopped once.
fn three(test: impl Fn() + Send + Sync + Copy + 'static) {
    everywhere(test);
    stop_everywhere(Stopped::Third, test);
}

/// A pipe of one page, so that it is soon full.
fn small() -> (FileRef, FileRef) {
    let (from, to) = pair(0);
    assert_eq!(pipe_of(&to).resize(PAGE), Ok(PAGE));
    (from, to)
}

/// Starts a thread that reads one byte.
fn spawn_reader(from: &FileRef) {
    let from = from.clone();
    spawn(None, move || {
        assert_eq!(read(&from, 1).map(|got| got.len()), Ok(1))
    });
}

/// One thread reads and one writes while the body closes its copies of both ends: the byte or the end comes, and no thread waits
/// for one that has gone.
#[test]
fn both_ends_close_beside_a_reader_and_a_writer() {
    three(|| {
        on(2, || {
            let (from, to) = pair(0);
            let (reads, writes) = (from.clone(), to.clone());
            spawn(None, move || {
                assert_eq!(read(&reads, 9), Ok(b"x".to_vec()));
                assert_eq!(read(&reads, 9), Ok(Vec::new()));
            });
            spawn(None, move || assert_eq!(write(&writes, b"x"), Ok(1)));
            drop(to);
            drop(from);
            wait_for_ends(2);
        });
    });
}

/// The last reader goes while two writers wait for room.
#[test]
fn two_writers_learn_that_the_reader_has_gone() {
    three(|| {
        on(2, || {
            let (from, to) = small();
            fill_but(&to, 0);
            for _ in 0..2 {
                let to = to.clone();
                spawn(None, move || assert_eq!(write(&to, b"x"), Err(BrokenPipe)));
            }
            drop((from, to));
            wait_for_ends(2);
        });
    });
}

/// The last writer goes while two readers wait for bytes.
#[test]
fn two_readers_learn_that_the_writer_has_gone() {
    three(|| {
        on(2, || {
            let (from, to) = pair(0);
            for _ in 0..2 {
                let from = from.clone();
                spawn(None, move || assert_eq!(read(&from, 9), Ok(Vec::new())));
            }
            drop((from, to));
            wait_for_ends(2);
        });
    });
}

/// One write has a byte for each of two readers, and wakes one of them.
#[test]
fn one_write_serves_two_readers() {
    three(|| {
        on(2, || {
            let (from, to) = pair(0);
            for _ in 0..2 {
                spawn_reader(&from);
            }
            assert_eq!(write(&to, b"xy"), Ok(2));
            wait_for_ends(2);
        });
    });
}

/// Two writes, each to an empty pipe perhaps, and two readers. The second wake-up may reach the reader that has its byte already.
#[test]
fn a_wake_up_that_a_reader_does_not_need_reaches_the_other() {
    three(|| {
        on(2, || {
            let (from, to) = pair(0);
            for _ in 0..2 {
                spawn_reader(&from);
            }
            assert_eq!(write(&to, b"x"), Ok(1));
            assert_eq!(write(&to, b"y"), Ok(1));
            wait_for_ends(2);
        });
    });
}

/// A thread waits, and the body's first act wakes it. It may be stopped when it has got what it waited for and is still on the
/// queue. Another one then waits there behind it, and the body's second act wakes the first, which must pass that on.
fn pass_on(
    first: impl FnOnce() + Send + 'static,
    act: impl FnOnce(),
    second: impl FnOnce() + Send + 'static,
    act_again: impl FnOnce(),
) {
    // The second thread runs here when it begins, until it sleeps.
    sched::set_affinity(&current(), &CpuMask::one(0));
    sched::yield_now();
    spawn(Some(1), first);
    nap(1);
    act();
    // The other CPU must get to its work. Each time the first thread makes one step more than before it is stopped.
    (0..3).for_each(|_| hal::cpu::relax());
    spawn(Some(0), second);
    sched::yield_now();
    act_again();
    wait_for_ends(2);
}

#[test]
fn a_reader_that_has_its_byte_passes_a_wake_up_on() {
    stop_everywhere(Stopped::Other, || {
        on(2, || {
            let (from, to) = pair(0);
            let reads = || {
                let from = from.clone();
                move || assert_eq!(read(&from, 1).map(|got| got.len()), Ok(1))
            };
            let writes = || assert_eq!(write(&to, b"x"), Ok(1));
            pass_on(reads(), writes, reads(), writes);
        });
    });
}

#[test]
fn a_writer_that_has_had_its_room_passes_a_wake_up_on() {
    stop_everywhere(Stopped::Other, || {
        on(2, || {
            let (from, to) = small();
            fill_but(&to, 0);
            let writes = || {
                let to = to.clone();
                move || assert_eq!(write(&to, &[1; PAGE]), Ok(PAGE))
            };
            let reads = || assert_eq!(read(&from, PAGE).map(|got| got.len()), Ok(PAGE));
            pass_on(writes(), reads, writes(), reads);
        });
    });
}

#[test]
fn an_open_that_has_met_a_writer_passes_a_wake_up_on() {
    stop_everywhere(Stopped::Other, || {
        on(2, || {
            let fifo = fifo();
            let from = open(&fifo, o::RDONLY | o::NONBLOCK).expect("a reader waits for nobody");
            from.set_flags(0);
            let (to, other) = (RefCell::new(None), fifo.clone());
            pass_on(
                move || assert!(open(&other, o::RDONLY).is_ok()),
                || *to.borrow_mut() = open(&fifo, o::WRONLY).ok(),
                move || assert_eq!(read(&from, 1), Ok(b"x".to_vec())),
                || assert_eq!(write(to.borrow().as_ref().expect("an end"), b"x"), Ok(1)),
            );
        });
    });
}

/// Two bytes that come one after the other: the second write finds the pipe not empty, perhaps, and wakes nobody.
#[test]
fn two_writes_serve_two_readers() {
    three(|| {
        on(2, || {
            let (from, to) = pair(0);
            let writes = to.clone();
            spawn(None, move || assert_eq!(write(&writes, b"x"), Ok(1)));
            spawn_reader(&from);
            assert_eq!(write(&to, b"y"), Ok(1));
            assert_eq!(read(&from, 1).map(|got| got.len()), Ok(1));
            wait_for_ends(2);
        });
    });
}

/// One read makes room for two writers, and wakes one of them.
#[test]
fn one_read_serves_two_writers() {
    three(|| {
        on(2, || {
            let (from, to) = pair(0);
            assert_eq!(pipe_of(&to).resize(2 * PAGE), Ok(2 * PAGE));
            fill_but(&to, 0);
            for _ in 0..2 {
                let to = to.clone();
                spawn(None, move || assert_eq!(write(&to, &[b'x'; 100]), Ok(100)));
            }
            assert_eq!(read(&from, 2 * PAGE).map(|got| got.len()), Ok(2 * PAGE));
            wait_for_ends(2);
            assert_eq!(read(&from, PAGE).map(|got| got.len()), Ok(200));
        });
    });
}

/// A writer waits for room, which comes by a larger size while a reader takes some, too.
#[test]
fn a_larger_size_beside_a_read_lets_a_writer_go_on() {
    three(|| {
        on(2, || {
            let (from, to) = small();
            fill_but(&to, 0);
            let writes = to.clone();
            spawn(None, move || {
                assert_eq!(write(&writes, &[1; PAGE]), Ok(PAGE))
            });
            let reads = from.clone();
            spawn(None, move || {
                assert_eq!(read(&reads, 10).map(|got| got.len()), Ok(10))
            });
            assert_eq!(pipe_of(&to).resize(DEFAULT_SIZE), Ok(DEFAULT_SIZE));
            wait_for_ends(2);
        });
    });
}

/// A poll for bytes beside a reader and the write of one byte: the poll sees the byte or is left with none, and the reader gets it.
#[test]
fn a_poll_beside_a_write_and_a_close_ends() {
    three(|| {
        on(2, || {
            let (from, to) = pair(0);
            let mut polled = Polled::new(&[(&from, PollMask::READ)]);
            spawn(None, move || {
                assert_eq!(polled.wait(Deadline::Never), Ok(1));
            });
            spawn(None, move || assert_eq!(read(&from, 1), Ok(b"x".to_vec())));
            assert_eq!(write(&to, b"x"), Ok(1));
            // Whether the poll saw the byte or not, it sees the hang-up.
            drop(to);
            wait_for_ends(2);
        });
    });
}

/// An open for reading waits for a writer, which comes and goes.
#[test]
fn an_open_that_waits_notices_a_short_visit() {
    everywhere(|| {
        on(2, || {
            let fifo = fifo();
            let theirs = fifo.clone();
            spawn(None, move || {
                let from = open(&theirs, o::RDONLY).expect("a writer comes");
                let got = read(&from, 9).expect("a byte or the end");
                assert!(got == b"x" || got.is_empty());
            });
            let to = open(&fifo, o::WRONLY).expect("a reader comes");
            let written = write(&to, b"x");
            assert!(written == Ok(1) || written == Err(BrokenPipe));
            drop(to);
            wait_for_ends(1);
        });
    });
}

fn counter(count: u64, semaphore: bool) -> FileRef {
    let counter = EventCounter::new(count, semaphore);
    File::open(None, Kind::Other(Box::new(counter)), o::RDWR)
}

fn add(file: &FileRef, value: u64) {
    let written = file.write(&mut IoBuf::Drain(&value.to_ne_bytes()));
    assert_eq!(written, Ok(8));
}

fn take(file: &FileRef) -> u64 {
    let mut bytes = [0; 8];
    assert_eq!(file.read(&mut IoBuf::Fill(&mut bytes)), Ok(8));
    u64::from_ne_bytes(bytes)
}

/// Two readers of a semaphore, and a write that has 1 for each.
#[test]
fn one_addition_serves_two_semaphore_readers() {
    three(|| {
        on(2, || {
            let file = counter(0, true);
            for _ in 0..2 {
                let file = file.clone();
                spawn(None, move || assert_eq!(take(&file), 1));
            }
            add(&file, 2);
            wait_for_ends(2);
        });
    });
}

/// A writer that waits for room in the count, a reader, and another writer.
#[test]
fn a_counter_loses_nothing_between_three_threads() {
    three(|| {
        on(2, || {
            let most = u64::MAX - 1;
            let file = counter(most, false);
            let sum = Arc::new(AtomicU32::new(0));
            let writes = file.clone();
            spawn(None, move || add(&writes, 5));
            let (reads, theirs) = (file.clone(), sum.clone());
            spawn(None, move || {
                let mut got = take(&reads);
                if got >= most {
                    got = got - most + take(&reads);
                }
                theirs.fetch_add(got as u32, SeqCst);
            });
            wait_for_ends(2);
            file.set_flags(o::NONBLOCK);
            let empty = file.read(&mut IoBuf::Fill(&mut [0; 8]));
            assert_eq!((empty, sum.load(SeqCst)), (Err(WouldBlock), 5));
        });
    });
}
