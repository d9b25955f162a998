//! Random calls of processes that open, duplicate, close, lock, fork and exit, and a reference that has, for each owner, what it
//! holds of each byte.

use std::collections::{BTreeMap, BTreeSet};

use fscore::locks::{END, Lock};
use vfs::error::FsError;
use vfs::error::Result;
use vfs::lock::{self, Family};
use vm_host::Random;

use crate::bytes::open;
use crate::process::{EXCLUSIVE, MANY, Process, SHARED, STRANGER, locks, range};
use crate::support::on;

/// Bytes of a file; the last one stands for all behind it as well.
const BYTES: usize = 20;
const PATHS: [&str; 2] = ["/f", "/g"];

/// What an owner has of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    Nothing,
    Shared,
    Exclusive,
}

/// The owner of a lock, by its number in the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Process(usize),
    Open(usize),
}

/// A process, with the number of the open file at each descriptor.
struct Member {
    number: usize,
    process: Process,
    opens: BTreeMap<i32, usize>,
}

#[derive(Default)]
struct World {
    members: Vec<Member>,
    processes: usize,
    /// The file of each open file ever made: an index of `PATHS`.
    files: Vec<usize>,
    /// What the owners hold of each file.
    bytes: [BTreeMap<Owner, [Has; BYTES]>; 2],
    /// The number by which the kernel knows an owner.
    ids: BTreeMap<Owner, u64>,
}

/// A range of bytes, the last of which may be that without an end.
fn place(random: &mut Random) -> (usize, usize) {
    let (a, b) = (random.below(BYTES), random.below(BYTES));
    (a.min(b), a.max(b))
}

fn asked(owner: u64, (first, last): (usize, usize), exclusive: bool) -> Lock {
    let last = if last == BYTES - 1 { END } else { last as u64 };
    range(owner, first as u64, last, exclusive)
}

impl World {
    fn new_member(&mut self, process: Process, opens: BTreeMap<i32, usize>) {
        let number = self.processes;
        self.processes += 1;
        self.ids.insert(Owner::Process(number), process.owner());
        self.members.push(Member {
            number,
            process,
            opens,
        });
    }

    fn open(&mut self, at: usize, path: usize) {
        let file = open(PATHS[path]);
        let number = self.files.len();
        self.files.push(path);
        self.ids.insert(Owner::Open(number), file.lock_owner());
        let member = &mut self.members[at];
        let fd = member.process.0.add(file, false, 0, MANY).unwrap();
        member.opens.insert(fd, number);
    }

    /// The reference of the close of a descriptor.
    fn closed(&mut self, process: usize, open: usize) {
        let path = self.files[open];
        self.bytes[path].remove(&Owner::Process(process));
        self.forget_closed();
    }

    /// Ends the locks of open files that have no descriptor any more.
    fn forget_closed(&mut self) {
        let open: BTreeSet<usize> = self
            .members
            .iter()
            .flat_map(|member| member.opens.values().copied())
            .collect();
        for bytes in &mut self.bytes {
            bytes.retain(|owner, _| match owner {
                Owner::Open(number) => open.contains(number),
                Owner::Process(_) => true,
            });
        }
        self.ids.retain(|owner, _| match owner {
            Owner::Open(number) => open.contains(number),
            Owner::Process(_) => true,
        });
    }

    /// Whether another owner has something of these bytes that excludes the wish.
    fn conflicts(&self, path: usize, of: Option<Owner>, at: (usize, usize), wish: Has) -> bool {
        let excludes = |&has: &Has| match wish {
            Has::Exclusive => has != Has::Nothing,
            _ => has == Has::Exclusive,
        };
        self.bytes[path]
            .iter()
            .filter(|(owner, _)| Some(**owner) != of)
            .any(|(_, has)| has[at.0..=at.1].iter().any(excludes))
    }

    fn lock_or_unlock(&mut self, random: &mut Random, at: usize, fd: i32) {
        let (member, bytes) = (&self.members[at], place(random));
        let (file, number) = (member.process.file(fd), member.opens[&fd]);
        let owner = if random.below(3) == 0 {
            file.note_lock();
            Owner::Open(number)
        } else {
            member.process.0.note_lock();
            Owner::Process(member.number)
        };
        let path = self.files[number];
        let wish = [Has::Nothing, Has::Shared, Has::Exclusive, Has::Exclusive][random.below(4)];
        let wanted = asked(self.ids[&owner], bytes, wish == Has::Exclusive);
        let expected = if wish != Has::Nothing && self.conflicts(path, Some(owner), bytes, wish) {
            Err(FsError::WouldBlock)
        } else {
            Ok(())
        };
        let got: Result<()> = match wish {
            Has::Nothing => lock::unset(locks(&file), Family::Ranges, &wanted),
            _ => lock::set(locks(&file), Family::Ranges, wanted, false, false),
        };
        assert_eq!(got, expected, "{owner:?} {bytes:?} {wish:?}");
        if got.is_ok() {
            let has = self.bytes[path]
                .entry(owner)
                .or_insert([Has::Nothing; BYTES]);
            has[bytes.0..=bytes.1].fill(wish);
        }
    }

    fn play(&mut self, random: &mut Random) {
        let (at, many) = (random.below(self.members.len()), self.members.len());
        let (fd, to) = (random.below(4) as i32, random.below(4) as i32);
        let member = &mut self.members[at];
        let (process, found) = (member.number, member.opens.get(&fd).copied());
        match (random.below(24), found) {
            (0, _) if many < 4 => {
                let child = Process(member.process.0.fork().unwrap());
                let opens = member.opens.clone();
                self.new_member(child, opens);
            }
            (1, _) if many > 2 => {
                let gone = self.members.swap_remove(at);
                self.ids.remove(&Owner::Process(process));
                drop(gone);
                for bytes in &mut self.bytes {
                    bytes.remove(&Owner::Process(process));
                }
                self.forget_closed();
            }
            (2..=3, Some(open)) => {
                member.process.close(fd);
                member.opens.remove(&fd);
                self.closed(process, open);
            }
            (4..=5, Some(open)) => {
                let made = member.process.0.dup_to(fd, to, false, MANY);
                assert_eq!(made, Ok(to));
                if let Some(old) = member.opens.insert(to, open) {
                    self.closed(process, old);
                }
            }
            (_, Some(_)) => self.lock_or_unlock(random, at, fd),
            (_, None) => self.open(at, random.below(2)),
        }
    }

    /// The run of bytes around `byte` of which the owner has the same.
    fn run(has: &[Has; BYTES], byte: usize) -> (usize, usize) {
        let differs = |at: &usize| has[*at] != has[byte];
        let first = (0..byte).rfind(differs).map_or(0, |at| at + 1);
        let last = (byte..BYTES).find(differs).unwrap_or(BYTES);
        (first, last - 1)
    }

    fn compare(&self) {
        for (path, name) in PATHS.iter().enumerate() {
            let file = open(name);
            let ask = |id, byte, exclusive| {
                let wanted = asked(id, (byte, byte), exclusive);
                lock::query(locks(&file), Family::Ranges, &wanted)
            };
            for byte in 0..BYTES {
                let at = (byte, byte);
                for (&owner, &id) in &self.ids {
                    let others = self.conflicts(path, Some(owner), at, Has::Exclusive);
                    let found = ask(id, byte, EXCLUSIVE);
                    assert_eq!(found.is_some(), others, "{name} {byte} {owner:?}");
                }
                let excluded = self.conflicts(path, None, at, Has::Shared);
                assert_eq!(ask(STRANGER, byte, SHARED).is_some(), excluded);
                let holders = self.bytes[path].iter();
                let mut holders = holders.filter(|(_, has)| has[byte] != Has::Nothing);
                if let (Some((owner, has)), None) = (holders.next(), holders.next()) {
                    let exclusive = has[byte] == Has::Exclusive;
                    let expected = asked(self.ids[owner], Self::run(has, byte), exclusive);
                    assert_eq!(ask(STRANGER, byte, EXCLUSIVE), Some(expected));
                }
            }
        }
    }
}

fn random_calls(seed: u64) {
    on(1, move || {
        let (mut random, mut world) = (Random(seed), World::default());
        for _ in 0..2 {
            world.new_member(Process::new(), BTreeMap::new());
        }
        for _ in 0..2000 {
            world.play(&mut random);
            world.compare();
        }
    });
}

#[test]
fn random_locks_as_in_the_reference_1() {
    random_calls(0x10c0_5eed_0000_0001);
}

#[test]
fn random_locks_as_in_the_reference_2() {
    random_calls(0x2bad_cafe_1234_5678);
}
