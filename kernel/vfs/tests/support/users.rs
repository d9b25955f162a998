//! Users, and what they do.

use std::sync::Arc;

use cred::{CapSet, Cred};
use task::current::current;

/// A user without capabilities, in these groups besides one of the user's own, with the same number.
pub fn user(uid: u32, groups: &[u32]) -> Cred {
    let mut cred = Cred::root();
    (cred.uid, cred.euid, cred.suid, cred.fsuid) = (uid, uid, uid, uid);
    (cred.gid, cred.egid, cred.sgid, cred.fsgid) = (uid, uid, uid, uid);
    cred.groups = Some(Arc::new(groups.to_vec()));
    cred.caps.effective = CapSet::EMPTY;
    cred.caps.permitted = CapSet::EMPTY;
    cred
}

/// Runs `act` with the thread's own credentials replaced.
pub fn as_user<R>(cred: &Cred, act: impl FnOnce() -> R) -> R {
    let before = current().replace_cred(Arc::new(cred.clone()));
    let result = act();
    drop(current().replace_cred(before));
    result
}
