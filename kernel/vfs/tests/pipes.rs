//! Pipes and fifos between threads of the simulated machine.
#![cfg(not(shuttle))]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use hal::uio::IoBuf;
use support::{Calls, on, threads};
use vfs::error::FsError;
use vfs::file::{FileRef, o};
use vfs::pipe;

fn write(to: &FileRef, bytes: &[u8]) -> Result<usize, FsError> {
    to.write(&mut IoBuf::Drain(bytes))
}

fn read(from: &FileRef, most: usize) -> Result<Vec<u8>, FsError> {
    let mut bytes = vec![0; most];
    let n = from.read(&mut IoBuf::Fill(&mut bytes))?;
    bytes.truncate(n);
    Ok(bytes)
}

fn pair(flags: u32) -> (FileRef, FileRef) {
    pipe::open_pair(flags).expect("memory for a pipe")
}

#[test]
fn bytes_come_out_in_order() {
    on(1, || {
        let (from, to) = pair(0);
        assert_eq!(write(&to, b"one "), Ok(4));
        assert_eq!(write(&to, b"two"), Ok(3));
        assert_eq!(read(&from, 6), Ok(b"one tw".to_vec()));
        assert_eq!(read(&from, 6), Ok(b"o".to_vec()));
    });
}

#[test]
fn an_empty_pipe_ends_when_its_writers_have_gone() {
    on(2, || {
        let (from, to) = pair(0);
        let second = to.clone();
        threads::spawn(None, move || {
            threads::nap(2);
            drop(second);
        });
        drop(to);
        assert_eq!(read(&from, 10), Ok(Vec::new()));
    });
}

#[test]
fn a_write_without_a_reader_fails() {
    on(1, || {
        let (from, to) = pair(0);
        drop(from);
        assert_eq!(write(&to, b"lost"), Err(FsError::BrokenPipe));
    });
}

#[test]
fn a_writer_that_waits_for_room_learns_that_the_readers_have_gone() {
    on(2, || {
        let (from, to) = pair(0);
        threads::spawn(None, move || {
            threads::nap(5);
            drop(from);
        });
        let many = vec![7; 200_000];
        let written = write(&to, &many).expect("the part that had room");
        assert_eq!(written, 65_536);
        assert_eq!(write(&to, &many), Err(FsError::BrokenPipe));
    });
}

#[test]
fn a_nonblocking_end_does_not_wait() {
    on(1, || {
        let (from, to) = pair(o::NONBLOCK);
        assert_eq!(read(&from, 1), Err(FsError::WouldBlock));
        let many = vec![1; 100_000];
        assert_eq!(write(&to, &many), Ok(65_536));
        assert_eq!(write(&to, b"x"), Err(FsError::WouldBlock));
        assert_eq!(read(&from, 70_000).map(|bytes| bytes.len()), Ok(65_536));
        drop(to);
        assert_eq!(read(&from, 1), Ok(Vec::new()));
    });
}

/// Both read through one open file: the first must not keep a position's lock while it sleeps.
#[test]
fn a_reader_that_waits_keeps_no_other_reader_waiting() {
    on(2, || {
        let (from, to) = pair(0);
        let (first, done) = (from.clone(), Arc::new(AtomicU32::new(0)));
        let count = done.clone();
        threads::spawn(None, move || {
            assert_eq!(read(&first, 10), Ok(b"late".to_vec()));
            count.store(1, SeqCst);
        });
        threads::nap(5);
        from.set_flags(o::NONBLOCK);
        assert_eq!(read(&from, 10), Err(FsError::WouldBlock));
        assert_eq!(done.load(SeqCst), 0);
        assert_eq!(write(&to, b"late"), Ok(4));
        threads::wait_for_ends(1);
        assert_eq!(done.load(SeqCst), 1);
    });
}

/// Small writes are not mixed, whatever the number of writers and readers.
#[test]
fn writes_up_to_a_page_are_whole() {
    on(4, || {
        const WRITERS: u32 = 3;
        const EACH: usize = 200;
        const LEN: usize = 1024;
        let (from, to) = pair(0);
        for n in 0..WRITERS {
            let to = to.clone();
            threads::spawn(None, move || {
                for _ in 0..EACH {
                    assert_eq!(write(&to, &[n as u8; LEN]), Ok(LEN));
                }
            });
        }
        drop(to);
        let mut all = Vec::new();
        loop {
            let more = read(&from, 3000).expect("bytes or the end");
            if more.is_empty() {
                break;
            }
            all.extend(more);
        }
        assert_eq!(all.len(), WRITERS as usize * EACH * LEN);
        assert!(
            all.chunks(LEN)
                .all(|part| part.iter().all(|&byte| byte == part[0]))
        );
        threads::wait_for_ends(WRITERS);
    });
}

#[test]
fn many_readers_get_each_byte_once() {
    on(4, || {
        let (from, to) = pair(0);
        let sum = Arc::new(AtomicU32::new(0));
        for _ in 0..4 {
            let (from, sum) = (from.clone(), sum.clone());
            threads::spawn(None, move || {
                while let Ok(bytes) = read(&from, 7) {
                    if bytes.is_empty() {
                        return;
                    }
                    sum.fetch_add(bytes.iter().map(|&byte| u32::from(byte)).sum(), SeqCst);
                }
            });
        }
        drop(from);
        for n in 0..2000 {
            assert_eq!(write(&to, &[(n % 251) as u8]), Ok(1));
        }
        drop(to);
        threads::wait_for_ends(4);
        assert_eq!(sum.load(SeqCst), (0..2000).map(|n| n % 251).sum());
    });
}

#[test]
fn the_opens_of_a_fifo_wait_for_each_other() {
    on(2, || {
        let calls = Calls::of_root();
        calls.mkfifo("/f").expect("a free name");
        let nobody = calls.open("/f", o::WRONLY | o::NONBLOCK);
        assert_eq!(nobody.err(), Some(FsError::NoDevAddr));
        threads::spawn(None, || {
            let to = Calls::of_root()
                .open("/f", o::WRONLY)
                .expect("a reader comes");
            assert_eq!(write(&to, b"hello"), Ok(5));
        });
        threads::nap(3);
        let from = calls.open("/f", o::RDONLY).expect("a writer waits");
        assert_eq!(read(&from, 10), Ok(b"hello".to_vec()));
        assert_eq!(read(&from, 10), Ok(Vec::new()));
        threads::wait_for_ends(1);
    });
}

#[test]
fn a_fifo_forgets_its_bytes_when_all_have_closed_it() {
    on(1, || {
        let calls = Calls::of_root();
        calls.mkfifo("/f").expect("a free name");
        let both = calls.open("/f", o::RDWR).expect("opens at once");
        assert_eq!(write(&both, b"old"), Ok(3));
        drop(both);
        let from = calls
            .open("/f", o::RDONLY | o::NONBLOCK)
            .expect("opens at once");
        assert_eq!(read(&from, 10), Ok(Vec::new()));
    });
}

#[test]
fn a_pipe_tells_how_many_bytes_it_has_and_is_no_terminal() {
    const FIONREAD: u32 = 0x541b;
    const TCGETS: u32 = 0x5401;
    const NOWHERE: u64 = 0x10_0000;
    on(1, || {
        let (from, _to) = pair(0);
        // The number is to be written where no memory is.
        assert_eq!(
            from.ops().ioctl(&from, FIONREAD, NOWHERE),
            Err(FsError::Fault)
        );
        assert_eq!(
            from.ops().ioctl(&from, TCGETS, NOWHERE),
            Err(FsError::NotTty)
        );
    });
}
