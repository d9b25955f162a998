//! Processes and process groups by id.
//!
//! Ids, and threads by id, are in [`task::ids`]. Processes and groups have tables of their own for the same ids. See
//! [`task::id_table`] for what a lookup costs.

use alloc::sync::Arc;
use core::ops::ControlFlow;

use ksync::{ArcBorrow, CpuPin};
use task::id_table::ArcTable;
use task::idlist::{IdLinks, Role};
use task::thread::Thread;

use super::group::record::{Group, InGroup, Session};
use super::process::{Process, Sibling};
use super::user_thread::UserThreadExt;

pub use task::ids::{Id, borrow_thread, live, thread, threads};

hal::machine_static! {
    static PROCESSES: ArcTable<Process> = ArcTable::new();
    static GROUPS: ArcTable<Group> = ArcTable::new();
}

/// Bytes that the tables by id take, for the accounting of the heap.
pub fn table_bytes() -> usize {
    task::ids::table_bytes() + PROCESSES.bytes() + GROUPS.bytes()
}

/// The process with this id; zombies are included.
#[inline]
pub fn process(pin: &CpuPin, pid: u32) -> Option<&Process> {
    PROCESSES.get(pin, pid)
}

/// As [`process`], for a caller that may take a reference.
#[inline]
pub fn borrow_process(pin: &CpuPin, pid: u32) -> Option<ArcBorrow<'_, Process>> {
    PROCESSES.borrow(pin, pid)
}

/// The process group with this id.
#[inline]
pub fn group(pin: &CpuPin, pgid: u32) -> Option<&Group> {
    GROUPS.get(pin, pgid)
}

/// As [`group`], for a caller that may take a reference.
#[inline]
pub fn borrow_group(pin: &CpuPin, pgid: u32) -> Option<ArcBorrow<'_, Group>> {
    GROUPS.borrow(pin, pgid)
}

/// The thread with this id, with a reference. Not if its process has been reaped: the last thread may not have left its
/// CPU yet, but its id is not in use any more for other threads.
pub fn find_thread(tid: u32) -> Option<Arc<Thread>> {
    task::ids::hold_thread(tid).filter(|t| !t.process().is_reaped())
}

/// The process with this id, with a reference; zombies are included.
pub fn find_process(pid: u32) -> Option<Arc<Process>> {
    PROCESSES.hold(pid)
}

/// The process group with this id, with a reference.
pub fn find_group(pgid: u32) -> Option<Arc<Group>> {
    GROUPS.hold(pgid)
}

/// Gives `thread`, the caller and the only one of its process, the pid as its tid. False, and nothing changed, while the old
/// leader still has it. Takes the lock of the list of threads.
pub(super) fn become_leader(thread: &Arc<Thread>) -> bool {
    let process = thread.process();
    let pid = process.pid();
    task::ids::become_leader(thread, pid, |pin, tid| {
        let mut threads = process.threads.lock();
        threads.remove(pin, tid);
        thread.set_tid(pid);
        task::sched::renumbered(pin, pid);
        threads.push_back(pin, pid);
    })
}

/// Makes the table have a slot for a process that is made. May wait for memory, which [`publish_process`] could not.
pub(super) fn make_room_for_process(id: &Id) {
    PROCESSES.grow(id.number());
}

pub(super) fn publish_process(process: &Arc<Process>) {
    let published = PROCESSES.publish(process.pid(), process.clone());
    debug_assert!(published, "a process has this id already");
}

pub(super) fn withdraw_process(process: &Process) {
    PROCESSES.withdraw(process.pid());
}

/// Enters a group in the table; false if the id has a group.
pub(super) fn publish_group(group: &Arc<Group>) -> bool {
    GROUPS.publish(group.pgid(), group.clone())
}

pub(super) fn withdraw_group(group: &Group) {
    GROUPS.withdraw(group.pgid());
}

/// The group of `p`, in which `p` was at some moment of the call; `None` for a process that is being made, and once it has been reaped.
pub(super) fn group_of<'p>(pin: &'p CpuPin, p: &Process) -> Option<ArcBorrow<'p, Group>> {
    loop {
        let pgid = p.pgid();
        let group = borrow_group(pin, pgid);
        // Where setpgid or setsid moves `p`, its new pgid is written before the old group can end, and before another group,
        // perhaps of another session, can have the old number.
        if p.pgid() == pgid {
            if group.is_some() {
                return group;
            }
            // A process that is reaped is marked before it leaves its group.
            if pgid == 0 || p.is_reaped() {
                return None;
            }
        }
        ksync::relax();
    }
}

impl Process {
    /// The process group; `None` for a process that is being made, and once it has been reaped.
    pub fn group(&self) -> Option<Arc<Group>> {
        group_of(&ksync::pin(), self).map(ArcBorrow::hold)
    }

    /// The session; `None` as for [`Process::group`].
    pub fn session(&self) -> Option<Arc<Session>> {
        self.group().map(|g| g.session().clone())
    }
}

/// Calls `f` with each process from id `from` on, in the order of ids, until it returns false.
///
/// No lock is held; `f` runs unpinned and may sleep. Processes that come or go meanwhile may or may not be seen.
pub fn each_process(from: u32, f: impl FnMut(&Arc<Process>) -> bool) {
    each_process_where(from, |_, _| ControlFlow::Continue(true), f);
}

/// As [`each_process`], for processes whose id `wanted` accepts. `wanted` runs pinned, so it must not sleep, and can end the walk.
/// The process whose id it gets may just have gone.
pub fn each_process_where(
    from: u32,
    mut wanted: impl FnMut(&CpuPin, u32) -> ControlFlow<(), bool>,
    mut f: impl FnMut(&Arc<Process>) -> bool,
) {
    let span = task::ids::span();
    let mut at = from.max(1);
    while let Some(id) = PROCESSES.next(at, span) {
        at = id + 1;
        let pin = ksync::pin();
        let ControlFlow::Continue(accepted) = wanted(&pin, id) else {
            return;
        };
        drop(pin);
        if accepted
            && let Some(p) = find_process(id)
            && !f(&p)
        {
            return;
        }
    }
}

impl Role for Sibling {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        process(pin, id).map(|p| &p.siblings)
    }
}

impl Role for InGroup {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        process(pin, id).map(|p| &p.group_links)
    }
}
