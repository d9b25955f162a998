//! A process's view of the tree: root, working directory, file mode mask.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cred::Cred;
use ksync::{CpuPin, EpochPtr, Once, Spin};
use mem::epoch;

use super::error::{FsError, Result};
use super::mount::Path;
use super::walk::Walk;

ksync::lock_class!(pub ContextLock, "working directory", rank = 86);

/// The root that every process begins with.
static ROOT: Once<Path> = Once::new();

/// Sets the root at boot; only the first call counts.
pub fn set_root(root: Path) {
    let _ = ROOT.set(root);
}

/// The root that every process begins with. `NotFound` before it is mounted.
pub fn boot_root() -> Result<&'static Path> {
    ROOT.get().ok_or(FsError::NotFound)
}

/// A place, where the boot root costs no reference: most processes have it as their root, and a
/// fork must not write a line that all of them share.
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

/// Root, working directory and mask; shared by threads and with `CLONE_FS` by processes, copied by fork.
///
/// Walks begin at the places of the moment, which they borrow under a pin: without a lock and without a count. Places
/// are replaced together, and the old ones given back after a grace period.
pub struct FsContext {
    /// None: the boot root, twice.
    places: EpochPtr<Box<Places>>,
    /// Who replaces the places holds it.
    change: Spin<(), ContextLock>,
    umask: AtomicU32,
    /// Processes that use it, and from bit 32 on the calls of execve that rely on there being one. Atomic.
    uses: AtomicU64,
}

/// The use of a context by a process.
///
/// A program that gets privileges finds files by its context, so no process without them may change it: execve gives
/// none where a context is shared, and none comes to be shared while execve relies on that.
pub struct FsUse(Arc<FsContext>);

/// A context is not shared as long as this exists. Whoever has it uses the context.
pub struct Unshared(Arc<FsContext>);

/// One call of execve in `uses`.
const EXEC: u64 = 1 << 32;

impl FsUse {
    /// The context.
    pub fn context(&self) -> &Arc<FsContext> {
        &self.0
    }

    /// A use of the same context by another process; none while execve relies on there being one.
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

/// Where a walk begins, or turns to for absolute links.
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// Here.
    At(&'a Path),
    /// At the root that this is at the time.
    Root(&'a FsContext),
    /// At the working directory that this is at the time.
    Cwd(&'a FsContext),
}

impl Origin<'_> {
    /// The place, borrowed.
    pub fn path<'p>(&'p self, pin: &'p CpuPin) -> Result<&'p Path> {
        match self {
            Origin::At(path) => Ok(path),
            Origin::Root(fs) => fs.place(pin, |places| &places.root),
            Origin::Cwd(fs) => fs.place(pin, |places| &places.cwd),
        }
    }

    /// The place, with references of its own.
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

    /// Keeps other processes from using it, for a process that does; none if another one uses it already.
    pub fn keep_unshared(self: &Arc<Self>) -> Option<Unshared> {
        let one = |uses| (uses % EXEC == 1).then_some(uses + EXEC);
        self.uses
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one)
            .ok()?;
        Some(Unshared(self.clone()))
    }

    /// The context of the first process: boot root, mask 022.
    pub fn boot() -> FsUse {
        Self::with(None, 0o022)
    }

    /// A copy for a child process.
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

    /// A walk that begins at the working directory.
    pub fn walk<'a>(&'a self, cred: &'a Cred) -> Walk<'a> {
        self.walk_from(cred, Origin::Cwd(self))
    }

    /// A walk that begins at `base`.
    pub fn walk_from<'a>(&'a self, cred: &'a Cred, base: Origin<'a>) -> Walk<'a> {
        Walk {
            cred,
            root: Origin::Root(self),
            base,
        }
    }

    /// The root now.
    pub fn root(&self) -> Result<Path> {
        Origin::Root(self).owned()
    }

    /// The working directory now.
    pub fn cwd(&self) -> Result<Path> {
        Origin::Cwd(self).owned()
    }

    /// Moves the working directory.
    pub fn set_cwd(&self, to: Path) {
        self.change(|places| places.cwd = Place::of(to));
    }

    /// Moves the root.
    pub fn set_root(&self, to: Path) {
        self.change(|places| places.root = Place::of(to));
    }

    fn change(&self, f: impl FnOnce(&mut Places)) {
        let guard = self.change.lock();
        let pin = guard.pin();
        let mut places = self.places.load(pin).cloned().unwrap_or(Places {
            root: Place::BootRoot,
            cwd: Place::BootRoot,
        });
        f(&mut places);
        self.places.replace(epoch(), pin, Some(Box::new(places)));
    }

    /// The bits that new files do not get.
    pub fn umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    /// Replaces the mask; returns the old one.
    pub fn set_umask(&self, mask: u32) -> u32 {
        self.umask.swap(mask & 0o777, Ordering::Relaxed)
    }
}
