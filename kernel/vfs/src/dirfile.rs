//! Open directories: reading their entries.

use alloc::vec::Vec;

use fscore::dirent;
use hal::uio::IoBuf;

use super::dentry::Listed;
use super::dynamic::{Dynamic, Entry};
use super::error::{FsError, Result};
use super::file::{File, FileOps};
use super::inode::{Node, mode};
use super::notify::event::ev;
use super::opened::DirFile;
use super::place::Path;

/// Entries read from a directory in one hold of its lock.
const BATCH: usize = 32;
/// Bytes of the longest record, which has a name of 255 bytes.
const RECORD: usize = 280;

impl FileOps for DirFile {
    fn pollable(&self) -> bool {
        false
    }

    fn read(&self, _: &File, _: &mut IoBuf, _: u64) -> Result<usize> {
        Err(FsError::IsDir)
    }

    fn end(&self, file: &File) -> Option<u64> {
        // As in Linux: tmpfs has no end to seek from, and the end of a directory of procfs or sysfs is 0.
        let inode = file.inode()?;
        matches!(inode.node, Node::Dynamic(_)).then_some(0)
    }
}

/// Writes one record to a buffer: inode number, cookie of the next entry, type, name. Returns the record's length; `None` if
/// the buffer is too small.
pub type Pack = fn(&mut [u8], u64, u64, u8, &[u8]) -> Option<usize>;

/// The records that are being written to a program's buffer.
struct Out<'a, 'b> {
    buf: &'a mut IoBuf<'b>,
    pack: Pack,
    done: usize,
    /// The cookie from which to go on after the last record written.
    next: u64,
    error: Option<FsError>,
}

impl Out<'_, '_> {
    /// Writes one record; false if there is no room for it, or the buffer cannot be written.
    fn put(&mut self, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        let mut record = [0; RECORD];
        let Some(len) = (self.pack)(&mut record, ino, next, dirent::type_of(kind), name) else {
            return false;
        };
        if len > self.buf.remaining() {
            return false;
        }
        match self.buf.put(&record[..len]) {
            Ok(n) if n == len => {
                self.done += len;
                self.next = next;
                true
            }
            Ok(_) | Err(_) => {
                self.error = Some(FsError::Fault);
                false
            }
        }
    }
}

/// Reads entries of an open directory into `buf`, as records that `pack` makes, and moves the position behind them. Returns the
/// bytes written; 0 at the directory's end. Holds the position's lock, and takes that of the directory for each batch.
///
/// # Errors
/// `NotDir`; `BadFd` for a file opened with `O_PATH`; `NotFound` for a directory that has been removed. If no record was written:
/// `Invalid` if not even one fits; `Fault`; `NoMemory`; those of [`DynDir::list`](super::dynamic::DynDir::list).
pub fn read_entries(file: &File, buf: &mut IoBuf, pack: Pack) -> Result<usize> {
    let path = file.path.as_ref().ok_or(FsError::NotDir)?;
    if file.is_place() {
        return Err(FsError::BadFd);
    }
    if !path.dentry.inode.is_dir() {
        return Err(FsError::NotDir);
    }
    if path.dentry.is_dead() {
        return Err(FsError::NotFound);
    }
    file.with_pos(|pos| {
        let mut out = Out {
            buf,
            pack,
            done: 0,
            next: *pos,
            error: None,
        };
        let full = !dots(path, &mut out);
        let more = if full {
            Ok(true)
        } else {
            entries(path, &mut out)
        };
        *pos = out.next;
        if let Node::Dir(_) = path.dentry.inode.node {
            file.accessed();
        }
        file.tell(ev::ACCESS);
        match (out.done, out.error, more) {
            (0, Some(e), _) => Err(e),
            (0, None, Err(e)) => Err(e),
            // Not even one record fits.
            (0, None, Ok(true)) => Err(FsError::Invalid),
            (n, ..) => Ok(n),
        }
    })
}

/// Writes the records of `.` and `..` unless the position is past them; false if one does not fit.
fn dots(path: &Path, out: &mut Out) -> bool {
    let own = path.dentry.inode.ino;
    if out.next == 0 && !out.put(own, 1, mode::DIR, b".") {
        return false;
    }
    if out.next == 1 {
        let up = {
            let pin = ksync::pin();
            path.dentry.parent(&pin).map_or(own, |p| p.inode.ino)
        };
        return out.put(up, 2, mode::DIR, b"..");
    }
    true
}

/// Writes the records of the other entries; true if one did not fit or could not be written. Takes the directory's lock for
/// each batch.
fn entries(path: &Path, out: &mut Out) -> Result<bool> {
    let inode = &path.dentry.inode;
    match &inode.node {
        Node::Dir(dir) => {
            let mut batch: Vec<Listed> = Vec::new();
            batch
                .try_reserve_exact(BATCH)
                .map_err(|_| FsError::NoMemory)?;
            loop {
                batch.clear();
                dir.list(out.next, &mut batch);
                if batch.is_empty() {
                    return Ok(false);
                }
                for l in &batch {
                    let mut name = [0; 256];
                    let len = {
                        let pin = ksync::pin();
                        let n = l.dentry.name(&pin);
                        name[..n.len()].copy_from_slice(n);
                        n.len()
                    };
                    let node = &l.dentry.inode;
                    if !out.put(node.ino, l.next, node.kind(), &name[..len]) {
                        return Ok(true);
                    }
                }
            }
        }
        Node::Dynamic(Dynamic::Dir(dir)) => {
            let mut full = false;
            let from = out.next;
            dir.list(inode, from, &mut |e: Entry| {
                full = !out.put(e.ino, e.next, e.kind, e.name);
                !full
            })?;
            Ok(full)
        }
        _ => Err(FsError::NotDir),
    }
}
