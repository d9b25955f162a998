//! Processes: thread groups, and their parents and children.
//!
//! A process is in the process table from fork until it has been reaped. Its parent lists it, by its pid, under the parent's *family* lock
//! on one of two lists: living children and zombies. So wait4 finds a zombie at once.
//!
//! Reparenting: the last thread of an exiting process takes the children off the lists in slices. Under the new parent's family lock it
//! then writes that parent's pid into each child and lists the child. In between, a child is in *limbo*: on no list. A child that exits in
//! limbo finds itself on no list and returns; the thread that reparents it lists it as a zombie and notifies the new parent.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::mem::offset_of;
use ksync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

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
use super::space::SpaceUser;

pub use super::program::{Brk, Program};

/// The stages of a process's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Life {
    /// Some thread has not exited, or the last one is releasing what the process has.
    Alive = 0,
    /// All threads have exited; the parent may reap the process.
    Zombie = 1,
    /// The process has been reaped: its status has been taken.
    Reaped = 2,
}

/// A process's children, by pid.
#[derive(Default)]
pub(super) struct Family {
    pub living: IdList<Sibling>,
    pub zombies: IdList<Sibling>,
    /// The process has given its children away and gets no more: nothing may be listed here.
    pub closed: bool,
}

pub(super) struct Accounts {
    pub dead_threads: Times,
    pub children: Times,
}

/// Bits of `Process::flags`.
pub mod flag {
    /// Orphans among its descendants become its children (PR_SET_CHILD_SUBREAPER).
    pub const SUBREAPER: u32 = 1;
    /// Other processes of the same user may look into it (PR_SET_DUMPABLE).
    pub const DUMPABLE: u32 = 8;
    /// It has called execve since it was forked.
    pub const EXECED: u32 = 16;
    /// It is the kernel's own process.
    pub const KERNEL: u32 = 32;
    /// New mappings are locked (MCL_FUTURE); execve clears it.
    pub const LOCK_FUTURE: u32 = 128;
    /// The pages of such mappings are not made present at once (MCL_ONFAULT).
    pub const LOCK_ON_FAULT: u32 = 256;
    /// A child has stopped or been continued, now or before: only then does wait4 look for such children. Most processes never set it.
    pub const CHILD_STOPS: u32 = 512;
    /// A thread adds up what the process's threads have used: those that leave wait for a short time.
    pub const COUNTED: u32 = 1024;
}

/// Bits of personality(2); the names are Linux's.
#[expect(missing_docs, reason = "Linux's names: bits of personality(2)")]
pub mod personality {
    pub const ADDR_NO_RANDOMIZE: u32 = 0x004_0000;
    pub const MMAP_PAGE_ZERO: u32 = 0x010_0000;
    pub const ADDR_COMPAT_LAYOUT: u32 = 0x020_0000;
    pub const READ_IMPLIES_EXEC: u32 = 0x040_0000;
    /// The bits that execve clears for a program that gains privileges.
    pub const CLEARED_BY_PRIVILEGE: u32 =
        ADDR_NO_RANDOMIZE | MMAP_PAGE_ZERO | ADDR_COMPAT_LAYOUT | READ_IMPLIES_EXEC;
}

/// A process.
///
/// The fields that every system call and every return to user mode read come first, on no cache line that system calls write.
#[repr(C, align(64))]
pub struct Process {
    /// The addresses of the address space, the descriptor table and the file-system context, 0 for none. Written under their locks.
    pub(super) space_at: AtomicUsize,
    files_at: AtomicUsize,
    fs_at: AtomicUsize,
    /// Const.
    pub(super) id: Id,
    /// The parent's pid. Written under the family lock of the new parent.
    pub(super) ppid: AtomicU32,
    /// The tid of the parent's thread that made this process, for __WNOTHREAD. Written as `ppid`.
    pub(super) maker: AtomicU32,
    /// Bits of `flag`.
    pub(super) flags: AtomicU32,
    /// Process group id and session id; written under the lock of the group's shard.
    pub(super) pgid: AtomicU32,
    pub(super) sid: AtomicU32,
    pub(super) personality: AtomicU32,
    /// The real user id, for readers in interrupts.
    pub(super) uid: AtomicU32,
    /// The soft RLIMIT_SIGPENDING, for the same readers.
    sigpending: AtomicU32,
    /// /proc/PID/oom_score_adj, and the least value that an unprivileged process may set. Atomic.
    oom_adj: AtomicI32,
    oom_adj_min: AtomicI32,
    /// The wait4 status. Written before `life` becomes `Zombie`.
    pub(super) status: AtomicU32,
    /// The exec group for the out-of-memory killer, see [`Process::exec_group`]. Atomic; written by execve and at a change of the real user.
    exec_group: AtomicU64,
    pub(super) start_ns: u64,
    /// ITIMER_VIRTUAL, ITIMER_PROF and RLIMIT_CPU; allocated at first use.
    pub(super) cpu_timers: Once<Box<CpuTimers>>,
    /// A [`Life`].
    pub(super) life: AtomicU8,
    /// The signal that the parent gets when this process ends, 0 for none.
    pub(super) exit_signal: AtomicU8,
    /// `exec_id` counts the execve calls of this process and its ancestors. `parent_exec_id` is the parent's count at the fork: once the
    /// parent's count differs, it runs another program, and gets no signal but SIGCHLD when this process ends. Execve writes the first,
    /// only fork the second.
    pub(super) exec_id: AtomicU32,
    pub(super) parent_exec_id: AtomicU32,
    /// The signal that this process gets when its parent dies, 0 for none.
    pub(super) death_signal: AtomicU8,
    /// The process is ending: by exit_group, by a fatal signal, or because its last thread has exited. Written under the lock of `threads`,
    /// with `status`.
    pub(super) exiting: AtomicBool,
    /// The process has limits of its own. Set under the lock of `limits`, never cleared.
    limits_changed: AtomicBool,
    /// The process is on its parent's list of zombies. A process can be a zombie and not be there yet: it may still be on the list of
    /// living children, or in limbo. Written under the parent's family lock.
    pub(super) listed_dead: AtomicBool,

    /// Signals pending for the process. Its bits, read without its lock, end a cache line; the fields that are written begin the next.
    pub(super) pending: SharedPending,
    pub(super) family: Spin<Family, lock::FamilyLock>,
    /// This process's links on its parent's lists. Guarded by the parent's family lock.
    pub(super) siblings: IdLinks,
    pub(super) group_links: IdLinks,
    pub(super) group_shard: AtomicU32,
    /// The serial number of the last signal to its group that the process has got; a fork passes it on. Written under the signal lock;
    /// under the shard's lock when the process joins; and by a sender that may not signal the process, which holds the group's `senders`.
    pub(super) group_signal: AtomicU32,
    pub(super) signals: IrqSpin<Shared, lock::SignalLock>,
    /// The living threads, in order of arrival.
    pub(super) threads: IrqSpin<IdList<InProcess>, lock::ThreadListLock>,
    /// Threads added so far; written under the lock of `threads`.
    arrivals: AtomicU32,
    pub(super) thread_count: AtomicU32,
    /// Where execve waits for the other threads to exit, and where stopped threads wait for SIGCONT.
    pub(super) group_wait: WaitQueue,
    /// Where the process's threads sleep in wait4.
    pub(super) child_wait: WaitQueue,

    /// Its lock also makes what execve changes visible to other processes in one step, see [`super::look`].
    pub(super) space: Spin<Option<Arc<SpaceUser>>, lock::ProcessLock>,
    pub(super) files: Spin<Option<Arc<FdTable>>, lock::ProcessLock>,
    fs: Spin<Option<FsUse>, lock::ProcessLock>,
    pub(super) cred: Spin<Arc<Cred>, lock::ProcessLock>,
    limits: Spin<Rlimits, lock::ProcessLock>,
    pub(super) program: Spin<Program, lock::ProcessLock>,
    pub(super) brk: Spin<Brk, lock::ProcessLock>,
    pub(super) accounts: Spin<Accounts, lock::ProcessLock>,
    /// The leader's name, for the time after the leader has exited.
    pub(super) comm: Spin<Comm, lock::ProcessLock>,
    /// Held during a change of the heap, both of its bounds and of its mapping.
    brk_change: ByteMutex,

    /// ITIMER_REAL's node on a timer wheel. Guarded by the wheel's lock; armed with the lock of `real_timer` held as well.
    pub(super) real_node: TimerNode,
    /// Where the parent sleeps after vfork until this process calls execve or exits.
    pub(super) vfork_done: super::fork::VforkGate,
    pub(super) real_timer: IrqSpin<RealSlot, lock::RealTimerLock>,
}

/// With the two counts of an `Arc`, a process just fits its size class of the heap.
const _: () = assert!(cfg!(shuttle) || size_of::<Process>() <= 704);
const _: () =
    assert!(cfg!(shuttle) || (offset_of!(Process, pending) + Pending::BITS_END).is_multiple_of(64));

/// What a new process begins with.
pub struct NewProcess {
    /// Its pid.
    pub id: Id,
    /// Its parent's pid.
    pub ppid: u32,
    /// The tid of the parent's thread that makes it.
    pub maker: u32,
    /// `flag::*`.
    pub flags: u32,
    /// The signal that its parent gets when it ends, 0 for none.
    pub exit_signal: u8,
    /// The counts of execve calls: its own, and its parent's.
    pub exec_ids: (u32, u32),
    /// Its signal actions and job-control state.
    pub signals: Shared,
    /// Its use of an address space; none for the kernel's own process.
    pub space: Option<Arc<SpaceUser>>,
    /// Its descriptor table.
    pub files: Option<Arc<FdTable>>,
    /// Its root, working directory and umask.
    pub fs: Option<FsUse>,
    /// Its credentials.
    pub cred: Arc<Cred>,
    /// Its resource limits.
    pub limits: Rlimits,
    /// Its program, as other processes read it.
    pub program: Program,
    /// Its heap.
    pub brk: Brk,
    /// Its name.
    pub comm: Comm,
    /// personality(2).
    pub personality: u32,
    /// Its exec group for the out-of-memory killer, see [`Process::exec_group`].
    pub exec_group: u64,
    /// /proc/PID/oom_score_adj, and the least value that an unprivileged process may set.
    pub oom_adj: (i32, i32),
}

impl Process {
    pub(super) fn new(b: NewProcess) -> Arc<Process> {
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
            exec_group: AtomicU64::new(b.exec_group),
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
        itimer::set_cpu_limit(&p, cpu);
        p
    }

    /// The pid, as getpid(2) returns it.
    pub fn pid(&self) -> u32 {
        self.id.number()
    }

    /// The parent's pid.
    pub fn ppid(&self) -> u32 {
        self.ppid.load(Ordering::Relaxed)
    }

    /// The process group id.
    pub fn pgid(&self) -> u32 {
        self.pgid.load(Ordering::Relaxed)
    }

    /// The session id.
    pub fn sid(&self) -> u32 {
        self.sid.load(Ordering::Relaxed)
    }

    /// The process group; `None` at a moment when setpgid or setsid moves the process, and once it has been reaped.
    pub fn group(&self) -> Option<Arc<Group>> {
        ids::find_group(self.pgid())
    }

    /// The session; `None` as for [`Process::group`].
    pub fn session(&self) -> Option<Arc<Session>> {
        self.group().map(|g| g.session().clone())
    }

    pub(super) fn is_alive(&self) -> bool {
        self.life.load(Ordering::Acquire) == Life::Alive as u8
    }

    /// Notes that the process has got, or must not get, the group signal with serial number `number`, and that children which it forks from
    /// now on need not get it. 0 stands for a signal that is not to a group, and changes nothing.
    pub(super) fn note_group_signal(&self, number: u32) {
        if number != 0 {
            self.group_signal.store(number, Ordering::Release);
        }
    }

    /// Whether the process has been reaped: it is about to leave the process table, or has left it.
    pub fn is_reaped(&self) -> bool {
        self.life.load(Ordering::SeqCst) == Life::Reaped as u8
    }

    /// Whether the process is a zombie or has been reaped.
    pub fn is_zombie(&self) -> bool {
        !self.is_alive()
    }

    /// Whether all threads have slept for at least `ns` nanoseconds. A hint: a thread may wake at any moment.
    pub fn sleeps_since(&self, ns: u64) -> bool {
        let now = task::time::monotonic_ns();
        let pin = ksync::pin();
        let sleeps = |tid| ids::thread(&pin, tid).is_some_and(|t| t.sleeps_since(ns, now));
        // Most processes have one thread: if it is busy, the lock is not taken.
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

    /// Whether it is the kernel's own process.
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

    /// Whether one of the bits of `flag` is set.
    pub fn flag(&self, flag: u32) -> bool {
        self.has(flag)
    }

    /// Sets or clears bits of `flag`, for prctl(2).
    pub fn set_switch(&self, flag: u32, on: bool) {
        self.set_flag(flag, on);
    }

    /// The signal that the process gets when its parent dies, 0 for none.
    pub fn death_signal(&self) -> u8 {
        self.death_signal.load(Ordering::Relaxed)
    }

    /// Sets the signal that the process gets when its parent dies, 0 for none.
    pub fn set_death_signal(&self, signo: u8) {
        self.death_signal.store(signo, Ordering::Relaxed);
    }

    /// personality(2): sets the personality if `new` is given; returns the old one.
    pub fn personality(&self, new: Option<u32>) -> u32 {
        match new {
            Some(new) => self.personality.swap(new, Ordering::Relaxed),
            None => self.personality.load(Ordering::Relaxed),
        }
    }

    /// Clears bits of the personality.
    pub(super) fn clear_personality(&self, bits: u32) {
        self.personality.fetch_and(!bits, Ordering::Relaxed);
    }

    /// The address space; none for the kernel's process and for zombies.
    pub fn space(&self) -> Option<Arc<Space>> {
        self.space.lock().as_ref().map(|s| s.space().clone())
    }

    /// The process's use of the address space, to be shared with a new process.
    pub(super) fn user_space(&self) -> Option<Arc<SpaceUser>> {
        self.space.lock().clone()
    }

    /// Replaces the address space; returns the old one, which the caller drops with no lock held.
    pub(super) fn set_space(&self, space: Option<Arc<SpaceUser>>) -> Option<Arc<SpaceUser>> {
        let at = address_of(space.as_ref());
        let mut slot = self.space.lock();
        self.space_at.store(at, Ordering::Relaxed);
        core::mem::replace(&mut *slot, space)
    }

    /// The address of the address space, as its identity; 0 for none.
    pub(super) fn space_address(&self) -> usize {
        self.space_at.load(Ordering::Relaxed)
    }

    /// The descriptor table; none for the kernel's process and for zombies. Only for threads of the process, see `super::descriptors`.
    pub(super) fn files(&self) -> Option<Arc<FdTable>> {
        self.files.lock().clone()
    }

    /// Replaces the descriptor table; returns the old one, which the caller drops with no lock held. No other thread of the process may be
    /// alive, and a calling thread of the process has dropped its cached reference (see `super::reference_cache`).
    pub(super) fn set_files(&self, files: Option<Arc<FdTable>>) -> Option<Arc<FdTable>> {
        let at = address(files.as_ref());
        let mut slot = self.files.lock();
        self.files_at.store(at, Ordering::Relaxed);
        core::mem::replace(&mut *slot, files)
    }

    /// The address of the descriptor table, as its identity; 0 for none.
    pub(super) fn files_address(&self) -> usize {
        self.files_at.load(Ordering::Relaxed)
    }

    /// Root, working directory and umask; none for zombies.
    pub fn fs(&self) -> Option<Arc<FsContext>> {
        self.fs.lock().as_ref().map(|fs| fs.context().clone())
    }

    /// A use of the file-system context for another process. Outer `None`: there is no context; inner `None`: an execve keeps it unshared.
    pub(super) fn share_fs(&self) -> Option<Option<FsUse>> {
        self.fs.lock().as_ref().map(FsUse::share)
    }

    /// Replaces the file-system context; returns the old one, which the caller drops unlocked. Conditions: see `set_files`.
    pub fn set_fs(&self, fs: Option<FsUse>) -> Option<FsUse> {
        let at = address(fs.as_ref().map(FsUse::context));
        let mut slot = self.fs.lock();
        self.fs_at.store(at, Ordering::Relaxed);
        core::mem::replace(&mut *slot, fs)
    }

    /// The address of the file-system context, as its identity; 0 for none.
    pub(super) fn fs_address(&self) -> usize {
        self.fs_at.load(Ordering::Relaxed)
    }

    /// The credentials by which other processes judge this one: its first thread's. What a thread may do depends on [`Thread::cred`].
    pub fn cred(&self) -> Arc<Cred> {
        self.cred.lock().clone()
    }

    /// The account that pays for the process itself, from the end of its last thread on.
    pub fn payer(&self) -> Payer {
        self.cred.lock().payer
    }

    /// Replaces the credentials that other processes see.
    pub(super) fn set_cred(&self, new: Arc<Cred>) {
        let uid = new.uid;
        let old = core::mem::replace(&mut *self.cred.lock(), new);
        if self.uid.swap(uid, Ordering::Relaxed) != uid {
            self.found_exec_group();
        }
        drop(old);
    }

    /// Passes the resource limits to `f`. Takes a lock only if the process, or one of its ancestors, has changed a limit.
    #[inline]
    fn with_limits<R>(&self, f: impl FnOnce(&Rlimits) -> R) -> R {
        if self.limits_changed.load(Ordering::Acquire) {
            f(&self.limits.lock())
        } else {
            f(&Rlimits::new())
        }
    }

    /// A resource limit.
    pub fn limit(&self, r: Resource) -> Limit {
        self.with_limits(|limits| limits.get(r))
    }

    /// The soft value of a resource limit.
    pub fn rlimit(&self, r: Resource) -> u64 {
        self.limit(r).soft
    }

    /// The soft values of several resource limits, all of the same moment.
    pub fn rlimits<const N: usize>(&self, which: [Resource; N]) -> [u64; N] {
        self.with_limits(|limits| which.map(|r| limits.get(r).soft))
    }

    /// An independent copy of all limits.
    pub(super) fn limits(&self) -> Rlimits {
        let values = self.limits.lock().values();
        Rlimits::from_values(values)
    }

    /// prlimit(2): replaces a limit; returns the old one.
    ///
    /// # Errors
    /// The soft limit exceeds the hard one, or the hard one rises and the caller is not `privileged`.
    pub fn set_limit(
        &self,
        r: Resource,
        new: Limit,
        privileged: bool,
    ) -> Result<Limit, LimitError> {
        // The first change of a limit allocates, which must not happen under the lock.
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
            itimer::set_cpu_limit(self, new);
        }
        Ok(old)
    }

    /// The soft RLIMIT_SIGPENDING, without a lock.
    pub(super) fn sigpending_limit(&self) -> u64 {
        self.sigpending.load(Ordering::Relaxed).into()
    }

    /// The real user id, without a lock.
    pub fn uid(&self) -> u32 {
        self.uid.load(Ordering::Relaxed)
    }

    /// Clears what execve left for other processes to read.
    pub(super) fn forget_program(&self) {
        let program = Program::default();
        let _old = core::mem::replace(&mut *self.program.lock(), program);
    }

    /// The heap's bounds.
    pub fn brk(&self) -> Brk {
        *self.brk.lock()
    }

    /// Keeps other threads from changing the heap; sleeps while another thread changes it.
    pub fn lock_brk(&self) -> ByteMutexGuard<'_, lock::BreakLock> {
        self.brk_change.lock()
    }

    /// Stores the heap's bounds. The caller holds [`Process::lock_brk`].
    pub fn set_brk(&self, brk: Brk) {
        *self.brk.lock() = brk;
    }

    /// The name that ps shows: the leader's.
    pub fn comm(&self) -> Comm {
        match ids::thread(&ksync::pin(), self.pid()) {
            Some(leader) => leader.comm(),
            None => *self.comm.lock(),
        }
    }

    /// Whether addresses are to be randomised (personality ADDR_NO_RANDOMIZE is off).
    pub fn randomize(&self) -> bool {
        self.personality.load(Ordering::Relaxed) & personality::ADDR_NO_RANDOMIZE == 0
    }

    /// The exec group for the out-of-memory killer: a value that processes forked from one execve, or from one change of the
    /// real user, share until they do either. So all of them have one real user.
    pub fn exec_group(&self) -> u64 {
        self.exec_group.load(Ordering::Relaxed)
    }

    /// Whether the process's own execve began its family.
    pub fn is_founder(&self) -> bool {
        self.exec_group() % u64::from(task::ids::ID_LIMIT) == u64::from(self.pid())
    }

    /// Begins a new exec group: the process has called execve, or has changed its real user.
    pub(super) fn found_exec_group(&self) {
        // The pid and, above it, the time: a later process with the same pid begins another group.
        let span = u64::from(task::ids::ID_LIMIT);
        let mut exec_group = task::time::monotonic_ns() / span * span + u64::from(self.pid());
        // The time is coarse, and children of the last group that began here are not to be in this one.
        if self.is_founder() {
            exec_group = exec_group.max(self.exec_group() + span);
        }
        self.exec_group.store(exec_group, Ordering::Relaxed);
    }

    /// /proc/PID/oom_score_adj: thousandths of all memory that the out-of-memory killer adds to what the process costs, from -1000 (the
    /// process is never chosen) to 1000 (it is chosen first).
    pub fn oom_adj(&self) -> i32 {
        self.oom_adj.load(Ordering::Relaxed)
    }

    /// The least [`oom_adj`](Process::oom_adj) that an unprivileged process may set.
    pub fn oom_adj_min(&self) -> i32 {
        self.oom_adj_min.load(Ordering::Relaxed)
    }

    /// Sets [`oom_adj`](Process::oom_adj); a `privileged` caller also makes it the least that unprivileged processes may set.
    pub fn set_oom_adj(&self, adj: i32, privileged: bool) {
        self.oom_adj.store(adj, Ordering::Relaxed);
        if privileged {
            self.oom_adj_min.store(adj, Ordering::Relaxed);
        }
    }

    /// Whether the process is ending: none of its threads will run in user mode again.
    pub fn is_ending(&self) -> bool {
        self.exiting.load(Ordering::Relaxed)
    }

    /// How many threads have not exited.
    pub fn thread_count(&self) -> u32 {
        self.thread_count.load(Ordering::Relaxed)
    }

    /// Threads as ps counts them: a leader that has ended counts as long as other threads live.
    pub fn threads_shown(&self) -> u32 {
        let living = self.thread_count();
        let leader_ended = living > 0 && ids::thread(&ksync::pin(), self.pid()).is_none();
        living + u32::from(leader_ended)
    }

    /// When the process was made, in nanoseconds of the monotonic clock.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Calls `f` with each living thread until it returns false; no lock is held meanwhile. Threads that come or go during the walk may or
    /// may not be seen; every other thread is seen once.
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

    /// The thread that follows `t` on the list, or would if `t` had not left.
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

    /// Adds a thread that does not run yet.
    pub(super) fn add_thread(&self, pin: &CpuPin, t: &Thread) {
        self.add_thread_to(&mut self.threads.lock(), pin, t);
    }

    /// As [`Process::add_thread`]; `threads` is this process's list, whose lock the caller holds.
    pub(super) fn add_thread_to(&self, threads: &mut IdList<InProcess>, pin: &CpuPin, t: &Thread) {
        let arrivals = self.arrivals.load(Ordering::Relaxed).wrapping_add(1);
        self.arrivals.store(arrivals, Ordering::Relaxed);
        t.arrives(arrivals);
        threads.push_back(pin, t.tid());
        self.thread_count.fetch_add(1, Ordering::SeqCst);
    }
}

fn address<T>(what: Option<&Arc<T>>) -> usize {
    what.map_or(0, |a| Arc::as_ptr(a) as usize)
}

pub(super) fn address_of(space: Option<&Arc<SpaceUser>>) -> usize {
    space.map_or(0, |s| Arc::as_ptr(s.space()) as usize)
}

/// A limit in 32 bits; a larger one becomes the largest of these.
fn small(n: u64) -> u32 {
    n.min(u64::from(u32::MAX)) as u32
}
