//! The sizes of pipes: F_SETPIPE_SZ, and the limits of pipe(7) on the pages of a user's pipes.
#![cfg(not(shuttle))]

mod pipe_users;

use std::sync::atomic::Ordering::SeqCst;

use cred::Charge;
use hal::uio::IoBuf;
use pipe_users::threads::{interrupt, nap};
use pipe_users::{
    AGAIN, become_user, call, events, fifo, fill_but, on, open, pair, pipe_of, read, write,
};
use task::thread::flag;
use task::{current, ids};
use vfs::error::FsError;
use vfs::file::{FileRef, o};
use vfs::pipe::{self, DEFAULT_SIZE, MAX_SIZE, OBJECTS, PAGE, Pipe, PipeEnd, USER_HARD, USER_SOFT};
use vfs::poll::PollMask;

const USER: u32 = 1000;
const MIB: usize = 1 << 20;

/// F_SETPIPE_SZ.
fn resize(end: &FileRef, bytes: usize) -> Result<usize, FsError> {
    pipe_of(end).resize(bytes)
}

#[test]
fn a_size_is_rounded_up_to_a_power_of_two_of_pages() {
    on(1, || {
        let (from, to) = pair(0);
        let sizes = [
            (0, PAGE),
            (1, PAGE),
            (PAGE, PAGE),
            (PAGE + 1, 2 * PAGE),
            (3 * PAGE, 4 * PAGE),
            (DEFAULT_SIZE - 1, DEFAULT_SIZE),
            (MIB, MIB),
        ];
        for (asked, got) in sizes {
            assert_eq!(resize(&to, asked), Ok(got), "{asked}");
            assert_eq!(pipe_of(&from).size(), got);
        }
        for asked in [(1 << 31) + 1, usize::MAX] {
            assert_eq!(resize(&to, asked), Err(FsError::Invalid));
        }
        assert_eq!(pipe_of(&from).size(), MIB);
    });
}

/// fcntl(2): EBUSY for a size that is "smaller than the amount of buffer space currently used".
#[test]
fn a_pipe_does_not_become_smaller_than_its_content() {
    on(1, || {
        let (from, to) = pair(0);
        let bytes: Vec<u8> = (0..3 * PAGE + 1).map(|n| (n / 7) as u8).collect();
        assert_eq!(write(&to, &bytes), Ok(bytes.len()));
        assert_eq!(resize(&from, 3 * PAGE), Ok(4 * PAGE), "as it is rounded");
        assert_eq!(resize(&from, 2 * PAGE), Err(FsError::Busy));
        assert_eq!(pipe_of(&to).size(), 4 * PAGE);
        assert_eq!(read(&from, PAGE + 1).map(|part| part.len()), Ok(PAGE + 1));
        assert_eq!(resize(&from, 2 * PAGE), Ok(2 * PAGE));
        to.set_flags(o::NONBLOCK);
        assert_eq!(write(&to, b"x"), Err(AGAIN), "it is full");
        assert!(read(&from, DEFAULT_SIZE).as_deref() == Ok(&bytes[PAGE + 1..]));
    });
}

/// The content lies anywhere in the ring, also across its end, when the ring is replaced.
#[test]
fn the_content_survives_a_change_of_size() {
    on(1, || {
        for at in [0, 1, 511, 512, PAGE, 3 * PAGE + 5, 4 * PAGE - 1] {
            for len in [1, 400, PAGE, 2 * PAGE + 17, 4 * PAGE] {
                let (from, to) = pair(0);
                assert_eq!(resize(&to, 4 * PAGE), Ok(4 * PAGE));
                // Two bytes more than are read at first, so that the ring does not begin anew.
                assert_eq!(write(&to, &vec![0; at.max(2)]), Ok(at.max(2)));
                let first = read(&from, at.max(2) - 1).map(|part| part.len());
                assert_eq!(first, Ok(at.max(2) - 1));
                let bytes: Vec<u8> = (1..len).map(|n| (n % 251) as u8).collect();
                assert_eq!(write(&to, &bytes), Ok(bytes.len()));
                assert_eq!(resize(&to, 16 * PAGE), Ok(16 * PAGE));
                assert_eq!(write(&to, b"end"), Ok(3));
                let all = read(&from, DEFAULT_SIZE).expect("bytes");
                assert_eq!(all.len(), bytes.len() + 4);
                assert!(all[1..].starts_with(&bytes) && all.ends_with(b"end"));
            }
        }
    });
}

#[test]
fn a_larger_pipe_wakes_a_writer_that_waits_and_a_caller_of_poll() {
    on(2, || {
        let (from, to) = pair(0);
        fill_but(&to, 0);
        let (polled, writing) = (to.clone(), to.clone());
        let (_, put) = call(move || write(&writing, &[1; 3000]));
        let (_, ready) = call(move || {
            let mut polled = pipe_users::Polled::new(&[(&polled, PollMask::WRITE)]);
            Ok(polled.wait(task::park::Deadline::Never))
        });
        assert!(put.waits() && ready.waits());
        assert_eq!(resize(&to, 2 * DEFAULT_SIZE), Ok(2 * DEFAULT_SIZE));
        assert_eq!(put.get(), Ok(3000));
        assert_eq!(ready.get(), Ok(Ok(1)));
        assert_eq!(
            read(&from, MIB).map(|all| all.len()),
            Ok(DEFAULT_SIZE + 3000)
        );
    });
}

/// pipe(7): "an unprivileged process" may not exceed pipe-max-size; CAP_SYS_RESOURCE allows it.
#[test]
fn only_the_privileged_exceed_the_largest_size() {
    on(1, || {
        MAX_SIZE.store(8 * PAGE as u64, SeqCst);
        let (_from, to) = pair(0);
        assert_eq!(pipe_of(&to).size(), DEFAULT_SIZE, "root's");
        assert_eq!(resize(&to, MIB), Ok(MIB));
        become_user(USER);
        // A size that it has, or a smaller one, needs no right.
        assert_eq!(resize(&to, MIB), Ok(MIB));
        assert_eq!(resize(&to, MIB / 2), Ok(MIB / 2));
        assert_eq!(resize(&to, MIB), Err(FsError::Perm));
        let (_from, to) = pair(0);
        assert_eq!(pipe_of(&to).size(), 8 * PAGE);
        assert_eq!(resize(&to, 16 * PAGE), Err(FsError::Perm));
        assert_eq!(resize(&to, 2 * PAGE), Ok(2 * PAGE));
        assert_eq!(resize(&to, 8 * PAGE), Ok(8 * PAGE));
    });
}

/// EPERM comes before EBUSY, and a refused change of size changes no charge.
#[test]
fn a_refused_size_is_not_charged() {
    on(1, || {
        let user = become_user(USER);
        let (_from, to) = pair(0);
        let pages = || user.held(Charge::PipePages);
        assert_eq!(pages(), 16);
        assert_eq!(write(&to, &[1; 3 * PAGE]), Ok(3 * PAGE));
        assert_eq!(resize(&to, 2 * PAGE), Err(FsError::Busy));
        assert_eq!(resize(&to, 2 * MIB), Err(FsError::Perm));
        assert_eq!(resize(&to, usize::MAX), Err(FsError::Invalid));
        assert_eq!((pages(), pipe_of(&to).size()), (16, DEFAULT_SIZE));
    });
}

#[test]
fn the_pages_of_a_pipe_are_charged_to_its_creator_until_the_last_close() {
    on(1, || {
        let user = become_user(USER);
        let pages = || user.held(Charge::PipePages);
        let (from, to) = pair(0);
        assert_eq!(pages(), 16);
        assert_eq!(resize(&to, MIB), Ok(MIB));
        assert_eq!(pages(), 256);
        assert_eq!(resize(&from, PAGE), Ok(PAGE));
        assert_eq!(pages(), 1);
        let other = become_user(USER + 1);
        assert_eq!(resize(&from, 4 * PAGE), Ok(4 * PAGE));
        assert_eq!((pages(), other.held(Charge::PipePages)), (4, 0));
        drop(from);
        assert_eq!(pages(), 4);
        drop(to);
        assert_eq!(pages(), 0);
    });
}

/// pipe(7), pipe-user-pages-soft: a pipe beyond the limit has two pages, and pipes cannot be made larger.
#[test]
fn beyond_the_soft_limit_new_pipes_have_two_pages() {
    on(1, || {
        USER_SOFT.store(40, SeqCst);
        let user = become_user(USER);
        let pages = || user.held(Charge::PipePages);
        let ends = [pair(0), pair(0), pair(0)];
        let sizes = ends.each_ref().map(|(from, _)| pipe_of(from).size());
        assert_eq!(sizes, [DEFAULT_SIZE, DEFAULT_SIZE, 2 * PAGE]);
        assert_eq!(pages(), 34);
        assert_eq!(resize(&ends[2].0, 4 * PAGE), Ok(4 * PAGE), "36 pages");
        assert_eq!(resize(&ends[2].0, 16 * PAGE), Err(FsError::Perm));
        assert_eq!(resize(&ends[2].0, 8 * PAGE), Ok(8 * PAGE), "40 pages");
        assert_eq!(resize(&ends[0].0, 32 * PAGE), Err(FsError::Perm));
        assert_eq!((pages(), pipe_of(&ends[0].0).size()), (40, DEFAULT_SIZE));
        // A pipe of two pages works.
        let (from, to) = pair(o::NONBLOCK);
        assert_eq!(write(&to, &[1; 3 * PAGE]), Ok(2 * PAGE));
        assert_eq!(events(&to), PollMask::NONE);
        assert_eq!(read(&from, MIB).map(|all| all.len()), Ok(2 * PAGE));
        assert_eq!(pages(), 42, "it has its two pages in any case");
        drop(ends);
        let (from, _to) = pair(0);
        assert_eq!(pipe_of(&from).size(), DEFAULT_SIZE, "there is room again");
    });
}

#[test]
fn beyond_the_hard_limit_there_is_no_new_pipe() {
    on(1, || {
        USER_HARD.store(20, SeqCst);
        let user = become_user(USER);
        let (from, to) = pair(0);
        let refused = pipe::open_pair(0);
        assert_eq!(refused.err(), Some(FsError::TooManyPipes));
        // open(2) reports it as ENOMEM, and the fifo is as if it had not been opened.
        let fifo = fifo();
        assert_eq!(open(&fifo, o::RDWR).err(), Some(FsError::NoMemory));
        assert_eq!(user.held(Charge::PipePages), 16);
        assert_eq!(resize(&from, 32 * PAGE), Err(FsError::Perm));
        assert_eq!(resize(&from, 4 * PAGE), Ok(4 * PAGE));
        assert!(open(&fifo, o::RDWR).is_ok(), "20 pages");
        drop((from, to));
        assert_eq!(user.held(Charge::PipePages), 0);
    });
}

#[test]
fn limits_of_0_and_the_rights_of_root_are_no_limits() {
    on(1, || {
        USER_SOFT.store(1, SeqCst);
        USER_HARD.store(1, SeqCst);
        let (from, _to) = pair(0);
        assert_eq!(resize(&from, 4 * MIB), Ok(4 * MIB));
        USER_SOFT.store(0, SeqCst);
        USER_HARD.store(0, SeqCst);
        become_user(USER);
        let many: Vec<_> = (0..100).map(|_| pair(0)).collect();
        assert!(
            many.iter()
                .all(|(from, _)| pipe_of(from).size() == DEFAULT_SIZE)
        );
    });
}

/// The bytes of a pipe are charged as the memory of its creator while they are in it.
#[test]
fn the_memory_of_a_pipe_is_charged_and_given_back() {
    on(1, || {
        let user = become_user(USER);
        let held = || user.held(Charge::Memory) as usize;
        let fifo = fifo();
        let end = PipeEnd::new(fifo.clone(), true, true).expect("a first open");
        assert_eq!(held(), OBJECTS);
        drop(end);
        assert_eq!(held(), 0);
        let (from, to) = pair(0);
        let empty = held();
        assert!(empty >= OBJECTS);
        assert_eq!(write(&to, &[1; 100]), Ok(100));
        assert!((100..PAGE).contains(&(held() - empty)), "a small buffer");
        fill_but(&to, 100);
        assert!(held() - empty >= DEFAULT_SIZE);
        assert_eq!(
            read(&from, DEFAULT_SIZE).map(|all| all.len()),
            Ok(DEFAULT_SIZE)
        );
        assert!(held() - empty < 3 * PAGE, "an empty pipe keeps two pages");
        fill_but(&to, 0);
        drop(from);
        assert!(held() >= DEFAULT_SIZE);
        drop(to);
        // The open files are charged until they are freed.
        for _ in 0..5 {
            nap(1);
            mem::epoch().reclaim_all(&mut ksync::pin());
        }
        assert_eq!(held(), 0);
    });
}

/// What a pipe allocates is charged at once, also by a call that fails, and by one that changes its size alone.
#[test]
fn buffers_are_charged_when_nothing_is_written() {
    on(1, || {
        let user = become_user(USER);
        let held = || user.held(Charge::Memory) as usize;
        let (_from, to) = pair(0);
        let empty = held();
        let mut nowhere = IoBuf::user(0x10_0000, 2 * PAGE);
        assert_eq!(to.write(&mut nowhere), Err(FsError::Fault));
        let one_page = held() - empty;
        assert!(
            (PAGE..2 * PAGE).contains(&one_page),
            "a page, and the list of pages"
        );
        assert_eq!(resize(&to, MIB), Ok(MIB));
        assert!(held() - empty > MIB / PAGE * 8, "the list is longer");
        assert_eq!(resize(&to, PAGE), Ok(PAGE));
        assert!(held() - empty < 100, "no page, and a short list");
    });
}

/// As for a fifo, the charge is that of the user of the first open, and ends with the last close.
#[test]
fn a_fifo_is_charged_to_its_first_opener_each_time() {
    on(1, || {
        let fifo = fifo();
        let (first, second) = (become_user(USER), become_user(USER + 1));
        let both = open(&fifo, o::RDWR).expect("opens at once");
        let held = || [first, second].map(|user| user.held(Charge::PipePages));
        assert_eq!(held(), [0, 16]);
        become_user(USER);
        let more = open(&fifo, o::RDWR).expect("opens at once");
        assert_eq!(held(), [0, 16]);
        drop(both);
        assert_eq!(held(), [0, 16]);
        drop(more);
        assert_eq!(held(), [0, 0]);
        let _again = open(&fifo, o::RDWR).expect("opens at once");
        assert_eq!(held(), [16, 0]);
    });
}

#[test]
fn a_pipe_belongs_to_its_creator() {
    on(1, || {
        become_user(USER);
        let (from, _to) = pair(0);
        become_user(USER + 1);
        let attr = from.attr().expect("a pipe");
        assert_eq!((attr.uid, attr.gid), (USER, USER));
        // The next pipe, perhaps the same object, is another user's.
        drop((from, _to));
        let (from, _to) = pair(0);
        assert_eq!(pipe_of(&from).owner(), (USER + 1, USER + 1));
    });
}

/// A thread that is killed while it writes leaves the pipe to the others as it is.
#[test]
fn a_killed_writer_leaves_its_part_to_the_reader() {
    on(2, || {
        let (from, to) = pair(0);
        let theirs = to.clone();
        let (tid, put) = call(move || {
            let written = write(&theirs, &[5; 100_000]);
            assert!(current().has(flag::KILLED) || written.is_err());
            written
        });
        ids::hold_thread(tid).expect("it waits").set(flag::KILLED);
        interrupt(tid);
        assert_eq!(put.get(), Ok(DEFAULT_SIZE));
        drop(to);
        let all = read(&from, 2 * DEFAULT_SIZE).expect("bytes");
        assert!(all == [5; DEFAULT_SIZE]);
        assert_eq!(read(&from, 1), Ok(Vec::new()));
    });
}

#[test]
fn an_unopened_pipe_has_the_usual_size() {
    on(1, || {
        let fifo = Pipe::create().expect("memory");
        assert_eq!((fifo.size(), fifo.owner()), (DEFAULT_SIZE, (0, 0)));
    });
}
