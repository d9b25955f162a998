//! Owner and mode of a System V object, and what they permit.

use cred::{Cap, Cred};
use ksync::Spin;

use super::error::{Result, SysvError};

/// Permission to read, as a mode for all three classes.
pub const READ: u32 = 0o444;
/// Permission to write, or for semaphores to change.
pub const WRITE: u32 = 0o222;

/// Flags of the calls that find or make an object, with Linux's numbers.
pub mod flag {
    /// Make it if there is none.
    pub const CREATE: u32 = 0o1000;
    /// Fail if there is one.
    pub const EXCLUSIVE: u32 = 0o2000;
    /// Do not wait.
    pub const NO_WAIT: u32 = 0o4000;
}

/// The key of objects that no key finds.
pub const PRIVATE: i32 = 0;

/// The calling process, as the objects see it.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Its credentials.
    pub cred: &'a Cred,
    /// Its pid.
    pub pid: u32,
}

/// What Linux's `struct ipc_perm` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Perm {
    /// The key, [`PRIVATE`] once the object is removed.
    pub key: i32,
    /// The object's id.
    pub id: i32,
    /// Owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// The user that made it.
    pub cuid: u32,
    /// That user's group.
    pub cgid: u32,
    /// Nine mode bits, and for memory two more.
    pub mode: u32,
}

ksync::lock_class!(pub PermLock, "System V owner", rank = 84);

/// Key, owner and mode of an object with a lock that sleeps, beside that lock. Owner and mode are changed under both, so that they stay while
/// either is held; the key changes under the lock of the keys, too.
pub(super) struct OwnPerm(Spin<Perm, PermLock>);

impl OwnPerm {
    pub fn new(perm: Perm) -> OwnPerm {
        OwnPerm(Spin::new(perm))
    }

    /// What it is now.
    pub fn get(&self) -> Perm {
        *self.0.lock()
    }

    /// Changes the owner for `cred`. The object's lock is held.
    ///
    /// # Errors
    /// `NotOwner`; `Invalid` for what is no user or group.
    pub fn set_owner(&self, new: NewOwner, cred: &Cred) -> Result<()> {
        let mut perm = self.0.lock();
        perm.check_owner(cred)?;
        perm.set_owner(new)
    }

    /// Takes the key for `cred`, which removes the object; returns what was before. The keys are locked.
    ///
    /// # Errors
    /// `NotOwner`.
    pub fn take_key(&self, cred: &Cred) -> Result<Perm> {
        let mut perm = self.0.lock();
        perm.check_owner(cred)?;
        let before = *perm;
        perm.key = PRIVATE;
        Ok(before)
    }
}

/// What IPC_SET changes of all kinds of objects.
#[derive(Clone, Copy, Debug)]
pub struct NewOwner {
    /// Owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// The low nine bits count.
    pub mode: u32,
}

impl Perm {
    /// Those of a new object of `cred`.
    pub fn new(key: i32, id: i32, mode: u32, cred: &Cred) -> Perm {
        Perm {
            key,
            id,
            uid: cred.euid,
            gid: cred.egid,
            cuid: cred.euid,
            cgid: cred.egid,
            mode: mode & 0o777,
        }
    }

    /// Checks that the mode bits permit `cred` all that `want` asks for in any of its classes. As in Linux, the maker's class is the
    /// owner's.
    ///
    /// # Errors
    /// `Denied`.
    pub fn check(&self, want: u32, cred: &Cred) -> Result<()> {
        let want = (want >> 6 | want >> 3 | want) & 7;
        let shift = if cred.euid == self.cuid || cred.euid == self.uid {
            6
        } else if cred.in_group(self.cgid) || cred.in_group(self.gid) {
            3
        } else {
            0
        };
        let granted = self.mode >> shift & 7;
        if want & !granted == 0 || cred.capable(Cap::IpcOwner) {
            Ok(())
        } else {
            Err(SysvError::Denied)
        }
    }

    /// Checks that `cred` may change or remove the object.
    ///
    /// # Errors
    /// `NotOwner`.
    pub fn check_owner(&self, cred: &Cred) -> Result<()> {
        if self.is_owner(cred) || cred.capable(Cap::SysAdmin) {
            Ok(())
        } else {
            Err(SysvError::NotOwner)
        }
    }

    /// Whether `cred` acts as the owner or the maker.
    pub fn is_owner(&self, cred: &Cred) -> bool {
        cred.euid == self.cuid || cred.euid == self.uid
    }

    /// Changes the owner.
    ///
    /// # Errors
    /// `Invalid` for what is no user or group.
    pub fn set_owner(&mut self, new: NewOwner) -> Result<()> {
        if new.uid == u32::MAX || new.gid == u32::MAX {
            return Err(SysvError::Invalid);
        }
        (self.uid, self.gid) = (new.uid, new.gid);
        self.mode = self.mode & !0o777 | new.mode & 0o777;
        Ok(())
    }

    /// The number by which ids with the same index differ.
    pub fn sequence(&self) -> u16 {
        (self.id >> super::registry::INDEX_BITS) as u16
    }
}
