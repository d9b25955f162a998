//! semctl(2).

use alloc::vec::Vec;
use ksync::atomic::Ordering::Relaxed;

use super::set::{MAX_VALUE, SEMAPHORES, Set, State, registry};
use crate::sysv::error::{Result, SysvError};
use crate::sysv::perm::{Caller, NewOwner, Perm, READ, WRITE};
use crate::sysv::present::now;
use crate::sysv::registry::Object;

/// What IPC_STAT and /proc show of a set.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// Owner and mode.
    pub perm: Perm,
    /// The time of the last semop(2), in seconds of real time, or 0.
    pub operated: u64,
    /// The time of the last change by semctl(2), or of the making.
    pub changed: u64,
    /// How many semaphores there are.
    pub len: usize,
}

/// What GETVAL and its like read of one semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct One {
    /// Its value.
    pub value: i32,
    /// The process that last operated on it, or 0.
    pub pid: u32,
    /// Threads that wait for a larger value.
    pub want_more: u32,
    /// Threads that wait for 0.
    pub want_zero: u32,
}

/// What SEM_INFO shows.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// Sets.
    pub sets: usize,
    /// Their semaphores.
    pub semaphores: u64,
}

/// Sets, and their semaphores.
pub fn sums() -> Sums {
    Sums {
        sets: registry().count(),
        semaphores: SEMAPHORES.load(Relaxed),
    }
}

impl Set {
    /// What is shown of it, if the caller may read it; `all` for SEM_STAT_ANY, for which anybody may. Sleeps.
    ///
    /// # Errors
    /// `Denied`, `Removed`.
    pub fn stat(&self, all: bool, caller: Caller<'_>) -> Result<Shown> {
        let state = self.lock()?;
        if !all {
            self.perm().check(READ, caller.cred)?;
        }
        Ok(self.show(&state))
    }

    /// What is shown of it; `None` if it was removed. Sleeps.
    pub fn shown(&self) -> Option<Shown> {
        Some(self.show(&*self.lock().ok()?))
    }

    fn show(&self, state: &State) -> Shown {
        Shown {
            perm: self.perm(),
            operated: state.operated,
            changed: state.changed,
            len: self.len,
        }
    }

    /// What GETVAL, GETPID, GETNCNT and GETZCNT read. Sleeps.
    ///
    /// # Errors
    /// `Denied`, `Removed`; `Invalid` if there is no such semaphore.
    pub fn read(&self, semaphore: i32, caller: Caller<'_>) -> Result<One> {
        let state = self.lock()?;
        self.perm().check(READ, caller.cred)?;
        let index = usize::try_from(semaphore).ok();
        let one = index.and_then(|i| state.semaphores.get(i));
        let one = one.ok_or(SysvError::Invalid)?;
        let waits = one.waiting.iter();
        let zero = waits.filter(|w| w.request.operations[w.blocked_at].by == 0);
        let want_zero = zero.count() as u32;
        Ok(One {
            value: one.value,
            pid: one.pid,
            want_more: one.waiting.len() as u32 - want_zero,
            want_zero,
        })
    }
}

/// GETALL. Sleeps.
///
/// # Errors
/// `Invalid`, `Denied`, `Removed`, `NoMemory`.
pub fn read_all(id: i32, caller: Caller<'_>) -> Result<Vec<u16>> {
    let set = registry().find(id)?;
    let mut values = Vec::new();
    let room = values.try_reserve_exact(set.len);
    room.map_err(|_| SysvError::NoMemory)?;
    let state = set.lock()?;
    set.perm().check(READ, caller.cred)?;
    values.extend(state.semaphores.iter().map(|s| s.value as u16));
    Ok(values)
}

/// How many semaphores a set has whose values the caller may set, for SETALL. Sleeps.
///
/// # Errors
/// `Invalid`, `Denied`, `Removed`.
pub fn check_write(id: i32, caller: Caller<'_>) -> Result<usize> {
    let set = registry().find(id)?;
    let _state = set.lock()?;
    set.perm().check(WRITE, caller.cred)?;
    Ok(set.len)
}

/// SETVAL. Sleeps.
///
/// # Errors
/// `Range`, `Invalid`, `Denied`, `Removed`.
pub fn write(id: i32, semaphore: i32, value: i32, caller: Caller<'_>) -> Result<()> {
    if !(0..=MAX_VALUE).contains(&value) {
        return Err(SysvError::Range);
    }
    let set = registry().find(id)?;
    let index = usize::try_from(semaphore).ok().filter(|&i| i < set.len);
    let index = index.ok_or(SysvError::Invalid)?;
    let mut state = set.lock()?;
    set.perm().check(WRITE, caller.cred)?;
    state.clear_adjustments(Some(index));
    state.put(index, value, caller.pid);
    state.changed = now();
    state.serve([index].into_iter());
    Ok(())
}

/// SETALL, with a value for each semaphore. Sleeps.
///
/// # Errors
/// `Range`, `Invalid`, `Denied`, `Removed`.
pub fn write_all(id: i32, values: &[u16], caller: Caller<'_>) -> Result<()> {
    if values.iter().any(|&value| i32::from(value) > MAX_VALUE) {
        return Err(SysvError::Range);
    }
    let set = registry().find(id)?;
    let mut state = set.lock()?;
    set.perm().check(WRITE, caller.cred)?;
    state.clear_adjustments(None);
    for (index, &value) in values.iter().enumerate().take(set.len) {
        state.put(index, value.into(), caller.pid);
    }
    state.changed = now();
    state.serve(0..set.len);
    Ok(())
}

impl State {
    fn put(&mut self, index: usize, value: i32, pid: u32) {
        let semaphore = &mut self.semaphores[index];
        (semaphore.value, semaphore.pid) = (value, pid);
    }
}

/// IPC_SET. Sleeps.
///
/// # Errors
/// `Invalid`, `NotOwner`, `Removed`.
pub fn set_owner(id: i32, new: NewOwner, caller: Caller<'_>) -> Result<()> {
    let set = registry().find(id)?;
    let mut state = set.lock()?;
    set.perm.set_owner(new, caller.cred)?;
    state.changed = now();
    Ok(())
}

/// IPC_RMID: threads that wait fail with `Removed`. Sleeps.
///
/// # Errors
/// `Invalid`, `NotOwner`.
pub fn remove(id: i32, caller: Caller<'_>) -> Result<()> {
    let set = registry().remove(id, |set| set.perm.take_key(caller.cred))?;
    let mut state = set.lock_removed();
    state.removed = true;
    state.answer_all(SysvError::Removed);
    let (semaphores, adjustments) = (
        core::mem::take(&mut state.semaphores),
        core::mem::take(&mut state.adjustments),
    );
    drop(state);
    drop((semaphores, adjustments));
    // Not before: this thread may have waited long for the set, while the semaphores were there.
    SEMAPHORES.fetch_sub(set.len as u64, Relaxed);
    set.pay_back();
    Ok(())
}
