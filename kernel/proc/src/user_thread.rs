//! The part of a thread that only the threads of processes have.

use alloc::boxed::Box;
use alloc::sync::Arc;
use ksync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use hal::current::Own;
use hal::upper::UpperBox;
use ksync::Spin;
use mem::Space;
use task::current::current;
use task::thread::Thread;
use vfs::{FdTable, FsContext};

use super::held_futexes::HeldFutexes;
use super::lock;
use super::process::Process;
use super::rseq::Rseq;
use super::signal::{OwnAltStack, RestartBlock, SigSet, ThreadPending};
use super::undo_slot::UndoSlot;

hal::upper_type! {
    /// The type of what `task` stores in a thread for this crate.
    static UPPER: UserThread
}

/// What a process keeps for one of its threads. Fields marked *own* are written by the thread itself only.
pub struct UserThread {
    /// The thread's process. Const.
    pub(super) process: Arc<Process>,
    /// The signals that the thread blocks. *Own*, and written under the process's signal lock.
    pub(super) blocked: AtomicU64,
    /// The mask to be restored after sigsuspend, ppoll, pselect and sigtimedwait. *Own*; for sigtimedwait as `blocked`.
    pub(super) saved_mask: AtomicU64,
    /// Signals that are pending for this thread alone.
    pub(super) pending: ThreadPending,
    /// The stack for handlers. *Own*; the thread's maker sets it before the thread runs.
    pub(super) altstack: OwnAltStack,
    pub(super) restart: Spin<RestartBlock, lock::UserThreadLock>,
    /// The address where the exit of the thread writes 0 and wakes a futex; 0 for none. *Own*.
    pub(super) clear_child_tid: AtomicU64,
    /// The address of the head of the robust futex list; 0 for none. *Own*.
    pub(super) robust_list: AtomicU64,
    /// The thread's restartable sequences.
    pub(super) rseq: Rseq,
    /// ioprio_set(2): class and level, as Linux numbers them. It is reported and has no effect, for there are no block devices. Atomic.
    pub(super) ioprio: AtomicU32,
    /// Where the thread waits for a futex: the bucket, and the slot in it. Guarded by that bucket's lock; stale when
    /// the thread does not wait.
    pub(super) futex_place: AtomicU32,
    /// The address of its slot for what semaphores undo, as its identity; 0 for none. *Own*.
    pub(super) undo_at: AtomicUsize,
    /// The places of its entries where it waits for several futexes, each guarded as `futex_place`. Set by the thread itself.
    futex_places: Spin<Option<Arc<[AtomicU32]>>, lock::UserThreadLock>,
    /// The futexes with priority inheritance that it owns, and what it is lent for them.
    pub(super) held: HeldFutexes,
    /// State that needs no synchronisation at all. *Own*.
    pub(super) own: Own<OwnState>,
}

/// A memory policy, as set_mempolicy(2) has it. It is reported and has no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPolicy {
    /// Mode and flags.
    pub mode: u32,
    /// Node `n` is bit `n`.
    pub nodes: u64,
}

/// The memory policy of the calling thread.
pub fn memory_policy() -> MemoryPolicy {
    let me = current();
    me.own(&me.user().own)
        .map_or(MemoryPolicy::default(), |own| own.borrow().policy)
}

/// Replaces the memory policy of the calling thread.
pub fn set_memory_policy(new: MemoryPolicy) {
    let me = current();
    if let Some(own) = me.own(&me.user().own) {
        own.borrow_mut().policy = new;
    }
}

/// State that only the thread itself uses: its cached references.
#[derive(Default)]
pub struct OwnState {
    /// The address space of its process when the thread last used it.
    pub space: Option<Arc<Space>>,
    /// The descriptor table of its process when the thread last used it.
    pub files: Option<Arc<FdTable>>,
    /// The file-system context of its process when the thread last used it.
    pub fs: Option<Arc<FsContext>>,
    /// Its memory policy.
    pub policy: MemoryPolicy,
    /// Where it has what semaphores undo at its end; other threads may share it.
    pub undo: Option<Arc<UndoSlot>>,
}

impl UserThread {
    /// The part of a new thread of `process` that blocks the signals of `blocked`, has that memory policy, and shares a slot for what
    /// semaphores undo.
    pub(super) fn for_new(
        process: Arc<Process>,
        blocked: u64,
        policy: MemoryPolicy,
        undo: Option<Arc<UndoSlot>>,
    ) -> UpperBox {
        UPPER.wrap(Box::new(UserThread {
            process,
            blocked: AtomicU64::new(blocked),
            saved_mask: AtomicU64::new(0),
            pending: ThreadPending::new(),
            altstack: OwnAltStack::default(),
            restart: Spin::new(RestartBlock::None),
            clear_child_tid: AtomicU64::new(0),
            robust_list: AtomicU64::new(0),
            rseq: Rseq::default(),
            ioprio: AtomicU32::new(0),
            futex_place: AtomicU32::new(0),
            undo_at: AtomicUsize::new(undo.as_ref().map_or(0, |slot| Arc::as_ptr(slot).addr())),
            futex_places: Spin::new(None),
            held: HeldFutexes::default(),
            own: Own::new(OwnState {
                space: None,
                files: None,
                fs: None,
                policy,
                undo,
            }),
        }))
    }
}

impl UserThread {
    /// Sets the places of several entries, before the first is made and after the last is gone.
    pub(super) fn set_futex_places(&self, places: Option<Arc<[AtomicU32]>>) {
        let old = core::mem::replace(&mut *self.futex_places.lock(), places);
        drop(old);
    }

    /// The entry for the word `index`, counted from 1, or with 0 that for the only word, has moved. The caller holds the locks of both
    /// buckets.
    pub(super) fn move_futex(&self, index: u8, place: u32) {
        if index == 0 {
            self.futex_place.store(place, Ordering::Relaxed);
        } else if let Some(places) = &*self.futex_places.lock() {
            places[usize::from(index) - 1].store(place, Ordering::Relaxed);
        }
    }
}

/// What processes add to a thread.
pub trait UserThreadExt {
    /// What the process keeps for the thread.
    fn user(&self) -> &UserThread;
    /// The thread's process.
    fn process(&self) -> &Arc<Process>;
    /// The signals that the thread blocks.
    fn blocked(&self) -> SigSet;
    /// Which slot it has for what semaphores undo, as an identity; 0 for none.
    fn undo_identity(&self) -> usize;
    /// The address of the head of the robust futex list, 0 for none.
    fn robust_list(&self) -> u64;
    /// Sets the head of the robust futex list. Called by the thread itself.
    fn set_robust_list(&self, head: u64);
    /// The address where the exit of the thread writes 0 and wakes a futex, 0 for none.
    fn clear_child_tid(&self) -> u64;
    /// Sets the address where the exit of the thread writes 0 and wakes a futex, 0 for none. Called by the thread itself.
    fn set_clear_child_tid(&self, addr: u64);
    /// Its registration for restartable sequences.
    fn rseq(&self) -> &Rseq;
    /// Class and level of ioprio_set(2).
    fn io_priority(&self) -> u32;
    /// Sets class and level of ioprio_set(2).
    fn set_io_priority(&self, new: u32);
}

impl UserThreadExt for Thread {
    #[inline(always)]
    fn user(&self) -> &UserThread {
        UPPER.get(self.upper())
    }

    #[inline(always)]
    fn process(&self) -> &Arc<Process> {
        &self.user().process
    }

    #[inline]
    fn blocked(&self) -> SigSet {
        SigSet(self.user().blocked.load(Ordering::Relaxed))
    }

    fn undo_identity(&self) -> usize {
        self.user().undo_at.load(Ordering::Relaxed)
    }

    fn robust_list(&self) -> u64 {
        self.user().robust_list.load(Ordering::Relaxed)
    }

    fn set_robust_list(&self, head: u64) {
        self.user().robust_list.store(head, Ordering::Relaxed);
    }

    fn clear_child_tid(&self) -> u64 {
        self.user().clear_child_tid.load(Ordering::Relaxed)
    }

    fn set_clear_child_tid(&self, addr: u64) {
        self.user().clear_child_tid.store(addr, Ordering::Relaxed);
    }

    #[inline]
    fn rseq(&self) -> &Rseq {
        &self.user().rseq
    }

    fn io_priority(&self) -> u32 {
        self.user().ioprio.load(Ordering::Relaxed)
    }

    fn set_io_priority(&self, new: u32) {
        self.user().ioprio.store(new, Ordering::Relaxed);
    }
}

/// The process of the calling thread, with a reference of its own.
pub fn current_process() -> Arc<Process> {
    current().process().clone()
}
