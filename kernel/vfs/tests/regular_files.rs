//! Regular files: writes, truncation, the largest size, the file-size limit, times of change, and what ends a file.
#![cfg(not(shuttle))]

mod bytes;
mod support;

use std::sync::Arc;

use bytes::{
    PAGE, PAGE_BLOCKS, PAGE_LEN, allocate, blocks, content, file_with, on_limited, open, open_as,
    pattern, read, read_at, set_limit, signals, size, stat, truncate, write, write_at,
};
use cred::{CapSet, Cred};
use hal::uio::IoBuf;
use support::{Calls, on};
use task::current::current;
use task::thread::flag;
use vfs::attr::Attr;
use vfs::error::FsError::{Fault, Interrupted, NoSpace, TextBusy, TooBig};
use vfs::file::{FileRef, Whence, o};
use vfs::inode::{MAX_SIZE, Use};
use vfs::regular::{self, fallocate};

/// An address that no program has mapped.
const NOWHERE: u64 = 0x10_0000;

/// Times of modification and of change.
fn changes(file: &FileRef) -> (i64, i64) {
    let Attr { mtime, ctime, .. } = stat(file);
    (mtime, ctime)
}

/// Whether `act` sets the times of modification and of change of a file, both to one time.
fn is_change(file: &FileRef, act: impl FnOnce()) -> bool {
    let before = changes(file);
    act();
    let (mtime, ctime) = changes(file);
    assert_eq!(mtime > before.0, ctime > before.1, "one without the other");
    if mtime > before.0 {
        assert_eq!(mtime, ctime);
    }
    mtime > before.0
}

/// Runs `act` as a user without capabilities.
fn as_user(act: impl FnOnce()) {
    let mut cred = Cred::root();
    (cred.uid, cred.euid, cred.fsuid) = (1000, 1000, 1000);
    (cred.gid, cred.egid, cred.fsgid) = (1000, 1000, 1000);
    cred.caps.effective = CapSet::EMPTY;
    let root = current().replace_cred(Arc::new(cred));
    act();
    drop(current().replace_cred(root));
}

#[test]
fn a_write_over_the_ends_of_pages_is_read_back() {
    on(1, || {
        let bytes = pattern(3 * PAGE_LEN + 20);
        let file = file_with("/f", &[]);
        let pos = PAGE - 7;
        assert_eq!(write_at(&file, pos, &bytes), Ok(bytes.len()));
        assert_eq!(read_at(&file, pos, bytes.len()), Ok(bytes.clone()));
        assert_eq!(read_at(&file, 0, 7), Ok(vec![0; 7]));
        let middle = &bytes[PAGE_LEN..2 * PAGE_LEN + 9];
        assert_eq!(
            read_at(&file, pos + PAGE, middle.len()),
            Ok(middle.to_vec())
        );
        assert_eq!(size(&file), pos + bytes.len() as u64);
    });
}

#[test]
fn a_write_changes_no_byte_beside_it() {
    on(1, || {
        let mut expected = pattern(2 * PAGE_LEN);
        let file = file_with("/f", &expected);
        for (pos, len) in [(0, 1), (100, 50), (4090, 12), (8191, 1), (4096, 1)] {
            assert_eq!(write_at(&file, pos, &vec![0xff; len]), Ok(len));
            expected[pos as usize..][..len].fill(0xff);
            assert!(content(&file) == expected, "after the write at {pos}");
        }
    });
}

#[test]
fn a_large_write_arrives_as_a_whole() {
    on(1, || {
        let bytes = pattern((1 << 20) + 5000);
        let file = open("/f");
        assert_eq!(write_at(&file, 3000, &bytes), Ok(bytes.len()));
        assert!(read_at(&file, 3000, bytes.len() + 1) == Ok(bytes));
    });
}

#[test]
fn a_truncation_zeroes_the_rest_of_its_last_page() {
    on(1, || {
        let file = file_with("/f", &[7; 2 * PAGE_LEN]);
        truncate(&file, 100).unwrap();
        assert_eq!(content(&file), [7; 100]);
        truncate(&file, PAGE).unwrap();
        assert_eq!(content(&file)[..100], [7; 100]);
        assert_eq!(content(&file)[100..], [0; PAGE_LEN - 100]);
    });
}

#[test]
fn a_write_behind_a_truncation_leaves_zeroes_between() {
    on(1, || {
        let file = file_with("/f", &[7; PAGE_LEN]);
        truncate(&file, 1).unwrap();
        assert_eq!(write_at(&file, PAGE - 1, &[8]), Ok(1));
        let mut expected = vec![0; PAGE_LEN];
        (expected[0], expected[PAGE_LEN - 1]) = (7, 8);
        assert!(content(&file) == expected);
    });
}

#[test]
fn a_truncation_at_the_end_of_a_page_keeps_the_page() {
    on(1, || {
        let file = file_with("/f", &[7; 3 * PAGE_LEN]);
        truncate(&file, 2 * PAGE).unwrap();
        assert_eq!(content(&file), [7; 2 * PAGE_LEN]);
        assert_eq!(blocks(&file), 2 * PAGE_BLOCKS);
        truncate(&file, 3 * PAGE).unwrap();
        assert_eq!(content(&file)[2 * PAGE_LEN..], [0; PAGE_LEN]);
    });
}

#[test]
fn a_file_grows_by_zeroes_alone() {
    on(1, || {
        let file = file_with("/f", b"abc");
        truncate(&file, 3 * PAGE + 5).unwrap();
        assert_eq!(size(&file), 3 * PAGE + 5);
        assert_eq!(content(&file)[..3], *b"abc");
        assert!(content(&file)[3..].iter().all(|&b| b == 0));
        assert_eq!(blocks(&file), PAGE_BLOCKS, "and by no page");
    });
}

#[test]
fn an_open_that_truncates_empties_the_file() {
    on(1, || {
        let file = file_with("/f", &[7; 5000]);
        assert_eq!(file.seek(4000, Whence::Set), Ok(4000));
        drop(open_as("/f", o::WRONLY | o::TRUNC));
        assert_eq!((size(&file), blocks(&file)), (0, 0));
        assert_eq!(read(&file, 10), Ok(Vec::new()), "the offset is behind it");
        assert_eq!(write(&file, b"X"), Ok(1));
        assert_eq!(size(&file), 4001, "and stays");
    });
}

#[test]
fn no_byte_is_written_at_or_behind_the_largest_size() {
    on(1, || {
        let file = open("/f");
        assert_eq!(write_at(&file, MAX_SIZE, b"X"), Err(TooBig));
        assert_eq!(write_at(&file, MAX_SIZE + PAGE, b"X"), Err(TooBig));
        assert_eq!((size(&file), blocks(&file)), (0, 0));
        assert_eq!(write_at(&file, MAX_SIZE - 2, b"12345"), Ok(2));
        assert_eq!(size(&file), MAX_SIZE);
        assert_eq!(read_at(&file, MAX_SIZE - 3, 9), Ok(vec![0, b'1', b'2']));
        assert_eq!(blocks(&file), PAGE_BLOCKS);
        file.set_flags(o::APPEND);
        assert_eq!(write(&file, b"X"), Err(TooBig));
    });
}

#[test]
fn a_truncation_sets_any_size_up_to_the_largest() {
    on(1, || {
        let file = file_with("/f", b"abc");
        assert_eq!(truncate(&file, MAX_SIZE + 1), Err(TooBig));
        assert_eq!(truncate(&file, u64::MAX), Err(TooBig));
        assert_eq!(size(&file), 3);
        assert_eq!(truncate(&file, MAX_SIZE), Ok(()));
        assert_eq!(file.seek(0, Whence::End), Ok(MAX_SIZE));
        assert_eq!(truncate(&file, 2), Ok(()));
        assert_eq!(content(&file), b"ab");
    });
}

#[test]
fn a_write_ends_at_the_file_size_limit() {
    on_limited(100, || {
        let file = open("/f");
        set_limit(10);
        assert_eq!(write_at(&file, 6, b"abcdefgh"), Ok(4));
        assert_eq!((size(&file), signals()), (10, 0), "a part needs no signal");
        assert_eq!(write_at(&file, 9, b"XY"), Ok(1));
        assert_eq!(content(&file)[6..], *b"abcX");
    });
}

#[test]
fn a_write_at_the_file_size_limit_fails_with_a_signal() {
    on_limited(100, || {
        let file = file_with("/f", b"abcdefghij");
        set_limit(10);
        assert!(!is_change(&file, || {
            assert_eq!(write_at(&file, 10, b"X"), Err(TooBig));
        }));
        assert_eq!((size(&file), signals()), (10, 1));
        assert_eq!(write_at(&file, 11, b"X"), Err(TooBig));
        assert_eq!(signals(), 2);
        file.set_flags(o::APPEND);
        assert_eq!(
            write(&file, b"X"),
            Err(TooBig),
            "the end counts, not the offset"
        );
        assert_eq!((signals(), file.seek(0, Whence::Cur)), (3, Ok(0)));
        assert_eq!(write(&file, b""), Ok(0));
        assert_eq!(signals(), 3, "a write of nothing passes no limit");
    });
}

#[test]
fn a_file_beyond_the_limit_becomes_smaller_but_not_larger() {
    on_limited(100, || {
        let file = file_with("/f", &[7; 100]);
        set_limit(10);
        assert_eq!(truncate(&file, 101), Err(TooBig));
        assert_eq!((size(&file), signals()), (100, 1));
        assert_eq!(truncate(&file, 100), Ok(()));
        assert_eq!(truncate(&file, 50), Ok(()));
        assert_eq!(write_at(&file, 3, b"X"), Ok(1));
        assert_eq!(truncate(&file, 5), Ok(()));
        assert_eq!(truncate(&file, 10), Ok(()), "up to the limit");
        assert_eq!(truncate(&file, 11), Err(TooBig));
        assert_eq!(signals(), 2);
    });
}

#[test]
fn an_allocation_does_not_grow_a_file_beyond_the_limit() {
    on_limited(100, || {
        let file = open("/f");
        set_limit(2 * PAGE);
        assert_eq!(allocate(&file, 0, PAGE, PAGE + 1), Err(TooBig));
        assert_eq!((size(&file), blocks(&file), signals()), (0, 0, 1));
        assert_eq!(allocate(&file, 0, PAGE, PAGE), Ok(()));
        assert_eq!((size(&file), signals()), (2 * PAGE, 1));
    });
}

#[test]
fn a_write_sets_the_times_of_modification_and_change() {
    on(1, || {
        let file = file_with("/f", b"abc");
        assert!(is_change(&file, || assert_eq!(write(&file, b"X"), Ok(1))));
        assert!(is_change(&file, || {
            assert_eq!(write_at(&file, 0, b"X"), Ok(1), "the same byte");
        }));
        assert!(is_change(&file, || {
            assert_eq!(file.append(&mut IoBuf::Drain(b"X")), Ok(1));
        }));
        assert!(!is_change(&file, || assert_eq!(write(&file, b""), Ok(0))));
        assert!(!is_change(&file, || {
            assert_eq!(file.append(&mut IoBuf::Drain(b"")), Ok(0));
        }));
        assert!(!is_change(&file, || assert!(read_at(&file, 0, 9).is_ok())));
    });
}

#[test]
fn a_truncation_by_descriptor_is_a_change_whatever_the_size() {
    on(1, || {
        let file = file_with("/f", b"abc");
        for size in [2, 2, PAGE, 0, 0] {
            assert!(
                is_change(&file, || truncate(&file, size).unwrap()),
                "{size}"
            );
        }
    });
}

/// As of tmpfs in Linux: truncate(2) to the present size is a change if there are pages, which it looks for behind the end.
#[test]
fn a_truncation_by_path_to_the_same_size_changes_no_file_without_pages() {
    on(1, || {
        let file = open("/f");
        let inode = file.inode().unwrap();
        let by_path = |size| regular::truncate(inode, size, false).unwrap();
        assert!(!is_change(&file, || by_path(0)));
        assert!(is_change(&file, || by_path(5)));
        assert!(!is_change(&file, || by_path(5)));
        assert_eq!(write_at(&file, 0, b"X"), Ok(1));
        assert!(is_change(&file, || by_path(5)));
    });
}

#[test]
fn allocation_and_holes_are_changes() {
    on(1, || {
        let file = file_with("/f", &[7; 2 * PAGE_LEN]);
        let punch = fallocate::PUNCH_HOLE | fallocate::KEEP_SIZE;
        for how in [0, fallocate::KEEP_SIZE, punch, fallocate::ZERO_RANGE] {
            let act = || allocate(&file, how, 0, PAGE).unwrap();
            assert!(is_change(&file, act), "{how:#x}");
        }
        assert!(!is_change(&file, || {
            assert_eq!(allocate(&file, 0, MAX_SIZE, 1), Err(TooBig));
        }));
    });
}

#[test]
fn a_change_by_a_user_ends_the_set_bits() {
    on(1, || {
        let file = file_with("/f", &[7; 10]);
        let inode = file.inode().unwrap().clone();
        let ends = |act: &dyn Fn()| {
            inode.set_permissions(0o6775);
            act();
            inode.mode() & 0o7777 == 0o775
        };
        let write_one = || assert_eq!(write_at(&file, 0, b"X"), Ok(1));
        assert!(!ends(&write_one), "root keeps them");
        as_user(|| {
            assert!(ends(&write_one));
            assert!(ends(&|| truncate(&file, 5).unwrap()));
            assert!(ends(&|| allocate(&file, 0, 0, 20).unwrap()));
            assert!(!ends(&|| assert_eq!(write_at(&file, 0, b""), Ok(0))));
            assert!(!ends(&|| assert!(read_at(&file, 0, 5).is_ok())));
        });
    });
}

/// As ext4 in Linux; its tmpfs has no such call.
#[test]
fn a_range_that_is_zeroed_is_a_change_although_its_pages_cannot_be_made() {
    on_limited(4, || {
        let file = file_with("/f", &[7; PAGE_LEN]);
        let inode = file.inode().unwrap().clone();
        inode.set_permissions(0o6755);
        let fill = |how| assert_eq!(allocate(&file, how, 0, 10 * PAGE), Err(NoSpace));
        as_user(|| {
            assert!(!is_change(&file, || fill(0)));
            assert_eq!((inode.mode() & 0o7777, content(&file)[0]), (0o6755, 7));
            assert!(is_change(&file, || fill(fallocate::ZERO_RANGE)));
            assert_eq!((inode.mode() & 0o7777, content(&file)[0]), (0o755, 0));
        });
    });
}

#[test]
fn a_file_without_a_name_lives_until_it_is_closed() {
    on(1, || {
        let file = file_with("/f", &pattern(3 * PAGE_LEN));
        let quota = Calls::of_root().find("/").unwrap().mount.fs.quota.unwrap();
        assert_eq!(quota.used(), 3);
        Calls::of_root().unlink("/f").unwrap();
        assert_eq!(stat(&file).nlink, 0);
        assert!(content(&file) == pattern(3 * PAGE_LEN));
        assert_eq!(write_at(&file, 3 * PAGE, b"X"), Ok(1));
        let second = file.clone();
        drop(file);
        assert_eq!((size(&second), quota.used()), (3 * PAGE + 1, 4));
        drop(second);
        assert_eq!(quota.used(), 0);
    });
}

#[test]
fn a_file_that_runs_is_not_opened_for_writing() {
    on(1, || {
        let calls = Calls::of_root();
        drop(file_with("/f", b"program"));
        let inode = calls.find("/f").unwrap().dentry.inode.clone();
        let runs = inode.open_data(Use::Run).unwrap();
        for flags in [o::WRONLY, o::RDWR, o::WRONLY | o::TRUNC] {
            assert_eq!(calls.open("/f", flags).err(), Some(TextBusy));
        }
        assert_eq!(regular::truncate(&inode, 0, false), Err(TextBusy));
        assert_eq!(calls.read("/f"), Ok(b"program".to_vec()));
        inode.close_data(runs, Use::Run);
        let file = open_as("/f", o::WRONLY);
        assert_eq!(inode.open_data(Use::Run).err(), Some(TextBusy));
        drop(file);
        let runs = inode.open_data(Use::Run).expect("nobody writes");
        inode.close_data(runs, Use::Run);
    });
}

#[test]
fn a_write_from_memory_that_is_not_there_leaves_no_page() {
    on(1, || {
        let file = open("/f");
        let wrong = || IoBuf::user(NOWHERE, 10);
        assert_eq!(file.write_at(&mut wrong(), 2 * PAGE), Err(Fault));
        assert_eq!((size(&file), blocks(&file)), (0, 0));
        assert_eq!(file.write(&mut wrong()), Err(Fault));
        assert_eq!(file.seek(0, Whence::Cur), Ok(0));
        assert_eq!(write(&file, b"abc"), Ok(3));
        assert_eq!(file.write_at(&mut wrong(), 1), Err(Fault));
        assert_eq!(content(&file), b"abc", "what was there stays");
        assert_eq!(file.read_at(&mut wrong(), 0), Err(Fault));
    });
}

#[test]
fn a_killed_thread_begins_no_write() {
    on(1, || {
        let file = open("/f");
        let me = current();
        me.set(flag::KILLED);
        let written = write_at(&file, 0, b"X");
        let allocated = allocate(&file, 0, 0, PAGE);
        me.clear(flag::KILLED);
        assert_eq!(written, Err(Interrupted));
        assert_eq!(allocated, Err(Interrupted));
        assert_eq!((size(&file), blocks(&file)), (0, 0));
    });
}

#[test]
fn a_write_ends_where_the_file_system_is_full() {
    on_limited(3, || {
        let file = open("/f");
        let bytes = pattern(5 * PAGE_LEN);
        assert_eq!(write_at(&file, 10, &bytes), Ok(3 * PAGE_LEN - 10));
        assert!(content(&file)[10..] == bytes[..3 * PAGE_LEN - 10]);
        assert_eq!(write_at(&file, 3 * PAGE, b"X"), Err(NoSpace));
        assert_eq!(size(&file), 3 * PAGE, "a failure moves no end");
        assert_eq!(write_at(&file, 5, b"X"), Ok(1), "its page is there");
        truncate(&file, PAGE).unwrap();
        assert_eq!(
            write_at(&file, 7 * PAGE, b"X"),
            Ok(1),
            "there is room again"
        );
    });
}

/// As in Linux, which checks the limit only where the file grows.
#[test]
fn an_allocation_within_a_file_passes_no_limit() {
    on_limited(100, || {
        let file = file_with("/f", &[7; 2 * PAGE_LEN]);
        set_limit(PAGE);
        assert_eq!(allocate(&file, 0, 0, 2 * PAGE), Ok(()));
        assert_eq!(signals(), 0);
    });
}

/// As of tmpfs in Linux; its file systems on disks look at the limit only where the size grows.
#[test]
fn pages_behind_the_end_count_for_the_file_size_limit() {
    on_limited(100, || {
        let file = open("/f");
        set_limit(PAGE);
        let kept = allocate(&file, fallocate::KEEP_SIZE, 0, 2 * PAGE);
        assert_eq!((kept, blocks(&file), signals()), (Err(TooBig), 0, 1));
    });
}
