//! Files in memory: creating and linking them.
//!
//! Directories are [`Dir`]s; the contents of a file are an object of the VM, whose pages are charged to the file system's
//! quota. By default the quota is half of memory, and there may be as many files and further names as pages. Creating and
//! writing fail with `NoSpace` when a quota is used up, and when memory is short.

use alloc::sync::{Arc, Weak};

use cred::{Cred, Payer};
use fscore::path::PATH_MAX;
use fscore::perm;
use ksync::{Mutex, Once};
use vm::{ObjectRef, Quota};

use super::dentry::{Dentry, Dir};
use super::error::{FsError, Result};
use super::ino::new_ino;
use super::inode::{Inode, LinkText, NewInode, Node, mode};
use super::mount::new_dev;
use super::place::Path;
use super::protect;
use super::quota::{self, may_name};
use super::rights::permitted;
use super::setattr::NewMode;
use super::superblock::{FsKind, Home, Super};
use super::xattr::list;
use super::xattr::store::Set;

/// The kind of a new file.
pub enum What<'a> {
    /// An empty regular file.
    File,
    /// An empty directory.
    Dir,
    /// A symbolic link with that text.
    Link(&'a [u8]),
    /// A fifo.
    Fifo,
    /// A device node, with its type bits and its device number.
    Device(u32, u64),
    /// The name of a socket.
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

/// Owner, permissions and account of a new file.
#[derive(Clone, Copy)]
pub struct Fresh {
    /// Permission bits, with the umask applied.
    pub perm: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// The account to which the memory of the file and of its first name is charged.
    pub payer: Payer,
}

impl Fresh {
    /// The values for a node that `cred` creates in the directory `parent`. Takes the umask into account.
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

/// Makes an inode for a node that `cred` creates in the directory `parent`, which has no name yet, and charges the quota for it. A
/// default list of the directory counts in the place of the umask. Fails with `NoSpace`; `NoMemory` for the list.
fn make_in(
    cred: &Cred,
    parent: &Inode,
    home: Home,
    what: &What,
    mode: NewMode,
) -> Result<Arc<Inode>> {
    let is_dir = matches!(what, What::Dir);
    let inherited = match what {
        What::Link(_) => None,
        _ => list::inherited(parent, is_dir, mode.perm, cred.payer)?,
    };
    let Some((bits, set)) = inherited else {
        return make(home, what, Fresh::inherit(cred, parent, what, mode), None);
    };
    let asked = Fresh::inherit(cred, parent, what, NewMode::exact(mode.perm));
    let perm = asked.perm & !0o777 | bits;
    make(home, what, Fresh { perm, ..asked }, set)
}

/// Makes an inode with these attributes that has no name yet, and charges the quota for it. Fails with `NoSpace`.
fn make(home: Home, what: &What, fresh: Fresh, set: Set) -> Result<Arc<Inode>> {
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
        Ok(node) => {
            let mut inode = Inode::new(new, node);
            inode.adopt(set);
            Ok(Arc::new(inode))
        }
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
        What::Fifo => Node::Fifo(Mutex::new(Weak::new())),
        What::Device(..) => Node::Device,
        What::Socket => Node::Socket(Once::new()),
    })
}

/// The settings of a new file system.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Owner and permissions of the root.
    pub root: Fresh,
    /// The limit on its pages; `None` for no limit.
    pub limit: Option<u64>,
    /// The limit on its files and their further names; `None` for no limit.
    pub inodes: Option<u64>,
}

impl Settings {
    /// A root that belongs to the superuser, with these permissions, and the default limits.
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

/// Makes an empty file system. Takes the mount table's lock, for a device number. Sleeps.
///
/// # Errors
/// `NoMemory` if there is none for a quota; `NoSpace` if there is none for the root, or the limit on files is 0.
pub fn new_super(kind: FsKind, settings: Settings) -> Result<Arc<Super>> {
    let dev = new_dev();
    let claim = |limit: Option<u64>| limit.map(quota::claim).transpose();
    let quota = claim(settings.limit)?;
    let give_back = |quota: Option<&'static Quota>| quota.into_iter().for_each(quota::release);
    let inodes = claim(settings.inodes).inspect_err(|_| give_back(quota))?;
    let home = Home { dev, quota, inodes };
    let root = make(home, &What::Dir, settings.root, None).inspect_err(|_| {
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

/// Creates a file named `name` in `dir`, if `cred` has the right to. The memory of its entry and its inode is charged to the user
/// of `cred`, the file to the file system's quotas. Takes the directory's lock. Sleeps.
///
/// # Errors
/// `ReadOnly`; `Access`; `NameTooLong` for the target of a symbolic link; `NoSpace`, also beyond the user's part of memory for
/// names; `NoMemory` for an inherited list; those of [`Dir::create`], of which `Exists` comes first, and of [`Inode::dir_to_add`].
pub fn create(
    cred: &Cred,
    dir: &Path,
    name: &[u8],
    what: &What,
    mode: NewMode,
) -> Result<Arc<Dentry>> {
    let parent = &dir.dentry.inode;
    let list = parent.dir_to_add(name)?;
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
        make_in(cred, parent, dir.mount.fs.home(), what, mode)
    })
}

/// Creates a file without a name in the file system of `dir`, for O_TMPFILE.
///
/// # Errors
/// As for [`create_unlisted`].
pub fn create_nameless(cred: &Cred, dir: &Path, mode: NewMode, exclusive: bool) -> Result<Path> {
    create_unlisted(cred, dir, b"#tmpfile", mode, exclusive)
}

/// Creates a file that is in no directory, in the file system of `dir`; /proc shows it as `shown`. It can be given a name later unless `exclusive`; otherwise it
/// goes with its last reference.
///
/// # Errors
/// `NotSupported` unless `dir` is a directory in memory; `ReadOnly`; `Access`; `NoSpace`.
pub fn create_unlisted(
    cred: &Cred,
    dir: &Path,
    shown: &[u8],
    mode: NewMode,
    exclusive: bool,
) -> Result<Path> {
    let parent = &dir.dentry.inode;
    if !matches!(parent.node, Node::Dir(_)) {
        return Err(FsError::NotSupported);
    }
    if dir.mount.is_read_only() {
        return Err(FsError::ReadOnly);
    }
    permitted(cred, parent, perm::WRITE | perm::EXEC)?;
    may_name(cred)?;
    let inode = make_in(cred, parent, dir.mount.fs.home(), &What::File, mode)?;
    inode.set_nameless(!exclusive);
    let dentry = Dentry::new(Some(dir.dentry.clone()), shown, inode, cred.payer);
    dentry.bury();
    dentry.note_watched_in(parent);
    Ok(Path {
        mount: dir.mount.clone(),
        dentry,
    })
}

/// The most names that a file may have.
const LINK_MAX: u32 = 1 << 30;

/// Makes another name of a file. `same_mount` says whether the path to the file led through the mount of `dir`. Takes the
/// directory's lock, and under it the data lock. Sleeps.
///
/// # Errors
/// `ReadOnly`; `CrossDevice`; `Perm` for a directory, or where [`protect::may_link`] says so; `Access`; `NoSpace`; those of
/// [`Inode::add_name`], [`Dir::create`] and [`Inode::dir_to_add`]. A name that was counted is taken back.
pub fn link(
    cred: &Cred,
    inode: &Arc<Inode>,
    dir: &Path,
    name: &[u8],
    same_mount: bool,
) -> Result<()> {
    let parent = &dir.dentry.inode;
    let list = parent.dir_to_add(name)?;
    let mut counted = false;
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
        // Counted before the name exists, so that an unlink meanwhile does not take it for the last name.
        inode.add_name(LINK_MAX)?;
        counted = true;
        Ok(inode.clone())
    });
    match &made {
        Ok(_) => {
            inode.links.named();
            inode.touch_ctime();
        }
        Err(_) if counted => inode.take_back_name(),
        Err(_) => {}
    }
    made.map(|_| ())
}
