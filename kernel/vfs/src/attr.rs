//! The attributes of a file, as stat(2) tells them.

/// A timestamp in nanoseconds since 1970.
pub type Nanos = i64;

/// The time now, for a timestamp.
pub fn now() -> Nanos {
    task::time::realtime_ns() as i64
}

/// The device of files without a name.
pub const UNNAMED_DEV: u64 = 1;

/// The attributes of a file. They are read one by one, so a change may be seen in part.
#[derive(Clone, Copy, Debug)]
#[expect(
    missing_docs,
    reason = "the fields of struct stat without their prefix"
)]
pub struct Attr {
    pub ino: u64,
    pub dev: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: Nanos,
    pub mtime: Nanos,
    pub ctime: Nanos,
}

impl Attr {
    /// Those of a file without a name, such as a pipe: root's, empty, with one link, of this moment.
    pub fn unnamed(ino: u64, mode: u32) -> Self {
        let t = now();
        Attr {
            ino,
            dev: UNNAMED_DEV,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: t,
            mtime: t,
            ctime: t,
        }
    }
}
