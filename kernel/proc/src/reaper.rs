//! The process that the children of a process go to when it ends: the nearest subreaper among its ancestors, or init.

use alloc::sync::Arc;

use ksync::atomic::{AtomicBool, Ordering};
use ksync::{ArcBorrow, CpuPin};

use crate::ids;
use crate::process::{Process, flag as pflag};

hal::machine_static! {
    /// Whether a process has been a subreaper since the machine started. If not, no ancestor need be looked at. Atomic.
    static SUBREAPERS: AtomicBool = AtomicBool::new(false);
}

/// Makes `p` the process whose children orphans among its descendants become, or ends that (PR_SET_CHILD_SUBREAPER).
pub fn set_subreaper(p: &Process, on: bool) {
    if on {
        SUBREAPERS.store(true, Ordering::Relaxed);
    }
    p.set_switch(pflag::SUBREAPER, on);
}

/// The process that becomes the parent of the children of `p`, which has not been reaped. One that ends and gets no more
/// children is passed over.
pub(super) fn reaper_of(p: &Process) -> Option<Arc<Process>> {
    if SUBREAPERS.load(Ordering::Relaxed) {
        let mut at = parent_of(p);
        while let Some(q) = at {
            if q.flag(pflag::SUBREAPER) && q.is_alive() && !q.family.lock().closed {
                return Some(q);
            }
            let up = parent_of(&q);
            // The parent of a process that has been reaped may have gone, and its number may be another's.
            at = if q.is_reaped() { parent_of(p) } else { up };
        }
    }
    ids::find_process(1)
}

/// The parent of `p`; of a process that has been reaped, any process or none.
pub(super) fn parent_of(p: &Process) -> Option<Arc<Process>> {
    borrow_parent(&ksync::pin(), p).map(ArcBorrow::hold)
}

/// As [`parent_of`], without a reference.
pub(super) fn parent<'p>(pin: &'p CpuPin, p: &Process) -> Option<&'p Process> {
    borrow_parent(pin, p).map(ArcBorrow::get)
}

fn borrow_parent<'p>(pin: &'p CpuPin, p: &Process) -> Option<ArcBorrow<'p, Process>> {
    // As long as this is pinned, the number of a process that was in the table is not given to another.
    loop {
        let ppid = p.ppid();
        let parent = ids::borrow_process(pin, ppid);
        // Between the two the parent may have given `p` to another one, and have been reaped.
        if p.ppid() == ppid {
            return parent;
        }
    }
}
