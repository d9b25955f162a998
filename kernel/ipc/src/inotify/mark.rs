//! A mark: the watch of one inode by one instance.

use alloc::sync::Arc;
use ksync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use cred::MemoryCharge;
use task::wait::Cause;
use vfs::error::{FsError, Result};
use vfs::inode::{Inode, Node};
use vfs::notify::event::{Event, Watch, ev};
use vfs::notify::table;

use super::control::Request;
use super::flag;
use super::instance::Instance;
use super::queue::Record;

/// Bytes charged for a mark: its memory, and its places in the instance and in the table of watched inodes, of which the latter is a tree of its own. As the
/// heap rounds them up.
const BYTES: usize = size_of::<Mark>() + 768;
/// The same for what nothing keeps but the mark, and nobody else is charged for: an inode that was made on demand, and the record of a process that may
/// have ended.
const MADE_BYTES: usize = (size_of::<Inode>() + PROCESS_BYTES).next_power_of_two() + 256;
/// Bytes of the record of a process, at most. A number, because tests on the host have threads without the processes of `proc`.
const PROCESS_BYTES: usize = 704;
#[cfg(target_os = "none")]
const _: () = assert!(size_of::<proc::process::Process>() <= PROCESS_BYTES);
/// Bytes of a mark, and of what it keeps: for the default of the limit on marks.
pub(super) const COST: u64 = (BYTES + 2 * size_of::<Inode>()) as u64;

/// Bytes charged for a mark of that inode.
fn bytes(inode: &Inode) -> usize {
    let made = matches!(inode.node, Node::Dynamic(_));
    BYTES + if made { MADE_BYTES } else { 0 }
}

/// A mark.
pub(super) struct Mark {
    /// The watch descriptor. Constant.
    pub wd: i32,
    /// Constant.
    instance: Arc<Instance>,
    /// What is watched. Constant.
    pub inode: Arc<Inode>,
    /// The events that are wanted, and [`flag::EXCL_UNLINK`] and [`flag::ONESHOT`]. Changed under the lock of the queue.
    wanted: AtomicU32,
    /// Nothing is told any more. Guarded by the lock of the queue.
    dead: AtomicBool,
    _memory: MemoryCharge,
}

impl Mark {
    /// A mark that is in no set yet.
    pub fn new(
        instance: &Arc<Instance>,
        wd: i32,
        inode: &Arc<Inode>,
        request: Request,
    ) -> Arc<Mark> {
        Arc::new(Mark {
            wd,
            instance: instance.clone(),
            inode: inode.clone(),
            wanted: AtomicU32::new(request.wanted()),
            dead: AtomicBool::new(false),
            _memory: MemoryCharge::new(instance.payer, bytes(inode)),
        })
    }

    /// By what the inode is found.
    pub fn key(&self) -> usize {
        table::key(&*self.inode)
    }

    /// The events that are wanted, and the flags.
    pub fn wanted(&self) -> u32 {
        self.wanted.load(Relaxed)
    }

    /// Changes what is wanted; returns false if the mark has ended.
    ///
    /// # Errors
    /// `Exists` if the request is for a new one.
    pub fn change(&self, request: Request) -> Result<bool> {
        let _queue = self.instance.queue.lock();
        if self.dead.load(Relaxed) {
            return Ok(false);
        }
        if request.creates() {
            return Err(FsError::Exists);
        }
        let kept = if request.adds() { self.wanted() } else { 0 };
        self.wanted.store(kept | request.wanted(), Relaxed);
        Ok(true)
    }

    /// Ends the mark, as inotify_rm_watch(2); returns false if it has ended already.
    pub fn remove(&self) -> bool {
        let ended = self.report(None, true);
        if ended {
            self.leave();
        }
        ended
    }

    /// Takes the mark, which has ended, out of the table and the set.
    fn leave(&self) {
        table::remove(self.key(), self);
        self.instance.unmark(self);
    }

    /// Puts an event on the queue, if there is one, and ends the mark if that is the `last`: so nothing comes after the event that it
    /// has ended. Returns false if it had ended. Allocates without a lock.
    fn report(&self, event: Option<&Event>, last: bool) -> bool {
        let payer = self.instance.payer;
        let end = Event::own(ev::IGNORED);
        let end_record = last.then(|| Record::new(self.wd, &end, payer));
        let mut record = None;
        let mut queue = self.instance.queue.lock();
        let mut news = false;
        if let Some(event) = event {
            while !self.dead.load(Relaxed) {
                if let Some(new) = queue.absorbs(self.wd, event) {
                    news = new;
                    break;
                }
                match record.take() {
                    None => {
                        drop(queue);
                        record = Some(Record::new(self.wd, event, payer));
                        queue = self.instance.queue.lock();
                    }
                    Some(Ok(one)) => {
                        queue.push(one);
                        news = true;
                        break;
                    }
                    Some(Err(_)) => {
                        news = queue.overflow();
                        break;
                    }
                }
            }
        }
        let lived = !self.dead.load(Relaxed);
        let mut unused = None;
        if let Some(one) = end_record.filter(|_| lived) {
            self.dead.store(true, Relaxed);
            news |= match (queue.absorbs(self.wd, &end), one) {
                (Some(new), one) => {
                    unused = one.ok();
                    new
                }
                (None, Ok(one)) => {
                    queue.push(one);
                    true
                }
                (None, Err(_)) => queue.overflow(),
            };
        }
        drop(queue);
        drop(unused);
        if news {
            self.instance.readers.wake_all_for(Cause::Input);
        }
        lived
    }
}

impl Watch for Mark {
    fn tell(&self, event: &Event) {
        let wanted = self.wanted();
        let excluded = event.unlinked && wanted & flag::EXCL_UNLINK != 0;
        if wanted & event.mask & ev::ALL == 0 || excluded {
            return;
        }
        let mut event = *event;
        // As in Linux, which has never said it of these.
        if event.mask & ev::MOVE_SELF != 0 {
            event.mask &= !ev::ISDIR;
        }
        let once = wanted & flag::ONESHOT != 0;
        if self.report(Some(&event), once) && once {
            self.leave();
        }
    }

    fn ended(&self, why: u32) {
        let dir = match why {
            ev::UNMOUNT if self.inode.is_dir() => ev::ISDIR,
            _ => 0,
        };
        let event = Event::own(why | dir);
        // An unmount is told without being asked for.
        let wanted = (self.wanted() | ev::UNMOUNT) & why != 0;
        if self.report(wanted.then_some(&event), true) {
            self.instance.unmark(self);
        }
    }
}
