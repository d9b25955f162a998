//! The matrix of calls, errnos and flags: a row for each errno or flag of each call.
//!
//! Guarantee: every errno that the manual pages list for a call of the matrix, and every flag that the call accepts, is
//! tested by a row, or by the test that [`elsewhere`] names. `--matrix` prints them, a line for each call.
//!
//! Mechanism: [`paths`] tests every call that takes a path with every kind of bad path. A file for each subject has the
//! rows that one line can provoke.
//!
//! There are no rows for what cannot occur:
//! - EIO, EDQUOT, ENOTBLK, EREMOTE, EMULTIHOP, EHWPOISON, ETXTBSY of a swap file: no disks, quotas, networks, swap.
//! - EOVERFLOW of stat and open: all sizes have 64 bits. EMLINK: a file may have as many names as memory holds.
//! - ENFILE: files are limited by memory, as they are for root in Linux.
//! - EAGAIN of setuid and kin: Linux has not given it since 3.1. EAGAIN of mlock: pages do not go away.
//! - EINTR of close and dup, EBUSY of dup2: Linux does not give them.
//! - ENOMEM for lack of memory: any call; the boot tests with failing allocations provoke it.
//! - ENOSYS of an implemented call, and errnos that only the C library returns (ENOTSUP, ENAMETOOLONG of gethostname).

use crate::harness::*;
use user::sys;

/// The rows of a subject: call, errno by name and number, and an expression that provokes it.
macro_rules! errnos {
    ($($call:ident $errno:ident |$here:pat_param| $do:expr;)*) => {
        /// Errnos.
        pub const ERRNOS: &[super::Row] = &[$(super::Row {
            call: stringify!($call), what: stringify!($errno), want: libc::$errno, run: |$here| $do,
        }),*];
    };
}

/// The flags, commands and options of a subject's calls: each expression succeeds or, if it is a condition, is true.
macro_rules! flags {
    ($($call:ident $flag:ident |$here:pat_param| $do:expr;)*) => {
        /// Flags.
        pub const FLAGS: &[super::Row] = &[$(super::Row {
            call: stringify!($call), what: stringify!($flag), want: 0, run: |$here| super::right($do),
        }),*];
    };
}

mod elsewhere;
mod files;
mod files_flags;
mod memory;
mod names;
mod paths;
mod process;
mod process_flags;
mod signals;
mod sockets;

/// The files that the rows use, created anew for each row.
pub struct Here {
    dir: String,
    /// A file of ten bytes, open for reading and writing.
    fd: i32,
    /// The same file, open for reading only, for writing only, and with O_PATH.
    reader: i32,
    writer: i32,
    place: i32,
    /// The ends of a pipe.
    from: i32,
    to: i32,
    /// The directory, opened.
    at: i32,
}

impl Here {
    /// A directory with `f`, `d`, `full/x`, `m/f`, the link `loop` to itself, the link `link` to `f`, and `closed/x`, which
    /// only root reaches.
    fn new() -> Result<Here, i32> {
        let dir = scratch();
        let file = format!("{dir}/f");
        let fd = sys::open(&file, libc::O_RDWR | libc::O_CREAT, 0o600)?;
        sys::write(fd, b"0123456789")?;
        let (from, to) = sys::pipe(0)?;
        for (name, mode) in [
            ("d", 0o755),
            ("full", 0o755),
            ("full/x", 0o755),
            ("m", 0o755),
            ("closed", 0o700),
            ("closed/x", 0o700),
        ] {
            sc!(SYS_mkdir, path(&format!("{dir}/{name}")), mode)?;
        }
        sys::close(sys::open(
            &format!("{dir}/m/f"),
            libc::O_CREAT | libc::O_WRONLY,
            0o600,
        )?)?;
        for (target, name) in [("loop", "loop"), ("f", "link")] {
            sc!(SYS_symlink, path(target), path(&format!("{dir}/{name}")))?;
        }
        Ok(Here {
            reader: sys::open(&file, libc::O_RDONLY, 0)?,
            writer: sys::open(&file, libc::O_WRONLY, 0)?,
            place: sys::open(&file, libc::O_PATH, 0)?,
            at: sys::open(&dir, libc::O_RDONLY | libc::O_DIRECTORY, 0)?,
            dir,
            fd,
            from,
            to,
        })
    }

    /// The path of a name in the directory, as an argument.
    fn p(&self, name: &str) -> u64 {
        path(&format!("{}/{name}", self.dir))
    }

    /// Opens a name in the directory.
    fn open(&self, name: &str, flags: i32) -> Result<i32, i32> {
        sys::open(&format!("{}/{name}", self.dir), flags, 0o600)
    }

    /// Runs `f` while `m` is a small file system of its own with a file `m/f`, mounted with `flags`.
    fn mounted(&self, flags: u64, f: impl FnOnce() -> Result<u64, i32>) -> Result<u64, i32> {
        let (m, kind) = (self.p("m"), path("tmpfs"));
        sc!(SYS_mount, kind, m, kind, 0, path("size=64k"))?;
        let _ = self
            .open("m/f", libc::O_CREAT | libc::O_RDWR)
            .map(sys::close);
        let got = sc!(SYS_mount, 0, m, 0, libc::MS_REMOUNT | flags, 0).and_then(|_| f());
        sc!(SYS_umount2, m, libc::MNT_DETACH)?;
        got
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        for fd in [
            self.fd,
            self.reader,
            self.writer,
            self.place,
            self.from,
            self.to,
            self.at,
        ] {
            let _ = sys::close(fd);
        }
    }
}

/// A row.
pub struct Row {
    call: &'static str,
    /// The errno or flag by name.
    what: &'static str,
    /// The errno; 0 for success.
    want: i32,
    run: fn(&Here) -> Result<u64, i32>,
}

/// The result of a flag's expression: any number, or a condition that must hold.
trait Answer {
    fn right(&self) -> bool;
}

impl Answer for u64 {
    fn right(&self) -> bool {
        true
    }
}

impl Answer for bool {
    fn right(&self) -> bool {
        *self
    }
}

fn right(answer: Result<impl Answer, i32>) -> Result<u64, i32> {
    match answer {
        Ok(answer) if answer.right() => Ok(0),
        Ok(_) => Err(UNTRUE),
        Err(errno) => Err(errno),
    }
}

/// The errno that stands for a condition that does not hold.
const UNTRUE: i32 = 250;
/// A number that is no open descriptor.
const NONE: i32 = 9999;
/// A pid that no process has.
const NOBODY: u64 = 3_999_999;
/// An address that is not mapped.
const BAD: u64 = 8;
const CWD: i32 = libc::AT_FDCWD;

fn long() -> u64 {
    path(&"x".repeat(300))
}

/// Runs `f` in a child, so that its changes to the process do not matter.
fn apart<T: Answer>(f: impl FnOnce() -> Result<T, i32>) -> Result<u64, i32> {
    let status = in_child(|| match f() {
        Ok(answer) if answer.right() => 0,
        Ok(_) => UNTRUE,
        Err(errno) => errno,
    });
    match status {
        Ok(0) => Ok(0),
        Ok(status) if status & 0x7f == 0 => Err(status >> 8),
        _ => Err(UNTRUE),
    }
}

/// Runs `f` as an unprivileged user.
fn nobody<T: Answer>(f: impl FnOnce() -> Result<T, i32>) -> Result<u64, i32> {
    const USER: u64 = 65534;
    apart(|| {
        sc!(SYS_setgroups, 0, 0)?;
        sc!(SYS_setresgid, USER, USER, USER)?;
        sc!(SYS_setresuid, USER, USER, USER)?;
        f()
    })
}

/// Runs `f` in a child under a resource limit.
fn limited<T: Answer>(
    resource: u32,
    to: u64,
    f: impl FnOnce() -> Result<T, i32>,
) -> Result<u64, i32> {
    apart(|| {
        sc!(SYS_prlimit64, 0, resource, [to, to].as_ptr(), 0)?;
        f()
    })
}

/// As [`limited`], as an unprivileged user.
fn limited_nobody<T: Answer>(
    resource: u32,
    to: u64,
    f: impl FnOnce() -> Result<T, i32>,
) -> Result<u64, i32> {
    nobody(|| {
        sc!(SYS_prlimit64, 0, resource, [to, to].as_ptr(), 0)?;
        f()
    })
}

/// Runs `f` in a child that cannot open another descriptor.
fn no_descriptors<T: Answer>(f: impl FnOnce() -> Result<T, i32>) -> Result<u64, i32> {
    limited(libc::RLIMIT_NOFILE, 1, f)
}

/// Makes a blocking call in a child that repeatedly gets a signal with a handler.
fn interrupted<T: Answer>(f: impl FnOnce() -> Result<T, i32>) -> Result<u64, i32> {
    extern "C" fn nothing(_: i32) {}
    apart(|| {
        sys::on_signal(libc::SIGALRM, nothing as *const () as usize, 0)?;
        sc!(
            SYS_setitimer,
            libc::ITIMER_REAL,
            [0u64, 5000, 0, 5000].as_ptr(),
            0
        )?;
        f()
    })
}

/// Runs `f` beside a child that sleeps until it is killed afterwards.
fn beside<T: Answer>(f: impl FnOnce(u64) -> Result<T, i32>) -> Result<u64, i32> {
    beside_doing(|| Ok(0), f)
}

/// As [`beside`]: the child first executes an action.
fn beside_doing<T: Answer>(
    first: impl FnOnce() -> Result<u64, i32>,
    f: impl FnOnce(u64) -> Result<T, i32>,
) -> Result<u64, i32> {
    let pid = sys::fork()?;
    if pid == 0 {
        let _ = first();
        loop {
            nap_us(1_000_000);
        }
    }
    let answer = right(f(pid));
    sc!(SYS_kill, pid, libc::SIGKILL)?;
    // The call may already have reaped the child.
    let _ = sys::wait(pid as i64, 0);
    answer
}

/// Returns all rows whose result differs from the expected one.
fn check(rows: &[Row]) -> Result<(), String> {
    let wrong: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            let here = match Here::new() {
                Ok(here) => here,
                Err(e) => return Some(format!("no place to work in: {}", errno_name(e))),
            };
            let got = (row.run)(&here);
            let want = match row.want {
                0 => got.is_ok(),
                errno => got == Err(errno),
            };
            (!want).then(|| format!("{} {} gave {}", row.call, row.what, answer(got)))
        })
        .collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}

fn answer(got: Result<u64, i32>) -> String {
    if got == Err(UNTRUE) {
        "what is not so".into()
    } else {
        show(got)
    }
}

const TABLES: &[&[Row]] = &[
    files::ERRNOS,
    files_flags::FLAGS,
    memory::ERRNOS,
    memory::FLAGS,
    names::ERRNOS,
    names::FLAGS,
    process::ERRNOS,
    process_flags::FLAGS,
    signals::ERRNOS,
    signals::FLAGS,
    sockets::ERRNOS,
    sockets::FLAGS,
];

/// Prints each call with its errnos and flags.
pub fn print() {
    let rows = TABLES
        .iter()
        .copied()
        .flatten()
        .map(|row| (row.call, row.what));
    let elsewhere = elsewhere::TESTED
        .iter()
        .map(|&(call, what, _)| (call, what));
    let mut calls = std::collections::BTreeMap::<&str, std::collections::BTreeSet<&str>>::new();
    for (call, what) in rows.chain(elsewhere).chain(paths::all()) {
        calls.entry(call).or_default().insert(what);
    }
    for (call, what) in calls {
        println!("{call}: {}", what.into_iter().collect::<Vec<_>>().join(" "));
    }
}

tests! { "matrix";
    paths { paths::check()? }
    names { check(names::ERRNOS)? }
    names_flags { check(names::FLAGS)? }
    files { check(files::ERRNOS)? }
    files_flags { check(files_flags::FLAGS)? }
    memory { check(memory::ERRNOS)? }
    memory_flags { check(memory::FLAGS)? }
    process { check(process::ERRNOS)? }
    process_flags { check(process_flags::FLAGS)? }
    signals { check(signals::ERRNOS)? }
    signals_flags { check(signals::FLAGS)? }
    sockets { check(sockets::ERRNOS)?; check(sockets::FLAGS)? }
    tests_elsewhere_are_there {
        for (call, what, test) in elsewhere::TESTED {
            if !crate::SUBJECTS.iter().copied().flatten().any(|t| t.name == *test) {
                return Err(format!("{call} {what}: there is no test {test}"));
            }
        }
    }
    rows_stand_in_order {
        for table in TABLES { holds!(table.is_sorted_by_key(|row| row.call)); }
    }
}
