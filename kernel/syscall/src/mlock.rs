//! Locked memory: mlock(2), mlock2(2), mlockall(2) and their opposites.
//!
//! The kernel pages nothing out, so a page that is present stays present anyway. What these calls do: they make pages
//! present, keep madvise(2) from freeing them, and count them against RLIMIT_MEMLOCK.

use abi::raw::general as nr;
use cred::Cap;
use proc::process::flag;
use proc::{Resource, UserThreadExt};
use vm::space::{EntryInfo, MapFlags};
use vm::{Access, EntryFlags};

use super::errno::{Errno, vm as errno};
use super::mm::{PAGE, covered, fitting, mapped, range_or, space};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_mlock, mlock),
    (nr::__NR_mlock2, mlock2),
    (nr::__NR_munlock, munlock),
    (nr::__NR_mlockall, mlockall),
    (nr::__NR_munlockall, munlockall),
];

/// Adds to the flags of a new mapping what mlockall(2) with MCL_FUTURE has demanded of new mappings.
pub(super) fn lock_by_default(kind: &mut EntryFlags, place: &mut MapFlags) {
    let me = proc::current();
    let process = me.process();
    if process.flag(flag::LOCK_FUTURE) {
        place.on_fault = !kind.contains(EntryFlags::LOCKED) && process.flag(flag::LOCK_ON_FAULT);
        *kind |= EntryFlags::LOCKED;
    }
}

/// Checks that the caller may lock memory at all.
///
/// # Errors
/// EPERM if its RLIMIT_MEMLOCK is 0 and it lacks CAP_IPC_LOCK.
pub(super) fn may_lock_any() -> Result<(), Errno> {
    let me = proc::current();
    if me.process().rlimit(Resource::Memlock) == 0 && !me.cred().capable(Cap::IpcLock) {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// Checks that the caller may lock `len` more bytes. `over` is the start of the range where it is already known; what
/// is locked in it already is not counted twice.
///
/// # Errors
/// `too_many` if that would exceed RLIMIT_MEMLOCK and the caller lacks CAP_IPC_LOCK.
pub(super) fn may_lock(
    space: &mem::Space,
    len: u64,
    over: Option<u64>,
    too_many: Errno,
) -> Result<(), Errno> {
    let me = proc::current();
    if me.cred().capable(Cap::IpcLock) {
        return Ok(());
    }
    let limit = me.process().rlimit(Resource::Memlock);
    let sum = (space.usage(mem::vm()).locked * PAGE).saturating_add(len);
    let again = || over.map_or(0, |start| covered(space, start, len, is_locked));
    if sum > limit && sum - again() > limit {
        return Err(too_many);
    }
    Ok(())
}

/// Whether a mapping is locked.
pub(super) fn is_locked(entry: &EntryInfo) -> bool {
    entry.args.flags.contains(EntryFlags::LOCKED)
}

/// Start and length of the pages that have any byte of the range given to mlock and munlock.
fn lock_range(a: &Args) -> Result<(u64, u64), Errno> {
    let start = a.get(0) & !(PAGE - 1);
    let len = a
        .get(1)
        .checked_add(a.get(0) - start)
        .ok_or(Errno::EINVAL)?;
    Ok((start, range_or(start, len, Errno::ENOMEM, Errno::EINVAL)?))
}

/// Checks that a range is mapped throughout. If it has a gap, the part before the gap is marked as `locked`, or not,
/// nonetheless: as on Linux.
///
/// # Errors
/// ENOMEM if it has a gap.
fn note_before_gap(
    space: &mem::Space,
    (start, len): (u64, u64),
    locked: bool,
) -> Result<(), Errno> {
    mapped(start, len).map(drop).inspect_err(|_| {
        let before = fitting(space, start, len, |_| true);
        if before > 0 {
            let _ = space.mark_locked(mem::vm(), start, before, locked);
        }
    })
}

/// Locks the range that mlock(2) is given, and with `populate` makes its pages present.
///
/// # Errors
/// EPERM, EINVAL; ENOMEM beyond RLIMIT_MEMLOCK with nothing changed, for a gap with the part before it locked, and for pages
/// that cannot be made present with all of it locked.
fn lock_pages(a: &Args, populate: bool) -> Result<u64, Errno> {
    may_lock_any()?;
    let (start, len) = lock_range(a)?;
    let space = space()?;
    may_lock(&space, len, Some(start), Errno::ENOMEM)?;
    if len == 0 {
        // Wherever that is.
        return Ok(0);
    }
    mem::admit_change()?;
    note_before_gap(&space, (start, len), true)?;
    if !populate {
        space
            .mark_locked(mem::vm(), start, len, true)
            .map_err(errno)?;
        return Ok(0);
    }
    space
        .set_locked(mem::vm(), start, len, true)
        .map_err(errno)?;
    if space.populate(mem::vm(), start, len, Access::Read).is_err() {
        return Err(Errno::ENOMEM);
    }
    Ok(0)
}

fn mlock(a: &mut Args) -> Result<u64, Errno> {
    lock_pages(a, true)
}

fn mlock2(a: &mut Args) -> Result<u64, Errno> {
    let flags = a.get(2) as u32;
    if flags & !nr::MLOCK_ONFAULT != 0 {
        return Err(Errno::EINVAL);
    }
    lock_pages(a, flags == 0)
}

fn munlock(a: &mut Args) -> Result<u64, Errno> {
    let (start, len) = lock_range(a)?;
    if len == 0 {
        return Ok(0);
    }
    let space = space()?;
    note_before_gap(&space, (start, len), false)?;
    space
        .set_locked(mem::vm(), start, len, false)
        .map_err(errno)?;
    Ok(0)
}

fn mlockall(a: &mut Args) -> Result<u64, Errno> {
    let flags = a.get(0) as u32;
    let known = nr::MCL_CURRENT | nr::MCL_FUTURE | nr::MCL_ONFAULT;
    if flags == 0 || flags & !known != 0 || flags == nr::MCL_ONFAULT {
        return Err(Errno::EINVAL);
    }
    let (process, space) = (proc::current_process(), space()?);
    let (now, on_fault) = (flags & nr::MCL_CURRENT != 0, flags & nr::MCL_ONFAULT != 0);
    may_lock_any()?;
    let too_many = || space.mapped() > process.rlimit(Resource::Memlock);
    if now && !proc::current().cred().capable(Cap::IpcLock) && too_many() {
        return Err(Errno::ENOMEM);
    }
    process.set_switch(flag::LOCK_FUTURE, flags & nr::MCL_FUTURE != 0);
    process.set_switch(flag::LOCK_ON_FAULT, on_fault);
    if now {
        // As on Linux, the call ignores errors; pages that could not be made present are left to page faults. When
        // memory is short it leaves the remaining mappings unlocked.
        space.for_each_entry(0, &mut |entry| {
            let (start, len) = (entry.args.start, entry.args.end - entry.args.start);
            if mem::admit_change().is_err() {
                return false;
            }
            let _ = if on_fault {
                space.mark_locked(mem::vm(), start, len, true).map(drop)
            } else {
                space.set_locked(mem::vm(), start, len, true)
            };
            true
        });
    }
    Ok(0)
}

fn munlockall(_: &mut Args) -> Result<u64, Errno> {
    let (process, space) = (proc::current_process(), space()?);
    process.set_switch(flag::LOCK_FUTURE | flag::LOCK_ON_FAULT, false);
    space.for_each_entry(0, &mut |entry| {
        let (start, len) = (entry.args.start, entry.args.end - entry.args.start);
        let _ = space.mark_locked(mem::vm(), start, len, false);
        true
    });
    Ok(0)
}
