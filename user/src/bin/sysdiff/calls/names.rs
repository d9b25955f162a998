//! Calls on files and directories, by path.

use super::{Call, creds, files};
use crate::actor::{Act, say};
use std::ffi::CStr;
use user::sys;

/// See [`super::FAMILIES`].
pub const CALLS: &[Call] = &[
    (6, link),
    (7, unlink),
    (9, rename),
    (4, symlink),
    (3, read_link),
    (7, make_directory),
    (4, remove_directory),
    (8, change_mode),
    (10, change_owner),
    (7, change_nothing),
    (4, times_call),
    (7, status),
    (3, extended_status),
    (5, access),
    (2, make_node),
    (1, directory),
    (2, link_descriptor),
];

/// Names that programs use.
const PATHS: &[&CStr] = &[
    c"a", c"a", c"b", c"b", c"c", c"D", c"D", c"E", c"D/a", c"D/a", c"D/b", c"E/a", c"D/E",
    c"D/E/a", c"l", c"m", c".",
];

/// Names that are invalid or unusual.
const ODD: &[&CStr] = &[
    c"", c"a/", c"D/", c"D/..", c"nx/a", c"a/b", c"D/.", c"l/a", c"E/../a",
];

/// A path argument.
#[derive(Clone, Copy)]
pub struct Path(&'static CStr);

impl Path {
    /// Its address.
    pub fn addr(self) -> u64 {
        self.0.as_ptr() as u64
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.0.to_str().unwrap_or("?"))
    }
}

/// A path, mostly of an existing file.
pub fn path(act: &mut Act) -> Path {
    if act.dice.chance(6) {
        return Path(act.dice.of_these(ODD));
    }
    let first = Path(act.dice.of_these(PATHS));
    let second = Path(act.dice.of_these(PATHS));
    if sys::call(libc::SYS_access, &[first.addr(), 0]).is_ok() {
        first
    } else {
        second
    }
}

fn new_path(act: &mut Act) -> Path {
    let paths = if act.dice.chance(6) { ODD } else { PATHS };
    Path(act.dice.of_these(paths))
}

/// A mode.
pub fn mode(act: &mut Act) -> u64 {
    act.dice.of_these(&[
        0o644, 0o666, 0o666, 0o600, 0o755, 0o777, 0o4755, 0o2755, 0o2777, 0o6711, 0o1777, 0, 0o400,
        0o2644,
    ])
}

/// An owner or group; often -1, which changes nothing.
pub fn owner(act: &mut Act) -> u64 {
    let none = u64::from(u32::MAX);
    act.dice
        .of_these(&[none, none, none, 0, creds::USER, creds::USER, 1001, 5])
}

fn link(act: &mut Act) {
    let (from, to) = (path(act), new_path(act));
    let flags = act.dice.of_these(&[0, 0, 0, libc::AT_SYMLINK_FOLLOW, 1]);
    say!(act, "linkat({from}, {to}, {flags:#x})");
    let here = libc::AT_FDCWD as i64 as u64;
    let _ = act.call(
        libc::SYS_linkat,
        &[here, from.addr(), here, to.addr(), flags as u64],
    );
}

fn unlink(act: &mut Act) {
    let path = path(act);
    say!(act, "unlink({path})");
    let _ = act.call(libc::SYS_unlink, &[path.addr()]);
}

fn rename(act: &mut Act) {
    let (from, to) = (
        path(act),
        if act.dice.chance(50) {
            path(act)
        } else {
            new_path(act)
        },
    );
    let flags = act.dice.of_these(&[0u64, 0, 0, 0, 1, 2, 2, 3]);
    say!(act, "renameat2({from}, {to}, {flags})");
    let here = libc::AT_FDCWD as i64 as u64;
    let _ = act.call(
        libc::SYS_renameat2,
        &[here, from.addr(), here, to.addr(), flags],
    );
}

fn symlink(act: &mut Act) {
    let (target, path) = (
        new_path(act),
        Path(act.dice.of_these(&[c"l", c"m", c"D/l", c"a", c"E/m"])),
    );
    say!(act, "symlink({target}, {path})");
    let _ = act.call(libc::SYS_symlink, &[target.addr(), path.addr()]);
}

fn read_link(act: &mut Act) {
    let path = if act.dice.chance(70) {
        Path(act.dice.of_these(&[c"l", c"m", c"D/l"]))
    } else {
        path(act)
    };
    let mut buffer = [0u8; 64];
    let len = act.dice.of_these(&[64u64, 64, 1, 0]);
    say!(act, "readlink({path}, {len})");
    let result = act.call(
        libc::SYS_readlink,
        &[path.addr(), buffer.as_mut_ptr() as u64, len],
    );
    files::told(act, result, &buffer);
}

fn make_directory(act: &mut Act) {
    let (path, mode) = (
        Path(
            act.dice
                .of_these(&[c"D", c"D", c"E", c"D/E", c"a", c"D/E/F", c"E/D/"]),
        ),
        mode(act) | 0o700,
    );
    say!(act, "mkdir({path}, {mode:o})");
    let _ = act.call(libc::SYS_mkdir, &[path.addr(), mode]);
}

fn remove_directory(act: &mut Act) {
    let path = path(act);
    say!(act, "rmdir({path})");
    let _ = act.call(libc::SYS_rmdir, &[path.addr()]);
}

fn change_mode(act: &mut Act) {
    let (path, mode) = (path(act), mode(act));
    say!(act, "chmod({path}, {mode:o})");
    let _ = act.call(libc::SYS_chmod, &[path.addr(), mode]);
}

fn change_owner(act: &mut Act) {
    let (path, uid, gid) = (path(act), owner(act), owner(act));
    let (name, nr) = act.dice.of_these(&[
        ("chown", libc::SYS_chown),
        ("chown", libc::SYS_chown),
        ("lchown", libc::SYS_lchown),
    ]);
    say!(act, "{name}({path}, {}, {})", uid as i32, gid as i32);
    let _ = act.call(nr, &[path.addr(), uid, gid]);
}

/// A set-user-ID or set-group-ID file of another user, if there is one.
fn of_a_stranger(act: &mut Act) -> Option<Path> {
    let me = sys::call(libc::SYS_geteuid, &[]).unwrap_or(0) as u32;
    let is_one = |path: &Path| {
        let mut stat = sys::zeroed_stat();
        let found = sys::call(libc::SYS_stat, &[path.addr(), &raw mut stat as u64]).is_ok();
        let stat = std::hint::black_box(stat);
        found
            && stat.st_mode & libc::S_IFMT == libc::S_IFREG
            && stat.st_mode & 0o6000 != 0
            && stat.st_uid != me
    };
    let start = act.dice.below(PATHS.len() as u64) as usize;
    let all = PATHS.iter().cycle().skip(start).take(PATHS.len());
    all.map(|path| Path(path)).find(is_one)
}

/// A chown that keeps owner and group, whose only effect may be on the set-user-ID and set-group-ID bits. If no other
/// user has such a file, this actor creates one for others to try.
fn change_nothing(act: &mut Act) {
    let none = u64::from(u32::MAX);
    let here = libc::AT_FDCWD as i64 as u64;
    let Some(path) = of_a_stranger(act) else {
        let (path, mode) = (
            path(act),
            act.dice.of_these(&[0o4755, 0o6755, 0o6777, 0o2711]),
        );
        say!(act, "chmod({path}, {mode:o})");
        let _ = act.call(libc::SYS_chmod, &[path.addr(), mode]);
        return;
    };
    match act.dice.below(3) {
        0 => {
            say!(act, "chown({path}, -1, -1)");
            let _ = act.call(libc::SYS_chown, &[path.addr(), none, none]);
        }
        1 => {
            say!(act, "lchown({path}, -1, -1)");
            let _ = act.call(libc::SYS_lchown, &[path.addr(), none, none]);
        }
        _ => {
            let flags = act.dice.of_these(&[0, libc::AT_SYMLINK_NOFOLLOW]) as u64;
            say!(act, "fchownat({path}, -1, -1, {flags:#x})");
            let args = [here, path.addr(), none, none, flags];
            let _ = act.call(libc::SYS_fchownat, &args);
        }
    }
}

/// Times for utimensat(2): seconds and nanoseconds, twice.
pub fn times(act: &mut Act) -> [u64; 4] {
    let time = |act: &mut Act| {
        let nanoseconds = act.dice.of_these(&[
            0,
            5,
            999_999_999,
            libc::UTIME_NOW as u64,
            libc::UTIME_OMIT as u64,
            1_000_000_000,
        ]);
        [act.dice.below(5000), nanoseconds]
    };
    let (accessed, modified) = (time(act), time(act));
    [accessed[0], accessed[1], modified[0], modified[1]]
}

/// The meaning of the nanoseconds of [`times`].
pub fn time_name(nanoseconds: u64) -> &'static str {
    match nanoseconds as i64 {
        libc::UTIME_NOW => "now",
        libc::UTIME_OMIT => "omit",
        1_000_000_000 => "bad",
        _ => "set",
    }
}

fn times_of(act: &mut Act, flags: i32) {
    let (path, times) = (path(act), times(act));
    say!(
        act,
        "utimensat({path}, {}, {}, {flags:#x})",
        time_name(times[1]),
        time_name(times[3])
    );
    let here = libc::AT_FDCWD as i64 as u64;
    let _ = act.call(
        libc::SYS_utimensat,
        &[here, path.addr(), times.as_ptr() as u64, flags as u64],
    );
}

fn status(act: &mut Act) {
    let path = path(act);
    let (name, nr) = act
        .dice
        .of_these(&[("stat", libc::SYS_stat), ("lstat", libc::SYS_lstat)]);
    let mut stat = sys::zeroed_stat();
    say!(act, "{name}({path})");
    if act.call(nr, &[path.addr(), &raw mut stat as u64]).is_ok() {
        files::stat_told(act, &stat);
    }
}

fn extended_status(act: &mut Act) {
    let path = path(act);
    let flags = act
        .dice
        .of_these(&[0, libc::AT_SYMLINK_NOFOLLOW, libc::AT_EMPTY_PATH]);
    // Words of 32 bits: mask, block size, attributes (2), links, uid, gid, mode (16 bits).
    let mut words = [0u32; 64];
    say!(act, "statx({path}, {flags:#x})");
    let here = libc::AT_FDCWD as i64 as u64;
    let args = [
        here,
        path.addr(),
        flags as u64,
        u64::from(libc::STATX_BASIC_STATS),
        words.as_mut_ptr() as u64,
    ];
    if act.call(libc::SYS_statx, &args).is_ok() {
        let words = std::hint::black_box(words);
        say!(
            act,
            " mask {:#x} links {} {}:{}",
            words[0] & libc::STATX_BASIC_STATS,
            words[4],
            words[5],
            words[6]
        );
        say!(
            act,
            " mode {:o} size {} blocks {}",
            words[7] & 0xffff,
            words[10],
            words[12]
        );
    }
}

fn access(act: &mut Act) {
    let (path, mode) = (path(act), act.dice.below(8));
    let flags = act
        .dice
        .of_these(&[0, libc::AT_EACCESS, libc::AT_SYMLINK_NOFOLLOW]);
    say!(act, "faccessat2({path}, {mode}, {flags:#x})");
    let here = libc::AT_FDCWD as i64 as u64;
    let _ = act.call(
        libc::SYS_faccessat2,
        &[here, path.addr(), mode, flags as u64],
    );
}

fn make_node(act: &mut Act) {
    let (path, mode) = (new_path(act), mode(act));
    let kind = act
        .dice
        .of_these(&[libc::S_IFREG, 0, libc::S_IFIFO, libc::S_IFDIR]);
    say!(act, "mknod({path}, {kind:o}, {mode:o})");
    let _ = act.call(libc::SYS_mknod, &[path.addr(), u64::from(kind) | mode, 0]);
}

fn directory(act: &mut Act) {
    let path = Path(act.dice.of_these(&[c"D", c"E", c".", c"a", c"nx"]));
    say!(act, "chdir({path})");
    let _ = act.call(libc::SYS_chdir, &[path.addr()]);
}

/// Links an open file, such as one of O_TMPFILE, to a name.
fn link_descriptor(act: &mut Act) {
    let (fd, to) = (files::regular(act), new_path(act));
    say!(act, "linkat({fd}, \"\", {to}, AT_EMPTY_PATH)");
    let here = libc::AT_FDCWD as i64 as u64;
    let _ = act.call(
        libc::SYS_linkat,
        &[
            fd as u64,
            c"".as_ptr() as u64,
            here,
            to.addr(),
            libc::AT_EMPTY_PATH as u64,
        ],
    );
}

fn times_call(act: &mut Act) {
    let flags = act.dice.of_these(&[0, 0, libc::AT_SYMLINK_NOFOLLOW, 4]);
    times_of(act, flags);
}
