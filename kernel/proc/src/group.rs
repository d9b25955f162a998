//! Process groups and sessions.
//!
//! Membership is the reference: a process records the numbers of its group and session and
//! stands on one of the group's shards; no count is kept.  A group ends when its last member
//! leaves.  Shard 0 takes whoever joins by setpgid or setsid; a forked child joins the shard of
//! its CPU, so that forks on several CPUs within one group share no line.  A move takes the locks
//! of the two shards that it concerns, and no other.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ksync::{CpuPin, Mutex, MutexGuard, Padded, Spin, SpinGuard};
use task::idlist::IdList;

use super::ids::{self, Id, InGroup};
use super::lock;
use super::process::Process;

/// What a session's controlling terminal is to it.
pub trait Terminal: Any + Send + Sync {
    /// The device number.
    fn number(&self) -> u64;
    /// The number of the group in front, 0 for none.
    fn foreground(&self) -> u32;
    /// The leader of `session` has exited: the terminal hangs up if it still controls that session. May sleep.
    fn leader_exited(&self, session: &Session);
    /// Hangs up, as vhangup(2). May sleep.
    fn hang_up(&self);
}

/// A session: the groups that share a controlling terminal.
pub struct Session {
    id: Id,
    /// Set by the terminal driver (TIOCSCTTY, open), cleared when the leader exits.
    terminal: Spin<Option<Arc<dyn Terminal>>, lock::SessionLock>,
}

impl Session {
    /// The number.
    pub fn sid(&self) -> u32 {
        self.id.number()
    }

    /// What keeps the number from being given out again.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The controlling terminal.
    pub fn terminal(&self) -> Option<Arc<dyn Terminal>> {
        self.terminal.lock().clone()
    }

    /// Sets or clears the controlling terminal; returns the old one.
    pub fn set_terminal(&self, terminal: Option<Arc<dyn Terminal>>) -> Option<Arc<dyn Terminal>> {
        core::mem::replace(&mut *self.terminal.lock(), terminal)
    }
}

#[derive(Default)]
struct Members {
    list: IdList<InGroup>,
    /// Processes that have joined by a fork without the group's last signal.
    joins: u32,
    /// The group is over: nobody may join.  Set in all shards together.
    closed: bool,
}

#[derive(Default)]
struct Shard {
    members: Spin<Members, lock::GroupLock>,
    /// Length of the list; changed under the lock, read by anybody.
    len: AtomicU32,
}

/// Members given at once by [`Group::next_slice`].
const SLICE: usize = 32;

/// How far a walk over a group's members has come.
#[derive(Default)]
pub(super) struct Cursor {
    shard: usize,
    slice: [u32; SLICE],
    len: usize,
}

impl Cursor {
    /// The members that the last call gave.
    pub(super) fn members(&self) -> &[u32] {
        &self.slice[..self.len]
    }
}

/// The number of the last signal to any group.  Atomic.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// A process group.
pub struct Group {
    pub(super) id: Id,
    session: Arc<Session>,
    shards: Box<[Padded<Shard>]>,
    /// Some member has stopped, now or before.  Atomic; never taken back.
    stops: AtomicBool,
    /// The number of the last signal to it.  Atomic; written under `senders`.
    signals: AtomicU32,
    /// One signal at a time goes through the members.
    senders: Mutex<(), lock::GroupSignalLock>,
}

/// A signal on its way to a group's members.
pub(super) type GroupSignal<'a> = MutexGuard<'a, (), lock::GroupSignalLock>;

/// What came of an attempt to join a group.
pub(super) enum Joined {
    Yes,
    /// The group is over.
    Over,
    /// A signal to the group might miss the newcomer.
    Signal,
}

/// What came of an attempt to end a group.
enum Closing {
    Done,
    /// Another last member is at it, or has ended the group.
    AnotherDoes,
    /// A member is inside.
    Undone,
}

/// Most shards of a group; more CPUs share.
const MAX_SHARDS: usize = 9;

impl Group {
    /// A group of number `id`, without members yet, and known by that number; `None` if there is one.
    pub(super) fn create(id: Id, session: Arc<Session>) -> Option<Arc<Group>> {
        let shards = (1 + hal::cpu::count()).min(MAX_SHARDS);
        let group = Arc::new(Group {
            id,
            session,
            shards: (0..shards).map(|_| Padded(Shard::default())).collect(),
            stops: AtomicBool::new(false),
            signals: AtomicU32::new(0),
            senders: Mutex::new(()),
        });
        ids::publish_group(&group).then_some(group)
    }

    /// A new session of number `id` and its first group; `None` if there is a group of that number.
    pub(super) fn create_session(id: Id) -> Option<Arc<Group>> {
        let session = Arc::new(Session {
            id: id.clone(),
            terminal: Spin::new(None),
        });
        Group::create(id, session)
    }

    /// The number.
    pub fn pgid(&self) -> u32 {
        self.id.number()
    }

    /// What keeps the number from being given out again.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The session.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The shard for a child forked on this CPU.
    pub(super) fn fork_shard(&self, pin: &CpuPin) -> u32 {
        match self.shards.len() - 1 {
            0 => 0,
            n => 1 + (pin.cpu() % n) as u32,
        }
    }

    /// Makes `p`, a member of no group, one of this, unless `signal`, called under the shard's lock, says that it would
    /// miss one; it gives what [`Process::group_signal`] begins with.
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
        if signal != self.signals.load(Ordering::SeqCst) {
            members.joins = members.joins.wrapping_add(1);
        }
        s.len.fetch_add(1, Ordering::Relaxed);
        p.pgid.store(self.pgid(), Ordering::Relaxed);
        p.sid.store(self.session.sid(), Ordering::Relaxed);
        p.group_shard.store(shard, Ordering::Relaxed);
        p.group_signal.store(signal, Ordering::Relaxed);
        Joined::Yes
    }

    /// Begins to send it a signal: the signal's number, and what keeps other signals to it back until it is dropped.  May sleep.
    pub(super) fn begin_signal(&self) -> (u32, GroupSignal<'_>) {
        let turn = self.senders.lock();
        // Of its own among all groups: a process that setpgid moves meanwhile does not count as having got another one's. 0 is that
        // of a process that has got none.
        let number = NUMBERS
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1)
            .max(1);
        self.signals.store(number, Ordering::SeqCst);
        (number, turn)
    }

    /// Processes that have joined by a fork and did not have the group's last signal then.
    pub(super) fn joins(&self) -> u32 {
        let joins = |s: &Padded<Shard>| s.members.lock().joins;
        self.shards.iter().map(joins).fold(0, u32::wrapping_add)
    }

    /// Takes `p` off, and ends the group with its last member; false if setpgid has moved `p` since the caller looked.
    pub(super) fn leave(&self, pin: &CpuPin, p: &Process) -> bool {
        let shard = p.group_shard.load(Ordering::Relaxed);
        let s = &self.shards[shard as usize];
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

    /// Whether `p` is in the shard `index`, whose lock is held. Not if the group has ended: another one may bear its
    /// number by now.
    fn has(&self, members: &Members, p: &Process, index: u32) -> bool {
        !members.closed && p.pgid() == self.pgid() && p.group_shard.load(Ordering::Relaxed) == index
    }

    fn take_off(pin: &CpuPin, s: &Shard, members: &mut Members, p: &Process) -> u32 {
        members.list.remove(pin, p.pid());
        s.len.fetch_sub(1, Ordering::SeqCst) - 1
    }

    fn looks_empty(&self) -> bool {
        self.shards
            .iter()
            .all(|s| s.len.load(Ordering::SeqCst) == 0)
    }

    /// Ends the group unless somebody is in it.
    ///
    /// The shards are closed one by one, which is enough: one joins only while some member is inside, and a member found
    /// inside undoes it.  Closing begins with the first shard and undoing ends with it, so one at a time does either.  A last
    /// member that finds another at it leaves the rest to that one, which looks again after undoing.
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

    /// Calls `f` with each member's number until it returns false.  `f` runs under a shard's lock
    /// and must not take a lock of an outer rank.
    pub(super) fn each(&self, pin: &CpuPin, mut f: impl FnMut(u32) -> bool) {
        let mut go_on = true;
        for shard in &self.shards {
            if !go_on {
                return;
            }
            if shard.len.load(Ordering::Relaxed) == 0 {
                continue;
            }
            shard.members.lock().list.each(pin, |id| {
                go_on = f(id);
                go_on
            });
        }
    }

    /// Notes that a member is about to stop.
    pub(super) fn note_stop(&self) {
        if !self.stops.load(Ordering::SeqCst) {
            self.stops.store(true, Ordering::SeqCst);
        }
    }

    /// Whether a member may be stopped.  Most groups never see that, and need no search for somebody to continue it.
    pub(super) fn may_be_stopped(&self) -> bool {
        self.stops.load(Ordering::SeqCst)
    }

    /// Takes the next members after those that the last call with `cursor` gave; false when there are no more.  Costs
    /// what it gives, however large the group is.  A member that joins meanwhile is given too; one may come twice if
    /// all that the last call gave have left.
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

    /// Whether no member has a parent outside the group but inside the session: nobody is left
    /// who could continue its stopped members.  Costs O(members); asked when a process exits
    /// that was such a parent, and by terminal stops. `leaver` does not count: it is about to end.
    pub fn is_orphaned(&self, leaver: Option<&Process>) -> bool {
        let pin = ksync::pin();
        let mut orphaned = true;
        self.each(&pin, |id| {
            if let Some(p) = ids::process(&pin, id)
                && p.is_alive()
                && !leaver.is_some_and(|leaver| ptr::eq(p, leaver))
                && let Some(parent) = ids::process(&pin, p.ppid())
                && controls(parent, p)
                && parent.pid() != 1
            {
                orphaned = false;
            }
            orphaned
        });
        orphaned
    }
}

/// Whether `parent` does job control for the group of `child`: it is in the session, but not in the group.
pub(super) fn controls(parent: &Process, child: &Process) -> bool {
    parent.pgid() != child.pgid() && parent.sid() == child.sid()
}

/// Why a process was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupError {
    /// Not the caller, nor a child of it.
    NoProcess,
    /// It leads a session, or is in another, or the group is not in the caller's session.
    NotPermitted,
    /// A child that has called execve since.
    Executed,
}

/// What became of an attempt to move a process.
enum Moved {
    /// It is in the group.
    Done,
    /// The group has just ended, or somebody else moves the process or has reaped it: look again.
    Again,
    /// The caller's condition does not hold.
    Refused,
}

/// Moves `p` to `group` if `may`, asked under the locks of both groups, allows it for `p` and its session.
fn move_to(
    pin: &CpuPin,
    p: &Process,
    group: &Group,
    may: impl FnOnce(&Process, &Session) -> bool,
) -> Moved {
    // Without a group it is on its way from one to another, or reaped.
    let Some(old) = ids::group(pin, p.pgid()) else {
        return Moved::Again;
    };
    let index = p.group_shard.load(Ordering::Relaxed);
    let (from, to) = (&*old.shards[index as usize], &*group.shards[0]);
    if ptr::eq(old, group) {
        return Moved::Done;
    }
    let emptied = {
        let (mut left, mut members) = lock_both(from, to);
        // Whoever reaps it says so first, and finds it here or there.
        if members.closed || !old.has(&left, p, index) || p.is_reaped() {
            return Moved::Again;
        }
        if !may(p, &old.session) {
            return Moved::Refused;
        }
        let emptied = Group::take_off(pin, from, &mut left, p) == 0;
        members.list.push_back(pin, p.pid());
        to.len.fetch_add(1, Ordering::SeqCst);
        p.pgid.store(group.pgid(), Ordering::Relaxed);
        p.sid.store(group.session.sid(), Ordering::Relaxed);
        p.group_shard.store(0, Ordering::Relaxed);
        // It came after the last signal, so its children do not count as missed by it.
        let last = group.signals.load(Ordering::SeqCst);
        p.group_signal.store(last, Ordering::Relaxed);
        emptied
    };
    if old.may_be_stopped() {
        group.note_stop();
    }
    if emptied {
        old.close();
    }
    Moved::Done
}

type MembersGuard<'a> = SpinGuard<'a, Members, lock::GroupLock>;

/// Locks two shards of different groups, in order of address.
fn lock_both<'a>(a: &'a Shard, b: &'a Shard) -> (MembersGuard<'a>, MembersGuard<'a>) {
    if ptr::from_ref(a) < ptr::from_ref(b) {
        let first = a.members.lock();
        (first, b.members.lock_nested())
    } else {
        let first = b.members.lock();
        (a.members.lock_nested(), first)
    }
}

/// setpgid(2). A zombie can still be moved: a shell sets its child's group whether or not the child has ended.
pub fn setpgid(pid: u32, pgid: u32) -> Result<(), GroupError> {
    use super::process::flag;
    let me = super::current_process();
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
                    // A shell and its child both do this: the other was first.
                    None => continue,
                }
            }
            _ => return Err(GroupError::NotPermitted),
        };
        let pin = ksync::pin();
        let moved = move_to(&pin, &p, &target, |p, session| {
            !leads(p) && session.sid() == target.session.sid()
        });
        if !matches!(moved, Moved::Done) && made {
            // Nobody else ends a group that nobody was in.
            target.close();
        }
        drop(pin);
        match moved {
            Moved::Done => return Ok(()),
            Moved::Refused => return Err(GroupError::NotPermitted),
            Moved::Again => {}
        }
        // What is in the way, a group's end or another move, is soon over.
        task::sched::yield_now();
    }
}

/// setsid(2): the new session's number.
pub fn setsid() -> Result<u32, GroupError> {
    let me = super::current_process();
    let group = Group::create_session(me.id.clone()).ok_or(GroupError::NotPermitted)?;
    // Nobody outside the session may join the group, so it lasts until its leader is in.
    while !matches!(
        move_to(&ksync::pin(), &me, &group, |_, _| true),
        Moved::Done
    ) {
        task::sched::yield_now();
    }
    Ok(me.pid())
}
