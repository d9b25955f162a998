//! F_NOTIFY of fcntl(2): an open directory whose owner gets signals of what happens in it.
//!
//! Guarantee: when the call returns, each operation that begins and is of a kind that was asked for sends the owner of the open file one signal before
//! it returns; without DN_MULTISHOT only the first one. It ends when a process closes a descriptor of the file that shares
//! the table of descriptors of the call, by a call without kinds, and with the open file.
//!
//! Mechanism: a *mark* is the watch of the directory by one open file and one table of descriptors. The owner of the file ([`crate::owner`])
//! has the list of its marks, and sends the signals. `vfs::notify` finds the marks of a directory.
//!
//! There is one mark for each open file and table. It is charged to the caller, and a user has up to 128: an operation in a directory signals
//! the owners of all its marks before it returns, under the directory's lock. That bounds what the marks of one user cost others to so many signals, or, where
//! owners are process groups, to so many for each member.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use ksync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

use cred::{Charge, MemoryCharge, Payer};
use ksync::Spin;
use task::current::current;
use vfs::error::{FsError, Result};
use vfs::file::File;
use vfs::inode::Inode;
use vfs::notify::event::{Event, Watch, ev};
use vfs::notify::table;

use crate::owner::{self, Owner};

ksync::lock_class!(pub DirMarksLock, "directory marks", rank = 87);

/// Kinds of events, as F_NOTIFY numbers them; the names are those of fcntl(2).
mod dn {
    pub const ACCESS: u32 = 1;
    pub const MODIFY: u32 = 2;
    pub const CREATE: u32 = 4;
    pub const DELETE: u32 = 8;
    pub const RENAME: u32 = 0x10;
    pub const ATTRIB: u32 = 0x20;
    pub const MULTISHOT: u32 = 0x8000_0000;
}

/// In what a mark wants, beside events: it does not end with the first one, and it has ended. No event has these bits.
const MULTISHOT: u32 = 0x8000_0000;
const DEAD: u32 = 0x2000_0000;

/// Bytes charged for a mark: its memory, and its places in the list and in the table of watched inodes.
const BYTES: usize = size_of::<Mark>() + 192;

/// The most marks of one user but the super-user: so many instances of inotify(7) a user has, too, each with one mark of a directory.
const USER_MOST: u64 = 128;

/// The marks of an open file.
pub(crate) type Marks = Spin<Vec<Arc<Mark>>, DirMarksLock>;

/// The watch of a directory by an open file.
pub(crate) struct Mark {
    /// Constant.
    owner: Weak<Owner>,
    /// The table of descriptors of the call, as the owner of locks. Constant.
    files: u64,
    /// What is watched. Constant.
    inode: Arc<Inode>,
    /// The descriptor of the last call. Atomic.
    fd: AtomicI32,
    /// Events, [`MULTISHOT`] and [`DEAD`]. Atomic.
    wanted: AtomicU32,
    _place: Place,
    _memory: MemoryCharge,
}

/// One of the marks that a user may have.
struct Place(Payer);

impl Place {
    /// A place that is charged to `payer`.
    ///
    /// # Errors
    /// `NoMemory` if the user has too many.
    fn new(payer: Payer) -> Result<Place> {
        let most = if payer.is_limited() {
            USER_MOST
        } else {
            u64::MAX
        };
        let charged = payer.charge_within(Charge::DirMarks, 1, most);
        charged.then(|| Place(payer)).ok_or(FsError::NoMemory)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.give_back(Charge::DirMarks, 1);
    }
}

/// The events that a call asks for.
fn events(arg: u32) -> u32 {
    let kinds = [
        (dn::ACCESS, ev::ACCESS),
        (dn::MODIFY, ev::MODIFY),
        (dn::CREATE, ev::CREATE | ev::MOVED_TO),
        (dn::DELETE, ev::DELETE | ev::MOVED_FROM),
        (dn::RENAME, ev::RENAME),
        (dn::ATTRIB, ev::ATTRIB),
        (dn::MULTISHOT, MULTISHOT),
    ];
    let wanted = kinds.iter().filter(|(kind, _)| arg & kind != 0);
    wanted.fold(0, |all, (_, events)| all | events)
}

/// F_NOTIFY by the descriptor `fd`, in the table `files` of the calling process: adds the kinds `arg` to those of the mark, or without any ends it.
/// The caller is the owner of the file if it has none. Sleeps; takes time in proportion to the names in the directory.
///
/// # Errors
/// `NotDir`; `NoMemory`, also if the user has too many marks; nothing has changed.
pub fn set(file: &File, fd: i32, files: u64, arg: u32) -> Result<()> {
    if arg & !dn::MULTISHOT == 0 {
        if let Some(owner) = owner::of(file) {
            end(&owner.marks, |mark| mark.files == files);
        }
        return Ok(());
    }
    let inode = file.inode().filter(|inode| inode.is_dir());
    let inode = inode.ok_or(FsError::NotDir)?;
    let owner = owner::make(file)?;
    owner.default_to_caller();
    mem::admit().map_err(|_| FsError::NoMemory)?;
    // One that has ended makes room, so that the directory's end or a single event leaves none for each call.
    end(&owner.marks, |mark| mark.files == files && mark.has_ended());
    let mut marks = owner.marks.lock();
    let own = marks.iter().find(|mark| mark.files == files);
    if !own.is_some_and(|mark| mark.add(fd, events(arg))) {
        marks.try_reserve(1).map_err(|_| FsError::NoMemory)?;
        let payer = current().payer();
        let mark = Arc::new(Mark {
            owner: owner.me(),
            files,
            inode: inode.clone(),
            fd: AtomicI32::new(fd),
            wanted: AtomicU32::new(events(arg)),
            _place: Place::new(payer)?,
            _memory: MemoryCharge::new(payer, BYTES),
        });
        marks.push(mark.clone());
        // Under the lock, so that no end finds a mark that the inode does not have yet.
        inode.watch(mark);
    }
    drop(marks);
    inode.watch_begun();
    Ok(())
}

/// Ends the marks of a file that `ends` says.
pub(crate) fn end(marks: &Marks, ends: impl Fn(&Mark) -> bool) {
    loop {
        let gone = {
            let mut marks = marks.lock();
            let at = marks.iter().position(|mark| ends(mark));
            at.map(|at| marks.swap_remove(at))
        };
        let Some(mark) = gone else { return };
        mark.wanted.fetch_or(DEAD, Relaxed);
        table::remove(table::key(&*mark.inode), &*mark);
    }
}

impl Mark {
    /// Whether it was made by a call in that table.
    pub(crate) fn is_of(&self, files: u64) -> bool {
        self.files == files
    }

    fn has_ended(&self) -> bool {
        self.wanted.load(Relaxed) & DEAD != 0
    }

    /// Adds events, for a call by `fd`; false if the mark has ended.
    fn add(&self, fd: i32, events: u32) -> bool {
        let lives = |wanted: u32| (wanted & DEAD == 0).then_some(wanted | events);
        let added = self.wanted.fetch_update(Relaxed, Relaxed, lives).is_ok();
        if added {
            self.fd.store(fd, Relaxed);
        }
        added
    }

    /// Whether it is to be told of the event; it may have ended with that.
    fn takes(&self, event: &Event) -> Option<u32> {
        let after = |wanted: u32| match wanted {
            _ if wanted & DEAD != 0 || wanted & event.mask & EVENTS == 0 => None,
            _ if wanted & MULTISHOT != 0 => Some(wanted),
            _ => Some(wanted | DEAD),
        };
        let before = self.wanted.fetch_update(Relaxed, Relaxed, after).ok()?;
        after(before)
    }
}

/// Those of which a mark may be told.
const EVENTS: u32 = ev::ALL | ev::RENAME;

impl Watch for Mark {
    fn tell(&self, event: &Event) {
        let Some(wanted) = self.takes(event) else {
            return;
        };
        let Some(owner) = self.owner.upgrade() else {
            return;
        };
        owner.message(self.fd.load(Relaxed));
        if wanted & DEAD != 0 {
            end(&owner.marks, |mark| core::ptr::eq(mark, self));
        }
    }

    /// The open file keeps the mark, which is told nothing any more.
    fn ended(&self, _: u32) {
        self.wanted.fetch_or(DEAD, Relaxed);
    }
}
