//! epoll_ctl(2).

use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use cred::Charge;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileRef};

use super::MAX_WATCHES;
use super::entry::Entry;
use super::event::{Event, flag};
use super::file::set_of;
use super::nesting;
use super::numbers;
use super::set::{Key, Set, unwatch};

/// What an entry with EPOLLEXCLUSIVE may want: reads, writes, errors and hang-ups, and the flags that make no change to it.
const EXCLUSIVE_MAY: u32 = 1 | 4 | 8 | 16 | flag::WAKEUP | flag::ET | flag::EXCLUSIVE;

fn key(file: &FileRef, fd: i32) -> Key {
    (core::ptr::from_ref::<File>(file).addr(), fd)
}

/// The epoll that `epoll` is, for an operation on an entry of `file`.
///
/// # Errors
/// `Perm` if `file` is of a kind that epolls do not take; `Invalid` if `epoll` is no epoll, or both are the same.
fn set<'a>(epoll: &'a FileRef, file: &FileRef) -> Result<&'a Arc<Set>> {
    if !file.ops().pollable() {
        return Err(FsError::Perm);
    }
    if FileRef::ptr_eq(epoll, file) {
        return Err(FsError::Invalid);
    }
    set_of(epoll).ok_or(FsError::Invalid)
}

/// EPOLL_CTL_ADD: adds an entry for `file`, open as `fd`. May sleep.
///
/// # Errors
/// `Perm`, `Invalid`, as in epoll_ctl(2), `Invalid` also where events would be passed on to too many epolls; `Loop` if epolls would be in themselves or too
/// deep; `Exists`; `NoSpace` beyond the user's limit; `NoMemory`. Nothing has changed.
pub fn add(epoll: &FileRef, file: &FileRef, fd: i32, event: Event) -> Result<()> {
    let set = set(epoll, file)?;
    let inner = set_of(file);
    if event.events & flag::EXCLUSIVE != 0
        && (inner.is_some() || event.events & !EXCLUSIVE_MAY != 0)
    {
        return Err(FsError::Invalid);
    }
    mem::admit().map_err(|_| FsError::NoMemory)?;
    if let Some(inner) = inner {
        nesting::link(set.id, inner.id)?;
    }
    let undo = || {
        if let Some(inner) = inner {
            nesting::unlink(set.id, inner.id);
        }
    };
    if set.find(key(file, fd)).is_some() {
        undo();
        return Err(FsError::Exists);
    }
    // Charged first, so that of two threads at the limit one sees the other's charge.
    set.payer.charge(Charge::Watches, 1);
    let over = set
        .payer
        .is_over(Charge::Watches, MAX_WATCHES.load(Relaxed));
    let Some(number) = numbers::alloc().filter(|_| !over) else {
        set.payer.give_back(Charge::Watches, 1);
        undo();
        return Err(if over {
            FsError::NoSpace
        } else {
            FsError::NoMemory
        });
    };
    let entry = Entry::new(set, number, file, fd, event);
    numbers::publish(&entry);
    insert(set, file, &entry)?;
    arm(set, &entry, file);
    Ok(())
}

/// Puts an entry on the list of its file, and into the set. If that fails, it is dead.
///
/// # Errors
/// `Exists`.
fn insert(set: &Set, file: &FileRef, entry: &Arc<Entry>) -> Result<()> {
    // First, so that a removal finds the entry there. The file does not end meanwhile.
    file.watchers.add(entry.clone());
    let mut entries = set.entries.lock();
    let key = key(file, entry.fd);
    if entries.contains_key(&key) {
        drop(entries);
        unwatch(file, entry);
        set.end(entry);
        return Err(FsError::Exists);
    }
    entries.insert(key, entry.clone());
    Ok(())
}

/// EPOLL_CTL_MOD: changes what the entry of `file` and `fd` waits for, and turns it on. May sleep.
///
/// # Errors
/// `Perm`, `Invalid` as in epoll_ctl(2); `NotFound`. Nothing has changed.
pub fn change(epoll: &FileRef, file: &FileRef, fd: i32, event: Event) -> Result<()> {
    let set = set(epoll, file)?;
    if event.events & flag::EXCLUSIVE != 0 {
        return Err(FsError::Invalid);
    }
    let entry = set.find(key(file, fd)).ok_or(FsError::NotFound)?;
    if entry.is_exclusive() {
        return Err(FsError::Invalid);
    }
    {
        let _ready = set.ready.lock();
        entry.set_event(event.complete());
    }
    arm(set, &entry, file);
    Ok(())
}

/// EPOLL_CTL_DEL: removes the entry of `file` and `fd`. May sleep. If the file is an epoll, no scan of the outer one looks at it any
/// more.
///
/// # Errors
/// `Perm`, `Invalid` as in epoll_ctl(2); `NotFound`.
pub fn remove(epoll: &FileRef, file: &FileRef, fd: i32) -> Result<()> {
    let set = set(epoll, file)?;
    // A scan that waits for that of the inner epoll must not go on when the two may be put together the other way round.
    let turn = set_of(file).map(|_| set.take_turn());
    let gone = set.take_out(key(file, fd));
    drop(turn);
    unwatch(file, &gone.ok_or(FsError::NotFound)?);
    Ok(())
}

/// The address of the open file that was added as `fd`; of several, that behind `skip` others.
///
/// # Errors
/// `Invalid` if `epoll` is none; `NotFound`.
pub fn target(epoll: &FileRef, fd: i32, skip: usize) -> Result<usize> {
    let set = set_of(epoll).ok_or(FsError::Invalid)?;
    let entries = set.entries.lock();
    let mut found = entries.keys().filter(|key| key.1 == fd);
    found.nth(skip).map(|key| key.0).ok_or(FsError::NotFound)
}

/// Looks at a new or changed entry in a new round, and puts it on the ready list if there is something to report.
fn arm(set: &Set, entry: &Entry, file: &FileRef) {
    let (round, event) = {
        let _ready = set.ready.lock();
        if entry.is_dead() {
            return;
        }
        (entry.round.begin(), entry.event())
    };
    let mut waiter = entry.waiter(round, event);
    let found = file.poll(Some(&mut waiter)) & event.wanted();
    if !found.is_empty() || waiter.unheard() {
        set.put(entry);
    }
}
