//! Open files, descriptors, contents, attributes, record locks and quotas that threads on several CPUs use at once.
#![cfg(not(shuttle))]

mod bytes;
#[path = "record_locks/process.rs"]
mod process;
mod storm;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use bytes::{PAGE, content, open, open_as, read, size, stat, write, write_at};
use cred::Cred;
use fscore::locks::END;
use hal::uio::IoBuf;
use process::{EXCLUSIVE, Process, flock, held, locks, range};
use storm::storm;
use support::counted::counted;
use support::users::user;
use support::{Calls, on, threads};
use vfs::error::FsError::{Deadlock, NoSpace, Perm, WouldBlock};
use vfs::exec::ExecFile;
use vfs::fdtable::FdTable;
use vfs::file::{FileRef, Whence, o};
use vfs::inode::{Inode, mode};
use vfs::lock::{self, Family};
use vfs::quota;
use vfs::regular::{self, fallocate};
use vfs::setattr::{chmod, chown};
use vm_host::Random;

/// Bytes of the records that threads write.
const RECORD: u64 = 8;

fn record(n: usize) -> [u8; RECORD as usize] {
    [1 + n as u8; RECORD as usize]
}

fn inode(file: &FileRef) -> &Arc<Inode> {
    file.inode().unwrap()
}

/// Descriptors that are open meanwhile: a search for a free one looks at them in two parts.
const CROWD: usize = vfs::fdtable::STEP + 100;
/// Above all of them.
const FAR: i32 = 5000;
const LIMIT: u64 = 10_000;

/// Threads use one table, in which so many descriptors besides 0 are open.
fn share_table(crowd: usize) {
    on(4, move || {
        let (table, (file, _)) = (FdTable::new(), counted());
        let added = table.add(file.clone(), false, 0, LIMIT);
        assert_eq!(added, Ok(0));
        // No search for a free one, before the threads begin.
        for fd in 1..=crowd as i32 {
            assert_eq!(table.dup_to(0, fd, false, LIMIT), Ok(fd));
        }
        drop(table.remove(0));
        let files: Vec<_> = (0..4).map(|_| counted()).collect();
        let (theirs, mine) = (table.clone(), files.clone());
        storm(1000, move |n, random| {
            use_table(&theirs, random, &mine[n].0, FAR + n as i32);
        });
        table.close_range(FAR as usize, usize::MAX, false);
        assert_eq!(table.open_in(&ksync::pin(), 0..FAR as usize), Some(crowd));
        assert_eq!(table.add(file.clone(), false, 0, LIMIT), Ok(0));
        assert_eq!(table.add(file, false, 0, LIMIT), Ok(crowd as i32 + 1));
        for (file, closed) in files {
            assert_eq!(closed.load(SeqCst), 0);
            drop(file);
            assert_eq!(closed.load(SeqCst), 1, "no reference is left");
        }
    });
}

#[test]
fn no_descriptor_is_given_twice() {
    share_table(0);
}

#[test]
fn no_descriptor_of_a_crowded_table_is_given_twice() {
    share_table(CROWD);
}

/// One call on a table, with a file and a descriptor of the thread's own.
fn use_table(table: &FdTable, random: &mut Random, file: &FileRef, far: i32) {
    let close = |fd| {
        let closed = table.remove(fd).expect("only this thread closes it");
        assert!(FileRef::ptr_eq(&closed, file));
    };
    match random.below(8) {
        0 | 1 => close(table.add(file.clone(), false, 1, LIMIT).unwrap()),
        2 => {
            let fd = table.reserve(LIMIT).unwrap();
            table.fill(fd, file.clone(), false);
            close(fd);
        }
        3 => table.cancel(table.reserve(LIMIT).unwrap()),
        4 => {
            let pair = table.add_pair(file.clone(), file.clone(), false, LIMIT);
            let (first, second) = pair.unwrap();
            assert_eq!(table.set_cloexec(first, false), Ok(()));
            assert_eq!(table.cloexec(second), Ok(false));
            close(first);
            close(second);
        }
        5 => {
            let fd = table.add(file.clone(), false, 1, LIMIT).unwrap();
            assert_eq!(table.dup_to(fd, far, false, LIMIT), Ok(far));
            // Another thread may close it from here on.
            let _closed = table.set_cloexec(far, true);
            table.undo(&[(far, file), (fd, file)]);
            assert!(table.get(far).is_err());
        }
        6 => table.close_on_exec(),
        _ => table.note_lock(),
    }
}

#[test]
fn records_written_and_read_at_a_common_offset_are_whole() {
    on(4, || {
        let (to, from) = (open("/f"), open("/f"));
        let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (ends, written) = ((to.clone(), from.clone()), counts.clone());
        storm(2500, move |n, random| {
            let (to, from) = &ends;
            match random.below(6) {
                0 | 1 => {
                    assert_eq!(write(to, &record(n)), Ok(8));
                    written[0].fetch_add(RECORD, SeqCst);
                }
                2 | 3 => {
                    let bytes = read(from, 8).unwrap();
                    assert!(bytes.iter().all(|&b| b == bytes[0] && b > 0), "{bytes:?}");
                    written[1].fetch_add(bytes.len() as u64, SeqCst);
                }
                4 => assert_eq!(to.seek(0, Whence::Cur).unwrap() % RECORD, 0),
                _ => assert_eq!(from.with_pos(|pos| *pos % RECORD), 0),
            }
        });
        let [written, read] = [0, 1].map(|i| counts[i].load(SeqCst));
        assert_eq!((size(&to), to.seek(0, Whence::Cur)), (written, Ok(written)));
        assert_eq!(from.seek(0, Whence::Cur), Ok(read));
        assert!(content(&to).chunks(8).all(|c| c.iter().all(|&b| b == c[0])));
    });
}

/// Threads write into parts of their own at the begin of a file, and append behind these.
#[test]
fn each_change_of_a_files_contents_is_whole() {
    const EACH: u64 = 4096;
    on(4, || {
        let file = open("/f");
        assert_eq!(
            write_at(&file, 0, &[9; 4 * EACH as usize]),
            Ok(4 * EACH as usize)
        );
        let appended = Arc::new(AtomicU64::new(0));
        let (theirs, sum) = (file.clone(), appended.clone());
        storm(2500, move |n, random| {
            let (file, node) = (&theirs, inode(&theirs));
            let at = n as u64 * EACH + RECORD * random.below_u64(EACH / RECORD);
            match random.below(6) {
                0 => assert_eq!(write_at(file, at, &record(n)), Ok(8)),
                1 => {
                    assert_eq!(file.append_at(&mut IoBuf::Drain(&record(n)), 0), Ok(8));
                    sum.fetch_add(RECORD, SeqCst);
                }
                2 => assert_eq!(regular::write_kernel(node, at, &record(n)), Ok(())),
                3 => {
                    let how = fallocate::KEEP_SIZE | fallocate::PUNCH_HOLE;
                    assert_eq!(regular::allocate(node, how, at, RECORD), Ok(()));
                }
                4 => assert!(regular::free_by_mapping(
                    &file.object(0..PAGE).unwrap(),
                    &mut || ()
                )),
                _ => {
                    let back = (random.below_u64(EACH) * RECORD).min(size(file));
                    assert!(file.read_at(&mut IoBuf::Fill(&mut [0; 8]), back).is_ok());
                }
            }
        });
        assert_eq!(size(&file), 4 * EACH + appended.load(SeqCst));
        let all = content(&file);
        for (at, chunk) in all.chunks(8).enumerate() {
            let at = at as u64 * RECORD;
            let owner = (at < 4 * EACH).then_some(1 + (at / EACH) as u8);
            let fits = |b: u8| owner.is_none_or(|owner| b == owner || b == 0 || b == 9);
            assert!(chunk.iter().all(|&b| b == chunk[0] && fits(b)), "{at}");
        }
    });
}

/// What is left of a file that is written and cut at once has the size that the last cut or write gave it, and no page behind.
#[test]
fn a_file_that_is_written_and_cut_has_no_page_behind_its_end() {
    const PAGES: u64 = 6;
    on(4, || {
        let file = open("/f");
        let theirs = file.clone();
        storm(2500, move |n, random| {
            let at = random.below_u64(PAGES) * PAGE + random.below_u64(2);
            match random.below(3) {
                0 => assert_eq!(bytes::truncate(&theirs, at), Ok(())),
                // Pages that were freed wait for the end of a grace period.
                1 => {
                    let made = bytes::allocate(&theirs, 0, at, 1);
                    assert!(matches!(made, Ok(()) | Err(NoSpace)), "{made:?}");
                }
                _ => {
                    let done = write_at(&theirs, at, &record(n));
                    assert!(matches!(done, Ok(1..=8) | Err(NoSpace)), "{done:?}");
                }
            }
        });
        let (size, blocks) = (size(&file), stat(&file).blocks);
        assert!(blocks <= size.div_ceil(PAGE) * 8, "{blocks} {size}");
        let all = content(&file);
        assert!(all.iter().all(|&b| b < 5));
        bytes::truncate(&file, 0).unwrap();
        bytes::truncate(&file, PAGES * PAGE).unwrap();
        assert!(content(&file).iter().all(|&b| b == 0));
        assert_eq!(stat(&file).blocks, 0);
    });
}

/// A user sets the set-user-ID bit whenever the file is the user's own; root gives the file away and takes it back, which clears
/// the bit. So no program of root ever has it.
#[test]
fn a_set_user_id_bit_never_comes_to_another_owner() {
    const OWNER: u32 = 1000;
    on(4, || {
        let calls = Calls::of_root();
        calls.create("/p").unwrap();
        let place = calls.find("/p").unwrap();
        chmod(&Cred::root(), &place.dentry.inode, 0o755).unwrap();
        let program = ExecFile::at(place).unwrap();
        storm(2500, move |n, random| {
            let file = &program.path().unwrap().dentry.inode;
            match n {
                0 => {
                    let to = [0, OWNER][random.below(2)];
                    chown(&Cred::root(), file, Some(to), Some(to)).unwrap();
                }
                1 => {
                    let set = chmod(&user(OWNER, &[]), file, 0o4755);
                    assert!(matches!(set, Ok(()) | Err(Perm)), "{set:?}");
                }
                _ => {
                    let uid = program.set_ids().uid;
                    assert!(uid.is_none_or(|uid| uid == OWNER), "{uid:?}");
                }
            }
        });
        let file = calls.find("/p").unwrap().dentry.inode.clone();
        assert!(file.uid() == OWNER || file.mode() & mode::SUID == 0);
    });
}

/// Each byte of two files, by its file and its place, and the process that has it.
type Holders = [[AtomicUsize; 4]; 2];

/// Takes byte after byte in one of the ways of fcntl(2), and gives all of them back.
fn lock_bytes(process: &Process, me: usize, random: &mut Random, holders: &Holders) {
    let mut mine = Vec::new();
    for _ in 0..1 + random.below(3) {
        let (fd, at) = (random.below(2), random.below(4));
        if mine.contains(&(fd, at)) {
            continue;
        }
        let byte = (at as u64, at as u64);
        let waits = !random.one_in(3);
        match process.set(fd as i32, byte, EXCLUSIVE, waits) {
            Ok(()) => {
                assert_eq!(holders[fd][at].swap(me, SeqCst), 0, "another one has it");
                mine.push((fd, at));
            }
            Err(e) => assert_eq!(e, if waits { Deadlock } else { WouldBlock }),
        }
        let wanted = range(process.owner(), 0, END, EXCLUSIVE);
        let other = lock::query(locks(&process.file(fd as i32)), Family::Ranges, &wanted);
        assert!(other.is_none_or(|other| other.owner != process.owner()));
        let own = lock::query_own(locks(&process.file(fd as i32)), Family::Ranges, &wanted);
        let first = mine.iter().filter(|(file, _)| *file == fd).min();
        assert_eq!(own.map(|own| own.start), first.map(|(_, at)| *at as u64));
    }
    if random.one_in(4) {
        threads::nap(1);
    }
    for &(fd, at) in &mine {
        assert_eq!(holders[fd][at].swap(0, SeqCst), me);
    }
    for fd in 0..2 {
        if random.one_in(3) {
            process.close(fd);
            assert_eq!(process.open(["/f", "/g"][fd as usize]), fd);
        } else {
            process.unlock(fd, 0, END).unwrap();
        }
    }
}

#[test]
fn no_byte_is_locked_by_two_processes() {
    on(4, || {
        let processes: Vec<Process> = (0..4).map(|_| Process::new()).collect();
        for process in &processes {
            assert_eq!((process.open("/f"), process.open("/g")), (0, 1));
        }
        let files = [open("/f"), open("/g")];
        let holders = Arc::new(Holders::default());
        storm(1000, move |n, random| {
            lock_bytes(&processes[n], 1 + n, random, &holders);
        });
        assert_eq!(files.map(|file| held(&file)), [[], []]);
    });
}

#[test]
fn a_whole_file_is_locked_by_one_open_file() {
    on(4, || {
        open("/f");
        let holder = Arc::new(AtomicUsize::new(0));
        storm(2500, move |n, _| {
            let file = open_as("/f", o::RDWR);
            match flock(&file, EXCLUSIVE) {
                Ok(()) => {
                    assert_eq!(holder.swap(1 + n, SeqCst), 0);
                    assert_eq!(holder.swap(0, SeqCst), 1 + n);
                }
                Err(e) => assert_eq!(e, WouldBlock),
            }
        });
        assert_eq!(flock(&open_as("/f", o::RDWR), EXCLUSIVE), Ok(()));
    });
}

#[test]
fn no_quota_is_given_to_two_file_systems() {
    on(4, || {
        storm(2500, |n, random| {
            let limit = |k: u64| 100 + n as u64 * 10 + k;
            let mine: Vec<_> = (0..1 + random.below_u64(4))
                .map(|k| (k, quota::claim(limit(k)).unwrap()))
                .collect();
            for &(k, quota) in &mine {
                assert_eq!(quota.limit(), limit(k));
                assert_eq!(quota::resize(quota, limit(k) + 5), Ok(()));
            }
            for (k, quota) in mine {
                assert_eq!((quota.limit(), quota.used()), (limit(k) + 5, 0));
                quota::release(quota);
            }
        });
    });
}
