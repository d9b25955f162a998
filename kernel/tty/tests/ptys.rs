//! Both ends of pseudo-terminals, their numbers, and the sessions that they control.
#![cfg(not(shuttle))]

mod ends;
#[path = "../../proc/tests/support/mod.rs"]
mod support;

use cred::Charge;
use ends::*;
use proc::{UserThreadExt, group};
use support::{nap, on};
use task::current::current;
use task::park::Deadline;
use tty::pts;
use vfs::error::FsError;
use vfs::poll::PollMask;

const IN: PollMask = PollMask::READ;
const OUT: PollMask = PollMask::WRITE;

#[test]
fn lines_pass_and_echo_comes_back() {
    on(1, || {
        let (m, s) = pair();
        assert_eq!(write(&m, b"ab\x7fc\n"), Ok(5));
        assert_eq!(read(&s, 99), Ok(b"ac\n".to_vec()));
        assert_eq!(read(&m, 99), Ok(b"ab\x08 \x08c\r\n".to_vec()));
        assert_eq!(write(&s, b"x\ty\n"), Ok(4));
        assert_eq!(read(&m, 2), Ok(b"x\t".to_vec()));
        assert_eq!(read(&m, 99), Ok(b"y\r\n".to_vec()));
    });
}

#[test]
fn a_full_terminal_loses_nothing() {
    on(2, || {
        let (m, s) = pair();
        quick(&m);
        // Complete lines that nobody reads: the master has to wait.
        let mut sent = 0;
        while let Ok(n) = write(&m, b"0123456\n") {
            sent += n;
            let _ = read(&m, 99);
        }
        assert_eq!(sent, 4095);
        assert_eq!(m.poll(None), PollMask::NONE);
        let reads = s.clone();
        beside(move || {
            let mut all = Vec::new();
            while !all.ends_with(b"a\n") {
                all.extend(read(&reads, 99).expect("a line"));
            }
            let lines = [&b"0123456\n".repeat(511)[..], b"0123456a\n"].concat();
            assert_eq!(all, lines);
        });
        assert_eq!(poll(&m, OUT, Deadline::Never), Ok(OUT));
        assert_eq!(write(&m, b"a\n"), Ok(2));
        join(1);
    });
}

#[test]
fn output_waits_for_the_master() {
    on(2, || {
        let (m, s) = pair();
        quick(&s);
        let mut sent = 0;
        while let Ok(n) = write(&s, &[b'x'; 100]) {
            sent += n;
        }
        assert!((8192 - 8..=8192).contains(&sent), "{sent}");
        assert_eq!(s.poll(None), PollMask::NONE);
        // An echo still has room; more than its room is dropped.
        for _ in 0..100 {
            assert_eq!(write(&m, &[b'y'; 100]), Ok(100));
        }
        let writes = s.clone();
        beside(move || {
            writes.set_flags(0);
            assert_eq!(write(&writes, b"z"), Ok(1));
        });
        let mut all = Vec::new();
        while all.last() != Some(&b'z') {
            all.extend(read(&m, 1000).expect("bytes"));
        }
        assert!(all.len() <= 8192 + 4096 + 1, "{}", all.len());
        assert!(all[..sent].iter().all(|&b| b == b'x'));
        join(1);
    });
}

#[test]
fn numbers_are_the_lowest_and_are_kept_until_both_ends_are_closed() {
    on(1, || {
        let pts = devpts();
        let payer = current().payer();
        let (before, held) = (pts::count(), payer.held(Charge::Memory));
        let masters: Vec<_> = (0..3).map(|_| master(&pts).unwrap()).collect();
        assert_eq!(pts::count(), before + 3);
        assert!(payer.held(Charge::Memory) > held + 3 * 12_000);
        let s = slave(&pts, 1).unwrap();
        let mut masters = masters.into_iter();
        let (first, second, third) = (masters.next(), masters.next(), masters.next());
        drop(second);
        assert_eq!(pts.node(1).map(|_| ()), None);
        assert_eq!(pts.next(1), Some(2));
        let fourth = master(&pts).unwrap();
        assert_eq!(pts.next(3), Some(3), "number 1 is still in use");
        drop(s);
        let fifth = master(&pts).unwrap();
        assert!(pts.node(1).is_some());
        drop((first, third, fourth, fifth));
        assert_eq!((pts.next(0), pts::count()), (None, before));
        mem::epoch().drain();
        assert_eq!(payer.held(Charge::Memory), held);
    });
}

#[test]
fn the_limit_holds() {
    on(1, || {
        let pts = devpts();
        pts::LIMIT.store(pts::count() + 3, ksync::atomic::Ordering::Relaxed);
        let two = [master(&pts).unwrap(), master(&pts).unwrap()];
        assert_eq!(master(&pts).err(), Some(FsError::NoSpace));
        drop(two);
        assert!(master(&pts).is_ok());
        let narrow = pts::Pts::new(
            8,
            pts::Options {
                max: 1,
                ..pts::Options::default()
            },
        );
        let one = master(&narrow);
        assert_eq!(master(&narrow).err(), Some(FsError::NoSpace));
        drop(one);
        assert!(master(&narrow).is_ok());
        pts::LIMIT.store(4096, ksync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_locked_terminal_and_one_without_a_master_cannot_be_opened() {
    on(1, || {
        let pts = devpts();
        let m = master(&pts).unwrap();
        let node = pts.node(0);
        tty::pty::master(&m).unwrap().set_locked(true).unwrap();
        assert_eq!(slave(&pts, 0).err(), Some(FsError::Io));
        tty::pty::master(&m).unwrap().set_locked(false).unwrap();
        assert!(slave(&pts, 0).is_ok());
        drop(m);
        assert_eq!(slave(&pts, 0).err(), Some(FsError::NotFound));
        drop(node);
    });
}

#[test]
fn the_ends_learn_of_each_others_close() {
    on(1, || {
        let pts = devpts();
        let m = master(&pts).unwrap();
        quick(&m);
        assert_eq!(read(&m, 9), Err(FsError::WouldBlock));
        let s = slave(&pts, 0).unwrap();
        assert_eq!(write(&s, b"end"), Ok(3));
        drop(s);
        assert_eq!(m.poll(None), IN | OUT | PollMask::HUP);
        assert_eq!(read(&m, 9), Ok(b"end".to_vec()));
        assert_eq!(read(&m, 9), Err(FsError::Io));
        let s = slave(&pts, 0).unwrap();
        assert_eq!(read(&m, 9), Err(FsError::WouldBlock));
        drop(m);
        assert_eq!(read(&s, 9), Ok(vec![]));
        assert_eq!(write(&s, b"x"), Err(FsError::Io));
        assert_eq!(
            s.poll(None),
            PollMask::ALWAYS | PollMask::ERR | PollMask::HUP
        );
    });
}

#[test]
fn a_master_can_hold_its_own_writes() {
    on(2, || {
        let (m, s) = pair();
        quick(&m);
        assert_eq!(ioctl(&m, TCXONC, 0), Ok(0));
        assert_eq!(write(&m, b"x\n"), Err(FsError::WouldBlock));
        assert_eq!(m.poll(None), PollMask::NONE);
        let goes_on = m.clone();
        beside(move || {
            nap(1);
            assert_eq!(ioctl(&goes_on, TCXONC, 1), Ok(0));
        });
        m.set_flags(0);
        assert_eq!(write(&m, b"y\n"), Ok(2));
        assert_eq!(read(&s, 9), Ok(b"y\n".to_vec()));
        join(1);
        // STOP as if it were typed.
        assert_eq!(ioctl(&m, TCXONC, 2), Ok(0));
        quick(&s);
        assert_eq!(write(&s, b"x"), Err(FsError::WouldBlock));
        assert_eq!(ioctl(&m, TCXONC, 3), Ok(0));
        assert_eq!(write(&s, b"x"), Ok(1));
        assert_eq!(ioctl(&m, TCFLSH, 3), Err(FsError::Invalid));
        assert_eq!(ioctl(&m, TCXONC, 4), Err(FsError::Invalid));
    });
}

#[test]
fn a_session_loses_its_terminal_with_the_master_and_not_with_its_leader() {
    on(1, || {
        let (m, s) = pair();
        let theirs = s.clone();
        beside(move || {
            group::setsid().expect("no leader of a group");
            assert_eq!(ioctl(&theirs, TIOCSCTTY, 0), Ok(0));
            let session = || current().process().session().and_then(|s| s.terminal());
            let number = session().expect("a terminal").number();
            assert_eq!(number, 136 << 8);
        });
        join(1);
        // It is free for another session.
        let (theirs, master) = (s.clone(), m.clone());
        beside(move || {
            group::setsid().expect("no leader of a group");
            assert_eq!(ioctl(&master, TIOCSCTTY, 0), Ok(0));
            assert_eq!(ioctl(&master, TIOCNOTTY, 0), Err(FsError::NotTty));
            assert_eq!(ioctl(&theirs, TIOCSCTTY, 0), Ok(0), "it has it already");
            assert_eq!(ioctl(&master, TIOCSIG, 1), Err(FsError::Invalid));
        });
        join(1);
        drop(m);
        beside(move || {
            group::setsid().expect("no leader of a group");
            assert_eq!(ioctl(&s, TIOCSCTTY, 0), Err(FsError::Io));
            assert!(
                current()
                    .process()
                    .session()
                    .is_some_and(|s| s.terminal().is_none())
            );
        });
        join(1);
    });
}
