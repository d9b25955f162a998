//! The mount table: which file system is seen at which directory.
//!
//! The mount table is one small immutable array behind an [`EpochPtr`]. A walk that meets a mount point scans it with
//! preemption off, and writes nothing. `TABLE_LOCK` is held while the table is replaced.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use ksync::atomic::{AtomicBool, AtomicU32, Ordering};

use ksync::{CpuPin, EpochPtr, Mutex, PerCpuRef};
use mem::epoch;

use super::dentry::Dentry;
use super::error::{FsError, Result};
use super::exec_cache;
use super::inode::Inode;
use super::kept::Kept;
use super::place::{Mount, MountRef, Path, flag};
use super::superblock::Super;

ksync::lock_class!(pub MountLock, "mount table", rank = 42);

struct Table {
    mounts: Vec<MountRef>,
}

struct Changes {
    next_id: u32,
    next_dev: u64,
}

hal::machine_static! {
    /// Held while the table is replaced. Guards the counters of mount ids and device numbers.
    static TABLE_LOCK: Mutex<Changes, MountLock> = Mutex::new(Changes {
        next_id: 20,
        next_dev: 1,
    });
    static TABLE: EpochPtr<Box<Table>> = EpochPtr::empty();
}

/// Gives out a device number for a new file system. Takes the mount table's lock.
pub fn new_dev() -> u64 {
    let mut c = TABLE_LOCK.lock();
    c.next_dev += 1;
    c.next_dev
}

/// It is being decided whether a mount stays. A lookup that meets it calls [`wait_for_leaving`], and looks again.
pub struct Leaving;

/// Waits for the end of such a decision. Takes the mount table's lock. Sleeps.
pub fn wait_for_leaving() {
    drop(TABLE_LOCK.lock());
}

/// The mount that is mounted on `dentry` of `mount`, if there is one; of several the last. Takes no lock.
///
/// # Errors
/// [`Leaving`].
pub fn covering<'p>(
    pin: &'p CpuPin,
    mount: &Mount,
    dentry: &Arc<Dentry>,
) -> Result<Option<&'p MountRef>, Leaving> {
    let mounts: &[MountRef] = TABLE.load(pin).map_or(&[], |t| &t.mounts);
    let is_on = |(on, at): &(MountRef, Arc<Dentry>)| on.id == mount.id && Arc::ptr_eq(at, dentry);
    let top = mounts
        .iter()
        .rev()
        .find(|m| m.over.as_ref().is_some_and(is_on));
    match top {
        Some(m) if m.leaving.load(Ordering::Relaxed) => Err(Leaving),
        top => Ok(top),
    }
}

/// The dentry for `name` in the directory `dir`, whose entries are made on demand, if something is mounted on it or below it: the
/// one that leads there. `inode` is what has just been made for the name; if its owner or its mode have changed, it leads
/// nowhere.
pub fn kept_on_demand(dir: &Path, name: &[u8], inode: &Inode) -> Option<Arc<Dentry>> {
    let pin = ksync::pin();
    let child_above = |at: &Arc<Dentry>| {
        let mut at = at;
        loop {
            let up = at.parent(&pin)?;
            if Arc::ptr_eq(up, &dir.dentry) {
                return Some(at.clone());
            }
            at = up;
        }
    };
    let is_it = |d: &Arc<Dentry>| d.name(&pin) == name && inode.looks_like(&d.inode);
    let mounts = &TABLE.load(&pin)?.mounts;
    let over = mounts.iter().rev().filter_map(|m| m.over.as_ref());
    over.filter(|(on, _)| Arc::ptr_eq(&on.fs, &dir.mount.fs))
        .filter_map(|(_, at)| child_above(at))
        .find(is_it)
}

/// Calls `f` with each mount, in the order in which they were made. References are held meanwhile, so `f` may sleep.
/// Waits while a mount is leaving, since a reference that is taken then might not be counted.
///
/// # Errors
/// `NoMemory`; the first error of `f`, which ends the calls.
pub fn for_each(mut f: impl FnMut(&MountRef) -> Result<()>) -> Result<()> {
    let mut list = Vec::new();
    let mut room = 16;
    loop {
        list.try_reserve_exact(room)
            .map_err(|_| FsError::NoMemory)?;
        let pin = ksync::pin();
        let mounts: &[MountRef] = TABLE.load(&pin).map_or(&[], |t| &t.mounts);
        if mounts.iter().any(|m| m.leaving.load(Ordering::Relaxed)) {
            drop(pin);
            wait_for_leaving();
            continue;
        }
        // Within the capacity: nothing is allocated under the pin.
        if mounts.len() <= list.capacity() {
            list.extend(mounts.iter().cloned());
            break;
        }
        room = mounts.len() + 4;
    }
    list.iter().try_for_each(&mut f)
}

/// Replaces the table by a copy that `edit` has changed; it adds one mount at most. Fails with `NoMemory`, before `edit`.
fn replace(_: &Changes, edit: impl FnOnce(&mut Vec<MountRef>)) -> Result<()> {
    let pin = ksync::pin();
    let mut mounts = Vec::new();
    let old: &[MountRef] = TABLE.load(&pin).map_or(&[], |t| &t.mounts);
    mounts
        .try_reserve(old.len() + 1)
        .map_err(|_| FsError::NoMemory)?;
    mounts.extend(old.iter().cloned());
    edit(&mut mounts);
    TABLE.replace(epoch(), &pin, Some(Box::new(Table { mounts })));
    Ok(())
}

/// The most mounts that may exist: the table is scanned, and each mount holds memory of the kernel.
const LIMIT: usize = 1024;

/// Mounts `root` of `fs` on the place `over`. Takes the mount table's lock. Sleeps.
///
/// # Errors
/// `NotFound` if the place, or the file that is `root`, has been removed; `Invalid` if the place's mount has left the tree;
/// `NoSpace` if there are too many mounts; `NoMemory`.
pub fn attach(
    fs: Arc<Super>,
    root: Arc<Dentry>,
    over: Option<Path>,
    source: String,
    flags: u32,
) -> Result<MountRef> {
    let mut c = TABLE_LOCK.lock();
    may_attach(&c, over.as_ref())?;
    let pages = Kept::of(&root.inode)?;
    let id = c.next_id;
    c.next_id += 1;
    let at = over.as_ref().map(|p| p.dentry.clone());
    let over = over.map(|p| (p.mount, p.dentry));
    let flags = AtomicU32::new(flags & flag::KEPT);
    let ncpus = hal::cpu::count();
    let mount = PerCpuRef::new(
        ncpus,
        Mount {
            id,
            fs,
            root,
            over,
            source,
            flags,
            leaving: AtomicBool::new(false),
            pages,
        },
    );
    let dead = at.as_ref().is_some_and(|at| !at.set_mountpoint());
    let attached = match dead {
        true => Err(FsError::NotFound),
        false => replace(&c, |m| m.push(mount.clone())),
    };
    if let Err(error) = attached {
        at.iter().for_each(uncover);
        drop(c);
        // Else it would never be freed.
        mount.kill(epoch());
        return Err(error);
    }
    Ok(mount)
}

/// A mount of a whole file system that is seen nowhere in the tree. Takes the mount table's lock, for its id.
pub fn hidden(fs: Arc<Super>, source: String) -> MountRef {
    let id = {
        let mut c = TABLE_LOCK.lock();
        c.next_id += 1;
        c.next_id - 1
    };
    let root = fs.root.clone();
    let mount = Mount {
        id,
        fs,
        root,
        over: None,
        source,
        flags: AtomicU32::new(0),
        leaving: AtomicBool::new(false),
        pages: None,
    };
    PerCpuRef::new(hal::cpu::count(), mount)
}

/// Fails if nothing can be mounted on `over`, before a mount is made for it. The place may have been removed, or be removed
/// afterwards.
fn may_attach(c: &Changes, over: Option<&Path>) -> Result<()> {
    if over.is_some_and(|p| !is_listed(c, &p.mount)) {
        return Err(FsError::Invalid);
    }
    if TABLE.load(&ksync::pin()).map_or(0, |t| t.mounts.len()) >= LIMIT {
        return Err(FsError::NoSpace);
    }
    Ok(())
}

/// Whether a mount is in the table: attached, and not detached since.
fn is_listed(_: &Changes, mount: &Mount) -> bool {
    let is_it = |m: &MountRef| m.id == mount.id;
    TABLE
        .load(&ksync::pin())
        .is_some_and(|t| t.mounts.iter().any(is_it))
}

/// Replaces the flags of a mount.
pub fn remount(mount: &Mount, flags: u32) {
    mount.flags.store(flags & flag::KEPT, Ordering::Relaxed);
}

/// Takes a mount out of the tree.
///
/// Without `detach` it fails while the mount is in use; `held` is the number of references that the caller holds. With
/// `detach`, this mount and those below it leave the tree now, and each is freed when its last reference is dropped. Takes the
/// mount table's lock. Sleeps.
///
/// Without `detach`, no reference comes to the mount between the count and the change of the table. New references come from
/// others, which are counted, or from lookups, which find the mount in the table with preemption off. So it is first marked
/// as leaving. After a grace period all lookups that have not seen the mark have ended, and the references that they took
/// are counted. One that sees the mark waits for the table's lock, and then finds the mount again or what is below it.
///
/// # Errors
/// `Busy` if the mount is in use or is the first one; `Invalid` if it is not in the tree; `NoMemory`.
pub fn detach(mount: &MountRef, held: usize, detach: bool) -> Result<()> {
    let c = TABLE_LOCK.lock();
    if mount.over.is_none() {
        return Err(FsError::Busy);
    }
    if !is_listed(&c, mount) {
        return Err(FsError::Invalid);
    }
    let gone = if detach {
        take_out(&c, mount)?
    } else {
        take_out_unused(&c, mount, held)?
    };
    drop(c);
    // From here on each mount is freed when its last reference is dropped.
    gone.iter().for_each(|m| m.kill(epoch()));
    exec_cache::forget(|path| path.mount.is_killed());
    Ok(())
}

/// As [`take_out`], for [`detach`] of a mount that must not be in use. Fails with `Busy` if it is; then it stays.
fn take_out_unused(c: &Changes, mount: &MountRef, held: usize) -> Result<Vec<MountRef>> {
    mount.leaving.store(true, Ordering::Relaxed);
    exec_cache::forget(|path| path.mount.id == mount.id);
    // What happens in it happens before the count; it also lets every CPU see the mark.
    epoch().synchronize();
    // The reference of the table, and those of the caller.
    let unused = mount.references() <= 1 + held as i64;
    let taken = unused.then(|| take_out(c, mount)).ok_or(FsError::Busy);
    let taken = taken.flatten();
    if taken.is_err() {
        mount.leaving.store(false, Ordering::Relaxed);
    }
    taken
}

/// Takes a mount and those below it out of the table, and returns them. Fails with `NoMemory`; then all stay.
fn take_out(c: &Changes, mount: &MountRef) -> Result<Vec<MountRef>> {
    let below = |m: &MountRef| {
        let mut m = m;
        loop {
            if m.id == mount.id {
                return true;
            }
            match &m.over {
                Some((up, _)) => m = up,
                None => return false,
            }
        }
    };
    let mut gone = Vec::new();
    gone.try_reserve(LIMIT).map_err(|_| FsError::NoMemory)?;
    replace(c, |list| {
        gone.extend(list.iter().filter(|m| below(m)).cloned());
        list.retain(|m| !below(m));
    })?;
    let places = gone.iter().filter_map(|m| m.over.as_ref());
    places.for_each(|(_, at)| uncover(at));
    Ok(gone)
}

/// Records that a dentry is no mount point, unless a mount of the table is mounted on it, be it seen through another mount.
/// The caller holds the mount table's lock.
fn uncover(at: &Arc<Dentry>) {
    let pin = ksync::pin();
    let covered = TABLE.load(&pin).is_some_and(|t| {
        t.mounts
            .iter()
            .any(|m| m.over.as_ref().is_some_and(|(_, d)| Arc::ptr_eq(d, at)))
    });
    if !covered {
        at.clear_mountpoint();
    }
}
