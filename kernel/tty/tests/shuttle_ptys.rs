//! Pseudo-terminals whose ends are read, written, opened and closed at once on two CPUs, with a switch possible at every access to an
//! atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p tty --release --test shuttle_ptys`; `PANTALA_SCHEDULES` says how many schedules each
//! test tries.
#![cfg(shuttle)]

mod ends;
#[path = "../../proc/tests/support/mod.rs"]
mod support;

use ends::*;
use support::on;
use task::park::Deadline;
use tty::pts;
use vfs::error::FsError;
use vfs::poll::PollMask;

/// Runs `test` on two CPUs in random schedules.
fn at_random(test: impl Fn() + Send + Sync + Copy + 'static) {
    let schedules = vm_host::random_schedules::asked(300);
    shuttle::check_random(move || on(2, test), schedules);
}

/// A reader that is about to sleep learns that the master is closed, and that only.
#[test]
fn a_close_of_the_master_beside_a_read() {
    at_random(|| {
        let (m, s) = pair();
        beside(move || {
            let got = read(&s, 9);
            assert!([Ok(vec![]), Err(FsError::Io), Ok(b"a\n".to_vec())].contains(&got));
            assert_eq!(read(&s, 9), Ok(vec![]), "nothing comes after the end");
            assert_eq!(write(&s, b"x"), Err(FsError::Io));
        });
        beside(move || {
            assert_eq!(write(&m, b"a\n"), Ok(2));
            drop(m);
        });
        join(2);
        assert_eq!(pts::count(), 0);
    });
}

/// A writer that waits for room gets it, or fails.
#[test]
fn a_close_of_the_master_beside_a_write_that_waits() {
    at_random(|| {
        let (m, s) = pair();
        quick(&s);
        while write(&s, &[b'x'; 2000]).is_ok() {}
        s.set_flags(0);
        beside(move || {
            assert!([Ok(1), Err(FsError::Io)].contains(&write(&s, b"z")));
        });
        assert_eq!(read(&m, 3000).map(|got| got.len()), Ok(3000));
        drop(m);
        join(1);
        assert_eq!(pts::count(), 0);
    });
}

/// The master's reader learns that the terminal was left, after all that was written to it.
#[test]
fn a_close_of_the_terminal_beside_a_read_of_the_master() {
    at_random(|| {
        let (m, s) = pair();
        beside(move || {
            assert_eq!(write(&s, b"ab"), Ok(2));
            drop(s);
        });
        let mut got = Vec::new();
        let end = loop {
            match read(&m, 9) {
                Ok(bytes) => got.extend(bytes),
                Err(e) => break e,
            }
        };
        assert_eq!((got, end), (b"ab".to_vec(), FsError::Io));
        join(1);
    });
}

/// A write of the master waits for a read of the terminal, or for a flush.
#[test]
fn input_that_waits_for_room_is_taken() {
    at_random(|| {
        let (m, s) = pair();
        quick(&m);
        let line = [&[b'x'; 1000][..], b"\n"].concat();
        while write(&m, &line) == Ok(line.len()) {
            assert_eq!(ioctl(&m, TCFLSH, 0), Ok(0));
        }
        m.set_flags(0);
        let writes = m.clone();
        beside(move || assert_eq!(write(&writes, b"\n\n"), Ok(2)));
        let mut ends = 0;
        while ends < 5 {
            let got = read(&s, 4096).expect("a line");
            assert!(!got.is_empty());
            ends += 1;
        }
        join(1);
        drop(m);
    });
}

/// An open beside the close of the master finds the terminal, or that it is gone; its number is free in the end.
#[test]
fn an_open_beside_the_close_of_the_master() {
    at_random(|| {
        let pts = devpts();
        let m = master(&pts).expect("memory");
        let theirs = pts.clone();
        beside(move || match slave(&theirs, 0) {
            Ok(s) => assert!([Ok(vec![]), Err(FsError::Io)].contains(&read(&s, 9))),
            Err(e) => assert!([FsError::Io, FsError::NotFound].contains(&e)),
        });
        drop(m);
        join(1);
        assert_eq!((pts.next(0), pts::count()), (None, 0));
        let again = master(&pts).expect("memory");
        assert_eq!(pts.next(0), Some(0));
        drop(again);
    });
}

#[test]
fn a_poll_beside_a_write_and_a_close() {
    at_random(|| {
        let (m, s) = pair();
        let polls = m.clone();
        beside(move || {
            let found = poll(&polls, PollMask::READ, Deadline::Never).expect("no signal");
            assert!(found.intersects(PollMask::READ | PollMask::HUP));
        });
        beside(move || {
            assert_eq!(write(&s, b"x"), Ok(1));
            drop(s);
        });
        join(2);
        drop(m);
    });
}
