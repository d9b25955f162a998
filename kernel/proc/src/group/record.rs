//! What a session and a process group are.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use ksync::atomic::{AtomicBool, AtomicU32, Ordering};

use ksync::{CpuPin, Mutex, MutexGuard, Padded, Spin};
use task::idlist::IdList;
use task::ids::Id;

use crate::lock;

/// A controlling terminal, as its session sees it.
pub trait Terminal: Any + Send + Sync {
    /// The device number.
    fn number(&self) -> u64;
    /// The pgid of the foreground group, 0 for none.
    fn foreground(&self) -> u32;
    /// The leader of `session` has exited: the terminal hangs up if it still controls that session. May sleep.
    fn leader_exited(&self, session: &Session);
    /// Hangs the terminal up, as vhangup(2). May sleep.
    fn hang_up(&self);
}

/// A session: process groups that share a controlling terminal.
pub struct Session {
    id: Id,
    /// Set when the terminal becomes the controlling one (TIOCSCTTY, open); cleared when it hangs up or is given up
    /// (TIOCNOTTY).
    terminal: Spin<Option<Arc<dyn Terminal>>, lock::SessionLock>,
    /// The foreground group of a terminal that has hung up, if it is to be told when the leader ends.
    left_group: Spin<Option<Id>, lock::SessionLock>,
}

impl Session {
    /// A session without a terminal, with sid `id`.
    pub(super) fn new(id: Id) -> Arc<Session> {
        Arc::new(Session {
            id,
            terminal: Spin::new(None),
            left_group: Spin::new(None),
        })
    }

    /// The session id.
    pub fn sid(&self) -> u32 {
        self.id.number()
    }

    /// A reference to the id: as long as it is held, the id is not given out again.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The controlling terminal.
    pub fn terminal(&self) -> Option<Arc<dyn Terminal>> {
        self.terminal.lock().clone()
    }

    /// Sets the group that is told when the leader ends: the foreground group of the terminal that has hung up.
    pub fn set_left_group(&self, group: Option<Id>) {
        let old = core::mem::replace(&mut *self.left_group.lock(), group);
        drop(old);
    }

    /// Takes that group's id.
    pub(crate) fn take_left_group(&self) -> Option<Id> {
        self.left_group.lock().take()
    }

    /// Sets or clears the controlling terminal; returns the old one.
    pub fn set_terminal(&self, terminal: Option<Arc<dyn Terminal>>) -> Option<Arc<dyn Terminal>> {
        core::mem::replace(&mut *self.terminal.lock(), terminal)
    }
}

/// The list of the members in a shard of a process group.
pub(crate) enum InGroup {}

#[derive(Default)]
pub(super) struct Members {
    pub(super) list: IdList<InGroup>,
    /// How many processes have joined by a fork without having got the group's last signal.
    pub(super) joins: u32,
    /// The group has ended: no process may join. Set in one shard after the other.
    pub(super) closed: bool,
}

#[derive(Default)]
pub(super) struct Shard {
    pub(super) members: Spin<Members, lock::GroupLock>,
    /// The length of the list; changed under the lock, read without it.
    pub(super) len: AtomicU32,
}

hal::machine_static! {
    /// The serial number of the last signal to any group. Atomic.
    static NUMBERS: AtomicU32 = AtomicU32::new(0);
}

/// A process group.
pub struct Group {
    pub(crate) id: Id,
    pub(super) session: Arc<Session>,
    pub(super) shards: Box<[Padded<Shard>]>,
    /// A member has been stopped, now or before. Atomic; never cleared.
    stops: AtomicBool,
    /// The serial number of the last signal to this group. Atomic; written under `senders`.
    pub(super) signals: AtomicU32,
    /// Held while a signal is sent to the members: one signal at a time.
    senders: Mutex<(), lock::GroupSignalLock>,
}

/// Keeps other signals to the group from being sent until it is dropped.
pub(crate) type GroupSignal<'a> = MutexGuard<'a, (), lock::GroupSignalLock>;

/// What a process names in place of its shard while it is in no group, or is being moved.
pub(crate) const NO_SHARD: u32 = u32::MAX;

/// Most shards of a group. With more CPUs than that, several CPUs share a shard.
const MAX_SHARDS: usize = 9;

impl Group {
    /// A group without members, with pgid `id`, in no table.
    pub(super) fn new(id: Id, session: Arc<Session>) -> Arc<Group> {
        let shards = (1 + hal::cpu::count()).min(MAX_SHARDS);
        Arc::new(Group {
            id,
            session,
            shards: (0..shards).map(|_| Padded(Shard::default())).collect(),
            stops: AtomicBool::new(false),
            signals: AtomicU32::new(0),
            senders: Mutex::new(()),
        })
    }

    /// The process group id.
    pub fn pgid(&self) -> u32 {
        self.id.number()
    }

    /// A reference to the id: as long as it is held, the id is not given out again.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The session.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The shard for a child that is forked on this CPU.
    pub(crate) fn fork_shard(&self, pin: &CpuPin) -> u32 {
        match self.shards.len() - 1 {
            0 => 0,
            n => 1 + (pin.cpu() % n) as u32,
        }
    }

    /// Begins a signal to the group. Returns the signal's serial number, and a guard that keeps other signals to the
    /// group from beginning until it is dropped. May sleep.
    pub(crate) fn begin_signal(&self) -> (u32, GroupSignal<'_>) {
        let turn = self.senders.lock();
        // Serial numbers are unique among all groups: so a process that setpgid moves meanwhile is not taken for one
        // that has got the signal. 0 stands for no signal.
        let number = NUMBERS
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1)
            .max(1);
        self.signals.store(number, Ordering::SeqCst);
        (number, turn)
    }

    /// Keeps signals to the group from beginning, and other members from leaving it by their end, until it is dropped. May
    /// sleep.
    pub(crate) fn turn(&self) -> GroupSignal<'_> {
        self.senders.lock()
    }

    /// How many processes have joined so far by a fork without having got the group's last signal.
    pub(crate) fn joins(&self) -> u32 {
        let joins = |s: &Padded<Shard>| s.members.lock().joins;
        self.shards.iter().map(joins).fold(0, u32::wrapping_add)
    }

    pub(super) fn looks_empty(&self) -> bool {
        self.shards
            .iter()
            .all(|s| s.len.load(Ordering::SeqCst) == 0)
    }

    /// Notes that a member is about to stop.
    pub(crate) fn note_stop(&self) {
        if !self.stops.load(Ordering::SeqCst) {
            self.stops.store(true, Ordering::SeqCst);
        }
    }

    /// Whether a member may be stopped. In most groups no member ever stops, so the search for a process that could
    /// continue it is saved.
    pub(crate) fn may_be_stopped(&self) -> bool {
        self.stops.load(Ordering::SeqCst)
    }
}
