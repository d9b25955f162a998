//! `sections [LIMIT [PREFIX]]`: makes the kernel free or wake much at once, in each way that a program can, and prints
//! the longest time that preemption was off meanwhile, in ticks of the time-stamp counter, and the function in which it
//! was.
//!
//! Needs a Pantala kernel, booted with `sections`. Status 1: a section was longer than LIMIT.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use user::sys::{self, Errno};

const PAGE: u64 = 4096;
/// Entries of a map: somewhat fewer than a process may have.
const ENTRIES: u64 = 60_000;
/// Nodes of a file's index, of 64 pages each.
const NODES: u64 = 20_000;
/// Threads that wake at the same moment.
const SLEEPERS: u64 = 30_000;
/// Directories, each in the previous one.
const DEPTH: u64 = 100_000;
/// Bytes of a large file.
const LARGE: u64 = 128 << 20;
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

/// Maps every second page of a region, so that no entries merge.
fn entries() -> Result<(), Errno> {
    let base = sys::mmap(0, ENTRIES * 2 * PAGE, libc::PROT_NONE, PLAIN, -1, 0)?;
    sys::munmap(base, ENTRIES * 2 * PAGE)?;
    for n in 0..ENTRIES {
        let at = base + n * 2 * PAGE;
        sys::mmap(at, PAGE, BOTH, PLAIN | libc::MAP_FIXED, -1, 0)?;
    }
    Ok(())
}

/// As `entries`, unmapped by one call.
fn entries_at_once() -> Result<(), Errno> {
    let base = sys::mmap(0, ENTRIES * PAGE, BOTH, PLAIN, -1, 0)?;
    for n in 0..ENTRIES / 2 {
        let args = [base + n * 2 * PAGE, PAGE, libc::PROT_READ as u64];
        sys::call(libc::SYS_mprotect, &args)?;
    }
    sys::munmap(base, ENTRIES * PAGE).map(drop)
}

/// Adjacent mappings that are one in Linux but are not merged, because each was stored to before the next was made
/// below it; a call that must look at all of them.
fn unmerged() -> Result<(), Errno> {
    let base = sys::mmap(0, (ENTRIES + 1) * PAGE, libc::PROT_NONE, PLAIN, -1, 0)?;
    for n in (0..ENTRIES).rev() {
        let at = base + n * PAGE;
        sys::mmap(at, PAGE, BOTH, PLAIN | libc::MAP_FIXED, -1, 0)?;
        sys::poke(at, 1);
    }
    // The page behind them is mapped, too.
    let args = [base, ENTRIES * PAGE, (ENTRIES + 1) * PAGE, 0];
    match sys::call(libc::SYS_mremap, &args) {
        Err(libc::ENOMEM) => Ok(()),
        _ => Err(libc::EPROTO),
    }
}

/// Mappings between which holes are large enough for another one, but not at an address of its alignment.
fn between_holes() -> Result<(), Errno> {
    const MIB: u64 = 1 << 20;
    let len = ENTRIES / 2 * 4 * MIB;
    let base = sys::mmap(0, len, libc::PROT_NONE, PLAIN, -1, 0)?;
    sys::munmap(base, len)?;
    for n in 0..ENTRIES / 2 {
        let part = base.next_multiple_of(4 * MIB) + n * 4 * MIB;
        for at in [part + MIB, part + 3 * MIB + MIB / 2] {
            sys::mmap(at, PAGE, libc::PROT_NONE, PLAIN | libc::MAP_FIXED, -1, 0)?;
        }
    }
    sys::mmap(0, 2 * MIB, libc::PROT_NONE, PLAIN, -1, 0).map(drop)
}

/// A file whose pages were freed, with one left-over node of its index for each; the file is searched, and freed.
fn nodes() -> Result<(), Errno> {
    let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    let path = "/tmp/sections";
    let file = File::create(path).map_err(errno)?;
    // In portions, since each node needs a page when it is created.
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

/// Many processes sleep until the same moment.
fn sleepers() -> Result<(), Errno> {
    sleep_until(|_| 0)
}

/// As many processes sleep until times that differ by a nanosecond.
fn sleepers_apart() -> Result<(), Errno> {
    sleep_until(|n| n as i64)
}

/// Many processes read one empty pipe, and its only writer closes it.
fn readers() -> Result<(), Errno> {
    // With twice as many, looking through the pipe's list of readers for void entries takes too long.
    const READERS: u64 = SLEEPERS / 2;
    static BYTE: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);
    let (from, to) = sys::pipe(0)?;
    let at = BYTE.as_ptr().expose_provenance() as u64;
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    for _ in 0..READERS {
        sys::clone_calling(flags, libc::SYS_read, [from as u64, at, 1, 0])?;
    }
    // Until all of them sleep.
    std::thread::sleep(Duration::from_secs(1));
    sys::call(libc::SYS_close, &[to as u64])?;
    for _ in 0..READERS {
        sys::wait(-1, 0)?;
    }
    Ok(())
}

fn sleep_until(after: impl Fn(u64) -> i64) -> Result<(), Errno> {
    // Long enough to create them all, by the clock that counts instructions.
    let second = sys::now_ns() / 1_000_000_000 + 4;
    let times: Vec<_> = (0..SLEEPERS)
        .map(|n| libc::timespec {
            tv_sec: second as i64,
            tv_nsec: after(n),
        })
        .collect();
    for at in times.leak() {
        sys::clone_asleep(libc::SIGCHLD, at)?;
    }
    if sys::now_ns() / 1_000_000_000 >= second {
        return Err(libc::ETIME);
    }
    for _ in 0..SLEEPERS {
        sys::wait(-1, 0)?;
    }
    Ok(())
}

/// A terminal's stop signal in a large process group that no shell controls: all members are asked.
fn orphans() -> Result<(), Errno> {
    sys::call(libc::SYS_setsid, &[])?;
    let never = Box::leak(Box::new(libc::timespec {
        tv_sec: i64::from(i32::MAX),
        tv_nsec: 0,
    }));
    for _ in 0..SLEEPERS {
        sys::clone_asleep(libc::SIGCHLD, never)?;
    }
    let me = u64::from(std::process::id());
    sys::call(libc::SYS_kill, &[me, libc::SIGTSTP as u64])?;
    // To the group, this process included.
    sys::call(libc::SYS_kill, &[0, libc::SIGKILL as u64]).map(drop)
}

/// Waits among many children, first living ones and then zombies, none or the last of which matches.
fn many_children() -> Result<(), Errno> {
    const CHILDREN: u64 = SLEEPERS / 2;
    /// No group has this id.
    const NO_GROUP: i64 = i32::MAX as i64;
    let nothing = || match sys::wait(-NO_GROUP, libc::WNOHANG) {
        Err(libc::ECHILD) => Ok(()),
        _ => Err(libc::EPROTO),
    };
    let never = Box::leak(Box::new(libc::timespec {
        tv_sec: i64::from(i32::MAX),
        tv_nsec: 0,
    }));
    let mut pids = Vec::new();
    for _ in 0..CHILDREN {
        pids.push(sys::clone_asleep(libc::SIGCHLD, never)?);
    }
    nothing()?;
    let last = pids[pids.len() - 1];
    sys::call(libc::SYS_kill, &[last, libc::SIGSTOP as u64])?;
    if sys::wait(-1, libc::WUNTRACED)?.0 != last {
        return Err(libc::EPROTO);
    }
    for &pid in &pids {
        sys::call(libc::SYS_kill, &[pid, libc::SIGKILL as u64])?;
    }
    // Until all of them have ended.
    std::thread::sleep(Duration::from_secs(1));
    nothing()?;
    for _ in 0..CHILDREN {
        sys::wait(-1, 0)?;
    }
    Ok(())
}

fn at(call: i64, dir: i32, name: &CStr, flags: i32) -> Result<u64, Errno> {
    let args = [dir as u64, name.as_ptr() as u64, flags as u64, 0o755];
    sys::call(call, &args)
}

fn below(dir: i32, name: &CStr) -> Result<i32, Errno> {
    at(
        libc::SYS_openat,
        dir,
        name,
        libc::O_PATH | libc::O_DIRECTORY,
    )
    .map(|fd| fd as i32)
}

fn free_names(of: i32) -> Result<u64, Errno> {
    let mut fs = [0u64; 15];
    sys::call(libc::SYS_fstatfs, &[of as u64, fs.as_mut_ptr() as u64])?;
    Ok(fs[6])
}

/// A user's directories are nested very deeply: names are moved there, and all are removed while the deepest is in use.
fn deep() -> Result<(), Errno> {
    const DIR: &CStr = c"d";
    let top = sys::open("/tmp", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let before = free_names(top)?;
    sys::call(libc::SYS_setuid, &[1000])?;
    let mut lowest = top;
    for _ in 0..DEPTH {
        at(libc::SYS_mkdirat, lowest, DIR, 0o755)?;
        let next = below(lowest, DIR)?;
        if lowest != top {
            sys::close(lowest)?;
        }
        lowest = next;
    }
    sys::call(libc::SYS_fchdir, &[lowest as u64])?;
    let mut name = [0u8; 8192];
    let got = sys::call(
        libc::SYS_getcwd,
        &[name.as_mut_ptr() as u64, name.len() as u64],
    );
    // Moves a directory from one to another, and back.
    at(libc::SYS_mkdirat, lowest, c"one", 0o755)?;
    at(libc::SYS_mkdirat, lowest, c"two", 0o755)?;
    let two = below(lowest, c"two")?;
    let moved = [(lowest, two), (two, lowest)].map(|(from, to)| {
        let name = c"one".as_ptr() as u64;
        sys::call(libc::SYS_renameat, &[from as u64, name, to as u64, name])
    });
    sys::close(two)?;
    for name in [c"one", c"two"] {
        at(libc::SYS_unlinkat, lowest, name, libc::AT_REMOVEDIR)?;
    }
    let mut at_now = below(lowest, c"..")?;
    for _ in 0..DEPTH {
        at(libc::SYS_unlinkat, at_now, DIR, libc::AT_REMOVEDIR)?;
        let up = below(at_now, c"..")?;
        sys::close(at_now)?;
        at_now = up;
    }
    // The other directories are freed only after the deepest one.
    sys::call(libc::SYS_chdir, &[c"/".as_ptr() as u64])?;
    sys::close(lowest)?;
    let begun = sys::now_ns();
    while free_names(top)? < before {
        if sys::now_ns() - begun > 2_000_000_000 {
            return Err(libc::ETIME);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    match (got, moved) {
        (Err(libc::ENAMETOOLONG), [Ok(_), Ok(_)]) => Ok(()),
        _ => Err(libc::EPROTO),
    }
}

/// Unmounts a file system with many nested directories and a large file.
fn unmounted() -> Result<(), Errno> {
    const DIR: &CStr = c"d";
    let tmpfs = c"tmpfs".as_ptr() as u64;
    let on = c"/tmp/sections".as_ptr() as u64;
    sys::call(libc::SYS_mkdir, &[on, 0o755])?;
    sys::call(libc::SYS_mount, &[tmpfs, on, tmpfs, 0, 0])?;
    let mut lowest = sys::open("/tmp/sections", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    for _ in 0..DEPTH / 4 {
        at(libc::SYS_mkdirat, lowest, DIR, 0o755)?;
        let next = below(lowest, DIR)?;
        sys::close(lowest)?;
        lowest = next;
    }
    sys::close(lowest)?;
    let file = sys::open("/tmp/sections/f", libc::O_RDWR | libc::O_CREAT, 0o600)?;
    sys::call(libc::SYS_fallocate, &[file as u64, 0, 0, LARGE])?;
    sys::close(file)?;
    sys::call(libc::SYS_umount2, &[on, 0])?;
    // What was retired is freed before this thread goes on, so in a section that is measured: the idle thread's are not.
    let begun = sys::now_ns();
    while sys::now_ns() - begun < 600_000_000 {}
    sys::call(libc::SYS_rmdir, &[on]).map(drop)
}

/// As many index nodes without pages, of private memory whose first pages are resident.
fn emptied() -> Result<u64, Errno> {
    const SOME: u64 = 2000;
    let base = sys::mmap(0, NODES * 64 * PAGE, BOTH, PLAIN, -1, 0)?;
    for first in (0..NODES).step_by(SOME as usize) {
        (first..first + SOME).for_each(|node| sys::poke(base + node * 64 * PAGE, 1));
        let (from, len) = (base + first * 64 * PAGE, SOME * 64 * PAGE);
        let advice = libc::MADV_DONTNEED as u64;
        sys::call(libc::SYS_madvise, &[from, len, advice])?;
    }
    sys::poke(base, 1);
    sys::poke(base + PAGE, 1);
    Ok(base)
}

/// A child that lives until it is killed.
fn idle() -> Result<u64, Errno> {
    let pid = sys::fork()?;
    if pid == 0 {
        loop {
            std::thread::sleep(Duration::from_secs(60));
        }
    }
    Ok(pid)
}

fn kill(pids: &[u64]) -> Result<(), Errno> {
    for &pid in pids {
        sys::call(libc::SYS_kill, &[pid, libc::SIGKILL as u64])?;
        sys::wait(pid as i64, 0)?;
    }
    Ok(())
}

/// Waits for the background work on the unmapped memory.
fn tended() {
    std::thread::sleep(Duration::from_millis(1500));
}

/// Unmaps a page beside a child: the sweep for unreachable pages visits all nodes.
fn swept_nodes() -> Result<(), Errno> {
    let base = emptied()?;
    let child = idle()?;
    sys::munmap(base, PAGE)?;
    tended();
    kill(&[child])
}

/// Layers over a layer with such nodes: folding searches them for pages that are still visible.
fn folded_nodes() -> Result<(), Errno> {
    let base = emptied()?;
    let mut children = Vec::new();
    for n in 0..10 {
        children.push(idle()?);
        sys::poke(base, n);
        sys::poke(base + PAGE, n);
    }
    kill(&children)
}

/// A mapping that mremap scattered page by page loses a page; the sweep asks all its parts which pages they still
/// reach.
fn swept_parts() -> Result<(), Errno> {
    const PARTS: u64 = 500;
    let base = sys::mmap(0, PARTS * PAGE, BOTH, PLAIN, -1, 0)?;
    (0..PARTS).for_each(|n| sys::poke(base + n * PAGE, 1));
    let to = sys::mmap(0, 3 * PARTS * PAGE, libc::PROT_NONE, PLAIN, -1, 0)?;
    for n in 0..PARTS {
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let args = [base + n * PAGE, PAGE, PAGE, flags, to + 3 * n * PAGE];
        sys::call(libc::SYS_mremap, &args)?;
    }
    sys::munmap(to, PAGE)?;
    tended();
    Ok(())
}

/// A process with many descriptors forks.
fn descriptors() -> Result<(), Errno> {
    const MANY: u64 = 30_000;
    let limit = [MANY, MANY];
    let nofile = u64::from(libc::RLIMIT_NOFILE);
    sys::call(libc::SYS_prlimit64, &[0, nofile, limit.as_ptr() as u64, 0])?;
    while sys::call(libc::SYS_dup, &[1]).is_ok() {}
    if sys::call(libc::SYS_fcntl, &[MANY - 1, libc::F_GETFD as u64]).is_err() {
        return Err(libc::EMFILE);
    }
    kill(&[idle()?])
}

/// A table of descriptors grows to the largest that there is, and is copied by fork and emptied.
fn growing_table() -> Result<(), Errno> {
    const MOST: u64 = 1 << 20;
    let limit = [MOST, MOST];
    let nofile = u64::from(libc::RLIMIT_NOFILE);
    sys::call(libc::SYS_prlimit64, &[0, nofile, limit.as_ptr() as u64, 0])?;
    for fd in (2000..MOST).step_by(2000).chain([MOST - 1]) {
        sys::call(libc::SYS_dup2, &[1, fd])?;
    }
    kill(&[idle()?])?;
    sys::call(libc::SYS_close_range, &[3, MOST, 0])?;
    match sys::call(libc::SYS_fcntl, &[MOST - 1, libc::F_GETFD as u64]) {
        Err(libc::EBADF) => Ok(()),
        _ => Err(libc::EPROTO),
    }
}

/// A process with a full table of descriptors searches it for a free one, and for those that execve closes.
fn full_table() -> Result<(), Errno> {
    const MANY: u64 = 60_000;
    let limit = [MANY, MANY];
    let nofile = u64::from(libc::RLIMIT_NOFILE);
    sys::call(libc::SYS_prlimit64, &[0, nofile, limit.as_ptr() as u64, 0])?;
    while sys::call(libc::SYS_dup, &[1]).is_ok() {}
    sys::close(3)?;
    let found = sys::call(libc::SYS_fcntl, &[1, libc::F_DUPFD as u64, 4]);
    if found != Err(libc::EMFILE) {
        return Err(libc::EPROTO);
    }
    let program = c"/bin/true".as_ptr() as u64;
    let (argv, envp) = ([program, 0], [0u64]);
    let args = [program, argv.as_ptr() as u64, envp.as_ptr() as u64];
    sys::call(libc::SYS_execve, &args).map(drop)
}

/// As many locks on one file as it may have are replaced by one, and are dropped when the file is closed.
fn locks() -> Result<(), Errno> {
    let file = sys::open("/tmp/sections.locks", libc::O_RDWR | libc::O_CREAT, 0o600)?;
    let set = |kind: i32, from: u64, len: u64| {
        let lock = [kind as u64, from, len, 0];
        let args = [file as u64, libc::F_SETLK as u64, lock.as_ptr() as u64];
        sys::call(libc::SYS_fcntl, &args)
    };
    for at_once in [true, false] {
        let refused = (0..1 << 15).find_map(|n| set(libc::F_WRLCK, 2 * n, 1).err());
        if refused != Some(libc::ENOLCK) {
            return Err(libc::EPROTO);
        }
        if at_once {
            // The one that replaces the others is one more for a moment.
            set(libc::F_UNLCK, 0, 1)?;
            set(libc::F_WRLCK, 0, 0)?;
            set(libc::F_UNLCK, 0, 0)?;
        }
    }
    sys::close(file).map(drop)
}

/// The longest section of any CPU, and the kernel's description of it.
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
    const CASES: [Case; 22] = [
        ("fork with many descriptors", descriptors),
        ("growing table of descriptors", growing_table),
        ("search for a descriptor", full_table),
        ("locks on one file", locks),
        ("exit with many entries", entries),
        ("munmap of many entries", entries_at_once),
        ("mremap of many mappings", unmerged),
        ("mmap of more than each hole takes", between_holes),
        ("file with empty nodes", nodes),
        ("big exit", big_exit),
        ("big munmap", big_munmap),
        ("big kill", big_kill),
        ("directories in each other", deep),
        ("file system with such directories", unmounted),
        ("sleepers until one moment", sleepers),
        ("sleepers until moments close together", sleepers_apart),
        ("readers of one pipe", readers),
        ("stop of a group without a shell", orphans),
        ("wait among many children", many_children),
        ("sweep of empty nodes", swept_nodes),
        ("fold over empty nodes", folded_nodes),
        ("sweep of many parts", swept_parts),
    ];
    let limit = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let only = std::env::args().nth(2).unwrap_or_default();
    let mut failed = false;
    for (name, case) in CASES {
        if !name.starts_with(&only) {
            continue;
        }
        let done = child(case);
        // Released memory is freed after grace periods, or in the background.
        std::thread::sleep(Duration::from_millis(600));
        let (ticks, line) = longest();
        println!("sections: {name}: {done:?}, so far {line}");
        failed |= done.is_err() || ticks > limit.unwrap_or(u64::MAX);
    }
    if failed {
        sys::exit(1);
    }
    println!("sections: all short enough");
}
