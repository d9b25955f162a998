//! Pipes, fifos and event counters that threads on several CPUs use at once: what goes in comes out, once.
#![cfg(not(shuttle))]

mod storm;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use hal::uio::IoBuf;
use storm::storm;
use support::on;
use support::threads::nap;
use vfs::error::FsError::{Busy, Fault, WouldBlock};
use vfs::error::Result;
use vfs::eventfd::EventCounter;
use vfs::file::{File, FileRef, Kind, o};
use vfs::pipe::{self, DEFAULT_SIZE, PAGE, Pipe};
use vfs::poll::PollMask;
use vm_host::Random;

/// FIONREAD of ioctl(2).
const BYTES_THERE: u32 = 0x541b;
/// The ways to open a file.
const WAYS: [u32; 3] = [o::RDONLY, o::WRONLY, o::RDWR];

fn write(to: &FileRef, bytes: &[u8]) -> Result<usize> {
    to.write(&mut IoBuf::Drain(bytes))
}

fn read(from: &FileRef, most: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; most];
    let n = from.read(&mut IoBuf::Fill(&mut bytes))?;
    bytes.truncate(n);
    Ok(bytes)
}

fn pipe_of(end: &FileRef) -> Arc<Pipe> {
    match &end.kind {
        Kind::Pipe(end) => end.pipe().clone(),
        _ => panic!("not a pipe"),
    }
}

/// Bytes that went through a pipe: how many, and their sum.
#[derive(Default)]
struct Passed {
    count: AtomicU64,
    sum: AtomicU64,
}

impl Passed {
    fn add(&self, bytes: &[u8]) {
        self.count.fetch_add(bytes.len() as u64, SeqCst);
        let sum = bytes.iter().map(|&b| u64::from(b)).sum();
        self.sum.fetch_add(sum, SeqCst);
    }

    fn get(&self) -> (u64, u64) {
        (self.count.load(SeqCst), self.sum.load(SeqCst))
    }
}

#[test]
fn no_byte_of_a_pipe_is_lost() {
    on(4, || {
        let (from, to) = pipe::open_pair(o::NONBLOCK).unwrap();
        let passed = Arc::new([Passed::default(), Passed::default()]);
        let (ends, all) = ((from.clone(), to), passed.clone());
        storm(2000, move |n, random| {
            use_pipe(n, random, &ends, &all);
        });
        // The other end is closed.
        while let Some(rest) = read(&from, 5000).ok().filter(|rest| !rest.is_empty()) {
            passed[1].add(&rest);
        }
        assert_eq!(passed[0].get(), passed[1].get());
        assert!(passed[0].get().0 > 10_000);
        assert_eq!(from.poll(None), PollMask::HUP);
    });
}

fn use_pipe(n: usize, random: &mut Random, ends: &(FileRef, FileRef), passed: &[Passed; 2]) {
    let (from, to) = ends;
    let pipe = pipe_of(from);
    match random.below(8) {
        0 | 1 => {
            let bytes = vec![1 + n as u8; 1 + random.scaled(1..13) as usize];
            match write(to, &bytes) {
                Ok(done) => passed[0].add(&bytes[..done]),
                Err(e) => assert_eq!(e, WouldBlock),
            }
        }
        2 | 3 => match read(from, 1 + random.scaled(1..13) as usize) {
            Ok(bytes) => passed[1].add(&bytes),
            Err(e) => assert_eq!(e, WouldBlock),
        },
        4 => drop(pipe::reopen(pipe, WAYS[random.below(3)]).unwrap()),
        5 => {
            let wanted = PAGE << random.below(5);
            let got = pipe.resize(wanted);
            assert!(got == Ok(wanted) || got == Err(Busy), "{got:?}");
        }
        6 => {
            assert!(pipe.size().is_power_of_two());
            assert_eq!(pipe.owner(), (0, 0));
            // A thread of the kernel has no memory to which it is told.
            assert_eq!(from.ops().ioctl(from, BYTES_THERE, 0), Err(Fault));
        }
        _ => {
            let bad = PollMask::HUP | PollMask::ERR;
            assert!(!from.poll(None).intersects(bad));
            assert!(!to.poll(None).intersects(bad));
        }
    }
}

/// A pipe that was used before is as good as a new one.
#[test]
fn each_new_pipe_is_empty() {
    on(4, || {
        storm(2000, |n, random| {
            if n == 0 || random.one_in(10) {
                (0..10).for_each(|_| pipe::drain());
                return;
            }
            // More than a CPU keeps.
            let ends: Vec<_> = (0..1 + random.below(24))
                .map(|_| pipe::open_pair(o::NONBLOCK).unwrap())
                .collect();
            for (from, to) in &ends {
                assert_eq!(read(from, 1), Err(WouldBlock));
                assert_eq!(pipe_of(from).size(), DEFAULT_SIZE);
                let bytes = vec![n as u8; 1 + random.scaled(1..13) as usize];
                assert_eq!(write(to, &bytes), Ok(bytes.len()));
                assert_eq!(read(from, bytes.len() + 1), Ok(bytes));
                assert!(random.one_in(2) || write(to, b"left").is_ok());
            }
        });
    });
}

/// Three threads open a fifo for one side and wait for the other, which the fourth thread opens as long as any of them waits.
#[test]
fn each_open_of_a_fifo_finds_the_other_side() {
    const ROUNDS: usize = 500;
    on(4, || {
        let fifo = Pipe::create().unwrap();
        let opened = Arc::new(AtomicU32::new(0));
        let (theirs, done) = (fifo.clone(), opened.clone());
        storm(ROUNDS, move |n, random| {
            let fifo = || theirs.clone();
            if n > 0 {
                let way = WAYS[(n + random.below(2)) % 2];
                drop(pipe::open_fifo(fifo(), way).unwrap());
                done.fetch_add(1, SeqCst);
                return;
            }
            while done.load(SeqCst) < 3 * ROUNDS as u32 {
                for _ in 0..20 {
                    drop(pipe::open_fifo(fifo(), o::RDWR).unwrap());
                    assert_eq!(fifo().size(), DEFAULT_SIZE);
                }
                // Else time stands still, and so do threads that sleep.
                nap(1);
            }
        });
        assert_eq!(opened.load(SeqCst), 3 * ROUNDS as u32);
        let alone = pipe::open_fifo(fifo, o::WRONLY | o::NONBLOCK);
        assert_eq!(alone.err(), Some(vfs::FsError::NoDevAddr));
    });
}

#[test]
fn no_count_of_an_event_counter_is_lost() {
    for semaphore in [false, true] {
        on(4, move || {
            let counter = Kind::Other(Box::new(EventCounter::new(0, semaphore)));
            let file = File::open(None, counter, o::RDWR | o::NONBLOCK);
            let left = Arc::new(AtomicU64::new(0));
            let (theirs, sum) = (file.clone(), left.clone());
            storm(2500, move |_, random| match random.below(3) {
                0 => {
                    let more = random.below_u64(5);
                    // Before it can be taken.
                    sum.fetch_add(more, SeqCst);
                    assert_eq!(write(&theirs, &more.to_ne_bytes()), Ok(8));
                }
                1 => {
                    if let Ok(bytes) = read(&theirs, 8) {
                        let got = u64::from_ne_bytes(bytes.try_into().unwrap());
                        assert!(got == 1 || !semaphore && got > 0);
                        sum.fetch_sub(got, SeqCst);
                    }
                }
                _ => assert!(theirs.poll(None).intersects(PollMask::WRITE)),
            });
            let left = left.load(SeqCst) + 1;
            assert_eq!(file.poll(None).intersects(PollMask::READ), left > 1);
            assert_eq!(write(&file, &1_u64.to_ne_bytes()), Ok(8));
            // The largest count is one less than the largest number.
            assert_eq!(
                write(&file, &(u64::MAX - left).to_ne_bytes()),
                Err(WouldBlock)
            );
            assert_eq!(write(&file, &(u64::MAX - 1 - left).to_ne_bytes()), Ok(8));
        });
    }
}
