//! Sets of semaphores.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use ksync::atomic::{AtomicU64, Ordering::Relaxed};

use ksync::{Mutex, MutexGuard, Once};

use super::undo::Adjustments;
use super::waiting::Waiting;
use crate::sysv::charge::Charged;
use crate::sysv::error::{Result, SysvError};
use crate::sysv::perm::{Caller, OwnPerm, Perm};
use crate::sysv::present::now;
use crate::sysv::registry::{Object, Registry, Wanted};

ksync::lock_class!(pub SetLock, "semaphore set", rank = 58);

/// The largest value of a semaphore, as in Linux.
pub const MAX_VALUE: i32 = 32767;

hal::machine_static! {
    static SETS: Once<Registry<Set>> = Once::new();
    /// Semaphores of all sets. Atomic.
    pub(super) static SEMAPHORES: AtomicU64 = AtomicU64::new(0);
    /// /proc/sys/kernel/sem: semaphores of a set. Atomic, as those that follow.
    pub static MAX_PER_SET: AtomicU64 = AtomicU64::new(32000);
    /// Semaphores of all sets.
    pub static MAX_SEMAPHORES: AtomicU64 = AtomicU64::new(1_024_000_000);
    /// Operations of a call.
    pub static MAX_OPERATIONS: AtomicU64 = AtomicU64::new(500);
    /// Sets.
    pub static MAX_SETS: AtomicU64 = AtomicU64::new(32000);
}

/// A semaphore. Guarded by its set's lock.
#[derive(Default)]
pub(super) struct Semaphore {
    pub value: i32,
    /// The process that last changed it, or looked for zero.
    pub pid: u32,
    /// Threads of which the first operation in the way is about it, in the order in which they came.
    pub waiting: VecDeque<Waiting>,
    /// Whether it is on the list of those that have changed and whose waiting threads were not served yet; and the next one there.
    pub is_changed: bool,
    pub next_changed: Option<usize>,
}

/// What a set's lock guards.
pub(super) struct State {
    pub removed: bool,
    pub operated: u64,
    pub changed: u64,
    pub semaphores: Vec<Semaphore>,
    /// By the number of their list.
    pub adjustments: Vec<Adjustments>,
    /// The ticket of the next thread that waits.
    pub tickets: u64,
}

/// A set of semaphores.
pub struct Set {
    id: i32,
    /// How many there are.
    pub(super) len: usize,
    bytes: Charged,
    pub(super) perm: OwnPerm,
    state: Mutex<State, SetLock>,
}

pub(in crate::sysv) fn init() {
    SETS.get_or_init(Registry::new);
}

/// The sets.
///
/// # Panics
/// Before they are set up, at boot.
pub fn registry() -> &'static Registry<Set> {
    SETS.get().expect("set up at boot")
}

/// Finds a set, or makes one of `len` semaphores with value 0 (semget(2)). Sleeps.
///
/// # Errors
/// As semget(2) says; `NoSpace` also beyond the user's limit.
pub fn get(wanted: Wanted, len: i32, caller: Caller<'_>) -> Result<i32> {
    let most = MAX_PER_SET.load(Relaxed);
    let len = u64::try_from(len).ok().filter(|&len| len <= most);
    let len = len.ok_or(SysvError::Invalid)? as usize;
    let fits = |set: &Set| {
        let fits = len <= set.len;
        fits.then_some(()).ok_or(SysvError::Invalid)
    };
    registry().get(wanted, caller, MAX_SETS.load(Relaxed), fits, |id| {
        make(id, wanted, len, caller)
    })
}

fn make(id: i32, wanted: Wanted, len: usize, caller: Caller<'_>) -> Result<Arc<Set>> {
    if len == 0 {
        return Err(SysvError::Invalid);
    }
    let all = SEMAPHORES.load(Relaxed) + len as u64;
    if all > MAX_SEMAPHORES.load(Relaxed) {
        return Err(SysvError::NoSpace);
    }
    let size = size_of::<Set>() + len * size_of::<Semaphore>();
    let bytes = Charged::bytes(caller.cred, size)?;
    let mut semaphores = Vec::new();
    let room = semaphores.try_reserve_exact(len);
    room.map_err(|_| SysvError::NoMemory)?;
    semaphores.extend((0..len).map(|_| Semaphore::default()));
    // Changes are made under the lock of the keys, but for those that only lessen it.
    SEMAPHORES.fetch_add(len as u64, Relaxed);
    Ok(Arc::new(Set {
        id,
        len,
        bytes,
        perm: OwnPerm::new(Perm::new(wanted.key, id, wanted.flags, caller.cred)),
        state: Mutex::new(State {
            removed: false,
            operated: 0,
            changed: now(),
            semaphores,
            adjustments: Vec::new(),
            tickets: 0,
        }),
    }))
}

impl Set {
    /// Locks the set. Sleeps.
    ///
    /// # Errors
    /// `Removed`.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, State, SetLock>> {
        let state = self.state.lock();
        if state.removed {
            return Err(SysvError::Removed);
        }
        Ok(state)
    }

    /// Locks the set, which may have been removed: then nothing is in it. Sleeps.
    pub(super) fn lock_removed(&self) -> MutexGuard<'_, State, SetLock> {
        self.state.lock()
    }
}

impl Set {
    /// Gives back what the set's maker was charged for it. The caller has freed its semaphores.
    pub(super) fn pay_back(&self) {
        self.bytes.give_back();
    }
}

impl Object for Set {
    fn id(&self) -> i32 {
        self.id
    }

    fn perm(&self) -> Perm {
        self.perm.get()
    }

    fn bytes(&self) -> usize {
        self.bytes.amount()
    }

    /// Nothing yet: its semaphores are freed later.
    fn give_back(&self) {}
}
