//! Threads: what the scheduler switches between.
//!
//! The table of ids holds a reference to each live thread. Other code finds a thread there by its tid, with preemption off,
//! or holds an `Arc`. Fields for which no lock is named are atomic; those marked *own* are written by the thread itself only.

use alloc::boxed::Box;
use alloc::sync::Arc;
use ksync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use cred::{Cred, Payer};
use hal::upper::UpperBox;
use ksync::{HeldLocks, Round, Run, RunState, Spin};

use crate::idlist::IdLinks;
use crate::ids::{self, Id};
use crate::lock;
use crate::sched::class::{Policy, Setting};
use crate::sched::entity::Entity;
use crate::sched::mask::CpuMask;
use crate::timer::node::TimerNode;
use crate::usage::Usage;

/// How /proc shows a sleeping thread: `S` or `D`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SleepKind {
    /// A signal ends the sleep.
    Interruptible = 0,
    /// Only what the thread waits for ends the sleep.
    Uninterruptible = 1,
}

/// A thread's name: at most 15 bytes, padded with NULs.
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
    /// The id that the thread was made with. Constant.
    #[expect(dead_code, reason = "keeps the number from being given out again")]
    id: Id,
    /// What the crate of processes keeps for the thread. Constant.
    upper: UpperBox,
    /// The scheduling state. A thread is on a run queue or on a CPU exactly while it is `Running`, or `Waiting` and not yet
    /// switched away. A new thread is `Running` before it is on a queue, so that a wake-up (by a kill, say) does not queue it
    /// before its creator does.
    pub state: RunState,
    sleep: AtomicU8,
    /// Its waiting rounds.
    pub round: Round,
    /// Set when the thread is unparked, taken when it parks (the sleeping locks of `ksync`).
    token: AtomicBool,
    /// When its sleep for such a lock began, in TSC ticks; 0 if it does not sleep for one. Atomic, because the watchdog reads
    /// it.
    pub sleeps_for_lock: AtomicU64,
    /// Scheduling state besides.
    pub sched: Entity,
    /// Links on a run queue. Under that queue's lock.
    pub run_links: IdLinks,
    /// Links on its process's list. Under the lock of that list, see `lock::ThreadListLock` of the crate of processes.
    pub group_links: IdLinks,
    /// The position at which the thread was added to its process: first, second, and so on. Written under the lock of the
    /// process's list.
    arrival: AtomicU32,
    /// Links on the list of threads that wait for memory. Under that list's lock.
    pub memory_links: IdLinks,
    /// The timer of the present sleep. Under the wheel's lock.
    pub timer: TimerNode,
    /// Bits of [`flag`].
    pub flags: AtomicU32,
    comm: Spin<Comm, lock::ThreadLock>,
    /// The credentials. Replaced by the thread itself only.
    cred: Spin<Arc<Cred>, lock::ThreadLock>,
    /// Counters.
    pub usage: Usage,
    /// The tid: that of `id`, or its process's id once the thread has become the leader by execve. *Own*.
    tid: AtomicU32,
    /// The locks that the thread holds, in debug builds. *Own*.
    held: Option<Box<HeldLocks>>,
    entry: Spin<Option<KernelEntry>, lock::ThreadLock>,
    /// Registers and stack while the thread is not on a CPU.
    pub(crate) machine: hal::context::ThreadState,
}

/// Bits of `Thread::flags`.
pub mod flag {
    /// The thread must exit: its process is exiting, or another thread's execve replaces it.
    pub const KILLED: u32 = 1;
    /// The saved signal mask is to be restored before user mode.
    pub const RESTORE_MASK: u32 = 2;
    /// The thread sleeps in sigtimedwait(2): a signal that the saved mask blocks is not discarded, although the present mask
    /// lets it through. Under the lock of the blocked mask.
    pub const SIGWAIT: u32 = 64;
    /// The thread must stop, or do other work, before it enters user mode.
    pub const ATTENTION: u32 = 4;
    /// The thread runs in the kernel only.
    pub const KERNEL: u32 = 8;
    /// The thread is to free what its CPU has retired before it enters user mode.
    pub const RECLAIM: u32 = 16;
    /// The thread has used memory of the reserve: it is to wait for memory before it enters user mode.
    pub const USED_RESERVE: u32 = 32;
    /// The thread has changed to a user that had more threads than RLIMIT_NPROC; see [`crate::account`]. *Own*.
    pub const CROWDED: u32 = 128;
    /// The thread has taken a stop signal, and no SIGCONT has come since. Under the process's signal lock.
    pub const STOP_DUE: u32 = 256;
    /// The thread is counted among the stopped threads of its process. Under the process's signal lock.
    pub const STOPPED: u32 = 512;
    /// The thread is exiting, and takes no more signals that are sent to its process. *Own*.
    pub const LEAVING: u32 = 1024;
    /// The thread is to look at its process's timers of CPU time before it enters user mode.
    pub const CPU_TIMERS: u32 = 2048;
    /// The thread has been lent the weight of nice 0 or a real-time priority for a lock that it has, which it gives back before it enters
    /// user mode.
    pub const LENT: u32 = 4096;
    /// A CPU has begun to run the thread, which has restartable sequences: it is to look at these before it enters user mode.
    pub const RSEQ: u32 = 8192;
}

/// What a new thread is made of.
pub struct NewThread {
    /// What the crate of processes keeps for it.
    pub upper: UpperBox,
    /// Its id.
    pub id: Id,
    /// Its name.
    pub comm: Comm,
    /// Its credentials.
    pub cred: Arc<Cred>,
    /// Scheduling state.
    pub sched: Entity,
    /// Registers and stack.
    pub machine: hal::context::ThreadState,
    /// Bits of [`flag`].
    pub flags: u32,
    /// The function of a kernel thread; `None` for a thread of a process.
    pub entry: Option<KernelEntry>,
}

impl Thread {
    /// Makes a thread that is on no list and does not run yet; see [`crate::kthread`].
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

    /// The tid, as gettid(2) returns it.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Whether this thread was added to its process after `other`, a thread of the same process.
    pub fn came_after(&self, other: &Thread) -> bool {
        let ahead = self.arrival.load(Ordering::Relaxed);
        // The positions may wrap around, but only long after one of two neighbours has gone.
        ahead.wrapping_sub(other.arrival.load(Ordering::Relaxed)) as i32 > 0
    }

    /// Makes `tid` the thread's tid. Called by the thread itself.
    pub fn set_tid(&self, tid: u32) {
        self.tid.store(tid, Ordering::Relaxed);
    }

    /// Records that this is the `n`th thread of its process.
    pub fn arrives(&self, n: u32) {
        self.arrival.store(n, Ordering::Relaxed);
    }

    /// What the crate of processes keeps for the thread.
    #[inline(always)]
    pub fn upper(&self) -> &UpperBox {
        &self.upper
    }

    /// Whether the thread must exit.
    #[inline]
    pub fn kill_pending(&self) -> bool {
        self.has(flag::KILLED)
    }

    /// Whether the thread never enters user mode.
    pub fn is_kernel(&self) -> bool {
        self.has(flag::KERNEL)
    }

    /// Whether any of these flags is set.
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

    /// Takes the function of a new kernel thread.
    pub(crate) fn take_entry(&self) -> Option<KernelEntry> {
        self.entry.lock().take()
    }

    /// Registers and stack while the thread is not on a CPU.
    pub fn machine(&self) -> &hal::context::ThreadState {
        &self.machine
    }

    /// Makes the thread wait for memory before it enters user mode, because it has used memory of the reserve.
    pub fn note_used_reserve(&self) {
        self.set(flag::USED_RESERVE);
    }

    /// The name that ps shows.
    pub fn comm(&self) -> Comm {
        *self.comm.lock()
    }

    /// Sets the name.
    pub fn set_comm(&self, name: &[u8]) {
        *self.comm.lock() = comm_from(name);
    }

    /// The credentials.
    pub fn cred(&self) -> Arc<Cred> {
        self.cred.lock().clone()
    }

    /// The account to which what the kernel makes for this thread is charged.
    #[inline]
    pub fn payer(&self) -> Payer {
        self.cred.lock().payer
    }

    /// Replaces the credentials of this thread alone. Returns the old ones, which the caller drops without a lock held.
    pub fn replace_cred(&self, new: Arc<Cred>) -> Arc<Cred> {
        core::mem::replace(&mut *self.cred.lock(), new)
    }

    /// Declares that the thread is about to sleep; a wake-up from now on prevents or ends the sleep. Called by the thread
    /// itself.
    pub fn declare_waiting(&self, kind: SleepKind) {
        self.sleep.store(kind as u8, Ordering::Relaxed);
        self.state.declare_waiting();
    }

    /// Withdraws that declaration.
    pub fn declare_running(&self) {
        self.state.declare_running();
    }

    /// Whether the thread sleeps and has not run for `ns` nanoseconds at the time `now`. A hint: it may wake at any moment.
    pub fn sleeps_since(&self, ns: u64, now: u64) -> bool {
        self.state.get() == Run::Blocked && self.sched.rested(now) >= ns
    }

    /// The letter for its state in /proc/PID/stat.
    pub fn state_letter(&self) -> u8 {
        match (self.state.get(), self.sleep.load(Ordering::Relaxed)) {
            (Run::Running, _) => b'R',
            (Run::Dead, _) => b'X',
            // A thread that sleeps and has been asked to stop is shown as stopped.
            _ if self.has(flag::ATTENTION) => b'T',
            (_, k) if k == SleepKind::Interruptible as u8 => b'S',
            _ => b'D',
        }
    }

    /// Takes the token; false if the thread has not been given it.
    pub(crate) fn take_token(&self) -> bool {
        self.token.swap(false, Ordering::SeqCst)
    }

    /// Gives the thread the token.
    pub fn give_token(&self) {
        self.token.swap(true, Ordering::SeqCst);
    }

    /// The locks that the thread holds, for the checks of debug builds; none in other builds.
    pub fn held(&self) -> &HeldLocks {
        static NONE: HeldLocks = HeldLocks::new();
        self.held.as_deref().unwrap_or(&NONE)
    }

    /// Adds the time since the last charge to the thread's run time, in nanoseconds, which it returns. Called by the thread itself.
    pub fn charge_now(&self) -> u64 {
        // Interrupts are off, because the tick charges, too.
        let irq = hal::irq::save();
        self.sched.charge(crate::time::monotonic_ns());
        hal::irq::restore(irq);
        self.sched.runtime_ns()
    }

    /// The CPUs that the thread may run on.
    pub fn affinity(&self) -> &CpuMask {
        self.sched.affinity()
    }

    /// The scheduling policy.
    pub fn policy(&self) -> Policy {
        self.sched.policy()
    }

    /// The scheduling policy, the thread's own real-time priority, and whether its children begin without settings that need a privilege.
    pub fn setting(&self) -> Setting {
        self.sched.setting()
    }

    /// The real-time priority with which the thread runs, its own one or one that it has been lent; 0 for none.
    pub fn priority(&self) -> u8 {
        self.sched.priority()
    }

    /// Timer slack in nanoseconds.
    pub fn timer_slack(&self) -> u64 {
        self.sched.slack()
    }

    /// Sets the timer slack, in nanoseconds; 0 restores the creator's.
    pub fn set_timer_slack(&self, ns: u64) {
        self.sched.set_slack(ns);
    }

    /// The nice value, -20..=19.
    pub fn nice(&self) -> i8 {
        self.sched.nice()
    }

    /// Sets the nice value, -20..=19.
    pub fn set_nice(&self, nice: i8) {
        self.sched.set_nice(nice);
    }

    /// The CPU that the thread runs on or ran on last, or whose queue it is on.
    pub fn cpu(&self) -> usize {
        self.sched.cpu()
    }
}
