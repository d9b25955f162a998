//! Tables of file descriptors.
//!
//! Guarantee: a lookup takes no lock, and writes no cache line but that of the reference count of the file it finds; calls on
//! different files of one table write no line in common. Mechanism: a [`ksync::RcTable`], which is read with preemption off
//! and changed under its lock. The mark of an entry is its close-on-exec flag. A file is closed at once when its last
//! reference is dropped, be that the descriptor's or that of a call still in progress.

use alloc::sync::Arc;
use core::ops::Range;
use core::ptr;

use cred::MemoryCharge;
use ksync::{CpuPin, RcTable, RcTableGuard};
use mem::epoch;
use task::account::charge_large;

use super::error::{FsError, Result};
use super::file::{File, FileRef, Kind};
use super::lock;

ksync::lock_class!(pub FdLock, "descriptors", rank = 87);

/// Highest descriptor that any limit allows (Linux's nr_open).
pub const NR_OPEN: u64 = 1 << 20;

/// What a table's lock guards besides the entries.
struct Search {
    /// No descriptor below this one is free.
    first_free: usize,
    /// The charge for a large table, to the user that made it grow.
    charge: MemoryCharge,
    /// Whether a lock on a file was ever taken with the table as its owner. It is set before the lock is taken, and a close reads
    /// it as it takes the descriptor out. So either the close sees it and releases the lock, or the thread that takes the
    /// lock finds the descriptor closed afterwards.
    locked: bool,
    /// The process that has it never ran: what its descriptors lead to is not told of their end.
    abandoned: bool,
}

type Locked<'a> = RcTableGuard<'a, File, Search, FdLock>;

fn reach(table: &mut Locked, fd: usize) -> Result<()> {
    if table.exists(fd) {
        return Ok(());
    }
    table.make(epoch(), fd).map_err(|_| FsError::NoMemory)?;
    table.charge = charge_for(table.count());
    Ok(())
}

/// Charges the caller's user for a table that has `count` entries, if it is large.
fn charge_for(count: usize) -> MemoryCharge {
    charge_large(count * size_of::<usize>())
}

/// A descriptor as an index; fails if it is negative.
fn index(fd: i32) -> Result<usize> {
    usize::try_from(fd).map_err(|_| FsError::BadFd)
}

/// A table of descriptors. Threads and processes may share it.
pub struct FdTable {
    table: RcTable<File, Search, FdLock>,
}

impl Drop for FdTable {
    fn drop(&mut self) {
        let extra = self.table.extra_mut();
        let (locked, told) = (extra.locked, !extra.abandoned);
        let owner = locked.then(|| self.lock_owner());
        for file in self.table.drain() {
            if told {
                closed(&file, owner);
            }
        }
    }
}

/// Tells `file` that one of its descriptors was closed, and ends what `owner` has asked of it.
fn closed(file: &File, owner: Option<u64>) {
    disown(file, owner);
    if let Kind::Other(ops) = &file.kind
        && !file.is_place()
    {
        ops.flush(file);
    }
}

/// Ends the signals of `file` that were asked for in the table `owner`, and releases its locks, because one of its descriptors is gone: POSIX releases them even if other descriptors of
/// the file are open.
fn disown(file: &File, owner: Option<u64>) {
    let Some(owner) = owner else { return };
    if let Some(signals) = file.signals() {
        signals.descriptor_closed(owner);
    }
    // A file opened with O_PATH is none through which locks could be had, as on Linux.
    if !file.is_place()
        && let Some(locks) = file.locks()
    {
        lock::release(locks, owner);
    }
}

impl FdTable {
    /// An empty table.
    pub fn new() -> Arc<Self> {
        Self::with(RcTable::new(Search {
            first_free: 0,
            charge: MemoryCharge::NONE,
            locked: false,
            abandoned: false,
        }))
    }

    fn with(table: RcTable<File, Search, FdLock>) -> Arc<Self> {
        Arc::new(FdTable { table })
    }

    /// A copy for a child process. Takes one reference to each open file. The copy is the table of one moment, unless the table
    /// is very large: then of descriptors that other threads open, close and move meanwhile, the copy has some.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn fork(&self) -> Result<Arc<Self>> {
        let copy = self.table.copy(COPIED, |count, first_free| Search {
            first_free,
            charge: charge_for(count),
            locked: false,
            abandoned: false,
        });
        let copy = copy.map_err(|_| FsError::NoMemory)?;
        Ok(Self::with(copy))
    }

    /// Finds the lowest free descriptor that is at least `min` and below `limit`, and makes the table large enough for it.
    /// Returns it with the table, whose lock is released between two parts of [`STEP`] descriptors: one that is closed
    /// meanwhile may be passed over if `min` is above the lowest free one. The caller fills or reserves it before it releases
    /// the lock. Fails with `TooManyFiles` or `NoMemory`.
    #[inline]
    fn free_from<'a>(
        &'a self,
        mut table: Locked<'a>,
        min: usize,
        limit: u64,
    ) -> Result<(usize, Locked<'a>)> {
        let mut from = min.max(table.first_free);
        let fd = loop {
            let end = table.len().min(from.saturating_add(STEP));
            if let Some(fd) = (from..end).find(|&fd| table.is_free(fd)) {
                break fd;
            }
            if end == table.len() {
                break end.max(from);
            }
            from = end;
            if min <= table.first_free {
                table.first_free = end;
            }
            drop(table);
            table = self.table.lock();
            // As it may have been lowered.
            if min <= table.first_free {
                from = table.first_free;
            }
        };
        if fd as u64 >= limit.min(NR_OPEN) {
            return Err(FsError::TooManyFiles);
        }
        reach(&mut table, fd)?;
        if min <= table.first_free {
            table.first_free = fd + 1;
        }
        Ok((fd, table))
    }

    /// Records that the table may own locks on files, which must be released when descriptors are closed.
    pub fn note_lock(&self) {
        self.table.lock().locked = true;
    }

    /// Says that the process for which this copy was made will not run. It has locked nothing.
    pub fn abandon(&self) {
        self.table.lock().abandoned = true;
    }

    /// The process that has the table, as the owner of locks.
    pub fn lock_owner(&self) -> u64 {
        ptr::from_ref(self).addr() as u64
    }

    /// The table as the owner of locks, if it may own any.
    fn owner(&self, table: &Locked) -> Option<u64> {
        table.locked.then(|| self.lock_owner())
    }

    /// A reference to the file of a descriptor.
    #[inline]
    pub fn get(&self, fd: i32) -> Result<FileRef> {
        self.table
            .get(&ksync::pin(), index(fd)?)
            .ok_or(FsError::BadFd)
    }

    /// Gives `file` the lowest free descriptor that is at least `min` and below `limit`.
    ///
    /// # Errors
    /// `TooManyFiles`; `NoMemory`.
    pub fn add(&self, file: FileRef, cloexec: bool, min: usize, limit: u64) -> Result<i32> {
        let (fd, mut table) = self.free_from(self.table.lock(), min, limit)?;
        table.put(fd, file, cloexec);
        Ok(fd as i32)
    }

    /// Reserves the lowest free descriptor below `limit`, which [`FdTable::fill`] or [`FdTable::cancel`] gets later. Until then
    /// it is not open, but no other call gets it.
    ///
    /// # Errors
    /// `TooManyFiles`; `NoMemory`.
    pub fn reserve(&self, limit: u64) -> Result<i32> {
        let (fd, mut table) = self.free_from(self.table.lock(), 0, limit)?;
        table.reserve(fd);
        Ok(fd as i32)
    }

    /// Gives `file` a descriptor that was reserved.
    pub fn fill(&self, fd: i32, file: FileRef, cloexec: bool) {
        self.table.lock().put(fd as usize, file, cloexec);
    }

    /// Frees a descriptor that was reserved.
    pub fn cancel(&self, fd: i32) {
        let mut table = self.table.lock();
        table.cancel(fd as usize);
        table.first_free = table.first_free.min(fd as usize);
    }

    /// Gives each of two files a descriptor below `limit`, or neither. Errors: those of [`FdTable::add`].
    pub fn add_pair(
        &self,
        a: FileRef,
        b: FileRef,
        cloexec: bool,
        limit: u64,
    ) -> Result<(i32, i32)> {
        let (first, mut table) = self.free_from(self.table.lock(), 0, limit)?;
        // Not open yet, because the search for the second one may release the lock.
        table.reserve(first);
        match self.free_from(table, 0, limit) {
            Ok((second, mut table)) => {
                table.put(first, a, cloexec);
                table.put(second, b, cloexec);
                Ok((first as i32, second as i32))
            }
            Err(e) => {
                self.cancel(first as i32);
                Err(e)
            }
        }
    }

    /// Makes `to` refer to the file that `from` refers to; the caller has checked that they differ. A file that `to` referred to
    /// is closed, and the locks that the table owns on it are released.
    ///
    /// # Errors
    /// `BadFd` if `from` is not open, or `to` is negative or not below `limit`; `NoMemory`; `Busy` if another thread has
    /// reserved `to`.
    pub fn dup_to(&self, from: i32, to: i32, cloexec: bool, limit: u64) -> Result<i32> {
        let file = self.get(from)?;
        let fd = index(to)?;
        if fd as u64 >= limit.min(NR_OPEN) {
            return Err(FsError::BadFd);
        }
        let mut table = self.table.lock();
        reach(&mut table, fd)?;
        if table.is_reserved(fd) {
            return Err(FsError::Busy);
        }
        let old = table.put(fd, file, cloexec);
        let owner = self.owner(&table);
        drop(table);
        if let Some(old) = old {
            closed(&old, owner);
        }
        Ok(to)
    }

    /// Takes descriptors out again that still refer to these files, with what was asked of the files by the table's processes. Meanwhile another thread may have closed one and opened
    /// another file at the same descriptor.
    pub fn undo(&self, made: &[(i32, &FileRef)]) {
        for &(fd, file) in made {
            let Ok(fd) = index(fd) else { continue };
            let mut table = self.table.lock();
            let found = table.get(fd);
            if found.is_some_and(|found| FileRef::ptr_eq(&found, file)) {
                let undone = table.take(fd);
                table.first_free = table.first_free.min(fd);
                let owner = self.owner(&table);
                drop(table);
                drop(undone);
                // No program was given it, and so closed it: it is not flushed. But another thread may have used its number.
                disown(file, owner);
            }
        }
    }

    /// Takes a descriptor out and returns its file, which is closed when the last reference is dropped. The locks that the table
    /// owns on the file are released.
    pub fn remove(&self, fd: i32) -> Result<FileRef> {
        let fd = index(fd)?;
        let mut table = self.table.lock();
        let file = table.take(fd).ok_or(FsError::BadFd)?;
        table.first_free = table.first_free.min(fd);
        let owner = self.owner(&table);
        drop(table);
        closed(&file, owner);
        Ok(file)
    }

    /// The close-on-exec flag of a descriptor.
    pub fn cloexec(&self, fd: i32) -> Result<bool> {
        let (fd, table) = (index(fd)?, self.table.lock());
        if table.has(fd) {
            Ok(table.is_marked(fd))
        } else {
            Err(FsError::BadFd)
        }
    }

    /// As [`cloexec`](Self::cloexec), without the table's lock, for a look from outside: false for a descriptor that is not open.
    pub fn looks_cloexec(&self, fd: i32) -> bool {
        index(fd).is_ok_and(|fd| self.table.looks_marked(&ksync::pin(), fd))
    }

    /// Sets the close-on-exec flag of a descriptor.
    pub fn set_cloexec(&self, fd: i32, on: bool) -> Result<()> {
        let (fd, mut table) = (index(fd)?, self.table.lock());
        if !table.has(fd) {
            return Err(FsError::BadFd);
        }
        table.set_mark(fd, on);
        Ok(())
    }

    /// The first descriptor in `range` that is open, with its file; `None` if the table ends before the range. Takes no lock.
    pub fn first_in(&self, pin: &CpuPin, range: Range<usize>) -> Option<Option<(usize, FileRef)>> {
        self.table.first_in(pin, range)
    }

    /// The first descriptor at or above `from` that is open, with its file.
    fn next_open(&self, from: usize) -> Option<(usize, FileRef)> {
        first_in_steps(from, |range| self.first_in(&ksync::pin(), range))
    }

    /// Closes the descriptors `first..=last`, or with `mark_only` sets their close-on-exec flags. One that another thread opens
    /// meanwhile may be missed.
    pub fn close_range(&self, first: usize, last: usize, mark_only: bool) {
        let mut from = first;
        while let Some((fd, file)) = self.next_open(from) {
            drop(file);
            if fd > last {
                break;
            }
            if mark_only {
                // Another thread that shares the table may have closed it meanwhile.
                let _ = self.set_cloexec(fd as i32, true);
            } else {
                drop(self.remove(fd as i32));
            }
            from = fd + 1;
        }
    }

    /// Closes the descriptors whose close-on-exec flag is set.
    pub fn close_on_exec(&self) {
        let mut from = 0;
        loop {
            let table = self.table.lock();
            let len = table.len();
            let end = len.min(from + STEP);
            let found = (from..end).find(|&fd| table.is_marked(fd));
            drop(table);
            match found {
                Some(fd) => {
                    drop(self.remove(fd as i32));
                    from = fd + 1;
                }
                None if end == len => return,
                None => from = end,
            }
        }
    }

    /// The number of descriptors in `range` that are open; `None` if the table ends before the range. Takes no lock.
    pub fn open_in(&self, pin: &CpuPin, range: Range<usize>) -> Option<usize> {
        self.table.taken(pin, range)
    }

    /// The number of descriptors for which the table has room (`FDSize` in /proc/PID/status). Takes no lock.
    pub fn size(&self) -> usize {
        self.table.room(&ksync::pin())
    }
}

/// Descriptors that fork copies under one hold of the lock. Each takes a reference to its file; a hundred instructions, for those
/// behind the first few thousand.
const COPIED: usize = 2048;
/// Descriptors that are looked at without a point of preemption.
pub const STEP: usize = 4096;

/// The first descriptor at or above `from` that `first_in` finds in a range of [`STEP`] descriptors, see
/// [`FdTable::first_in`].
pub fn first_in_steps(
    from: usize,
    first_in: impl Fn(Range<usize>) -> Option<Option<(usize, FileRef)>>,
) -> Option<(usize, FileRef)> {
    for from in (from..).step_by(STEP) {
        if let Some(found) = first_in(from..from + STEP)? {
            return Some(found);
        }
    }
    None
}
