//! Threads: what the scheduler switches between.
//!
//! A thread's owner is the identifier table while it lives; everyone else finds it by number
//! under a pin or holds an `Arc`.  Fields without a lock named are atomic; those marked *own*
//! are written by the thread itself only.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use ksync::{HeldLocks, Round, Run, RunState, Spin};
use mem::NoMemory;

use super::account;
use super::cred::{Charge, Cred, Payer};
use super::current::{Own, OwnState};
use super::idlist::IdLinks;
use super::ids::{self, Id};
use super::lock;
use super::process::Process;
use super::sched::Entity;
use super::signal::{AltStack, RestartBlock, SigSet, ThreadPending};
use super::timer::TimerNode;
use super::times::Told;

/// How a sleeping thread is shown to people: `S` or `D`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SleepKind {
    /// A signal ends it.
    Interruptible = 0,
    /// Only its event ends it.
    Uninterruptible = 1,
}

/// Events counted for one thread.  *Own*, read by anybody.
#[derive(Default)]
pub struct Usage {
    /// Timer ticks that found the thread in user mode.
    pub user_ticks: AtomicU32,
    /// Timer ticks that found it in the kernel.
    pub sys_ticks: AtomicU32,
    /// How its time was divided between the two.
    pub told: Told,
    /// Page faults served without I/O.
    pub minor_faults: AtomicU64,
    /// Page faults that waited for I/O.
    pub major_faults: AtomicU64,
    /// Switches because the thread slept.
    pub voluntary: AtomicU32,
    /// Switches because it was preempted.
    pub involuntary: AtomicU32,
}

/// A name of at most 15 bytes, NUL-padded.
pub type Comm = [u8; 16];

/// Cuts `name` to what a [`Comm`] holds.
pub fn comm_from(name: &[u8]) -> Comm {
    let mut comm = [0; 16];
    let n = name.len().min(15);
    comm[..n].copy_from_slice(&name[..n]);
    comm
}

/// What a kernel thread runs.
pub type KernelEntry = Box<dyn FnOnce() + Send>;

/// A thread.
pub struct Thread {
    /// The number that it was made with.  Const.
    #[expect(dead_code, reason = "keeps the number from being given out again")]
    id: Id,
    /// Its thread group.  Const.
    pub(super) process: Arc<Process>,
    /// A thread is on a run queue, or on a CPU, exactly while `Running`, or `Waiting` before the switch away; a new one is
    /// `Running` before it is on a queue, so that a wake-up, for a kill, does not queue it before its maker does.
    pub(super) state: RunState,
    sleep: AtomicU8,
    pub(super) round: Round,
    /// Set by an unpark, taken by a park (the sleeping locks of `ksync`).
    token: AtomicBool,
    /// When its sleep for such a lock began, in ticks; 0 while there is none. Atomic, for the watchdog.
    pub(super) sleeps_for_lock: AtomicU64,
    /// What the scheduler knows of it.
    pub(super) sched: Entity,
    /// On a run queue; that queue's lock.
    pub(super) run_links: IdLinks,
    /// On its process's list; the process's signal lock.
    pub(super) group_links: IdLinks,
    /// Which thread of its process it was: the first, the second, and so on.  Written when it is added, under the lock of that list.
    arrival: AtomicU32,
    /// On the list of those who wait for memory; that list's lock.
    pub(super) memory_links: IdLinks,
    /// Deadline of the present sleep; the wheel's lock.
    pub(super) timer: TimerNode,
    /// Signals held back.  *Own*, but for the process's signal lock held.
    pub(super) blocked: AtomicU64,
    /// The mask to return to after sigsuspend, ppoll, pselect and sigtimedwait.  *Own*; for the last as `blocked`.
    pub(super) saved_mask: AtomicU64,
    /// Signals sent to this thread alone.
    pub(super) pending: ThreadPending,
    /// `flag::*`.
    pub(super) flags: AtomicU32,
    pub(super) altstack: Spin<AltStack, lock::ThreadLock>,
    pub(super) restart: Spin<RestartBlock, lock::ThreadLock>,
    /// Where exit writes 0 and wakes a futex; 0 for nowhere.  *Own*.
    pub(super) clear_child_tid: AtomicU64,
    /// Head of the robust futex list; 0 for none.  *Own*.
    pub(super) robust_list: AtomicU64,
    comm: Spin<Comm, lock::ThreadLock>,
    /// Who it acts as.  Replaced by the thread itself.
    cred: Spin<Arc<Cred>, lock::ThreadLock>,
    /// Counted events.
    pub usage: Usage,
    /// Its number: that of `id`, or of its process once it has become the leader by execve.  Atomic, written by itself.
    pub(super) tid: AtomicU32,
    /// Where it waits for a futex: the bucket, and the slot in it.  That bucket's lock; left as it is when it waits no more.
    pub(super) futex_place: AtomicU32,
    /// What needs no synchronisation at all.  *Own*.
    pub(crate) own: Own,
    /// Locks held, in debug builds.  *Own*.
    held: Option<Box<HeldLocks>>,
    pub(super) entry: Spin<Option<KernelEntry>, lock::ThreadLock>,
    /// Registers and stack while not on a CPU.
    pub(super) machine: hal::context::ThreadState,
}

/// Bits of `Thread::flags`.
pub mod flag {
    /// The thread must exit: its group does, or execve in another thread replaces it.
    pub const KILLED: u32 = 1;
    /// `saved_mask` is to be restored.
    pub const RESTORE_MASK: u32 = 2;
    /// Sleeps in sigtimedwait: what `saved_mask` holds back is kept, though it is let through.  As `Thread::blocked`.
    pub const SIGWAIT: u32 = 64;
    /// The thread must look at group stop or other work before it enters user mode.
    pub const ATTENTION: u32 = 4;
    /// Runs in the kernel only.
    pub const KERNEL: u32 = 8;
    /// A clock tick has passed: the CPU may have retired memory to look after.
    pub const RECLAIM: u32 = 16;
    /// The thread has used memory from the reserve: it is to wait for more before it enters user mode.
    pub const INDEBTED: u32 = 32;
    /// It has become a thread of a user who had more than RLIMIT_NPROC; see [`super::super::account`].  *Own*.
    pub const CROWDED: u32 = 128;
    /// It has taken a stop signal, and no SIGCONT has come since.  The process's signal lock.
    pub const STOP_DUE: u32 = 256;
    /// It is counted among the threads that have stopped.  The process's signal lock.
    pub const STOPPED: u32 = 512;
    /// It is on its way out, and takes no signal to its process any more.  *Own*.
    pub const LEAVING: u32 = 1024;
}

/// What a new thread begins with.
pub struct Birth {
    /// Its number.
    pub id: Id,
    /// Its group.
    pub process: Arc<Process>,
    /// Its name.
    pub comm: Comm,
    /// Who it acts as.
    pub cred: Arc<Cred>,
    /// Signals held back.
    pub blocked: u64,
    /// Scheduling state.
    pub sched: Entity,
    /// Registers and stack.
    pub machine: hal::context::ThreadState,
    /// `flag::*`.
    pub flags: u32,
    /// The function of a kernel thread.
    pub entry: Option<KernelEntry>,
}

impl Thread {
    /// A thread that is asleep and on no list; see [`super::fork`] and [`super::kthread`].
    pub(super) fn new(b: Birth) -> Arc<Thread> {
        Arc::new(Thread {
            process: b.process,
            state: RunState::new(),
            sleep: AtomicU8::new(SleepKind::Uninterruptible as u8),
            round: ids::rounds(&b.id),
            tid: AtomicU32::new(b.id.number()),
            id: b.id,
            token: AtomicBool::new(false),
            sleeps_for_lock: AtomicU64::new(0),
            sched: b.sched,
            run_links: IdLinks::new(),
            group_links: IdLinks::new(),
            arrival: AtomicU32::new(0),
            memory_links: IdLinks::new(),
            timer: TimerNode::new(),
            blocked: AtomicU64::new(b.blocked),
            saved_mask: AtomicU64::new(0),
            pending: ThreadPending::new(),
            flags: AtomicU32::new(b.flags),
            altstack: Spin::new(AltStack::NONE),
            restart: Spin::new(RestartBlock::None),
            clear_child_tid: AtomicU64::new(0),
            robust_list: AtomicU64::new(0),
            comm: Spin::new(b.comm),
            cred: Spin::new(b.cred),
            usage: Usage::default(),
            futex_place: AtomicU32::new(0),
            own: Own::new(OwnState::new()),
            held: cfg!(debug_assertions).then(|| Box::new(HeldLocks::new())),
            entry: Spin::new(b.entry),
            machine: b.machine,
        })
    }

    /// The thread's number, as gettid(2) tells it.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Whether it was added to their process after `other`.
    pub(super) fn came_after(&self, other: &Thread) -> bool {
        let ahead = self.arrival.load(Ordering::Relaxed);
        // Numbers may wrap, long after one of two neighbours has gone.
        ahead.wrapping_sub(other.arrival.load(Ordering::Relaxed)) as i32 > 0
    }

    /// It is the `n`th thread of its process.
    pub(super) fn arrives(&self, n: u32) {
        self.arrival.store(n, Ordering::Relaxed);
    }

    /// The thread group.
    pub fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Whether it never enters user mode.
    pub fn is_kernel(&self) -> bool {
        self.has(flag::KERNEL)
    }

    pub(super) fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::SeqCst) & flag != 0
    }

    pub(super) fn set(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::SeqCst);
    }

    pub(super) fn clear(&self, flag: u32) {
        self.flags.fetch_and(!flag, Ordering::SeqCst);
    }

    /// Makes the thread wait for memory before it enters user mode: it has used some of the reserve.
    pub fn owe_memory(&self) {
        self.set(flag::INDEBTED);
    }

    /// The name that ps shows.
    pub fn comm(&self) -> Comm {
        *self.comm.lock()
    }

    /// Sets the name.
    pub fn set_comm(&self, name: &[u8]) {
        *self.comm.lock() = comm_from(name);
    }

    /// Who the thread acts as.
    pub fn cred(&self) -> Arc<Cred> {
        self.cred.lock().clone()
    }

    /// Who pays for what the kernel makes for it.
    #[inline]
    pub fn payer(&self) -> Payer {
        self.cred.lock().payer
    }

    /// Replaces the credentials of the thread alone; returns the old ones, which the caller drops unlocked.
    pub(super) fn replace_cred(&self, new: Arc<Cred>) -> Arc<Cred> {
        core::mem::replace(&mut *self.cred.lock(), new)
    }

    /// Changes whom the thread acts as.  By the thread itself, so that no change is lost.
    ///
    /// Others judge the process by its first thread, or by its only one.
    ///
    /// # Errors
    /// No memory for an account of the new real user; nothing has changed.
    pub fn set_cred(&self, mut cred: Cred) -> Result<(), NoMemory> {
        let old = self.cred();
        let moves = old.uid != cred.uid;
        if moves {
            cred.payer = account::of_thread(cred.uid)?;
            account::note_crowd(self, cred.payer);
        }
        if old.exposed_by(&cred) {
            // First: who may look by the new ones finds that it must not.
            self.process.hide();
        }
        let new = Arc::new(cred);
        drop(self.replace_cred(new.clone()));
        let p = &self.process;
        if self.tid() == p.pid() || p.thread_count() == 1 {
            p.set_cred(new);
        }
        if moves {
            old.payer.give_back(Charge::Threads, 1);
        }
        Ok(())
    }

    /// The signals held back.
    pub fn blocked(&self) -> SigSet {
        SigSet(self.blocked.load(Ordering::Relaxed))
    }

    /// Declares that the thread will sleep unless something wakes it from now on.
    pub(super) fn declare_waiting(&self, kind: SleepKind) {
        self.sleep.store(kind as u8, Ordering::Relaxed);
        self.state.declare_waiting();
    }

    /// Takes the declaration back.
    pub(super) fn declare_running(&self) {
        self.state.declare_running();
    }

    /// Whether, at the moment `now`, it has not run for `ns` nanoseconds. A hint: it may wake at any moment.
    pub fn sleeps_since(&self, ns: u64, now: u64) -> bool {
        self.state.get() == Run::Blocked && self.sched.rested(now) >= ns
    }

    /// The letter of /proc/PID/stat.
    pub fn state_letter(&self) -> u8 {
        match (self.state.get(), self.sleep.load(Ordering::Relaxed)) {
            (Run::Running, _) => b'R',
            (Run::Dead, _) => b'X',
            // What a thread sleeps in with a stop asked for is the stop.
            _ if self.has(flag::ATTENTION) => b'T',
            (_, k) if k == SleepKind::Interruptible as u8 => b'S',
            _ => b'D',
        }
    }

    /// One sleep of a `ksync` lock: until the token is there, or spuriously.
    pub(super) fn park_for_token(&self) {
        if self.token.swap(false, Ordering::SeqCst) {
            return;
        }
        self.declare_waiting(SleepKind::Uninterruptible);
        if self.token.swap(false, Ordering::SeqCst) {
            self.declare_running();
            return;
        }
        super::sched::block();
        self.token.store(false, Ordering::SeqCst);
    }

    /// Gives the token.
    pub(super) fn give_token(&self) {
        self.token.swap(true, Ordering::SeqCst);
    }

    /// The locks that it holds, for the checks of debug builds.
    pub fn held(&self) -> &HeldLocks {
        static NONE: HeldLocks = HeldLocks::new();
        self.held.as_deref().unwrap_or(&NONE)
    }

    /// Head of the robust futex list, 0 for none.
    pub fn robust_list(&self) -> u64 {
        self.robust_list.load(Ordering::Relaxed)
    }

    /// Where exit writes 0 and wakes a futex, 0 for nowhere.
    pub fn clear_child_tid(&self) -> u64 {
        self.clear_child_tid.load(Ordering::Relaxed)
    }

    /// Sets the head of the robust futex list.  By the thread itself.
    pub fn set_robust_list(&self, head: u64) {
        self.robust_list.store(head, Ordering::Relaxed);
    }

    /// Where exit writes 0 and wakes a futex, 0 for nowhere.  By the thread itself.
    pub fn set_clear_child_tid(&self, addr: u64) {
        self.clear_child_tid.store(addr, Ordering::Relaxed);
    }

    /// Brings the run time up to now.  By the thread itself.
    pub fn charge_now(&self) {
        // The tick charges, too.
        let irq = hal::irq::save();
        self.sched.charge(super::time::monotonic_ns());
        hal::irq::restore(irq);
    }

    /// The CPUs that it may run on.
    pub fn affinity(&self) -> &super::sched::CpuMask {
        self.sched.affinity()
    }

    /// Its scheduling policy.
    pub fn policy(&self) -> super::sched::Policy {
        self.sched.policy()
    }

    /// Whether its children begin without what needs a right.
    pub fn reset_on_fork(&self) -> bool {
        self.sched.reset_on_fork()
    }

    /// Sets its scheduling policy, and whether its children begin without what needs a right.
    pub fn set_policy(&self, policy: super::sched::Policy, reset_on_fork: bool) {
        self.sched.set_policy(policy, reset_on_fork);
    }

    /// Timer slack in nanoseconds.
    pub fn timer_slack(&self) -> u64 {
        self.sched.slack().into()
    }

    /// Sets the timer slack, 0 for the usual one.
    pub fn set_timer_slack(&self, ns: u64) {
        self.sched.set_slack(u32::try_from(ns).unwrap_or(u32::MAX));
    }

    /// nice(2)'s value.
    pub fn nice(&self) -> i8 {
        self.sched.nice()
    }

    /// Sets nice(2)'s value.
    pub fn set_nice(&self, nice: i8) {
        self.sched.set_nice(nice);
    }

    /// The CPU that it runs on, or ran on last.
    pub fn cpu(&self) -> usize {
        self.sched.cpu()
    }
}
