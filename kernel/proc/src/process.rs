//! Processes: thread groups, and their families.
//!
//! A process lives in the identifier table from fork until its parent has reaped it.  Its
//! parent lists it under the parent's *family* lock, on one of two lists: children that live,
//! and zombies, so that wait4 finds a zombie at once.  Lists link processes by number.
//!
//! Reparenting: an exiting process takes its children off its lists in slices, writes their new
//! parent's number, then lists them there.  In between a child is in *limbo*, on no list; if it
//! exits meanwhile it finds itself unlisted and leaves the listing, and the notice to the
//! parent, to whoever moves it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::mem::offset_of;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use cred::{Cred, Payer};
use ksync::{ArcBorrow, ByteMutex, ByteMutexGuard, CpuPin, IrqSpin, Once, Spin};
use mem::Space;
use task::idlist::{IdLinks, IdList};
use task::thread::{Comm, Thread};
use task::timer::TimerNode;
use task::usage::Times;
use task::wait::WaitQueue;
use vfs::{FdTable, FsContext, FsUse};

use super::group::{Group, Session};
use super::ids::{self, Id, InProcess, Sibling};
use super::itimer::{self, CpuTimers, RealSlot};
use super::lock;
use super::rlimit::{Limit, LimitError, Resource, Rlimits};
use super::signal::{Pending, Shared, SharedPending};
use super::space::UserSpace;

pub use super::program::{Brk, Program};

/// Where a process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Life {
    /// Some thread lives.
    Alive = 0,
    /// All threads have gone; its parent may reap it.
    Zombie = 1,
    /// Somebody has reaped it.
    Reaped = 2,
}

/// A process's children.
#[derive(Default)]
pub(super) struct Family {
    pub living: IdList<Sibling>,
    pub zombies: IdList<Sibling>,
    /// The process is gone: nobody may be listed here.
    pub closed: bool,
}

pub(super) struct Accounts {
    pub dead_threads: Times,
    pub children: Times,
}

/// Bits of `Process::flags`.
pub mod flag {
    /// Orphans below it become its children (PR_SET_CHILD_SUBREAPER).
    pub const SUBREAPER: u32 = 1;
    /// Some ancestor was a subreaper when it was forked.
    pub const HAS_SUBREAPER: u32 = 2;
    /// Cores may be dumped and others may look (PR_SET_DUMPABLE).
    pub const DUMPABLE: u32 = 8;
    /// It has called execve since it was forked.
    pub const EXECED: u32 = 16;
    /// The kernel's own.
    pub const KERNEL: u32 = 32;
    /// New mappings are locked (MCL_FUTURE); ends with the memory.
    pub const LOCK_FUTURE: u32 = 128;
    /// Their pages are not made present (MCL_ONFAULT).
    pub const LOCK_ON_FAULT: u32 = 256;
    /// A child of it has stopped or gone on, now or before: wait4 looks for such.  Most processes never set it.
    pub const CHILD_STOPS: u32 = 512;
}

/// Bits of personality(2); the names are Linux's.
#[expect(missing_docs, reason = "Linux's names: bits of personality(2)")]
pub mod personality {
    pub const ADDR_NO_RANDOMIZE: u32 = 0x004_0000;
    pub const MMAP_PAGE_ZERO: u32 = 0x010_0000;
    pub const ADDR_COMPAT_LAYOUT: u32 = 0x020_0000;
    pub const READ_IMPLIES_EXEC: u32 = 0x040_0000;
    /// What a program with privileges does not inherit.
    pub const CLEARED_BY_PRIVILEGE: u32 =
        ADDR_NO_RANDOMIZE | MMAP_PAGE_ZERO | ADDR_COMPAT_LAYOUT | READ_IMPLIES_EXEC;
}

/// A process.
///
/// What each call and each way to user mode reads comes first, and shares no line with what calls write.
#[repr(C, align(64))]
pub struct Process {
    /// The addresses of address space, descriptors and directories, 0 for none.  Written under their locks.
    pub(super) space_at: AtomicUsize,
    files_at: AtomicUsize,
    fs_at: AtomicUsize,
    /// Const.
    pub(super) id: Id,
    /// The parent's number.  Written under the family lock of the old parent.
    pub(super) ppid: AtomicU32,
    /// The thread of the parent that made it, for __WNOTHREAD: its number.  Written as `ppid`.
    pub(super) maker: AtomicU32,
    /// `flag::*`.
    pub(super) flags: AtomicU32,
    /// Group and session; written under the group's shard lock.
    pub(super) pgid: AtomicU32,
    pub(super) sid: AtomicU32,
    pub(super) personality: AtomicU32,
    /// Real user, for senders of signals in interrupts.
    pub(super) uid: AtomicU32,
    /// RLIMIT_SIGPENDING, for the same.
    sigpending: AtomicU32,
    /// /proc/PID/oom_score_adj, and the least that anybody but root may set.  Atomic.
    oom_adj: AtomicI32,
    oom_adj_min: AtomicI32,
    /// The wait4 status.  Written before `life` becomes `Zombie`.
    pub(super) status: AtomicU32,
    /// Its family, see [`Process::kin`]. Atomic; written by execve and where the real user changes.
    kin: AtomicU64,
    pub(super) start_ns: u64,
    /// ITIMER_VIRTUAL and ITIMER_PROF, once used.
    pub(super) cpu_timers: Once<Box<CpuTimers>>,
    /// A `Life`.
    pub(super) life: AtomicU8,
    /// The signal that tells the parent, 0 for none.
    pub(super) exit_signal: AtomicU8,
    /// How many programs it and those it descends from have begun; and how many its parent had when it was forked, in
    /// whose eyes another program may not be told of its end by any signal.  Written by execve; const.
    pub(super) exec_id: AtomicU32,
    pub(super) parent_exec_id: AtomicU32,
    /// The signal that the parent's death sends, 0 for none.
    pub(super) death_signal: AtomicU8,
    /// exit_group or a fatal signal has begun; `status` is final.
    pub(super) exiting: AtomicBool,
    /// Whether it has limits of its own; set under their lock, for good.
    limits_changed: AtomicBool,
    /// Whether it stands on its parent's list of zombies, and not on that of the living or on none: being a zombie does not
    /// say so yet. Written under the parent's family lock.
    pub(super) listed_dead: AtomicBool,

    /// Signals sent to the process; bits read without the lock: they end a line, and what is written begins another.
    pub(super) pending: SharedPending,
    pub(super) family: Spin<Family, lock::FamilyLock>,
    /// This one's links on its parent's lists; the parent's family lock.
    pub(super) siblings: IdLinks,
    pub(super) group_links: IdLinks,
    pub(super) group_shard: AtomicU32,
    /// The last signal to its group that it has got, or its parent had when it was forked.  The signal lock; the shard's lock
    /// when it joins.
    pub(super) group_signal: AtomicU32,
    pub(super) signals: IrqSpin<Shared, lock::SignalLock>,
    /// Threads that live; the signal lock.
    pub(super) threads: IrqSpin<IdList<InProcess>, lock::ThreadListLock>,
    /// Threads that have been added so far; written under that lock.
    arrivals: AtomicU32,
    pub(super) thread_count: AtomicU32,
    /// Where execve waits for the other threads to go, and stopped threads for SIGCONT.
    pub(super) group_wait: WaitQueue,
    /// Where wait4 sleeps.
    pub(super) child_wait: WaitQueue,

    /// Its lock also makes one step of what execve changes for others to see, see [`super::look`].
    pub(super) space: Spin<Option<Arc<UserSpace>>, lock::ProcessLock>,
    files: Spin<Option<Arc<FdTable>>, lock::ProcessLock>,
    fs: Spin<Option<FsUse>, lock::ProcessLock>,
    pub(super) cred: Spin<Arc<Cred>, lock::ProcessLock>,
    limits: Spin<Rlimits, lock::ProcessLock>,
    pub(super) program: Spin<Program, lock::ProcessLock>,
    pub(super) brk: Spin<Brk, lock::ProcessLock>,
    pub(super) accounts: Spin<Accounts, lock::ProcessLock>,
    /// The leader's name, for when it has gone.
    pub(super) comm: Spin<Comm, lock::ProcessLock>,
    /// Held over a change of the heap: of its bounds and of what is mapped there.
    brk_change: ByteMutex,

    /// ITIMER_REAL's place: the wheel's lock, and to arm it the timer's.
    pub(super) real_node: TimerNode,
    /// A parent that sleeps in vfork until this process execs or exits.
    pub(super) vfork_done: super::fork::VforkGate,
    pub(super) real_timer: IrqSpin<RealSlot, lock::RealTimerLock>,
}

/// With the counts of an `Arc` it just fits its size class.
const _: () = assert!(size_of::<Process>() <= 704);
const _: () = assert!((offset_of!(Process, pending) + Pending::BITS_END).is_multiple_of(64));

/// What a new process begins with.
pub struct Birth {
    /// Its number.
    pub id: Id,
    /// Its parent's number.
    pub ppid: u32,
    /// The number of the parent's thread that makes it.
    pub maker: u32,
    /// `flag::*`.
    pub flags: u32,
    /// The signal for its parent.
    pub exit_signal: u8,
    /// Programs begun by it and those it descends from, and by its parent.
    pub exec_ids: (u32, u32),
    /// Its signal actions.
    pub signals: Shared,
    /// Its address space, none for the kernel's own.
    pub space: Option<Arc<UserSpace>>,
    /// Its descriptors.
    pub files: Option<Arc<FdTable>>,
    /// Its root and working directory.
    pub fs: Option<FsUse>,
    /// Who it acts as.
    pub cred: Arc<Cred>,
    /// Its limits.
    pub limits: Rlimits,
    /// What it runs.
    pub program: Program,
    /// Its heap.
    pub brk: Brk,
    /// Its name.
    pub comm: Comm,
    /// personality(2).
    pub personality: u32,
    /// Its family, see [`Process::kin`].
    pub kin: u64,
    /// /proc/PID/oom_score_adj, and the least that anybody but root may set.
    pub oom_adj: (i32, i32),
}

impl Process {
    pub(super) fn new(b: Birth) -> Arc<Process> {
        let uid = b.cred.uid;
        let sigpending = small(b.limits.get(Resource::Sigpending).soft);
        let cpu = b.limits.get(Resource::Cpu);
        let p = Arc::new(Process {
            id: b.id,
            ppid: AtomicU32::new(b.ppid),
            maker: AtomicU32::new(b.maker),
            siblings: IdLinks::new(),
            family: Spin::new(Family::default()),
            life: AtomicU8::new(Life::Alive as u8),
            listed_dead: AtomicBool::new(false),
            status: AtomicU32::new(0),
            exit_signal: AtomicU8::new(b.exit_signal),
            exec_id: AtomicU32::new(b.exec_ids.0),
            parent_exec_id: AtomicU32::new(b.exec_ids.1),
            death_signal: AtomicU8::new(0),
            flags: AtomicU32::new(b.flags),
            pgid: AtomicU32::new(0),
            sid: AtomicU32::new(0),
            group_shard: AtomicU32::new(0),
            group_signal: AtomicU32::new(0),
            group_links: IdLinks::new(),
            signals: IrqSpin::new(b.signals),
            pending: SharedPending::new(),
            threads: IrqSpin::new(IdList::new()),
            arrivals: AtomicU32::new(0),
            thread_count: AtomicU32::new(0),
            exiting: AtomicBool::new(false),
            group_wait: WaitQueue::new(),
            child_wait: WaitQueue::new(),
            space_at: AtomicUsize::new(address_of(b.space.as_ref())),
            files_at: AtomicUsize::new(address(b.files.as_ref())),
            fs_at: AtomicUsize::new(address(b.fs.as_ref().map(FsUse::context))),
            space: Spin::new(b.space),
            files: Spin::new(b.files),
            fs: Spin::new(b.fs),
            cred: Spin::new(b.cred),
            limits_changed: AtomicBool::new(!b.limits.is_default()),
            limits: Spin::new(b.limits),
            program: Spin::new(b.program),
            brk_change: ByteMutex::new(),
            brk: Spin::new(b.brk),
            accounts: Spin::new(Accounts {
                dead_threads: Times::default(),
                children: Times::default(),
            }),
            comm: Spin::new(b.comm),
            personality: AtomicU32::new(b.personality),
            kin: AtomicU64::new(b.kin),
            oom_adj: AtomicI32::new(b.oom_adj.0),
            oom_adj_min: AtomicI32::new(b.oom_adj.1),
            real_timer: IrqSpin::new(RealSlot::OFF),
            real_node: TimerNode::new(),
            vfork_done: super::fork::VforkGate::new(),
            cpu_timers: Once::new(),
            uid: AtomicU32::new(uid),
            sigpending: AtomicU32::new(sigpending),
            start_ns: task::time::monotonic_ns(),
        });
        itimer::set_cpu_limit(&p, cpu, 0);
        p
    }

    /// The number, as getpid(2) tells it.
    pub fn pid(&self) -> u32 {
        self.id.number()
    }

    /// The parent's number.
    pub fn ppid(&self) -> u32 {
        self.ppid.load(Ordering::Relaxed)
    }

    /// The process group's number.
    pub fn pgid(&self) -> u32 {
        self.pgid.load(Ordering::Relaxed)
    }

    /// The session's number.
    pub fn sid(&self) -> u32 {
        self.sid.load(Ordering::Relaxed)
    }

    /// The process group, unless the process has just left its last one.
    pub fn group(&self) -> Option<Arc<Group>> {
        ids::find_group(self.pgid())
    }

    /// The session.
    pub fn session(&self) -> Option<Arc<Session>> {
        self.group().map(|g| g.session().clone())
    }

    pub(super) fn is_alive(&self) -> bool {
        self.life.load(Ordering::Acquire) == Life::Alive as u8
    }

    /// Notes that signal `number` of its group need not be sent to it any more, nor to its children; 0 is no signal of a group.
    pub(super) fn note_group_signal(&self, number: u32) {
        if number != 0 {
            self.group_signal.store(number, Ordering::Release);
        }
    }

    /// Whether its status has been taken: it is about to leave the tables.
    pub fn is_reaped(&self) -> bool {
        self.life.load(Ordering::SeqCst) == Life::Reaped as u8
    }

    /// Whether all its threads have gone.
    pub fn is_zombie(&self) -> bool {
        !self.is_alive()
    }

    /// Whether no thread has run for `ns` nanoseconds. A hint: one may wake at any moment.
    pub fn sleeps_since(&self, ns: u64) -> bool {
        let now = task::time::monotonic_ns();
        let pin = ksync::pin();
        let sleeps = |tid| ids::thread(&pin, tid).is_some_and(|t| t.sleeps_since(ns, now));
        // Most have one thread, and a busy one is found so without the lock.
        if !sleeps(self.pid()) {
            return false;
        }
        let mut all = true;
        self.threads.lock().each(&pin, |tid| {
            all = sleeps(tid);
            all
        });
        all
    }

    /// Whether it is the kernel's own.
    pub fn is_kernel(&self) -> bool {
        self.has(flag::KERNEL)
    }

    pub(super) fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    pub(super) fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.flags.fetch_or(flag, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!flag, Ordering::Relaxed);
        }
    }

    /// Whether a `flag::*` is set.
    pub fn flag(&self, flag: u32) -> bool {
        self.has(flag)
    }

    /// Sets or clears a `flag::*`, for prctl(2).
    pub fn set_switch(&self, flag: u32, on: bool) {
        self.set_flag(flag, on);
    }

    /// The signal that the parent's death sends, 0 for none.
    pub fn death_signal(&self) -> u8 {
        self.death_signal.load(Ordering::Relaxed)
    }

    /// Sets the signal that the parent's death sends.
    pub fn set_death_signal(&self, signo: u8) {
        self.death_signal.store(signo, Ordering::Relaxed);
    }

    /// personality(2): the old value.
    pub fn personality(&self, new: Option<u32>) -> u32 {
        match new {
            Some(new) => self.personality.swap(new, Ordering::Relaxed),
            None => self.personality.load(Ordering::Relaxed),
        }
    }

    /// Clears bits of what personality(2) has set.
    pub(super) fn clear_personality(&self, bits: u32) {
        self.personality.fetch_and(!bits, Ordering::Relaxed);
    }

    /// The address space; none for kernel processes and zombies.
    pub fn space(&self) -> Option<Arc<Space>> {
        self.space.lock().as_ref().map(|s| s.space().clone())
    }

    /// The use of the address space, to be shared with a new process.
    pub(super) fn user_space(&self) -> Option<Arc<UserSpace>> {
        self.space.lock().clone()
    }

    /// Puts another address space in; returns the old one, which the caller drops unlocked.
    pub(super) fn set_space(&self, space: Option<Arc<UserSpace>>) -> Option<Arc<UserSpace>> {
        let at = address_of(space.as_ref());
        let mut slot = self.space.lock();
        self.space_at.store(at, Ordering::Relaxed);
        core::mem::replace(&mut *slot, space)
    }

    /// The address of the address space, as its identity; 0 for none.
    pub(super) fn space_address(&self) -> usize {
        self.space_at.load(Ordering::Relaxed)
    }

    /// The descriptors; none for kernel processes and zombies.
    pub fn files(&self) -> Option<Arc<FdTable>> {
        self.files.lock().clone()
    }

    /// Puts another descriptor table in; returns the old one, which the caller drops unlocked.
    /// The calling thread, the only one, has forgotten its own reference (see `super::reference_cache`).
    pub fn set_files(&self, files: Option<Arc<FdTable>>) -> Option<Arc<FdTable>> {
        let at = address(files.as_ref());
        let mut slot = self.files.lock();
        self.files_at.store(at, Ordering::Relaxed);
        core::mem::replace(&mut *slot, files)
    }

    /// How many descriptors are open. Takes no reference, whose end might close them.
    pub fn open_descriptors(&self) -> usize {
        const STEP: usize = 4096;
        let mut sum = 0;
        for from in (0..).step_by(STEP) {
            let pin = ksync::pin();
            let files = self.files.lock();
            let some = files.as_ref();
            match some.and_then(|files| files.open_in(&pin, from..from + STEP)) {
                Some(open) => sum += open,
                None => break,
            }
        }
        sum
    }

    /// The address of the descriptors, as their identity; 0 for none.
    pub(super) fn files_address(&self) -> usize {
        self.files_at.load(Ordering::Relaxed)
    }

    /// Root, working directory and umask; none for zombies.
    pub fn fs(&self) -> Option<Arc<FsContext>> {
        self.fs.lock().as_ref().map(|fs| fs.context().clone())
    }

    /// A use of the context for another process; `None` inside while execve keeps it unshared.
    pub(super) fn share_fs(&self) -> Option<Option<FsUse>> {
        self.fs.lock().as_ref().map(FsUse::share)
    }

    /// Puts another context in; returns the old one, which the caller drops unlocked.
    /// As for [`Process::set_files`].
    pub fn set_fs(&self, fs: Option<FsUse>) -> Option<FsUse> {
        let at = address(fs.as_ref().map(FsUse::context));
        let mut slot = self.fs.lock();
        self.fs_at.store(at, Ordering::Relaxed);
        core::mem::replace(&mut *slot, fs)
    }

    /// The address of the context, as its identity; 0 for none.
    pub(super) fn fs_address(&self) -> usize {
        self.fs_at.load(Ordering::Relaxed)
    }

    /// Who the process acts as in the eyes of others: its first thread's credentials.  What a thread may do
    /// itself its own ones say, [`Thread::cred`].
    pub fn cred(&self) -> Arc<Cred> {
        self.cred.lock().clone()
    }

    /// Who pays for the process itself, from its last thread's end on.
    pub fn payer(&self) -> Payer {
        self.cred.lock().payer
    }

    /// Replaces the credentials that others see.
    pub(super) fn set_cred(&self, new: Arc<Cred>) {
        let uid = new.uid;
        let old = core::mem::replace(&mut *self.cred.lock(), new);
        if self.uid.swap(uid, Ordering::Relaxed) != uid {
            self.found_kin();
        }
        drop(old);
    }

    /// A resource limit. Takes a lock only if the process, or one that it descends from, ever changed one.
    pub fn limit(&self, r: Resource) -> Limit {
        if self.limits_changed.load(Ordering::Acquire) {
            self.limits.lock().get(r)
        } else {
            Rlimits::new().get(r)
        }
    }

    /// The soft value of a resource limit.
    pub fn rlimit(&self, r: Resource) -> u64 {
        self.limit(r).soft
    }

    /// The soft values of several resource limits, of one moment.
    pub fn rlimits<const N: usize>(&self, which: [Resource; N]) -> [u64; N] {
        let limits = self.limits.lock();
        which.map(|r| limits.get(r).soft)
    }

    /// An independent copy of all limits.
    pub(super) fn limits(&self) -> Rlimits {
        let values = self.limits.lock().values();
        Rlimits::from_values(values)
    }

    /// prlimit(2): replaces a limit; returns the old one.
    pub fn set_limit(
        &self,
        r: Resource,
        new: Limit,
        privileged: bool,
    ) -> Result<Limit, LimitError> {
        // The first change of a limit needs memory: outside the lock.
        let mut fresh = Rlimits::own();
        let mut limits = self.limits.lock();
        let old = limits.get(r);
        limits.check(r, new, privileged)?;
        if limits.is_default() {
            core::mem::swap(&mut *limits, &mut fresh);
        }
        limits.set(r, new);
        self.limits_changed.store(true, Ordering::Release);
        drop(limits);
        if r == Resource::Sigpending {
            self.sigpending.store(small(new.soft), Ordering::Relaxed);
        }
        if r == Resource::Cpu {
            let used = self.times();
            itimer::set_cpu_limit(self, new, used.user_ns + used.sys_ns);
        }
        Ok(old)
    }

    /// RLIMIT_SIGPENDING, without a lock.
    pub(super) fn sigpending_limit(&self) -> u64 {
        self.sigpending.load(Ordering::Relaxed).into()
    }

    /// The real user, without a lock.
    pub fn uid(&self) -> u32 {
        self.uid.load(Ordering::Relaxed)
    }

    /// Forgets what execve left to read.
    pub(super) fn forget_program(&self) {
        let program = Program::default();
        let _old = core::mem::replace(&mut *self.program.lock(), program);
    }

    /// The heap's bounds.
    pub fn brk(&self) -> Brk {
        *self.brk.lock()
    }

    /// Keeps other threads from changing the heap; sleeps while one does.
    pub fn lock_brk(&self) -> ByteMutexGuard<'_, lock::BreakLock> {
        self.brk_change.lock()
    }

    /// Stores the heap's bounds.  The caller holds [`Process::lock_brk`].
    pub fn set_brk(&self, brk: Brk) {
        *self.brk.lock() = brk;
    }

    /// The name that ps shows.
    pub fn comm(&self) -> Comm {
        match ids::thread(&ksync::pin(), self.pid()) {
            Some(leader) => leader.comm(),
            None => *self.comm.lock(),
        }
    }

    /// Whether addresses are to be laid out at random (personality ADDR_NO_RANDOMIZE is off).
    pub fn randomize(&self) -> bool {
        self.personality.load(Ordering::Relaxed) & personality::ADDR_NO_RANDOMIZE == 0
    }

    /// Its family: processes that were forked from one execve or one change of the real user, and have done neither since.
    /// So all have one real user.
    pub fn kin(&self) -> u64 {
        self.kin.load(Ordering::Relaxed)
    }

    /// Whether its family began with it.
    pub fn is_founder(&self) -> bool {
        self.kin() % u64::from(task::ids::ID_LIMIT) == u64::from(self.pid())
    }

    /// Begins a family: the process runs a new program, or does so for another user.
    pub(super) fn found_kin(&self) {
        // The number of the process and, above it, the time, for when that number has been given to another.
        let span = u64::from(task::ids::ID_LIMIT);
        let mut kin = task::time::monotonic_ns() / span * span + u64::from(self.pid());
        // The time is coarse, and children of the last family that began here are not to be in this one.
        if self.is_founder() {
            kin = kin.max(self.kin() + span);
        }
        self.kin.store(kin, Ordering::Relaxed);
    }

    /// /proc/PID/oom_score_adj: thousandths of memory that the memory killer adds to what it costs, from -1000, never, to
    /// 1000, first.
    pub fn oom_adj(&self) -> i32 {
        self.oom_adj.load(Ordering::Relaxed)
    }

    /// The least [`oom_adj`](Process::oom_adj) that anybody but root may set.
    pub fn oom_adj_min(&self) -> i32 {
        self.oom_adj_min.load(Ordering::Relaxed)
    }

    /// Sets [`oom_adj`](Process::oom_adj), for good if root says so.
    pub fn set_oom_adj(&self, adj: i32, privileged: bool) {
        self.oom_adj.store(adj, Ordering::Relaxed);
        if privileged {
            self.oom_adj_min.store(adj, Ordering::Relaxed);
        }
    }

    /// Whether it ends: nothing of it will run in user mode again.
    pub fn is_ending(&self) -> bool {
        self.exiting.load(Ordering::Relaxed)
    }

    /// How many threads live.
    pub fn thread_count(&self) -> u32 {
        self.thread_count.load(Ordering::Relaxed)
    }

    /// Threads as ps counts them: a leader that has ended counts as long as other threads live.
    pub fn threads_shown(&self) -> u32 {
        let living = self.thread_count();
        let leader_ended = living > 0 && ids::thread(&ksync::pin(), self.pid()).is_none();
        living + u32::from(leader_ended)
    }

    /// When it was made, in nanoseconds of the monotonic clock.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Calls `f` with each living thread, without a lock held; those that come
    /// or go meanwhile may or may not be seen, all others are, once.
    pub fn each_thread(&self, mut f: impl FnMut(&Arc<Thread>) -> bool) {
        let mut at = self.first_thread();
        while let Some(t) = at {
            if !f(&t) {
                return;
            }
            at = self.thread_after(&t);
        }
    }

    fn first_thread(&self) -> Option<Arc<Thread>> {
        let pin = ksync::pin();
        let threads = self.threads.lock();
        ids::borrow_thread(&pin, threads.first()?).map(ArcBorrow::hold)
    }

    /// The thread that stands behind `t`, or stood there before `t` left.
    fn thread_after(&self, t: &Thread) -> Option<Arc<Thread>> {
        let pin = ksync::pin();
        let threads = self.threads.lock();
        if t.group_links.linked() {
            let next = threads.after(&pin, t.tid())?;
            return ids::borrow_thread(&pin, next).map(ArcBorrow::hold);
        }
        // The list is in order of arrival.
        let mut next = None;
        threads.each(&pin, |tid| {
            next = ids::borrow_thread(&pin, tid).filter(|o| o.came_after(t));
            next.is_none()
        });
        next.map(ArcBorrow::hold)
    }

    /// How many threads have left so far.
    pub(super) fn departures(&self) -> u32 {
        let _threads = self.threads.lock();
        let arrivals = self.arrivals.load(Ordering::Relaxed);
        arrivals.wrapping_sub(self.thread_count())
    }

    /// Adds a thread that is not running yet.
    pub(super) fn add_thread(&self, pin: &CpuPin, t: &Thread) {
        self.add_thread_to(&mut self.threads.lock(), pin, t);
    }

    /// As [`Process::add_thread`], to `threads`, which are this process's.
    pub(super) fn add_thread_to(&self, threads: &mut IdList<InProcess>, pin: &CpuPin, t: &Thread) {
        let arrivals = self.arrivals.load(Ordering::Relaxed) + 1;
        self.arrivals.store(arrivals, Ordering::Relaxed);
        t.arrives(arrivals);
        threads.push_back(pin, t.tid());
        self.thread_count.fetch_add(1, Ordering::SeqCst);
    }
}

fn address<T>(what: Option<&Arc<T>>) -> usize {
    what.map_or(0, |a| Arc::as_ptr(a) as usize)
}

pub(super) fn address_of(space: Option<&Arc<UserSpace>>) -> usize {
    space.map_or(0, |s| Arc::as_ptr(s.space()) as usize)
}

/// A limit in 32 bits.
fn small(n: u64) -> u32 {
    n.min(u64::from(u32::MAX)) as u32
}
