//! Tables of descriptors: which number is given, what closes a file, close-on-exec, copies, limits and far numbers.
#![cfg(not(shuttle))]

mod reference;
#[path = "../support/mod.rs"]
mod support;

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use cred::{CapSet, Charge, Cred};
use hal::uio::IoBuf;
use support::counted::{Counted, counted};
use support::{on, threads};
use task::current::current;
use vfs::error::FsError::{BadFd, BrokenPipe, Busy, TooManyFiles};
use vfs::error::Result;
use vfs::fdtable::{FdTable, NR_OPEN, STEP, first_in_steps};
use vfs::file::{File, FileRef, Kind};
use vfs::pipe;
use vfs::watch::Signals;

/// A limit that no test but those of limits reaches.
const MANY: u64 = NR_OPEN;

fn file() -> FileRef {
    counted().0
}

/// The lowest free descriptor gets a new file.
fn add(table: &FdTable) -> Result<i32> {
    table.add(file(), false, 0, MANY)
}

fn close(table: &FdTable, fd: i32) -> Result<()> {
    table.remove(fd).map(drop)
}

fn is_open(table: &FdTable, fd: i32) -> bool {
    table.get(fd).is_ok()
}

/// Whether a descriptor refers to `file`.
fn is(table: &FdTable, fd: i32, file: &FileRef) -> bool {
    table
        .get(fd)
        .is_ok_and(|found| FileRef::ptr_eq(&found, file))
}

/// The descriptors that are open, as /proc/PID/fd lists them.
fn listed(table: &FdTable) -> Vec<i32> {
    let (mut from, mut all) = (0, Vec::new());
    while let Some((fd, _)) = first_in_steps(from, |range| table.first_in(&ksync::pin(), range)) {
        all.push(fd as i32);
        from = fd + 1;
    }
    all
}

/// A table whose descriptors 0 to `n - 1` all refer to `file`.
fn table_of(n: usize, file: &FileRef) -> Arc<FdTable> {
    let table = FdTable::new();
    for fd in 0..n {
        assert_eq!(table.add(file.clone(), false, 0, MANY), Ok(fd as i32));
    }
    table
}

#[test]
fn the_lowest_free_descriptor_is_given() {
    on(1, || {
        let table = FdTable::new();
        assert_eq!([(); 6].map(|()| add(&table).unwrap()), [0, 1, 2, 3, 4, 5]);
        for fd in [3, 1, 4] {
            close(&table, fd).unwrap();
        }
        assert_eq!([(); 4].map(|()| add(&table).unwrap()), [1, 3, 4, 6]);
    });
}

#[test]
fn a_least_number_leaves_the_lower_ones_free() {
    on(1, || {
        let table = FdTable::new();
        let from = |min| table.add(file(), false, min, MANY);
        assert_eq!(from(10), Ok(10));
        assert_eq!(from(10), Ok(11));
        assert_eq!(from(0), Ok(0));
        assert_eq!(from(1), Ok(1));
        close(&table, 0).unwrap();
        assert_eq!(from(1), Ok(2));
        assert_eq!(from(10), Ok(12));
        assert_eq!(from(0), Ok(0));
    });
}

#[test]
fn a_search_passes_thousands_of_open_descriptors() {
    on(1, || {
        let many = 2 * STEP + 10;
        let table = table_of(many, &file());
        close(&table, 3).unwrap();
        let from = |min| table.add(file(), false, min, MANY);
        assert_eq!(from(4), Ok(many as i32));
        assert_eq!(from(0), Ok(3));
        assert_eq!(from(0), Ok(many as i32 + 1));
        close(&table, STEP as i32 + 5).unwrap();
        assert_eq!(from(7), Ok(STEP as i32 + 5));
    });
}

#[test]
fn a_closed_descriptor_is_not_open() {
    on(1, || {
        let table = FdTable::new();
        let fd = add(&table).unwrap();
        assert_eq!(close(&table, fd), Ok(()));
        assert_eq!(close(&table, fd), Err(BadFd));
        assert!(!is_open(&table, fd));
        for fd in [-1, i32::MIN, 1, 5000, i32::MAX] {
            assert_eq!(close(&table, fd), Err(BadFd), "{fd}");
            assert_eq!(table.get(fd).err(), Some(BadFd), "{fd}");
            assert_eq!(table.cloexec(fd), Err(BadFd), "{fd}");
            assert_eq!(table.set_cloexec(fd, true), Err(BadFd), "{fd}");
        }
    });
}

#[test]
fn a_file_is_closed_with_its_last_descriptor() {
    on(1, || {
        let (table, (file, closed)) = (FdTable::new(), counted());
        table.add(file.clone(), false, 0, MANY).unwrap();
        table.add(file, false, 0, MANY).unwrap();
        close(&table, 0).unwrap();
        assert_eq!(closed.load(SeqCst), 0);
        close(&table, 1).unwrap();
        assert_eq!(closed.load(SeqCst), 1);
    });
}

#[test]
fn a_call_in_progress_keeps_the_file_of_a_closed_descriptor() {
    on(1, || {
        let (table, (file, closed)) = (FdTable::new(), counted());
        table.add(file, false, 0, MANY).unwrap();
        let used = table.get(0).unwrap();
        close(&table, 0).unwrap();
        assert!(!is_open(&table, 0));
        assert_eq!(closed.load(SeqCst), 0);
        drop(used);
        assert_eq!(closed.load(SeqCst), 1);
    });
}

#[test]
fn a_reader_that_waits_gets_its_bytes_although_the_descriptor_is_closed() {
    on(2, || {
        let table = FdTable::new();
        let (from, to) = pipe::open_pair(0).unwrap();
        let fd = table.add(from, false, 0, MANY).unwrap();
        let reader = table.get(fd).unwrap();
        threads::spawn(None, move || {
            let mut bytes = [0; 9];
            assert_eq!(reader.read(&mut IoBuf::Fill(&mut bytes)), Ok(2));
            assert_eq!(bytes[..2], *b"ab");
        });
        threads::nap(2);
        close(&table, fd).unwrap();
        threads::nap(2);
        assert_eq!(threads::ended(), 0, "the read goes on");
        assert_eq!(to.write(&mut IoBuf::Drain(b"ab")), Ok(2));
        threads::wait_for_ends(1);
        let more = to.write(&mut IoBuf::Drain(b"c"));
        assert_eq!(more, Err(BrokenPipe), "now the pipe has no reader");
    });
}

#[test]
fn a_limit_bounds_new_descriptors_alone() {
    on(1, || {
        let table = table_of(6, &file());
        assert_eq!(table.add(file(), false, 0, 6), Err(TooManyFiles));
        assert_eq!(table.add(file(), false, 0, 3), Err(TooManyFiles));
        assert_eq!(table.reserve(6), Err(TooManyFiles));
        assert!(is_open(&table, 5), "a lower limit closes nothing");
        close(&table, 4).unwrap();
        assert_eq!(table.add(file(), false, 0, 4), Err(TooManyFiles));
        assert_eq!(table.add(file(), false, 0, 5), Ok(4));
        assert_eq!(table.add(file(), false, 0, 7), Ok(6));
    });
}

#[test]
fn no_limit_allows_more_than_the_largest_descriptor() {
    on(1, || {
        let (table, last) = (FdTable::new(), NR_OPEN as i32 - 1);
        let from = |min| table.add(file(), false, min, u64::MAX);
        assert_eq!(from(NR_OPEN as usize), Err(TooManyFiles));
        assert_eq!(from(NR_OPEN as usize - 1), Ok(last));
        assert_eq!(from(NR_OPEN as usize - 1), Err(TooManyFiles));
        assert_eq!(table.dup_to(last, last + 1, false, u64::MAX), Err(BadFd));
        assert_eq!(from(0), Ok(0));
        assert_eq!(listed(&table), [0, last]);
    });
}

#[test]
fn a_duplicate_at_a_number_replaces_and_closes_what_was_there() {
    on(1, || {
        let (table, (old, closed), new) = (FdTable::new(), counted(), file());
        table.add(new.clone(), false, 0, MANY).unwrap();
        table.add(old.clone(), false, 0, MANY).unwrap();
        table.add(old, false, 0, MANY).unwrap();
        assert_eq!(table.dup_to(0, 1, false, MANY), Ok(1));
        assert!(is(&table, 1, &new) && is(&table, 0, &new));
        assert_eq!(closed.load(SeqCst), 0, "it has another descriptor");
        assert_eq!(table.dup_to(0, 2, false, MANY), Ok(2));
        assert_eq!(closed.load(SeqCst), 1);
    });
}

#[test]
fn a_duplicate_has_its_own_close_on_exec_flag() {
    on(1, || {
        let table = FdTable::new();
        table.add(file(), true, 0, MANY).unwrap();
        table.add(file(), true, 0, MANY).unwrap();
        table.dup_to(0, 1, false, MANY).unwrap();
        assert_eq!(table.cloexec(1), Ok(false), "dup2 clears it");
        table.dup_to(0, 5, false, MANY).unwrap();
        assert_eq!(table.cloexec(5), Ok(false));
        assert_eq!(table.cloexec(0), Ok(true), "that of the source stays");
        table.set_cloexec(0, false).unwrap();
        table.dup_to(0, 5, true, MANY).unwrap();
        assert_eq!(table.cloexec(5), Ok(true), "dup3 sets it");
        assert_eq!(table.cloexec(0), Ok(false));
    });
}

#[test]
fn a_duplicate_that_fails_closes_nothing() {
    on(1, || {
        let (table, mine) = (FdTable::new(), file());
        table.add(mine.clone(), false, 0, MANY).unwrap();
        for (from, to) in [(1, 0), (-1, 0), (0, -1), (0, 10), (0, 11), (0, i32::MAX)] {
            assert_eq!(table.dup_to(from, to, false, 10), Err(BadFd), "{from} {to}");
        }
        assert!(is(&table, 0, &mine));
        assert_eq!(listed(&table), [0]);
        assert_eq!(table.dup_to(0, 9, false, 10), Ok(9), "below the limit");
    });
}

#[test]
fn a_duplicate_takes_no_number_from_an_open_in_progress() {
    on(1, || {
        let (table, late) = (FdTable::new(), file());
        add(&table).unwrap();
        assert_eq!(table.reserve(MANY), Ok(1));
        assert_eq!(table.dup_to(0, 1, false, MANY), Err(Busy));
        table.fill(1, late.clone(), true);
        assert!(is(&table, 1, &late));
        assert_eq!(table.cloexec(1), Ok(true));
        assert_eq!(table.dup_to(0, 1, false, MANY), Ok(1));
    });
}

#[test]
fn a_reserved_descriptor_is_neither_open_nor_free() {
    on(1, || {
        let table = FdTable::new();
        assert_eq!(table.reserve(MANY), Ok(0));
        assert!(!is_open(&table, 0));
        assert_eq!(close(&table, 0), Err(BadFd));
        assert_eq!(table.cloexec(0), Err(BadFd));
        assert_eq!(table.set_cloexec(0, true), Err(BadFd));
        assert_eq!(add(&table), Ok(1));
        table.close_range(0, usize::MAX, false);
        table.close_on_exec();
        assert_eq!(add(&table), Ok(1), "it is still reserved");
        assert_eq!(
            table.fork().map(|copy| add(&copy)),
            Ok(Ok(0)),
            "not in a copy"
        );
        table.cancel(0);
        assert_eq!(add(&table), Ok(0));
    });
}

#[test]
fn a_pair_gets_two_descriptors_or_none() {
    on(1, || {
        let (table, (a, a_closed), (b, b_closed)) = (FdTable::new(), counted(), counted());
        add(&table).unwrap();
        let pair = table.add_pair(a.clone(), b.clone(), true, 2);
        assert_eq!(pair, Err(TooManyFiles));
        assert_eq!(listed(&table), [0]);
        assert_eq!(table.add_pair(a, b, true, 3), Ok((1, 2)));
        assert_eq!((table.cloexec(1), table.cloexec(2)), (Ok(true), Ok(true)));
        close(&table, 1).unwrap();
        assert_eq!((a_closed.load(SeqCst), b_closed.load(SeqCst)), (1, 0));
    });
}

#[test]
fn descriptors_are_taken_back_only_if_they_have_the_same_file() {
    on(1, || {
        let (table, (mine, closed), other) = (FdTable::new(), counted(), file());
        for _ in 0..3 {
            table.add(mine.clone(), false, 0, MANY).unwrap();
        }
        table
            .dup_to(
                table.add(other.clone(), false, 0, MANY).unwrap(),
                1,
                false,
                MANY,
            )
            .unwrap();
        close(&table, 3).unwrap();
        table.undo(&[(0, &mine), (1, &mine), (2, &mine), (9, &mine), (-1, &mine)]);
        assert_eq!(listed(&table), [1]);
        assert!(is(&table, 1, &other));
        assert_eq!(add(&table), Ok(0), "their numbers are free");
        drop(mine);
        assert_eq!(closed.load(SeqCst), 1);
    });
}

/// Notes the tables that have closed a descriptor of its file.
#[derive(Default)]
struct Closes(Mutex<Vec<u64>>);

impl Signals for Closes {
    fn descriptor_closed(&self, files: u64) {
        self.0.lock().expect("no panic").push(files);
    }

    fn closed(&self) {}
}

/// Of each way in which a descriptor ends, that of another thread's descriptor which a failed call takes back, too.
#[test]
fn signals_that_were_asked_for_end_with_any_descriptor() {
    let ways: [fn(&FdTable, &FileRef); 4] = [
        |table, _| close(table, 0).unwrap(),
        |table, file| table.undo(&[(0, file)]),
        |table, _| table.close_range(0, 0, false),
        |table, _| table.dup_to(1, 0, false, MANY).map(drop).unwrap(),
    ];
    on(1, move || {
        for (n, way) in ways.iter().enumerate() {
            let file = file();
            let table = table_of(1, &file);
            add(&table).unwrap();
            let closes = Arc::new(Closes::default());
            file.set_signals(closes.clone());
            table.note_lock();
            way(&table, &file);
            let told = closes.0.lock().expect("no panic");
            assert_eq!(*told, [table.lock_owner()], "way {n}");
        }
    });
}

#[test]
fn a_copy_has_the_same_files_and_flags() {
    on(1, || {
        let (parent, file) = (FdTable::new(), file());
        parent.add(file.clone(), true, 0, MANY).unwrap();
        parent.add(file.clone(), false, 4, MANY).unwrap();
        let child = parent.fork().unwrap();
        assert_eq!(listed(&child), [0, 4]);
        assert!(is(&child, 0, &file) && is(&child, 4, &file));
        assert_eq!((child.cloexec(0), child.cloexec(4)), (Ok(true), Ok(false)));
        assert_eq!(add(&child), Ok(1), "the lowest free one");
    });
}

#[test]
fn a_copy_and_its_original_change_independently() {
    on(1, || {
        let parent = table_of(3, &file());
        let child = parent.fork().unwrap();
        close(&parent, 0).unwrap();
        child.set_cloexec(1, true).unwrap();
        close(&child, 2).unwrap();
        assert_eq!((listed(&parent), listed(&child)), (vec![1, 2], vec![0, 1]));
        assert_eq!(parent.cloexec(1), Ok(false));
        assert_eq!((add(&parent), add(&child)), (Ok(0), Ok(2)));
    });
}

#[test]
fn a_file_lives_as_long_as_a_table_has_it() {
    on(1, || {
        let (parent, (file, closed)) = (FdTable::new(), counted());
        parent.add(file, false, 0, MANY).unwrap();
        let child = parent.fork().unwrap();
        let grandchild = child.fork().unwrap();
        close(&parent, 0).unwrap();
        drop(child);
        assert_eq!(closed.load(SeqCst), 0);
        drop(grandchild);
        assert_eq!(closed.load(SeqCst), 1);
    });
}

#[test]
fn a_large_table_is_copied_as_a_whole() {
    on(1, || {
        let (file, closed) = counted();
        let many = 2 * STEP + 100;
        let parent = table_of(many, &file);
        drop(file);
        for fd in [5, STEP as i32 + 1] {
            close(&parent, fd).unwrap();
        }
        let child = parent.fork().unwrap();
        drop(parent);
        assert_eq!(closed.load(SeqCst), 0);
        assert_eq!(child.open_in(&ksync::pin(), 0..usize::MAX), Some(many - 2));
        let added = [(); 3].map(|()| add(&child).unwrap());
        assert_eq!(added, [5, STEP as i32 + 1, many as i32]);
        drop(child);
        assert_eq!(closed.load(SeqCst), 1);
    });
}

#[test]
fn an_exec_closes_what_is_marked_alone() {
    on(1, || {
        let many = STEP + 10;
        let table = table_of(many, &file());
        let marked = [0, 7, STEP as i32 - 1, STEP as i32, many as i32 - 1];
        for fd in marked {
            table.set_cloexec(fd, true).unwrap();
        }
        table.set_cloexec(8, true).unwrap();
        table.set_cloexec(8, false).unwrap();
        table.close_on_exec();
        assert!(marked.iter().all(|&fd| !is_open(&table, fd)));
        let open = table.open_in(&ksync::pin(), 0..usize::MAX);
        assert_eq!(open, Some(many - marked.len()));
        assert_eq!(add(&table), Ok(0), "their numbers are free");
        table.close_on_exec();
        assert!(is_open(&table, 0), "a new file has no flag of the old one");
    });
}

#[test]
fn a_range_is_closed_with_both_its_ends() {
    on(1, || {
        let table = table_of(10, &file());
        table.close_range(3, 5, false);
        assert_eq!(listed(&table), [0, 1, 2, 6, 7, 8, 9]);
        table.close_range(2, 2, false);
        table.close_range(8, u32::MAX as usize, false);
        assert_eq!(listed(&table), [0, 1, 6, 7]);
        table.close_range(100, 200, false);
        table.close_range(2, 5, false);
        assert_eq!(listed(&table), [0, 1, 6, 7], "nothing is open there");
        assert_eq!(add(&table), Ok(2));
    });
}

#[test]
fn a_range_may_be_marked_instead() {
    on(1, || {
        let table = table_of(8, &file());
        close(&table, 4).unwrap();
        table.close_range(3, 5, true);
        assert_eq!(listed(&table).len(), 7, "none is closed");
        let marked = |fd| table.cloexec(fd).unwrap();
        assert!(marked(3) && marked(5) && !marked(2) && !marked(6));
        table.close_on_exec();
        assert_eq!(listed(&table), [0, 1, 2, 6, 7]);
    });
}

#[test]
fn far_descriptors_are_as_good_as_near_ones() {
    on(1, || {
        let (table, near) = (FdTable::new(), file());
        table.add(near.clone(), false, 0, MANY).unwrap();
        let far = [
            STEP as i32 - 10,
            STEP as i32 + 10,
            100_000,
            NR_OPEN as i32 - 1,
        ];
        for to in far {
            assert_eq!(table.dup_to(0, to, to % 4 == 0, MANY), Ok(to));
        }
        for to in far {
            assert!(is(&table, to, &near), "{to}");
            assert_eq!(table.cloexec(to), Ok(to % 4 == 0));
            assert!(!is_open(&table, to - 1) && !is_open(&table, to + 1));
        }
        assert_eq!(listed(&table), [&[0], &far[..]].concat());
        assert_eq!(listed(&table.fork().unwrap()), listed(&table));
        assert_eq!(table.add(near, false, 99_999, MANY), Ok(99_999));
        table.close_range(50_000, 150_000, false);
        assert_eq!(listed(&table), [0, far[0], far[1], far[3]]);
        assert_eq!(add(&table), Ok(1));
    });
}

#[test]
fn descriptors_keep_their_files_while_the_table_grows() {
    on(1, || {
        let (table, mut files) = (FdTable::new(), Vec::new());
        for fd in 0..STEP as i32 + 200 {
            files.push(file());
            let new = files.last().unwrap().clone();
            assert_eq!(table.add(new, fd % 3 == 0, 0, MANY), Ok(fd));
        }
        for (fd, file) in files.iter().enumerate() {
            assert!(is(&table, fd as i32, file), "{fd}");
            assert_eq!(table.cloexec(fd as i32), Ok(fd % 3 == 0), "{fd}");
        }
    });
}

#[test]
fn the_room_of_a_table_grows_and_a_copy_has_only_what_it_needs() {
    on(1, || {
        let table = FdTable::new();
        assert_eq!(table.size(), 0);
        add(&table).unwrap();
        let small = table.size();
        assert!((1..100).contains(&small), "{small}");
        table.dup_to(0, 1000, false, MANY).unwrap();
        let large = table.size();
        assert!(large > 1000, "{large}");
        close(&table, 1000).unwrap();
        assert_eq!(table.size(), large, "it never becomes smaller");
        assert!(table.fork().unwrap().size() < 100);
    });
}

#[test]
fn open_descriptors_are_counted_within_a_range() {
    on(1, || {
        let table = table_of(10, &file());
        close(&table, 4).unwrap();
        let count = |range| table.open_in(&ksync::pin(), range);
        assert_eq!(count(0..10), Some(9));
        assert_eq!(count(3..6), Some(2));
        assert_eq!(count(4..5), Some(0));
        assert_eq!(count(table.size()..usize::MAX), None, "behind the table");
        assert_eq!(FdTable::new().open_in(&ksync::pin(), 0..9), None);
    });
}

#[test]
fn a_large_table_is_charged_to_the_user_that_made_it() {
    on(1, || {
        let mut cred = Cred::root();
        cred.uid = 1000;
        cred.caps.effective = CapSet::EMPTY;
        cred.payer = task::account::of_thread(1000).unwrap();
        let payer = cred.payer;
        let root = current().replace_cred(Arc::new(cred));
        let table = FdTable::new();
        let shared = File::open_for_all(None, Kind::Other(Box::new(Counted(Arc::default()))), 0);
        table.add(shared.clone(), false, 0, MANY).unwrap();
        assert_eq!(payer.held(Charge::Memory), 0, "a small one is not charged");
        table.add(shared, false, 3000, MANY).unwrap();
        let charged = payer.held(Charge::Memory);
        assert!(charged >= 3000 * 8, "{charged}");
        let copy = table.fork().unwrap();
        assert!(payer.held(Charge::Memory) >= charged + 3000 * 8);
        drop(copy);
        assert_eq!(payer.held(Charge::Memory), charged);
        drop(table);
        assert_eq!(payer.held(Charge::Memory), 0);
        drop(current().replace_cred(root));
    });
}
