//! Process groups and sessions.
//!
//! A process records the ids of its group and session, and is on the list of one of the group's shards. Groups have no
//! count of their members: a group ends when its last member leaves. A process that joins by setpgid or setsid goes to
//! shard 0; a forked child joins the shard of its CPU, so forks on several CPUs within one group share no cache line. A
//! move from one group to another takes the locks of the two shards that it concerns, and no other.

pub(super) mod record;

use alloc::sync::Arc;
use core::ptr;
use ksync::atomic::Ordering;

use ksync::{CpuPin, SpinGuard};

use self::record::{Members, NO_SHARD, Shard};
use super::ids::{self, Id};
use super::lock;
use super::process::{Process, flag};
use super::reaper;
use super::user_thread::current_process;

pub use self::record::{Group, Session, Terminal};

/// Most members that one call of [`Group::next_slice`] returns.
const SLICE: usize = 32;

/// How far a walk over a group's members has come.
#[derive(Default)]
pub(super) struct Cursor {
    shard: usize,
    slice: [u32; SLICE],
    len: usize,
}

impl Cursor {
    /// The pids of the members that the last call of `next_slice` found.
    pub(super) fn members(&self) -> &[u32] {
        &self.slice[..self.len]
    }
}

/// The result of an attempt to join a group.
pub(super) enum Joined {
    Yes,
    /// The group has ended.
    Over,
    /// The new member might miss a signal to the group.
    Signal,
}

/// The result of an attempt to end a group.
enum Closing {
    Done,
    /// The thread of another last member is ending the group, or has ended it.
    AnotherDoes,
    /// The group has a member; all its shards are open again.
    Undone,
}

impl Group {
    /// A group with pgid `id` and no members, in the table of groups; `None` if that id has a group.
    pub(super) fn create(id: Id, session: Arc<Session>) -> Option<Arc<Group>> {
        let group = Group::new(id, session);
        ids::publish_group(&group).then_some(group)
    }

    /// A new session with sid `id`, and its first group; `None` if that id has a group.
    pub(super) fn create_session(id: Id) -> Option<Arc<Group>> {
        let session = Session::new(id.clone());
        Group::create(id, session)
    }

    /// Makes `p`, which is in no group, a member. `signal` is called under the shard's lock. It returns the serial
    /// number that becomes `p`'s `group_signal`, or `None` if `p` would miss a signal; then `p` does not join.
    pub(super) fn join(
        &self,
        pin: &CpuPin,
        p: &Process,
        shard: u32,
        signal: impl FnOnce() -> Option<u32>,
    ) -> Joined {
        let s = &self.shards[shard as usize];
        let mut members = s.members.lock();
        if members.closed {
            return Joined::Over;
        }
        let Some(signal) = signal() else {
            return Joined::Signal;
        };
        members.list.push_back(pin, p.pid());
        // It has not got the group's last signal: a sender walks again, see `signal_group`.
        if signal != self.signals.load(Ordering::SeqCst) {
            members.joins = members.joins.wrapping_add(1);
        }
        s.len.fetch_add(1, Ordering::Relaxed);
        p.pgid.store(self.pgid(), Ordering::Relaxed);
        p.sid.store(self.session.sid(), Ordering::Relaxed);
        p.group_shard.store(shard, Ordering::Release);
        p.group_signal.store(signal, Ordering::Relaxed);
        Joined::Yes
    }

    /// Takes `p` out of the group, and ends the group if that was the last member. False if `p` is not in the group any
    /// more: setpgid has moved it or is moving it. Takes the lock of the shard; then that of each, if the group may end.
    pub(super) fn leave(&self, pin: &CpuPin, p: &Process) -> bool {
        let shard = p.group_shard.load(Ordering::Acquire);
        let Some(s) = self.shards.get(shard as usize) else {
            return false;
        };
        let mut members = s.members.lock();
        if !self.has(&members, p, shard) {
            return false;
        }
        let left = Self::take_off(pin, s, &mut members, p);
        drop(members);
        if left == 0 {
            self.close();
        }
        true
    }

    /// Whether `p` is in the shard `index`, whose lock the caller holds, and which `p` has named before. False if the group
    /// has ended: another group may have its id by now.
    ///
    /// A move holds the locks of two shards, which need not be this one. So it writes [`NO_SHARD`], the new group, and the new shard, in
    /// this order: `p` never names a group and a shard that it has not been in together.
    fn has(&self, members: &Members, p: &Process, index: u32) -> bool {
        !members.closed && p.pgid() == self.pgid() && p.group_shard.load(Ordering::Acquire) == index
    }

    /// Takes `p` off the list of the shard `s`, whose lock the caller holds; returns how many members that shard has left.
    fn take_off(pin: &CpuPin, s: &Shard, members: &mut Members, p: &Process) -> u32 {
        members.list.remove(pin, p.pid());
        s.len.fetch_sub(1, Ordering::SeqCst) - 1
    }

    /// Ends the group unless it has a member.
    ///
    /// The shards are closed one by one. That is enough: a process can join only while another member is in the group,
    /// and a member that is found in a later shard makes the closing thread open the earlier ones again. Closing begins
    /// with the first shard and reopening ends with it, so one thread at a time does either. A last member that finds
    /// the first shard closed leaves the rest to the thread that closed it, which looks again after reopening.
    fn close(&self) {
        while self.looks_empty() {
            match self.close_shards() {
                Closing::Done => {
                    ids::withdraw_group(self);
                    return;
                }
                Closing::AnotherDoes => return,
                Closing::Undone => {}
            }
        }
    }

    /// Closes the shards in order, each under its lock; if one has a member, opens those before it again.
    fn close_shards(&self) -> Closing {
        for (i, shard) in self.shards.iter().enumerate() {
            let mut members = shard.members.lock();
            if members.closed {
                return Closing::AnotherDoes;
            }
            if !members.list.is_empty() {
                drop(members);
                for undo in self.shards[..i].iter().rev() {
                    undo.members.lock().closed = false;
                }
                return Closing::Undone;
            }
            members.closed = true;
        }
        Closing::Done
    }

    /// Puts the members that follow those of the last call into `cursor`; false when there are no more. A call costs
    /// O(members that it returns), however large the group is. A member that joins meanwhile is returned too, unless it joins
    /// a shard that the walk has passed; a member may be returned twice if all members of the last call have left. Takes the
    /// lock of one shard at a time.
    pub(super) fn next_slice(&self, pin: &CpuPin, cursor: &mut Cursor) -> bool {
        while let Some(shard) = self.shards.get(cursor.shard) {
            let members = shard.members.lock();
            let list = &members.list;
            let stays = |&&id: &&u32| {
                ids::process(pin, id).is_some_and(|p| {
                    p.group_links.linked()
                        && p.pgid() == self.pgid()
                        && p.group_shard.load(Ordering::Relaxed) as usize == cursor.shard
                })
            };
            let mut next = match cursor.members().iter().rev().find(stays) {
                Some(&last) => list.after(pin, last),
                None => list.first(),
            };
            cursor.len = 0;
            while let (Some(id), true) = (next, cursor.len < SLICE) {
                cursor.slice[cursor.len] = id;
                cursor.len += 1;
                next = list.after(pin, id);
            }
            if cursor.len > 0 {
                return true;
            }
            cursor.shard += 1;
        }
        false
    }

    /// Whether the group is orphaned: no member has a parent that is outside the group but in the session, and could
    /// continue the group's stopped members. Init does not count as such a parent, nor does a process that is about to end
    /// (`flag::LEAVES_GROUP`) as a member. Costs O(members); called when such a parent or a member exits, before a stop
    /// signal but SIGSTOP stops a member, and by terminals. A look at one member after the other: processes may be moved, or get
    /// another parent, meanwhile.
    pub fn is_orphaned(&self) -> bool {
        let mut cursor = Cursor::default();
        loop {
            // Preemption is possible between two slices.
            let pin = ksync::pin();
            if !self.next_slice(&pin, &mut cursor) {
                return true;
            }
            let controlled = |&pid: &u32| {
                ids::process(&pin, pid).is_some_and(|p| {
                    // The pid may belong to another process by now.
                    p.pgid() == self.pgid()
                        && p.flags.load(Ordering::SeqCst) & flag::LEAVES_GROUP == 0
                        && reaper::parent(&pin, p)
                            .is_some_and(|parent| controls(parent, p) && parent.pid() != 1)
                })
            };
            if cursor.members().iter().any(controlled) {
                return false;
            }
        }
    }
}

/// The group of `p`, the caller's process, unless it is orphaned. Yields the CPU if `p` is moved meanwhile: the group that it has left,
/// which it may have left empty, does not count. Costs as much as [`Group::is_orphaned`].
pub fn unorphaned(p: &Process) -> Option<Arc<Group>> {
    loop {
        let group = p.group()?;
        if !group.is_orphaned() {
            return Some(group);
        }
        if p.pgid() == group.pgid() {
            return None;
        }
        task::sched::yield_now();
    }
}

/// Whether `parent` does job control for the group of `child`: it is in the same session, but in another group.
pub(super) fn controls(parent: &Process, child: &Process) -> bool {
    parent.pgid() != child.pgid() && parent.sid() == child.sid()
}

/// Why a process was not moved to another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupError {
    /// The process is neither the caller nor a child of the caller, or has been reaped.
    NoProcess,
    /// The process leads a session or is in another session than the caller, or the group is not in the caller's
    /// session or does not exist; for setsid, a group with the caller's pid exists.
    NotPermitted,
    /// The process is a child that has called execve since it was forked.
    Executed,
}

/// The result of an attempt to move a process to another group.
enum Moved {
    /// The process is in the group.
    Done,
    /// The group has just ended, or another thread moves the process or has reaped it: the caller looks again.
    Again,
    /// The caller's condition does not hold.
    Refused,
}

/// Moves `p` to `group`, and ends the group that it leaves empty, if `may`, called with `p` and its session under the locks of
/// both shards, returns true. If `p` is in `group` already, `may` is not called.
fn move_to(
    pin: &CpuPin,
    p: &Process,
    group: &Group,
    may: impl FnOnce(&Process, &Session) -> bool,
) -> Moved {
    // `p` is in no group: another thread is moving it or has reaped it.
    let Some(old) = ids::group(pin, p.pgid()) else {
        return Moved::Again;
    };
    if ptr::eq(old, group) {
        return Moved::Done;
    }
    let index = p.group_shard.load(Ordering::Acquire);
    let Some(from) = old.shards.get(index as usize) else {
        return Moved::Again;
    };
    let to = &*group.shards[0];
    let emptied = {
        let (mut left, mut members) = lock_both(from, to);
        // The thread that reaps `p` marks it reaped before it takes it out of its group: so it finds `p` either in the
        // old group or in the new one.
        if members.closed || !old.has(&left, p, index) || p.is_reaped() {
            return Moved::Again;
        }
        if !may(p, &old.session) {
            return Moved::Refused;
        }
        let emptied = Group::take_off(pin, from, &mut left, p) == 0;
        members.list.push_back(pin, p.pid());
        to.len.fetch_add(1, Ordering::SeqCst);
        p.group_shard.store(NO_SHARD, Ordering::Relaxed);
        // Before the look at the old group below, both in the order of all threads: a thread that notes a stop there reads this after it.
        p.pgid.store(group.pgid(), Ordering::SeqCst);
        p.sid.store(group.session.sid(), Ordering::Relaxed);
        p.group_shard.store(0, Ordering::Release);
        // `p` joins after the group's last signal, so its children have not missed that signal.
        let last = group.signals.load(Ordering::SeqCst);
        p.group_signal.store(last, Ordering::Relaxed);
        emptied
    };
    // `p` may be stopped.
    if old.may_be_stopped() {
        group.note_stop();
    }
    if emptied {
        old.close();
    }
    Moved::Done
}

type MembersGuard<'a> = SpinGuard<'a, Members, lock::GroupLock>;

/// Locks two shards of different groups, in the order of their addresses.
fn lock_both<'a>(a: &'a Shard, b: &'a Shard) -> (MembersGuard<'a>, MembersGuard<'a>) {
    if ptr::from_ref(a) < ptr::from_ref(b) {
        let first = a.members.lock();
        (first, b.members.lock_nested())
    } else {
        let first = b.members.lock();
        (a.members.lock_nested(), first)
    }
}

/// setpgid(2); neither `pid` nor `pgid` is 0. A zombie can still be moved: a shell sets its child's group whether or not the
/// child has ended. Yields the CPU while another thread moves the process or ends the group.
///
/// # Errors
/// [`GroupError`]; nothing has changed.
pub fn setpgid(pid: u32, pgid: u32) -> Result<(), GroupError> {
    let me = current_process();
    let p = ids::find_process(pid).ok_or(GroupError::NoProcess)?;
    if p.pid() != me.pid() {
        if p.ppid() != me.pid() {
            return Err(GroupError::NoProcess);
        }
        if p.sid() != me.sid() {
            return Err(GroupError::NotPermitted);
        }
        if p.has(flag::EXECED) {
            return Err(GroupError::Executed);
        }
    }
    let leads = |p: &Process| p.sid() == p.pid();
    if leads(&p) {
        return Err(GroupError::NotPermitted);
    }
    loop {
        if p.is_reaped() {
            return Err(GroupError::NoProcess);
        }
        let (target, made) = match ids::find_group(pgid) {
            Some(group) if group.session.sid() == me.sid() => (group, false),
            None if pgid == p.pid() => {
                let session = p.session().ok_or(GroupError::NoProcess)?;
                match Group::create(p.id.clone(), session) {
                    Some(group) => (group, true),
                    // A shell and its child both call setpgid for the child: the other one created the group first.
                    None => {
                        ksync::relax();
                        continue;
                    }
                }
            }
            _ => return Err(GroupError::NotPermitted),
        };
        let pin = ksync::pin();
        let moved = move_to(&pin, &p, &target, |p, session| {
            !leads(p) && session.sid() == target.session.sid()
        });
        if !matches!(moved, Moved::Done) && made {
            // No other thread ends a group that has never had a member.
            target.close();
        }
        drop(pin);
        match moved {
            Moved::Done => return Ok(()),
            Moved::Refused => return Err(GroupError::NotPermitted),
            Moved::Again => {}
        }
        // The obstacle is the end of a group or a move by another thread, and does not last.
        task::sched::yield_now();
        ksync::relax();
    }
}

/// setsid(2): makes the caller's process the leader of a new session without a terminal, and of its first group; returns the
/// session id. Yields the CPU while another thread moves the process.
///
/// # Errors
/// Not permitted: a group with the caller's pid exists already.
pub fn setsid() -> Result<u32, GroupError> {
    let me = current_process();
    let group = Group::create_session(me.id.clone()).ok_or(GroupError::NotPermitted)?;
    // No process outside the session may join the group, so it does not end before its leader is in it.
    while !matches!(
        move_to(&ksync::pin(), &me, &group, |_, _| true),
        Moved::Done
    ) {
        task::sched::yield_now();
        ksync::relax();
    }
    Ok(me.pid())
}
