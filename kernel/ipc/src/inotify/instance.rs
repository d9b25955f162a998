//! An instance: its marks, and its queue.

use alloc::collections::{BTreeMap, LinkedList};
use alloc::sync::Arc;
use core::ops::Bound::{Excluded, Unbounded};
use core::sync::atomic::Ordering::Relaxed;

use cred::{Charge, MemoryCharge, Payer};
use ksync::Spin;
use task::current::current;
use task::wait::WaitQueue;
use vfs::error::{FsError, Result};
use vfs::inode::Inode;
use vfs::notify::table;

use super::control::Request;
use super::mark::Mark;
use super::queue::Queue;
use super::{MAX_EVENTS, MAX_INSTANCES, MAX_WATCHES};

ksync::lock_class!(pub MarksLock, "inotify marks", rank = 87);
ksync::lock_class!(pub QueueLock, "inotify queue", rank = 89);

/// What the lock of marks guards.
struct Marks {
    by_wd: BTreeMap<i32, Arc<Mark>>,
    /// The watch descriptor, by the address of the inode.
    by_inode: BTreeMap<usize, i32>,
    /// The watch descriptor that was given out last.
    last: i32,
}

impl Marks {
    /// A watch descriptor that is not in use, the next in turn: a number comes again as late as possible.
    fn next_wd(&mut self) -> i32 {
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            if !self.by_wd.contains_key(&self.last) {
                return self.last;
            }
        }
    }
}

/// An instance. It ends with its open file, but marks that are being told something keep its memory.
pub(super) struct Instance {
    /// The user that made it, and is charged for its marks and events. Constant.
    pub payer: Payer,
    marks: Spin<Marks, MarksLock>,
    pub queue: Spin<Queue, QueueLock>,
    /// Those that wait for an event.
    pub readers: WaitQueue,
    _memory: MemoryCharge,
}

/// Charges one of a kind, of which the user may have `most`.
///
/// # Errors
/// `full` beyond that; nothing is charged.
fn count(payer: Payer, kind: Charge, most: u64, full: FsError) -> Result<()> {
    payer.charge_within(kind, 1, most).then_some(()).ok_or(full)
}

impl Instance {
    /// An instance without marks, of the caller's user.
    ///
    /// # Errors
    /// `NoMemory`; `TooManyFiles` if the user has too many.
    pub fn new() -> Result<Arc<Instance>> {
        mem::admit().map_err(|_| FsError::NoMemory)?;
        let payer = current().payer();
        let queue = Queue::new(MAX_EVENTS.load(Relaxed), payer)?;
        let most = MAX_INSTANCES.load(Relaxed);
        count(payer, Charge::Notifiers, most, FsError::TooManyFiles)?;
        Ok(Arc::new(Instance {
            payer,
            marks: Spin::new(Marks {
                by_wd: BTreeMap::new(),
                by_inode: BTreeMap::new(),
                last: 0,
            }),
            queue: Spin::new(queue),
            readers: WaitQueue::new(),
            _memory: MemoryCharge::new(payer, size_of::<Instance>()),
        }))
    }

    /// Adds a mark of `inode`, or changes the one that there is. Returns its watch descriptor.
    ///
    /// # Errors
    /// `NoMemory`; `Exists` if there is one and the request is for a new one; `NoSpace` if the user has too many.
    pub fn mark(self: &Arc<Self>, inode: &Arc<Inode>, request: Request) -> Result<i32> {
        mem::admit().map_err(|_| FsError::NoMemory)?;
        let key = table::key(&**inode);
        let mut marks = self.marks.lock();
        let found = marks.by_inode.get(&key).copied();
        // One that has just ended is not changed any more: a new one takes its place.
        if let Some(wd) = found
            && let Some(mark) = marks.by_wd.get(&wd)
            && mark.change(request)?
        {
            return Ok(wd);
        }
        let most = MAX_WATCHES.load(Relaxed);
        count(self.payer, Charge::Marks, most, FsError::NoSpace)?;
        let wd = marks.next_wd();
        let mark = Mark::new(self, wd, inode, request);
        marks.by_wd.insert(wd, mark.clone());
        marks.by_inode.insert(key, wd);
        // Under the lock, so that no removal finds a mark that the inode does not have yet.
        inode.watch(mark);
        Ok(wd)
    }

    /// The mark with that watch descriptor.
    pub fn find(&self, wd: i32) -> Option<Arc<Mark>> {
        self.marks.lock().by_wd.get(&wd).cloned()
    }

    /// The mark with the highest watch descriptor below `wd`.
    pub fn before(&self, wd: i32) -> Option<Arc<Mark>> {
        let marks = self.marks.lock();
        let mut below = marks.by_wd.range((Unbounded, Excluded(wd)));
        below.next_back().map(|(_, mark)| mark.clone())
    }

    /// Takes out a mark that has ended.
    pub fn unmark(&self, mark: &Mark) {
        let gone = {
            let mut marks = self.marks.lock();
            let gone = marks.by_wd.remove(&mark.wd);
            if marks.by_inode.get(&mark.key()) == Some(&mark.wd) {
                marks.by_inode.remove(&mark.key());
            }
            gone
        };
        if gone.is_some() {
            self.payer.give_back(Charge::Marks, 1);
        }
    }

    /// The open file is gone: ends all marks.
    pub fn close(&self) {
        let unread: LinkedList<_> = self.queue.lock().close();
        drop(unread);
        loop {
            let first = self.marks.lock().by_wd.pop_first();
            let Some((_, mark)) = first else { break };
            table::remove(mark.key(), &*mark);
            self.payer.give_back(Charge::Marks, 1);
        }
        self.payer.give_back(Charge::Notifiers, 1);
    }
}
