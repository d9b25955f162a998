//! Semaphores: semget(2), semop(2), semctl(2).
//!
//! Guarantee: the operations of one call are done all at once or not at all. Threads that wait are served in the order in which they came,
//! as far as what they wait for permits. What a process has done with SEM_UNDO is undone when the last user of its list of adjustments
//! ends, unless the set was removed.
//!
//! Mechanism: a set has one lock. A thread that must wait is on the list of the semaphore that its first operation in the way is about; the
//! operation that changes that semaphore does the waiting thread's operations for it (`waiting`). Adjustments are in the set
//! ([`undo`]), by the number of the list that they belong to.

mod control;
mod operate;
mod set;
pub mod undo;
mod waiting;

pub use self::control::{
    One, Shown, Sums, check_write, read_all, remove, set_owner, sums, write, write_all,
};
pub use self::operate::{Operation, check_count, operate};
pub(super) use self::set::init;
pub use self::set::{
    MAX_OPERATIONS, MAX_PER_SET, MAX_SEMAPHORES, MAX_SETS, MAX_VALUE, Set, get, registry,
};
