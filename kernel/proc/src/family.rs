//! Where a child is among those of its parent.

use ksync::CpuPin;
use ksync::atomic::Ordering;

use crate::process::{Family, Life, Process};

/// Where a child is, as [`listing`] finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listing {
    /// On the parent's list of living children.
    Living,
    /// On the parent's list of zombies.
    Zombie,
    /// On no list: reaped, or in limbo with the old parent's pid.
    Nowhere,
    /// It has another parent.
    Elsewhere,
}

/// Where `child` is. The caller holds the family lock of `parent`.
///
/// That lock keeps only the children on the lists of `parent` where they are. Another thread may list a child in limbo
/// as a child of a new parent meanwhile, under that parent's lock, and a waiter there may reap it. So the pid of the
/// parent is read last. A new parent's pid is written before the child is listed there: had `linked` seen that list, the
/// pid would not be that of `parent` any more, because only a holder of this lock writes that one. So with this pid,
/// `linked` means a list of `parent`, where `listed_dead` does not change, and not `linked` means that the child has
/// been taken off a list of `parent`.
pub(super) fn listing(parent: &Process, child: &Process) -> Listing {
    let linked = child.siblings.linked();
    let zombie = child.listed_dead.load(Ordering::Relaxed);
    if child.ppid.load(Ordering::SeqCst) != parent.pid() {
        return Listing::Elsewhere;
    }
    match (linked, zombie) {
        (false, _) => Listing::Nowhere,
        (true, false) => Listing::Living,
        (true, true) => Listing::Zombie,
    }
}

/// Claims a zombie: the caller, and no other thread, then releases it. False if another thread has claimed it.
pub(super) fn claim(child: &Process) -> bool {
    child.life.swap(Life::Reaped as u8, Ordering::SeqCst) == Life::Zombie as u8
}

/// Claims a zombie and takes it off the list of zombies in `family`, whose lock the caller holds.
pub(super) fn take_listed(pin: &CpuPin, family: &mut Family, child: &Process) {
    let claimed = claim(child);
    debug_assert!(
        claimed,
        "a thread that claims a zombie takes it off its list"
    );
    family.zombies.remove(pin, child.pid());
    child.listed_dead.store(false, Ordering::Relaxed);
}
