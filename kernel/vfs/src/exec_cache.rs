//! The exec cache: open files of programs that are run often, for execve.
//!
//! Guarantee: executing a cached program, forking a process that runs it, and the end of such a process write no line that
//! CPUs share for the file's sake. A caller that is about to write or unlink the file, or to unmount its file system, finds
//! it closed.
//! Mechanism: a table of sets, one line each, found by place and read under a pin; the files in it are counted per CPU.
//! A caller that needs a cached file unused takes it out of the table ([`forget`]), which waits for a grace period: so
//! only what was run [`OFTEN`] times is cached.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ptr;

use ksync::{CpuPin, EpochPtr, Mutex, PerCpuRef};
use mem::epoch;

use super::dentry::Dentry;
use super::file::FileRef;
use super::mount::{MountRef, Path};

ksync::lock_class!(pub ExecCacheLock, "exec cache", rank = 45);

/// An open file in the cache, counted per CPU as long as it is there.
pub type CachedExe = PerCpuRef<FileRef>;

/// So many times a file is run before it is cached.
pub const OFTEN: u32 = 8;

/// Sets of the table.
const SETS: usize = 16;
/// Places of a set: as many pointers as a line holds.
const WAYS: usize = 8;

#[repr(align(64))]
struct Set([EpochPtr<Box<CachedExe>>; WAYS]);

static TABLE: [Set; SETS] = [const { Set([const { EpochPtr::empty() }; WAYS]) }; SETS];

/// Held where something is taken out of the table.
static REMOVAL: Mutex<(), ExecCacheLock> = Mutex::new(());

fn set_of(mount: &MountRef, dentry: &Arc<Dentry>) -> &'static Set {
    // Dentries are 64 bytes and more.
    let hash = (ptr::from_ref(&**dentry).addr() >> 6) ^ mount.id as usize;
    &TABLE[hash.wrapping_mul(0x9e37_79b9) >> 8 & (SETS - 1)]
}

/// The file cached for a place.
pub fn find(pin: &CpuPin, mount: &MountRef, dentry: &Arc<Dentry>) -> Option<CachedExe> {
    let is_it = |path: &Path| path.mount.id == mount.id && Arc::ptr_eq(&path.dentry, dentry);
    let places = set_of(mount, dentry).0.iter();
    let mut kept = places.filter_map(|place| place.load(pin));
    kept.find(|text| text.path.as_ref().is_some_and(is_it))
        .cloned()
}

/// Keeps an open file that has a place. May sleep: where the set is full it forgets another.
pub fn keep(file: FileRef) -> CachedExe {
    let text = CachedExe::new(hal::cpu::count(), file);
    let Some(path) = &text.path else {
        return text;
    };
    let set = set_of(&path.mount, &path.dentry);
    let mut new = Box::new(text.clone());
    loop {
        {
            let pin = ksync::pin();
            for place in &set.0 {
                match place.set_if_none(new) {
                    Ok(()) if !path.mount.is_killed() => return text,
                    // The mount is leaving the tree; who takes it out may have looked here before.
                    Ok(()) => {
                        drop(pin);
                        forget(|path| path.mount.is_killed());
                        return text;
                    }
                    Err(back) => new = back,
                }
            }
        }
        // Any: one that is run often is soon back.
        let victim = task::time::monotonic_ns() as usize % WAYS;
        remove(&set.0[victim], &|_| true);
    }
}

/// Takes all kept files out whose place is `unwanted`; whether there were any. Sleeps for grace periods if so.
pub fn forget(unwanted: impl Fn(&Path) -> bool) -> bool {
    let places = TABLE.iter().flat_map(|set| &set.0);
    places.fold(false, |any, place| remove(place, &unwanted) | any)
}

/// Empties `place` if what it holds is `unwanted`.
fn remove(place: &EpochPtr<Box<CachedExe>>, unwanted: &dyn Fn(&Path) -> bool) -> bool {
    let holds = || {
        let pin = ksync::pin();
        let path = place.load(&pin).and_then(|text| text.path.as_ref());
        path.is_some_and(unwanted)
    };
    if !holds() {
        return false;
    }
    let text = {
        let _alone = REMOVAL.lock();
        // Only who holds the lock takes something out: what is there stays.
        if !holds() {
            return true;
        }
        place.withdraw(epoch())
    };
    // From here on the last user closes it; here, if nobody else uses it.
    if let Some(text) = text {
        text.kill(epoch());
    }
    true
}
