//! Files without a name, and their seals.
#![cfg(not(shuttle))]

mod support;

use cred::Cred;
use hal::uio::IoBuf;
use support::{Calls, on};
use vfs::error::FsError;
use vfs::file::{FileRef, o};
use vfs::inode::{Node, seal};
use vfs::{memfd, regular, seals};

fn make(sealable: bool) -> FileRef {
    memfd::create(Calls::of_root().cred(), b"name", sealable).expect("memory")
}

fn write(file: &FileRef, pos: u64, bytes: &[u8]) -> Result<usize, FsError> {
    file.write_at(&mut IoBuf::Drain(bytes), pos)
}

fn resize(file: &FileRef, size: u64) -> Result<(), FsError> {
    regular::truncate(file.inode().expect("an inode"), size, true)
}

fn allocate(file: &FileRef, how: u32, at: u64, len: u64) -> Result<(), FsError> {
    regular::allocate(file.inode().expect("an inode"), how, at, len)
}

const PUNCH: u32 = regular::fallocate::PUNCH_HOLE | regular::fallocate::KEEP_SIZE;

fn with_files(body: fn()) {
    on(1, move || {
        memfd::mount().expect("memory");
        body();
    });
}

#[test]
fn a_file_has_the_seals_that_it_was_given() {
    with_files(|| {
        assert_eq!(seals::get(&make(false)), Ok(seal::SEAL));
        assert_eq!(seals::add(&make(false), seal::WRITE), Err(FsError::Perm));
        let file = make(true);
        assert_eq!(seals::get(&file), Ok(0));
        assert_eq!(seals::add(&file, 1 << 20), Err(FsError::Invalid));
        seals::add(&file, seal::GROW).expect("no seal against it");
        seals::add(&file, seal::SEAL).expect("no seal against it");
        assert_eq!(seals::add(&file, seal::WRITE), Err(FsError::Perm));
        assert_eq!(seals::get(&file), Ok(seal::GROW | seal::SEAL));
        let calls = Calls::of_root();
        calls.create("/named").expect("a file");
        let named = calls.open("/named", o::RDWR).expect("a file");
        assert_eq!(seals::get(&named), Ok(seal::SEAL));
        assert_eq!(
            seals::add(&calls.open("/named", o::RDONLY).expect("a file"), 0),
            Err(FsError::Perm)
        );
    });
}

/// Other users have a quota each; and one that has no files any more lets another user have its.
#[test]
fn a_user_fills_nobody_elses_quota() {
    with_files(|| {
        let of = |uid: u32| Cred {
            uid,
            euid: uid,
            ..Cred::root()
        };
        let create = |uid| memfd::create(&of(uid), b"big", false).expect("a file");
        let big = create(1000);
        let page = hal::PAGE_SIZE as u64;
        let mut pages = 0;
        while allocate(&big, 0, pages * page, page).is_ok() {
            pages += 1;
        }
        // The file's index takes a few.
        assert!(pages > vfs::quota::default_limit() * 9 / 10);
        assert_eq!(write(&create(1000), 0, b"x"), Err(FsError::NoSpace));
        for uid in [0, 1001, 1002] {
            assert_eq!(write(&create(uid), 0, b"x"), Ok(1), "user {uid}");
        }
        // That of 1002 is that of 1001, whose files are gone.
        let device = |file: &FileRef| file.inode().expect("an inode").dev;
        let first = create(1003);
        assert_ne!(device(&first), device(&big));
        assert_ne!(device(&create(1004)), device(&first));
        drop(first);
        assert_eq!(write(&big, 0, b"x"), Ok(1));
    });
}

#[test]
fn sizes_are_sealed() {
    with_files(|| {
        let file = make(true);
        resize(&file, 6000).expect("memory");
        seals::add(&file, seal::GROW).expect("no seal against it");
        assert_eq!(resize(&file, 6001), Err(FsError::Perm));
        assert_eq!(allocate(&file, 0, 0, 6001), Err(FsError::Perm));
        assert_eq!(write(&file, 5999, b"xy"), Err(FsError::Perm));
        assert_eq!(write(&file, 5998, b"xy"), Ok(2));
        assert_eq!(write(&file, 90, &[1; 7000]), Ok(4006));
        resize(&file, 5000).expect("it may shrink");
        seals::add(&file, seal::SHRINK).expect("no seal against it");
        assert_eq!(resize(&file, 4999), Err(FsError::Perm));
        resize(&file, 5000).expect("the size that it has");
    });
}

#[test]
fn contents_are_sealed() {
    for which in [seal::WRITE, seal::FUTURE_WRITE] {
        on(1, move || {
            memfd::mount().expect("memory");
            let file = make(true);
            write(&file, 0, &[1; 5000]).expect("memory");
            seals::add(&file, which).expect("no mapping");
            assert_eq!(write(&file, 0, b"x"), Err(FsError::Perm));
            assert_eq!(allocate(&file, PUNCH, 0, 4096), Err(FsError::Perm));
            assert!(seals::admit_mapping(&file, true).is_err());
            match seals::admit_mapping(&file, false) {
                Ok(mappable) => assert!(which == seal::FUTURE_WRITE && !mappable.may_write),
                Err(e) => assert!(which == seal::WRITE && e == FsError::Perm),
            }
            resize(&file, 100).expect("the size is another matter");
        });
    }
}

#[test]
fn a_seal_waits_for_a_mapping_that_is_being_made() {
    with_files(|| {
        let file = make(true);
        let mappable = seals::admit_mapping(&file, true).expect("no seal");
        let inode = file.inode().expect("an inode");
        assert!(inode.lock.try_lock().is_none(), "nobody seals it meanwhile");
        drop(mappable);
        assert!(inode.lock.try_lock().is_some());
        // One that cannot be sealed is mapped without the lock.
        let plain = make(false);
        let _mappable = seals::admit_mapping(&plain, true).expect("no seal");
        assert!(
            plain
                .inode()
                .is_some_and(|inode| inode.lock.try_lock().is_some())
        );
        assert!(matches!(inode.node, Node::File(_)));
    });
}
