//! A process's view of the tree: root, working directory, file mode mask.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use ksync::{Once, Spin};

use super::error::{FsError, Result};
use super::mount::Path;
use super::walk::Walk;
use crate::kern::cred::Cred;

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

/// Root, working directory and mask; shared by threads (`CLONE_FS`), copied by fork.
pub struct FsContext {
    places: Spin<Places, ContextLock>,
    umask: AtomicU32,
}

/// The places of a process at one moment, for a lookup.
pub struct View {
    root: Place,
    cwd: Place,
}

impl View {
    fn path(place: &Place) -> Result<&Path> {
        match place {
            Place::BootRoot => boot_root(),
            Place::At(path) => Ok(path),
        }
    }

    /// The root.
    pub fn root(&self) -> Result<&Path> {
        Self::path(&self.root)
    }

    /// The working directory.
    pub fn cwd(&self) -> Result<&Path> {
        Self::path(&self.cwd)
    }

    /// A walk that begins at the working directory.
    pub fn walk<'a>(&'a self, cred: &'a Cred) -> Result<Walk<'a>> {
        Ok(Walk {
            cred,
            root: self.root()?,
            base: self.cwd()?,
        })
    }

    /// A walk that begins at `base`.
    pub fn walk_from<'a>(&'a self, cred: &'a Cred, base: &'a Path) -> Result<Walk<'a>> {
        Ok(Walk {
            cred,
            root: self.root()?,
            base,
        })
    }
}

impl FsContext {
    /// The context of the first process: boot root, mask 022.
    pub fn boot() -> Arc<Self> {
        Arc::new(FsContext {
            places: Spin::new(Places {
                root: Place::BootRoot,
                cwd: Place::BootRoot,
            }),
            umask: AtomicU32::new(0o022),
        })
    }

    /// A copy for a child process.
    pub fn fork(&self) -> Arc<Self> {
        Arc::new(FsContext {
            places: Spin::new(self.places.lock().clone()),
            umask: AtomicU32::new(self.umask()),
        })
    }

    /// Root and working directory now.
    pub fn view(&self) -> View {
        let Places { root, cwd } = self.places.lock().clone();
        View { root, cwd }
    }

    /// Moves the working directory.
    pub fn set_cwd(&self, to: Path) {
        let new = Place::of(to);
        let old = core::mem::replace(&mut self.places.lock().cwd, new);
        drop(old);
    }

    /// Moves the root.
    pub fn set_root(&self, to: Path) {
        let new = Place::of(to);
        let old = core::mem::replace(&mut self.places.lock().root, new);
        drop(old);
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
