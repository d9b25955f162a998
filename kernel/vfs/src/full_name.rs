//! The path of a place, for getcwd(2) and the links of procfs.

use alloc::sync::Arc;
use alloc::vec::Vec;

use fscore::path;

use super::dentry::moves;
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
        // This bounds the walk, too, however deep directories are nested.
        if back.len() + name.len() + 1 >= path::PATH_MAX {
            return Err(FsError::NameTooLong);
        }
        back.try_reserve(name.len() + 1)
            .map_err(|_| FsError::NoMemory)?;
        back.extend(name.iter().rev());
        back.push(b'/');
        d = up;
    }
    if back.is_empty() {
        back.push(b'/');
    }
    back.reverse();
    Ok((back, reached))
}
