//! devpts: the nodes of pseudo-terminals.
//!
//! Each mount of the type makes a file system of its own, with its own numbers. It has the node `ptmx`, which opens a new master there, and
//! one for each terminal whose master is open. A node of `ptmx`'s device number elsewhere, /dev/ptmx, opens a master in the devpts that is
//! mounted on `pts` beside it. Programs create and remove no names.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;

use cred::Payer;
use tty::pts::{Options, Pts};
use tty::pty;
use vfs::dentry::Dentry;
use vfs::dynamic::{DynDir, Dynamic, Emit, Entry};
use vfs::error::{FsError, Result};
use vfs::file::{FileRef, Kind};
use vfs::inode::{Inode, mode};
use vfs::mount::new_dev;
use vfs::place::Path;
use vfs::superblock::{FsKind, Super};
use vfs::walk;

/// The inode number of the root.
const ROOT_INO: u64 = 1;
/// The cookie after `ptmx`; that after the terminal with number `n` is this plus `n` plus 1.
const AFTER_PTMX: u64 = 3;

/// The root directory.
struct Root(Arc<Pts>);

impl DynDir for Root {
    fn lookup(&self, _: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        if name == b"ptmx" {
            return Ok(self.0.ptmx().clone());
        }
        let number = number(name).ok_or(FsError::NotFound)?;
        self.0.node(number).ok_or(FsError::NotFound)
    }

    fn list(&self, _: &Inode, from: u64, emit: &mut Emit) -> Result<()> {
        let mut entry = |next, inode: &Inode, name: &[u8]| {
            emit(Entry {
                next,
                ino: inode.ino,
                kind: mode::CHR,
                name,
            })
        };
        if from < AFTER_PTMX && !entry(AFTER_PTMX, self.0.ptmx(), b"ptmx") {
            return Ok(());
        }
        let mut at = u32::try_from(from.saturating_sub(AFTER_PTMX)).unwrap_or(u32::MAX);
        while let Some(number) = self.0.next(at) {
            let name = alloc::format!("{number}");
            let next = AFTER_PTMX + u64::from(number) + 1;
            if let Some(inode) = self.0.node(number)
                && !entry(next, &inode, name.as_bytes())
            {
                break;
            }
            at = number + 1;
        }
        Ok(())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// The number that a name is in decimal, without leading zeros.
fn number(name: &[u8]) -> Option<u32> {
    let digits = name.iter().all(u8::is_ascii_digit);
    let plain = digits && (name.len() == 1 || name.first() != Some(&b'0'));
    core::str::from_utf8(name)
        .ok()
        .filter(|_| plain)?
        .parse()
        .ok()
}

/// Makes a devpts, to be mounted.
///
/// # Errors
/// `NoMemory`.
pub fn new_super(options: Options) -> Result<Arc<Super>> {
    mem::admit().map_err(|_| FsError::NoMemory)?;
    let dev = new_dev();
    let root = Root(Pts::new(dev, options));
    let root = Dynamic::Dir(Box::new(root)).inode(dev, ROOT_INO, 0o755, (0, 0));
    Ok(Arc::new(Super {
        kind: FsKind::Devpts,
        dev,
        root: Dentry::new(None, b"", root, Payer::NOBODY),
        quota: None,
        inodes: None,
    }))
}

/// The terminals of a file system; `None` if it is no devpts.
pub fn terminals(fs: &Super) -> Option<&Arc<Pts>> {
    fs.root.inode.made_by().map(|Root(pts)| pts)
}

/// The root of the devpts that belongs to a node of `ptmx`: that of its own file system, or what is mounted on `pts` beside it.
///
/// # Errors
/// `NoDevice` if that is no devpts; `NotFound` if there is no such name.
fn root_for(node: &Path) -> Result<Path> {
    if terminals(&node.mount.fs).is_some() {
        return Ok(Path {
            mount: node.mount.clone(),
            dentry: node.mount.fs.root.clone(),
        });
    }
    let up = node.dentry.parent(&ksync::pin()).cloned();
    let dir = Path {
        mount: node.mount.clone(),
        dentry: up.ok_or(FsError::NoDevice)?,
    };
    let pts = walk::child(&dir, b"pts")?;
    match terminals(&pts.mount.fs) {
        Some(_) if Arc::ptr_eq(&pts.dentry, &pts.mount.fs.root) => Ok(pts),
        _ => Err(FsError::NoDevice),
    }
}

/// Opens a new master through a node of `ptmx`.
///
/// # Errors
/// Those of [`pty::open_master`]; `NoDevice` or `NotFound` if no devpts belongs to the node.
pub fn open_master(node: &Path) -> Result<Kind> {
    let root = root_for(node)?;
    let pts = terminals(&root.mount.fs).ok_or(FsError::NoDevice)?;
    pty::open_master(pts)
}

/// Opens a terminal through its node.
///
/// # Errors
/// Those of [`pty::open_slave`]; `Io` if the node is not that of a devpts.
pub fn open_slave(node: &Path, flags: u32) -> Result<Kind> {
    let pts = terminals(&node.mount.fs).ok_or(FsError::Io)?;
    pty::open_slave(pts, node, flags)
}

/// Opens the terminal of a master (TIOCGPTPEER).
///
/// # Errors
/// Those of [`pty::MasterFile::open_peer`] and [`open_master`]: the master's devpts must be where its node leads. `NotTty` if the file is
/// no master.
pub fn open_peer(file: &FileRef, flags: u32) -> Result<FileRef> {
    let master = pty::master(file).ok_or(FsError::NotTty)?;
    let root = root_for(file.path.as_ref().ok_or(FsError::NoDevice)?)?;
    let pts = terminals(&root.mount.fs).ok_or(FsError::NoDevice)?;
    master.open_peer(&root, pts, flags)
}
