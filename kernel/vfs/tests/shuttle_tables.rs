//! Tables of descriptors, open files and locks used by two CPUs at once, with a switch possible at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vfs --release --test shuttle_tables`; `PANTALA_SCHEDULES` says how many schedules each
//! test tries.
#![cfg(shuttle)]

mod support;

use std::sync::Arc;

use fscore::locks::{END, Lock};
use hal::uio::IoBuf;
use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use support::counted::counted;
use support::threads::{everywhere, spawn, wait_for_ends};
use support::{Calls, on};
use vfs::error::FsError;
use vfs::error::Result;
use vfs::fdtable::FdTable;
use vfs::file::{File, FileOps, FileRef, Kind, o};
use vfs::inode::Inode;
use vfs::lock::{self, Family};
use vfs::regular;

/// A table with two files, and how often the first was closed.
fn table_of_two() -> (Arc<FdTable>, Arc<AtomicU32>) {
    let (table, (first, closed), (second, _)) = (FdTable::new(), counted(), counted());
    assert_eq!(table.add(first, false, 0, 10), Ok(0));
    assert_eq!(table.add(second, false, 0, 10), Ok(1));
    (table, closed)
}

/// A file of root's, open for reading and writing.
fn open(path: &str) -> FileRef {
    let file = Calls::of_root().open(path, o::RDWR | o::CREAT);
    file.expect("a file")
}

fn inode(file: &FileRef) -> &Inode {
    file.inode().expect("a file with a name")
}

/// A wish for an exclusive lock on one byte, of a table.
fn byte(table: &FdTable, at: u64) -> Lock {
    Lock {
        owner: table.lock_owner(),
        pid: 1,
        start: at,
        last: at,
        exclusive: true,
    }
}

/// fcntl(2) with F_SETLKW, as the call does it: a lock that comes after the close of its descriptor is undone.
fn lock_byte(table: &FdTable, fd: i32, at: u64) -> Result<()> {
    let file = table.get(fd)?;
    table.note_lock();
    let wanted = byte(table, at);
    lock::set(&inode(&file).locks, Family::Ranges, wanted, true, true)?;
    if !table.get(fd).is_ok_and(|now| FileRef::ptr_eq(&now, &file)) {
        lock::unset(&inode(&file).locks, Family::Ranges, &wanted)?;
        return Err(FsError::BadFd);
    }
    Ok(())
}

/// Whether anybody holds a record lock on the file.
fn is_locked(file: &FileRef) -> bool {
    let stranger = Lock {
        owner: 1,
        pid: 1,
        start: 0,
        last: END,
        exclusive: true,
    };
    lock::query(&inode(file).locks, Family::Ranges, &stranger).is_some()
}

#[test]
fn a_lookup_beside_a_close_finds_the_file_or_none() {
    everywhere(|| {
        on(2, || {
            let (table, (file, closed)) = (FdTable::new(), counted());
            assert_eq!(table.add(file, false, 0, 10), Ok(0));
            let theirs = table.clone();
            spawn(None, move || assert!(theirs.remove(0).is_ok()));
            if let Ok(found) = table.get(0) {
                assert_eq!(closed.load(SeqCst), 0, "closed while it is in use");
                drop(found);
            }
            wait_for_ends(1);
            assert_eq!(closed.load(SeqCst), 1);
        });
    });
}

#[test]
fn a_descriptor_that_is_replaced_is_always_open() {
    everywhere(|| {
        on(2, || {
            let (table, closed) = table_of_two();
            let theirs = table.clone();
            spawn(None, move || {
                assert_eq!(theirs.dup_to(1, 0, false, 10), Ok(0));
            });
            assert!(table.get(0).is_ok(), "it was closed for a moment");
            wait_for_ends(1);
            assert_eq!(closed.load(SeqCst), 1);
        });
    });
}

#[test]
fn of_two_closes_of_a_descriptor_one_fails() {
    everywhere(|| {
        on(2, || {
            let (table, (file, closed)) = (FdTable::new(), counted());
            assert_eq!(table.add(file, false, 0, 10), Ok(0));
            let (theirs, done) = (table.clone(), Arc::new(AtomicU32::new(0)));
            let count = done.clone();
            spawn(None, move || {
                count.fetch_add(u32::from(theirs.remove(0).is_ok()), SeqCst);
            });
            done.fetch_add(u32::from(table.remove(0).is_ok()), SeqCst);
            wait_for_ends(1);
            assert_eq!((done.load(SeqCst), closed.load(SeqCst)), (1, 1));
        });
    });
}

#[test]
fn a_pair_beside_an_open_gets_both_numbers_or_none() {
    everywhere(|| {
        on(2, || {
            let table = FdTable::new();
            let (theirs, added) = (table.clone(), Arc::new(AtomicU32::new(0)));
            let count = added.clone();
            spawn(None, move || {
                let made = theirs.add(counted().0, false, 0, 2);
                count.fetch_add(u32::from(made.is_ok()), SeqCst);
            });
            let pair = table.add_pair(counted().0, counted().0, false, 2);
            wait_for_ends(1);
            let open = table.open_in(&ksync::pin(), 0..10).unwrap_or(0);
            let expected = if pair.is_ok() { 2 } else { 0 };
            assert_eq!(open, expected + added.load(SeqCst) as usize);
            // No number is lost.
            for _ in open..2 {
                assert!(table.add(counted().0, false, 0, 2).is_ok());
            }
        });
    });
}

#[test]
fn a_copy_beside_a_replacement_has_one_of_the_files() {
    everywhere(|| {
        on(2, || {
            let (table, closed) = table_of_two();
            let theirs = table.clone();
            spawn(None, move || {
                assert_eq!(theirs.dup_to(1, 0, true, 10), Ok(0));
            });
            let copy = table.fork().expect("memory for a table");
            let has_new = copy.get(0).is_ok_and(|found| {
                let new = copy.get(1).expect("it was not changed");
                FileRef::ptr_eq(&found, &new)
            });
            assert_eq!(copy.cloexec(0), Ok(has_new), "the flag of its file");
            wait_for_ends(1);
            assert_eq!(closed.load(SeqCst), u32::from(has_new));
            drop(copy);
            assert_eq!(closed.load(SeqCst), 1);
        });
    });
}

#[test]
fn both_of_two_appends_arrive() {
    everywhere(|| {
        on(2, || {
            let append = |bytes: &[u8]| {
                let file = open("/f");
                file.set_flags(o::APPEND);
                assert_eq!(file.write(&mut IoBuf::Drain(bytes)), Ok(2));
            };
            drop(open("/f"));
            spawn(None, move || append(b"ab"));
            append(b"cd");
            wait_for_ends(1);
            let all = Calls::of_root().read("/f").expect("a file");
            assert!(all == b"abcd" || all == b"cdab", "{all:?}");
        });
    });
}

#[test]
fn two_reads_of_one_open_file_get_different_bytes() {
    everywhere(|| {
        on(2, || {
            let file = open("/f");
            assert_eq!(file.write_at(&mut IoBuf::Drain(&[1, 2]), 0), Ok(2));
            let (theirs, sum) = (file.clone(), Arc::new(AtomicU32::new(0)));
            let count = sum.clone();
            let read = |file: &FileRef, sum: &AtomicU32| {
                let mut byte = [0];
                assert_eq!(file.read(&mut IoBuf::Fill(&mut byte)), Ok(1));
                sum.fetch_add(u32::from(byte[0]), SeqCst);
            };
            spawn(None, move || read(&theirs, &count));
            read(&file, &sum);
            wait_for_ends(1);
            assert_eq!(sum.load(SeqCst), 3);
        });
    });
}

#[test]
fn a_read_beside_a_truncation_sees_no_zeroes() {
    everywhere(|| {
        on(2, || {
            let file = open("/f");
            assert_eq!(file.write_at(&mut IoBuf::Drain(&[7; 100]), 0), Ok(100));
            let theirs = file.clone();
            spawn(None, move || {
                assert_eq!(regular::truncate(inode(&theirs), 0, true), Ok(()));
            });
            let mut bytes = [1; 100];
            let n = file
                .read_at(&mut IoBuf::Fill(&mut bytes), 0)
                .expect("bytes");
            assert!(
                bytes[..n].iter().all(|&b| b == 7),
                "{n} bytes, not of the file"
            );
            wait_for_ends(1);
        });
    });
}

#[test]
fn a_lock_beside_the_close_of_its_descriptor_does_not_stay() {
    everywhere(|| {
        on(2, || {
            let (table, file) = (FdTable::new(), open("/f"));
            assert_eq!(table.add(file.clone(), false, 0, 10), Ok(0));
            let theirs = table.clone();
            spawn(None, move || drop(theirs.remove(0)));
            let _closed = lock_byte(&table, 0, 0);
            wait_for_ends(1);
            assert!(!is_locked(&file));
        });
    });
}

#[test]
fn a_wait_for_a_lock_ends_with_the_lock() {
    everywhere(|| {
        on(2, || {
            let (mine, theirs) = (FdTable::new(), FdTable::new());
            for table in [&mine, &theirs] {
                assert_eq!(table.add(open("/f"), false, 0, 10), Ok(0));
            }
            assert_eq!(lock_byte(&mine, 0, 0), Ok(()));
            spawn(None, move || {
                assert_eq!(lock_byte(&theirs, 0, 0), Ok(()));
            });
            drop(mine.remove(0));
            wait_for_ends(1);
        });
    });
}

#[test]
fn of_two_that_wait_for_each_other_one_is_refused() {
    everywhere(|| {
        on(2, || {
            let (mine, theirs) = (FdTable::new(), FdTable::new());
            for (table, at) in [(&mine, 0), (&theirs, 1)] {
                assert_eq!(table.add(open("/f"), false, 0, 10), Ok(0));
                assert_eq!(lock_byte(table, 0, at), Ok(()));
            }
            let refused = Arc::new(AtomicU32::new(0));
            let count = refused.clone();
            // The one that is refused gives up, so that the other gets its lock.
            let cross = |table: Arc<FdTable>, at: u64, refused: &AtomicU32| {
                if let Err(error) = lock_byte(&table, 0, at) {
                    assert_eq!(error, FsError::Deadlock);
                    refused.fetch_add(1, SeqCst);
                }
                drop(table);
            };
            spawn(None, move || cross(theirs, 0, &count));
            cross(mine, 1, &refused);
            wait_for_ends(1);
            assert!(refused.load(SeqCst) < 2, "one of them would have done");
            assert!(!is_locked(&open("/f")));
        });
    });
}
