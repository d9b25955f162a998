//! One entry of an epoll.

use alloc::sync::Arc;
use ksync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use cred::{Charge, MemoryCharge};
use ksync::{EpochWeak, Registration, Round};
use task::idlist::IdLinks;
use task::wait::Waiter;
use vfs::file::{File, FileRef};
use vfs::watch::Watcher;

use super::event::{Event, flag};
use super::numbers::Number;
use super::set::Set;

/// Bytes charged for an entry: its memory, its place in the set and in the list of its file.
const BYTES: usize = size_of::<Entry>() + 96;

/// An entry.
pub(super) struct Entry {
    /// Constant.
    pub number: Number,
    /// The epoll that it belongs to. Constant.
    pub set: Arc<Set>,
    /// The descriptor by which it was added. Constant.
    pub fd: i32,
    /// The open file. Constant.
    pub file: EpochWeak<File>,
    /// The epoll that the open file is, if it is one. Constant.
    pub inner: Option<u64>,
    /// Whether it was added with EPOLLEXCLUSIVE. Constant.
    exclusive: bool,
    /// The number of its present look. Begun under the ready lock, notified without it.
    pub round: Round,
    /// On the ready list, and guarded by its lock.
    pub links: IdLinks,
    /// What is wanted, as of the last change. Guarded by the ready lock.
    events: AtomicU32,
    /// The program's word. Guarded by the ready lock.
    data: AtomicU64,
    /// The scan that has met the entry last. Guarded by the ready lock.
    pub met: AtomicU64,
    /// Whether it is out of the set. Guarded by the ready lock.
    pub dead: AtomicBool,
    _memory: MemoryCharge,
}

impl Entry {
    /// An entry that is not in the set yet. The user of `set` is charged for its memory.
    pub fn new(
        set: &Arc<Set>,
        number: Number,
        file: &FileRef,
        fd: i32,
        event: Event,
    ) -> Arc<Entry> {
        let (round, event) = (number.rounds(), event.complete());
        Arc::new(Entry {
            number,
            set: set.clone(),
            fd,
            file: FileRef::downgrade(file),
            inner: super::file::set_of(file).map(|inner| inner.id),
            exclusive: event.events & flag::EXCLUSIVE != 0,
            round,
            links: IdLinks::new(),
            events: AtomicU32::new(event.events),
            data: AtomicU64::new(event.data),
            met: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            _memory: MemoryCharge::new(set.payer, BYTES),
        })
    }

    pub fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// What is wanted. The caller holds the ready lock.
    pub fn event(&self) -> Event {
        Event {
            events: self.events.load(Relaxed),
            data: self.data.load(Relaxed),
        }
    }

    /// What is wanted. Takes the ready lock.
    pub fn event_now(&self) -> Event {
        let _ready = self.set.ready.lock();
        self.event()
    }

    /// Whether EPOLLONESHOT has turned it off. The caller holds the ready lock.
    pub fn is_off(&self) -> bool {
        self.event().wanted().is_empty()
    }

    /// Changes what is wanted. The caller holds the ready lock.
    pub fn set_event(&self, event: Event) {
        self.events.store(event.events, Relaxed);
        self.data.store(event.data, Relaxed);
    }

    /// Turns it off until the next change. The caller holds the ready lock.
    pub fn turn_off(&self) {
        let flags = self.events.load(Relaxed) & flag::ALL;
        self.events.store(flags, Relaxed);
    }

    /// The entry as a listener in one of its rounds, which wants what `event` says.
    pub fn waiter(&self, round: u64, event: Event) -> Waiter {
        let me = Registration::listener(self.number.get(), round, self.exclusive);
        Waiter::listener(me, event.wanted().0)
    }

    /// A queue of its file was woken: puts it on the ready list, and wakes a thread that waits for that. Returns whether a thread was woken.
    pub fn heard(&self) -> bool {
        self.set.put(self)
    }

    /// Ends the charge for one entry of its user.
    pub fn uncount(&self) {
        self.set.payer.give_back(Charge::Watches, 1);
    }
}

impl Watcher for Entry {
    fn closed(&self) {
        self.set.closed(self);
    }
}
