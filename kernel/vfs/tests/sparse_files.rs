//! Sparse files: holes, `st_blocks`, SEEK_DATA and SEEK_HOLE, fallocate(2); random calls as in a plain reference.
#![cfg(not(shuttle))]

mod bytes;
mod support;

use bytes::{
    PAGE, PAGE_BLOCKS, PAGE_LEN, allocate, blocks, content, file_with, on_limited, open, pattern,
    read_at, size, truncate, write_at,
};
use support::{Calls, on};
use vfs::error::FsError::{self, NoDevAddr, NoSpace, NotSupported, TooBig};
use vfs::file::{FileRef, Whence};
use vfs::inode::MAX_SIZE;
use vfs::regular::fallocate::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, is_meaningful};
use vm_host::Random;

const PUNCH: u32 = PUNCH_HOLE | KEEP_SIZE;
/// FALLOC_FL_COLLAPSE_RANGE, which files in memory do not have.
const COLLAPSE: u32 = 8;

/// SEEK_DATA.
fn data(file: &FileRef, from: u64) -> Result<u64, FsError> {
    file.seek(from as i64, Whence::Data)
}

/// SEEK_HOLE.
fn hole(file: &FileRef, from: u64) -> Result<u64, FsError> {
    file.seek(from as i64, Whence::Hole)
}

/// The runs of data of a file, as a program finds them by lseek(2).
fn runs(file: &FileRef) -> Vec<(u64, u64)> {
    let (mut at, mut found) = (0, Vec::new());
    loop {
        match data(file, at) {
            Ok(from) => {
                at = hole(file, from).expect("data end");
                assert!(at > from, "an empty run");
                found.push((from, at));
            }
            Err(error) => {
                assert_eq!(error, NoDevAddr);
                return found;
            }
        }
    }
}

#[test]
fn a_sparse_file_has_blocks_for_its_data_alone() {
    on(1, || {
        let file = open("/f");
        assert_eq!(blocks(&file), 0);
        assert_eq!(write_at(&file, 1 << 30, b"X"), Ok(1));
        assert_eq!((size(&file), blocks(&file)), ((1 << 30) + 1, PAGE_BLOCKS));
        assert_eq!(write_at(&file, 5 * PAGE - 1, b"XY"), Ok(2));
        assert_eq!(blocks(&file), 3 * PAGE_BLOCKS);
        assert_eq!(write_at(&file, 5 * PAGE, b"YZ"), Ok(2));
        assert_eq!(blocks(&file), 3 * PAGE_BLOCKS, "the same pages");
    });
}

#[test]
fn a_hole_reads_as_zeroes() {
    on(1, || {
        let file = open("/f");
        assert_eq!(write_at(&file, 3 * PAGE + 2, b"XY"), Ok(2));
        let all = content(&file);
        assert!(all[..3 * PAGE_LEN + 2].iter().all(|&b| b == 0));
        assert_eq!(all[3 * PAGE_LEN + 2..], *b"XY");
        assert_eq!(blocks(&file), PAGE_BLOCKS, "a read fills no hole");
    });
}

#[test]
fn an_empty_file_has_neither_data_nor_a_hole() {
    on(1, || {
        let file = open("/f");
        assert_eq!(data(&file, 0), Err(NoDevAddr));
        assert_eq!(hole(&file, 0), Err(NoDevAddr));
    });
}

#[test]
fn a_file_without_holes_has_one_at_its_end() {
    on(1, || {
        let file = file_with("/f", &pattern(2 * PAGE_LEN + 5));
        assert_eq!(data(&file, 0), Ok(0));
        assert_eq!(hole(&file, 0), Ok(2 * PAGE + 5));
        assert_eq!(hole(&file, 2 * PAGE + 4), Ok(2 * PAGE + 5));
        truncate(&file, 2 * PAGE).unwrap();
        assert_eq!(hole(&file, 1), Ok(2 * PAGE), "also at the end of a page");
    });
}

#[test]
fn a_seek_for_data_skips_the_holes_before_it() {
    on(1, || {
        let file = open("/f");
        for page in [2, 3, 9] {
            assert_eq!(write_at(&file, page * PAGE + 50, b"X"), Ok(1));
        }
        assert_eq!(data(&file, 0), Ok(2 * PAGE), "data begin with their page");
        assert_eq!(data(&file, 2 * PAGE + 7), Ok(2 * PAGE + 7), "in data: stay");
        assert_eq!(data(&file, 4 * PAGE), Ok(9 * PAGE));
        assert_eq!(data(&file, 9 * PAGE + 50), Ok(9 * PAGE + 50));
        let end = 9 * PAGE + 51;
        assert_eq!(runs(&file), [(2 * PAGE, 4 * PAGE), (9 * PAGE, end)]);
    });
}

#[test]
fn a_seek_for_a_hole_skips_the_data_before_it() {
    on(1, || {
        let file = file_with("/f", &pattern(2 * PAGE_LEN));
        assert_eq!(write_at(&file, 5 * PAGE, b"X"), Ok(1));
        assert_eq!(hole(&file, 0), Ok(2 * PAGE));
        assert_eq!(hole(&file, PAGE + 1), Ok(2 * PAGE));
        assert_eq!(
            hole(&file, 3 * PAGE + 9),
            Ok(3 * PAGE + 9),
            "in a hole: stay"
        );
        assert_eq!(hole(&file, 5 * PAGE), Ok(5 * PAGE + 1), "the end is a hole");
    });
}

#[test]
fn a_seek_for_data_in_the_last_hole_fails_and_moves_nothing() {
    on(1, || {
        let file = file_with("/f", &pattern(100));
        truncate(&file, 10 * PAGE).unwrap();
        assert_eq!(file.seek(77, Whence::Set), Ok(77));
        assert_eq!(data(&file, PAGE), Err(NoDevAddr));
        assert_eq!(file.seek(0, Whence::Cur), Ok(77));
        assert_eq!(hole(&file, PAGE), Ok(PAGE));
    });
}

#[test]
fn a_seek_for_data_or_a_hole_from_outside_the_file_fails() {
    on(1, || {
        let file = file_with("/f", &pattern(100));
        for whence in [Whence::Data, Whence::Hole] {
            for from in [100, 101, i64::MAX, -1, i64::MIN] {
                assert_eq!(file.seek(from, whence), Err(NoDevAddr), "{from}");
            }
            assert!(file.seek(99, whence).is_ok());
        }
    });
}

#[test]
fn data_are_found_just_before_the_largest_size() {
    on(1, || {
        let file = open("/f");
        assert_eq!(write_at(&file, MAX_SIZE - 1, b"X"), Ok(1));
        assert_eq!(runs(&file), [(MAX_SIZE - PAGE, MAX_SIZE)]);
        assert_eq!(blocks(&file), PAGE_BLOCKS);
        assert_eq!(hole(&file, 0), Ok(0));
    });
}

#[test]
fn far_pages_are_told_apart() {
    on(1, || {
        let file = open("/f");
        let places = [0, 1 << 20, 1 << 31, 1 << 32, 1 << 40, (1 << 43) + PAGE];
        for (n, &pos) in places.iter().enumerate() {
            assert_eq!(write_at(&file, pos, &[n as u8 + 1]), Ok(1));
        }
        for (n, &pos) in places.iter().enumerate() {
            assert_eq!(read_at(&file, pos, 1), Ok(vec![n as u8 + 1]), "{pos:#x}");
        }
        let starts: Vec<u64> = runs(&file).iter().map(|run| run.0).collect();
        assert_eq!(starts, places);
        truncate(&file, 1 << 32).unwrap();
        assert_eq!(blocks(&file), 3 * PAGE_BLOCKS);
    });
}

#[test]
fn a_punched_hole_frees_whole_pages_and_zeroes_parts() {
    on(1, || {
        let mut expected = pattern(5 * PAGE_LEN);
        let file = file_with("/f", &expected);
        let (from, to) = (PAGE_LEN - 10, 3 * PAGE_LEN + 10);
        allocate(&file, PUNCH, from as u64, (to - from) as u64).unwrap();
        expected[from..to].fill(0);
        assert!(content(&file) == expected);
        assert_eq!(blocks(&file), 3 * PAGE_BLOCKS);
        assert_eq!(runs(&file), [(0, PAGE), (3 * PAGE, 5 * PAGE)]);
    });
}

#[test]
fn a_hole_within_one_page_frees_nothing() {
    on(1, || {
        let mut expected = pattern(PAGE_LEN);
        let file = file_with("/f", &expected);
        allocate(&file, PUNCH, 100, 50).unwrap();
        expected[100..150].fill(0);
        assert!(content(&file) == expected);
        assert_eq!(blocks(&file), PAGE_BLOCKS);
    });
}

#[test]
fn a_hole_beyond_the_end_does_not_move_the_end() {
    on(1, || {
        let file = file_with("/f", &[7; 100]);
        allocate(&file, PUNCH, 50, 10 * PAGE).unwrap();
        assert_eq!(size(&file), 100);
        assert_eq!(content(&file)[..50], [7; 50]);
        assert_eq!(content(&file)[50..], [0; 50]);
        allocate(&file, PUNCH, 20 * PAGE, PAGE).unwrap();
        assert_eq!((size(&file), blocks(&file)), (100, PAGE_BLOCKS));
    });
}

#[test]
fn an_allocation_grows_the_file_by_zeroes_with_blocks() {
    on(1, || {
        let file = file_with("/f", b"abc");
        allocate(&file, 0, PAGE + 100, 2 * PAGE).unwrap();
        assert_eq!(size(&file), 3 * PAGE + 100);
        assert_eq!(blocks(&file), 4 * PAGE_BLOCKS);
        let all = content(&file);
        assert!(all[..3] == *b"abc" && all[3..].iter().all(|&b| b == 0));
        allocate(&file, 0, 0, 10).unwrap();
        assert_eq!(size(&file), 3 * PAGE + 100, "and makes no file smaller");
        assert_eq!(content(&file)[..3], *b"abc");
    });
}

/// As in Linux: a page is data when it is written to, or allocated for the second time.
#[test]
fn allocated_pages_are_a_hole_until_they_are_written_to() {
    on(1, || {
        let file = open("/f");
        allocate(&file, 0, 0, 6 * PAGE).unwrap();
        assert_eq!(runs(&file), []);
        assert_eq!(hole(&file, 0), Ok(0));
        assert_eq!(write_at(&file, 2 * PAGE + 5, b"X"), Ok(1));
        assert_eq!(runs(&file), [(2 * PAGE, 3 * PAGE)]);
        allocate(&file, 0, 4 * PAGE, PAGE).unwrap();
        assert_eq!(runs(&file), [(2 * PAGE, 3 * PAGE), (4 * PAGE, 5 * PAGE)]);
        assert_eq!(blocks(&file), 6 * PAGE_BLOCKS);
    });
}

#[test]
fn pages_behind_the_end_stay_until_a_truncation_to_the_size() {
    on(1, || {
        let file = file_with("/f", b"abc");
        allocate(&file, KEEP_SIZE, 0, 4 * PAGE).unwrap();
        assert_eq!((size(&file), blocks(&file)), (3, 4 * PAGE_BLOCKS));
        assert_eq!(
            data(&file, 3),
            Err(NoDevAddr),
            "they are no part of the file"
        );
        truncate(&file, 2 * PAGE).unwrap();
        assert_eq!(blocks(&file), 4 * PAGE_BLOCKS, "growing keeps them");
        truncate(&file, 2 * PAGE).unwrap();
        assert_eq!(blocks(&file), 2 * PAGE_BLOCKS);
        assert_eq!(content(&file)[..4], *b"abc\0");
    });
}

#[test]
fn a_zeroed_range_keeps_its_blocks() {
    on(1, || {
        let mut expected = pattern(4 * PAGE_LEN);
        let file = file_with("/f", &expected);
        allocate(&file, ZERO_RANGE, 100, 2 * PAGE).unwrap();
        expected[100..][..2 * PAGE_LEN].fill(0);
        assert!(content(&file) == expected);
        assert_eq!(blocks(&file), 4 * PAGE_BLOCKS);
        allocate(&file, ZERO_RANGE | KEEP_SIZE, 3 * PAGE, 3 * PAGE).unwrap();
        assert_eq!((size(&file), blocks(&file)), (4 * PAGE, 6 * PAGE_BLOCKS));
        allocate(&file, ZERO_RANGE, 3 * PAGE, 2 * PAGE).unwrap();
        assert_eq!(size(&file), 5 * PAGE);
    });
}

#[test]
fn what_files_in_memory_do_not_have_is_refused() {
    on(1, || {
        let file = file_with("/f", &[7; 100]);
        for how in [PUNCH_HOLE, COLLAPSE, 32, 64] {
            assert_eq!(allocate(&file, how, 0, PAGE), Err(NotSupported), "{how}");
        }
        for (from, len) in [(MAX_SIZE, 1), (0, MAX_SIZE + 1), (u64::MAX, 2)] {
            assert_eq!(allocate(&file, 0, from, len), Err(TooBig));
            assert_eq!(allocate(&file, PUNCH, from, len), Err(TooBig));
        }
        assert_eq!(content(&file), [7; 100]);
    });
}

#[test]
fn flags_of_fallocate_exclude_each_other() {
    for how in [
        0,
        KEEP_SIZE,
        ZERO_RANGE,
        ZERO_RANGE | KEEP_SIZE,
        PUNCH,
        COLLAPSE,
    ] {
        assert!(is_meaningful(how), "{how:#x}");
    }
    for how in [PUNCH_HOLE, PUNCH | ZERO_RANGE, 4, 0x80, 1 << 31] {
        assert!(!is_meaningful(how), "{how:#x}");
    }
}

#[test]
fn an_allocation_that_does_not_fit_changes_nothing() {
    on_limited(8, || {
        let file = file_with("/f", &[7; PAGE_LEN]);
        let quota = Calls::of_root().find("/").unwrap().mount.fs.quota.unwrap();
        assert_eq!(write_at(&file, 4 * PAGE, &[8]), Ok(1));
        assert_eq!(allocate(&file, 0, 0, 10 * PAGE), Err(NoSpace));
        assert_eq!((size(&file), quota.used()), (4 * PAGE + 1, 2));
        assert_eq!(runs(&file), [(0, PAGE), (4 * PAGE, 4 * PAGE + 1)]);
        assert_eq!(allocate(&file, 0, 0, 8 * PAGE), Ok(()));
        assert_eq!(quota.used(), 8);
    });
}

/// What a page of the reference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Hole,
    /// Allocated, and not yet data.
    Blank,
    Data,
}

/// Pages that the reference has: more than a file of the random calls.
const PAGES: usize = 16;

/// A file as an array of bytes, and of what each page is.
struct Plain {
    bytes: Vec<u8>,
    size: usize,
    pages: [Page; PAGES],
}

impl Plain {
    fn write(&mut self, pos: usize, bytes: &[u8]) {
        self.bytes[pos..][..bytes.len()].copy_from_slice(bytes);
        self.size = self.size.max(pos + bytes.len());
        let last = (pos + bytes.len() - 1) / PAGE_LEN;
        self.pages[pos / PAGE_LEN..=last].fill(Page::Data);
    }

    fn truncate(&mut self, size: usize) {
        if size <= self.size {
            self.bytes[size..].fill(0);
            self.pages[size.div_ceil(PAGE_LEN)..].fill(Page::Hole);
        }
        self.size = size;
    }

    fn punch(&mut self, from: usize, to: usize) {
        self.bytes[from..to].fill(0);
        let whole = from.div_ceil(PAGE_LEN)..to / PAGE_LEN;
        if !whole.is_empty() {
            self.pages[whole].fill(Page::Hole);
        }
    }

    fn allocate(&mut self, how: u32, from: usize, to: usize) {
        if how & (PUNCH_HOLE | ZERO_RANGE) != 0 {
            self.punch(from, to);
        }
        if how & PUNCH_HOLE != 0 {
            return;
        }
        for page in &mut self.pages[from / PAGE_LEN..to.div_ceil(PAGE_LEN)] {
            *page = if *page == Page::Hole {
                Page::Blank
            } else {
                Page::Data
            };
        }
        if how & KEEP_SIZE == 0 {
            self.size = self.size.max(to);
        }
    }

    /// The first byte at or after `from` that is data, or is not.
    fn next(&self, from: usize, data: bool) -> Option<usize> {
        (from..self.size).find(|at| (self.pages[at / PAGE_LEN] == Page::Data) == data)
    }

    fn runs(&self) -> Vec<(u64, u64)> {
        let (mut at, mut found) = (0, Vec::new());
        while let Some(from) = self.next(at, true) {
            at = self.next(from, false).unwrap_or(self.size);
            found.push((from as u64, at as u64));
        }
        found
    }
}

/// A place in a file: often near the end of a page.
fn place(random: &mut Random) -> usize {
    let (page, near) = (random.below(PAGES - 4), random.below(5));
    match random.below(3) {
        0 => page * PAGE_LEN + near,
        1 => ((page + 1) * PAGE_LEN).saturating_sub(near),
        _ => page * PAGE_LEN + random.below(PAGE_LEN),
    }
}

fn play(random: &mut Random, file: &FileRef, plain: &mut Plain) {
    let (pos, end) = (place(random), place(random));
    let (from, to) = (pos.min(end), pos.max(end) + 1);
    match random.below(8) {
        0..=2 => {
            let bytes = pattern(1 + random.below(2 * PAGE_LEN));
            assert_eq!(write_at(file, pos as u64, &bytes), Ok(bytes.len()));
            plain.write(pos, &bytes);
        }
        3 => {
            assert_eq!(truncate(file, pos as u64), Ok(()));
            plain.truncate(pos);
        }
        4 => {
            assert_eq!(truncate(file, plain.size as u64), Ok(()));
            plain.truncate(plain.size);
        }
        _ => {
            let hows = [
                0,
                KEEP_SIZE,
                PUNCH,
                PUNCH,
                ZERO_RANGE,
                ZERO_RANGE | KEEP_SIZE,
            ];
            let how = hows[random.below(hows.len())];
            let made = allocate(file, how, from as u64, (to - from) as u64);
            assert_eq!(made, Ok(()), "{how:#x} {from}..{to}");
            plain.allocate(how, from, to);
        }
    }
}

fn random_calls(seed: u64) {
    on(1, move || {
        let (mut random, file) = (Random(seed), open("/f"));
        let mut plain = Plain {
            bytes: vec![0; PAGES * PAGE_LEN],
            size: 0,
            pages: [Page::Hole; PAGES],
        };
        for n in 0..1500 {
            play(&mut random, &file, &mut plain);
            assert_eq!(size(&file), plain.size as u64, "call {n}");
            let used = plain.pages.iter().filter(|&&p| p != Page::Hole).count();
            assert_eq!(blocks(&file), used as u64 * PAGE_BLOCKS, "call {n}");
            assert_eq!(runs(&file), plain.runs(), "call {n}");
            let from = place(&mut random);
            let expected = plain.bytes.get(from..plain.size).unwrap_or(&[]);
            let got = read_at(&file, from as u64, PAGES * PAGE_LEN);
            assert!(got.as_deref() == Ok(expected), "bytes after call {n}");
        }
    });
}

#[test]
fn random_calls_as_in_the_reference_1() {
    random_calls(0x1357_9bdf_0246_8ace);
}

#[test]
fn random_calls_as_in_the_reference_2() {
    random_calls(0xfeed_beef_cafe_0001);
}

#[test]
fn random_calls_as_in_the_reference_3() {
    random_calls(0x0bad_c0de_5eed_1234);
}
