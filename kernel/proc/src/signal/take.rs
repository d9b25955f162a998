//! Taking pending signals.

use task::thread::{Thread, flag};

use super::info::SigInfo;
use super::send;
use super::set::{SigSet, sig};
use crate::{UserThreadExt, itimer};

/// The signals pending for `t` or for its process.
pub fn pending(t: &Thread) -> SigSet {
    SigSet(t.user().pending.bits() | t.process().pending.bits())
}

/// Takes a pending signal of `set` for `t`, the calling thread; signals sent to the thread come before those sent to
/// the process.
pub fn take(t: &Thread, set: SigSet) -> Option<SigInfo> {
    let order = t.process().signals.lock();
    let info = loop {
        let info = t.user().pending.take(set).map(|info| (info, false));
        match info.or_else(|| Some((t.process().pending.take(set)?, true))) {
            Some((info, true)) if send::hand_over(&order, t, info) => {}
            info => break info.map(|(info, _)| info),
        }
    };
    if info.is_some_and(|info| SigSet::STOPS.has(info.signo)) {
        t.set(flag::STOP_DUE);
    }
    drop(order);
    t.user().pending.shrink();
    t.process().pending.shrink();
    if info.is_some_and(|info| info.signo == sig::ALRM) {
        itimer::taken(t.process());
    }
    info
}
