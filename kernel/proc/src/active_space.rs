//! Which address space a CPU is in.
//!
//! A CPU keeps the space of the last user thread while kernel threads and the idle thread run, so going idle and back
//! costs no switch. It leaves a space when a thread that runs there exits or calls execve.

use alloc::sync::Arc;
use ksync::atomic::{AtomicUsize, Ordering};

use ksync::{CpuPin, Once, PerCpu, Spin};
use mem::Space;
use task::thread::Thread;

use super::lock;
use super::process::Process;
use crate::UserThreadExt;

/// The space that a CPU is in. Used by that CPU alone, with preemption off.
struct Active {
    space: Spin<Option<Arc<Space>>, lock::ActiveSpaceLock>,
    /// The space's address, to recognise the space without the lock; 0 for none. No other space can have it: the CPU
    /// holds a reference.
    at: AtomicUsize,
}

hal::machine_static! {
    static ACTIVE: Once<PerCpu<Active>> = Once::new();
}

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

/// Enters the space of `next`, a user thread that this CPU is about to run.
pub(super) fn switch(next: &Thread) {
    let pin = ksync::pin();
    let a = active(&pin);
    if a.at.load(Ordering::Relaxed) != next.process().space_address() {
        enter(&pin, a, next.process().space());
    }
}

/// Makes this CPU, whose record is `a`, enter `space`; with `None`, the kernel's page tables alone. The record then holds a
/// reference.
fn enter(pin: &CpuPin, a: &Active, space: Option<Arc<Space>>) {
    let address = |space: Option<&Arc<Space>>| space.map_or(0, |s| Arc::as_ptr(s) as usize);
    let at = address(space.as_ref());
    let mut place = a.space.lock();
    // The CPU may be there already: the address of a process that has left its space is that of no space.
    if address(place.as_ref()) != at {
        mem::activate(pin, place.as_ref(), space.as_ref());
    }
    // Sequentially consistent: see `cpus_in`.
    a.at.store(at, Ordering::SeqCst);
    let old = core::mem::replace(&mut *place, space);
    drop(place);
    // If this is the last reference, the space has been emptied already, by its last user.
    drop(old);
}

/// Makes this CPU enter the present space of `t`, the current thread, after execve has replaced it.
pub(super) fn reenter(t: &Thread) {
    let pin = ksync::pin();
    enter(&pin, active(&pin), t.process().space());
}

/// The CPUs that may run threads with the memory of `p`. A CPU that is not among them, and later is, has loaded nothing by then that
/// was stored before the caller's last full fence: it enters the space, which is serialising, and records that with a fence.
pub fn cpus_in(p: &Process) -> impl Iterator<Item = usize> {
    let at = p.space_address();
    let all = ACTIVE.get().expect("set up before any thread");
    (0..hal::cpu::count()).filter(move |&cpu| all.of(cpu).at.load(Ordering::SeqCst) == at)
}

/// Makes this CPU leave the space that it is in and enter the kernel's.
pub fn leave() {
    let pin = ksync::pin();
    enter(&pin, active(&pin), None);
}
