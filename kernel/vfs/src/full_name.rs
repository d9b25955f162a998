//! The path of a place, for getcwd(2) and the links of procfs.

use alloc::sync::Arc;
use alloc::vec::Vec;

use fscore::path;

use super::dentry::{Dentry, moves};
use super::error::{FsError, Result};
use super::place::Path;
use super::rename::RENAME;

/// The path of a place as seen from `root`. Returns the text, and whether the place
/// can be reached from `root`. The directories in the path lay in each other at one moment, but if one of them is renamed meanwhile
/// and not moved, the path may have its old name or its new one. Takes [`RENAME`] if directories are moved meanwhile. Sleeps.
///
/// # Errors
/// `NameTooLong` if the path is longer than a system call takes; `NoMemory`.
pub fn full_name(root: &Path, at: &Path) -> Result<(Vec<u8>, bool)> {
    let before = moves();
    let name = name_now(root, at);
    if moves() == before {
        return name;
    }
    let _shape = RENAME.lock();
    name_now(root, at)
}

/// As [`full_name`], but the path may be of no moment if directories are moved meanwhile.
fn name_now(root: &Path, at: &Path) -> Result<(Vec<u8>, bool)> {
    // Built from the end: the bytes of the components are collected in reverse order, and reversed at last.
    let mut back: Vec<u8> = Vec::new();
    let pin = ksync::pin();
    let (mut m, mut d) = (&at.mount, &at.dentry);
    let mut reached = true;
    loop {
        if m.id == root.mount.id && Arc::ptr_eq(d, &root.dentry) {
            break;
        }
        if Arc::ptr_eq(d, &m.root) {
            match &m.over {
                Some((up, on)) => {
                    (m, d) = (up, on);
                    continue;
                }
                // Above the root, or beside it.
                None => {
                    reached = false;
                    break;
                }
            }
        }
        // Both at once: a rename may replace them between two looks.
        let (name, up) = d.place(&pin);
        // The root of the file system, of which the mount shows another part.
        let Some(up) = up else {
            reached = false;
            break;
        };
        put_before(&mut back, name)?;
        d = up;
    }
    Ok((forwards(back), reached))
}

/// Adds the name of a directory's entry to a path that is built from its end, in reverse order. This bounds the walk, too,
/// however deep directories are nested. Errors: `NameTooLong`, `NoMemory`.
fn put_before(back: &mut Vec<u8>, name: &[u8]) -> Result<()> {
    if back.len() + name.len() + 1 >= path::PATH_MAX {
        return Err(FsError::NameTooLong);
    }
    back.try_reserve(name.len() + 1)
        .map_err(|_| FsError::NoMemory)?;
    back.extend(name.iter().rev());
    back.push(b'/');
    Ok(())
}

/// The path that was built from its end; that of the root is empty so far.
fn forwards(mut back: Vec<u8>) -> Vec<u8> {
    if back.is_empty() {
        back.push(b'/');
    }
    back.reverse();
    back
}

/// The path of a dentry from the root of its file system, whatever is mounted where; for one that has been removed, the last
/// that it had. As for the rest, see [`full_name`].
///
/// # Errors
/// Those of [`full_name`].
pub fn name_in_fs(at: &Arc<Dentry>) -> Result<Vec<u8>> {
    let before = moves();
    let name = in_fs_now(at);
    if moves() == before {
        return name;
    }
    let _shape = RENAME.lock();
    in_fs_now(at)
}

/// As [`name_in_fs`], but the path may be of no moment if directories are moved meanwhile.
fn in_fs_now(at: &Arc<Dentry>) -> Result<Vec<u8>> {
    let mut back: Vec<u8> = Vec::new();
    let pin = ksync::pin();
    let mut d = at;
    while let (name, Some(up)) = d.place(&pin) {
        put_before(&mut back, name)?;
        d = up;
    }
    Ok(forwards(back))
}
