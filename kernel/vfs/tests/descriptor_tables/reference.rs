//! Random calls of processes that open, duplicate, close, fork, execute and exit, and a reference that knows which descriptors
//! are open and which files are closed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use vfs::error::FsError::BadFd;
use vfs::fdtable::{FdTable, STEP};
use vm_host::Random;

use crate::support::on;
use crate::{MANY, close, counted, listed};

/// A process: its table, and what it should have at each descriptor: the number of a file, and the flag.
struct Process {
    table: Arc<FdTable>,
    slots: BTreeMap<i32, (usize, bool)>,
}

/// Processes, and each file ever opened by how often it was closed.
struct World {
    processes: Vec<Process>,
    closed: Vec<Arc<AtomicU32>>,
}

/// Few, and some of them far apart.
fn number(random: &mut Random) -> i32 {
    let base = [0, 0, 0, STEP as i32 - 8, 20_000][random.below(5)];
    base + random.below(12) as i32
}

impl World {
    fn open(&mut self, at: usize, random: &mut Random) {
        let (file, closed) = counted();
        self.closed.push(closed);
        let (min, flag) = (number(random), random.below(2) == 0);
        let process = &mut self.processes[at];
        let free = |fd: &i32| !process.slots.contains_key(fd);
        let expected = (min..).find(free).unwrap();
        let got = process.table.add(file, flag, min as usize, MANY);
        assert_eq!(got, Ok(expected), "from {min}");
        process
            .slots
            .insert(expected, (self.closed.len() - 1, flag));
    }

    fn play(&mut self, random: &mut Random) {
        let at = random.below(self.processes.len());
        let (fd, to, flag) = (number(random), number(random), random.below(2) == 0);
        let many = self.processes.len();
        let Process { table, slots } = &mut self.processes[at];
        match random.below(9) {
            0..=2 => self.open(at, random),
            3..=4 => {
                let expected = slots.remove(&fd).map(drop).ok_or(BadFd);
                assert_eq!(close(table, fd), expected, "close {fd}");
            }
            5 => {
                let expected = slots.get(&fd).map(|slot| slot.0).ok_or(BadFd);
                let got = table.dup_to(fd, to, flag, MANY);
                assert_eq!(got, expected.map(|_| to), "dup {fd} {to}");
                if let Ok(file) = expected {
                    slots.insert(to, (file, flag));
                }
            }
            6 => {
                table.close_range(fd as usize, to as usize, false);
                slots.retain(|&open, _| open < fd || open > to);
            }
            7 if many < 5 => {
                let (table, slots) = (table.fork().unwrap(), slots.clone());
                self.processes.push(Process { table, slots });
            }
            7 if many > 1 => drop(self.processes.swap_remove(at)),
            _ => {
                table.close_on_exec();
                slots.retain(|_, slot| !slot.1);
            }
        }
    }

    fn compare(&self) {
        let mut users = vec![0; self.closed.len()];
        for Process { table, slots } in &self.processes {
            assert!(listed(table).iter().eq(slots.keys()));
            for (&fd, &(file, flag)) in slots {
                users[file] += 1;
                assert_eq!(table.cloexec(fd), Ok(flag), "flag of {fd}");
            }
        }
        for (file, (closed, users)) in self.closed.iter().zip(users).enumerate() {
            let expected = u32::from(users == 0);
            assert_eq!(closed.load(SeqCst), expected, "file {file} of {users}");
        }
    }
}

fn random_calls(seed: u64) {
    on(1, move || {
        let first = Process {
            table: FdTable::new(),
            slots: BTreeMap::new(),
        };
        let mut world = World {
            processes: vec![first],
            closed: Vec::new(),
        };
        let mut random = Random(seed);
        for _ in 0..1500 {
            world.play(&mut random);
            world.compare();
        }
    });
}

#[test]
fn random_calls_of_processes_as_in_the_reference_1() {
    random_calls(0x5eed_0f1e_2d3c_4b5a);
}

#[test]
fn random_calls_of_processes_as_in_the_reference_2() {
    random_calls(0x0123_4567_89ab_cdef);
}
