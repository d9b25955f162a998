//! The first processes: the kernel's, to which kernel threads belong, and process 1, init.

use alloc::boxed::Box;
use alloc::sync::Arc;

use cred::Cred;
use hal::context;
use ksync::Once;
use task::account;
use task::kthread::NoThread;
use task::sched::{self, CpuMask, Entity, Policy};
use task::thread::{NewThread, Thread, comm_from};

use super::ids::{self, Id};
use super::process::{self, Process, flag as pflag};
use super::rlimit::Rlimits;
use super::signal::{ActionTable, Shared};
use super::user_thread::{MemoryPolicy, UserThread};

hal::machine_static! {
    /// The process that all kernel threads belong to.
    static KERNEL: Once<Arc<Process>> = Once::new();
}

/// Default signal actions, for a process that is not forked.
fn fresh_signals() -> Shared {
    Shared::new(Arc::new(ActionTable::new()))
}

/// A process of the kernel, which is in no table or group.
fn bare_process(id: Id) -> Arc<Process> {
    Process::new(process::NewProcess {
        id,
        ppid: 0,
        maker: 0,
        flags: pflag::KERNEL,
        exit_signal: 0,
        exec_ids: (0, 0),
        signals: fresh_signals(),
        space: None,
        files: None,
        fs: None,
        cred: Arc::new(Cred::root()),
        limits: Rlimits::new(),
        program: Default::default(),
        brk: Default::default(),
        comm: comm_from(b"kernel"),
        personality: 0,
        exec_group: 0,
        oom_adj: (0, 0),
    })
}

/// The process that all kernel threads belong to.
pub(super) fn kernel_process() -> &'static Arc<Process> {
    KERNEL.get_or_init(|| bare_process(Id::idle()))
}
/// Makes process 1 and starts its thread, which runs `entry`. The process is in the table, leads a session, and has no
/// memory.
///
/// # Errors
/// No memory, or id 1 is in use; nothing has been made.
pub fn make_init(
    files: Arc<vfs::FdTable>,
    fs: vfs::FsUse,
    entry: impl FnOnce() + Send + 'static,
) -> Result<(), NoThread> {
    let id = Id::take_init().ok_or(NoThread)?;
    let p = Process::new(process::NewProcess {
        id: id.clone(),
        ppid: 0,
        maker: 0,
        flags: pflag::DUMPABLE,
        exit_signal: 0,
        exec_ids: (0, 0),
        signals: fresh_signals(),
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
        exec_group: 0,
        oom_adj: (0, 0),
    });
    let machine = context::ThreadState::new(sched::thread_start, true).map_err(|_| NoThread)?;
    let t = Thread::new(NewThread {
        id: id.clone(),
        upper: UserThread::for_new(p.clone(), 0, MemoryPolicy::default(), None),
        comm: comm_from(b"init"),
        cred: p.cred(),
        sched: Entity::new(0, 0, Policy::Other, &CpuMask::all()),
        machine,
        flags: 0,
        entry: Some(Box::new(entry)),
    });
    let pin = ksync::pin();
    task::ids::publish(&t);
    ids::publish_process(&p);
    p.add_thread(&pin, &t);
    if let Some(group) = super::group::Group::create_session(id) {
        group.join(&pin, &p, 0, || Some(0));
    }
    drop(pin);
    sched::start(&t);
    Ok(())
}
