//! Threads: what the scheduler switches between.
//!
//! A thread's owner is the identifier table while it lives; everyone else finds it by number
//! under a pin or holds an `Arc`.  Fields without a lock named are atomic; those marked *own*
//! are written by the thread itself only.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use cred::{Cred, Payer};
use hal::upper::UpperBox;
use ksync::{HeldLocks, Round, Run, RunState, Spin};

use crate::idlist::IdLinks;
use crate::ids::{self, Id};
use crate::lock;
use crate::sched::entity::{Entity, Policy};
use crate::sched::mask::CpuMask;
use crate::timer::node::TimerNode;
use crate::usage::Usage;

/// How a sleeping thread is shown to people: `S` or `D`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SleepKind {
    /// A signal ends it.
    Interruptible = 0,
    /// Only its event ends it.
    Uninterruptible = 1,
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
    /// What processes keep for it.  Const.
    upper: UpperBox,
    /// A thread is on a run queue, or on a CPU, exactly while `Running`, or `Waiting` before the switch away; a new one is
    /// `Running` before it is on a queue, so that a wake-up, for a kill, does not queue it before its maker does.
    pub state: RunState,
    sleep: AtomicU8,
    /// Its waiting rounds.
    pub round: Round,
    /// Set by an unpark, taken by a park (the sleeping locks of `ksync`).
    token: AtomicBool,
    /// When its sleep for such a lock began, in ticks; 0 while there is none. Atomic, for the watchdog.
    pub sleeps_for_lock: AtomicU64,
    /// What the scheduler knows of it.
    pub sched: Entity,
    /// On a run queue; that queue's lock.
    pub run_links: IdLinks,
    /// On its process's list; the process's signal lock.
    pub group_links: IdLinks,
    /// Which thread of its process it was: the first, the second, and so on.  Written when it is added, under the lock of that list.
    arrival: AtomicU32,
    /// On the list of those who wait for memory; that list's lock.
    pub memory_links: IdLinks,
    /// Deadline of the present sleep; the wheel's lock.
    pub timer: TimerNode,
    /// `flag::*`.
    pub flags: AtomicU32,
    comm: Spin<Comm, lock::ThreadLock>,
    /// Who it acts as.  Replaced by the thread itself.
    cred: Spin<Arc<Cred>, lock::ThreadLock>,
    /// Counted events.
    pub usage: Usage,
    /// Its number: that of `id`, or of its process once it has become the leader by execve.  Atomic, written by itself.
    tid: AtomicU32,
    /// Locks held, in debug builds.  *Own*.
    held: Option<Box<HeldLocks>>,
    entry: Spin<Option<KernelEntry>, lock::ThreadLock>,
    /// Registers and stack while not on a CPU.
    pub(crate) machine: hal::context::ThreadState,
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
    /// It has become a thread of a user who had more than RLIMIT_NPROC; see [`crate::account`].  *Own*.
    pub const CROWDED: u32 = 128;
    /// It has taken a stop signal, and no SIGCONT has come since.  The process's signal lock.
    pub const STOP_DUE: u32 = 256;
    /// It is counted among the threads that have stopped.  The process's signal lock.
    pub const STOPPED: u32 = 512;
    /// It is on its way out, and takes no signal to its process any more.  *Own*.
    pub const LEAVING: u32 = 1024;
}

/// What a new thread begins with.
pub struct NewThread {
    /// What processes keep for it.
    pub upper: UpperBox,
    /// Its number.
    pub id: Id,
    /// Its name.
    pub comm: Comm,
    /// Who it acts as.
    pub cred: Arc<Cred>,
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
    /// A thread that is asleep and on no list; see [`crate::kthread`].
    pub fn new(b: NewThread) -> Arc<Thread> {
        Arc::new(Thread {
            state: RunState::new(),
            sleep: AtomicU8::new(SleepKind::Uninterruptible as u8),
            round: ids::rounds(&b.id),
            tid: AtomicU32::new(b.id.number()),
            id: b.id,
            upper: b.upper,
            token: AtomicBool::new(false),
            sleeps_for_lock: AtomicU64::new(0),
            sched: b.sched,
            run_links: IdLinks::new(),
            group_links: IdLinks::new(),
            arrival: AtomicU32::new(0),
            memory_links: IdLinks::new(),
            timer: TimerNode::new(),
            flags: AtomicU32::new(b.flags),
            comm: Spin::new(b.comm),
            cred: Spin::new(b.cred),
            usage: Usage::default(),
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
    pub fn came_after(&self, other: &Thread) -> bool {
        let ahead = self.arrival.load(Ordering::Relaxed);
        // Numbers may wrap, long after one of two neighbours has gone.
        ahead.wrapping_sub(other.arrival.load(Ordering::Relaxed)) as i32 > 0
    }

    /// Its number is that of its process from now on.  By itself.
    pub fn set_tid(&self, tid: u32) {
        self.tid.store(tid, Ordering::Relaxed);
    }

    /// It is the `n`th thread of its process.
    pub fn arrives(&self, n: u32) {
        self.arrival.store(n, Ordering::Relaxed);
    }

    /// What processes keep for it.
    #[inline(always)]
    pub fn upper(&self) -> &UpperBox {
        &self.upper
    }

    /// Whether the thread is to die.
    #[inline]
    pub fn kill_pending(&self) -> bool {
        self.has(flag::KILLED)
    }

    /// Whether it never enters user mode.
    pub fn is_kernel(&self) -> bool {
        self.has(flag::KERNEL)
    }

    /// Whether any of the flags is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::SeqCst) & flag != 0
    }

    /// Sets flags.
    pub fn set(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::SeqCst);
    }

    /// Clears flags.
    pub fn clear(&self, flag: u32) {
        self.flags.fetch_and(!flag, Ordering::SeqCst);
    }

    /// The function of a new thread.
    pub(crate) fn take_entry(&self) -> Option<KernelEntry> {
        self.entry.lock().take()
    }

    /// Registers and stack while it is not on a CPU.
    pub fn machine(&self) -> &hal::context::ThreadState {
        &self.machine
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
    pub fn replace_cred(&self, new: Arc<Cred>) -> Arc<Cred> {
        core::mem::replace(&mut *self.cred.lock(), new)
    }

    /// Declares that the thread will sleep unless something wakes it from now on.
    pub fn declare_waiting(&self, kind: SleepKind) {
        self.sleep.store(kind as u8, Ordering::Relaxed);
        self.state.declare_waiting();
    }

    /// Takes the declaration back.
    pub fn declare_running(&self) {
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

    /// Takes the token, if it is there.
    pub(crate) fn take_token(&self) -> bool {
        self.token.swap(false, Ordering::SeqCst)
    }

    /// Gives the token.
    pub fn give_token(&self) {
        self.token.swap(true, Ordering::SeqCst);
    }

    /// The locks that it holds, for the checks of debug builds.
    pub fn held(&self) -> &HeldLocks {
        static NONE: HeldLocks = HeldLocks::new();
        self.held.as_deref().unwrap_or(&NONE)
    }

    /// Brings the run time up to now.  By the thread itself.
    pub fn charge_now(&self) {
        // The tick charges, too.
        let irq = hal::irq::save();
        self.sched.charge(crate::time::monotonic_ns());
        hal::irq::restore(irq);
    }

    /// The CPUs that it may run on.
    pub fn affinity(&self) -> &CpuMask {
        self.sched.affinity()
    }

    /// Its scheduling policy.
    pub fn policy(&self) -> Policy {
        self.sched.policy()
    }

    /// Whether its children begin without what needs a right.
    pub fn reset_on_fork(&self) -> bool {
        self.sched.reset_on_fork()
    }

    /// Sets its scheduling policy, and whether its children begin without what needs a right.
    pub fn set_policy(&self, policy: Policy, reset_on_fork: bool) {
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
