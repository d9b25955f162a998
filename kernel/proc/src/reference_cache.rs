//! A thread's cached references to what its process has: address space, descriptor table, file-system context.
//!
//! Guarantee: a system call gets at these objects without a lock, and without a write to a cache line that other
//! threads use. Mechanism: each thread holds references of its own, and the process has the addresses of its present
//! objects in atomic words, which are written when an object is replaced. A cached reference is used if its address is
//! the present one: no other object can get that address as long as the thread's reference keeps the object alive.
//!
//! Only a process with one thread replaces objects (execve, unshare, exit), so no other thread goes on with an old one.
//! That thread drops its cached references first, so that an object whose last user it is ends at that moment.

use alloc::sync::Arc;
use core::cell::RefCell;

use mem::Space;
use task::current::current;
use vfs::{FdTable, FsContext};

use super::process::Process;
use super::user_thread::OwnState;
use crate::UserThreadExt;

/// An object of a process that its threads cache references to.
trait Cached: Sized {
    fn slot(own: &OwnState) -> &Option<Arc<Self>>;
    fn slot_mut(own: &mut OwnState) -> &mut Option<Arc<Self>>;
    /// A reference to the process's present object, read under a lock; none if there is none.
    fn of(p: &Process) -> Option<Arc<Self>>;
    /// The address of that object, read without a lock; 0 for none.
    fn address(p: &Process) -> usize;
}

macro_rules! cached {
    ($type:ty, $field:ident, $of:ident, $address:ident) => {
        impl Cached for $type {
            #[inline(always)]
            fn slot(own: &OwnState) -> &Option<Arc<Self>> {
                &own.$field
            }

            fn slot_mut(own: &mut OwnState) -> &mut Option<Arc<Self>> {
                &mut own.$field
            }

            fn of(p: &Process) -> Option<Arc<Self>> {
                p.$of()
            }

            #[inline(always)]
            fn address(p: &Process) -> usize {
                p.$address()
            }
        }
    };
}

cached!(Space, space, space, space_address);
cached!(FdTable, files, files, files_address);
cached!(FsContext, fs, fs, fs_address);

/// Passes the process's present object to `f`, by the thread's cached reference, or a new one that is cached then. `f` may sleep.
#[inline(always)]
fn with<T: Cached, R>(f: impl FnOnce(&Arc<T>) -> R) -> Option<R> {
    let me = current();
    let user = me.user();
    if let Some(Ok(own)) = me.own(&user.own).map(RefCell::try_borrow)
        && let Some(cached) = T::slot(&own)
        && Arc::as_ptr(cached) as usize == T::address(&user.process)
    {
        return Some(f(cached));
    }
    let cached = refresh::<T>()?;
    Some(f(&cached))
}

/// A reference to the process's present object, which takes the place of the cached one, unless a `with` further up uses the
/// cache.
#[cold]
#[inline(never)]
fn refresh<T: Cached>() -> Option<Arc<T>> {
    let me = current();
    let now = T::of(me.process());
    if let Some(Ok(mut own)) = me.own(&me.user().own).map(RefCell::try_borrow_mut) {
        let old = core::mem::replace(T::slot_mut(&mut own), now.clone());
        drop(own);
        drop(old);
    }
    now
}

/// Passes the current thread's address space to `f`; none for kernel threads and zombies.
#[inline]
pub fn with_space<R>(f: impl FnOnce(&Arc<Space>) -> R) -> Option<R> {
    with(f)
}

/// Passes the current thread's descriptor table to `f`; none for kernel threads and zombies.
#[inline]
pub fn with_files<R>(f: impl FnOnce(&Arc<FdTable>) -> R) -> Option<R> {
    with(f)
}

/// Passes the current thread's root, working directory and umask to `f`; none for kernel threads and zombies.
#[inline]
pub fn with_fs<R>(f: impl FnOnce(&Arc<FsContext>) -> R) -> Option<R> {
    with(f)
}

/// Drops the current thread's cached references to its descriptor table and file-system context. Called before these are replaced
/// or end, and not within [`with_files`] and the like. If these are the last references, files are closed: may sleep.
pub fn forget_files() {
    let me = current();
    if let Some(own) = me.own(&me.user().own) {
        let mut own = own.borrow_mut();
        let old = (own.files.take(), own.fs.take());
        drop(own);
        drop(old);
    }
}

/// Drops all cached references of the current thread, which is about to exit.
pub(super) fn drop_all() {
    let me = current();
    let old = me.own(&me.user().own).map(RefCell::take);
    drop(old);
}
