//! `sections [LIMIT]`: gives the kernel much to free or to wake at once, in each way that a program can, and shows the longest
//! time that preemption was off then, in ticks of the time-stamp counter, and in which function.
//!
//! Needs a Pantala kernel, booted with `sections`. Status 1: a CPU went over LIMIT.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use user::sys::{self, Errno};

const PAGE: u64 = 4096;
/// Entries of a map: somewhat less than a process may have.
const ENTRIES: u64 = 60_000;
/// Nodes of a file's index, of 64 pages each.
const NODES: u64 = 20_000;
/// Sleepers that wake at one moment.
const SLEEPERS: u64 = 30_000;
/// Pages of a big process.
const PAGES: u64 = 24 * 1024;

const PLAIN: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Runs `body` in a child and waits for its end.
fn child(body: fn() -> Result<(), Errno>) -> Result<(), Errno> {
    let pid = sys::fork()?;
    if pid == 0 {
        sys::exit(body().map_or_else(|errno| errno, |()| 0));
    }
    let (_, status) = sys::wait(pid as i64, 0)?;
    let killed = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL;
    match libc::WEXITSTATUS(status) {
        0 => Ok(()),
        _ if killed => Ok(()),
        errno => Err(errno),
    }
}

/// Every second page of a region is mapped, and nothing merges.
fn entries() -> Result<(), Errno> {
    let base = sys::mmap(0, ENTRIES * 2 * PAGE, libc::PROT_NONE, PLAIN, -1, 0)?;
    sys::munmap(base, ENTRIES * 2 * PAGE)?;
    for n in 0..ENTRIES {
        let at = base + n * 2 * PAGE;
        sys::mmap(at, PAGE, BOTH, PLAIN | libc::MAP_FIXED, -1, 0)?;
    }
    Ok(())
}

/// As `entries`, given back by one call.
fn entries_at_once() -> Result<(), Errno> {
    let base = sys::mmap(0, ENTRIES * PAGE, BOTH, PLAIN, -1, 0)?;
    for n in 0..ENTRIES / 2 {
        let args = [base + n * 2 * PAGE, PAGE, libc::PROT_READ as u64];
        sys::call(libc::SYS_mprotect, &args)?;
    }
    sys::munmap(base, ENTRIES * PAGE).map(drop)
}

/// A file whose pages have gone, one for each node of its index; it is looked through, and ends.
fn nodes() -> Result<(), Errno> {
    let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    let path = "/tmp/sections";
    let file = File::create(path).map_err(errno)?;
    // Some at a time, for each needs a page while it is there.
    for first in (0..NODES).step_by(2000) {
        for node in first..first + 2000 {
            file.write_at(b"x", node * 64 * PAGE).map_err(errno)?;
        }
        let (from, len) = (first * 64 * PAGE, 2000 * 64 * PAGE);
        let mode = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u64;
        let args = [file.as_raw_fd() as u64, mode, from, len];
        sys::call(libc::SYS_fallocate, &args)?;
    }
    file.set_len(PAGE).map_err(errno)?;
    drop(file);
    std::fs::remove_file(path).map_err(errno)
}

fn touched() -> Result<u64, Errno> {
    let base = sys::mmap(0, PAGES * PAGE, BOTH, PLAIN, -1, 0)?;
    (0..PAGES).for_each(|n| sys::poke(base + n * PAGE, 1));
    Ok(base)
}

fn big_exit() -> Result<(), Errno> {
    touched().map(drop)
}

fn big_munmap() -> Result<(), Errno> {
    sys::munmap(touched()?, PAGES * PAGE).map(drop)
}

fn big_kill() -> Result<(), Errno> {
    touched()?;
    let me = u64::from(std::process::id());
    sys::call(libc::SYS_kill, &[me, libc::SIGKILL as u64]).map(drop)
}

/// Many processes sleep until one moment.
fn sleepers() -> Result<(), Errno> {
    sleep_until(|_| 0)
}

/// As many, each until a nanosecond of its own, close together.
fn sleepers_apart() -> Result<(), Errno> {
    sleep_until(|n| n as i64)
}

fn sleep_until(after: impl Fn(u64) -> i64) -> Result<(), Errno> {
    // Long enough to make them all, by the clock that counts instructions.
    let second = sys::now_ns() / 1_000_000_000 + 4;
    let times: Vec<_> = (0..SLEEPERS)
        .map(|n| libc::timespec {
            tv_sec: second as i64,
            tv_nsec: after(n),
        })
        .collect();
    for at in times.leak() {
        sys::clone_asleep(at)?;
    }
    if sys::now_ns() / 1_000_000_000 >= second {
        return Err(libc::ETIME);
    }
    for _ in 0..SLEEPERS {
        sys::wait(-1, 0)?;
    }
    Ok(())
}

/// The longest section of any CPU, and what the kernel says of it.
fn longest() -> (u64, String) {
    let text = std::fs::read_to_string("/proc/pantala/sections").unwrap_or_default();
    let ticks = |line: &str| {
        let word = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("ticks="));
        word.and_then(|ticks| ticks.parse().ok())
            .unwrap_or(u64::MAX)
    };
    let found = text
        .lines()
        .map(|line| (ticks(line), line.to_owned()))
        .max();
    found.unwrap_or((u64::MAX, "no such file".into()))
}

fn main() {
    type Case = (&'static str, fn() -> Result<(), Errno>);
    const CASES: [Case; 8] = [
        ("exit with many entries", entries),
        ("munmap of many entries", entries_at_once),
        ("file with empty nodes", nodes),
        ("big exit", big_exit),
        ("big munmap", big_munmap),
        ("big kill", big_kill),
        ("sleepers until one moment", sleepers),
        ("sleepers until moments close together", sleepers_apart),
    ];
    let limit = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let mut failed = false;
    for (name, case) in CASES {
        let done = child(case);
        // What was given up is freed after grace periods.
        std::thread::sleep(Duration::from_millis(200));
        let (ticks, line) = longest();
        println!("sections: {name}: {done:?}, so far {line}");
        failed |= done.is_err() || ticks > limit.unwrap_or(u64::MAX);
    }
    if failed {
        sys::exit(1);
    }
    println!("sections: all short enough");
}
