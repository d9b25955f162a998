//! Every kind of bad path, for each call that takes a path.

use super::{BAD, CWD, Here, NONE, nobody};
use crate::harness::*;

/// A call as a function of the directory descriptor at which a relative path starts, and of the path.
type Call = fn(&Here, i32, u64) -> Result<u64, i32>;

/// A relative path starts at the working directory; the call has no directory argument.
const PLAIN: u8 = 1;
/// The call changes the file system.
const CHANGES: u8 = 2;
/// The call takes an existing file, and follows a link at the path's end.
const FOLLOWS: u8 = 4;
/// The call checks privileges before it looks up the path.
const ROOT: u8 = 8;

const CALLS: &[(&str, u8, Call)] = &[
    ("access", PLAIN | FOLLOWS, |_, _, p| sc!(SYS_access, p, 0)),
    ("chdir", PLAIN | FOLLOWS, |_, _, p| sc!(SYS_chdir, p)),
    ("chmod", PLAIN | FOLLOWS | CHANGES, |_, _, p| {
        sc!(SYS_chmod, p, 0o700)
    }),
    ("chown", PLAIN | FOLLOWS | CHANGES, |_, _, p| {
        sc!(SYS_chown, p, 0, 0)
    }),
    ("chroot", PLAIN | FOLLOWS, |_, _, p| sc!(SYS_chroot, p)),
    ("connect", PLAIN | FOLLOWS, |_, _, p| {
        super::sockets::connect_to(p)
    }),
    ("creat", PLAIN | FOLLOWS | CHANGES, |_, _, p| {
        sc!(SYS_creat, p, 0o600)
    }),
    ("execve", PLAIN | FOLLOWS, |_, _, p| {
        sc!(SYS_execve, p, 0, 0)
    }),
    ("faccessat", FOLLOWS, |_, at, p| {
        sc!(SYS_faccessat, at, p, 0)
    }),
    ("faccessat2", FOLLOWS, |_, at, p| {
        sc!(SYS_faccessat2, at, p, 0, libc::AT_EACCESS)
    }),
    ("fchmodat", FOLLOWS | CHANGES, |_, at, p| {
        sc!(SYS_fchmodat, at, p, 0o700)
    }),
    ("fchownat", FOLLOWS | CHANGES, |_, at, p| {
        sc!(SYS_fchownat, at, p, 0, 0, 0)
    }),
    ("futimesat", FOLLOWS | CHANGES, |_, at, p| {
        sc!(SYS_futimesat, at, p, 0)
    }),
    ("getxattr", PLAIN | FOLLOWS, |_, _, p| {
        sc!(SYS_getxattr, p, path("user.x"), 0, 0)
    }),
    ("lchown", PLAIN | CHANGES, |_, _, p| {
        sc!(SYS_lchown, p, 0, 0)
    }),
    ("lgetxattr", PLAIN, |_, _, p| {
        sc!(SYS_lgetxattr, p, path("user.x"), 0, 0)
    }),
    ("link", PLAIN, |h, _, p| sc!(SYS_link, p, h.p("new"))),
    ("link", PLAIN | CHANGES, |h, _, p| {
        sc!(SYS_link, h.p("m/f"), p)
    }),
    ("linkat", 0, |h, at, p| {
        sc!(SYS_linkat, at, p, h.at, path("new"), 0)
    }),
    ("linkat", CHANGES, |h, at, p| {
        sc!(SYS_linkat, h.at, path("m/f"), at, p, 0)
    }),
    ("listxattr", PLAIN | FOLLOWS, |_, _, p| {
        sc!(SYS_listxattr, p, 0, 0)
    }),
    ("llistxattr", PLAIN, |_, _, p| sc!(SYS_llistxattr, p, 0, 0)),
    ("lremovexattr", PLAIN | CHANGES, |_, _, p| {
        sc!(SYS_lremovexattr, p, path("user.x"))
    }),
    ("lsetxattr", PLAIN | CHANGES, |_, _, p| {
        sc!(SYS_lsetxattr, p, path("user.x"), [0u8].as_ptr(), 1, 0)
    }),
    ("lstat", PLAIN, |_, _, p| {
        sc!(SYS_lstat, p, [0u64; 18].as_mut_ptr())
    }),
    ("mkdir", PLAIN | CHANGES, |_, _, p| sc!(SYS_mkdir, p, 0o700)),
    ("mkdirat", CHANGES, |_, at, p| {
        sc!(SYS_mkdirat, at, p, 0o700)
    }),
    ("mknod", PLAIN | CHANGES, |_, _, p| {
        sc!(SYS_mknod, p, libc::S_IFIFO | 0o600, 0)
    }),
    ("mknodat", CHANGES, |_, at, p| {
        sc!(SYS_mknodat, at, p, libc::S_IFREG | 0o600, 0)
    }),
    ("mount", PLAIN | FOLLOWS | ROOT, |_, _, p| {
        sc!(SYS_mount, path("none"), p, path("tmpfs"), 0, 0)
    }),
    ("newfstatat", FOLLOWS, |_, at, p| {
        sc!(SYS_newfstatat, at, p, [0u64; 18].as_mut_ptr(), 0)
    }),
    ("open", PLAIN | FOLLOWS, |_, _, p| {
        sc!(SYS_open, p, libc::O_RDONLY, 0)
    }),
    ("openat", FOLLOWS | CHANGES, |_, at, p| {
        sc!(SYS_openat, at, p, libc::O_RDWR | libc::O_CREAT, 0o600)
    }),
    ("openat2", FOLLOWS, |_, at, p| {
        sc!(SYS_openat2, at, p, [0u64; 3].as_ptr(), 24)
    }),
    ("readlink", PLAIN, |_, _, p| {
        sc!(SYS_readlink, p, [0u8; 9].as_mut_ptr(), 9)
    }),
    ("readlinkat", 0, |_, at, p| {
        sc!(SYS_readlinkat, at, p, [0u8; 9].as_mut_ptr(), 9)
    }),
    ("removexattr", PLAIN | FOLLOWS | CHANGES, |_, _, p| {
        sc!(SYS_removexattr, p, path("user.x"))
    }),
    ("rename", PLAIN | CHANGES, |h, _, p| {
        sc!(SYS_rename, p, h.p("m/new"))
    }),
    ("rename", PLAIN | CHANGES, |h, _, p| {
        sc!(SYS_rename, h.p("m/f"), p)
    }),
    ("renameat", CHANGES, |h, at, p| {
        sc!(SYS_renameat, at, p, h.at, path("m/new"))
    }),
    ("renameat", CHANGES, |h, at, p| {
        sc!(SYS_renameat, h.at, path("m/f"), at, p)
    }),
    ("renameat2", CHANGES, |h, at, p| {
        sc!(SYS_renameat2, at, p, h.at, path("m/new"), 0)
    }),
    ("renameat2", CHANGES, |h, at, p| {
        sc!(
            SYS_renameat2,
            h.at,
            path("m/f"),
            at,
            p,
            libc::RENAME_NOREPLACE
        )
    }),
    ("rmdir", PLAIN | CHANGES, |_, _, p| sc!(SYS_rmdir, p)),
    ("setxattr", PLAIN | FOLLOWS | CHANGES, |_, _, p| {
        sc!(SYS_setxattr, p, path("user.x"), [0u8].as_ptr(), 1, 0)
    }),
    ("stat", PLAIN | FOLLOWS, |_, _, p| {
        sc!(SYS_stat, p, [0u64; 18].as_mut_ptr())
    }),
    ("statfs", PLAIN | FOLLOWS, |_, _, p| {
        sc!(SYS_statfs, p, [0u64; 15].as_mut_ptr())
    }),
    ("statx", FOLLOWS, |_, at, p| {
        sc!(SYS_statx, at, p, 0, 0x7ff, [0u64; 32].as_mut_ptr())
    }),
    ("symlink", PLAIN | CHANGES, |_, _, p| {
        sc!(SYS_symlink, path("x"), p)
    }),
    ("symlinkat", CHANGES, |_, at, p| {
        sc!(SYS_symlinkat, path("x"), at, p)
    }),
    ("truncate", PLAIN | FOLLOWS | CHANGES, |_, _, p| {
        sc!(SYS_truncate, p, 0)
    }),
    ("umount2", PLAIN | FOLLOWS | ROOT, |_, _, p| {
        sc!(SYS_umount2, p, 0)
    }),
    ("unlink", PLAIN | CHANGES, |_, _, p| sc!(SYS_unlink, p)),
    ("unlinkat", CHANGES, |_, at, p| sc!(SYS_unlinkat, at, p, 0)),
    ("utime", PLAIN | FOLLOWS | CHANGES, |_, _, p| {
        sc!(SYS_utime, p, 0)
    }),
    ("utimensat", FOLLOWS | CHANGES, |_, at, p| {
        sc!(SYS_utimensat, at, p, 0, 0)
    }),
    ("utimes", PLAIN | FOLLOWS | CHANGES, |_, _, p| {
        sc!(SYS_utimes, p, 0)
    }),
];

/// An errno, the properties that a call must have and those that it must not have for the errno to apply, and how to
/// provoke it.
struct Case {
    errno: i32,
    what: &'static str,
    only: u8,
    but: u8,
    run: fn(&Here, Call) -> Result<u64, i32>,
}

macro_rules! cases {
    ($($errno:ident $only:expr, $but:expr, |$here:pat_param, $call:pat_param| $do:expr;)*) => {
        const CASES: &[Case] = &[$(Case {
            errno: libc::$errno, what: stringify!($errno), only: $only, but: $but, run: |$here, $call| $do,
        }),*];
    };
}

cases! {
    ENOENT 0, 0, |h, call| call(h, CWD, h.p("none/x"));
    ENOENT 0, 0, |h, call| call(h, CWD, path(""));
    ENOTDIR 0, 0, |h, call| call(h, CWD, h.p("f/x"));
    ELOOP 0, 0, |h, call| call(h, CWD, h.p("loop/x"));
    ELOOP FOLLOWS, 0, |h, call| call(h, CWD, h.p("loop"));
    ENAMETOOLONG 0, 0, |h, call| call(h, CWD, h.p(&"x".repeat(256)));
    ENAMETOOLONG 0, 0, |h, call| call(h, CWD, path(&"x/".repeat(2048)));
    EFAULT 0, 0, |h, call| call(h, CWD, BAD);
    EACCES 0, ROOT, |h, call| nobody(|| call(h, CWD, h.p("closed/x")));
    EROFS CHANGES, 0, |h, call| h.mounted(libc::MS_RDONLY, || call(h, CWD, h.p("m/f")).or_else(|e| match e {
        // A call that creates a name first reports that this one exists.
        libc::EEXIST => call(h, CWD, h.p("m/g")),
        libc::ENOTDIR => Err(libc::EROFS),
        e => Err(e),
    }));
    EBADF 0, PLAIN, |h, call| call(h, NONE, path("x"));
    ENOTDIR 0, PLAIN, |h, call| call(h, h.fd, path("x"));
}

/// The calls and errnos that are tested.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    let pairs = CALLS
        .iter()
        .flat_map(|call| CASES.iter().map(move |case| (call, case)));
    pairs
        .filter(|(call, case)| has(call.1, case))
        .map(|(call, case)| (call.0, case.what))
}

fn has(kind: u8, case: &Case) -> bool {
    kind & case.only == case.only && kind & case.but == 0
}

/// Tests every call with every case that applies to it.
pub fn check() -> Result<(), String> {
    let mut wrong = Vec::new();
    for &(name, kind, call) in CALLS {
        let here = Here::new().map_err(errno_name)?;
        for (n, case) in CASES.iter().enumerate() {
            if !has(kind, case) {
                continue;
            }
            let got = (case.run)(&here, call);
            if got != Err(case.errno) {
                wrong.push(format!(
                    "{name} case {n} gave {}, not {}",
                    show(got),
                    case.what
                ));
            }
        }
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("; "))
    }
}
