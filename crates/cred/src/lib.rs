//! Credentials: the ids and capabilities of a thread, and what they permit.
//!
//! Permission depends on ids and capability sets alone, as in credentials(7) and capabilities(7). Nothing is looked up
//! and nothing is locked, so a check is a load and a test of a bit. A set of credentials is a value; the kernel
//! publishes a new one for each change.
#![no_std]

extern crate alloc;

mod account;
mod caps;
mod exec;
mod ids;
#[cfg(test)]
mod tests;

use alloc::sync::Arc;
use alloc::vec::Vec;

pub use account::{Account, Charge, MemoryCharge, Payer};
pub use caps::{Cap, CapSet, Caps, SecureBits};
pub use exec::{AfterExec, SetIds};

/// User and group ids, and privileges.
#[derive(Clone, Debug)]
pub struct Cred {
    /// Real user.
    pub uid: u32,
    /// Effective user.
    pub euid: u32,
    /// Saved user.
    pub suid: u32,
    /// User for file access.
    pub fsuid: u32,
    /// Real group.
    pub gid: u32,
    /// Effective group.
    pub egid: u32,
    /// Saved group.
    pub sgid: u32,
    /// Group for file access.
    pub fsgid: u32,
    /// Supplementary groups, sorted.
    pub groups: Option<Arc<Vec<u32>>>,
    /// Capabilities.
    pub caps: Caps,
    /// The parts of root's special treatment that are disabled.
    pub secure_bits: SecureBits,
    /// Exec never gives privileges again (PR_SET_NO_NEW_PRIVS).
    pub no_new_privs: bool,
    /// The login that the process is part of. No other right follows from it.
    pub login: Login,
    /// The account for everything that the kernel makes for a thread with these credentials: that of the real user.
    pub payer: Payer,
}

/// What audit trails name a process by, whatever user it has become since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login {
    /// The user that logged in.
    pub uid: u32,
    /// The number of the login.
    pub session: u32,
}

impl Login {
    /// None, as of what started with the system.
    pub const NONE: Login = Login {
        uid: u32::MAX,
        session: u32::MAX,
    };
}

/// The caller may not make this change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPermitted;

/// The ids that count when a call inspects another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookAs {
    /// The ids for file access, and the effective set: for files of /proc.
    Files,
    /// The real ids, and the permitted set: for system calls.
    Real,
}

impl Cred {
    /// The super-user's credentials.
    pub const fn root() -> Self {
        Cred {
            uid: 0,
            euid: 0,
            suid: 0,
            fsuid: 0,
            gid: 0,
            egid: 0,
            sgid: 0,
            fsgid: 0,
            groups: None,
            caps: Caps::FULL,
            secure_bits: SecureBits::NONE,
            no_new_privs: false,
            login: Login::NONE,
            payer: Payer::NOBODY,
        }
    }

    /// Whether the limits per user do not apply to these credentials.
    pub fn beyond_user_limits(&self) -> bool {
        self.capable(Cap::SysResource) || self.capable(Cap::SysAdmin)
    }

    /// Whether `cap` is effective.
    #[inline]
    pub fn capable(&self, cap: Cap) -> bool {
        self.caps.effective.has(cap)
    }

    fn require(&self, cap: Cap) -> Result<(), NotPermitted> {
        if self.capable(cap) {
            Ok(())
        } else {
            Err(NotPermitted)
        }
    }

    /// Whether the login may be changed: any process may do so that is part of none.
    ///
    /// # Errors
    /// The process is part of one, and may not control audits.
    pub fn may_log_in(&self) -> Result<(), NotPermitted> {
        if self.login.uid == Login::NONE.uid {
            return Ok(());
        }
        self.require(Cap::AuditControl)
    }

    /// The supplementary groups.
    pub fn groups(&self) -> &[u32] {
        self.groups.as_ref().map_or(&[], |groups| &groups[..])
    }

    /// Whether `gid` is among the groups for file access.
    pub fn in_group(&self, gid: u32) -> bool {
        self.fsgid == gid || self.groups().binary_search(&gid).is_ok()
    }

    /// kill(2): whether these credentials may signal a process with `target`.
    pub fn may_signal(&self, target: &Cred) -> bool {
        [self.uid, self.euid]
            .iter()
            .any(|&u| u == target.uid || u == target.suid)
            || self.capable(Cap::Kill)
    }

    /// Whether a process with `target` belongs to the effective user of these credentials, as the scheduling calls
    /// define it.
    pub fn owns(&self, target: &Cred) -> bool {
        self.euid == target.uid || self.euid == target.euid
    }

    /// Whether a process with `target` has no capability that these credentials lack.
    pub fn covers(&self, target: &Cred) -> bool {
        target.caps.permitted.is_within(self.caps.permitted)
    }

    /// Whether these credentials may inspect a process with `target`, as defined in ptrace(2). `dumpable` says whether
    /// that process's own user may read its memory.
    pub fn may_look(&self, target: &Cred, dumpable: bool, by: LookAs) -> bool {
        let (uid, gid, caps) = match by {
            LookAs::Files => (self.fsuid, self.fsgid, self.caps.effective),
            LookAs::Real => (self.uid, self.gid, self.caps.permitted),
        };
        let same = target.all_are(uid, gid);
        let within = target.caps.permitted.is_within(caps);
        same && dumpable && within || self.capable(Cap::SysPtrace)
    }

    /// Whether all user ids except that for files are `uid`, and all group ids `gid`.
    pub fn all_are(&self, uid: u32, gid: u32) -> bool {
        [self.uid, self.euid, self.suid].iter().all(|&u| u == uid)
            && [self.gid, self.egid, self.sgid].iter().all(|&g| g == gid)
    }

    /// Whether the memory of a process may hold data that `new` must not read: its credentials change from these to
    /// those.
    pub fn exposed_by(&self, new: &Cred) -> bool {
        let ids = |c: &Cred| (c.euid, c.egid, c.fsuid, c.fsgid);
        ids(self) != ids(new) || !new.caps.permitted.is_within(self.caps.permitted)
    }

    /// The credentials that access(2) checks: file access by the real ids.
    #[must_use]
    pub fn real(&self) -> Cred {
        let mut real = self.clone();
        (real.fsuid, real.fsgid) = (real.uid, real.gid);
        if !self.secure_bits.has(SecureBits::NO_SETUID_FIXUP) {
            real.caps.effective = if real.uid == 0 {
                real.caps.permitted
            } else {
                CapSet::EMPTY
            };
        }
        real
    }

    /// Whether [`Cred::real`] differs from these.
    pub fn differs_from_real(&self) -> bool {
        let plain = if self.uid == 0 {
            self.caps.permitted
        } else {
            CapSet::EMPTY
        };
        (self.uid, self.gid) != (self.fsuid, self.fsgid)
            || self.caps.effective != plain && !self.secure_bits.has(SecureBits::NO_SETUID_FIXUP)
    }

    /// capset(2).
    pub fn set_caps(
        &mut self,
        effective: CapSet,
        permitted: CapSet,
        inheritable: CapSet,
    ) -> Result<(), NotPermitted> {
        let old = self.caps;
        let from_permitted = inheritable.is_within(old.inheritable.union(old.permitted));
        if !(from_permitted || self.capable(Cap::Setpcap))
            || !inheritable.is_within(old.inheritable.union(old.bounding))
            || !permitted.is_within(old.permitted)
            || !effective.is_within(permitted)
        {
            return Err(NotPermitted);
        }
        self.caps = Caps {
            inheritable,
            permitted,
            effective,
            ambient: old.ambient.both(permitted).both(inheritable),
            ..old
        };
        Ok(())
    }

    /// PR_CAPBSET_DROP.
    pub fn drop_bounding(&mut self, caps: CapSet) -> Result<(), NotPermitted> {
        self.require(Cap::Setpcap)?;
        self.caps.bounding = self.caps.bounding.without(caps);
        Ok(())
    }

    /// PR_CAP_AMBIENT_RAISE.
    pub fn raise_ambient(&mut self, caps: CapSet) -> Result<(), NotPermitted> {
        let c = &mut self.caps;
        if !caps.is_within(c.permitted.both(c.inheritable))
            || self.secure_bits.has(SecureBits::NO_AMBIENT_RAISE)
        {
            return Err(NotPermitted);
        }
        c.ambient = c.ambient.union(caps);
        Ok(())
    }

    /// PR_CAP_AMBIENT_LOWER, or CLEAR_ALL with all.
    pub fn lower_ambient(&mut self, caps: CapSet) {
        self.caps.ambient = self.caps.ambient.without(caps);
    }

    /// PR_SET_SECUREBITS.
    pub fn set_secure_bits(&mut self, bits: u64) -> Result<(), NotPermitted> {
        let new = self.secure_bits.changed_to(bits).ok_or(NotPermitted)?;
        self.require(Cap::Setpcap)?;
        self.secure_bits = new;
        Ok(())
    }

    /// PR_SET_KEEPCAPS.
    pub fn set_keep_caps(&mut self, on: bool) -> Result<(), NotPermitted> {
        if self.secure_bits.is_locked(SecureBits::KEEP_CAPS) {
            return Err(NotPermitted);
        }
        self.secure_bits = self.secure_bits.with(SecureBits::KEEP_CAPS, on);
        Ok(())
    }
}
