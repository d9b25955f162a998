//! Random calls on a table of descriptors, and on a plain list: the results and the tables must be the same.
#![cfg(not(shuttle))]

mod support;

use std::sync::Arc;

use support::{Calls, on, threads};
use vfs::error::FsError;
use vfs::fdtable::FdTable;
use vfs::file::{FileRef, o};
use vm_host::Random;

/// What a slot of the reference has: the number of the file, and the close-on-exec flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    Reserved,
    Open(usize, bool),
}

/// The table and its reference, with the files that they have.
struct Both {
    table: Arc<FdTable>,
    slots: Vec<Slot>,
    files: Vec<FileRef>,
}

const LIMIT: u64 = 40;

/// Kinds of calls. The last one replaces the table, so it is not played while a descriptor is reserved.
const MOST: usize = 12;

impl Both {
    fn slot(&self, fd: i32) -> Slot {
        let fd = usize::try_from(fd).unwrap_or(usize::MAX);
        self.slots.get(fd).copied().unwrap_or(Slot::Free)
    }

    fn set(&mut self, fd: i32, slot: Slot) {
        self.slots[fd as usize] = slot;
    }

    fn lowest(&self, min: usize, limit: u64) -> Result<i32, FsError> {
        let free = |&fd: &usize| self.slot(fd as i32) == Slot::Free;
        let fd = (min..).find(free).expect("an endless list");
        if (fd as u64) < limit {
            Ok(fd as i32)
        } else {
            Err(FsError::TooManyFiles)
        }
    }

    fn is_open(&self, fd: i32) -> Result<(usize, bool), FsError> {
        match self.slot(fd) {
            Slot::Open(file, cloexec) => Ok((file, cloexec)),
            _ => Err(FsError::BadFd),
        }
    }

    fn add(&mut self, random: &mut Random) {
        let (file, cloexec, min) = (
            random.below(self.files.len()),
            random.below(2) == 0,
            random.below(8),
        );
        let expected = self.lowest(min, LIMIT);
        let got = self
            .table
            .add(self.files[file].clone(), cloexec, min, LIMIT);
        assert_eq!(got, expected, "add from {min}");
        if let Ok(fd) = got {
            self.set(fd, Slot::Open(file, cloexec));
        }
    }

    fn add_pair(&mut self, random: &mut Random) {
        let (a, b) = (
            random.below(self.files.len()),
            random.below(self.files.len()),
        );
        let first = self.lowest(0, LIMIT);
        let second = first.and_then(|first| self.lowest(first as usize + 1, LIMIT));
        let expected = first.and_then(|first| Ok((first, second?)));
        let got = self
            .table
            .add_pair(self.files[a].clone(), self.files[b].clone(), true, LIMIT);
        assert_eq!(got, expected, "pair");
        if let Ok((x, y)) = got {
            self.set(x, Slot::Open(a, true));
            self.set(y, Slot::Open(b, true));
        }
    }

    fn reserve(&mut self, random: &mut Random) {
        let expected = self.lowest(0, LIMIT);
        let got = self.table.reserve(LIMIT);
        assert_eq!(got, expected, "reserve");
        let Ok(fd) = got else { return };
        self.set(fd, Slot::Reserved);
        assert!(self.table.get(fd).is_err(), "it is not open yet");
        // Others meanwhile.
        for _ in 0..random.below(3) {
            self.play(random, MOST - 1);
        }
        let file = random.below(self.files.len());
        if random.below(2) == 0 {
            self.table.fill(fd, self.files[file].clone(), false);
            self.set(fd, Slot::Open(file, false));
        } else {
            self.table.cancel(fd);
            self.set(fd, Slot::Free);
        }
    }

    fn dup(&mut self, random: &mut Random) {
        let (from, to) = (
            random.below(LIMIT as usize) as i32,
            random.below(LIMIT as usize + 3) as i32 - 1,
        );
        let expected = match (self.is_open(from), self.slot(to)) {
            (Err(e), _) => Err(e),
            _ if to < 0 || to as u64 >= LIMIT => Err(FsError::BadFd),
            (_, Slot::Reserved) => Err(FsError::Busy),
            (Ok((file, _)), _) => Ok(file),
        };
        let got = self.table.dup_to(from, to, false, LIMIT);
        assert_eq!(got, expected.map(|_| to), "dup {from} to {to}");
        if let Ok(file) = expected {
            self.set(to, Slot::Open(file, false));
        }
    }

    /// Plays one of the first `of` kinds of calls.
    fn play(&mut self, random: &mut Random, of: usize) {
        let fd = random.below(LIMIT as usize) as i32;
        match random.below(of) {
            0..=3 => self.add(random),
            4 => self.add_pair(random),
            5 => self.reserve(random),
            6..=7 => {
                let expected = self.is_open(fd).map(|_| ());
                assert_eq!(self.table.remove(fd).map(|_| ()), expected, "close {fd}");
                if expected.is_ok() {
                    self.set(fd, Slot::Free);
                }
            }
            8 => self.dup(random),
            9 => {
                let on = random.below(2) == 0;
                let open = self.is_open(fd);
                assert_eq!(
                    self.table.set_cloexec(fd, on),
                    open.map(|_| ()),
                    "flag of {fd}"
                );
                if let Ok((file, _)) = open {
                    self.set(fd, Slot::Open(file, on));
                }
            }
            10 => {
                let (first, last) = (fd as usize, fd as usize + random.below(6));
                let mark = random.below(2) == 0;
                self.table.close_range(first, last, mark);
                for fd in first as i32..=last as i32 {
                    if let Slot::Open(file, _) = self.slot(fd) {
                        self.set(
                            fd,
                            if mark {
                                Slot::Open(file, true)
                            } else {
                                Slot::Free
                            },
                        );
                    }
                }
            }
            _ => {
                // The child goes on with the copy, and executes a program.
                self.table = self.table.fork().expect("memory for a table");
                self.table.close_on_exec();
                for slot in &mut self.slots {
                    // A copy has no reservations.
                    if !matches!(slot, Slot::Open(_, false)) {
                        *slot = Slot::Free;
                    }
                }
            }
        }
    }

    fn compare(&self) {
        for fd in -1..LIMIT as i32 + 2 {
            let expected = self.is_open(fd);
            let got = self.table.get(fd).map(|found| {
                let is_it = |file: &FileRef| FileRef::ptr_eq(file, &found);
                self.files.iter().position(is_it).expect("one of the files")
            });
            assert_eq!(got, expected.map(|(file, _)| file), "file of {fd}");
            assert_eq!(
                self.table.cloexec(fd),
                expected.map(|(_, flag)| flag),
                "flag of {fd}"
            );
        }
    }
}

fn random_calls(seed: u64) {
    on(1, move || {
        let calls = Calls::of_root();
        let files = (0..5).map(|n| calls.open(&format!("/{n}"), o::RDWR | o::CREAT));
        let mut both = Both {
            table: FdTable::new(),
            slots: vec![Slot::Free; 2 * LIMIT as usize],
            files: files.map(|file| file.expect("a new file")).collect(),
        };
        let mut random = Random(seed);
        for _ in 0..5000 {
            both.play(&mut random, MOST);
            both.compare();
        }
    });
}

#[test]
fn random_calls_as_in_the_reference_1() {
    random_calls(0x5eed_0000_0000_0001);
}

#[test]
fn random_calls_as_in_the_reference_2() {
    random_calls(0x5eed_1111_2222_3333);
}

/// Threads open and close in one table: no descriptor is given to two of them.
#[test]
fn threads_get_different_descriptors() {
    on(4, || {
        let calls = Calls::of_root();
        let table = FdTable::new();
        for n in 0..4 {
            let (table, file) = (
                table.clone(),
                calls.open(&format!("/{n}"), o::RDWR | o::CREAT),
            );
            let file = file.expect("a new file");
            threads::spawn(None, move || {
                for _ in 0..300 {
                    let fd = table
                        .add(file.clone(), false, 0, 100)
                        .expect("few are open");
                    let mine = table.get(fd).expect("just opened");
                    assert!(
                        FileRef::ptr_eq(&mine, &file),
                        "another thread has {fd}, too"
                    );
                    drop(mine);
                    let closed = table.remove(fd).expect("still open");
                    assert!(FileRef::ptr_eq(&closed, &file));
                }
            });
        }
        threads::wait_for_ends(4);
        assert!((0..10).all(|fd| table.get(fd).is_err()));
    });
}
