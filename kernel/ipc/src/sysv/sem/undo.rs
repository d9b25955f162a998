//! Adjustments: what is added to semaphores when a process ends (SEM_UNDO).
//!
//! Guarantee: each successful operation with SEM_UNDO is undone once, by the drop of the list to which it belongs, or never, if the
//! semaphore is set or the set removed before.
//!
//! Mechanism: a list has a number, and the sets in which that number has adjustments. These are guarded by their set's lock; the list alone
//! would not do, since SETVAL and SETALL clear the adjustments of all lists. The list knows the sets by their ids.

use alloc::vec::Vec;
use ksync::atomic::{AtomicU64, Ordering::Relaxed};

use ksync::Spin;

use super::set::{MAX_VALUE, Set, State, registry};
use crate::sysv::charge::Charged;
use crate::sysv::error::{Result, SysvError};
use crate::sysv::perm::Caller;
use crate::sysv::present::{now, own_pid};
use crate::sysv::registry::Object;

ksync::lock_class!(pub UndoLock, "semaphore adjustments", rank = 84);

hal::machine_static! {
    /// The number of lists that were made. Atomic.
    static LISTS: AtomicU64 = AtomicU64::new(0);
}

/// The adjustments of one list in one set.
pub(super) struct Adjustments {
    list: u64,
    /// One for each semaphore.
    values: Vec<i16>,
    _bytes: Charged,
}

/// The list of the threads that share their adjustments (CLONE_SYSVSEM). Its drop makes them, and sleeps.
pub struct List {
    number: u64,
    /// Ids of sets: a reference, even a weak one, would keep the memory of a removed set.
    sets: Spin<Vec<i32>, UndoLock>,
}

impl List {
    /// An empty list.
    pub fn new() -> List {
        List {
            number: LISTS.fetch_add(1, Relaxed),
            sets: Spin::new(Vec::new()),
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Makes room for adjustments in a set whose state the caller has locked.
    ///
    /// # Errors
    /// `NoMemory`; `NoSpace` beyond the user's limit.
    pub(super) fn prepare(&self, set: &Set, state: &mut State, by: Caller<'_>) -> Result<()> {
        let Err(at) = state.adjustments_of(self.number) else {
            return Ok(());
        };
        let size = size_of::<Adjustments>() + set.len * size_of::<i16>();
        let bytes = Charged::bytes(by.cred, size)?;
        let mut values = Vec::new();
        let room = values.try_reserve_exact(set.len);
        room.map_err(|_| SysvError::NoMemory)?;
        values.resize(set.len, 0);
        let room = state.adjustments.try_reserve(1);
        room.map_err(|_| SysvError::NoMemory)?;
        {
            let mut sets = self.sets.lock();
            if sets.len() == sets.capacity() {
                sets.retain(|&id| registry().has(id));
            }
            sets.try_reserve(1).map_err(|_| SysvError::NoMemory)?;
            sets.push(set.id());
        }
        let new = Adjustments {
            list: self.number,
            values,
            _bytes: bytes,
        };
        state.adjustments.insert(at, new);
        Ok(())
    }
}

impl Default for List {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let sets = core::mem::take(&mut *self.sets.lock());
        // A set that has got a removed set's id since has no adjustments of this list.
        for set in sets.iter().filter_map(|&id| registry().find(id).ok()) {
            undo(&set, self.number);
        }
    }
}

/// Makes the adjustments of a list in a set, and removes them.
fn undo(set: &Set, list: u64) {
    let pid = own_pid();
    let mut guard = set.lock_removed();
    let state = &mut *guard;
    let Ok(at) = state.adjustments_of(list) else {
        return;
    };
    let mine = state.adjustments.remove(at);
    let changes = mine.values.iter().zip(&mut state.semaphores);
    for (&by, semaphore) in changes.filter(|(by, _)| **by != 0) {
        semaphore.value = (semaphore.value + i32::from(by)).clamp(0, MAX_VALUE);
        semaphore.pid = pid;
        state.operated = now();
    }
    let changed = mine.values.iter().enumerate().filter(|(_, by)| **by != 0);
    state.serve(changed.map(|(index, _)| index));
}

impl State {
    /// The place of a list's adjustments, or where they would be.
    fn adjustments_of(&self, list: u64) -> core::result::Result<usize, usize> {
        self.adjustments.binary_search_by_key(&list, |a| a.list)
    }

    /// A list's adjustment of a semaphore; `None` if it has none in the set.
    pub(super) fn adjustment(&mut self, list: u64, semaphore: usize) -> Option<&mut i16> {
        let at = self.adjustments_of(list).ok()?;
        self.adjustments[at].values.get_mut(semaphore)
    }

    /// Clears the adjustments of one semaphore, or of all.
    pub(super) fn clear_adjustments(&mut self, semaphore: Option<usize>) {
        for one in &mut self.adjustments {
            match semaphore {
                Some(index) => one.values[index] = 0,
                None => one.values.fill(0),
            }
        }
    }
}
