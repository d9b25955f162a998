//! Addresses of local sockets: paths and abstract names.
//!
//! Guarantee: at most one socket has a name. A name leads to its socket until the socket is closed, and keeps nothing of it afterwards.
//! Mechanism: [`Bound`] stands for the name. The inode of a path has a reference to it, for good; the table of abstract names has one
//! as long as the socket is open.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use fscore::perm;
use ksync::Spin;
use task::current::current;
use vfs::error::FsError;
use vfs::inode::Node;
use vfs::open;
use vfs::rights::permitted;
use vfs::setattr::NewMode;
use vfs::tmpfs::{self, What};
use vfs::walk::{Last, Walk, Want};

use crate::address::copied;
use crate::connection::Listener;
use crate::error::{Result, SocketError};
use crate::inbox::Inbox;

pub use crate::address::{AF_UNIX, Name, Type, family};

ksync::lock_class!(pub AbstractLock, "abstract names", rank = 84);
ksync::lock_class!(pub BoundLock, "bound socket", rank = 86);

/// Shards of the table of abstract names.
const SHARDS: usize = 16;
/// Names that autobind may give: five digits of sixteen.
const AUTO: u32 = 1 << 20;

/// What a name leads to.
#[derive(Clone, Default)]
pub enum Target {
    /// Nothing: the socket is closed.
    #[default]
    Closed,
    /// A socket that does not listen.
    Idle,
    /// A listener.
    Listener(Arc<Listener>),
    /// A datagram socket.
    Inbox(Arc<Inbox>),
}

/// A name that a socket has, or had.
pub struct Bound {
    /// The socket's type.
    pub kind: Type,
    /// The name.
    pub name: Arc<Name>,
    target: Spin<Target, BoundLock>,
}

impl Bound {
    /// What it leads to now.
    pub fn target(&self) -> Target {
        self.target.lock().clone()
    }

    /// Sets what it leads to.
    pub fn lead_to(&self, target: Target) {
        let old = core::mem::replace(&mut *self.target.lock(), target);
        drop(old);
    }
}

/// A type and a name.
type Key = (u32, Vec<u8>);

hal::machine_static! {
    /// The abstract names, by their last byte.
    static ABSTRACT: [Spin<BTreeMap<Key, Arc<Bound>>, AbstractLock>; SHARDS] =
        [const { Spin::new(BTreeMap::new()) }; SHARDS];
}

fn shard(text: &[u8]) -> usize {
    text.last().map_or(0, |&b| usize::from(b) % SHARDS)
}

/// Gives a name to a socket of this type, for which `target` stands. Takes locks of directories; sleeps.
///
/// # Errors
/// `AddressInUse`; those of a creation of a file; `NoMemory`.
pub fn bind(kind: Type, name: Name, target: Target) -> Result<Arc<Bound>> {
    mem::admit_process()?;
    let bound = Arc::new(Bound {
        kind,
        name: Arc::new(name),
        target: Spin::new(target),
    });
    match &*bound.name {
        Name::Abstract(text) => add(text, &bound)?,
        Name::Path(path) => {
            let made = with_walk(|walk, umask| make(walk, path, umask, bound.clone()));
            made.map_err(|e| match e {
                SocketError::File(FsError::Exists) => SocketError::AddressInUse,
                e => e,
            })?;
        }
    }
    Ok(bound)
}

/// Gives a free abstract name to a socket of this type.
///
/// # Errors
/// `NoSpace` if none was found; `NoMemory`.
pub fn bind_any(kind: Type, target: &Target) -> Result<Arc<Bound>> {
    let from = first_number();
    for i in 0..AUTO {
        let mut text = Vec::new();
        let number = from.wrapping_add(i) % AUTO;
        for digit in (0..5).rev() {
            text.push(b"0123456789abcdef"[(number >> (4 * digit)) as usize % 16]);
        }
        match bind(kind, Name::Abstract(text), target.clone()) {
            Err(SocketError::AddressInUse) => {}
            bound => return bound,
        }
    }
    Err(FsError::NoSpace.into())
}

/// Where the search for a free name begins: two sockets that look at once seldom meet.
fn first_number() -> u32 {
    (task::time::monotonic_ns() >> 6) as u32 ^ current().tid() << 8
}

fn add(text: &[u8], bound: &Arc<Bound>) -> Result<()> {
    let key = (bound.kind as u32, copied(text)?);
    let mut names = ABSTRACT[shard(text)].lock();
    if names.contains_key(&key) {
        return Err(SocketError::AddressInUse);
    }
    names.insert(key, bound.clone());
    Ok(())
}

/// The socket of a name is closed: the name leads nowhere, and an abstract one is free.
pub fn unbind(bound: &Arc<Bound>) {
    bound.lead_to(Target::Closed);
    if let Name::Abstract(text) = &*bound.name {
        let key = (bound.kind as u32, text.clone());
        let removed = ABSTRACT[shard(text)].lock().remove(&key);
        drop(removed);
    }
}

/// Calls `f` with a walk of the calling process, and its umask.
fn with_walk<R>(f: impl FnOnce(&Walk, u32) -> Result<R>) -> Result<R> {
    let cred = current().cred();
    proc::with_fs(|fs| f(&fs.walk(&cred), fs.umask())).unwrap_or(Err(FsError::NotFound.into()))
}

/// Makes the inode of a path.
fn make(walk: &Walk, path: &[u8], umask: u32, bound: Arc<Bound>) -> Result<()> {
    let (dir, last) = walk.parent(path)?;
    let Last::Name(name, slash) = last else {
        return Err(FsError::Exists.into());
    };
    if slash {
        return Err(FsError::NotFound.into());
    }
    // As in Linux the umask counts beside a default list of the directory.
    let mode = NewMode::exact(0o777 & !umask);
    open::writable_dir(&dir).map_err(|e| match vfs::walk::child(&dir, name) {
        Ok(_) => FsError::Exists,
        Err(_) => e,
    })?;
    let dentry = tmpfs::create(walk.cred, &dir, name, &What::Socket, mode)?;
    if let Node::Socket(slot) = &dentry.inode.node {
        let any: Arc<dyn Any + Send + Sync> = bound;
        // The inode is new: nobody else sets it.
        let _ = slot.set(any);
    }
    Ok(())
}

/// The socket of a name, which is of this type, for a process that may write to it.
///
/// # Errors
/// `ConnectionRefused` if there is none; `WrongType`; those of a lookup of a path, `Access` among them.
pub fn find(kind: Type, name: &Name) -> Result<Arc<Bound>> {
    let refused = SocketError::File(FsError::ConnectionRefused);
    match name {
        Name::Abstract(text) => {
            let key = (kind as u32, copied(text)?);
            ABSTRACT[shard(text)]
                .lock()
                .get(&key)
                .cloned()
                .ok_or(refused)
        }
        Name::Path(path) => with_walk(|walk, _| {
            let place = walk.find(path, Want::FOLLOW)?;
            let inode = &place.dentry.inode;
            permitted(walk.cred, inode, perm::WRITE)?;
            let Node::Socket(slot) = &inode.node else {
                return Err(refused);
            };
            let any = slot.get().ok_or(refused)?.clone();
            let bound: Arc<Bound> = any.downcast().map_err(|_| refused)?;
            if matches!(bound.target(), Target::Closed) {
                return Err(refused);
            }
            if bound.kind != kind {
                return Err(SocketError::WrongType);
            }
            Ok(bound)
        }),
    }
}
