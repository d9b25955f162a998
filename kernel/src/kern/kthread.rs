//! Kernel threads: threads of process 0's kind, which never enter user mode.

use alloc::boxed::Box;
use alloc::sync::Arc;

use hal::context;
use ksync::Once;

use super::cred::Cred;
use super::ids::{self, Id};
use super::process::{self, Process, flag as pflag};
use super::rlimit::Rlimits;
use super::sched::{CpuMask, Entity, Policy};
use super::thread::{self, Thread, comm_from, flag};
use super::{account, current, exit, fork, sched};

/// The process that all kernel threads belong to.
static KERNEL: Once<Arc<Process>> = Once::new();

/// No memory, or no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoThread;

fn bare_process(id: Id) -> Arc<Process> {
    Process::new(process::Birth {
        id,
        ppid: 0,
        maker: 0,
        flags: pflag::KERNEL,
        exit_signal: 0,
        exec_ids: (0, 0),
        signals: fork::fresh_signals(),
        space: None,
        files: None,
        fs: None,
        cred: Arc::new(Cred::root()),
        limits: Rlimits::new(),
        program: Default::default(),
        brk: Default::default(),
        comm: comm_from(b"kernel"),
        personality: 0,
        kin: 0,
        oom_adj: (0, 0),
    })
}

/// The kernel's process.
pub(super) fn kernel_process() -> &'static Arc<Process> {
    KERNEL.get_or_init(|| bare_process(Id::idle()))
}

/// A CPU's idle thread: what runs on it now.
pub(super) fn idle_thread(cpu: usize) -> Arc<Thread> {
    Thread::new(thread::Birth {
        id: Id::idle(),
        process: kernel_process().clone(),
        comm: comm_from(b"idle"),
        cred: kernel_process().cred(),
        blocked: u64::MAX,
        sched: Entity::new(cpu, 19, Policy::Idle, &CpuMask::one(cpu)),
        machine: context::ThreadState::current(),
        flags: flag::KERNEL,
        entry: None,
    })
}

/// Makes a kernel thread that runs `entry` on any CPU, or on one, and ends with it.
pub fn spawn(
    name: &str,
    cpu: Option<usize>,
    nice: i8,
    entry: impl FnOnce() + Send + 'static,
) -> Result<u32, NoThread> {
    let id = Id::alloc().ok_or(NoThread)?;
    let machine = context::ThreadState::new(sched::thread_start, false).map_err(|_| NoThread)?;
    let mask = cpu.map_or(CpuMask::all(), CpuMask::one);
    let t = Thread::new(thread::Birth {
        id,
        process: kernel_process().clone(),
        comm: comm_from(name.as_bytes()),
        cred: kernel_process().cred(),
        blocked: u64::MAX,
        sched: Entity::new(cpu.unwrap_or_else(hal::cpu::id), nice, Policy::Other, &mask),
        machine,
        flags: flag::KERNEL,
        entry: Some(Box::new(entry)),
    });
    let tid = t.tid();
    ids::publish_thread(&t);
    kernel_process().add_thread(&ksync::pin(), &t);
    sched::start(&t);
    Ok(tid)
}

/// What a new thread does first, whatever it is.
pub(super) fn run_entry() -> ! {
    let me = current();
    let entry = me.entry.lock().take();
    match entry {
        Some(entry) => {
            entry();
            exit::exit_thread(0)
        }
        None => context::enter_user_first(&me.machine),
    }
}

/// Process 1, not running yet: it stands in the table, leads a session, and has no memory.
pub(super) fn make_init(
    files: Arc<crate::fs::FdTable>,
    fs: crate::fs::FsUse,
    entry: impl FnOnce() + Send + 'static,
) -> Result<(), NoThread> {
    let id = Id::take_init().ok_or(NoThread)?;
    let p = Process::new(process::Birth {
        id: id.clone(),
        ppid: 0,
        maker: 0,
        flags: pflag::DUMPABLE,
        exit_signal: 0,
        exec_ids: (0, 0),
        signals: fork::fresh_signals(),
        space: None,
        files: Some(files),
        fs: Some(fs),
        cred: Arc::new(Cred {
            payer: account::of_thread(0).map_err(|_| NoThread)?,
            ..Cred::root()
        }),
        limits: Rlimits::new(),
        program: Default::default(),
        brk: Default::default(),
        comm: comm_from(b"init"),
        personality: 0,
        kin: 0,
        oom_adj: (0, 0),
    });
    let machine = context::ThreadState::new(sched::thread_start, true).map_err(|_| NoThread)?;
    let t = Thread::new(thread::Birth {
        id: id.clone(),
        process: p.clone(),
        comm: comm_from(b"init"),
        cred: p.cred(),
        blocked: 0,
        sched: Entity::new(0, 0, Policy::Other, &CpuMask::all()),
        machine,
        flags: 0,
        entry: Some(Box::new(entry)),
    });
    let pin = ksync::pin();
    ids::publish_thread(&t);
    ids::publish_process(&p);
    p.add_thread(&pin, &t);
    if let Some(group) = super::group::Group::create_session(id) {
        group.join(&pin, &p, 0, || Some(0));
    }
    drop(pin);
    sched::start(&t);
    Ok(())
}
