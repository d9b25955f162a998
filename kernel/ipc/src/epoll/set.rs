//! The entries of an epoll, and its ready list.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use ksync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use cred::{MemoryCharge, Payer};
use ksync::{IrqSpin, Mutex};
use task::current::current;
use task::idlist::IdList;
use task::wait::WaitQueue;
use vfs::error::{FsError, Result};
use vfs::file::File;
use vfs::watch::Watcher;

use super::entry::Entry;
use super::nesting;
use super::numbers::{self, OnReady};

ksync::lock_class!(pub EntriesLock, "epoll entries", rank = 53);
ksync::lock_class!(pub ReadyLock, "epoll ready", rank = 155);

/// By what an entry is found: the address of its open file, and the descriptor.
pub(super) type Key = (usize, i32);

/// What the ready lock guards, beside fields of entries.
pub(super) struct Ready {
    pub list: IdList<OnReady>,
    /// Whether there is a scan.
    pub scanned: bool,
    /// The number of the last scan.
    pub scans: u64,
}

/// An epoll: its entries. It ends with its open file, but entries that are being taken out keep its memory.
pub struct Set {
    /// No other epoll has it. Constant.
    pub(super) id: u64,
    /// The user that made it, and is charged for its entries. Constant.
    pub(super) payer: Payer,
    pub(super) entries: Mutex<BTreeMap<Key, Arc<Entry>>, EntriesLock>,
    pub(super) ready: IrqSpin<Ready, ReadyLock>,
    /// Threads in epoll_wait(2).
    pub(super) waiters: WaitQueue,
    /// Callers of poll(2) and the like on the epoll, and entries of epolls that it is in.
    pub(super) pollers: WaitQueue,
    /// Whether anything was ever registered with `pollers`; set before the ready lock is taken for the look that follows.
    pub(super) polled: AtomicBool,
    /// Threads that wait for the end of a scan.
    pub(super) turn: WaitQueue,
    _memory: MemoryCharge,
}

hal::machine_static! {
    /// The number of epolls that were made. Atomic.
    static MADE: AtomicU64 = AtomicU64::new(0);
}

impl Set {
    /// An epoll without entries, of the caller's user.
    pub(super) fn new() -> Arc<Set> {
        let payer = current().payer();
        Arc::new(Set {
            id: MADE.fetch_add(1, Relaxed),
            payer,
            entries: Mutex::new(BTreeMap::new()),
            ready: IrqSpin::new(Ready {
                list: IdList::new(),
                scanned: false,
                scans: 0,
            }),
            waiters: WaitQueue::new(),
            pollers: WaitQueue::new(),
            polled: AtomicBool::new(false),
            turn: WaitQueue::new(),
            _memory: MemoryCharge::new(payer, size_of::<Set>()),
        })
    }

    /// Puts an entry on the ready list, unless it is dead or off, and wakes a thread that waits for it. Returns whether a thread was woken.
    /// Callable with preemption off, in interrupts, and under spin locks of ranks below that of wait queues.
    pub(super) fn put(&self, entry: &Entry) -> bool {
        let pin = ksync::pin();
        let mut ready = self.ready.lock();
        if entry.is_dead() || entry.is_off() {
            return false;
        }
        if !entry.links.linked() {
            ready.list.append(&pin, entry.number.get(), &entry.links);
        }
        drop(ready);
        let woken = self.waiters.wake_one();
        let polled = self.polled.load(Relaxed) && self.pollers.wake_all() > 0;
        woken || polled
    }

    /// The entry of a file and a descriptor.
    pub(super) fn find(&self, key: Key) -> Option<Arc<Entry>> {
        self.entries.lock().get(&key).cloned()
    }

    /// All entries, in the order of their files.
    ///
    /// # Errors
    /// `NoMemory`.
    pub(super) fn all(&self) -> Result<Vec<Arc<Entry>>> {
        let mut all = Vec::new();
        let entries = self.entries.lock();
        all.try_reserve_exact(entries.len())
            .map_err(|_| FsError::NoMemory)?;
        all.extend(entries.values().cloned());
        Ok(all)
    }

    /// Takes an entry out of the set; `None` if another thread was faster. It is then dead.
    pub(super) fn take_out(&self, key: Key) -> Option<Arc<Entry>> {
        let entry = self.entries.lock().remove(&key)?;
        self.end(&entry);
        Some(entry)
    }

    /// Makes an entry dead that is not in the set, or not any more.
    pub(super) fn end(&self, entry: &Entry) {
        {
            let pin = ksync::pin();
            let mut ready = self.ready.lock();
            entry.dead.store(true, Relaxed);
            ready.list.remove(&pin, entry.number.get());
            entry.round.begin();
        }
        numbers::withdraw(entry);
        entry.uncount();
        if let Some(inner) = entry.inner {
            nesting::unlink(self.id, inner);
        }
    }

    /// The file of an entry has no reference any more.
    pub(super) fn closed(&self, entry: &Entry) {
        self.take_out((entry.file.addr(), entry.fd));
    }

    /// Takes all entries out, because the epoll has no reference any more.
    pub(super) fn close(&self) {
        loop {
            let Some((_, entry)) = self.entries.lock().pop_first() else {
                return;
            };
            self.end(&entry);
            if let Some(file) = entry.file.upgrade() {
                unwatch(&file, &entry);
            }
        }
    }
}

/// Takes an entry off the list of its file.
pub(super) fn unwatch(file: &File, entry: &Arc<Entry>) {
    let watcher: Arc<dyn Watcher> = entry.clone();
    file.watchers.remove(&watcher);
}
