//! Opens of fifos: which of them wait for the other side, fail, or see its end.
#![cfg(not(shuttle))]

mod pipe_users;

use pipe_users::threads::{interrupt, nap, spawn, wait_for_ends};
use pipe_users::{AGAIN, call, events, fifo, on, open, read, write};
use vfs::error::FsError::{BrokenPipe, Interrupted, NoDevAddr};
use vfs::file::o;
use vfs::pipe::reopen;
use vfs::poll::PollMask;
use vm_host::random::Random;

const LATER: u32 = o::NONBLOCK;

/// fifo(7): "a process can open a FIFO in nonblocking mode. In this case, opening for read-only succeeds even if no one has
/// opened on the write side yet and opening for write-only fails with ENXIO".
#[test]
fn a_nonblocking_open_does_not_wait() {
    on(1, || {
        let fifo = fifo();
        assert_eq!(open(&fifo, o::WRONLY | LATER).err(), Some(NoDevAddr));
        let from = open(&fifo, o::RDONLY | LATER).expect("opens at once");
        let to = open(&fifo, o::WRONLY | LATER).expect("there is a reader");
        assert_eq!(read(&from, 1), Err(AGAIN));
        assert_eq!(write(&to, b"x"), Ok(1));
        assert_eq!(read(&from, 9), Ok(b"x".to_vec()));
        drop(from);
        assert_eq!(open(&fifo, o::WRONLY | LATER).err(), Some(NoDevAddr));
        assert_eq!(write(&to, b"x"), Err(BrokenPipe));
    });
}

#[test]
fn a_failed_open_leaves_no_writer_behind() {
    on(1, || {
        let fifo = fifo();
        assert_eq!(open(&fifo, o::WRONLY | LATER).err(), Some(NoDevAddr));
        let from = open(&fifo, o::RDONLY | LATER).expect("opens at once");
        assert_eq!(read(&from, 1), Ok(Vec::new()), "nobody writes");
    });
}

/// fifo(7): "Under Linux, opening a FIFO for read and write will succeed both in blocking and nonblocking mode."
#[test]
fn an_open_for_both_does_not_wait_and_is_its_own_other_side() {
    on(2, || {
        let fifo = fifo();
        for flags in [o::RDWR, o::RDWR | LATER] {
            let both = open(&fifo, flags).expect("opens at once");
            assert_eq!(events(&both), PollMask::WRITE);
            assert_eq!(write(&both, b"self"), Ok(4));
            assert_eq!(events(&both), PollMask::READ | PollMask::WRITE);
            assert_eq!(read(&both, 9), Ok(b"self".to_vec()));
            // It is a writer, so there is no end.
            both.set_flags(LATER);
            assert_eq!(read(&both, 9), Err(AGAIN));
        }
    });
}

#[test]
fn an_open_for_reading_waits_for_a_writer() {
    on(2, || {
        for writer in [o::WRONLY, o::WRONLY | LATER, o::RDWR] {
            let fifo = fifo();
            let theirs = fifo.clone();
            let (_, reader) = call(move || open(&theirs, o::RDONLY));
            nap(20);
            assert!(reader.waits());
            let to = open(&fifo, writer).expect("a reader waits");
            let from = reader.get().expect("a writer has come");
            assert_eq!(write(&to, b"hello"), Ok(5));
            assert_eq!(read(&from, 9), Ok(b"hello".to_vec()));
        }
    });
}

#[test]
fn an_open_for_writing_waits_for_a_reader() {
    on(2, || {
        for reader in [o::RDONLY, o::RDONLY | LATER, o::RDWR] {
            let fifo = fifo();
            let theirs = fifo.clone();
            let (_, writer) = call(move || open(&theirs, o::WRONLY));
            nap(20);
            assert!(writer.waits());
            let _from = open(&fifo, reader).expect("a writer waits");
            assert!(writer.get().is_ok());
        }
    });
}

/// The other side may come and go before the thread that waits gets the CPU.
#[test]
fn an_open_that_waits_notices_an_other_side_that_has_gone_again() {
    on(1, || {
        let fifo = fifo();
        let theirs = fifo.clone();
        let (_, reader) = call(move || open(&theirs, o::RDONLY));
        let to = open(&fifo, o::WRONLY | LATER).expect("a reader waits");
        assert_eq!(write(&to, b"bye"), Ok(3));
        drop(to);
        let from = reader.get().expect("a writer has come");
        assert_eq!(read(&from, 9), Ok(b"bye".to_vec()));
        assert_eq!(read(&from, 9), Ok(Vec::new()));
    });
}

#[test]
fn all_opens_that_wait_are_woken_by_one_other_side() {
    on(2, || {
        for (waits, comes) in [(o::RDONLY, o::WRONLY), (o::WRONLY, o::RDONLY)] {
            let fifo = fifo();
            let opens: Vec<_> = (0..4)
                .map(|_| {
                    let fifo = fifo.clone();
                    call(move || open(&fifo, waits)).1
                })
                .collect();
            assert!(opens.iter().all(|open| open.waits()));
            let _other = open(&fifo, comes).expect("the others wait");
            assert!(opens.iter().all(|open| open.get().is_ok()));
        }
    });
}

#[test]
fn a_signal_ends_an_open_that_waits() {
    on(2, || {
        let fifo = fifo();
        let theirs = fifo.clone();
        let (tid, reader) = call(move || open(&theirs, o::RDONLY));
        interrupt(tid);
        assert_eq!(reader.get().err(), Some(Interrupted));
        // It is no reader any more.
        assert_eq!(open(&fifo, o::WRONLY | LATER).err(), Some(NoDevAddr));
        let theirs = fifo.clone();
        let (tid, writer) = call(move || open(&theirs, o::WRONLY));
        interrupt(tid);
        assert_eq!(writer.get().err(), Some(Interrupted));
        let from = open(&fifo, o::RDONLY | LATER).expect("opens at once");
        assert_eq!(read(&from, 1), Ok(Vec::new()), "nor a writer");
    });
}

/// poll(2) on Linux reports no hang-up to a reader that came before the first writer.
#[test]
fn a_reader_that_came_first_sees_a_hang_up_only_after_a_writer() {
    on(1, || {
        let fifo = fifo();
        let from = open(&fifo, o::RDONLY | LATER).expect("opens at once");
        assert_eq!(events(&from), PollMask::NONE);
        assert_eq!(
            read(&from, 1),
            Ok(Vec::new()),
            "a read sees the end, though"
        );
        let to = open(&fifo, o::WRONLY).expect("there is a reader");
        assert_eq!(events(&from), PollMask::NONE);
        assert_eq!(write(&to, b"x"), Ok(1));
        assert_eq!(events(&from), PollMask::READ);
        drop(to);
        assert_eq!(events(&from), PollMask::READ | PollMask::HUP);
        // One that comes now has seen no writer.
        let late = open(&fifo, o::RDONLY | LATER).expect("opens at once");
        assert_eq!(events(&late), PollMask::READ);
        let _to = open(&fifo, o::WRONLY).expect("there is a reader");
        assert_eq!(events(&from), PollMask::READ);
    });
}

#[test]
fn a_new_writer_ends_the_end() {
    on(1, || {
        let fifo = fifo();
        let from = open(&fifo, o::RDONLY | LATER).expect("opens at once");
        for _ in 0..3 {
            assert_eq!(read(&from, 1), Ok(Vec::new()));
            let to = open(&fifo, o::WRONLY).expect("there is a reader");
            assert_eq!(read(&from, 1), Err(AGAIN));
            drop(to);
        }
    });
}

#[test]
fn bytes_outlive_their_writer_but_not_the_last_close() {
    on(1, || {
        let fifo = fifo();
        let from = open(&fifo, o::RDONLY | LATER).expect("opens at once");
        let to = open(&fifo, o::WRONLY).expect("there is a reader");
        assert_eq!(write(&to, b"kept"), Ok(4));
        drop(to);
        let second = open(&fifo, o::RDONLY | LATER).expect("opens at once");
        drop(from);
        assert_eq!(read(&second, 2), Ok(b"ke".to_vec()));
        drop(second);
        let third = open(&fifo, o::RDWR).expect("opens at once");
        assert_eq!(events(&third), PollMask::WRITE, "it is empty");
    });
}

/// An open through /proc/PID/fd does not wait, whatever the other side.
#[test]
fn a_reopened_pipe_does_not_wait_for_the_other_side() {
    on(1, || {
        let (from, to) = pipe_users::pair(0);
        let pipe = pipe_users::pipe_of(&from).clone();
        drop(to);
        let open = |flags| {
            let end = reopen(pipe.clone(), flags).expect("memory");
            vfs::file::File::open(None, vfs::file::Kind::Pipe(end), flags)
        };
        assert_eq!(read(&from, 1), Ok(Vec::new()));
        let writer = open(o::WRONLY);
        assert_eq!(write(&writer, b"on"), Ok(2));
        drop(from);
        let reader = open(o::RDONLY);
        assert_eq!(read(&reader, 5), Ok(b"on".to_vec()));
        drop((reader, writer));
        let both = open(o::RDWR);
        assert_eq!(events(&both), PollMask::WRITE);
    });
}

/// Threads open the fifo for reading and for writing again and again, and close it after a byte: each open finds its other side.
#[test]
fn as_many_readers_as_writers_find_each_other() {
    const EACH: u32 = 50;
    on(4, || {
        let fifo = fifo();
        for n in 0..4 {
            let fifo = fifo.clone();
            spawn(None, move || {
                let mut random = Random(0xf1f0 + n);
                for _ in 0..EACH {
                    if n < 2 {
                        let from = open(&fifo, o::RDONLY).expect("a writer comes");
                        assert!(read(&from, 1).is_ok());
                    } else if let Ok(to) = open(&fifo, o::WRONLY) {
                        let written = write(&to, b"x");
                        assert!(written == Ok(1) || written == Err(BrokenPipe));
                    }
                    if random.one_in(3) {
                        nap(1);
                    }
                }
            });
        }
        // One side may have more opens left than the other, so the test takes part in both.
        while pipe_users::threads::ended() < 4 {
            let both = open(&fifo, o::RDWR).expect("opens at once");
            nap(1);
            drop(both);
            // A thread that waits to read may see the end now.
            nap(1);
        }
        wait_for_ends(4);
    });
}
