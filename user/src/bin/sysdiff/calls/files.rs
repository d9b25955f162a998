//! Calls on open files, by descriptor.

use super::{Call, names};
use crate::actor::{Act, say};
use crate::dice::{digest, short};
use crate::normal;
use user::sys;

/// See [`super::FAMILIES`].
pub const CALLS: &[Call] = &[
    (16, open),
    (7, close),
    (12, write),
    (9, read),
    (10, pwrite),
    (6, pread),
    (4, vectors),
    (9, seek),
    (8, truncate),
    (8, allocate),
    (7, status),
    (5, duplicate),
    (8, duplicate_to),
    (5, flags),
    (3, list),
    (3, change_mode),
    (3, change_owner),
    (3, times),
    (2, copy),
    (1, sync),
];

/// The descriptors that programs use: the first after the standard ones, and their number.
const FIRST: u64 = 3;
const COUNT: u64 = 16;
/// The most that one call reads or writes.
pub const BUFFER: usize = 8192;

fn kind_of(fd: u64) -> Option<u32> {
    let mut stat = sys::zeroed_stat();
    sys::call(libc::SYS_fstat, &[fd, &raw mut stat as u64]).ok()?;
    Some(stat.st_mode & libc::S_IFMT)
}

/// An open descriptor that `wanted` accepts, else a random number.
fn find(act: &mut Act, wanted: impl Fn(u32) -> bool) -> i32 {
    let start = act.dice.below(COUNT);
    if act.dice.chance(3) {
        return act.dice.of_these(&[-1, 2000, 5]);
    }
    let fds = (0..COUNT).map(|n| FIRST + (start + n) % COUNT);
    let mut fds = fds.filter(|&fd| kind_of(fd).is_some_and(&wanted));
    fds.next().unwrap_or(FIRST + start) as i32
}

/// Whether the kind is that of a regular file.
pub fn is_regular(kind: u32) -> bool {
    kind == libc::S_IFREG
}

/// Whether the kind is that of a pipe, socket or eventfd.
pub fn is_stream(kind: u32) -> bool {
    !matches!(kind, libc::S_IFREG | libc::S_IFDIR | libc::S_IFLNK)
}

/// Whether a file is open that `wanted` accepts.
pub fn is_any_open(wanted: impl Fn(u32) -> bool) -> bool {
    (FIRST..FIRST + COUNT).any(|fd| kind_of(fd).is_some_and(&wanted))
}

/// Opens a file for reading and writing, and creates it if it does not exist.
pub fn create(act: &mut Act) {
    let path = names::path(act);
    let flags = libc::O_RDWR | libc::O_CREAT;
    say!(act, "open({path}, {flags:#o}, 666)");
    let here = libc::AT_FDCWD as i64 as u64;
    let result = act.call(libc::SYS_openat, &[here, path.addr(), flags as u64, 0o666]);
    keep(act, result);
}

/// An open descriptor to duplicate: often one with close-on-exec.
fn to_copy(act: &mut Act) -> i32 {
    let closes = |fd: &u64| sys::call(libc::SYS_fcntl, &[*fd, libc::F_GETFD as u64]) == Ok(1);
    if act.dice.chance(60)
        && let Some(fd) = (FIRST..FIRST + COUNT).find(closes)
    {
        return fd as i32;
    }
    any(act)
}

/// Mostly adds the close-on-exec flag of the duplicate.
fn copied(act: &mut Act, copy: Result<u64, i32>) {
    if let Ok(fd) = copy
        && act.dice.chance(70)
    {
        say!(act, ", F_GETFD");
        let _ = act.call(libc::SYS_fcntl, &[fd, libc::F_GETFD as u64]);
    }
}

/// Any open file.
pub fn any(act: &mut Act) -> i32 {
    find(act, |_| true)
}

/// An open regular file.
pub fn regular(act: &mut Act) -> i32 {
    find(act, is_regular)
}

/// An open pipe, socket or eventfd.
pub fn stream(act: &mut Act) -> i32 {
    find(act, is_stream)
}

/// Closes a new descriptor beyond those that programs use.
pub fn keep(act: &mut Act, fd: Result<u64, i32>) {
    if fd.is_ok_and(|fd| fd >= FIRST + COUNT) {
        let _ = sys::call(libc::SYS_close, &[fd.unwrap_or(0)]);
        say!(act, " and closed");
    }
}

/// An offset in a file, or a distance from one: pages and their edges, and now and then far away.
pub fn offset(act: &mut Act) -> u64 {
    act.dice.of_these(&[
        0,
        0,
        0,
        1,
        100,
        4095,
        4096,
        4097,
        8192,
        12_288,
        16_384,
        5 << 20,
    ])
}

/// A length to read or write.
pub fn size(act: &mut Act) -> usize {
    act.dice
        .of_these(&[0, 1, 10, 100, 100, 4096, 4096, 5000, BUFFER])
}

/// Bytes to write.
pub fn pattern(act: &mut Act) -> [u8; BUFFER] {
    let first = act.dice.next() as u8 | 1;
    std::array::from_fn(|n| first.wrapping_add((n / 64) as u8))
}

/// Adds the bytes that were read.
pub fn told(act: &mut Act, result: Result<u64, i32>, buffer: &[u8]) {
    if let Ok(len @ 1..) = result {
        say!(act, " #{:04x}", short(digest(&buffer[..len as usize])));
    }
}

fn open(act: &mut Act) {
    let path = names::path(act);
    let access = act.dice.of_these(&[
        libc::O_RDWR,
        libc::O_RDWR,
        libc::O_RDWR,
        libc::O_RDONLY,
        libc::O_WRONLY,
    ]);
    let mut more = act.dice.bits(&[
        (libc::O_CREAT, 55),
        (libc::O_EXCL, 10),
        (libc::O_TRUNC, 12),
        (libc::O_APPEND, 10),
        (libc::O_NONBLOCK, 10),
        (libc::O_CLOEXEC, 30),
        (libc::O_DIRECTORY, 6),
        (libc::O_NOFOLLOW, 8),
        (libc::O_PATH, 4),
        (libc::O_NOATIME, 3),
    ]);
    if act.dice.chance(6) {
        more = more & !libc::O_CREAT | libc::O_TMPFILE;
    }
    let mode = names::mode(act);
    say!(act, "open({path}, {:#o}, {mode:o})", access | more);
    let args = [
        libc::AT_FDCWD as i64 as u64,
        path.addr(),
        (access | more) as u64,
        mode,
    ];
    let result = act.call(libc::SYS_openat, &args);
    keep(act, result);
}

fn close(act: &mut Act) {
    let fd = any(act);
    if act.dice.chance(6) {
        let last = fd + act.dice.below(3) as i32;
        let flags = act.dice.of_these(&[0u64, 4, 0, 1]);
        // Never all descriptors: the standard ones stay open.
        let fd = fd.max(FIRST as i32);
        say!(act, "close_range({fd}, {last}, {flags})");
        let _ = act.call(libc::SYS_close_range, &[fd as u64, last as u64, flags]);
        return;
    }
    say!(act, "close({fd})");
    let _ = act.call(libc::SYS_close, &[fd as u64]);
}

fn write(act: &mut Act) {
    let (fd, len, bytes) = (regular(act), size(act), pattern(act));
    say!(act, "write({fd}, {len})");
    let _ = act.call(
        libc::SYS_write,
        &[fd as u64, bytes.as_ptr() as u64, len as u64],
    );
}

fn read(act: &mut Act) {
    let (fd, len) = (regular(act), size(act));
    let mut buffer = [0u8; BUFFER];
    say!(act, "read({fd}, {len})");
    let result = act.call(
        libc::SYS_read,
        &[fd as u64, buffer.as_mut_ptr() as u64, len as u64],
    );
    told(act, result, &buffer);
}

fn pwrite(act: &mut Act) {
    let (fd, len, bytes, at) = (regular(act), size(act), pattern(act), offset(act));
    say!(act, "pwrite64({fd}, {len}, {at})");
    let _ = act.call(
        libc::SYS_pwrite64,
        &[fd as u64, bytes.as_ptr() as u64, len as u64, at],
    );
}

fn pread(act: &mut Act) {
    let (fd, len, at) = (regular(act), size(act), offset(act));
    let mut buffer = [0u8; BUFFER];
    say!(act, "pread64({fd}, {len}, {at})");
    let result = act.call(
        libc::SYS_pread64,
        &[fd as u64, buffer.as_mut_ptr() as u64, len as u64, at],
    );
    told(act, result, &buffer);
}

fn vectors(act: &mut Act) {
    let (fd, bytes) = (regular(act), pattern(act));
    let (a, b) = (size(act).min(5000), size(act).min(3000));
    let mut buffer = bytes;
    let base = buffer.as_mut_ptr() as u64;
    let vector = [base, a as u64, base + 5000, b as u64];
    let count = act.dice.of_these(&[2u64, 2, 2, 1, 0]);
    if act.dice.chance(50) {
        say!(act, "writev({fd}, {a} {b}, {count})");
        let _ = act.call(
            libc::SYS_writev,
            &[fd as u64, vector.as_ptr() as u64, count],
        );
    } else {
        say!(act, "readv({fd}, {a} {b}, {count})");
        let result = act.call(libc::SYS_readv, &[fd as u64, vector.as_ptr() as u64, count]);
        told(
            act,
            result.map(|_| BUFFER as u64),
            &std::hint::black_box(buffer),
        );
    }
}

fn seek(act: &mut Act) {
    let (fd, at) = (any(act), offset(act) as i64);
    let (whence, name) = act.dice.of_these(&[
        (libc::SEEK_SET, "SET"),
        (libc::SEEK_CUR, "CUR"),
        (libc::SEEK_END, "END"),
        (libc::SEEK_DATA, "DATA"),
        (libc::SEEK_DATA, "DATA"),
        (libc::SEEK_HOLE, "HOLE"),
        (libc::SEEK_HOLE, "HOLE"),
        (9, "9"),
    ]);
    let at = if act.dice.chance(15) { -at } else { at };
    say!(act, "lseek({fd}, {at}, {name})");
    let _ = act.call(libc::SYS_lseek, &[fd as u64, at as u64, whence as u64]);
}

fn truncate(act: &mut Act) {
    let len = offset(act);
    if act.dice.chance(25) {
        let path = names::path(act);
        say!(act, "truncate({path}, {len})");
        let _ = act.call(libc::SYS_truncate, &[path.addr(), len]);
        return;
    }
    let fd = regular(act);
    say!(act, "ftruncate({fd}, {len})");
    let _ = act.call(libc::SYS_ftruncate, &[fd as u64, len]);
}

fn allocate(act: &mut Act) {
    let (fd, at) = (regular(act), offset(act));
    let len = act.dice.of_these(&[1u64, 100, 4096, 4096, 8192, 12_288, 0]);
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    let punch = libc::FALLOC_FL_PUNCH_HOLE | keep;
    let mode = act.dice.of_these(&[
        0,
        keep,
        punch,
        punch,
        punch,
        libc::FALLOC_FL_PUNCH_HOLE,
        libc::FALLOC_FL_COLLAPSE_RANGE,
    ]);
    say!(act, "fallocate({fd}, {mode:#x}, {at}, {len})");
    let _ = act.call(libc::SYS_fallocate, &[fd as u64, mode as u64, at, len]);
}

/// Adds the fields of a stat structure.
pub fn stat_told(act: &mut Act, stat: &libc::stat) {
    let libc::stat {
        st_mode,
        st_nlink,
        st_uid,
        st_gid,
        st_size,
        st_blocks,
        ..
    } = *stat;
    say!(
        act,
        " {st_mode:o} links {st_nlink} {st_uid}:{st_gid} size {st_size} blocks {st_blocks}"
    );
    let (accessed, modified) = (
        normal::time(stat.st_atime, stat.st_atime_nsec),
        normal::time(stat.st_mtime, stat.st_mtime_nsec),
    );
    say!(act, " atime {accessed} mtime {modified}");
}

fn status(act: &mut Act) {
    let fd = any(act);
    let mut stat = sys::zeroed_stat();
    say!(act, "fstat({fd})");
    if act
        .call(libc::SYS_fstat, &[fd as u64, &raw mut stat as u64])
        .is_ok()
    {
        stat_told(act, &stat);
    }
}

fn duplicate(act: &mut Act) {
    let fd = to_copy(act);
    let result = match act.dice.below(3) {
        0 => {
            say!(act, "dup({fd})");
            act.call(libc::SYS_dup, &[fd as u64])
        }
        1 => {
            say!(act, "fcntl({fd}, F_DUPFD, 6)");
            act.call(libc::SYS_fcntl, &[fd as u64, libc::F_DUPFD as u64, 6])
        }
        _ => {
            say!(act, "fcntl({fd}, F_DUPFD_CLOEXEC, 4)");
            act.call(
                libc::SYS_fcntl,
                &[fd as u64, libc::F_DUPFD_CLOEXEC as u64, 4],
            )
        }
    };
    copied(act, result);
    keep(act, result);
}

fn duplicate_to(act: &mut Act) {
    let (fd, to) = (to_copy(act), FIRST + act.dice.below(COUNT));
    let result = if act.dice.chance(50) {
        say!(act, "dup2({fd}, {to})");
        act.call(libc::SYS_dup2, &[fd as u64, to])
    } else {
        let flags = act.dice.of_these(&[0, libc::O_CLOEXEC, libc::O_CLOEXEC, 1]);
        say!(act, "dup3({fd}, {to}, {flags:#o})");
        act.call(libc::SYS_dup3, &[fd as u64, to, flags as u64])
    };
    copied(act, result);
}

fn flags(act: &mut Act) {
    let fd = any(act);
    let (name, command, value) = act.dice.of_these(&[
        ("F_GETFD", libc::F_GETFD, 0),
        ("F_SETFD 1", libc::F_SETFD, 1),
        ("F_SETFD 0", libc::F_SETFD, 0),
        ("F_GETFL", libc::F_GETFL, 0),
        ("F_GETFL", libc::F_GETFL, 0),
        ("F_SETFL 0", libc::F_SETFL, 0),
        ("F_SETFL O_NONBLOCK", libc::F_SETFL, libc::O_NONBLOCK),
        ("F_SETFL O_APPEND", libc::F_SETFL, libc::O_APPEND),
        ("F_GETPIPE_SZ", libc::F_GETPIPE_SZ, 0),
        ("F_SETPIPE_SZ 4096", libc::F_SETPIPE_SZ, 4096),
        ("F_SETPIPE_SZ 20000", libc::F_SETPIPE_SZ, 20_000),
    ]);
    say!(act, "fcntl({fd}, {name})");
    let _ = act.call(libc::SYS_fcntl, &[fd as u64, command as u64, value as u64]);
}

fn list(act: &mut Act) {
    let fd = find(act, |kind| kind == libc::S_IFDIR);
    say!(act, "getdents64({fd})");
    let mut buffer = [0u8; BUFFER];
    let result = sys::call(
        libc::SYS_getdents64,
        &[fd as u64, buffer.as_mut_ptr() as u64, BUFFER as u64],
    );
    let _ = act.result(result.map(|_| 0));
    let mut at = 0;
    let len = result.unwrap_or(0) as usize;
    let mut sums = [0u16; 64];
    let mut count = 0;
    while at < len && count < sums.len() {
        let entry =
            &buffer[at..at + usize::from(u16::from_le_bytes([buffer[at + 16], buffer[at + 17]]))];
        let name = entry[19..]
            .split(|&byte| byte == 0)
            .next()
            .unwrap_or_default();
        sums[count] = short(digest(name) ^ u64::from(entry[18]));
        count += 1;
        at += entry.len();
    }
    sums[..count].sort_unstable();
    let bytes = sums.map(u16::to_le_bytes);
    say!(
        act,
        " {count} names #{:04x}",
        short(digest(bytes[..count].as_flattened()))
    );
}

/// Whether a descriptor is that of a pipe or eventfd, whose attributes are not those of a file: on Linux all eventfds
/// share one inode, and on Pantala pipes keep their attributes.
fn is_nameless(act: &mut Act, fd: i32) -> bool {
    let nameless = kind_of(fd as u64).is_some_and(is_stream);
    if nameless {
        say!(act, " not done");
    }
    nameless
}

fn change_mode(act: &mut Act) {
    let (fd, mode) = (any(act), names::mode(act));
    say!(act, "fchmod({fd}, {mode:o})");
    if is_nameless(act, fd) {
        return;
    }
    let _ = act.call(libc::SYS_fchmod, &[fd as u64, mode]);
}

fn change_owner(act: &mut Act) {
    let (fd, uid, gid) = (any(act), names::owner(act), names::owner(act));
    say!(act, "fchown({fd}, {}, {})", uid as i32, gid as i32);
    if is_nameless(act, fd) {
        return;
    }
    let _ = act.call(libc::SYS_fchown, &[fd as u64, uid, gid]);
}

fn times(act: &mut Act) {
    let times = names::times(act);
    let fd = any(act);
    say!(
        act,
        "futimens({fd}, {}, {})",
        names::time_name(times[1]),
        names::time_name(times[3])
    );
    if is_nameless(act, fd) {
        return;
    }
    let _ = act.call(
        libc::SYS_utimensat,
        &[fd as u64, 0, times.as_ptr() as u64, 0],
    );
}

fn copy(act: &mut Act) {
    let (from, to) = (regular(act), regular(act));
    let len = size(act) as u64;
    say!(act, "sendfile({to}, {from}, {len})");
    let _ = act.call(libc::SYS_sendfile, &[to as u64, from as u64, 0, len]);
}

fn sync(act: &mut Act) {
    let fd = any(act);
    let (name, nr) = act.dice.of_these(&[
        ("fsync", libc::SYS_fsync),
        ("fdatasync", libc::SYS_fdatasync),
    ]);
    say!(act, "{name}({fd})");
    let _ = act.call(nr, &[fd as u64]);
}
