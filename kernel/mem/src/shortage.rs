//! Memory that is short: how much the kernel may still take, and what those above do about it.
//!
//! This crate knows no threads, so it can neither wait for memory nor choose a process that has to end. The part of the
//! kernel that can is told to it once ([`set_policy`]); before that an allocation without memory takes from the reserve.

use core::alloc::Layout;

use ksync::Once;
use vm::Rights;

use crate::machine::vm;

/// Memory is low.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// What is done when memory is short.
pub struct Policy {
    /// Memory for the kernel's heap where there is none above the reserve; the function given takes it with the rights
    /// named, or returns null.
    pub last_resort: fn(Layout, &dyn Fn(Rights) -> *mut u8) -> *mut u8,
    /// Waits, in the calling thread, until there is memory; fails if there is none for a long time, or if the thread is
    /// killed.
    pub wait_for_room: fn() -> Result<(), NoMemory>,
}

/// Set once, before the first thread.
static POLICY: Once<&'static Policy> = Once::new();

/// Says what is done when memory is short. Once.
pub fn set_policy(policy: &'static Policy) {
    POLICY.get_or_init(|| policy);
}

/// Memory for the heap where there is none above the reserve.
#[cold]
#[inline(never)]
pub(crate) fn last_resort(layout: Layout, get: impl Fn(Rights) -> *mut u8) -> *mut u8 {
    match POLICY.get() {
        Some(policy) => (policy.last_resort)(layout, &get),
        None => get(Rights::Reserve),
    }
}

/// Whether the kernel may make another long-lived object for a program.
///
/// Small objects are then allocated without a check, from what stays in reserve.
///
/// # Errors
/// [`NoMemory`] if memory is low, or the failure injector says so.
#[inline]
pub fn admit() -> Result<(), NoMemory> {
    let admitted = vm().alloc.admits(&ksync::pin());
    admitted.then_some(()).ok_or(NoMemory)
}

/// Waits until there is memory for another process, or for an object that is freed by some process's end. So a caller that
/// asks for much waits for room instead of being refused what other processes hold. Called in a thread that may sleep.
///
/// # Errors
/// There is none for a long time, the caller was killed, or the failure injector says so.
#[inline]
pub fn admit_process() -> Result<(), NoMemory> {
    let pin = ksync::pin();
    let alloc = &vm().alloc;
    if alloc.inject(&pin) {
        return Err(NoMemory);
    }
    if !alloc.low_memory() {
        return Ok(());
    }
    drop(pin);
    wait_for_room()
}

/// Waits until there is memory, before a change of something that the caller has already and that may become many. Called
/// in a thread that may sleep. Where memory is there, one line of this CPU is read.
///
/// # Errors
/// There is none for a long time, or the caller was killed.
#[inline]
pub fn admit_change() -> Result<(), NoMemory> {
    if vm().alloc.low_memory() {
        wait_for_room()
    } else {
        Ok(())
    }
}

#[cold]
#[inline(never)]
fn wait_for_room() -> Result<(), NoMemory> {
    POLICY
        .get()
        .map_or(Err(NoMemory), |policy| (policy.wait_for_room)())
}
