//! Access control lists of inodes: what they grant, how they follow the mode, and what new files inherit.
//!
//! Guarantee: a check of rights sees a list that was the file's at some moment of the check, and a file that has just lost its list by
//! its new mode. The mode's word says whether there is a list, so that a file without one costs nothing.
//!
//! Mechanism: a list is published before the bit of the mode that says so, and the bit is cleared before the list is taken away. A
//! reader that finds the bit and no list looks at the mode again. All changes are made under [`Inode::lock`].

use ksync::atomic::Ordering;

use cred::{Cred, Payer};
use fscore::acl::{Acl, Subject};

use super::store::{self, AclKind, Attributes, KeptAcl, Set};
use crate::error::{FsError, Result};
use crate::inode::{HAS_ACCESS_LIST, HAS_DEFAULT_LIST, Inode, mode};
use crate::quota::may_name;
use crate::rights::owns;
use crate::setattr::in_group_or_capable;

/// The bit of the mode's word that says that there is a list of that kind.
fn bit(kind: AclKind) -> u32 {
    match kind {
        AclKind::Access => HAS_ACCESS_LIST,
        AclKind::Default => HAS_DEFAULT_LIST,
    }
}

impl Inode {
    /// The word of the mode: the bits of `st_mode`, and what stands beside them. What was stored before one of these was set, is seen.
    #[inline]
    pub(crate) fn mode_word(&self) -> u32 {
        self.mode.load(Ordering::Acquire)
    }

    /// The attributes now.
    pub(super) fn attributes_now(&self) -> Set {
        self.attributes.get(&ksync::pin())
    }

    /// Replaces the attributes. The caller holds [`Inode::lock`].
    pub(super) fn replace_attributes(&self, new: Set) {
        self.attributes.replace(mem::epoch(), &ksync::pin(), new);
    }

    /// Sets the bits `to` of those in `which`, in the word of the mode, after all earlier stores.
    fn change_mode(&self, which: u32, to: u32) {
        let change = |old: u32| Some(old & !which | to & which);
        let _ = (self.mode).fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
    }

    /// Gives a new inode what it has inherited. Nobody else knows the inode yet.
    pub(crate) fn adopt(&mut self, inherited: Set) {
        let Some(set) = &inherited else { return };
        let kinds = AclKind::ALL
            .into_iter()
            .filter(|&kind| set.acl(kind).is_some());
        let bits = kinds.fold(0, |bits, kind| bits | bit(kind));
        self.change_mode(bits, bits);
        self.attributes = ksync::EpochPtr::new(inherited);
    }
}

/// Whether the file's list grants `want` to `cred`, which is not the owner; `None` if the file has no list. Called where `inode`'s mode has
/// said that there is one.
#[cold]
#[inline(never)]
pub fn granted(cred: &Cred, inode: &Inode, want: u32) -> Option<bool> {
    let pin = ksync::pin();
    let subject = Subject {
        uid: cred.fsuid,
        in_group: |gid| cred.in_group(gid),
        owner: inode.uid(),
        owning_group: inode.gid(),
    };
    let set = inode.attributes.load(&pin)?;
    let kept = set.acl(AclKind::Access)?;
    Some(kept.acl.grants(&subject, want))
}

/// Changes the file's list to that for a mode with the permission bits `perm`, which the caller sets next. The caller holds [`Inode::lock`].
///
/// # Errors
/// `NoMemory`; nothing has changed.
pub fn follow_mode(inode: &Inode, perm: u32) -> Result<()> {
    if inode.mode_word() & HAS_ACCESS_LIST == 0 {
        return Ok(());
    }
    let old = inode.attributes_now();
    let Some(kept) = old.as_ref().and_then(|set| set.acl(AclKind::Access)) else {
        return Ok(());
    };
    if kept.acl.mode_bits() == perm & 0o777 {
        return Ok(());
    }
    let new = kept.with_mode(perm)?;
    let payer = new.payer();
    let set = store::with_acl(&old, AclKind::Access, Some(new), payer)?;
    inode.replace_attributes(set);
    Ok(())
}

/// Sets or removes a list of a file. The caller has checked that the mount is writable, and is told of nothing.
///
/// # Errors
/// `NotSupported` for a symbolic link; `Access` for a default list of what is no directory; `Perm` unless `cred` [`owns`] the file;
/// `Invalid` for a list that is not valid; `NoSpace`, also beyond the user's part of memory for names; `NoMemory`. Then nothing has changed.
pub fn set(cred: &Cred, inode: &Inode, kind: AclKind, new: Option<Acl>) -> Result<()> {
    if inode.kind() == mode::LNK {
        return Err(FsError::NotSupported);
    }
    if kind == AclKind::Default && !inode.is_dir() {
        return new.map_or(Ok(()), |_| Err(FsError::Access));
    }
    let _lock = inode.lock.lock();
    if !owns(cred, inode) {
        return Err(FsError::Perm);
    }
    if new.as_ref().is_some_and(|acl| !acl.is_valid()) {
        return Err(FsError::Invalid);
    }
    let mut lost = 0;
    let mut bits = inode.mode() & 0o777;
    let mut kept = new;
    if kind == AclKind::Access {
        bits = kept.as_ref().map_or(bits, Acl::mode_bits);
        // The mode says the same.
        kept = kept.filter(|acl| !acl.is_mode());
        if !in_group_or_capable(cred, inode.gid()) {
            lost = mode::SGID;
        }
    }
    let is = if kept.is_some() { bit(kind) } else { 0 };
    let kept = kept.map(|acl| KeptAcl::new(acl, cred.payer)).transpose()?;
    if kept.is_some() {
        may_name(cred)?;
    }
    let old = inode.attributes_now();
    let set = store::with_acl(&old, kind, kept, cred.payer)?;
    if is == 0 {
        inode.change_mode(0o777 | lost | bit(kind), bits);
        inode.replace_attributes(set);
    } else {
        inode.replace_attributes(set);
        inode.change_mode(0o777 | lost | bit(kind), bits | is);
    }
    inode.touch_ctime();
    Ok(())
}

/// What a new file in the directory `dir`, which is asked for with the permission bits `perm` and is no symbolic link, inherits:
/// its nine permission bits, and its attributes. `None` if the directory has no default list; then the umask counts instead.
///
/// # Errors
/// `NoMemory`.
pub fn inherited(dir: &Inode, is_dir: bool, perm: u32, payer: Payer) -> Result<Option<(u32, Set)>> {
    if dir.mode_word() & HAS_DEFAULT_LIST == 0 {
        return Ok(None);
    }
    let from = dir.attributes_now();
    let Some(kept) = from.as_ref().and_then(|set| set.acl(AclKind::Default)) else {
        return Ok(None);
    };
    let new = kept.acl.inherit(perm).map_err(store::refused)?;
    let keep = |acl| KeptAcl::new(acl, payer);
    let access = new.acl.map(keep).transpose()?;
    let default = if is_dir {
        Some(keep(kept.acl.copy().map_err(store::refused)?)?)
    } else {
        None
    };
    let set = Attributes::of([access, default], alloc::vec::Vec::new(), payer)?;
    Ok(Some((new.bits, set)))
}
