//! Counts what the file systems hold in memory, for the exact accounting of memory.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::dentry::{Dentry, Listed};
use super::error::{FsError, Result};
use super::{devices, mount};

/// Entries read from a directory at a time.
const BATCH: usize = 64;

/// What the file systems hold in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Holdings {
    /// The number of names.
    pub names: usize,
    /// The number of regular files that have pages.
    pub files: usize,
    /// The number of frames that hold contents.
    pub frames: u64,
}

/// Counts what all mounted file systems, and that of the device nodes, hold in memory. Exact as long as no file is changed.
///
/// # Errors
/// No memory for the count.
pub fn holdings() -> Result<Holdings> {
    let mut roots: Vec<Arc<Dentry>> = Vec::new();
    mount::for_each(|m| {
        roots.push(m.fs.root.clone());
        Ok(())
    })?;
    if let Ok(nodes) = devices::nodes() {
        roots.push(nodes.root.clone());
    }
    let mut sum = Holdings::default();
    // A file may have several names, and a file system may be mounted several times.
    let mut seen = BTreeSet::new();
    for root in roots {
        if seen.insert(Arc::as_ptr(&root.inode) as usize) {
            count_tree(root, &mut seen, &mut sum)?;
        }
    }
    Ok(sum)
}

/// Adds what is in the directory `root` and below it, but for files in `seen`, to `sum`. Takes the directories' locks.
fn count_tree(root: Arc<Dentry>, seen: &mut BTreeSet<usize>, sum: &mut Holdings) -> Result<()> {
    let mut left = Vec::new();
    left.push(root);
    while let Some(at) = left.pop() {
        let Ok(dir) = at.inode.dir() else { continue };
        let mut from = 0;
        loop {
            let mut batch: Vec<Listed> = Vec::with_capacity(BATCH);
            dir.list(from, &mut batch);
            let Some(last) = batch.last() else { break };
            from = last.next;
            for Listed { dentry, .. } in batch {
                sum.names += 1;
                if dentry.inode.is_dir() {
                    left.try_reserve(1).map_err(|_| FsError::NoMemory)?;
                    left.push(dentry);
                } else if seen.insert(Arc::as_ptr(&dentry.inode) as usize) {
                    let frames = dentry.inode.resident();
                    sum.files += usize::from(frames != 0);
                    sum.frames += frames;
                }
            }
        }
    }
    Ok(())
}
