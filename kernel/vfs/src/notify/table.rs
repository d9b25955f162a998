//! The watches of each inode that is watched.
//!
//! A table by the address of the inode, which the table keeps: so an inode without watches has no more of them than a bit. An event
//! takes the shard's lock for each watch that it is told to, and tells it without the lock.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::Bound::{Excluded, Unbounded};
use core::ptr;
use ksync::atomic::{AtomicU32, AtomicUsize, Ordering};

use ksync::Spin;

use super::event::{Event, Watch, Watchable, ev};
use crate::backlog::Backlog;

ksync::lock_class!(pub WatchedLock, "watched inodes", rank = 88);

/// Shards of the table.
const SHARDS: usize = 64;

/// An inode that is watched.
struct Watched {
    inode: Arc<dyn Watchable>,
    /// By their addresses.
    watches: BTreeMap<usize, Arc<dyn Watch>>,
}

/// By the address of the inode.
type Shard = BTreeMap<usize, Watched>;

hal::machine_static! {
    static TABLE: [Spin<Shard, WatchedLock>; SHARDS] = [const { Spin::new(BTreeMap::new()) }; SHARDS];
    /// The number of inodes in the table. Atomic.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    /// The cookie of the last rename that somebody was told of. Atomic.
    static COOKIES: AtomicU32 = AtomicU32::new(0);
    /// Device numbers of file systems that are gone, with inodes that are watched.
    static UNMOUNTED: Backlog<u64> = Backlog::new();
}

/// The address by which an inode is found.
pub fn key<T: ?Sized>(inode: &T) -> usize {
    ptr::from_ref(inode).addr()
}

fn shard(key: usize) -> &'static Spin<Shard, WatchedLock> {
    // Inodes are some hundred bytes apart.
    &TABLE[(key >> 8).wrapping_mul(0x9e37_79b9) >> 16 & (SHARDS - 1)]
}

fn address(watch: &dyn Watch) -> usize {
    ptr::from_ref(watch).addr()
}

/// Adds a watch of `inode`. From here on each operation that begins finds it. Allocates, with preemption off; the caller has been
/// admitted.
pub fn add<T: Watchable>(inode: &Arc<T>, watch: Arc<dyn Watch>) {
    let key = key(&**inode);
    let mut shard = shard(key).lock();
    let watched = shard.entry(key).or_insert_with(|| {
        COUNT.fetch_add(1, Ordering::Relaxed);
        Watched {
            inode: inode.clone(),
            watches: BTreeMap::new(),
        }
    });
    watched.watches.insert(address(&*watch), watch);
    inode.set_watched(true);
}

/// Takes a watch of the inode with that key out, if it is there.
pub fn remove(key: usize, watch: &dyn Watch) {
    let mut shard = shard(key).lock();
    let Some(watched) = shard.get_mut(&key) else {
        return;
    };
    let gone = watched.watches.remove(&address(watch));
    let inode = watched
        .watches
        .is_empty()
        .then(|| take(&mut shard, key))
        .flatten();
    drop(shard);
    drop((gone, inode));
}

/// Takes an inode out of its shard.
fn take(shard: &mut Shard, key: usize) -> Option<Watched> {
    let watched = shard.remove(&key)?;
    watched.inode.set_watched(false);
    COUNT.fetch_sub(1, Ordering::Relaxed);
    Some(watched)
}

/// Ends all watches of an inode, because of `why`.
pub fn end<T: Watchable>(inode: &T, why: u32) {
    end_key(key(inode), why, None);
}

/// Ends all watches of the inode with that key, unless it is of another file system than `dev`: the one that was looked at may be gone, and
/// its address another's.
fn end_key(key: usize, why: u32, dev: Option<u64>) {
    let watched = {
        let mut shard = shard(key).lock();
        let found = shard.get(&key);
        let is = found.is_some_and(|watched| dev.is_none_or(|dev| watched.inode.dev() == dev));
        is.then(|| take(&mut shard, key)).flatten()
    };
    // One after the other, as they are freed.
    for watch in watched.into_iter().flat_map(|w| w.watches.into_values()) {
        watch.ended(why);
    }
}

/// Tells an event to the watches of an inode.
#[cold]
pub fn tell<T: Watchable>(inode: &T, event: &Event) {
    let key = key(inode);
    let mut last = None;
    loop {
        let next = {
            let shard = shard(key).lock();
            let watches = shard.get(&key).map(|watched| &watched.watches);
            let after = last.map_or(Unbounded, Excluded);
            let next = watches.and_then(|w| w.range((after, Unbounded)).next());
            next.map(|(&address, watch)| (address, watch.clone()))
        };
        let Some((address, watch)) = next else { return };
        watch.tell(event);
        last = Some(address);
    }
}

/// A cookie for the two events of a rename.
pub(super) fn new_cookie() -> u32 {
    // 0 means that there is none.
    match COOKIES.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
        0 => COOKIES.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
        cookie => cookie,
    }
}

/// The file system with this device number is gone: its inodes are kept by watches alone, which
/// [`finish_unmounted`] ends. Allocates little; does not sleep.
pub(crate) fn unmounted(dev: u64) {
    if COUNT.load(Ordering::Relaxed) > 0 {
        UNMOUNTED.push(dev);
    }
}

/// Ends the watches of file systems that are gone; returns whether there were any such. Called with preemption on.
pub(crate) fn finish_unmounted() -> bool {
    UNMOUNTED.finish(|dev| {
        for shard in TABLE.iter() {
            let mut from = 0;
            while let Some((key, of_dev)) = step(shard, from, dev) {
                if of_dev {
                    end_key(key, ev::UNMOUNT, Some(dev));
                }
                from = key + 1;
            }
        }
    })
}

/// Inodes that are looked at in one hold of a shard's lock.
const STEP: usize = 64;

/// The first inode of a shard, from the key `from` on, that belongs to the file system `dev`, and true; if it is not among the next
/// few, the last of these, and false. `None` at the end.
fn step(shard: &Spin<Shard, WatchedLock>, from: usize, dev: u64) -> Option<(usize, bool)> {
    let shard = shard.lock();
    let mut last = None;
    for (&key, watched) in shard.range(from..).take(STEP) {
        let of_dev = watched.inode.dev() == dev;
        last = Some((key, of_dev));
        if of_dev {
            break;
        }
    }
    last
}
