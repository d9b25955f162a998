//! Open files: the offset and what shares it, appending, access modes, and lseek(2).
#![cfg(not(shuttle))]

mod bytes;
mod support;

use bytes::{content, file_with, open, open_as, read, read_at, size, stat, write, write_at};
use hal::uio::IoBuf;
use support::{Calls, on};
use vfs::error::FsError::{BadFd, Invalid, IsDir, NoDevAddr, NotSeekable};
use vfs::fdtable::FdTable;
use vfs::file::{FileRef, Whence, o};
use vfs::pipe;

/// The largest position.
const TOP: u64 = i64::MAX as u64;

fn offset(file: &FileRef) -> u64 {
    file.seek(0, Whence::Cur).expect("a file with an offset")
}

/// Moves the offset to `pos`.
fn go(file: &FileRef, pos: u64) {
    assert_eq!(file.seek(pos as i64, Whence::Set), Ok(pos));
}

#[test]
fn descriptors_made_by_dup_share_the_offset() {
    on(1, || {
        let table = FdTable::new();
        let first = table.add(file_with("/f", b"abcdef"), false, 0, 10).unwrap();
        let second = table.add(table.get(first).unwrap(), false, 0, 10).unwrap();
        let third = table.dup_to(first, 7, false, 10).unwrap();
        let get = |fd| table.get(fd).unwrap();
        assert_eq!(read(&get(first), 2), Ok(b"ab".to_vec()));
        assert_eq!(read(&get(second), 2), Ok(b"cd".to_vec()));
        assert_eq!(read(&get(third), 2), Ok(b"ef".to_vec()));
        go(&get(second), 1);
        assert_eq!(offset(&get(first)), 1);
    });
}

#[test]
fn a_second_open_has_an_offset_of_its_own() {
    on(1, || {
        let first = file_with("/f", b"abcdef");
        let second = open("/f");
        assert_eq!(read(&first, 4), Ok(b"abcd".to_vec()));
        assert_eq!(read(&second, 3), Ok(b"abc".to_vec()));
        assert_eq!((offset(&first), offset(&second)), (4, 3));
    });
}

#[test]
fn a_child_shares_the_offsets_of_its_parent() {
    on(1, || {
        let parent = FdTable::new();
        let fd = parent
            .add(file_with("/f", b"abcdef"), false, 0, 10)
            .unwrap();
        let child = parent.fork().unwrap();
        assert_eq!(read(&child.get(fd).unwrap(), 3), Ok(b"abc".to_vec()));
        assert_eq!(read(&parent.get(fd).unwrap(), 3), Ok(b"def".to_vec()));
    });
}

#[test]
fn a_read_moves_the_offset_by_what_it_got() {
    on(1, || {
        let file = file_with("/f", b"abcdef");
        go(&file, 4);
        assert_eq!(read(&file, 10), Ok(b"ef".to_vec()));
        assert_eq!(offset(&file), 6);
        assert_eq!(read(&file, 10), Ok(Vec::new()), "the end");
        assert_eq!(offset(&file), 6);
    });
}

#[test]
fn a_read_beyond_the_end_gets_nothing_and_moves_nothing() {
    on(1, || {
        let file = file_with("/f", b"abc");
        go(&file, 1000);
        assert_eq!(read(&file, 10), Ok(Vec::new()));
        assert_eq!(offset(&file), 1000);
        assert_eq!(read_at(&file, 3, 10), Ok(Vec::new()));
    });
}

#[test]
fn a_write_moves_the_offset_and_replaces_what_was_there() {
    on(1, || {
        let file = file_with("/f", b"abcdef");
        go(&file, 2);
        assert_eq!(write(&file, b"XY"), Ok(2));
        assert_eq!(offset(&file), 4);
        assert_eq!(content(&file), b"abXYef");
        assert_eq!(write(&file, b"1234"), Ok(4));
        assert_eq!(content(&file), b"abXY1234");
    });
}

#[test]
fn reads_and_writes_at_a_position_leave_the_offset_alone() {
    on(1, || {
        let file = file_with("/f", b"abcdef");
        go(&file, 1);
        assert_eq!(read_at(&file, 3, 2), Ok(b"de".to_vec()));
        assert_eq!(offset(&file), 1);
        assert_eq!(write_at(&file, 4, b"XYZ"), Ok(3));
        assert_eq!(offset(&file), 1);
        assert_eq!(content(&file), b"abcdXYZ");
        assert_eq!(read(&file, 2), Ok(b"bc".to_vec()));
    });
}

#[test]
fn an_append_goes_to_the_end_whatever_the_offset() {
    on(1, || {
        drop(file_with("/f", b"abcdef"));
        let file = open_as("/f", o::RDWR | o::APPEND);
        assert_eq!(offset(&file), 0, "an open does not move it");
        assert_eq!(write(&file, b"12"), Ok(2));
        assert_eq!(offset(&file), 8, "behind what was written");
        go(&file, 3);
        assert_eq!(write(&file, b"34"), Ok(2));
        assert_eq!(offset(&file), 10);
        assert_eq!(content(&file), b"abcdef1234");
    });
}

#[test]
fn appends_of_two_opens_do_not_overwrite_each_other() {
    on(1, || {
        let first = open_as("/f", o::WRONLY | o::CREAT | o::APPEND);
        let second = open_as("/f", o::WRONLY | o::APPEND);
        for n in 0..5 {
            assert_eq!(write(&first, b"aa"), Ok(2));
            assert_eq!(write(&second, b"b"), Ok(1));
            assert_eq!(offset(&second), 3 * (n + 1));
        }
        assert_eq!(content(&open("/f")), b"aab".repeat(5));
    });
}

#[test]
fn an_append_goes_behind_what_a_truncation_left() {
    on(1, || {
        let file = open_as("/f", o::RDWR | o::CREAT | o::APPEND);
        assert_eq!(write(&file, b"abcdef"), Ok(6));
        bytes::truncate(&file, 2).unwrap();
        assert_eq!(write(&file, b"X"), Ok(1));
        assert_eq!((content(&file), offset(&file)), (b"abX".to_vec(), 3));
    });
}

/// As pwrite(2) says of Linux, against POSIX.
#[test]
fn a_write_at_a_position_appends_if_the_file_appends() {
    on(1, || {
        drop(file_with("/f", b"abcdef"));
        let file = open_as("/f", o::RDWR | o::APPEND);
        go(&file, 5);
        assert_eq!(write_at(&file, 0, b"12"), Ok(2));
        assert_eq!(content(&file), b"abcdef12");
        assert_eq!(offset(&file), 5);
    });
}

#[test]
fn a_single_append_needs_no_appending_file() {
    on(1, || {
        let file = file_with("/f", b"abc");
        assert_eq!(file.append(&mut IoBuf::Drain(b"12")), Ok(2));
        assert_eq!(offset(&file), 5);
        go(&file, 1);
        assert_eq!(file.append_at(&mut IoBuf::Drain(b"34"), 0), Ok(2));
        assert_eq!(offset(&file), 1, "with a position the offset stays");
        assert_eq!(write(&file, b"X"), Ok(1));
        assert_eq!(content(&file), b"aXc1234");
    });
}

#[test]
fn appending_is_turned_on_and_off() {
    on(1, || {
        let file = file_with("/f", b"abc");
        file.set_flags(o::APPEND);
        assert_eq!(write(&file, b"1"), Ok(1));
        file.set_flags(0);
        go(&file, 0);
        assert_eq!(write(&file, b"2"), Ok(1));
        assert_eq!(content(&file), b"2bc1");
    });
}

#[test]
fn only_the_status_flags_change_after_the_open() {
    on(1, || {
        let file = open_as("/f", o::WRONLY | o::CREAT | o::EXCL | o::TRUNC | o::CLOEXEC);
        assert_eq!(file.flags(), o::WRONLY, "the others act once");
        file.set_flags(o::RDWR | o::APPEND | o::NONBLOCK | o::SYNC | o::TRUNC | o::PATH);
        assert_eq!(file.flags(), o::WRONLY | o::APPEND | o::NONBLOCK);
        assert!(file.writable() && !file.readable());
        file.set_flags(0);
        assert_eq!(file.flags(), o::WRONLY);
    });
}

#[test]
fn a_file_open_for_reading_is_not_written() {
    on(1, || {
        drop(file_with("/f", b"abc"));
        let file = open_as("/f", o::RDONLY);
        assert_eq!(write(&file, b"X"), Err(BadFd));
        assert_eq!(write_at(&file, 0, b"X"), Err(BadFd));
        assert_eq!(file.append(&mut IoBuf::Drain(b"X")), Err(BadFd));
        assert_eq!(file.append_at(&mut IoBuf::Drain(b"X"), 0), Err(BadFd));
        assert_eq!(write(&file, b""), Err(BadFd), "not even nothing");
        assert_eq!(content(&file), b"abc");
    });
}

#[test]
fn a_file_open_for_writing_is_not_read() {
    on(1, || {
        drop(file_with("/f", b"abc"));
        let file = open_as("/f", o::WRONLY);
        assert_eq!(read(&file, 3), Err(BadFd));
        assert_eq!(read_at(&file, 0, 3), Err(BadFd));
        assert_eq!(offset(&file), 0);
    });
}

#[test]
fn a_place_is_neither_read_nor_written_nor_moved() {
    on(1, || {
        drop(file_with("/f", b"abc"));
        let place = open_as("/f", o::PATH);
        assert!(place.is_place() && !place.readable() && !place.writable());
        assert_eq!(read(&place, 3), Err(BadFd));
        assert_eq!(write(&place, b"X"), Err(BadFd));
        assert_eq!(place.seek(0, Whence::Set), Err(BadFd));
        assert_eq!(stat(&place).size, 3, "but it has attributes");
    });
}

#[test]
fn a_seek_counts_from_the_start_the_offset_or_the_end() {
    on(1, || {
        let file = file_with("/f", b"abcdef");
        assert_eq!(file.seek(4, Whence::Set), Ok(4));
        assert_eq!(file.seek(-3, Whence::Cur), Ok(1));
        assert_eq!(file.seek(2, Whence::Cur), Ok(3));
        assert_eq!(file.seek(-1, Whence::End), Ok(5));
        assert_eq!(read(&file, 5), Ok(b"f".to_vec()));
        assert_eq!(file.seek(10, Whence::End), Ok(16));
        assert_eq!(file.seek(0, Whence::Cur), Ok(16));
    });
}

#[test]
fn the_end_is_where_another_open_has_moved_it() {
    on(1, || {
        let (file, other) = (open("/f"), open("/f"));
        assert_eq!(file.seek(0, Whence::End), Ok(0));
        assert_eq!(write(&other, &[1; 5000]), Ok(5000));
        assert_eq!(file.seek(0, Whence::End), Ok(5000));
        bytes::truncate(&other, 10).unwrap();
        assert_eq!(file.seek(-1, Whence::End), Ok(9));
    });
}

#[test]
fn a_seek_before_the_start_fails_and_moves_nothing() {
    on(1, || {
        let file = file_with("/f", b"abcdef");
        go(&file, 4);
        assert_eq!(file.seek(-1, Whence::Set), Err(Invalid));
        assert_eq!(file.seek(-5, Whence::Cur), Err(Invalid));
        assert_eq!(file.seek(-7, Whence::End), Err(Invalid));
        assert_eq!(file.seek(i64::MIN, Whence::Cur), Err(Invalid));
        assert_eq!(file.seek(i64::MIN, Whence::End), Err(Invalid));
        assert_eq!(offset(&file), 4);
        assert_eq!(file.seek(-4, Whence::Cur), Ok(0), "the start itself");
    });
}

#[test]
fn a_seek_beyond_the_largest_position_fails_and_moves_nothing() {
    on(1, || {
        let file = file_with("/f", b"ab");
        assert_eq!(file.seek(i64::MAX, Whence::Set), Ok(TOP));
        assert_eq!(file.seek(1, Whence::Cur), Err(Invalid));
        assert_eq!(file.seek(i64::MAX, Whence::Cur), Err(Invalid));
        assert_eq!(file.seek(i64::MAX - 1, Whence::End), Err(Invalid));
        assert_eq!(offset(&file), TOP);
        assert_eq!(file.seek(i64::MAX - 2, Whence::End), Ok(TOP));
    });
}

#[test]
fn a_seek_beyond_the_end_does_not_grow_the_file() {
    on(1, || {
        let file = file_with("/f", b"abc");
        go(&file, 1 << 40);
        assert_eq!(size(&file), 3);
        assert_eq!(write(&file, b""), Ok(0));
        assert_eq!(size(&file), 3, "nor does a write of nothing");
    });
}

#[test]
fn a_transfer_that_would_end_beyond_the_largest_position_fails() {
    on(1, || {
        let file = file_with("/f", b"abc");
        assert_eq!(read_at(&file, TOP, 1), Err(Invalid));
        assert_eq!(read_at(&file, TOP - 1, 1), Ok(Vec::new()));
        assert_eq!(write_at(&file, TOP, b"X"), Err(Invalid));
        go(&file, TOP);
        assert_eq!(read(&file, 1), Err(Invalid));
        assert_eq!(write(&file, b"X"), Err(Invalid));
        assert_eq!(read(&file, 0), Ok(Vec::new()));
        file.set_flags(o::APPEND);
        assert_eq!(
            write(&file, b"X"),
            Err(Invalid),
            "by the offset, not the end"
        );
        assert_eq!((offset(&file), content(&file)), (TOP, b"abc".to_vec()));
    });
}

#[test]
fn a_pipe_has_no_position() {
    on(1, || {
        let (from, to) = pipe::open_pair(0).unwrap();
        for whence in [Whence::Set, Whence::Cur, Whence::End, Whence::Data] {
            assert_eq!(from.seek(0, whence), Err(NotSeekable));
        }
        assert_eq!(write_at(&to, 0, b"X"), Err(NotSeekable));
        assert_eq!(to.append_at(&mut IoBuf::Drain(b"X"), 0), Err(NotSeekable));
        assert_eq!(write(&to, b"ab"), Ok(2));
        assert_eq!(read_at(&from, 0, 1), Err(NotSeekable));
        assert_eq!(read(&from, 9), Ok(b"ab".to_vec()));
    });
}

#[test]
fn a_directory_is_no_sequence_of_bytes() {
    on(1, || {
        Calls::of_root().mkdir("/d").unwrap();
        let dir = open_as("/d", o::RDONLY | o::DIRECTORY);
        assert_eq!(read(&dir, 10), Err(IsDir));
        assert_eq!(write(&dir, b"X"), Err(BadFd));
        assert_eq!(dir.seek(0, Whence::Data), Err(Invalid));
        assert_eq!(dir.seek(0, Whence::Hole), Err(Invalid));
        assert_eq!(dir.seek(0, Whence::Set), Ok(0));
    });
}

#[test]
fn a_seek_for_data_counts_from_the_start() {
    on(1, || {
        let file = file_with("/f", b"abcdef");
        go(&file, 5);
        assert_eq!(file.seek(2, Whence::Data), Ok(2));
        assert_eq!(offset(&file), 2);
        assert_eq!(file.seek(1, Whence::Hole), Ok(6));
        assert_eq!(offset(&file), 6);
        assert_eq!(file.seek(6, Whence::Data), Err(NoDevAddr));
        assert_eq!(offset(&file), 6);
    });
}

#[test]
fn a_read_sets_the_time_of_access_once_after_a_change() {
    on(1, || {
        let file = file_with("/f", b"abc");
        let before = stat(&file);
        assert_eq!(read(&file, 1), Ok(b"a".to_vec()));
        let read_once = stat(&file);
        assert!(read_once.atime > before.mtime.max(before.atime));
        assert_eq!(
            (read_once.mtime, read_once.ctime),
            (before.mtime, before.ctime)
        );
        assert_eq!(read(&file, 1), Ok(b"b".to_vec()));
        assert_eq!(stat(&file).atime, read_once.atime, "relatime");
        assert_eq!(write(&file, b"X"), Ok(1));
        assert_eq!(stat(&file).atime, read_once.atime, "a write is no access");
        assert_eq!(read_at(&file, 0, 1), Ok(b"a".to_vec()));
        assert!(stat(&file).atime > read_once.atime);
    });
}

#[test]
fn a_time_of_access_older_than_a_day_is_set_again() {
    const HOUR: u64 = 3_600_000_000_000;
    on(1, || {
        let file = file_with("/f", b"abc");
        assert!(read(&file, 1).is_ok());
        let first = stat(&file).atime;
        hal::time::spin_ns(23 * HOUR);
        assert!(read(&file, 1).is_ok());
        assert_eq!(stat(&file).atime, first);
        hal::time::spin_ns(2 * HOUR);
        assert!(read(&file, 1).is_ok());
        assert!(stat(&file).atime >= first + 25 * HOUR as i64);
    });
}

#[test]
fn an_open_without_access_times_sets_none() {
    on(1, || {
        drop(file_with("/f", b"abc"));
        let file = open_as("/f", o::RDONLY | o::NOATIME);
        let before = stat(&file).atime;
        assert!(read(&file, 3).is_ok());
        assert_eq!(stat(&file).atime, before);
        file.set_flags(0);
        assert!(read_at(&file, 0, 3).is_ok());
        assert!(stat(&file).atime > before);
    });
}

/// As in Linux: read(2) of no bytes is an access, readv(2) of no bytes is none.
#[test]
fn an_empty_vector_is_no_access() {
    on(1, || {
        let file = file_with("/f", b"abc");
        let before = stat(&file).atime;
        assert_eq!(file.read(&mut IoBuf::vector(Vec::new())), Ok(0));
        assert_eq!(stat(&file).atime, before);
        assert_eq!(read(&file, 0), Ok(Vec::new()));
        assert!(stat(&file).atime > before);
    });
}
