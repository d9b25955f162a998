//! The process and the user of a sender or a peer, as SCM_CREDENTIALS and SO_PEERCRED show them.

use cred::{Cap, Cred};
use proc::UserThreadExt;
use task::current::current;

/// Ids of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// Its pid.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Ids {
    /// What stands for a sender that is not known: no process, and the user and group nobody.
    pub const NOBODY: Ids = Ids {
        pid: 0,
        uid: 65534,
        gid: 65534,
    };

    /// The caller with its real ids, as the sender of a message.
    pub fn of_sender() -> Ids {
        let cred = current().cred();
        Ids {
            pid: current().process().pid(),
            uid: cred.uid,
            gid: cred.gid,
        }
    }

    /// The caller with its effective ids, as the peer of a connection.
    pub fn of_peer() -> Ids {
        let cred = current().cred();
        Ids {
            pid: current().process().pid(),
            uid: cred.euid,
            gid: cred.egid,
        }
    }

    /// Whether the caller, with `cred`, may send these as its own.
    pub fn may_be_sent(&self, cred: &Cred) -> bool {
        let pid = self.pid == current().process().pid() || cred.capable(Cap::SysAdmin);
        let uid = [cred.uid, cred.euid, cred.suid].contains(&self.uid) || cred.capable(Cap::Setuid);
        let gid = [cred.gid, cred.egid, cred.sgid].contains(&self.gid) || cred.capable(Cap::Setgid);
        pid && uid && gid
    }
}
