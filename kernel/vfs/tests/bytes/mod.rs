//! Calls on the contents of open files, and machines on which files are limited.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use hal::uio::IoBuf;
use vfs::attr::Attr;
use vfs::context;
use vfs::error::Result;
use vfs::file::{FileRef, o};
use vfs::superblock::FsKind;
use vfs::tmpfs::{self, Settings};
use vfs::{regular, upcalls};

use crate::support::{Calls, threads};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// The same, for lengths of slices.
pub const PAGE_LEN: usize = PAGE as usize;
/// What `st_blocks` counts for a page.
pub const PAGE_BLOCKS: u64 = 8;

/// Opens the file at a path for reading and writing; makes it if there is none.
pub fn open(path: &str) -> FileRef {
    open_as(path, o::RDWR | o::CREAT)
}

/// Opens a file by root.
pub fn open_as(path: &str, flags: u32) -> FileRef {
    Calls::of_root().open(path, flags).expect("a file")
}

/// A new file with this content.
pub fn file_with(path: &str, bytes: &[u8]) -> FileRef {
    let file = open_as(path, o::RDWR | o::CREAT | o::EXCL);
    assert_eq!(write_at(&file, 0, bytes), Ok(bytes.len()));
    file
}

/// read(2).
pub fn read(file: &FileRef, most: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; most];
    let n = file.read(&mut IoBuf::Fill(&mut bytes))?;
    bytes.truncate(n);
    Ok(bytes)
}

/// pread(2).
pub fn read_at(file: &FileRef, pos: u64, most: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0xee; most];
    let n = file.read_at(&mut IoBuf::Fill(&mut bytes), pos)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// write(2).
pub fn write(file: &FileRef, bytes: &[u8]) -> Result<usize> {
    file.write(&mut IoBuf::Drain(bytes))
}

/// pwrite(2).
pub fn write_at(file: &FileRef, pos: u64, bytes: &[u8]) -> Result<usize> {
    file.write_at(&mut IoBuf::Drain(bytes), pos)
}

/// The whole content of a file that is not large.
pub fn content(file: &FileRef) -> Vec<u8> {
    let size = usize::try_from(size(file)).expect("a small file");
    let all = read_at(file, 0, size + 1).expect("a readable file");
    assert_eq!(all.len(), size, "the file ends at its size");
    all
}

/// ftruncate(2).
pub fn truncate(file: &FileRef, size: u64) -> Result<()> {
    regular::truncate(file.inode().expect("a file with a name"), size, true)
}

/// fallocate(2).
pub fn allocate(file: &FileRef, how: u32, offset: u64, len: u64) -> Result<()> {
    regular::allocate(file.inode().expect("a file with a name"), how, offset, len)
}

/// stat(2).
pub fn stat(file: &FileRef) -> Attr {
    file.attr().expect("a file with attributes")
}

/// `st_size`.
pub fn size(file: &FileRef) -> u64 {
    stat(file).size
}

/// `st_blocks`.
pub fn blocks(file: &FileRef) -> u64 {
    stat(file).blocks
}

/// Bytes that differ from their neighbours, also from those a page away.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (1 + i % 251 + i / PAGE_LEN % 3) as u8)
        .collect()
}

hal::machine_static! {
    /// RLIMIT_FSIZE.
    static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
    /// SIGXFSZ sent.
    static SIGNALS: AtomicU32 = AtomicU32::new(0);
}

static LIMITED: upcalls::Upcalls = upcalls::Upcalls {
    file_size_limit: || LIMIT.load(SeqCst),
    file_too_large: || {
        SIGNALS.fetch_add(1, SeqCst);
    },
    broken_pipe: || (),
};

/// Sets RLIMIT_FSIZE, on a machine of [`on_limited`].
pub fn set_limit(bytes: u64) {
    LIMIT.store(bytes, SeqCst);
}

/// How often SIGXFSZ was sent, on a machine of [`on_limited`].
pub fn signals() -> u32 {
    SIGNALS.load(SeqCst)
}

/// Runs `body` on a machine whose root file system has room for so many pages, and whose processes have a file-size limit,
/// at first none.
pub fn on_limited(pages: u64, body: impl FnOnce() + Send + 'static) {
    threads::on(1, move || {
        upcalls::set(&LIMITED);
        drivers::random::init(1);
        vfs::init(1);
        let mut settings = Settings::new(0o755);
        settings.limit = Some(pages);
        let root = tmpfs::new_super(FsKind::Tmpfs, settings).expect("memory for a file system");
        context::mount_root(root).expect("memory for a mount");
        body();
    });
}
