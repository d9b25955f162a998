//! The exec cache: open files of programs that are executed often, for execve(2).
//!
//! Guarantee: to execute a cached program, to fork a process that runs it, and to end such a process writes no cache line
//! that CPUs share for the file's sake. A caller that is about to write or unlink the file, or to unmount its file system,
//! can have it taken out of the cache. The cache keeps no file that has lost its last name.
//!
//! Mechanism: a table of sets, each of one cache line, looked up by mount and dentry and read with preemption off. References
//! to a cached file are counted per CPU. To take a file out ([`forget`]) needs a grace period, so a file is cached only once
//! it has been executed [`OFTEN`] times.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ptr;
use ksync::atomic::{Ordering, fence};

use ksync::{CpuPin, EpochPtr, PerCpuRef, RwLock};
use mem::epoch;

use super::dentry::Dentry;
use super::file::FileRef;
use super::place::{MountRef, Path};

ksync::lock_class!(pub ExecCacheLock, "exec cache", rank = 43);

/// A reference to an open file of the cache: counted per CPU until the file is taken out.
pub type CachedExe = PerCpuRef<FileRef>;

/// Executions of a file before it is cached.
pub const OFTEN: u32 = 8;

/// Sets of the table.
const SETS: usize = 16;
/// Places of a set: as many pointers as fit in a cache line.
const WAYS: usize = 8;

#[repr(align(64))]
struct Set([EpochPtr<Box<CachedExe>>; WAYS]);

hal::machine_static! {
    static TABLE: [Set; SETS] = [const { Set([const { EpochPtr::empty() }; WAYS]) }; SETS];
    /// Held shared from before a file leaves the table until it is closed, if nothing else refers to it. Several files may leave
    /// at once, so that no thread waits for more grace periods than its own.
    static REMOVAL: RwLock<(), ExecCacheLock> = RwLock::new(());
}

fn set_of(mount: &MountRef, dentry: &Arc<Dentry>) -> &'static Set {
    // A dentry has 64 bytes and more, so the lowest 6 bits of its address carry no information.
    let hash = (ptr::from_ref(&**dentry).addr() >> 6) ^ mount.id as usize;
    &TABLE[hash.wrapping_mul(0x9e37_79b9) >> 8 & (SETS - 1)]
}

/// Finds the cached file of a place, and takes a reference to it.
pub fn find(pin: &CpuPin, mount: &MountRef, dentry: &Arc<Dentry>) -> Option<CachedExe> {
    let is_it = |path: &Path| path.mount.id == mount.id && Arc::ptr_eq(&path.dentry, dentry);
    let places = set_of(mount, dentry).0.iter();
    let mut kept = places.filter_map(|place| place.load(pin));
    kept.find(|text| text.path.as_ref().is_some_and(is_it))
        .cloned()
}

/// Whether the mount of a place is being taken out of the tree, or its file has no name any more.
fn is_gone(path: &Path) -> bool {
    path.mount.is_killed() || path.dentry.inode.nlink() == 0
}

/// Times that a thread tries to find or make room for a file: other threads may fill the set as fast.
const TRIES: usize = 2;

/// Puts an open file, which has a path, into the cache, and returns a reference to it. Sleeps for grace periods if the set is
/// full, to take another file out, and if the file has just lost its last name or its mount: then it is taken out at once. A file
/// for which there is no room after two tries is not kept.
pub fn keep(file: FileRef) -> CachedExe {
    let text = CachedExe::new(hal::cpu::count(), file);
    let Some(path) = &text.path else {
        return text;
    };
    let set = set_of(&path.mount, &path.dentry);
    let mut new = Box::new(text.clone());
    for _ in 0..TRIES {
        {
            let pin = ksync::pin();
            for place in &set.0 {
                match place.set_if_none(new) {
                    Ok(()) => {
                        drop(pin);
                        // A thread that unmounts the file system, or removes the file's last name, may have looked for the
                        // file before it was put here. Pairs with the fence in `Inode::unlinked`.
                        fence(Ordering::SeqCst);
                        if is_gone(path) {
                            forget(is_gone);
                        }
                        return text;
                    }
                    Err(back) => new = back,
                }
            }
        }
        // Any victim will do: a file that is executed often is soon cached again.
        let victim = task::time::monotonic_ns() as usize % WAYS;
        remove(&set.0[victim], &|_| true);
    }
    drop(new);
    // Else it would never be closed.
    text.kill(epoch());
    text
}

/// Waits until each file that another thread is taking out has been closed, unless something else refers to it. Sleeps.
pub fn wait_for_removals() {
    REMOVAL.wait();
}

/// Takes all files out whose place is `unwanted`; returns whether there were any. If there were, it takes the lock of removals
/// shared, sleeps for grace periods, and closes those that nothing else refers to. `unwanted` is called with preemption off.
pub fn forget(unwanted: impl Fn(&Path) -> bool) -> bool {
    let places = TABLE.iter().flat_map(|set| &set.0);
    places.fold(false, |any, place| remove(place, &unwanted) | any)
}

/// Empties `place` if the file in it is `unwanted`; returns whether it was, even if another thread has taken it out meanwhile.
fn remove(place: &EpochPtr<Box<CachedExe>>, unwanted: &dyn Fn(&Path) -> bool) -> bool {
    let is_unwanted = {
        let pin = ksync::pin();
        let path = place.load(&pin).and_then(|text| text.path.as_ref());
        path.is_some_and(unwanted)
    };
    if !is_unwanted {
        return false;
    }
    let _removal = REMOVAL.read();
    // What is taken out may be another file, which has come there meanwhile: any file may be, at any time.
    if let Some(text) = place.withdraw(epoch()) {
        // The file is now closed when its last reference is dropped: here, if there is no other.
        text.kill(epoch());
    }
    true
}
