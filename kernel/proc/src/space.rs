//! Which address space a CPU is in.
//!
//! A CPU keeps the space of the last user thread while kernel threads and the idle thread run, so
//! that going idle and back costs no switch; it lets go of a space when its last thread there
//! exits or execs.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

use ksync::{CpuPin, Once, PerCpu, Spin};
use mem::Space;
use task::thread::Thread;

use super::lock;
use crate::UserThreadExt;

/// The use of an address space by processes: the last one's end empties it.  CPUs that are still in
/// the space, and whoever looks at it from outside, hold the [`Space`] alone.
pub struct UserSpace {
    space: Arc<Space>,
    /// It has ended already.
    ended: bool,
}

impl UserSpace {
    /// A space with its first user.
    pub fn new(space: Arc<Space>) -> Arc<Self> {
        Arc::new(UserSpace {
            space,
            ended: false,
        })
    }

    /// The space.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Ends one process's use.  If it was the last, the space is emptied: the result is the number
    /// of kibibytes that were resident then, else 0.
    pub(super) fn end(self: Arc<Self>) -> u64 {
        Arc::into_inner(self).map_or(0, |mut last| {
            last.ended = true;
            mem::clear(&last.space)
        })
    }
}

impl Drop for UserSpace {
    fn drop(&mut self) {
        if !self.ended {
            mem::clear(&self.space);
        }
    }
}

/// The space that a CPU is in.  Own CPU, preemption off.
struct Active {
    space: Spin<Option<Arc<Space>>, lock::ActiveSpaceLock>,
    /// Its address, to recognise it without the lock; 0 for none.  Unambiguous: the CPU holds a
    /// reference, so nothing else can have that address.
    at: AtomicUsize,
}

static ACTIVE: Once<PerCpu<Active>> = Once::new();

#[inline(never)]
pub(super) fn init(ncpus: usize) {
    ACTIVE.get_or_init(|| {
        PerCpu::new(ncpus, |_| Active {
            space: Spin::new(None),
            at: AtomicUsize::new(0),
        })
    });
}

fn active(pin: &CpuPin) -> &Active {
    ACTIVE.get().expect("set up before any thread").get(pin)
}

/// Enters the space of `next`, which this CPU is about to run.
pub(super) fn switch(next: &Thread) {
    let pin = ksync::pin();
    let a = active(&pin);
    if a.at.load(Ordering::Relaxed) != next.process().space_address() {
        enter(&pin, a, next.process().space());
    }
}

fn enter(pin: &CpuPin, a: &Active, space: Option<Arc<Space>>) {
    let old = a.space.lock().take();
    let same = match (&old, &space) {
        (Some(old), Some(new)) => Arc::ptr_eq(old, new),
        (None, None) => true,
        _ => false,
    };
    if !same {
        mem::activate(pin, old.as_ref(), space.as_ref());
    }
    a.at.store(
        space.as_ref().map_or(0, |s| Arc::as_ptr(s) as usize),
        Ordering::Relaxed,
    );
    *a.space.lock() = space;
    // Should this be the last reference, the space has been emptied by its last user already.
    drop(old);
}

/// This CPU enters the current thread's present space: after execve replaced it.
pub(super) fn reenter(t: &Thread) {
    let pin = ksync::pin();
    enter(&pin, active(&pin), t.process().space());
}

/// This CPU leaves whatever space it is in, for the kernel's.
pub fn leave() {
    let pin = ksync::pin();
    enter(&pin, active(&pin), None);
}
