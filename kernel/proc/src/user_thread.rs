//! What processes keep for a thread.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cred::{Charge, Cred};
use hal::current::Own;
use hal::upper::UpperBox;
use ksync::Spin;
use mem::{NoMemory, Space};
use task::thread::Thread;
use vfs::{FdTable, FsContext};

use super::process::Process;
use super::signal::{AltStack, RestartBlock, SigSet, ThreadPending};
use super::{account, lock};

hal::upper_type! {
    /// The type of what threads keep for this crate.
    static UPPER: UserThread
}

/// What processes keep for a thread; fields marked *own* are written by the thread itself only.
pub struct UserThread {
    /// Its thread group.  Const.
    pub(super) process: Arc<Process>,
    /// Signals held back.  *Own*, but for the process's signal lock held.
    pub(super) blocked: AtomicU64,
    /// The mask to return to after sigsuspend, ppoll, pselect and sigtimedwait.  *Own*; for the last as `blocked`.
    pub(super) saved_mask: AtomicU64,
    /// Signals sent to this thread alone.
    pub(super) pending: ThreadPending,
    pub(super) altstack: Spin<AltStack, lock::UserThreadLock>,
    pub(super) restart: Spin<RestartBlock, lock::UserThreadLock>,
    /// Where exit writes 0 and wakes a futex; 0 for nowhere.  *Own*.
    pub(super) clear_child_tid: AtomicU64,
    /// Head of the robust futex list; 0 for none.  *Own*.
    pub(super) robust_list: AtomicU64,
    /// Where it waits for a futex: the bucket, and the slot in it.  That bucket's lock; left as it is when it waits no more.
    pub(super) futex_place: AtomicU32,
    /// What needs no synchronisation at all.  *Own*.
    pub(super) own: Own<OwnState>,
}

/// What only its thread uses.
#[derive(Default)]
pub struct OwnState {
    /// The address space that the thread was last seen to be in.
    pub space: Option<Arc<Space>>,
    /// The descriptors that it used last.
    pub files: Option<Arc<FdTable>>,
    /// The directories that it used last.
    pub fs: Option<Arc<FsContext>>,
}

impl UserThread {
    /// The part of a new thread of `process`, which holds the signals of `blocked` back.
    pub(super) fn for_new(process: Arc<Process>, blocked: u64) -> UpperBox {
        UPPER.wrap(Box::new(UserThread {
            process,
            blocked: AtomicU64::new(blocked),
            saved_mask: AtomicU64::new(0),
            pending: ThreadPending::new(),
            altstack: Spin::new(AltStack::NONE),
            restart: Spin::new(RestartBlock::None),
            clear_child_tid: AtomicU64::new(0),
            robust_list: AtomicU64::new(0),
            futex_place: AtomicU32::new(0),
            own: Own::new(OwnState {
                space: None,
                files: None,
                fs: None,
            }),
        }))
    }
}

/// A thread, as processes see it.
pub trait UserThreadExt {
    /// What processes keep for it.
    fn user(&self) -> &UserThread;
    /// The thread group.
    fn process(&self) -> &Arc<Process>;
    /// The signals held back.
    fn blocked(&self) -> SigSet;
    /// Head of the robust futex list, 0 for none.
    fn robust_list(&self) -> u64;
    /// Sets the head of the robust futex list.  By the thread itself.
    fn set_robust_list(&self, head: u64);
    /// Where exit writes 0 and wakes a futex, 0 for nowhere.
    fn clear_child_tid(&self) -> u64;
    /// Sets where exit writes 0 and wakes a futex, 0 for nowhere.  By the thread itself.
    fn set_clear_child_tid(&self, addr: u64);
    /// Changes whom the thread acts as.  By the thread itself, so that no change is lost.
    ///
    /// Others judge the process by its first thread, or by its only one.
    ///
    /// # Errors
    /// No memory for an account of the new real user; nothing has changed.
    fn set_cred(&self, cred: Cred) -> Result<(), NoMemory>;
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

    fn set_cred(&self, mut cred: Cred) -> Result<(), NoMemory> {
        let old = self.cred();
        let moves = old.uid != cred.uid;
        if moves {
            cred.payer = task::account::of_thread(cred.uid)?;
            account::note_crowd(self, cred.payer);
        }
        if old.exposed_by(&cred) {
            // First: who may look by the new ones finds that it must not.
            self.process().hide();
        }
        let new = Arc::new(cred);
        drop(self.replace_cred(new.clone()));
        let p = self.process();
        if self.tid() == p.pid() || p.thread_count() == 1 {
            p.set_cred(new);
        }
        if moves {
            old.payer.give_back(Charge::Threads, 1);
        }
        Ok(())
    }
}
