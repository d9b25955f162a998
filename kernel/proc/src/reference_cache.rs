//! What a thread keeps of its process: its address space, its descriptors, its directories.
//!
//! Guarantee: a call comes by them without a lock, and without a write to a line that other threads use. Mechanism:
//! each thread has references of its own, and the process tells the addresses of what it has now, which are written when
//! that is replaced. An address cannot come to mean something else while the thread's reference keeps what stands there.
//!
//! Only a process with one thread replaces them (execve, unshare, exit), so no other thread goes on with what was
//! there before; the one that does forgets its own first, so that what ends with its last user ends then.

use alloc::sync::Arc;
use core::cell::RefCell;

use mem::Space;
use task::current::current;
use vfs::{FdTable, FsContext};

use super::process::Process;
use super::user_thread::OwnState;
use crate::UserThreadExt;

/// The part of a thread's references that has to do with one of these types.
trait Cached: Sized {
    fn slot(own: &OwnState) -> &Option<Arc<Self>>;
    fn slot_mut(own: &mut OwnState) -> &mut Option<Arc<Self>>;
    /// What the process has now, under its lock.
    fn of(p: &Process) -> Option<Arc<Self>>;
    /// The address of that, without one.
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

/// Passes the current thread's space to `f`; none for kernel threads and zombies.
#[inline]
pub fn with_space<R>(f: impl FnOnce(&Arc<Space>) -> R) -> Option<R> {
    with(f)
}

/// Passes the current thread's descriptors to `f`; none for kernel threads and zombies.
#[inline]
pub fn with_files<R>(f: impl FnOnce(&Arc<FdTable>) -> R) -> Option<R> {
    with(f)
}

/// Passes the current thread's root, directory and mask to `f`; none for kernel threads and zombies.
#[inline]
pub fn with_fs<R>(f: impl FnOnce(&Arc<FsContext>) -> R) -> Option<R> {
    with(f)
}

/// Forgets the current thread's descriptors and directories, which are about to be replaced or to end.
pub fn forget_files() {
    let me = current();
    if let Some(own) = me.own(&me.user().own) {
        let mut own = own.borrow_mut();
        let old = (own.files.take(), own.fs.take());
        drop(own);
        drop(old);
    }
}

/// Forgets all: the current thread is about to exit.
pub(super) fn forget() {
    let me = current();
    let old = me.own(&me.user().own).map(RefCell::take);
    drop(old);
}
