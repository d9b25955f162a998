//! Processes: thread groups, and their parents and children.
//!
//! A process is in the process table from fork until it has been reaped. Its parent lists it, by its pid, under the parent's *family* lock
//! on one of two lists: living children and zombies. So wait4 finds a zombie at once.
//!
//! Reparenting: the last thread of an exiting process takes the children off the lists in slices. Under the new parent's family lock it
//! then writes that parent's pid into each child and lists the child. In between, a child is in *limbo*: on no list. A child that exits in
//! limbo finds itself on no list and returns; the thread that reparents it lists it as a zombie and notifies the new parent.

mod limits;
mod oom;
mod parts;
mod threads;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::mem::offset_of;
use ksync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use cred::Cred;
use ksync::{ByteMutex, IrqSpin, Once, Spin};
use task::idlist::{IdLinks, IdList};
use task::ids::{Id, InProcess};
use task::thread::Comm;
use task::timer::TimerNode;
use task::usage::Times;
use task::wait::WaitQueue;
use vfs::{FdTable, FsUse};

use super::exec_count::ExecCount;
use super::group::record::NO_SHARD;
use super::itimer::state::{RealSlot, Seldom, prepare_cpu_limit, set_cpu_limit};
use super::lock;
use super::rlimit::{Resource, Rlimits};
use super::signal::{Pending, Shared, SharedPending};
use super::space::SpaceUser;
use super::vfork::VforkGate;

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

/// The lists of a process's children, living ones and zombies.
pub(super) enum Sibling {}

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
    /// A thread adds up what the process's threads have used: threads that end wait for a short time, so that the sum gets
    /// done.
    pub const SUMMING_USAGE: u32 = 1024;
    /// It ends, and does not keep its group from being orphaned any more.
    pub const LEAVES_GROUP: u32 = 2048;
    /// It has announced that it uses membarrier(2) for its own threads. A child has this from its parent, and execve clears it.
    pub const BARRIERS: u32 = 1 << 12;
    /// As `BARRIERS`, after it has changed code.
    pub const CODE_BARRIERS: u32 = 1 << 13;
    /// Each signal that becomes pending for it or a thread of it wakes `Seldom::arrivals`. Most processes never set it.
    pub const HEARS_SIGNALS: u32 = 1 << 14;
    /// It has ended, and its parent can wait for it.
    pub const REPORTED: u32 = 1 << 15;
    /// The lowest of the bits of [`coredump_filter`](super::Process::coredump_filter), which are kept inverted where Linux sets them
    /// by default.
    pub const DUMP_FILTER_SHIFT: u32 = 16;
    /// All of them. A child has them from its parent.
    pub const DUMP_FILTER: u32 = 0x1ff << DUMP_FILTER_SHIFT;
}

/// What Linux sets of [`Process::coredump_filter`].
const DEFAULT_DUMP_FILTER: u32 = 0x33;

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

/// A process. Its fields stand in groups by what guards them.
///
/// The fields that every system call and every return to user mode read come first, on no cache line that system calls write.
#[repr(C, align(64))]
pub struct Process {
    // Written under the locks of `space`, `files` and `fs`.
    /// The addresses of the address space, the descriptor table and the file-system context, 0 for none. That of the space has
    /// [`LEFT`] from when the process, which ends, has left the space until it has emptied it, if it was the last user.
    pub(super) space_at: AtomicUsize,
    files_at: AtomicUsize,
    fs_at: AtomicUsize,

    // Constant.
    pub(super) start_ns: u64,
    pub(super) id: Id,

    // Atomic.
    /// Bits of `flag`.
    pub(super) flags: AtomicU32,
    pub(super) personality: AtomicU32,
    /// /proc/PID/oom_score_adj, and the least value that an unprivileged process may set.
    oom_adj: AtomicI32,
    oom_adj_min: AtomicI32,
    /// How many execve calls this process and its ancestors have made; see `parent_exec_id`.
    pub(super) exec_id: ExecCount,
    /// The exec group for the out-of-memory killer, see [`Process::exec_group`]. Written by execve and at a change of the real user.
    exec_group: AtomicU64,
    /// Timers other than ITIMER_REAL, and what waits for signals or for the end of the process; allocated at first use.
    pub(super) seldom: Once<Box<Seldom>>,
    /// A [`Life`].
    pub(super) life: AtomicU8,
    /// The signal that the parent gets when this process ends, 0 for none.
    pub(super) exit_signal: AtomicU8,
    /// The signal that this process gets when its parent dies, 0 for none.
    pub(super) death_signal: AtomicU8,

    // Atomic, for readers that do not take the locks of `limits` and `cred`, such as interrupts.
    /// The process has limits of its own. Set under the lock of `limits`, never cleared.
    limits_changed: AtomicBool,
    /// The soft RLIMIT_SIGPENDING.
    sigpending: AtomicU32,
    /// The real user id.
    pub(super) uid: AtomicU32,

    // Written under the lock of `threads`.
    /// The wait4 status. Written before `life` becomes `Zombie`.
    pub(super) status: AtomicU32,
    /// The process is ending: by exit_group, by a fatal signal, or because its last thread has exited. Written with `status`.
    pub(super) exiting: AtomicBool,

    // Written under the family lock of the parent; where that changes, of the new parent.
    /// The process is on its parent's list of zombies. A process can be a zombie and not be there yet: it may still be on the list of
    /// living children, or in limbo.
    pub(super) listed_dead: AtomicBool,
    /// The parent's pid.
    pub(super) ppid: AtomicU32,
    /// The tid of the parent's thread that made this process, for __WNOTHREAD.
    pub(super) maker: AtomicU32,
    /// The parent's `exec_id` at the fork; only fork writes it. Once the parent's count differs, the parent runs another program, and gets
    /// no signal but SIGCHLD when this process ends.
    pub(super) parent_exec_id: AtomicU32,

    // Written under the lock of the group's shard.
    /// The process group id and the session id.
    pub(super) pgid: AtomicU32,
    pub(super) sid: AtomicU32,

    // With locks of their own.
    /// Signals pending for the process. Its bits, read without its lock, end a cache line; the fields that are written begin the next.
    pub(super) pending: SharedPending,
    pub(super) family: Spin<Family, lock::FamilyLock>,

    // Guarded by the parent's family lock.
    /// This process's links on its parent's lists.
    pub(super) siblings: IdLinks,

    // Guarded by the lock of the group's shard.
    pub(super) group_links: IdLinks,
    pub(super) group_shard: AtomicU32,
    /// The serial number of the last signal to its group that the process has got; a fork passes it on. Written under the signal lock;
    /// under the shard's lock when the process joins; and by a sender that may not signal the process, which holds the group's `senders`.
    pub(super) group_signal: AtomicU32,

    // With a lock of its own: what the signal lock guards.
    pub(super) signals: IrqSpin<Shared, lock::SignalLock>,

    // Guarded by the lock of `threads`; the counts are read without it.
    /// The living threads, in order of arrival.
    pub(super) threads: IrqSpin<IdList<InProcess>, lock::ThreadListLock>,
    /// Threads added so far.
    arrivals: AtomicU32,
    pub(super) thread_count: AtomicU32,

    // With locks of their own: where threads sleep.
    /// Where execve waits for the other threads to exit, and where stopped threads wait for SIGCONT.
    pub(super) group_wait: WaitQueue,
    /// Where the process's threads sleep in wait4.
    pub(super) child_wait: WaitQueue,

    // Each under a lock of its own, of one class.
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

    // Locks, or with locks of their own.
    /// Held during a change of the heap, both of its bounds and of its mapping.
    brk_change: ByteMutex,
    /// ITIMER_REAL's node on a timer wheel. Guarded by the wheel's lock; armed with the lock of `real_timer` held as well.
    pub(super) real_node: TimerNode,
    /// Where the parent sleeps after vfork until this process calls execve or exits.
    pub(super) vfork_done: VforkGate,
    pub(super) real_timer: IrqSpin<RealSlot, lock::RealTimerLock>,
}

/// With the two counts of an `Arc`, a process just fits its size class of the heap.
const _: () = assert!(cfg!(shuttle) || size_of::<Process>() <= 704);
const _: () =
    assert!(cfg!(shuttle) || (offset_of!(Process, pending) + Pending::BITS_END).is_multiple_of(64));

/// See `Process::space_at`: a bit that is 0 in the addresses of spaces.
const LEFT: usize = 1;

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
    /// A process that has no thread and is in no table, group or family. Its RLIMIT_CPU counts from now on. Allocates.
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
            exec_id: ExecCount::new(b.exec_ids.0),
            parent_exec_id: AtomicU32::new(b.exec_ids.1),
            death_signal: AtomicU8::new(0),
            flags: AtomicU32::new(b.flags),
            pgid: AtomicU32::new(0),
            sid: AtomicU32::new(0),
            group_shard: AtomicU32::new(NO_SHARD),
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
            vfork_done: VforkGate::new(),
            seldom: Once::new(),
            uid: AtomicU32::new(uid),
            sigpending: AtomicU32::new(sigpending),
            start_ns: task::time::monotonic_ns(),
        });
        prepare_cpu_limit(&p.seldom, cpu);
        set_cpu_limit(&p.seldom, cpu);
        p
    }

    /// What few processes need. Allocates at the first call.
    pub(super) fn seldom(&self) -> &Seldom {
        self.seldom.get_or_init(|| Box::new(Seldom::default()))
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
        self.pgid.load(Ordering::Acquire)
    }

    /// The session id.
    pub fn sid(&self) -> u32 {
        self.sid.load(Ordering::Relaxed)
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

    /// Which kinds of mappings a core file would have, in Linux's bits: kept, for nothing writes core files.
    pub fn coredump_filter(&self) -> u32 {
        let bits = self.flags.load(Ordering::Relaxed) & flag::DUMP_FILTER;
        (bits >> flag::DUMP_FILTER_SHIFT) ^ DEFAULT_DUMP_FILTER
    }

    /// Sets that.
    pub fn set_coredump_filter(&self, bits: u32) {
        let bits = (bits ^ DEFAULT_DUMP_FILTER) << flag::DUMP_FILTER_SHIFT & flag::DUMP_FILTER;
        let change = |flags: u32| Some(flags & !flag::DUMP_FILTER | bits);
        let _ = self
            .flags
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Clears bits of the personality.
    pub(super) fn clear_personality(&self, bits: u32) {
        self.personality.fetch_and(!bits, Ordering::Relaxed);
    }

    /// Whether addresses are to be randomised (personality ADDR_NO_RANDOMIZE is off).
    pub fn randomize(&self) -> bool {
        self.personality.load(Ordering::Relaxed) & personality::ADDR_NO_RANDOMIZE == 0
    }

    /// Whether the process is ending: none of its threads will run in user mode again.
    pub fn is_ending(&self) -> bool {
        self.exiting.load(Ordering::Relaxed)
    }

    /// When the process was made, in nanoseconds of the monotonic clock.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
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
