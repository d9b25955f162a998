//! splice, tee and vmsplice between threads of the simulated machine.
#![cfg(not(shuttle))]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use hal::uio::IoBuf;
use support::{Calls, on, threads};
use vfs::error::FsError;
use vfs::file::{FileRef, Kind, o};
use vfs::pipe::{self, Pipe, splice};

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

fn of(file: &FileRef) -> &Arc<Pipe> {
    match &file.kind {
        Kind::Pipe(end) => end.pipe(),
        _ => panic!("no pipe"),
    }
}

#[test]
fn what_finds_no_room_stays_in_the_pipe() {
    on(1, || {
        let ((a, b), (c, d)) = (pair(0), pair(o::NONBLOCK));
        while write(&d, &[1; 4096]).is_ok() {}
        write(&b, b"abc").expect("room");
        assert_eq!(
            splice::between(of(&a), of(&d), 10, false),
            Err(FsError::WouldBlock)
        );
        assert_eq!(
            splice::duplicate(of(&a), of(&d), 10, false),
            Err(FsError::WouldBlock)
        );
        read(&c, 4096).expect("bytes");
        assert_eq!(splice::duplicate(of(&a), of(&d), 10, false), Ok(3));
        assert_eq!(splice::between(of(&a), of(&d), 2, false), Ok(2));
        assert_eq!(read(&a, 10), Ok(b"c".to_vec()));
        drop(c);
        write(&b, b"de").expect("room");
        assert_eq!(
            splice::between(of(&a), of(&d), 2, false),
            Err(FsError::BrokenPipe)
        );
        assert_eq!(read(&a, 10), Ok(b"de".to_vec()));
        assert_eq!(
            splice::between(of(&a), of(&b), 2, false),
            Err(FsError::Invalid)
        );
    });
}

#[test]
fn a_reader_waits_while_bytes_are_moved_and_gets_what_was_not_written() {
    on(2, || {
        let calls = Calls::of_root();
        calls.create("/file").expect("a file");
        let file = calls.open("/file", o::RDONLY).expect("a file");
        let (a, b) = pair(0);
        write(&b, b"abc").expect("room");
        // The write fails, for the file is open for reading only: the bytes stay.
        assert_eq!(
            splice::to_file(of(&a), &file, None, 10, true),
            Err(FsError::BadFd)
        );
        assert_eq!(read(&a, 10), Ok(b"abc".to_vec()));
        drop(b);
        assert_eq!(splice::to_file(of(&a), &file, None, 10, true), Ok(0));
    });
}

#[test]
fn bytes_go_to_a_file_and_back() {
    on(1, || {
        let calls = Calls::of_root();
        calls.create("/file").expect("a file");
        let file = calls.open("/file", o::RDWR).expect("a file");
        let (a, b) = pair(0);
        write(&b, b"hello").expect("room");
        assert_eq!(splice::to_file(of(&a), &file, Some(2), 100, false), Ok(5));
        assert_eq!(splice::from_file(&file, None, of(&b), 4, false), Ok(4));
        assert_eq!(file.with_pos(|pos| *pos), 4);
        assert_eq!(splice::from_file(&file, Some(6), of(&b), 4, false), Ok(1));
        assert_eq!(file.with_pos(|pos| *pos), 4);
        assert_eq!(read(&a, 100), Ok(b"\0\0heo".to_vec()));
        assert_eq!(splice::from_file(&file, Some(7), of(&b), 4, false), Ok(0));
        assert_eq!(
            splice::to_file(of(&a), &file, None, 4, false),
            Err(FsError::WouldBlock)
        );
    });
}

#[test]
fn movers_and_readers_share_a_pipe_and_lose_nothing() {
    const COUNT: u32 = 4000;
    on(4, || {
        let (a, b) = pair(0);
        threads::spawn(None, move || {
            for n in 0..COUNT {
                write(&b, &n.to_ne_bytes()).expect("a reader");
            }
        });
        let (sum, readers) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let drain = |from: FileRef| {
            let (sum, readers) = (sum.clone(), readers.clone());
            move || {
                loop {
                    let bytes = read(&from, 400).expect("bytes");
                    let (words, rest) = bytes.as_chunks::<4>();
                    assert!(rest.is_empty(), "whole numbers");
                    if words.is_empty() {
                        break;
                    }
                    for &word in words {
                        sum.fetch_add(u32::from_ne_bytes(word), SeqCst);
                    }
                }
                readers.fetch_add(1, SeqCst);
            }
        };
        let (c, d) = pair(0);
        threads::spawn(None, drain(c));
        let source = a.clone();
        threads::spawn(None, move || {
            while splice::between(of(&source), of(&d), 300, true) != Ok(0) {}
        });
        drain(a)();
        while readers.load(SeqCst) < 2 {
            threads::nap(1);
        }
        assert_eq!(sum.load(SeqCst), (0..COUNT).sum::<u32>());
    });
}
