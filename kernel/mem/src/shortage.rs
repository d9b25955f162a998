//! Shortage of memory: whether the kernel may take more, and the policy for when it may not.
//!
//! Threads and processes are unknown to this crate, so it can neither wait for memory nor choose a process to kill. The crate
//! that can do both sets its functions once ([`set_policy`]). Before that, an allocation that finds no memory takes it from
//! the reserve.

use core::alloc::Layout;

use ksync::Once;
use vm::Rights;

use crate::machine::vm;

/// Memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// What is done when memory is short.
pub struct Policy {
    /// Allocates for the kernel's heap when no memory is left above the reserve. The function passed in allocates with the
    /// given rights, or returns null.
    pub last_resort: fn(Layout, &dyn Fn(Rights) -> *mut u8) -> *mut u8,
    /// Waits, in the calling thread, until there is memory. Fails if there is none for a long time, or if the thread is
    /// killed.
    pub wait_for_room: fn() -> Result<(), NoMemory>,
}

hal::machine_static! {
    /// Set once, before the first thread.
    static POLICY: Once<&'static Policy> = Once::new();
}

/// Sets what is done when memory is short. Called once, before the first thread.
pub fn set_policy(policy: &'static Policy) {
    POLICY.get_or_init(|| policy);
}

/// Allocates for the heap by `get` when no memory is left above the reserve; null if that fails, too. May sleep where the caller
/// may.
#[cold]
#[inline(never)]
pub fn last_resort(layout: Layout, get: impl Fn(Rights) -> *mut u8) -> *mut u8 {
    match POLICY.get() {
        Some(policy) => (policy.last_resort)(layout, &get),
        None => get(Rights::Reserve),
    }
}

/// Checks that the kernel may make another long-lived object for a program. Never sleeps.
///
/// Small objects are then allocated without a check of their own: the reserve serves them if memory runs out.
///
/// # Errors
/// [`NoMemory`] if memory is low, or the failure injector makes this call fail.
#[inline]
pub fn admit() -> Result<(), NoMemory> {
    let admitted = vm().alloc.admits(&ksync::pin());
    admitted.then_some(()).ok_or(NoMemory)
}

/// Waits until there is memory for another process, or for an object that goes away when a process ends, such as a mapping. So a caller that
/// asks for much waits for other processes to give memory back, instead of failing because they have it. Called in a thread
/// that may sleep.
///
/// # Errors
/// [`NoMemory`] if there is none for a long time, the thread is killed, or the failure injector makes this call fail.
#[inline(always)]
pub fn admit_process() -> Result<(), NoMemory> {
    admit().or_else(|_| refused())
}

/// The rest of [`admit_process`] where memory is low, or the injector has refused it.
#[cold]
#[inline(never)]
fn refused() -> Result<(), NoMemory> {
    if vm().alloc.low_memory() {
        wait_for_room()
    } else {
        Err(NoMemory)
    }
}

/// Waits until there is memory, before the caller changes something that it already has and that it may have many of. Called
/// in a thread that may sleep. As long as there is memory, it reads one cache line of this CPU and nothing else.
///
/// # Errors
/// [`NoMemory`] if there is none for a long time, or the thread is killed.
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
