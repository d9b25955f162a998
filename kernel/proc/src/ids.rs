//! Processes and process groups by id.
//!
//! The ids, and threads by id, are [`task::ids`]'; a process and a group have tables of their own for the same ids. See
//! [`task::id_table`] for what a lookup costs.

use alloc::sync::Arc;
use core::ops::ControlFlow;

use ksync::{ArcBorrow, CpuPin};
use task::id_table::ArcTable;
use task::idlist::{IdLinks, Role};
use task::thread::Thread;

use super::group::Group;
use super::process::Process;
use super::user_thread::UserThreadExt;

pub use task::ids::{Id, borrow_thread, live, thread, threads};

static PROCESSES: ArcTable<Process> = ArcTable::new();
static GROUPS: ArcTable<Group> = ArcTable::new();

/// Bytes of the tables by id: for the books of the heap.
pub fn table_bytes() -> usize {
    task::ids::table_bytes() + PROCESSES.bytes() + GROUPS.bytes()
}

/// The process of that id, zombies included.
#[inline]
pub fn process(pin: &CpuPin, pid: u32) -> Option<&Process> {
    PROCESSES.get(pin, pid)
}

/// As [`process`], for callers that may take a count of it.
#[inline]
pub fn borrow_process(pin: &CpuPin, pid: u32) -> Option<ArcBorrow<'_, Process>> {
    PROCESSES.borrow(pin, pid)
}

/// The process group of that id.
#[inline]
pub fn group(pin: &CpuPin, pgid: u32) -> Option<&Group> {
    GROUPS.get(pin, pgid)
}

/// As [`group`], for callers that may take a count of it.
#[inline]
pub fn borrow_group(pin: &CpuPin, pgid: u32) -> Option<ArcBorrow<'_, Group>> {
    GROUPS.borrow(pin, pgid)
}

/// The thread of that id, held, unless its process has been waited for: the last one may then still be on its way off
/// its CPU, but for others the id leads nowhere.
pub fn find_thread(tid: u32) -> Option<Arc<Thread>> {
    task::ids::hold_thread(tid).filter(|t| !t.process().is_reaped())
}

/// The process of that id, held; zombies included.
pub fn find_process(pid: u32) -> Option<Arc<Process>> {
    PROCESSES.hold(pid)
}

/// The process group of that id, held.
pub fn find_group(pgid: u32) -> Option<Arc<Group>> {
    GROUPS.hold(pgid)
}

/// Gives `thread`, the caller and the only one of its process, the id of that process; false while the last leader has it.
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

pub(super) fn publish_process(process: &Arc<Process>) {
    let published = PROCESSES.publish(process.pid(), process.clone());
    debug_assert!(published, "a process has this id already");
}

pub(super) fn withdraw_process(process: &Process) {
    PROCESSES.withdraw(process.pid());
}

/// Makes a group known by its id; false if there is one of that id.
pub(super) fn publish_group(group: &Arc<Group>) -> bool {
    GROUPS.publish(group.pgid(), group.clone())
}

pub(super) fn withdraw_group(group: &Group) {
    GROUPS.withdraw(group.pgid());
}

/// Calls `f` with each process from id `from` on, in order, until it returns false.
///
/// No lock is held; `f` runs unpinned and may sleep.  Processes that come or go meanwhile may
/// or may not be seen.
pub fn each_process(from: u32, f: impl FnMut(&Arc<Process>) -> bool) {
    each_process_where(from, |_, _| ControlFlow::Continue(true), f);
}

/// As [`each_process`], for those only of whose id `wanted`, pinned, says so; it may end the walk, too.
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
        if PROCESSES.get(&pin, id).is_none() {
            continue;
        }
        let ControlFlow::Continue(wanted) = wanted(&pin, id) else {
            return;
        };
        drop(pin);
        if wanted
            && let Some(p) = find_process(id)
            && !f(&p)
        {
            return;
        }
    }
}

/// Threads of a process.
pub(super) use task::ids::InProcess;

/// Children of a process, living or zombies.
pub(super) enum Sibling {}

impl Role for Sibling {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        process(pin, id).map(|p| &p.siblings)
    }
}

/// Members of a process group's shard.
pub(super) enum InGroup {}

impl Role for InGroup {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        process(pin, id).map(|p| &p.group_links)
    }
}
