//! Sockets in flight, and the collection of those that only messages refer to. `doc/sockets.md` has the protocol and why it is right.
//!
//! Guarantee: a socket that no descriptor, no call and no message in a reachable socket refers to is closed by a [`collect`] that begins
//! after that; one that any of these refers to is not.
//!
//! Mechanism: the table has an entry for each open file of a socket that messages refer to, with their number. The entry has a
//! reference of its own. Where the file has no others, the socket is a candidate.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ptr;

use ksync::atomic::{AtomicUsize, Ordering::Relaxed};
use ksync::{Mutex, Spin};
use vfs::error::FsError;
use vfs::file::{File, FileRef};

use crate::error::{Result, SocketError};
use crate::socket::SocketFile;

ksync::lock_class!(pub InFlightLock, "sockets in flight", rank = 52);
ksync::lock_class!(pub BuriedLock, "buried messages", rank = 88);

/// What a socket receives from, as far as descriptors are concerned.
pub trait Carrier {
    /// Calls `f` with all open files of messages.
    fn each_file(&self, f: &mut dyn FnMut(&FileRef));
    /// Drops the descriptors of messages that have sockets among them; the messages stay. Called without a lock of this crate.
    fn drop_sockets(&self);
}

/// A socket that messages may refer to.
pub trait Node {
    /// Calls `f` with what it receives from, and with what connections that wait for its accept will receive from. Without memory it may leave
    /// some of the latter out.
    fn each_carrier(&self, f: &mut dyn FnMut(&dyn Carrier));
}

/// A socket in flight.
struct Entry {
    file: FileRef,
    /// References of messages.
    messages: usize,
}

type Table = BTreeMap<usize, Entry>;

hal::machine_static! {
    /// The sockets in flight, by the address of the open file.
    static TABLE: Mutex<Table, InFlightLock> = Mutex::new(Table::new());
    /// Entries of the table, and closes of sockets since the last collection. Atomic; hints.
    static ENTRIES: AtomicUsize = AtomicUsize::new(0);
    static CLOSES: AtomicUsize = AtomicUsize::new(0);
    /// References that the last collection looked at. Atomic; a hint.
    static WORK: AtomicUsize = AtomicUsize::new(0);
    static BURIED: Spin<Graveyard, BuriedLock> = Spin::new(Graveyard {
        first: None,
        busy: false,
    });
}

fn key(file: &File) -> usize {
    ptr::from_ref(file).addr()
}

fn node(file: &File) -> Option<&dyn Node> {
    SocketFile::of(file)?.node()
}

/// Whether the file is such a socket.
pub fn is_node(file: &File) -> bool {
    node(file).is_some()
}

/// Counts a reference of a message to each socket among `files`; returns how many sockets there are. Takes the table's lock.
///
/// # Errors
/// `NoMemory`; nothing is counted.
pub fn register(files: &[FileRef]) -> Result<usize> {
    if !files.iter().any(|file| is_node(file)) {
        return Ok(0);
    }
    mem::admit_process().map_err(|_| SocketError::File(FsError::NoMemory))?;
    let mut table = TABLE.lock();
    let mut sockets = 0;
    for file in files.iter().filter(|file| is_node(file)) {
        let entry = table.entry(key(file)).or_insert_with(|| Entry {
            file: file.clone(),
            messages: 0,
        });
        entry.messages += 1;
        sockets += 1;
    }
    ENTRIES.store(table.len(), Relaxed);
    Ok(sockets)
}

/// Takes the references of a message back. Takes the table's lock, one time for each file.
pub fn unregister(files: &[FileRef]) {
    for file in files.iter().filter(|file| is_node(file)) {
        let mut table = TABLE.lock();
        let Some(entry) = table.get_mut(&key(file)) else {
            continue;
        };
        entry.messages -= 1;
        let gone = match entry.messages {
            0 => table.remove(&key(file)),
            _ => None,
        };
        ENTRIES.store(table.len(), Relaxed);
        drop(table);
        // Not the last reference: the caller has one.
        drop(gone);
    }
}

/// Waits for the end of a collection.
pub fn pass() {
    drop(TABLE.lock());
}

/// A socket was closed. Collects once in a while.
pub fn note_close() {
    let entries = ENTRIES.load(Relaxed);
    // In proportion to what a collection costs, or one user's descriptors would make each close of anybody dear.
    let due = entries.max(WORK.load(Relaxed)) / 4;
    if entries > 0 && CLOSES.fetch_add(1, Relaxed) >= due {
        collect();
    }
}

/// A socket that nothing but messages refers to.
struct Candidate {
    file: FileRef,
    messages: usize,
    /// References to it in the inboxes of candidates.
    found: usize,
    alive: bool,
    /// The candidates that its inboxes refer to, once for each reference.
    to: Vec<usize>,
}

/// Closes the sockets that only messages refer to which nobody can receive. Returns how many there were. Called with no lock held;
/// sleeps. Without memory it does nothing.
pub fn collect() -> usize {
    CLOSES.store(0, Relaxed);
    let table = TABLE.lock();
    let doomed = garbage(&table).unwrap_or_default();
    drop(table);
    for socket in doomed.iter().filter_map(|file| node(file)) {
        socket.each_carrier(&mut |carrier| carrier.drop_sockets());
    }
    let count = doomed.len();
    bury(doomed);
    count
}

/// The garbage among the sockets of the table. The caller holds its lock. `None` without memory.
fn garbage(table: &Table) -> Option<Vec<FileRef>> {
    let mut all: Vec<Candidate> = Vec::new();
    let mut place: BTreeMap<usize, usize> = BTreeMap::new();
    for entry in table.values() {
        if FileRef::references(&entry.file) != entry.messages + 1 {
            continue;
        }
        all.try_reserve(1).ok()?;
        place.insert(key(&entry.file), all.len());
        all.push(Candidate {
            file: entry.file.clone(),
            messages: entry.messages,
            found: 0,
            alive: false,
            to: Vec::new(),
        });
    }
    let mut looks = all.len();
    for i in 0..all.len() {
        let mut to: Vec<usize> = Vec::new();
        let mut enough = true;
        if let Some(socket) = node(&all[i].file) {
            socket.each_carrier(&mut |carrier| {
                looks += 1;
                carrier.each_file(&mut |file| {
                    looks += 1;
                    if let Some(&at) = place.get(&key(file)) {
                        enough &= to.try_reserve(1).is_ok();
                        if enough {
                            to.push(at);
                        }
                    }
                });
            });
        }
        if !enough {
            return None;
        }
        to.iter().for_each(|&at| all[at].found += 1);
        all[i].to = to;
    }
    WORK.store(looks, Relaxed);
    spread(&mut all)?;
    let mut doomed = Vec::new();
    for c in all.into_iter().filter(|c| !c.alive) {
        doomed.try_reserve(1).ok()?;
        doomed.push(c.file);
    }
    Some(doomed)
}

/// Marks those alive to which a message outside of the candidates refers, and those to which they lead. `None` without memory.
fn spread(all: &mut [Candidate]) -> Option<()> {
    let mut alive: Vec<usize> = Vec::new();
    alive.try_reserve(all.len()).ok()?;
    for (i, c) in all.iter_mut().enumerate() {
        if c.messages > c.found {
            c.alive = true;
            alive.push(i);
        }
    }
    while let Some(i) = alive.pop() {
        for at in core::mem::take(&mut all[i].to) {
            if !all[at].alive {
                all[at].alive = true;
                alive.push(at);
            }
        }
    }
    Some(())
}

/// What is to be closed, the newest first.
struct Graveyard {
    first: Option<Box<Grave>>,
    /// Whether a thread is closing.
    busy: bool,
}

struct Grave {
    _files: Vec<FileRef>,
    next: Option<Box<Grave>>,
}

/// Drops the references of a message that is not received. If a thread does so already (this one, perhaps, further up), that one
/// closes these files, too: so the depth of the stack does not grow with the depth of messages within sockets within messages.
pub fn bury(files: Vec<FileRef>) {
    let mut grave = Box::new(Grave {
        _files: files,
        next: None,
    });
    let mut buried = BURIED.lock();
    grave.next = buried.first.take();
    buried.first = Some(grave);
    if buried.busy {
        return;
    }
    buried.busy = true;
    loop {
        match buried.first.take() {
            None => break,
            Some(mut grave) => {
                buried.first = grave.next.take();
                drop(buried);
                drop(grave);
                buried = BURIED.lock();
            }
        }
    }
    buried.busy = false;
}

/// Sockets in flight now, for tests.
pub fn count() -> usize {
    TABLE.lock().len()
}
