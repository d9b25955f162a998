//! `superpages [ROUNDS]`: memory that asks for superpages, under everything that a program does with memory.
//!
//! Guarantee: the status is 0 if all memory had the right contents and, on Pantala, the kernel made superpages where it
//! says that it does. Mechanism: each page has its number; after each operation every page is compared. The counts are those
//! of /proc/vmstat; on Linux, which has other names for them, only the contents are checked.

use std::thread;

use user::sys;

const PAGE: u64 = 4096;
/// Pages of a superpage.
const BLOCK: u64 = 512;
const BLOCK_BYTES: u64 = BLOCK * PAGE;
/// Superpages of a region.
const BLOCKS: u64 = 4;
const PAGES: u64 = BLOCKS * BLOCK;

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

type Verdict = Result<(), String>;

fn call(what: &str, nr: i64, args: &[u64]) -> Result<u64, String> {
    sys::call(nr, args).map_err(|e| format!("{what}: errno {e}"))
}

/// A region of private memory, aligned, that asks for superpages.
struct Region {
    at: u64,
    mapped: (u64, u64),
}

impl Region {
    fn new(pages: u64) -> Result<Region, String> {
        Region::of(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// A region that is mapped so.
    fn of(pages: u64, flags: i32, fd: i32) -> Result<Region, String> {
        let len = pages * PAGE + BLOCK_BYTES;
        let start = sys::mmap(0, len, RW, flags, fd, 0).map_err(|e| format!("mmap: errno {e}"))?;
        let region = Region {
            at: start.next_multiple_of(BLOCK_BYTES),
            mapped: (start, len),
        };
        region.advise(0, pages, libc::MADV_HUGEPAGE)?;
        Ok(region)
    }

    fn filled(pages: u64) -> Result<Region, String> {
        let region = Region::new(pages)?;
        region.fill(0, pages, 1);
        Ok(region)
    }

    fn va(&self, page: u64) -> u64 {
        self.at + page * PAGE
    }

    fn advise(&self, page: u64, pages: u64, advice: i32) -> Verdict {
        let args = [self.va(page), pages * PAGE, advice as u64];
        call("madvise", libc::SYS_madvise, &args).map(drop)
    }

    fn protect(&self, page: u64, pages: u64, prot: i32) -> Verdict {
        let args = [self.va(page), pages * PAGE, prot as u64];
        call("mprotect", libc::SYS_mprotect, &args).map(drop)
    }

    /// Writes `first` plus its number to each page, at its beginning and end.
    fn fill(&self, page: u64, pages: u64, first: u64) {
        for n in page..page + pages {
            sys::poke64(self.va(n), first + n);
            sys::poke64(self.va(n) + PAGE - 8, first + n);
        }
    }

    fn check(&self, page: u64, pages: u64, first: u64) -> Verdict {
        for n in page..page + pages {
            let found = [sys::peek64(self.va(n)), sys::peek64(self.va(n) + PAGE - 8)];
            if found != [first + n; 2] {
                return Err(format!("page {n} has {found:?} and not {}", first + n));
            }
        }
        Ok(())
    }

    fn is_zero(&self, page: u64, pages: u64) -> Verdict {
        match (page..page + pages).find(|&n| sys::peek64(self.va(n)) != 0) {
            Some(n) => Err(format!("page {n} is not zero")),
            None => Ok(()),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = sys::munmap(self.mapped.0, self.mapped.1);
    }
}

/// A count of the kernel; `None` where there is none.
fn count(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/vmstat").ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Number of superpages made so far, of tables and at once; `None` where the kernel does not count them.
fn count_made() -> Option<u64> {
    Some(count("vm_promotions")? + count("vm_leaves_filled")?)
}

/// Whether the kernel takes translations away at any time, so that it need not make a superpage.
fn is_chaotic() -> bool {
    let line = std::fs::read_to_string("/proc/cmdline");
    line.is_ok_and(|line| line.split_whitespace().any(|word| word == "vmchaos"))
}

/// Runs `act` and fails if fewer than `least` superpages were made meanwhile.
fn made(least: u64, act: impl FnOnce() -> Verdict) -> Verdict {
    let before = count_made();
    act()?;
    match (before, count_made()) {
        (Some(before), Some(after)) if after - before < least && !is_chaotic() => {
            Err(format!("{} superpages made, not {least}", after - before))
        }
        _ => Ok(()),
    }
}

/// Runs `act` in a child and fails if the child does.
fn in_child(act: impl FnOnce() -> Verdict) -> Verdict {
    let pid = sys::fork().map_err(|e| format!("fork: errno {e}"))?;
    if pid == 0 {
        let done = act();
        if let Err(why) = &done {
            println!("child: {why}");
        }
        sys::exit(i32::from(done.is_err()));
    }
    let (_, status) = sys::wait(pid as i64, 0).map_err(|e| format!("wait: errno {e}"))?;
    if status == 0 {
        Ok(())
    } else {
        Err(format!("the child ended with {status:#x}"))
    }
}

fn touched() -> Verdict {
    made(BLOCKS, || Region::filled(PAGES)?.check(0, PAGES, 1))
}

fn populated() -> Verdict {
    made(BLOCKS, || {
        let region = Region::new(PAGES)?;
        region.advise(0, PAGES, libc::MADV_POPULATE_WRITE)?;
        region.is_zero(0, PAGES)?;
        region.fill(0, PAGES, 9);
        region.check(0, PAGES, 9)
    })
}

fn forked() -> Verdict {
    let region = Region::filled(PAGES)?;
    made(BLOCKS, || {
        in_child(|| {
            region.check(0, PAGES, 1)?;
            region.fill(0, PAGES, 5);
            in_child(|| region.check(0, PAGES, 5))?;
            region.check(0, PAGES, 5)
        })
    })?;
    region.check(0, PAGES, 1)?;
    region.fill(0, PAGES, 3);
    region.check(0, PAGES, 3)
}

/// Parent and child write in turn, while both live.
fn forked_and_written_by_both() -> Verdict {
    let region = Region::filled(PAGES)?;
    let pid = sys::fork().map_err(|e| format!("fork: errno {e}"))?;
    let first = if pid == 0 { 7 } else { 8 };
    for n in (0..PAGES).step_by(3) {
        region.fill(n, 1, first);
    }
    let each = |n: u64| region.check(n, 1, if n.is_multiple_of(3) { first } else { 1 });
    let done = (0..PAGES).try_for_each(each);
    if pid == 0 {
        sys::exit(i32::from(done.is_err()));
    }
    let (_, status) = sys::wait(pid as i64, 0).map_err(|e| format!("wait: errno {e}"))?;
    if status != 0 {
        return Err(format!("the child ended with {status:#x}"));
    }
    done
}

fn unmapped_in_part() -> Verdict {
    let region = Region::filled(PAGES)?;
    let gone = [(7, 1), (BLOCK - 1, 2), (2 * BLOCK, BLOCK)];
    for (page, pages) in gone {
        sys::munmap(region.va(page), pages * PAGE).map_err(|e| format!("munmap: errno {e}"))?;
        for n in [page, page + pages - 1] {
            if sys::catch(|| sys::peek64(region.va(n))).is_none() {
                return Err(format!("page {n} can be read"));
            }
        }
    }
    let is_gone = |n: u64| {
        gone.iter()
            .any(|(page, pages)| (*page..page + pages).contains(&n))
    };
    (0..PAGES)
        .filter(|n| !is_gone(*n))
        .try_for_each(|n| region.check(n, 1, 1))
}

fn protected_in_part() -> Verdict {
    let region = Region::filled(PAGES)?;
    for (page, pages) in [(3, 1), (BLOCK, BLOCK), (3 * BLOCK - 4, 8)] {
        region.protect(page, pages, libc::PROT_READ)?;
        region.check(0, PAGES, 1)?;
        if sys::catch(|| sys::poke64(region.va(page), 0)).is_none() {
            return Err(format!("page {page} can be written"));
        }
        region.protect(page, pages, RW)?;
        region.fill(page, pages, 1);
        region.check(0, PAGES, 1)?;
    }
    Ok(())
}

fn discarded_in_part() -> Verdict {
    let region = Region::filled(PAGES)?;
    region.advise(BLOCK - 9, 18, libc::MADV_DONTNEED)?;
    region.is_zero(BLOCK - 9, 18)?;
    region.check(0, BLOCK - 9, 1)?;
    region.check(BLOCK + 9, PAGES - BLOCK - 9, 1)?;
    region.advise(0, PAGES, libc::MADV_DONTNEED)?;
    region.is_zero(0, PAGES)?;
    region.fill(0, PAGES, 4);
    region.check(0, PAGES, 4)
}

fn moved() -> Verdict {
    let region = Region::filled(PAGES)?;
    let other = Region::new(PAGES)?;
    let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    for page in 0..2 {
        let args = [
            region.va(0) + page * PAGE,
            (PAGES / 2) * PAGE,
            (PAGES / 2) * PAGE,
            fixed,
            other.va(page),
        ];
        call("mremap", libc::SYS_mremap, &args)?;
        let moved = Region {
            at: other.at,
            mapped: (other.at, 0),
        };
        moved.check(page, PAGES / 2, 1)?;
        let back = [args[4], args[1], args[1], fixed, args[0]];
        call("mremap", libc::SYS_mremap, &back)?;
        region.check(0, PAGES, 1)?;
    }
    Ok(())
}

/// Threads fill one region together, and change and read it at the same time.
fn in_threads() -> Verdict {
    const THREADS: u64 = 4;
    let region = Region::new(PAGES)?;
    thread::scope(|scope| {
        let work = |thread: u64| {
            let mine = || (0..PAGES).filter(move |n| n % THREADS == thread);
            mine().for_each(|n| region.fill(n, 1, 1));
            for round in 0..3 {
                // Rights of single pages change under the leaf, and come back.
                for n in mine().step_by(37) {
                    region.protect(n, 1, libc::PROT_READ)?;
                    region.check(n, 1, 1)?;
                    region.protect(n, 1, RW)?;
                    region.advise(n, 1, libc::MADV_DONTNEED)?;
                    region.is_zero(n, 1)?;
                    region.fill(n, 1, 1);
                }
                mine()
                    .try_for_each(|n| region.check(n, 1, 1))
                    .map_err(|e| format!("{round}: {e}"))?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n))).collect();
        let ended = threads
            .into_iter()
            .map(|t| t.join().map_err(|_| String::from("panic"))?);
        ended.collect::<Verdict>()
    })?;
    region.check(0, PAGES, 1)
}

fn refused() -> Verdict {
    let region = Region::new(PAGES)?;
    region.advise(0, PAGES, libc::MADV_NOHUGEPAGE)?;
    let before = count_made();
    region.fill(0, PAGES, 1);
    region.check(0, PAGES, 1)?;
    if before == count_made() {
        Ok(())
    } else {
        Err(String::from("a superpage was made"))
    }
}

/// Kilobytes of a line of /proc/meminfo; `None` where there is none.
fn meminfo(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Shared memory: what the child writes the parent reads, and the report says that superpages map it.
fn shared() -> Verdict {
    made(BLOCKS, || {
        let region = Region::of(PAGES, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)?;
        region.fill(0, PAGES, 1);
        let mapped = meminfo("ShmemPmdMapped:").unwrap_or(0);
        let counted = count_made().is_none() || is_chaotic() || mapped >= PAGES * PAGE / 1024;
        in_child(|| {
            region.check(0, PAGES, 1)?;
            region.fill(7, PAGES - 7, 5);
            Ok(())
        })?;
        region.check(7, PAGES - 7, 5)?;
        region.check(0, 7, 1)?;
        if counted {
            Ok(())
        } else {
            Err(format!(
                "{mapped} kB of shared memory are mapped by superpages"
            ))
        }
    })
}

/// A file in memory, mapped twice, which grows by ftruncate, is read, punched, and cut while superpages map it.
fn of_a_file() -> Verdict {
    let path = format!("/tmp/superpages.{}", std::process::id());
    let fd = sys::open(&path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL, 0o600)
        .map_err(|e| format!("open: errno {e}"))?;
    let done = std::fs::remove_file(&path).map_err(|e| format!("unlink: {e}"));
    let done = done.and_then(|()| with_file(fd));
    let _ = sys::close(fd);
    done
}

fn with_file(fd: i32) -> Verdict {
    let truncate = |pages: u64| {
        let args = [fd as u64, pages * PAGE];
        call("ftruncate", libc::SYS_ftruncate, &args).map(drop)
    };
    truncate(PAGES)?;
    let region = Region::of(PAGES, libc::MAP_SHARED, fd)?;
    made(BLOCKS, || {
        region.fill(0, PAGES, 1);
        region.check(0, PAGES, 1)
    })?;
    let other = Region::of(PAGES, libc::MAP_SHARED, fd)?;
    made(1, || other.check(0, PAGES, 1))?;
    other.fill(0, 9, 20);
    region.check(0, 9, 20)?;
    for n in 0..PAGES {
        let mut word = [0; 8];
        let args = [fd as u64, word.as_mut_ptr() as u64, 8, n * PAGE];
        call("pread", libc::SYS_pread64, &args)?;
        if u64::from_ne_bytes(word) != n + if n < 9 { 20 } else { 1 } {
            return Err(format!("page {n} of the file has {word:?}"));
        }
    }
    let how = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u64;
    let args = [fd as u64, how, BLOCK_BYTES + PAGE, 5 * PAGE];
    call("fallocate", libc::SYS_fallocate, &args)?;
    for mapping in [&region, &other] {
        mapping.is_zero(BLOCK + 1, 5)?;
        mapping.check(BLOCK + 6, PAGES - BLOCK - 6, 1)?;
    }
    truncate(BLOCK + 100)?;
    for mapping in [&region, &other] {
        mapping.check(9, BLOCK - 9, 1)?;
        if sys::catch(|| sys::peek64(mapping.va(BLOCK + 100))).is_none() {
            return Err(String::from("what was cut off can be read"));
        }
    }
    truncate(PAGES)?;
    region.is_zero(BLOCK + 100, PAGES - BLOCK - 100)?;
    other.check(9, BLOCK - 9, 1)
}

/// A process that forbids superpages gets none, whatever it asks, nor does its child.
fn forbidden() -> Verdict {
    let forbid = |on: u64| {
        let args = [libc::PR_SET_THP_DISABLE as u64, on, 0, 0, 0];
        call("prctl", libc::SYS_prctl, &args).map(drop)
    };
    forbid(1)?;
    let before = count_made();
    let region = Region::filled(PAGES)?;
    in_child(|| {
        region.fill(0, PAGES, 5);
        Region::filled(PAGES)?.check(0, PAGES, 1)
    })?;
    region.check(0, PAGES, 1)?;
    let none = before == count_made();
    forbid(0)?;
    if none {
        made(BLOCKS, || Region::filled(PAGES)?.check(0, PAGES, 1))
    } else {
        Err(String::from("a superpage was made"))
    }
}

/// A test, by name.
type Test = (&'static str, fn() -> Verdict);

const TESTS: &[Test] = &[
    ("touched", touched),
    ("populated", populated),
    ("forked", forked),
    ("forked and written by both", forked_and_written_by_both),
    ("unmapped in part", unmapped_in_part),
    ("protected in part", protected_in_part),
    ("discarded in part", discarded_in_part),
    ("moved", moved),
    ("in threads", in_threads),
    ("refused", refused),
    ("forbidden", forbidden),
    ("shared", shared),
    ("of a file", of_a_file),
];

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..rounds.unwrap_or(1) {
        for (name, test) in TESTS {
            match test() {
                Ok(()) => right += 1,
                Err(why) => {
                    println!("superpages: WRONG: {name}: {why}");
                    wrong += 1;
                }
            }
        }
    }
    println!("superpages: {right} right, {wrong} wrong");
    std::process::exit(i32::from(wrong != 0));
}
