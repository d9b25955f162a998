//! Threads of a user, against RLIMIT_NPROC.

use cred::{Charge, Payer};
use task::thread::{Thread, flag};

use super::process::Process;
use super::rlimit::Resource;
use super::user_thread::UserThreadExt;

/// A thread that is charged to an account, until it is [kept](ThreadCharge::keep) or dropped.
pub(super) struct ThreadCharge(Payer);

impl ThreadCharge {
    /// Charges a thread that `me`, of process `p`, is about to make; none where RLIMIT_NPROC forbids it. The limit is on the
    /// threads of the real user; zombies count.
    pub fn new(me: &Thread, p: &Process) -> Option<ThreadCharge> {
        let payer = me.payer();
        payer.charge(Charge::Threads, 1);
        let charge = ThreadCharge(payer);
        let limit = p.rlimit(Resource::Nproc);
        if limit != u64::MAX
            && payer.is_limited()
            && payer.is_over(Charge::Threads, limit)
            && !me.cred().beyond_user_limits()
        {
            return None;
        }
        Some(charge)
    }

    /// The thread lives; its end gives back what is charged.
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for ThreadCharge {
    fn drop(&mut self) {
        self.0.give_back(Charge::Threads, 1);
    }
}

/// A thread's charge ends with it; that of the last one lasts until its process has been waited for, in whose account it
/// is from now on.
pub(super) fn thread_ends(t: &Thread, p: &Process, last: bool) {
    if last {
        if t.tid() == p.pid() {
            // The leader's credentials are the process's.
            return;
        }
        let heir = p.payer();
        if t.payer().is(heir) {
            return;
        }
        heir.charge(Charge::Threads, 1);
    }
    t.payer().give_back(Charge::Threads, 1);
}

/// Whether the caller's user has more threads than RLIMIT_NPROC allows; `others` says that the caller is not to count.
fn is_crowded(t: &Thread, payer: Payer, others: bool) -> bool {
    let limit = t.process().rlimit(Resource::Nproc);
    payer.is_over(Charge::Threads, limit.saturating_add(u64::from(others)))
}

/// `t`, the caller, becomes a thread of another user, to whom it is charged already. That cannot fail for RLIMIT_NPROC, since programs
/// that give privileges up may not look; but its next execve may.
pub(super) fn note_crowd(t: &Thread, payer: Payer) {
    let crowded = payer.is_limited() && is_crowded(t, payer, true);
    if crowded {
        t.set(flag::CROWDED);
    } else if t.has(flag::CROWDED) {
        t.clear(flag::CROWDED);
    }
}

/// Whether `t`, the caller, may call execve: not if it has become a user's who had too many threads, and still has.
pub fn may_exec(t: &Thread) -> bool {
    if !t.has(flag::CROWDED) {
        return true;
    }
    let crowded = is_crowded(t, t.payer(), false);
    if !crowded {
        t.clear(flag::CROWDED);
    }
    !crowded
}
