//! Files in memory: making and removing them.
//!
//! Directories are [`Dir`]s, file contents are VM objects, whose pages are charged to the file system's quota: half of
//! memory, or what was asked for. As many files, and further names of files, may there be. Creation and writing fail with "no space" when that is used up, and when
//! memory runs short.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use cred::{Charge, Cred, Payer};
use fscore::path::PATH_MAX;
use fscore::perm;
use ksync::{Mutex, Once, PerCpu};
use vm::{ObjectRef, Quota};

use super::dentry::{Dentry, Dir};
use super::error::{FsError, Result};
use super::inode::{Inode, LinkText, NewInode, Node, mode};
use super::mount::{FsKind, Home, Path, Super, new_dev};
use super::setattr::NewMode;
use super::walk::permitted;
use super::{protect, quota};

/// Inode numbers: each CPU counts in steps of the number of CPUs.
static INODES: Once<PerCpu<AtomicU64>> = Once::new();

/// Sets up the numbers.
pub fn init(ncpus: usize) {
    let _ = INODES.set(PerCpu::new(ncpus, |cpu| {
        AtomicU64::new((cpu + 2 * ncpus) as u64)
    }));
}

/// A number that no other inode in memory has.
pub fn new_ino() -> u64 {
    let Some(inodes) = INODES.get() else {
        return 1;
    };
    let pin = ksync::pin();
    // Written by this CPU alone.
    let mine = inodes.get(&pin);
    let ino = mine.load(Ordering::Relaxed);
    mine.store(ino + inodes.ncpus() as u64, Ordering::Relaxed);
    ino
}

/// What is to be made.
pub enum What<'a> {
    /// An empty regular file.
    File,
    /// An empty directory.
    Dir,
    /// A symbolic link.
    Link(&'a [u8]),
    /// A fifo.
    Fifo,
    /// A device node; type bits and device number.
    Device(u32, u64),
    /// A socket's name.
    Socket,
}

impl What<'_> {
    fn kind(&self) -> u32 {
        match self {
            What::File => mode::REG,
            What::Dir => mode::DIR,
            What::Link(_) => mode::LNK,
            What::Fifo => mode::FIFO,
            What::Device(kind, _) => *kind,
            What::Socket => mode::SOCK,
        }
    }
}

/// Owner and permissions of a new file.
#[derive(Clone, Copy)]
pub struct Fresh {
    /// Permission bits, umask applied.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Who pays for the memory of the file and of its first name.
    pub payer: Payer,
}

impl Fresh {
    /// Those of a node that `cred` makes in the directory `parent`.
    fn inherit(cred: &Cred, parent: &Inode, what: &What, mode: NewMode) -> Fresh {
        let (gid, perm) = mode.inherit(cred, parent, matches!(what, What::Dir));
        Fresh {
            perm,
            uid: cred.fsuid,
            gid,
            payer: cred.payer,
        }
    }
}

/// Makes an inode without a name.
fn make(home: Home, what: &What, fresh: Fresh) -> Result<Arc<Inode>> {
    mem::admit().map_err(|_| FsError::NoSpace)?;
    let rdev = if let What::Device(_, rdev) = what {
        *rdev
    } else {
        0
    };
    let mode = what.kind() | fresh.perm & mode::PERM;
    let new = NewInode {
        ino: new_ino(),
        dev: home.dev,
        mode,
        uid: fresh.uid,
        gid: fresh.gid,
        rdev,
        charge: home.inodes,
        payer: fresh.payer,
    };
    if !home.inodes.is_none_or(|quota| quota.charge(&ksync::pin())) {
        return Err(FsError::NoSpace);
    }
    match node(home, what) {
        Ok(node) => Ok(Arc::new(Inode::new(new, node))),
        Err(e) => {
            home.inodes
                .into_iter()
                .for_each(|quota| quota.give(&ksync::pin(), 1));
            Err(e)
        }
    }
}

fn node(home: Home, what: &What) -> Result<Node> {
    Ok(match what {
        What::File => {
            let object = ObjectRef::new_file(mem::vm(), home.quota);
            Node::file(object.map_err(|_| FsError::NoSpace)?)
        }
        What::Dir => Node::Dir(Dir::new()),
        What::Link(text) => Node::Link(LinkText::new(text, home.quota)?),
        What::Fifo => Node::Fifo(Mutex::new(None)),
        What::Device(..) => Node::Device,
        What::Socket => Node::Socket,
    })
}

/// What a new file system begins with.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Owner and permissions of the root.
    pub root: Fresh,
    /// Pages that its files may have; none for no limit.
    pub limit: Option<u64>,
    /// Files, and further names of files, that it may have; none for no limit.
    pub inodes: Option<u64>,
}

impl Settings {
    /// Root's, with these permissions, and the usual limits.
    pub fn new(perm: u32) -> Settings {
        Settings {
            root: Fresh {
                perm,
                uid: 0,
                gid: 0,
                payer: Payer::NOBODY,
            },
            limit: Some(quota::default_limit()),
            inodes: Some(quota::default_limit()),
        }
    }
}

/// A new, empty file system.
pub fn new_super(kind: FsKind, settings: Settings) -> Result<Arc<Super>> {
    let dev = new_dev();
    let claim = |limit: Option<u64>| limit.map(quota::claim).transpose();
    let quota = claim(settings.limit)?;
    let give_back = |quota: Option<&'static Quota>| quota.into_iter().for_each(quota::release);
    let inodes = claim(settings.inodes).inspect_err(|_| give_back(quota))?;
    let home = Home { dev, quota, inodes };
    let root = make(home, &What::Dir, settings.root).inspect_err(|_| {
        give_back(quota);
        give_back(inodes);
    })?;
    Ok(Arc::new(Super {
        kind,
        dev,
        root: Dentry::new(None, b"", root, Payer::NOBODY),
        quota,
        inodes,
    }))
}

/// Names and files, without their pages, of one user without privileges take at most this part of memory.
const NAMES_PART: u64 = 4;

/// Whether `cred` may have another name.
fn may_name(cred: &Cred) -> Result<()> {
    let pages = mem::vm().alloc.total_pages() as u64;
    let most = pages / NAMES_PART * hal::PAGE_SIZE as u64;
    let payer = cred.payer;
    if payer.is_limited() && payer.is_over(Charge::Names, most) && !cred.beyond_user_limits() {
        return Err(FsError::NoSpace);
    }
    Ok(())
}

/// Makes a named file in `dir` on behalf of `cred`.
pub fn create(
    cred: &Cred,
    dir: &Path,
    name: &[u8],
    what: &What,
    mode: NewMode,
) -> Result<Arc<Dentry>> {
    let parent = &dir.dentry.inode;
    let list = parent.dir()?;
    list.create(&dir.dentry, name, cred.payer, || {
        if dir.mount.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        permitted(cred, parent, perm::WRITE | perm::EXEC)?;
        if let What::Link(text) = what
            && text.len() >= PATH_MAX
        {
            return Err(FsError::NameTooLong);
        }
        may_name(cred)?;
        make(
            dir.mount.fs.home(),
            what,
            Fresh::inherit(cred, parent, what, mode),
        )
    })
}

/// Makes a file without a name, which can get one unless `exclusive`, in the file system of `dir`. It lasts as long as
/// somebody has it open.
pub fn create_nameless(cred: &Cred, dir: &Path, mode: NewMode, exclusive: bool) -> Result<Path> {
    let parent = &dir.dentry.inode;
    if !matches!(parent.node, Node::Dir(_)) {
        return Err(FsError::NotSupported);
    }
    if dir.mount.is_read_only() {
        return Err(FsError::ReadOnly);
    }
    permitted(cred, parent, perm::WRITE | perm::EXEC)?;
    may_name(cred)?;
    let fresh = Fresh::inherit(cred, parent, &What::File, mode);
    let inode = make(dir.mount.fs.home(), &What::File, fresh)?;
    inode.set_nameless(!exclusive);
    let dentry = Dentry::new(Some(dir.dentry.clone()), b"#tmpfile", inode, cred.payer);
    dentry.bury();
    Ok(Path {
        mount: dir.mount.clone(),
        dentry,
    })
}

/// Most names that one file may have.
const LINK_MAX: u32 = 1 << 30;

/// Gives a file another name; `same_mount` says whether the path to it led through the mount of `dir`.
pub fn link(
    cred: &Cred,
    inode: &Arc<Inode>,
    dir: &Path,
    name: &[u8],
    same_mount: bool,
) -> Result<()> {
    let parent = &dir.dentry.inode;
    let list = parent.dir()?;
    let mut first = None;
    let made = list.create(&dir.dentry, name, cred.payer, || {
        if dir.mount.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        if !same_mount || inode.dev != parent.dev {
            return Err(FsError::CrossDevice);
        }
        protect::may_link(cred, inode)?;
        permitted(cred, parent, perm::WRITE | perm::EXEC)?;
        if inode.is_dir() {
            return Err(FsError::Perm);
        }
        may_name(cred)?;
        // Counted before the name is there: an unlink meanwhile must not see the last name.
        first = Some(inode.add_name(LINK_MAX)?);
        Ok(inode.clone())
    });
    match (&made, first) {
        (Ok(_), _) => inode.touch_ctime(),
        (Err(_), Some(first)) => inode.take_back_name(first),
        (Err(_), None) => {}
    }
    made.map(|_| ())
}
