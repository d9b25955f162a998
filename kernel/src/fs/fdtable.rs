//! Descriptors.
//!
//! A table belongs to one process (or to those who share it by `CLONE_FILES`), so its lock and
//! its lines are private to that process's threads. A lookup takes the lock for the time of one
//! reference count; the file's own line is the only one that other processes may share.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use ksync::Spin;

use super::error::{FsError, Result};
use super::file::File;
use super::lock;

ksync::lock_class!(pub FdLock, "descriptors", rank = 87);

/// Highest descriptor that any limit allows (Linux's nr_open).
pub const NR_OPEN: u64 = 1 << 20;

#[derive(Default)]
struct Table {
    files: Vec<Option<Arc<File>>>,
    /// Bit per descriptor: closed by execve.
    cloexec: Vec<u64>,
    /// No descriptor below this is free.
    first_free: usize,
}

impl Table {
    /// Makes room for descriptor `fd`.
    fn reach(&mut self, fd: usize) -> Result<()> {
        if fd < self.files.len() {
            return Ok(());
        }
        let want = (fd + 1).next_power_of_two().max(8);
        let more = want - self.files.len();
        self.files
            .try_reserve_exact(more)
            .map_err(|_| FsError::NoMemory)?;
        let words = want.div_ceil(64);
        let add = words.saturating_sub(self.cloexec.len());
        self.cloexec
            .try_reserve_exact(add)
            .map_err(|_| FsError::NoMemory)?;
        self.files.resize_with(want, || None);
        self.cloexec.resize(words, 0);
        Ok(())
    }

    fn set_cloexec(&mut self, fd: usize, on: bool) {
        let bit = 1u64 << (fd % 64);
        if on {
            self.cloexec[fd / 64] |= bit;
        } else {
            self.cloexec[fd / 64] &= !bit;
        }
    }

    fn cloexec(&self, fd: usize) -> bool {
        self.cloexec[fd / 64] >> (fd % 64) & 1 != 0
    }

    fn put(&mut self, fd: usize, file: Arc<File>, cloexec: bool) -> Option<Arc<File>> {
        self.set_cloexec(fd, cloexec);
        self.files[fd].replace(file)
    }

    fn free_from(&mut self, min: usize, limit: u64) -> Result<usize> {
        let from = min.max(self.first_free);
        let fd = (from..self.files.len())
            .find(|&fd| self.files[fd].is_none())
            .unwrap_or(self.files.len().max(from));
        if fd as u64 >= limit.min(NR_OPEN) {
            return Err(FsError::TooManyFiles);
        }
        self.reach(fd)?;
        if min <= self.first_free {
            self.first_free = fd + 1;
        }
        Ok(fd)
    }
}

/// A table of descriptors.
#[derive(Default)]
pub struct FdTable {
    table: Spin<Table, FdLock>,
    /// Whether the process ever locked a part of a file. Atomic.
    locked: AtomicBool,
}

impl Drop for FdTable {
    fn drop(&mut self) {
        if *self.locked.get_mut() {
            let files = core::mem::take(&mut self.table.get_mut().files);
            files.iter().flatten().for_each(|file| self.closed(file));
        }
    }
}

impl FdTable {
    /// An empty table.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// A copy for a child process. Costs one count for each open file.
    pub fn fork(&self) -> Result<Arc<Self>> {
        let mut copy = Table::default();
        let table = self.table.lock();
        let used = table
            .files
            .iter()
            .rposition(Option::is_some)
            .map_or(0, |i| i + 1);
        if used > 0 {
            copy.reach(used - 1)?;
            for fd in 0..used {
                if let Some(file) = &table.files[fd] {
                    copy.files[fd] = Some(file.clone());
                }
            }
            for (to, from) in copy.cloexec.iter_mut().zip(&table.cloexec) {
                *to = *from;
            }
        }
        copy.first_free = table.first_free.min(copy.files.len());
        Ok(Arc::new(FdTable {
            table: Spin::new(copy),
            locked: AtomicBool::new(false),
        }))
    }

    /// Notes that the process may hold locks, which end as it closes descriptors.
    pub fn note_lock(&self) {
        self.locked.store(true, Ordering::SeqCst);
    }

    /// A descriptor of `file` was closed: that ends all locks of the process on it, whatever else is open.
    fn closed(&self, file: &File) {
        if self.locked.load(Ordering::SeqCst)
            && let Some(inode) = file.inode()
        {
            lock::release(inode, lock::table_owner(self));
        }
    }

    /// The file of a descriptor.
    pub fn get(&self, fd: i32) -> Result<Arc<File>> {
        let fd = usize::try_from(fd).map_err(|_| FsError::BadFd)?;
        let table = self.table.lock();
        table
            .files
            .get(fd)
            .and_then(Clone::clone)
            .ok_or(FsError::BadFd)
    }

    /// Gives a file the lowest free descriptor that is at least `min` and below `limit`.
    pub fn add(&self, file: Arc<File>, cloexec: bool, min: usize, limit: u64) -> Result<i32> {
        let mut table = self.table.lock();
        let fd = table.free_from(min, limit)?;
        table.put(fd, file, cloexec);
        Ok(fd as i32)
    }

    /// Gives two files descriptors, or neither.
    pub fn add_pair(
        &self,
        a: Arc<File>,
        b: Arc<File>,
        cloexec: bool,
        limit: u64,
    ) -> Result<(i32, i32)> {
        let mut table = self.table.lock();
        let first = table.free_from(0, limit)?;
        table.put(first, a, cloexec);
        match table.free_from(0, limit) {
            Ok(second) => {
                table.put(second, b, cloexec);
                Ok((first as i32, second as i32))
            }
            Err(e) => {
                let undone = table.files[first].take();
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
        let fd = usize::try_from(to).map_err(|_| FsError::BadFd)?;
        if fd as u64 >= limit.min(NR_OPEN) {
            return Err(FsError::BadFd);
        }
        let mut table = self.table.lock();
        table.reach(fd)?;
        let old = table.put(fd, file, cloexec);
        drop(table);
        if let Some(old) = old {
            self.closed(&old);
        }
        Ok(to)
    }

    /// Takes a descriptor out; the file is closed when the last reference is dropped.
    pub fn remove(&self, fd: i32) -> Result<Arc<File>> {
        let fd = usize::try_from(fd).map_err(|_| FsError::BadFd)?;
        let mut table = self.table.lock();
        let file = table
            .files
            .get_mut(fd)
            .and_then(Option::take)
            .ok_or(FsError::BadFd)?;
        table.set_cloexec(fd, false);
        table.first_free = table.first_free.min(fd);
        drop(table);
        self.closed(&file);
        Ok(file)
    }

    /// Whether execve closes a descriptor.
    pub fn cloexec(&self, fd: i32) -> Result<bool> {
        self.get(fd)?;
        Ok(self.table.lock().cloexec(fd as usize))
    }

    /// Says whether execve closes a descriptor.
    pub fn set_cloexec(&self, fd: i32, on: bool) -> Result<()> {
        let fd = usize::try_from(fd).map_err(|_| FsError::BadFd)?;
        let mut table = self.table.lock();
        if !table.files.get(fd).is_some_and(Option::is_some) {
            return Err(FsError::BadFd);
        }
        table.set_cloexec(fd, on);
        Ok(())
    }

    /// The first open descriptor at or above `from`, with its file.
    pub fn next_open(&self, from: usize) -> Option<(usize, Arc<File>)> {
        let table = self.table.lock();
        let fd = (from..table.files.len()).find(|&fd| table.files[fd].is_some())?;
        Some((fd, table.files[fd].clone()?))
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
            let due = |fd: &usize| table.files[*fd].is_some() && table.cloexec(*fd);
            let Some(fd) = (from..table.files.len()).find(due) else {
                return;
            };
            drop(table);
            drop(self.remove(fd as i32));
            from = fd + 1;
        }
    }

    /// How many descriptors the table has room for (`FDSize` of /proc/PID/status).
    pub fn size(&self) -> usize {
        self.table.lock().files.len()
    }
}
