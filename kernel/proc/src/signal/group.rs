//! Signals to process groups.

use ksync::atomic::Ordering;

use cred::Cred;
use ksync::CpuPin;
use task::current::current;

use super::info::SigInfo;
use super::send::{SendError, Whom, queue};
use super::set::sig;
use crate::group::{Cursor, Group};
use crate::process::Process;
use crate::{UserThreadExt, ids};

/// Sends a signal to each member of a group that `sender`, its credentials and session id, may signal (SIGCONT: also to those of
/// that session); without `sender`, to all. `signo` counts, not `info.signo`; 0 only checks. Sleeps until other signals to the
/// group have been sent, and for memory.
///
/// Children that members fork during the walk are not missed, even if they join in a part that the walk has passed. A
/// member that has got the signal forks again only after it has taken the signal, and its children count as having got
/// it. So a child that has not got the signal joined before its parent got it. Such joins are counted: if the count has
/// changed when a walk ends, another walk finds the child. Once each member has got the signal, or may not be sent it,
/// no join is counted any more, however often the members fork.
///
/// # Errors
/// The group has no member, or `sender` may signal none of the members.
pub fn signal_group(
    group: &Group,
    signo: u8,
    info: SigInfo,
    sender: Option<(&Cred, u32)>,
) -> Result<(), SendError> {
    let turn = (signo != 0).then(|| group.begin_signal());
    let mut walk = GroupWalk {
        group,
        info: SigInfo { signo, ..info },
        number: turn.as_ref().map_or(0, |(number, _)| *number),
        sender,
        found: false,
        sent: false,
    };
    let mut joins = group.joins();
    loop {
        walk.go();
        let now = group.joins();
        if now == joins {
            break;
        }
        joins = now;
    }
    match (walk.found, walk.sent) {
        (false, _) => Err(SendError::NoProcess),
        (true, false) => Err(SendError::NotPermitted),
        (true, true) => Ok(()),
    }
}

/// As [`signal_group`], to the group of the caller's process, also if setpgid moves that meanwhile.
///
/// # Errors
/// `sender` may signal none of the members.
pub fn signal_own_group(
    signo: u8,
    info: SigInfo,
    sender: Option<(&Cred, u32)>,
) -> Result<(), SendError> {
    let me = current();
    let p = me.process();
    loop {
        let group = p.group().ok_or(SendError::NoProcess)?;
        match signal_group(&group, signo, info, sender) {
            // The caller has left the group, as the last one.
            Err(SendError::NoProcess) => task::sched::yield_now(),
            result => return result,
        }
    }
}

/// A signal on its way to the members of a group.
struct GroupWalk<'a> {
    group: &'a Group,
    info: SigInfo,
    /// Its serial number; 0 if it only checks.
    number: u32,
    sender: Option<(&'a Cred, u32)>,
    found: bool,
    sent: bool,
}

impl GroupWalk<'_> {
    /// Signals the members that have not got the signal yet. No spin lock held.
    fn go(&mut self) {
        // The members are collected in slices: posting takes locks that must not be taken inside a shard's lock.
        let mut cursor = Cursor::default();
        while self.group.next_slice(&ksync::pin(), &mut cursor) {
            for &pid in cursor.members() {
                let Some(p) = ids::find_process(pid) else {
                    continue;
                };
                // The pid may belong to another process by now.
                if p.pgid() == self.group.pgid() {
                    self.found = true;
                    self.signal(&p);
                }
            }
        }
    }

    /// Signals the member `p`, if the sender may and `p` has not got the signal yet.
    fn signal(&mut self, p: &Process) {
        let signo = self.info.signo;
        if let Some((cred, sid)) = self.sender {
            let allowed = p.pid() == current().process().pid()
                || cred.may_signal(&p.cred())
                || signo == sig::CONT && p.sid() == sid;
            if !allowed {
                // The children of `p` must not get it either.
                p.note_group_signal(self.number);
                return;
            }
        }
        self.sent = true;
        if self.number == 0 || p.group_signal.load(Ordering::Relaxed) == self.number {
            return;
        }
        // Not refused: it is from kill(2), or a standard signal of the kernel.
        let _ = queue(
            p,
            Whom::Process(p.pid()),
            self.info,
            current().payer(),
            self.number,
        );
    }
}

/// Calls `f` with each member of the group `pgid`, with preemption off. A process that joins meanwhile may be passed over.
pub fn each_member(pin: &CpuPin, pgid: u32, mut f: impl FnMut(&Process)) {
    let Some(group) = ids::group(pin, pgid) else {
        return;
    };
    let mut cursor = Cursor::default();
    while group.next_slice(pin, &mut cursor) {
        for &pid in cursor.members() {
            // The pid may belong to another process by now.
            if let Some(p) = ids::process(pin, pid)
                && p.pgid() == pgid
            {
                f(p);
            }
        }
    }
}

/// Sends a signal of the kernel to each member of a group.
pub fn signal_whole_group(group: &Group, signo: u8) {
    // A group that has just lost its last member needs no signal.
    let _ = signal_group(group, signo, SigInfo::kernel(signo), None);
}
