//! Seals: what may not be done to a file any more.
//!
//! Guarantee: once a seal is set, no call and no store through a mapping does what it forbids. Mechanism: seals are set, and
//! looked at by what changes size or data, under [`Inode::lock`]. A shared mapping that may be written to is made under that lock,
//! too, if the file can get seals: so either the seal for writes sees that the object has such a mapping, and is refused, or the
//! mapping sees the seal. A file that has the seal against seals gets no other, so its mappings take no lock.

use ksync::MutexGuard;

use super::error::{FsError, Result};
use super::file::{File, Kind};
use super::inode::{Inode, InodeLock, seal};

/// Seals that forbid writes.
pub(super) const ANY_WRITE: u32 = seal::WRITE | seal::FUTURE_WRITE;

/// The seals of a file (F_GET_SEALS).
///
/// # Errors
/// `Invalid` for what is no regular file.
pub fn get(file: &File) -> Result<u32> {
    match (&file.kind, file.inode()) {
        (Kind::Regular(_), Some(inode)) => Ok(inode.seals()),
        _ => Err(FsError::Invalid),
    }
}

/// Adds seals to a file (F_ADD_SEALS). Takes [`Inode::lock`].
///
/// # Errors
/// In Linux's order: `Perm` for a file that is not open for writing; `Invalid` for unknown seals or what is no regular file; `Perm`
/// if no more seals may be added; `Busy` for a seal against writes beside a shared mapping that may be written to. Nothing has
/// changed.
pub fn add(file: &File, seals: u32) -> Result<()> {
    if !file.writable() {
        return Err(FsError::Perm);
    }
    let (Kind::Regular(regular), Some(inode)) = (&file.kind, file.inode()) else {
        return Err(FsError::Invalid);
    };
    if seals & !seal::ALL != 0 {
        return Err(FsError::Invalid);
    }
    let _lock = inode.lock.lock();
    let now = inode.seals();
    if now & seal::SEAL != 0 {
        return Err(FsError::Perm);
    }
    let forbids = seals & !now & seal::WRITE != 0;
    if forbids && regular.pages()?.has_writers() {
        return Err(FsError::Busy);
    }
    inode.set_seals(now | seals);
    Ok(())
}

/// How a shared mapping of a file may be made.
pub struct Mappable<'a> {
    /// Whether mprotect(2) may make it writable later.
    pub may_write: bool,
    /// To be kept until the mapping has been made, if the file can get seals.
    _lock: Option<MutexGuard<'a, (), InodeLock>>,
}

/// Whether a shared mapping of `file` may be made now; `writes` says whether it is to be writable at once. May take [`Inode::lock`],
/// and keep it.
///
/// # Errors
/// `Perm` where a seal forbids it. As in Linux 6.1, the seal for writes forbids a mapping of a file that is open for writing, even if
/// it is only to be read.
pub fn admit_mapping(file: &File, writes: bool) -> Result<Mappable<'_>> {
    let sealable = match (&file.kind, file.inode()) {
        (Kind::Regular(_), Some(inode)) if file.writable() && inode.seals() != seal::SEAL => inode,
        _ => {
            return Ok(Mappable {
                may_write: true,
                _lock: None,
            });
        }
    };
    let lock = sealable.lock.lock();
    let seals = sealable.seals();
    if seals & seal::WRITE != 0 || writes && seals & seal::FUTURE_WRITE != 0 {
        return Err(FsError::Perm);
    }
    Ok(Mappable {
        may_write: seals & seal::FUTURE_WRITE == 0,
        _lock: Some(lock),
    })
}

/// How many of `len` bytes, at least one, may be written at `pos`: none beyond the end of a file that must not grow. As in Linux,
/// a write there ends with the last whole page before. The caller holds [`Inode::lock`]. Fails with `Perm` if none may.
pub(super) fn writable(inode: &Inode, pos: u64, len: usize) -> Result<usize> {
    let (seals, size) = (inode.seals(), inode.size());
    let end = pos.saturating_add(len as u64);
    if seals & ANY_WRITE != 0 {
        return Err(FsError::Perm);
    }
    if seals & seal::GROW == 0 || end <= size {
        return Ok(len);
    }
    let page = hal::PAGE_SIZE as u64;
    match (size / page * page).checked_sub(pos) {
        Some(n) if n > 0 => Ok(n as usize),
        _ => Err(FsError::Perm),
    }
}

/// Fails with `Perm` if the file must not get this size. The caller holds [`Inode::lock`].
pub(super) fn may_resize(inode: &Inode, size: u64) -> Result<()> {
    let (seals, old) = (inode.seals(), inode.size());
    if seals & seal::SHRINK != 0 && size < old || seals & seal::GROW != 0 && size > old {
        return Err(FsError::Perm);
    }
    Ok(())
}

/// Fails with `Perm` if pages up to `end` must not be made, or with `zeroes` be zeroed. The caller holds [`Inode::lock`].
pub(super) fn may_allocate(inode: &Inode, end: u64, zeroes: bool) -> Result<()> {
    let seals = inode.seals();
    if zeroes && seals & ANY_WRITE != 0 || !zeroes && seals & seal::GROW != 0 && end > inode.size()
    {
        return Err(FsError::Perm);
    }
    Ok(())
}
