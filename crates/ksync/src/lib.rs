//! Synchronisation: locks with names and ranks, per-CPU data, epochs and hubs.
//!
//! Nothing here has a global lock or a shared counter on its fast path. The crate's requirements on the machine are one
//! trait, [`Platform`]; the binary supplies it with [`platform!`], or the `host` feature supplies it with std threads.
//!
//! There are three kinds of context:
//! - *sleeping*: preemption on, no locks held but sleeping ones; [`Mutex`], [`RwLock`], [`ByteMutex`] and whatever waits
//!   for a grace period, as [`Epoch::synchronize`] does, need it;
//! - *pinned*: preemption off, as while a [`CpuPin`] or a spin guard is alive. A pinned section is also a read section
//!   of every [`Epoch`];
//! - *interrupts off*: while an [`IrqSpin`] is held.
#![no_std]
#![expect(
    unsafe_code,
    reason = "locks, epochs and hubs are built from raw memory here, once"
)]

extern crate alloc;
#[cfg(feature = "host")]
extern crate std;

#[macro_use]
mod shim;

mod address_wait;
mod byte_mutex;
mod byte_owner;
mod byte_run;
mod class;
mod close;
mod counter;
mod epoch;
mod epoch_link;
mod epoch_ptr;
mod epoch_rc;
mod heap;
mod hub;
mod keyed_queue;
mod member_slot;
mod mutex;
mod once;
mod percpu;
mod percpu_ref;
mod platform;
pub mod profile;
mod queue;
mod rc_slots;
mod rc_table;
mod rwlock;
mod sorted_queue;
mod sorted_tree;
mod spin;
mod tally;
mod wait;

#[cfg(feature = "host")]
pub mod host;

pub use address_wait::{sleep_on, wake_all};
pub use byte_mutex::{ByteMutex, ByteMutexGuard, ByteReadGuard};
pub use byte_run::ByteRun;
pub use class::{ClassReport, ClassStats, HeldLocks, LockClass, for_each_class};
pub use close::{Part, close_all};
pub use counter::Counter;
pub use epoch::{Announcer, Epoch, Retired};
pub use epoch_link::EpochLink;
pub use epoch_ptr::{ArcBorrow, EpochPtr, Owner};
pub use epoch_rc::{EpochRc, EpochWeak};
pub use heap::{try_box, try_box_copy};
pub use hub::{AttachError, HubRef, HubShard, HubValue, Member, NewMember, ReplaceError, Walked};
pub use keyed_queue::{KeyedQueue, Slot, Visit, Walk};
pub use member_slot::MemberSlot;
pub use mutex::{Mutex, MutexGuard};
pub use once::Once;
pub use percpu::{CpuPin, Padded, PerCpu, pin};
pub use percpu_ref::PerCpuRef;
pub use platform::{Parker, Platform};
pub use rc_table::{NoRoom, RcTable, RcTableGuard};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub use shim::{Watch, atomic, fence_after_rmw, fence_between_loads, may_switch};
pub use sorted_queue::{SortedQueue, SortedSlot};
pub use sorted_tree::{SortedTree, TreeNode};
pub use spin::{IrqSpin, IrqSpinGuard, RawSpin, RawSpinGuard, Spin, SpinGuard};
pub use tally::Tally;
pub use wait::{Cause, MOST_LISTENERS, Registration, Round, Run, RunState, Sleepers, WaitQueue};

/// A hint inside a busy-wait loop.
#[inline(always)]
pub fn relax() {
    platform::relax();
}

#[doc(hidden)]
pub mod __private {
    pub use crate::platform::symbols;
}

/// One step of a wait in a sleeping context: lets other threads run.
pub fn doze() {
    platform::doze();
}
