//! Descriptors.
//!
//! Guarantee: a lookup takes no lock and writes no line but the count of the file that it finds; calls on
//! different files of one table meet nowhere. Mechanism: a [`ksync::RcTable`], which is read under a pin and changed
//! under its lock; a place's mark says that execve closes the descriptor. The last reference to a file, be it
//! its descriptor's or that of a call which still uses it, closes it at once.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use cred::MemoryCharge;
use ksync::{CpuPin, RcTable, RcTableGuard};
use mem::epoch;
use task::account::charge_large;

use super::error::{FsError, Result};
use super::file::{File, FileRef};
use super::lock;

ksync::lock_class!(pub FdLock, "descriptors", rank = 87);

/// Highest descriptor that any limit allows (Linux's nr_open).
pub const NR_OPEN: u64 = 1 << 20;

/// What those who change a table keep beside its places.
struct Search {
    /// No descriptor below this is free.
    first_free: usize,
    /// A large table is charged to the user that made it so.
    charge: MemoryCharge,
}

type Locked<'a> = RcTableGuard<'a, File, Search, FdLock>;

fn reach(table: &mut Locked, fd: usize) -> Result<()> {
    if fd < table.len() {
        return Ok(());
    }
    table.grow(epoch(), fd + 1).map_err(|_| FsError::NoMemory)?;
    table.charge = charge_for(table);
    Ok(())
}

/// What a table is charged with.
fn charge_for(table: &Locked) -> MemoryCharge {
    charge_large(table.len() * size_of::<usize>())
}

/// The lowest free descriptor that is at least `min` and below `limit`; room has been made for it.
fn free_from(table: &mut Locked, min: usize, limit: u64) -> Result<usize> {
    let from = min.max(table.first_free);
    let fd = (from..table.len())
        .find(|&fd| !table.has(fd))
        .unwrap_or(table.len().max(from));
    if fd as u64 >= limit.min(NR_OPEN) {
        return Err(FsError::TooManyFiles);
    }
    reach(table, fd)?;
    if min <= table.first_free {
        table.first_free = fd + 1;
    }
    Ok(fd)
}

/// The number of a descriptor, as an index.
fn index(fd: i32) -> Result<usize> {
    usize::try_from(fd).map_err(|_| FsError::BadFd)
}

/// A table of descriptors.
pub struct FdTable {
    table: RcTable<File, Search, FdLock>,
    /// Whether the process ever locked a part of a file. Atomic.
    locked: AtomicBool,
}

impl Drop for FdTable {
    fn drop(&mut self) {
        let owner = (*self.locked.get_mut()).then(|| lock::table_owner(self));
        for file in self.table.drain() {
            closed(&file, owner);
        }
    }
}

/// A descriptor of `file` was closed: that ends all locks of the process `owner` on it, whatever else is open.
fn closed(file: &File, owner: Option<u64>) {
    if let (Some(owner), Some(inode)) = (owner, file.inode()) {
        lock::release(inode, owner);
    }
}

impl FdTable {
    /// An empty table.
    pub fn new() -> Arc<Self> {
        Self::with(RcTable::new(Search {
            first_free: 0,
            charge: MemoryCharge::NONE,
        }))
    }

    fn with(table: RcTable<File, Search, FdLock>) -> Arc<Self> {
        Arc::new(FdTable {
            table,
            locked: AtomicBool::new(false),
        })
    }

    /// A copy for a child process. Costs one count for each open file.
    pub fn fork(&self) -> Result<Arc<Self>> {
        let table = self.table.lock();
        let search = Search {
            first_free: table.first_free,
            charge: charge_for(&table),
        };
        let copy = table.copy(search).map_err(|_| FsError::NoMemory)?;
        drop(table);
        Ok(Self::with(copy))
    }

    /// Notes that the process may hold locks, which end as it closes descriptors.
    pub fn note_lock(&self) {
        self.locked.store(true, Ordering::SeqCst);
    }

    fn closed(&self, file: &File) {
        if self.locked.load(Ordering::SeqCst) {
            closed(file, Some(lock::table_owner(self)));
        }
    }

    /// The file of a descriptor.
    #[inline]
    pub fn get(&self, fd: i32) -> Result<FileRef> {
        self.table
            .get(&ksync::pin(), index(fd)?)
            .ok_or(FsError::BadFd)
    }

    /// Gives a file the lowest free descriptor that is at least `min` and below `limit`.
    pub fn add(&self, file: FileRef, cloexec: bool, min: usize, limit: u64) -> Result<i32> {
        let mut table = self.table.lock();
        let fd = free_from(&mut table, min, limit)?;
        table.put(fd, file, cloexec);
        Ok(fd as i32)
    }

    /// Gives two files descriptors, or neither.
    pub fn add_pair(
        &self,
        a: FileRef,
        b: FileRef,
        cloexec: bool,
        limit: u64,
    ) -> Result<(i32, i32)> {
        let mut table = self.table.lock();
        let first = free_from(&mut table, 0, limit)?;
        table.put(first, a, cloexec);
        match free_from(&mut table, 0, limit) {
            Ok(second) => {
                table.put(second, b, cloexec);
                Ok((first as i32, second as i32))
            }
            Err(e) => {
                let undone = table.take(first);
                table.first_free = table.first_free.min(first);
                drop(table);
                drop(undone);
                Err(e)
            }
        }
    }

    /// Makes `to` refer to what `from` refers to; what was open there is closed.
    pub fn dup_to(&self, from: i32, to: i32, cloexec: bool, limit: u64) -> Result<i32> {
        let file = self.get(from)?;
        let fd = index(to)?;
        if fd as u64 >= limit.min(NR_OPEN) {
            return Err(FsError::BadFd);
        }
        let mut table = self.table.lock();
        reach(&mut table, fd)?;
        let old = table.put(fd, file, cloexec);
        drop(table);
        if let Some(old) = old {
            self.closed(&old);
        }
        Ok(to)
    }

    /// Takes descriptors out again as far as they still lead to these files: meanwhile another thread may have closed one,
    /// and got its number for something else.
    pub fn undo(&self, made: &[(i32, &FileRef)]) {
        for &(fd, file) in made {
            let Ok(fd) = index(fd) else { continue };
            let mut table = self.table.lock();
            let found = table.get(fd);
            if found.is_some_and(|found| FileRef::ptr_eq(&found, file)) {
                let undone = table.take(fd);
                table.first_free = table.first_free.min(fd);
                drop(table);
                drop(undone);
                self.closed(file);
            }
        }
    }

    /// Takes a descriptor out; the file is closed when the last reference is dropped.
    pub fn remove(&self, fd: i32) -> Result<FileRef> {
        let fd = index(fd)?;
        let mut table = self.table.lock();
        let file = table.take(fd).ok_or(FsError::BadFd)?;
        table.first_free = table.first_free.min(fd);
        drop(table);
        self.closed(&file);
        Ok(file)
    }

    /// Whether execve closes a descriptor.
    pub fn cloexec(&self, fd: i32) -> Result<bool> {
        let (fd, table) = (index(fd)?, self.table.lock());
        if table.has(fd) {
            Ok(table.is_marked(fd))
        } else {
            Err(FsError::BadFd)
        }
    }

    /// Says whether execve closes a descriptor.
    pub fn set_cloexec(&self, fd: i32, on: bool) -> Result<()> {
        let (fd, mut table) = (index(fd)?, self.table.lock());
        if !table.has(fd) {
            return Err(FsError::BadFd);
        }
        table.set_mark(fd, on);
        Ok(())
    }

    /// The first open descriptor at or above `from`, with its file.
    pub fn next_open(&self, from: usize) -> Option<(usize, FileRef)> {
        let table = self.table.lock();
        let fd = (from..table.len()).find(|&fd| table.has(fd))?;
        Some((fd, table.get(fd)?))
    }

    /// Closes the descriptors `first..=last`, or marks them to be closed by execve.
    pub fn close_range(&self, first: usize, last: usize, mark_only: bool) {
        let mut from = first;
        while let Some((fd, file)) = self.next_open(from) {
            drop(file);
            if fd > last {
                break;
            }
            if mark_only {
                // Somebody who shares the table may have closed it meanwhile.
                let _ = self.set_cloexec(fd as i32, true);
            } else {
                drop(self.remove(fd as i32));
            }
            from = fd + 1;
        }
    }

    /// Closes what execve closes.
    pub fn close_on_exec(&self) {
        let mut from = 0;
        loop {
            let table = self.table.lock();
            let Some(fd) = (from..table.len()).find(|&fd| table.is_marked(fd)) else {
                return;
            };
            drop(table);
            drop(self.remove(fd as i32));
            from = fd + 1;
        }
    }

    /// How many of the descriptors in `range` are open; none if the table ends before. Takes no lock.
    pub fn open_in(&self, pin: &CpuPin, range: Range<usize>) -> Option<usize> {
        self.table.taken(pin, range)
    }

    /// How many descriptors the table has room for (`FDSize` of /proc/PID/status).
    pub fn size(&self) -> usize {
        self.table.lock().len()
    }
}
