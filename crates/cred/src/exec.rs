//! What execve(2) does to credentials.

use crate::{CapSet, Cred, SecureBits};

/// The user and group ids that a program file sets by its set-user-ID and set-group-ID bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetIds {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

/// The credentials of a process after execve, and their consequences.
#[derive(Clone, Debug)]
pub struct AfterExec {
    /// The credentials.
    pub cred: Cred,
    /// The program must not trust its environment (AT_SECURE): its effective ids differ from the real ones, or would if they had
    /// not been denied.
    pub secure: bool,
    /// The caller's choices for the memory layout do not apply (personality(2)).
    pub plain_layout: bool,
    /// The process's own user may read its memory.
    pub dumpable: bool,
    /// The process has other or more privileges than before: see [`Cred::exposed_by`].
    pub exposed: bool,
}

impl Cred {
    /// The credentials of a process with these, after execve of a file that sets the ids `set`.
    ///
    /// There are no file capabilities: only root's special treatment and the ambient set give any. `shared` is called, unless
    /// `no_new_privs` is set, if the new effective ids differ from the real ones or capabilities would be gained; it returns
    /// whether another process shares state that the program relies on as its own. If it does, or with `no_new_privs`, no
    /// capability is gained beyond the ambient set, and the effective ids become the real ones; a caller with CAP_SETUID and
    /// without `no_new_privs` keeps the new ids.
    pub fn after_exec(&self, set: SetIds, shared: impl FnOnce() -> bool) -> AfterExec {
        let mut new = self.clone();
        let set = if self.no_new_privs {
            SetIds::default()
        } else {
            set
        };
        new.euid = set.uid.unwrap_or(self.euid);
        new.egid = set.gid.unwrap_or(self.egid);

        let rooted = !self.secure_bits.has(SecureBits::NOROOT);
        let (real_root, effective_root) = (new.uid == 0, new.euid == 0);
        new.caps.permitted = if rooted && (real_root || effective_root) {
            self.caps.bounding.union(self.caps.inheritable)
        } else {
            CapSet::EMPTY
        };
        let effective = rooted && effective_root;

        let gains_caps = !new.caps.permitted.is_within(self.caps.permitted);
        let is_set_id = new.euid != self.uid || new.egid != self.gid;
        if (is_set_id || gains_caps) && (self.no_new_privs || shared()) {
            if self.no_new_privs || !self.capable(crate::Cap::Setuid) {
                (new.euid, new.egid) = (new.uid, new.gid);
            }
            new.caps.permitted = new.caps.permitted.both(self.caps.permitted);
        }
        (new.suid, new.fsuid) = (new.euid, new.euid);
        (new.sgid, new.fsgid) = (new.egid, new.egid);
        if is_set_id {
            new.caps.ambient = CapSet::EMPTY;
        }
        new.caps.permitted = new.caps.permitted.union(new.caps.ambient);
        new.caps.effective = if effective {
            new.caps.permitted
        } else {
            new.caps.ambient
        };
        new.secure_bits = new.secure_bits.with(SecureBits::KEEP_CAPS, false);

        let exposed = self.exposed_by(&new);
        AfterExec {
            // Without file capabilities only root, real or by the file, gets more than the ambient set.
            secure: is_set_id,
            plain_layout: set != SetIds::default() || gains_caps,
            dumpable: (self.uid, self.gid) == (self.euid, self.egid) && !exposed,
            exposed,
            cred: new,
        }
    }
}
