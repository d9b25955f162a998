//! Readiness: the events of each state of pipes and counters, and the waits of poll(2) for several of them.
#![cfg(not(shuttle))]

mod pipe_users;

use std::sync::Arc;

use hal::uio::IoBuf;
use pipe_users::threads::{MS, interrupt, nap, nap_until, spawn, wait_for_ends};
use pipe_users::{Polled, call, events, fifo, fill_but, on, open, pair, pipe_of, read, write};
use task::park::{Deadline, ParkError};
use task::time::monotonic_ns;
use vfs::eventfd::EventCounter;
use vfs::file::{File, FileRef, Kind, o};
use vfs::pipe::{PAGE, PIPE_BUF};
use vfs::poll::PollMask;
use vm_host::random::Random;

const NONE: PollMask = PollMask::NONE;
const IN: PollMask = PollMask::READ;
const OUT: PollMask = PollMask::WRITE;
const ERR: PollMask = PollMask::ERR;
const HUP: PollMask = PollMask::HUP;

fn other(ops: impl vfs::file::FileOps + 'static) -> FileRef {
    File::open(None, Kind::Other(Box::new(ops)), o::RDWR)
}

fn counter() -> FileRef {
    other(EventCounter::new(0, false))
}

fn add_one(file: &FileRef) {
    let written = file.write(&mut IoBuf::Drain(&1u64.to_ne_bytes()));
    assert_eq!(written, Ok(8));
}

#[test]
fn sets_of_events_have_linuxs_numbers() {
    // POLLIN, POLLPRI, POLLOUT, POLLERR, POLLHUP, POLLNVAL, POLLRDNORM, POLLWRNORM.
    let all = [IN.0, PollMask::PRI.0, OUT.0, ERR.0, HUP.0, PollMask::NVAL.0];
    assert_eq!(all, [0x41, 2, 0x104, 8, 16, 32]);
    assert_eq!(IN | OUT, PollMask::ALWAYS);
    assert_eq!((IN | HUP) & (IN | ERR), IN);
    assert!((IN | HUP).intersects(HUP | ERR) && !IN.intersects(HUP));
    assert!(NONE.is_empty() && !ERR.is_empty());
    let mut set = ERR;
    set |= HUP;
    assert_eq!(set, PollMask(24));
}

#[test]
fn a_reading_end_is_ready_for_bytes_and_for_the_end() {
    on(1, || {
        let (from, to) = pair(0);
        assert_eq!(events(&from), NONE);
        assert_eq!(write(&to, b"ab"), Ok(2));
        assert_eq!(events(&from), IN);
        assert_eq!(read(&from, 1).map(|part| part.len()), Ok(1));
        assert_eq!(events(&from), IN, "a byte is left");
        drop(to);
        assert_eq!(events(&from), IN | HUP);
        assert_eq!(read(&from, 9).map(|part| part.len()), Ok(1));
        assert_eq!(events(&from), HUP);
    });
}

/// A write of PIPE_BUF bytes would not wait: so poll(2) says that the pipe is writable.
#[test]
fn a_writing_end_is_ready_for_an_atomic_write() {
    on(1, || {
        for (room, ready) in [(0, NONE), (1, NONE), (PIPE_BUF - 1, NONE), (PIPE_BUF, OUT)] {
            let (from, to) = pair(0);
            assert_eq!(events(&to), OUT);
            fill_but(&to, room);
            assert_eq!(events(&to), ready, "{room} bytes of room");
            drop(from);
            assert_eq!(events(&to), ready | ERR);
        }
    });
}

#[test]
fn both_ends_of_a_fifo_report_both_sides() {
    on(1, || {
        let fifo = fifo();
        let both = open(&fifo, o::RDWR).expect("opens at once");
        assert_eq!(events(&both), OUT);
        assert_eq!(pipe_of(&both).resize(PAGE), Ok(PAGE));
        assert_eq!(write(&both, b"x"), Ok(1));
        assert_eq!(events(&both), IN, "no room for PIPE_BUF bytes");
        let to = open(&fifo, o::WRONLY).expect("there is a reader");
        drop(both);
        assert_eq!(events(&to), ERR);
    });
}

#[test]
fn files_that_are_ready_are_counted_without_a_wait() {
    on(1, || {
        let (from, to) = pair(0);
        let (empty, _to) = pair(0);
        let event = counter();
        assert_eq!(write(&to, b"x"), Ok(1));
        add_one(&event);
        let wanted = [(&from, IN), (&to, OUT), (&empty, IN), (&event, IN | OUT)];
        let mut polled = Polled::new(&wanted);
        assert_eq!(polled.wait(Deadline::Never), Ok(3));
        let found: Vec<PollMask> = polled.items.iter().map(|item| item.found).collect();
        assert_eq!(found, [IN, OUT, NONE, IN | OUT]);
        // What is not wanted is not reported.
        let mut polled = Polled::new(&[(&from, OUT), (&event, PollMask::PRI)]);
        assert_eq!(polled.wait(Deadline::now()), Err(ParkError::Timeout));
        assert_eq!(polled.looks, 1);
    });
}

#[test]
fn a_wait_without_events_ends_at_its_timeout() {
    on(2, || {
        let (from, _to) = pair(0);
        let event = counter();
        let begun = monotonic_ns();
        let until = Deadline::At(begun + 30 * MS);
        let mut polled = Polled::new(&[(&from, IN), (&event, IN)]);
        assert_eq!(polled.wait(until), Err(ParkError::Timeout));
        let took = monotonic_ns() - begun;
        assert!((30 * MS..31 * MS).contains(&took), "{took}");
        assert_eq!(polled.looks, 1, "nothing has woken it");
    });
}

/// A list of files of which one becomes ready by `happens`, and how often the list is looked through until then.
fn looks(happens: impl FnOnce() + Send + 'static, wanted: &[(&FileRef, PollMask)]) -> (usize, u32) {
    let mut polled = Polled::new(wanted);
    let (_, ready) = call(move || {
        let ready = polled.wait(Deadline::Never).expect("no signal");
        Ok((ready, polled.looks))
    });
    assert!(ready.waits());
    happens();
    ready.get().expect("a number")
}

#[test]
fn each_change_wakes_a_poll_for_it_once() {
    on(1, || {
        // Bytes.
        let (from, to) = pair(0);
        let event = counter();
        let all = [(&from, IN), (&event, IN)];
        let writes = to.clone();
        let happens = move || assert_eq!(write(&writes, b"x"), Ok(1));
        assert_eq!(looks(happens, &all), (1, 2));
        // Room: one wake-up as soon as PIPE_BUF bytes have room, and none before.
        fill_but(&to, 1);
        let reads = from.clone();
        let happens = move || {
            for part in [100, PIPE_BUF - 102, 1, 1] {
                assert_eq!(read(&reads, part).map(|got| got.len()), Ok(part));
                nap(1);
            }
        };
        assert_eq!(looks(happens, &[(&to, OUT)]), (1, 2));
        // A count.
        let adds = event.clone();
        assert_eq!(looks(move || add_one(&adds), &[(&event, IN)]), (1, 2));
    });
}

#[test]
fn the_close_of_the_other_side_wakes_a_poll() {
    on(1, || {
        let (from, to) = pair(0);
        assert_eq!(looks(move || drop(to), &[(&from, IN)]), (1, 2));
        let (from, to) = pair(0);
        fill_but(&to, 0);
        assert_eq!(looks(move || drop(from), &[(&to, OUT)]), (1, 2));
        // The events of the other side are reported even if none is wanted.
        let (from, to) = pair(0);
        assert_eq!(looks(move || drop(to), &[(&from, NONE)]), (1, 2));
    });
}

#[test]
fn all_polls_of_a_pipe_and_its_reader_are_woken() {
    on(2, || {
        let (from, to) = pair(0);
        let polls: Vec<_> = (0..5)
            .map(|_| {
                let mut polled = Polled::new(&[(&from, IN)]);
                call(move || Ok(polled.wait(Deadline::Never))).1
            })
            .collect();
        assert_eq!(write(&to, b"x"), Ok(1));
        polls
            .iter()
            .for_each(|ready| assert_eq!(ready.get(), Ok(Ok(1))));
        // A poll takes no wake-up from a reader.
        assert_eq!(read(&from, 1).map(|got| got.len()), Ok(1));
        let mut polled = Polled::new(&[(&from, IN)]);
        let (_, ready) = call(move || Ok(polled.wait(Deadline::after(20 * MS))));
        let (_, got) = call(move || read(&from, 1));
        assert_eq!(write(&to, b"y"), Ok(1));
        assert_eq!(got.get(), Ok(b"y".to_vec()));
        nap(30);
        // The byte may be gone by the time of its look.
        assert!(matches!(ready.get(), Ok(Ok(1) | Err(ParkError::Timeout))));
    });
}

#[test]
fn a_poll_of_one_pipe_many_times_is_woken() {
    on(2, || {
        let (from, to) = pair(0);
        let wanted: Vec<_> = (0..500).map(|_| (&from, IN)).collect();
        let happens = move || assert_eq!(write(&to, b"x"), Ok(1));
        assert_eq!(looks(happens, &wanted).0, 500);
    });
}

#[test]
fn a_signal_ends_a_poll() {
    on(2, || {
        let (from, _to) = pair(0);
        let mut polled = Polled::new(&[(&from, IN)]);
        let (tid, ready) = call(move || Ok(polled.wait(Deadline::Never)));
        interrupt(tid);
        assert_eq!(ready.get(), Ok(Err(ParkError::Signal)));
    });
}

/// A counter that a poll waits to write to.
#[test]
fn a_read_of_a_full_counter_wakes_a_poll_for_writing() {
    on(1, || {
        let event = other(EventCounter::new(u64::MAX - 1, true));
        let reads = event.clone();
        let happens = move || {
            let mut bytes = [0; 8];
            assert_eq!(reads.read(&mut IoBuf::Fill(&mut bytes)), Ok(8));
        };
        assert_eq!(looks(happens, &[(&event, OUT)]).0, 1);
    });
}

/// A poll that waits longer than a reader takes no wake-up from it.
#[test]
fn a_poll_and_a_reader_of_a_counter_are_both_woken() {
    on(2, || {
        let event = counter();
        let mut polled = Polled::new(&[(&event, IN)]);
        let (_, ready) = call(move || Ok(polled.wait(Deadline::after(20 * MS))));
        let reads = event.clone();
        let (_, got) = call(move || reads.read(&mut IoBuf::Fill(&mut [0; 8])));
        add_one(&event);
        assert_eq!(got.get(), Ok(8));
        nap(30);
        assert!(ready.get().is_ok());
    });
}

/// Several threads poll all pipes and take what they find, as servers do: no byte is left beside a thread that waits.
#[test]
fn pollers_that_share_pipes_leave_no_byte() {
    const PIPES: usize = 5;
    on(4, || {
        let pipes: Arc<Vec<_>> = Arc::new((0..PIPES).map(|_| pair(o::NONBLOCK)).collect());
        for _ in 0..3 {
            let pipes = pipes.clone();
            spawn(None, move || {
                loop {
                    let wanted: Vec<_> = pipes.iter().map(|(from, _)| (from, IN)).collect();
                    let mut polled = Polled::new(&wanted);
                    assert!(polled.wait(Deadline::Never).is_ok());
                    let ready = polled.items.iter().filter(|item| !item.found.is_empty());
                    for item in ready {
                        // Another thread may have been faster.
                        let got = read(&item.file, 2).unwrap_or_default();
                        if got.contains(&b'!') {
                            return;
                        }
                    }
                }
            });
        }
        let mut random = Random(0x9011);
        for _ in 0..400 {
            let (_, to) = &pipes[random.below(PIPES)];
            let bytes = vec![b'.'; 1 + random.below(5)];
            assert_eq!(write(to, &bytes), Ok(bytes.len()));
            if random.one_in(4) {
                nap_until(monotonic_ns() + random.below_u64(MS));
            }
        }
        nap(20);
        assert!(pipes.iter().all(|(from, _)| events(from) == NONE));
        for n in 0..3 {
            assert_eq!(write(&pipes[n].1, b"!"), Ok(1));
            wait_for_ends(n as u32 + 1);
        }
    });
}
