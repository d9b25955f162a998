//! Changes of user and group ids, and their effects on the capability sets.

use crate::{Cap, CapSet, Cred, NotPermitted, SecureBits};

/// "Leave unchanged" in the calls that set several ids.
const KEEP: u32 = u32::MAX;

impl Cred {
    fn owns_uid(&self, uid: u32) -> bool {
        [self.uid, self.euid, self.suid].contains(&uid)
    }

    fn owns_gid(&self, gid: u32) -> bool {
        [self.gid, self.egid, self.sgid].contains(&gid)
    }

    fn is_root_somehow(&self) -> bool {
        self.owns_uid(0)
    }

    /// The effect of a change of user ids, from those of `old`, on the sets.
    fn follow_uids(&mut self, old: &Cred) {
        if self.secure_bits.has(SecureBits::NO_SETUID_FIXUP) {
            return;
        }
        if old.is_root_somehow() && !self.is_root_somehow() {
            if !self.secure_bits.has(SecureBits::KEEP_CAPS) {
                self.caps.permitted = CapSet::EMPTY;
                self.caps.effective = CapSet::EMPTY;
            }
            // The ambient set was root's, too.
            self.caps.ambient = CapSet::EMPTY;
        }
        match (old.euid == 0, self.euid == 0) {
            (true, false) => self.caps.effective = CapSet::EMPTY,
            (false, true) => self.caps.effective = self.caps.permitted,
            _ => {}
        }
    }

    /// setuid(2).
    pub fn setuid(&mut self, uid: u32) -> Result<(), NotPermitted> {
        let old = self.clone();
        if self.capable(Cap::Setuid) {
            (self.uid, self.suid) = (uid, uid);
        } else if uid != self.uid && uid != self.suid {
            return Err(NotPermitted);
        }
        (self.euid, self.fsuid) = (uid, uid);
        self.follow_uids(&old);
        Ok(())
    }

    /// setgid(2).
    pub fn setgid(&mut self, gid: u32) -> Result<(), NotPermitted> {
        if self.capable(Cap::Setgid) {
            (self.gid, self.sgid) = (gid, gid);
        } else if gid != self.gid && gid != self.sgid {
            return Err(NotPermitted);
        }
        (self.egid, self.fsgid) = (gid, gid);
        Ok(())
    }

    /// setreuid(2).
    pub fn setreuid(&mut self, r: u32, e: u32) -> Result<(), NotPermitted> {
        let old = self.clone();
        if !self.capable(Cap::Setuid)
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
        if r != KEEP || e != KEEP && e != old.uid {
            self.suid = self.euid;
        }
        self.fsuid = self.euid;
        self.follow_uids(&old);
        Ok(())
    }

    /// setregid(2).
    pub fn setregid(&mut self, r: u32, e: u32) -> Result<(), NotPermitted> {
        let old_gid = self.gid;
        if !self.capable(Cap::Setgid)
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
        let old = self.clone();
        if !self.capable(Cap::Setuid) && [r, e, s].iter().any(|&u| u != KEEP && !self.owns_uid(u)) {
            return Err(NotPermitted);
        }
        for (slot, value) in [(&mut self.uid, r), (&mut self.euid, e), (&mut self.suid, s)] {
            if value != KEEP {
                *slot = value;
            }
        }
        self.fsuid = self.euid;
        self.follow_uids(&old);
        Ok(())
    }

    /// setresgid(2).
    pub fn setresgid(&mut self, r: u32, e: u32, s: u32) -> Result<(), NotPermitted> {
        if !self.capable(Cap::Setgid) && [r, e, s].iter().any(|&g| g != KEEP && !self.owns_gid(g)) {
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

    /// setfsuid(2): returns the previous value; changes nothing, without an error, if not permitted or not a valid id.
    pub fn setfsuid(&mut self, uid: u32) -> u32 {
        let old = self.fsuid;
        if uid == KEEP || !(self.owns_uid(uid) || self.capable(Cap::Setuid)) {
            return old;
        }
        self.fsuid = uid;
        if !self.secure_bits.has(SecureBits::NO_SETUID_FIXUP) {
            let c = &mut self.caps;
            match (old == 0, uid == 0) {
                (true, false) => c.effective = c.effective.without(CapSet::FILES),
                (false, true) => {
                    c.effective = c.effective.union(c.permitted.both(CapSet::FILES));
                }
                _ => {}
            }
        }
        old
    }

    /// setfsgid(2): returns the previous value; changes nothing, without an error, if not permitted or not a valid id.
    pub fn setfsgid(&mut self, gid: u32) -> u32 {
        let old = self.fsgid;
        if gid != KEEP && (self.owns_gid(gid) || self.capable(Cap::Setgid)) {
            self.fsgid = gid;
        }
        old
    }
}
