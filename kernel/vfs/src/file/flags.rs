//! Flags of open files.

/// Flags of open(2) and fcntl(2), as x86-64 numbers them; the names are those of open(2).
#[expect(missing_docs, reason = "Linux's names: flags of open(2)")]
pub mod o {
    pub const ACCMODE: u32 = 3;
    pub const RDONLY: u32 = 0;
    pub const WRONLY: u32 = 1;
    pub const RDWR: u32 = 2;
    pub const CREAT: u32 = 0o100;
    pub const EXCL: u32 = 0o200;
    pub const NOCTTY: u32 = 0o400;
    pub const TRUNC: u32 = 0o1000;
    pub const APPEND: u32 = 0o2000;
    pub const NONBLOCK: u32 = 0o4000;
    pub const DSYNC: u32 = 0o10000;
    pub const ASYNC: u32 = 0o20000;
    pub const DIRECT: u32 = 0o40000;
    pub const LARGEFILE: u32 = 0o100_000;
    pub const DIRECTORY: u32 = 0o200_000;
    pub const NOFOLLOW: u32 = 0o400_000;
    pub const NOATIME: u32 = 0o1_000_000;
    pub const CLOEXEC: u32 = 0o2_000_000;
    pub const SYNC: u32 = 0o4_010_000;
    pub const PATH: u32 = 0o10_000_000;
    pub const TMPFILE: u32 = 0o20_000_000 | DIRECTORY;
    /// Flags that F_SETFL may change, besides O_ASYNC.
    pub const SETFL: u32 = APPEND | NONBLOCK | DIRECT | NOATIME;
    /// Flags that F_GETFL reports.
    pub const KEPT: u32 =
        ACCMODE | SETFL | ASYNC | DSYNC | SYNC | LARGEFILE | DIRECTORY | PATH | NOFOLLOW | TMPFILE;
    /// None of open(2): watches are not told of the close.
    pub const UNTOLD: u32 = 0o400_000_000;
}
