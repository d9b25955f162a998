//! When memory is out: who has to go.
//!
//! The process with most memory of its own is killed, init last.  Nobody else is disturbed: a fault
//! that found no memory waits for the victim's memory and tries again.

use ksync::Spin;

use super::vm;
use crate::kern::park::{Deadline, Interruptible, sleep_until};
use crate::kern::{self, process::Process};
use crate::{arch, kprintln};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

ksync::lock_class!(OomLock, "oom", rank = 38);

/// How long a fault waits for memory to come back before it tries again; doubled with each try, up to [`DOUBLINGS`]
/// times, so that a thousand who wait leave the CPUs to those who are on their way out.
const PAUSE_NS: u64 = 2_000_000;
const DOUBLINGS: u32 = 5;
/// Tries before a faulting thread gives itself up: some twenty seconds, far longer than any exit takes.
const TRIES: u32 = 320;

/// Somebody is making room: the others only wait. Atomic.
static WORKING: AtomicBool = AtomicBool::new(false);

/// The last victim, until it has gone.
static VICTIM: Spin<Option<u32>, OomLock> = Spin::new(None);

/// Makes room, or waits for it; false if the caller had better die.
///
/// `tries` counts the caller's attempts so far.  A caller that has been killed gives up, so that it
/// can leave.
pub fn relieve(tries: u32) -> bool {
    let me = kern::current();
    if me.kill_pending() || tries > TRIES {
        return false;
    }
    if tries == 0 && !vm().alloc.low_memory() {
        // It was not for want of memory, or others have freed some meanwhile.
        return true;
    }
    if tries > 0 && !WORKING.swap(true, Ordering::Acquire) {
        free_what_waits();
        if tries >= 2 && vm().alloc.low_memory() {
            kill_largest();
        }
        WORKING.store(false, Ordering::Release);
    }
    if me.kill_pending() {
        return false;
    }
    let pause = PAUSE_NS << tries.min(DOUBLINGS);
    let _ = sleep_until(Deadline::after(pause), Interruptible::Kill);
    true
}

/// Brings back memory that is free but out of reach: deferred frees, and what CPUs have in their caches.
fn free_what_waits() {
    vm().alloc.request_drain();
    super::slab().request_drain();
    vm().epoch.synchronize();
    // Each CPU frees and empties its own on its way through the idle loop, or at its next tick.
    let here = arch::cpu::id();
    for cpu in (0..arch::cpu::count()).filter(|&cpu| cpu != here) {
        arch::ipi::reschedule(cpu);
    }
    super::poll(&ksync::pin());
}

/// Kills the process with most memory, unless an earlier victim is still on its way out.
fn kill_largest() {
    {
        let victim = VICTIM.lock();
        if let Some(pid) = *victim
            && kern::ids::find_process(pid).is_some_and(|p| p.space().is_some())
        {
            return;
        }
    }
    let mut worst: Option<(u64, Arc<Process>)> = None;
    kern::ids::each_process(0, |process| {
        if process.pid() == 1 {
            return true;
        }
        if let Some(space) = process.space() {
            // Not what is mapped now: page tables may go at any time.
            let pages = space.anonymous();
            if worst.as_ref().is_none_or(|(most, _)| pages > *most) {
                worst = Some((pages, process.clone()));
            }
        }
        true
    });
    let Some((pages, process)) = worst else {
        return;
    };
    *VICTIM.lock() = Some(process.pid());
    kprintln!(
        "out of memory: killed process {} ({}), {} KiB of its own",
        process.pid(),
        alloc::string::String::from_utf8_lossy(
            process.comm().split(|&b| b == 0).next().unwrap_or(b"?")
        ),
        pages * 4
    );
    // Whoever shares the memory, as after vfork, keeps it alive.
    let space = process.space();
    kern::ids::each_process(2, |other| {
        let same = match (&space, other.space()) {
            (Some(space), Some(other)) => Arc::ptr_eq(space, &other),
            _ => false,
        };
        if same || other.pid() == process.pid() {
            kern::signal::kill_process(other);
        }
        true
    });
}
