//! The threads of a user, which RLIMIT_NPROC limits.

use cred::{Charge, Payer};
use task::thread::{Thread, flag};

use super::process::Process;
use super::rlimit::Resource;
use super::user_thread::UserThreadExt;

/// A charge for one thread to an account, until it is [kept](ThreadCharge::keep) or dropped.
pub(super) struct ThreadCharge(Payer);

impl ThreadCharge {
    /// Charges a thread that `me`, of process `p`, is about to make; `None` where RLIMIT_NPROC forbids it. The limit is
    /// on the threads of the real user; zombies count.
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

    /// Keeps the charge: the thread lives, and its end gives the charge back.
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for ThreadCharge {
    fn drop(&mut self) {
        self.0.give_back(Charge::Threads, 1);
    }
}

/// Gives back the charge for a thread that ends. If it is the last of its process, a charge stays until the process has
/// been reaped: from now on the account of the process pays it.
pub(super) fn thread_ends(t: &Thread, p: &Process, last: bool) {
    if last {
        // For the leader, that is its own.
        let heir = p.payer();
        if t.payer().is(heir) {
            return;
        }
        heir.charge(Charge::Threads, 1);
    }
    t.payer().give_back(Charge::Threads, 1);
}

/// Whether the account has more threads than the RLIMIT_NPROC of `t`'s process allows; with `others`, one thread, the caller,
/// does not count.
fn is_crowded(t: &Thread, payer: Payer, others: bool) -> bool {
    let limit = t.process().rlimit(Resource::Nproc);
    payer.is_over(Charge::Threads, limit.saturating_add(u64::from(others)))
}

/// `t`, the caller, becomes a thread of another user, whose account `payer` is charged for it already. RLIMIT_NPROC
/// does not make that fail, since programs that give up privileges may not check for it; but if the user has too many
/// threads, the next execve of `t` may fail.
pub(super) fn note_crowd(t: &Thread, payer: Payer) {
    let crowded = payer.is_limited() && is_crowded(t, payer, true);
    if crowded {
        t.set(flag::CROWDED);
    } else if t.has(flag::CROWDED) {
        t.clear(flag::CROWDED);
    }
}

/// Whether `t`, the caller, may call execve: not if it has become a thread of a user that had too many threads, and
/// still has. If that user has fewer by now, later calls do not ask any more.
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
