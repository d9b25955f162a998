//! Whether a directory lies below another one, while others move directories.
//!
//! A mount may show a part of a file system: a directory that was bound. A directory below it may be moved out of it while a
//! process has it as its working directory, or walks through it. From there `..` must not lead on, or it would lead through
//! the whole file system, past the mount and past a root directory that is the mount's root. So a walk goes to a parent only
//! if that lies in what the mount shows; else it fails with `NotFound`, as in Linux. Only walks in such mounts pay for this.
//!
//! Ancestors that are read one after another need not have been ancestors at one moment: a directory may leave the second
//! before that moves to where the walk then finds it. A walk without a lock therefore compares [`moves`] before and after.
//! It goes up a few steps only, because it has preemption off; in all other cases it is decided with [`RENAME`] held.
//!
//! The answer is true at a moment of the step, and the directory may be moved out right after it. This gives nothing away:
//! to have a directory that once lay in the mount is no more than to have it open, and the next `..` is checked again.

use alloc::sync::Arc;

use ksync::CpuPin;

use super::dentry::{Dentry, STEPS, moves};
use super::error::{FsError, Result};
use super::rename::RENAME;

/// Steps up the tree that are made without a lock.
const NEAR: usize = 32;

impl Dentry {
    /// Whether `self` is `other` or lies below it. The caller holds [`RENAME`], so the answer stays true meanwhile.
    pub fn is_within(self: &Arc<Self>, other: &Arc<Dentry>) -> bool {
        let mut held: Option<Arc<Dentry>> = None;
        loop {
            let pin = ksync::pin();
            let mut at = held.as_ref().unwrap_or(self);
            for _ in 0..STEPS {
                if Arc::ptr_eq(at, other) {
                    return true;
                }
                match at.parent(&pin) {
                    Some(up) => at = up,
                    None => return false,
                }
            }
            let next = at.clone();
            drop(pin);
            held = Some(next);
        }
    }
}

/// Whether `dir` is `top` or lies below it. False also if that cannot be told without a lock.
pub fn is_surely_within(pin: &CpuPin, dir: &Arc<Dentry>, top: &Arc<Dentry>) -> bool {
    let before = moves();
    let mut at = dir;
    for _ in 0..NEAR {
        if Arc::ptr_eq(at, top) {
            return moves() == before;
        }
        match at.parent(pin) {
            Some(up) => at = up,
            None => return false,
        }
    }
    false
}

/// The parent of `dir`, which is `top` or lies below it. Takes [`RENAME`]. Sleeps.
///
/// # Errors
/// `NotFound` if it does not, or there is none.
pub fn parent_within(dir: &Arc<Dentry>, top: &Arc<Dentry>) -> Result<Arc<Dentry>> {
    let _shape = RENAME.lock();
    let up = dir.parent(&ksync::pin()).cloned();
    up.filter(|up| up.is_within(top)).ok_or(FsError::NotFound)
}
