//! Taking pending signals.

use ksync::atomic::{Ordering, fence};

use task::thread::{Thread, flag};
use task::wait::WaitQueue;

use super::info::SigInfo;
use super::send;
use super::set::{SigSet, sig};
use super::state::Shared;
use crate::process::{Process, flag as pflag};

use crate::{UserThreadExt, itimer, timers};

/// The queue that is woken by each signal that becomes pending for `p` or for one of its threads from now on. Allocates at the first call for a
/// process.
pub fn arrivals(p: &Process) -> &WaitQueue {
    let queue = &p.seldom().arrivals;
    if !p.has(pflag::HEARS_SIGNALS) {
        p.set_flag(pflag::HEARS_SIGNALS, true);
    }
    // Before the caller looks at signals.
    fence(Ordering::SeqCst);
    queue
}

/// The signals pending for `t` or for its process.
pub fn pending(t: &Thread) -> SigSet {
    SigSet(t.user().pending.bits() | t.process().pending.bits())
}

/// Takes a pending signal of `set` for `t`, the calling thread; signals sent to the thread come before those sent to
/// the process. A stop signal sets STOP_DUE, until SIGCONT comes; SIGALRM arms ITIMER_REAL again if that has
/// expired and has an interval. Takes the signal lock; may sleep for memory.
pub fn take(t: &Thread, set: SigSet) -> Option<SigInfo> {
    take_unless(t, set, |_, _| false)
}

/// As [`take`], to act on the signal: one that the process ignores goes to a thread that waits for it in sigtimedwait, if
/// there is one.
pub(super) fn take_to_act(t: &Thread, set: SigSet) -> Option<SigInfo> {
    take_unless(t, set, |shared, info| {
        send::hand_over(t.process(), shared, info)
    })
}

/// As [`take`], without the signals of the process that `passes_on` gives to another thread.
fn take_unless(
    t: &Thread,
    set: SigSet,
    passes_on: impl Fn(&Shared, SigInfo) -> bool,
) -> Option<SigInfo> {
    let order = t.process().signals.lock();
    let info = loop {
        let info = t.user().pending.take(set).map(|info| (info, false));
        match info.or_else(|| Some((t.process().pending.take(set)?, true))) {
            Some((info, true)) if passes_on(&order, info) => {}
            info => break info.map(|(info, _)| info),
        }
    };
    if info.is_some_and(|info| SigSet::STOPS.has(info.signo)) {
        t.set(flag::STOP_DUE);
    }
    drop(order);
    t.user().pending.shrink();
    t.process().pending.shrink();
    let mut info = info?;
    if info.signo == sig::ALRM {
        itimer::taken(t.process());
    }
    timers::taken(t.process(), &mut info);
    Some(info)
}
