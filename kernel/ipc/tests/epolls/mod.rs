//! Epolls over pipes and event counters, and the calls of their users.
#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

use hal::uio::IoBuf;
use ipc::epoll::{Event, control, file, wait};
use task::park::Deadline;
use vfs::error::Result;
use vfs::eventfd::EventCounter;
use vfs::file::{File, FileRef, Kind, o};

/// The kernel of the tests of pipes.
#[path = "../../../vfs/tests/pipe_users/mod.rs"]
pub mod pipe_users;

pub use ipc::epoll::flag::{ET, EXCLUSIVE, ONESHOT};
pub use pipe_users::threads::{MS, interrupt, nap, spawn, wait_for_ends};

pub const IN: u32 = 0x41;
pub const OUT: u32 = 0x104;
pub const HUP: u32 = 0x10;
pub const ERR: u32 = 8;

/// Runs `body` in a thread of a machine with so many CPUs.
pub fn on(cpus: usize, body: impl FnOnce() + Send + 'static) {
    pipe_users::on(cpus, move || {
        ipc::init(cpus);
        body();
    });
}

/// epoll_create1(2).
pub fn epoll() -> FileRef {
    file::make().expect("memory for an epoll")
}

/// An open file of a kind that has no place in the tree.
pub fn other(ops: impl vfs::file::FileOps + 'static) -> FileRef {
    File::open(None, Kind::Other(Box::new(ops)), o::RDWR | o::NONBLOCK)
}

/// eventfd(2).
pub fn counter(count: u64) -> FileRef {
    other(EventCounter::new(count, false))
}

/// Adds 1 to an event counter.
pub fn count(file: &FileRef) {
    assert_eq!(file.write(&mut IoBuf::Drain(&1u64.to_ne_bytes())), Ok(8));
}

/// Takes the count of an event counter.
pub fn take(file: &FileRef) -> Result<u64> {
    let mut bytes = [0; 8];
    file.read(&mut IoBuf::Fill(&mut bytes))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// EPOLL_CTL_ADD; the word is the descriptor.
pub fn add(epoll: &FileRef, file: &FileRef, fd: i32, events: u32) -> Result<()> {
    control::add(epoll, file, fd, event(events, fd as u64))
}

/// EPOLL_CTL_MOD.
pub fn change(epoll: &FileRef, file: &FileRef, fd: i32, events: u32) -> Result<()> {
    control::change(epoll, file, fd, event(events, fd as u64))
}

/// EPOLL_CTL_DEL.
pub fn remove(epoll: &FileRef, file: &FileRef, fd: i32) -> Result<()> {
    control::remove(epoll, file, fd)
}

pub fn event(events: u32, data: u64) -> Event {
    Event { events, data }
}

/// epoll_wait(2).
pub fn wait_until(epoll: &FileRef, most: usize, deadline: Deadline) -> Result<Vec<Event>> {
    let mut found = Vec::new();
    let n = wait::wait(epoll, most, deadline, &mut |event| {
        found.push(event);
        Ok(())
    })?;
    assert_eq!(n, found.len());
    Ok(found)
}

/// epoll_wait(2) with timeout 0: the events and the words.
pub fn now(epoll: &FileRef) -> Vec<(u32, u64)> {
    let found = wait_until(epoll, 100, Deadline::now()).expect("no wait");
    found.iter().map(|e| (e.events, e.data)).collect()
}

/// The words alone.
pub fn ready(epoll: &FileRef) -> Vec<u64> {
    now(epoll).into_iter().map(|(_, data)| data).collect()
}
