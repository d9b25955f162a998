//! The two ends of a pipe: what reads and writes do, wait for and leave to others, and what a close does to them.
#![cfg(not(shuttle))]

mod pipe_users;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use hal::uio::IoBuf;
use pipe_users::threads::{interrupt, kill, nap, spawn, take_signal, wait_for_ends};
use pipe_users::{AGAIN, broken, call, events, fill_but, on, pair, pipe_of, read, write};
use vfs::error::FsError::{self, BrokenPipe, Interrupted};
use vfs::file::{FileRef, Whence, o};
use vfs::pipe::{self, DEFAULT_SIZE, PAGE, PIPE_BUF};
use vfs::poll::PollMask;
use vm_host::random::Random;

/// Sets or clears O_NONBLOCK.
fn nonblocking(file: &FileRef, on: bool) {
    file.set_flags(if on { o::NONBLOCK } else { 0 });
}

#[test]
fn a_read_takes_what_is_there_and_does_not_wait_for_more() {
    on(1, || {
        let (from, to) = pair(0);
        assert_eq!(write(&to, b"abc"), Ok(3));
        assert_eq!(read(&from, 100), Ok(b"abc".to_vec()));
        assert_eq!(write(&to, b"defg"), Ok(4));
        assert_eq!(read(&from, 1), Ok(b"d".to_vec()));
        assert_eq!(read(&from, 2), Ok(b"ef".to_vec()));
        assert_eq!(read(&from, 2), Ok(b"g".to_vec()));
    });
}

#[test]
fn a_read_of_an_empty_pipe_waits_for_a_byte() {
    on(2, || {
        let (from, to) = pair(0);
        let (_, got) = call(move || read(&from, 10));
        nap(100);
        assert!(got.waits());
        assert_eq!(write(&to, b"x"), Ok(1));
        assert_eq!(got.get(), Ok(b"x".to_vec()));
    });
}

#[test]
fn a_write_to_a_full_pipe_waits_until_all_is_written() {
    on(2, || {
        let (from, to) = pair(0);
        let bytes: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        let theirs = bytes.clone();
        let (_, put) = call(move || write(&to, &theirs));
        let mut all = Vec::new();
        while all.len() < bytes.len() {
            assert!(put.waits() || bytes.len() - all.len() <= DEFAULT_SIZE);
            all.extend(read(&from, 7001).expect("bytes"));
            nap(1);
        }
        assert_eq!(put.get(), Ok(bytes.len()));
        assert!(all == bytes);
    });
}

#[test]
fn calls_of_no_bytes_neither_wait_nor_fail() {
    on(1, || {
        let (from, to) = pair(0);
        assert_eq!(read(&from, 0), Ok(Vec::new()));
        fill_but(&to, 0);
        assert_eq!(write(&to, b""), Ok(0));
        drop(from);
        assert_eq!(write(&to, b""), Ok(0));
        assert_eq!(broken(), 0);
    });
}

/// pipe(7): with O_NONBLOCK and n <= PIPE_BUF, "if there is not room to write n bytes immediately, write(2) fails with EAGAIN".
#[test]
fn a_small_nonblocking_write_is_whole_or_fails() {
    on(1, || {
        for (room, len) in [(0, 1), (100, 101), (PIPE_BUF - 1, PIPE_BUF), (1, PIPE_BUF)] {
            let (from, to) = pair(0);
            nonblocking(&to, true);
            fill_but(&to, room);
            assert_eq!(write(&to, &vec![1; len]), Err(AGAIN), "{len} in {room}");
            assert_eq!(write(&to, &vec![1; room]), Ok(room));
            let all = read(&from, 2 * DEFAULT_SIZE).map(|bytes| bytes.len());
            assert_eq!(all, Ok(DEFAULT_SIZE));
        }
    });
}

/// pipe(7): with O_NONBLOCK and n > PIPE_BUF, "from 1 to n bytes may be written".
#[test]
fn a_large_nonblocking_write_writes_what_there_is_room_for() {
    on(1, || {
        for room in [1, 100, PIPE_BUF - 1, PIPE_BUF, PIPE_BUF + 1] {
            let (_from, to) = pair(0);
            nonblocking(&to, true);
            fill_but(&to, room);
            let len = PIPE_BUF + 1;
            assert_eq!(write(&to, &vec![1; len]), Ok(room.min(len)));
            assert_eq!(write(&to, &vec![1; len]), Err(AGAIN));
        }
    });
}

#[test]
fn a_small_write_waits_until_it_fits_as_a_whole() {
    on(2, || {
        let (from, to) = pair(0);
        fill_but(&to, 100);
        let (_, put) = call(move || write(&to, &[7; 200]));
        assert_eq!(read(&from, 50).map(|bytes| bytes.len()), Ok(50));
        nap(1);
        assert!(put.waits(), "150 bytes have room");
        let most = read(&from, PIPE_BUF).expect("bytes");
        assert_eq!(most.len(), PIPE_BUF);
        assert_eq!(put.get(), Ok(200));
        let rest = read(&from, DEFAULT_SIZE).expect("bytes");
        assert!(rest.ends_with(&[7; 200]) && !rest.ends_with(&[7; 201]));
    });
}

#[test]
fn o_nonblock_can_be_set_and_cleared_after_the_open() {
    on(2, || {
        let (from, to) = pair(o::NONBLOCK);
        assert_eq!(read(&from, 1), Err(AGAIN));
        nonblocking(&from, false);
        let waiting = from.clone();
        let (_, got) = call(move || read(&waiting, 1));
        assert!(got.waits());
        // The flag is looked at when a call begins.
        nonblocking(&from, true);
        assert!(got.waits());
        assert_eq!(write(&to, b"y"), Ok(1));
        assert_eq!(got.get(), Ok(b"y".to_vec()));
        assert_eq!(read(&from, 1), Err(AGAIN));
    });
}

#[test]
fn an_end_transfers_in_one_direction_and_has_no_position() {
    on(1, || {
        let (from, to) = pair(0);
        assert_eq!(read(&to, 1), Err(FsError::BadFd));
        assert_eq!(write(&from, b"x"), Err(FsError::BadFd));
        for end in [&from, &to] {
            assert_eq!(end.seek(0, Whence::Cur), Err(FsError::NotSeekable));
        }
        let mut byte = [0];
        let read = from.read_at(&mut IoBuf::Fill(&mut byte), 0);
        assert_eq!(read, Err(FsError::NotSeekable));
        let written = to.write_at(&mut IoBuf::Drain(b"x"), 0);
        assert_eq!(written, Err(FsError::NotSeekable));
    });
}

#[test]
fn the_end_comes_after_the_bytes() {
    on(1, || {
        let (from, to) = pair(0);
        assert_eq!(write(&to, b"last"), Ok(4));
        drop(to);
        assert_eq!(read(&from, 3), Ok(b"las".to_vec()));
        assert_eq!(read(&from, 3), Ok(b"t".to_vec()));
        for _ in 0..2 {
            assert_eq!(read(&from, 3), Ok(Vec::new()));
        }
    });
}

#[test]
fn all_readers_that_wait_learn_that_the_last_writer_has_gone() {
    on(2, || {
        let (from, to) = pair(0);
        let second = to.clone();
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let from = from.clone();
                call(move || read(&from, 10)).1
            })
            .collect();
        drop(to);
        nap(1);
        assert!(readers.iter().all(|got| got.waits()), "a writer is left");
        drop(second);
        readers
            .iter()
            .for_each(|got| assert_eq!(got.get(), Ok(Vec::new())));
    });
}

#[test]
fn all_writers_that_wait_learn_that_the_last_reader_has_gone() {
    on(2, || {
        let (from, to) = pair(0);
        let second = from.clone();
        fill_but(&to, 10);
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let to = to.clone();
                call(move || write(&to, &[1; 100])).1
            })
            .collect();
        drop(from);
        nap(1);
        assert!(writers.iter().all(|put| put.waits()), "a reader is left");
        drop(second);
        writers
            .iter()
            .for_each(|put| assert_eq!(put.get(), Err(BrokenPipe)));
    });
}

/// A failed write leaves the signal to its caller; one that has written something succeeds, and sends the signal itself.
#[test]
fn a_write_that_loses_its_readers_midway_tells_its_count_and_sends_the_signal() {
    on(2, || {
        let (from, to) = pair(0);
        let again = to.clone();
        let (_, put) = call(move || write(&to, &[1; 100_000]));
        assert!(put.waits());
        assert_eq!(broken(), 0);
        drop(from);
        assert_eq!(put.get(), Ok(DEFAULT_SIZE));
        assert_eq!(broken(), 1);
        assert_eq!(write(&again, b"x"), Err(BrokenPipe));
        nonblocking(&again, true);
        assert_eq!(write(&again, b"x"), Err(BrokenPipe));
        assert_eq!(broken(), 1);
    });
}

#[test]
fn a_signal_ends_a_read_that_waits() {
    on(2, || {
        let signals: [fn(u32); 2] = [interrupt, kill];
        for send in signals {
            let (from, to) = pair(0);
            let waiting = from.clone();
            let (tid, got) = call(move || read(&waiting, 10));
            send(tid);
            assert_eq!(got.get(), Err(Interrupted));
            // The byte that comes later is for the next read.
            assert_eq!(write(&to, b"z"), Ok(1));
            assert_eq!(read(&from, 10), Ok(b"z".to_vec()));
        }
    });
}

#[test]
fn a_signal_ends_a_write_that_waits_and_what_was_written_counts() {
    on(2, || {
        let (from, to) = pair(0);
        let first = to.clone();
        let (tid, put) = call(move || {
            let written = write(&first, &[1; 70_000]);
            take_signal();
            written
        });
        interrupt(tid);
        assert_eq!(put.get(), Ok(DEFAULT_SIZE));
        let (tid, put) = call(move || write(&to, b"none of it"));
        interrupt(tid);
        assert_eq!(put.get(), Err(Interrupted));
        let all = read(&from, 2 * DEFAULT_SIZE).map(|bytes| bytes.len());
        assert_eq!(all, Ok(DEFAULT_SIZE));
    });
}

#[test]
fn a_reader_that_leaves_bytes_wakes_the_next_one() {
    on(2, || {
        let (from, to) = pair(0);
        let readers: Vec<_> = (0..5)
            .map(|_| {
                let from = from.clone();
                call(move || read(&from, 2)).1
            })
            .collect();
        assert_eq!(write(&to, b"0123456789"), Ok(10));
        let mut all: Vec<_> = readers
            .iter()
            .map(|got| got.get().expect("bytes"))
            .collect();
        all.sort();
        assert_eq!(all.concat(), b"0123456789");
    });
}

#[test]
fn a_writer_that_leaves_room_wakes_the_next_one() {
    on(2, || {
        let (from, to) = pair(0);
        fill_but(&to, 0);
        let writers: Vec<_> = (0..5)
            .map(|n| {
                let to = to.clone();
                call(move || write(&to, &[b'0' + n; 1000])).1
            })
            .collect();
        // Once the pipe is empty, no other read wakes a writer.
        let most = read(&from, DEFAULT_SIZE).map(|bytes| bytes.len());
        assert_eq!(most, Ok(DEFAULT_SIZE));
        writers
            .iter()
            .for_each(|put| assert_eq!(put.get(), Ok(1000)));
        let all = read(&from, DEFAULT_SIZE).expect("bytes");
        assert_eq!(all.len(), 5000);
        assert!(all.chunks(1000).all(|part| part == [part[0]; 1000]));
    });
}

/// A read into memory that cannot be written takes no byte: the next reader gets it, without a further write.
#[test]
fn a_reader_that_faults_leaves_the_bytes_to_the_next_one() {
    on(2, || {
        let (from, to) = pair(0);
        let faulty = from.clone();
        // Memory that the transfer may only read stands for a page that is not there.
        let (_, fault) = call(move || faulty.read(&mut IoBuf::Drain(b"ten bytes.")));
        let (_, got) = call(move || read(&from, 10));
        assert_eq!(write(&to, b"x"), Ok(1));
        assert_eq!(fault.get(), Err(FsError::Fault));
        assert_eq!(got.get(), Ok(b"x".to_vec()));
    });
}

#[test]
fn a_writer_that_faults_leaves_the_room_to_the_next_one() {
    on(2, || {
        let (from, to) = pair(0);
        fill_but(&to, 0);
        let faulty = to.clone();
        let (_, fault) = call(move || faulty.write(&mut IoBuf::Fill(&mut [0; 10])));
        let (_, put) = call(move || write(&to, b"y"));
        let most = read(&from, DEFAULT_SIZE).map(|bytes| bytes.len());
        assert_eq!(most, Ok(DEFAULT_SIZE));
        assert_eq!(fault.get(), Err(FsError::Fault));
        assert_eq!(put.get(), Ok(1));
        assert_eq!(read(&from, 10), Ok(b"y".to_vec()));
    });
}

/// The last close puts the pipe into a cache, from which the next one is taken.
#[test]
fn a_new_pipe_has_nothing_of_a_closed_one() {
    on(1, || {
        let mut inos = Vec::new();
        for n in 0..40 {
            let (from, to) = pair(0);
            let ino = pipe_of(&from).ino();
            assert!(!inos.contains(&ino) && pipe_of(&to).ino() == ino);
            inos.push(ino);
            assert_eq!(pipe_of(&to).size(), DEFAULT_SIZE);
            assert_eq!(events(&from), PollMask::NONE);
            assert_eq!(events(&to), PollMask::WRITE);
            nonblocking(&from, true);
            assert_eq!(read(&from, 10), Err(AGAIN));
            // Some of them are small and some large when they are closed, and some are kept meanwhile.
            assert_eq!(pipe_of(&to).resize(PAGE << (n % 3)), Ok(PAGE << (n % 3)));
            assert_eq!(write(&to, &vec![9; 1 << (n % 12)]), Ok(1 << (n % 12)));
            if n == 20 {
                pipe::drain();
            }
        }
    });
}

#[test]
fn a_pipe_has_the_attributes_of_a_fifo() {
    on(1, || {
        let (from, to) = pair(0);
        let (a, b) = (from.attr().expect("a pipe"), to.attr().expect("a pipe"));
        assert_eq!((a.mode, a.nlink, a.size), (0o10600, 1, 0));
        assert_eq!(a.ino, b.ino);
        let (other, _to) = pair(0);
        assert_ne!(other.attr().expect("a pipe").ino, a.ino);
    });
}

/// A pipe and a queue of bytes: nonblocking reads, writes and resizes at random.
struct Both {
    from: FileRef,
    to: FileRef,
    queue: VecDeque<u8>,
    limit: usize,
    next: u8,
}

impl Both {
    fn write(&mut self, len: usize) {
        let bytes: Vec<u8> = (0..len).map(|n| self.next.wrapping_add(n as u8)).collect();
        let room = self.limit - self.queue.len();
        let expected = match len {
            0 => Ok(0),
            _ if len <= PIPE_BUF && len > room || room == 0 => Err(AGAIN),
            _ => Ok(len.min(room)),
        };
        assert_eq!(write(&self.to, &bytes), expected, "{len} bytes");
        if let Ok(n) = expected {
            self.queue.extend(&bytes[..n]);
            self.next = self.next.wrapping_add(n as u8);
        }
    }

    fn read(&mut self, len: usize) {
        let n = len.min(self.queue.len());
        let expected = match self.queue.is_empty() && len > 0 {
            true => Err(AGAIN),
            false => Ok(self.queue.drain(..n).collect::<Vec<u8>>()),
        };
        assert!(read(&self.from, len) == expected, "{len} bytes");
    }

    fn resize(&mut self, bytes: usize) {
        let size = bytes.max(PAGE).next_power_of_two();
        let expected = match size < self.queue.len() {
            true => Err(FsError::Busy),
            false => Ok(size),
        };
        assert_eq!(pipe_of(&self.to).resize(bytes), expected);
        self.limit = expected.unwrap_or(self.limit);
    }

    fn same(&self) {
        let readable = match self.queue.len() {
            0 => PollMask::NONE,
            _ => PollMask::READ,
        };
        assert_eq!(events(&self.from), readable);
        let writable = match self.limit - self.queue.len() < PIPE_BUF {
            true => PollMask::NONE,
            false => PollMask::WRITE,
        };
        assert_eq!(events(&self.to), writable);
        assert_eq!(pipe_of(&self.from).size(), self.limit);
    }
}

#[test]
fn a_pipe_does_what_a_queue_of_bytes_does() {
    on(1, || {
        let mut random = Random(0x919e);
        for _ in 0..20 {
            let (from, to) = pair(o::NONBLOCK);
            let mut both = Both {
                from,
                to,
                queue: VecDeque::new(),
                limit: DEFAULT_SIZE,
                next: 0,
            };
            for _ in 0..400 {
                match random.below_u64(8) {
                    0..=3 => both.write(random.scaled(0..16) as usize),
                    7 => both.resize(random.scaled(0..18) as usize),
                    _ => both.read(random.scaled(0..17) as usize),
                }
                both.same();
            }
        }
    });
}

/// The bytes of a message: the writer, the number of the message, its length, and a filler that depends on all of them.
fn message(writer: u8, number: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![writer];
    bytes.extend(number.to_le_bytes());
    bytes.extend((len as u16).to_le_bytes());
    let filler = writer.wrapping_mul(31).wrapping_add(number as u8);
    bytes.resize(len, filler);
    bytes
}

/// Takes the first message off, if it is there as a whole. Checks it, and returns its writer and number.
fn take_message(bytes: &mut Vec<u8>) -> Option<(u8, u16)> {
    let head = bytes.first_chunk::<5>()?;
    let (writer, number) = (head[0], u16::from_le_bytes([head[1], head[2]]));
    let len = usize::from(u16::from_le_bytes([head[3], head[4]]));
    if bytes.len() < len {
        return None;
    }
    let rest = bytes.split_off(len);
    let taken = core::mem::replace(bytes, rest);
    assert!(taken == message(writer, number, len), "mixed with another");
    Some((writer, number))
}

/// Several threads write messages of up to PIPE_BUF bytes while another one changes the size of the pipe. The reader finds each
/// message whole, and those of each writer in order.
#[test]
fn messages_are_whole_and_in_order_whatever_the_size_of_the_pipe() {
    const WRITERS: u8 = 4;
    const EACH: u16 = 150;
    on(4, || {
        let (from, to) = pair(0);
        for writer in 0..WRITERS {
            let to = to.clone();
            spawn(None, move || {
                let mut random = Random(0x3e55 + u64::from(writer));
                for number in 0..EACH {
                    let len = 5 + random.below(PIPE_BUF - 4);
                    assert_eq!(write(&to, &message(writer, number, len)), Ok(len));
                    if random.one_in(20) {
                        nap(1);
                    }
                }
            });
        }
        drop(to);
        let (sized, stop) = (from.clone(), Arc::new(AtomicBool::new(false)));
        let until = stop.clone();
        spawn(None, move || {
            let mut random = Random(0x512e);
            while !until.load(SeqCst) {
                let size = PAGE << random.below_u64(6);
                let resized = pipe_of(&sized).resize(size);
                assert!(resized == Ok(size) || resized == Err(FsError::Busy));
                nap(1);
            }
        });
        let mut random = Random(0x4ead);
        let (mut bytes, mut next) = (Vec::new(), [0; WRITERS as usize]);
        loop {
            let more = read(&from, 1 + random.below(9000)).expect("bytes or the end");
            if more.is_empty() {
                break;
            }
            bytes.extend(more);
            while let Some((writer, number)) = take_message(&mut bytes) {
                assert_eq!(number, next[usize::from(writer)]);
                next[usize::from(writer)] += 1;
            }
        }
        assert_eq!((bytes.len(), next), (0, [EACH; WRITERS as usize]));
        stop.store(true, SeqCst);
        wait_for_ends(u32::from(WRITERS) + 1);
    });
}

/// The number of bytes that were transferred, and their sum.
#[derive(Default)]
struct Total {
    bytes: AtomicU64,
    sum: AtomicU64,
}

impl Total {
    fn add(&self, bytes: &[u8]) {
        let sum = bytes.iter().map(|&byte| u64::from(byte)).sum();
        self.bytes.fetch_add(bytes.len() as u64, SeqCst);
        self.sum.fetch_add(sum, SeqCst);
    }

    fn get(&self) -> (u64, u64) {
        (self.bytes.load(SeqCst), self.sum.load(SeqCst))
    }
}

/// Four readers and four writers of all sizes: each byte that a write has counted is read once.
#[test]
fn each_byte_that_is_counted_is_read_once() {
    on(4, || {
        let (from, to) = pair(0);
        let (taken, put) = (Arc::new(Total::default()), Arc::new(Total::default()));
        for n in 0..4 {
            let (to, put) = (to.clone(), put.clone());
            spawn(None, move || {
                let mut random = Random(0xb17e + n);
                for _ in 0..200 {
                    let bytes = vec![random.below_u64(200) as u8; random.scaled(0..15) as usize];
                    assert_eq!(write(&to, &bytes), Ok(bytes.len()));
                    put.add(&bytes);
                }
            });
            let (from, taken) = (from.clone(), taken.clone());
            spawn(None, move || {
                let mut random = Random(0x4ead + n);
                loop {
                    let most = 1 + random.scaled(0..15) as usize;
                    let bytes = read(&from, most).expect("bytes or the end");
                    if bytes.is_empty() {
                        return;
                    }
                    taken.add(&bytes);
                }
            });
        }
        drop((from, to));
        wait_for_ends(8);
        assert!(taken.get().0 > 100_000);
        assert_eq!(taken.get(), put.get());
    });
}
