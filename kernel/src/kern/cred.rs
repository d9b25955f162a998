//! Credentials: who a process acts as.
//!
//! Each process owns its copy, so fork touches no counter that others touch.  The set is
//! immutable once published; a change builds a new one ([`super::process::Process::set_cred`]).

use alloc::sync::Arc;
use alloc::vec::Vec;

/// User and group identities, as credentials(7) names them.
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
}

/// A change that the caller may not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPermitted;

/// "Leave as it is" in the calls that set several.
const KEEP: u32 = u32::MAX;

impl Cred {
    /// The super-user's.
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
        }
    }

    /// Whether the process has the super-user's powers.  There are no finer capabilities.
    pub fn privileged(&self) -> bool {
        self.euid == 0
    }

    /// The supplementary groups.
    pub fn groups(&self) -> &[u32] {
        self.groups.as_ref().map_or(&[], |groups| &groups[..])
    }

    /// kill(2): whether these credentials may signal a process with `target`.
    pub fn may_signal(&self, target: &Cred) -> bool {
        self.privileged()
            || [self.uid, self.euid]
                .iter()
                .any(|&u| u == target.uid || u == target.suid)
    }

    fn owns_uid(&self, uid: u32) -> bool {
        [self.uid, self.euid, self.suid].contains(&uid)
    }

    fn owns_gid(&self, gid: u32) -> bool {
        [self.gid, self.egid, self.sgid].contains(&gid)
    }

    /// setuid(2).
    pub fn setuid(&mut self, uid: u32) -> Result<(), NotPermitted> {
        if self.privileged() {
            (self.uid, self.suid) = (uid, uid);
        } else if uid != self.uid && uid != self.suid {
            return Err(NotPermitted);
        }
        (self.euid, self.fsuid) = (uid, uid);
        Ok(())
    }

    /// setgid(2).
    pub fn setgid(&mut self, gid: u32) -> Result<(), NotPermitted> {
        if self.privileged() {
            (self.gid, self.sgid) = (gid, gid);
        } else if gid != self.gid && gid != self.sgid {
            return Err(NotPermitted);
        }
        (self.egid, self.fsgid) = (gid, gid);
        Ok(())
    }

    /// setreuid(2).
    pub fn setreuid(&mut self, r: u32, e: u32) -> Result<(), NotPermitted> {
        let old_uid = self.uid;
        if !self.privileged()
            && (r != KEEP && r != self.uid && r != self.euid || e != KEEP && !self.owns_uid(e))
        {
            return Err(NotPermitted);
        }
        if r != KEEP {
            self.uid = r;
        }
        if e != KEEP {
            self.euid = e;
        }
        if r != KEEP || e != KEEP && e != old_uid {
            self.suid = self.euid;
        }
        self.fsuid = self.euid;
        Ok(())
    }

    /// setregid(2).
    pub fn setregid(&mut self, r: u32, e: u32) -> Result<(), NotPermitted> {
        let old_gid = self.gid;
        if !self.privileged()
            && (r != KEEP && r != self.gid && r != self.egid || e != KEEP && !self.owns_gid(e))
        {
            return Err(NotPermitted);
        }
        if r != KEEP {
            self.gid = r;
        }
        if e != KEEP {
            self.egid = e;
        }
        if r != KEEP || e != KEEP && e != old_gid {
            self.sgid = self.egid;
        }
        self.fsgid = self.egid;
        Ok(())
    }

    /// setresuid(2).
    pub fn setresuid(&mut self, r: u32, e: u32, s: u32) -> Result<(), NotPermitted> {
        if !self.privileged() && [r, e, s].iter().any(|&u| u != KEEP && !self.owns_uid(u)) {
            return Err(NotPermitted);
        }
        for (slot, value) in [(&mut self.uid, r), (&mut self.euid, e), (&mut self.suid, s)] {
            if value != KEEP {
                *slot = value;
            }
        }
        self.fsuid = self.euid;
        Ok(())
    }

    /// setresgid(2).
    pub fn setresgid(&mut self, r: u32, e: u32, s: u32) -> Result<(), NotPermitted> {
        if !self.privileged() && [r, e, s].iter().any(|&g| g != KEEP && !self.owns_gid(g)) {
            return Err(NotPermitted);
        }
        for (slot, value) in [(&mut self.gid, r), (&mut self.egid, e), (&mut self.sgid, s)] {
            if value != KEEP {
                *slot = value;
            }
        }
        self.fsgid = self.egid;
        Ok(())
    }

    /// setfsuid(2): the previous value; silently unchanged where not allowed.
    pub fn setfsuid(&mut self, uid: u32) -> u32 {
        let old = self.fsuid;
        if self.privileged() || self.owns_uid(uid) || uid == old {
            self.fsuid = uid;
        }
        old
    }

    /// setfsgid(2): the previous value; silently unchanged where not allowed.
    pub fn setfsgid(&mut self, gid: u32) -> u32 {
        let old = self.fsgid;
        if self.privileged() || self.owns_gid(gid) || gid == old {
            self.fsgid = gid;
        }
        old
    }

    /// execve(2) of a file with set-user-ID or set-group-ID bits, or of any other.
    pub fn exec(&mut self, set_uid: Option<u32>, set_gid: Option<u32>) {
        if let Some(uid) = set_uid {
            self.euid = uid;
        }
        if let Some(gid) = set_gid {
            self.egid = gid;
        }
        (self.suid, self.fsuid) = (self.euid, self.euid);
        (self.sgid, self.fsgid) = (self.egid, self.egid);
    }
}
