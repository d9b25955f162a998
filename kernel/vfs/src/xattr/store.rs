//! The extended attributes of one inode, as a set that never changes.
//!
//! Guarantee: a set has up to [`MANY`] attributes with up to [`MOST`] bytes of names and values, and its list of names has up to [`LIST_MOST`]. Each part of it is
//! charged to the user that made it, as long as a set has it.
//!
//! Mechanism: a change makes a new set, which shares the parts that stay. So a reader that has a set sees each value whole, as
//! it was set, and needs no lock.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use cred::{MemoryCharge, Payer};
use fscore::acl::{Acl, AclError};

use crate::error::{FsError, Result};

/// Names that a process without CAP_SYS_ADMIN can neither use nor see.
pub const TRUSTED: &[u8] = b"trusted.";
/// Attributes, besides access control lists, that one inode may have.
pub const MANY: usize = 1024;
/// Bytes of names and values that one inode may have.
pub const MOST: usize = 1 << 20;
/// Bytes of the list of names that one inode may have: what listxattr(2) can return.
pub const LIST_MOST: usize = 1 << 16;
/// What is charged for a part besides its bytes: its record, and its place in two sets.
const RECORD: usize = 112;

/// The two access control lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AclKind {
    /// The one that accesses are checked against.
    Access,
    /// That of a directory, which new files in it inherit.
    Default,
}

impl AclKind {
    /// Both, in the order in which they are listed.
    pub const ALL: [AclKind; 2] = [AclKind::Access, AclKind::Default];

    /// The name of the attribute.
    pub fn name(self) -> &'static [u8] {
        match self {
            AclKind::Access => b"system.posix_acl_access",
            AclKind::Default => b"system.posix_acl_default",
        }
    }
}

/// An attribute: a name and bytes.
pub struct Named {
    name: Box<[u8]>,
    value: Box<[u8]>,
    _memory: MemoryCharge,
}

impl Named {
    /// A copy of `name` and `value`, charged to `payer`.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn new(name: &[u8], value: Vec<u8>, payer: Payer) -> Result<Arc<Named>> {
        admit()?;
        let bytes = name.len() + value.len() + RECORD;
        Ok(Arc::new(Named {
            name: copy(name)?,
            value: value.into_boxed_slice(),
            _memory: MemoryCharge::names(payer, bytes),
        }))
    }

    /// The value.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    fn bytes(&self) -> usize {
        self.name.len() + self.value.len()
    }
}

/// An access control list and its charge.
pub struct KeptAcl {
    /// The list. It is valid.
    pub acl: Acl,
    memory: MemoryCharge,
}

impl KeptAcl {
    /// A list that is charged to `payer`.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn new(acl: Acl, payer: Payer) -> Result<Arc<KeptAcl>> {
        admit()?;
        let bytes = acl.len() + RECORD;
        Ok(Arc::new(KeptAcl {
            acl,
            memory: MemoryCharge::names(payer, bytes),
        }))
    }

    /// The same list after a chmod(2), charged to the same account.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn with_mode(&self, mode: u32) -> Result<Arc<KeptAcl>> {
        let acl = self.acl.with_mode(mode).map_err(refused)?;
        KeptAcl::new(acl, self.payer())
    }

    /// The account to which the list is charged.
    pub fn payer(&self) -> Payer {
        self.memory.payer()
    }
}

/// What an attribute may be before it is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// It may exist or not.
    Any,
    /// It must not exist (XATTR_CREATE).
    Create,
    /// It must exist (XATTR_REPLACE).
    Replace,
    /// Both, which is impossible; the errors are those of Linux.
    Never,
}

/// The attributes of an inode.
pub struct Attributes {
    /// By their kind.
    acls: [Option<Arc<KeptAcl>>; 2],
    /// The latest first; one that is replaced keeps its place.
    named: Vec<Arc<Named>>,
    _memory: MemoryCharge,
}

/// A set, or `None` for one that has nothing.
pub type Set = Option<Arc<Attributes>>;

impl Attributes {
    /// A set of these parts, whose own record is charged to `payer`.
    ///
    /// # Errors
    /// `NoMemory`; `NoSpace` beyond the limits of a set.
    pub fn of(
        acls: [Option<Arc<KeptAcl>>; 2],
        named: Vec<Arc<Named>>,
        payer: Payer,
    ) -> Result<Set> {
        if named.is_empty() && acls.iter().all(Option::is_none) {
            return Ok(None);
        }
        admit()?;
        let set = Attributes {
            acls,
            named,
            _memory: MemoryCharge::names(payer, size_of::<Attributes>() + 2 * size_of::<usize>()),
        };
        let lists = set.acls.iter().flatten().map(|kept| kept.acl.len());
        let bytes = set
            .named
            .iter()
            .map(|n| n.bytes())
            .chain(lists)
            .sum::<usize>();
        let listed = set.names(true).map(|name| name.len() + 1).sum::<usize>();
        if set.named.len() > MANY || bytes > MOST || listed > LIST_MOST {
            return Err(FsError::NoSpace);
        }
        Ok(Some(Arc::new(set)))
    }

    /// The list of a kind.
    pub fn acl(&self, kind: AclKind) -> Option<&Arc<KeptAcl>> {
        self.acls[kind as usize].as_ref()
    }

    /// The attribute with that name, if it is none of the lists.
    pub fn named(&self, name: &[u8]) -> Option<&Arc<Named>> {
        self.named.iter().find(|n| *n.name == *name)
    }

    /// All names, or those that a process without CAP_SYS_ADMIN sees.
    fn names(&self, trusted: bool) -> impl Iterator<Item = &[u8]> {
        let lists = AclKind::ALL.into_iter();
        let lists = lists.filter_map(|kind| self.acl(kind).map(|_| kind.name()));
        let named = self.named.iter().map(|n| &*n.name);
        let shown = move |name: &&[u8]| trusted || !name.starts_with(TRUSTED);
        lists.chain(named.filter(shown))
    }

    /// The names, each with a NUL after it.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn list(&self, trusted: bool) -> Result<Vec<u8>> {
        let len = self.names(trusted).map(|name| name.len() + 1).sum();
        let mut list = room(len)?;
        for name in self.names(trusted) {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(list)
    }
}

/// The lists of a set.
fn acls(old: &Set) -> [Option<Arc<KeptAcl>>; 2] {
    old.as_ref()
        .map_or([const { None }; 2], |set| set.acls.clone())
}

/// The attributes of a set that are no lists, with room for one more.
fn named(old: &Set) -> Result<Vec<Arc<Named>>> {
    let old = old.as_ref().map_or(&[][..], |set| &set.named);
    let mut new = room(old.len() + 1)?;
    new.extend_from_slice(old);
    Ok(new)
}

/// `old` with `new` in it.
///
/// # Errors
/// `Exists` or `NoData` by `how`; `NoMemory`; `NoSpace`.
pub fn with_named(old: &Set, new: Arc<Named>, how: How, payer: Payer) -> Result<Set> {
    let mut list = named(old)?;
    match list.iter().position(|n| n.name == new.name) {
        Some(_) if matches!(how, How::Create | How::Never) => return Err(FsError::Exists),
        Some(at) => list[at] = new,
        None if matches!(how, How::Replace | How::Never) => return Err(FsError::NoData),
        None => list.insert(0, new),
    }
    Attributes::of(acls(old), list, payer)
}

/// `old` without that attribute.
///
/// # Errors
/// `NoData` if it is not there; `NoMemory`.
pub fn without_named(old: &Set, name: &[u8], payer: Payer) -> Result<Set> {
    let mut list = named(old)?;
    let at = list.iter().position(|n| *n.name == *name);
    list.remove(at.ok_or(FsError::NoData)?);
    Attributes::of(acls(old), list, payer)
}

/// `old` with that access control list, or with none.
///
/// # Errors
/// `NoMemory`; `NoSpace`.
pub fn with_acl(old: &Set, kind: AclKind, new: Option<Arc<KeptAcl>>, payer: Payer) -> Result<Set> {
    let mut lists = acls(old);
    lists[kind as usize] = new;
    Attributes::of(lists, named(old)?, payer)
}

/// Checks that the kernel may make another object; it is small, or allocated so that it may fail.
fn admit() -> Result<()> {
    mem::admit().map_err(|_| FsError::NoMemory)
}

/// An empty vector with room for `n`.
fn room<T>(n: usize) -> Result<Vec<T>> {
    let mut new = Vec::new();
    new.try_reserve_exact(n).map_err(|_| FsError::NoMemory)?;
    Ok(new)
}

fn copy(bytes: &[u8]) -> Result<Box<[u8]>> {
    let mut new = room(bytes.len())?;
    new.extend_from_slice(bytes);
    Ok(new.into_boxed_slice())
}

/// The error of a list.
pub fn refused(e: AclError) -> FsError {
    match e {
        AclError::Malformed => FsError::Invalid,
        AclError::Version => FsError::NotSupported,
        AclError::NoMemory => FsError::NoMemory,
    }
}
