//! What execve(2) does to credentials.

use crate::{CapSet, Cred, SecureBits};

/// The user and the group that a program file gives by its set-user-ID and set-group-ID bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetIds {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

/// The credentials of a process that calls execve, afterwards.
#[derive(Clone, Debug)]
pub struct AfterExec {
    /// Those.
    pub cred: Cred,
    /// The program has powers that its caller has not, and is to trust nothing that it gets from there (AT_SECURE).
    pub secure: bool,
    /// What the caller chose of the layout of memory does not hold (personality(2)).
    pub plain_layout: bool,
    /// The memory may be shown to the process's own user.
    pub dumpable: bool,
    /// The process may do more than before, or as another: see [`Cred::exposed_by`].
    pub exposed: bool,
}

impl Cred {
    /// The credentials of a process with these, after execve of a file that gives `set`.
    ///
    /// There are no file capabilities: root's special treatment and the ambient set alone give some. `shared` is asked
    /// if the process would gain by it, and says whether another process shares what the program relies on as its own;
    /// then it gains nothing.
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
            // Without file capabilities nobody but root, real or by the file, has more than the ambient set.
            secure: is_set_id,
            plain_layout: set != SetIds::default() || gains_caps,
            dumpable: (self.uid, self.gid) == (self.euid, self.egid) && !exposed,
            exposed,
            cred: new,
        }
    }
}
