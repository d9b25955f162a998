//! A process's view of the file tree: root, working directory, file mode creation mask.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use ksync::atomic::{AtomicU32, AtomicU64, Ordering};

use ksync::{CpuPin, EpochPtr, Once, Spin};
use mem::epoch;

use super::error::{FsError, Result};
use super::mount;
use super::place::Path;
use super::superblock::Super;

ksync::lock_class!(pub ContextLock, "working directory", rank = 86);

hal::machine_static! {
    /// The root that every process begins with. Set once, at boot.
    static ROOT: Once<Path> = Once::new();
}

/// Mounts `fs` as the root that every process begins with. Called once, at boot.
///
/// # Errors
/// `NoMemory`.
pub fn mount_root(fs: Arc<Super>) -> Result<()> {
    let dentry = fs.root.clone();
    let mount = mount::attach(fs, dentry.clone(), None, String::from("rootfs"), 0)?;
    let _ = ROOT.set(Path { mount, dentry });
    Ok(())
}

/// The root that every process begins with.
///
/// # Errors
/// `NotFound` before it has been mounted.
pub fn boot_root() -> Result<&'static Path> {
    ROOT.get().ok_or(FsError::NotFound)
}

/// A place in the tree. The boot root is stored without a reference: it is the root of most processes, and fork must not
/// write a cache line that all of them share.
#[derive(Clone)]
enum Place {
    BootRoot,
    At(Path),
}

impl Place {
    fn of(path: Path) -> Self {
        match ROOT.get() {
            Some(root) if root.is(&path) => Place::BootRoot,
            _ => Place::At(path),
        }
    }
}

#[derive(Clone)]
struct Places {
    root: Place,
    cwd: Place,
}

/// Root, working directory and mask. Shared by the threads of a process, and by processes that were made with `CLONE_FS`;
/// copied by fork.
///
/// A walk begins at the place that is current when it starts, and borrows it with preemption off: it takes neither a lock nor
/// a reference. Both places are replaced together, and the old ones are freed after a grace period.
pub struct FsContext {
    /// Empty as long as both places are the boot root.
    places: EpochPtr<Box<Places>>,
    /// Held while the places are replaced.
    change: Spin<(), ContextLock>,
    umask: AtomicU32,
    /// The number of processes that use the context and, from bit 32 on, the number of execve calls that need it unshared.
    /// Atomic.
    uses: AtomicU64,
}

/// A process's use of a context.
///
/// execve gives no privileges to a process whose context is shared: another process, without those privileges, could change
/// the directories in which the program finds its files. A context cannot become shared while an execve that relies on this
/// is in progress; see [`Unshared`].
pub struct FsUse(Arc<FsContext>);

/// As long as this value exists, no other process can begin to use the context. Only a process that uses the context has one.
pub struct Unshared(Arc<FsContext>);

/// What one execve call adds to `uses`.
const EXEC: u64 = 1 << 32;

impl FsUse {
    /// The context itself.
    pub fn context(&self) -> &Arc<FsContext> {
        &self.0
    }

    /// A use of the same context by another process; `None` while an execve needs the context unshared.
    pub fn share(&self) -> Option<FsUse> {
        let more = |uses| (uses < EXEC).then_some(uses + 1);
        self.0
            .uses
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .ok()?;
        Some(FsUse(self.0.clone()))
    }
}

impl Drop for FsUse {
    fn drop(&mut self) {
        self.0.uses.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        self.0.uses.fetch_sub(EXEC, Ordering::AcqRel);
    }
}

/// Where a walk begins, or where it continues after an absolute link.
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// At this place.
    At(&'a Path),
    /// At the root that the context has at that time.
    Root(&'a FsContext),
    /// At the working directory that the context has at that time.
    Cwd(&'a FsContext),
}

impl Origin<'_> {
    /// The place, borrowed under `pin`.
    ///
    /// # Errors
    /// `NotFound` before the boot root has been mounted.
    pub fn path<'p>(&'p self, pin: &'p CpuPin) -> Result<&'p Path> {
        match self {
            Origin::At(path) => Ok(path),
            Origin::Root(fs) => fs.place(pin, |places| &places.root),
            Origin::Cwd(fs) => fs.place(pin, |places| &places.cwd),
        }
    }

    /// The place, with references of its own.
    ///
    /// # Errors
    /// `NotFound` before the boot root has been mounted.
    pub fn owned(&self) -> Result<Path> {
        self.path(&ksync::pin()).cloned()
    }
}

impl FsContext {
    fn with(places: Option<Places>, umask: u32) -> FsUse {
        FsUse(Arc::new(FsContext {
            places: EpochPtr::new(places.map(Box::new)),
            change: Spin::new(()),
            umask: AtomicU32::new(umask),
            uses: AtomicU64::new(1),
        }))
    }

    /// Prevents other processes from beginning to use the context. Called for a process that uses it; `None` if another
    /// process uses it already.
    pub fn keep_unshared(self: &Arc<Self>) -> Option<Unshared> {
        let one = |uses| (uses % EXEC == 1).then_some(uses + EXEC);
        self.uses
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one)
            .ok()?;
        Some(Unshared(self.clone()))
    }

    /// The context of the first process: both places are the boot root, and the mask is 022.
    pub fn boot() -> FsUse {
        Self::with(None, 0o022)
    }

    /// A copy of the context for a child process.
    pub fn fork(&self) -> FsUse {
        let places = self.places.load(&ksync::pin()).cloned();
        Self::with(places, self.umask())
    }

    fn place<'p>(
        &'p self,
        pin: &'p CpuPin,
        which: impl FnOnce(&'p Places) -> &'p Place,
    ) -> Result<&'p Path> {
        match self.places.load(pin).map(which) {
            None | Some(Place::BootRoot) => boot_root(),
            Some(Place::At(path)) => Ok(path),
        }
    }

    /// The root now, with references of its own.
    pub fn root(&self) -> Result<Path> {
        Origin::Root(self).owned()
    }

    /// The working directory now, with references of its own.
    pub fn cwd(&self) -> Result<Path> {
        Origin::Cwd(self).owned()
    }

    /// Sets the working directory.
    pub fn set_cwd(&self, to: Path) {
        self.change(|places| places.cwd = Place::of(to));
    }

    /// Sets the root.
    pub fn set_root(&self, to: Path) {
        self.change(|places| places.root = Place::of(to));
    }

    /// Replaces both places by a copy that `f` has changed, under the lock of changes.
    fn change(&self, f: impl FnOnce(&mut Places)) {
        // Without the lock, so that the thread can wait for memory.
        let mut new = Box::new(Places {
            root: Place::BootRoot,
            cwd: Place::BootRoot,
        });
        let guard = self.change.lock();
        let pin = guard.pin();
        if let Some(places) = self.places.load(pin) {
            (*new).clone_from(places);
        }
        f(&mut new);
        self.places.replace(epoch(), pin, Some(new));
    }

    /// The permission bits that new files do not get.
    pub fn umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    /// Replaces the mask, and returns the old one.
    pub fn set_umask(&self, mask: u32) -> u32 {
        self.umask.swap(mask & 0o777, Ordering::Relaxed)
    }
}
