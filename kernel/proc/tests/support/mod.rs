//! The kernel of these tests: processes, whose programs are functions of the test. They have no memory of their own.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use abi::raw::general as raw;
use hal::sim::{Config, program};
use hal::upcalls::{Handled, Upcalls};
use hal::{BootInfo, UserFault, UserFrame};
use proc::fork::{CloneArgs, ForkError};
use proc::signal::{self, SigInfo, code, sig};
use proc::wait4::{self, Children, Event, Options, WaitError};
use proc::{Process, UserThreadExt, exit, fault, first, fork, ids, with_space};
use task::current::current;
use task::park::{self, Deadline, Interruptible};
use task::{kthread, sched};
use vfs::FdTable;
use vfs::context::{self, FsContext};
use vfs::superblock::FsKind;
use vfs::tmpfs::{self, Settings};
use vm::space::Advice;

static ABOVE_PROCESSES: proc::upcalls::Upcalls = proc::upcalls::Upcalls {
    init_exited: |_, status| panic!("init has ended with status {status:#x}"),
};

hal::machine_static! {
    /// A page that has been faulted in before an access is gone again when that comes, as where another thread takes it away each time.
    pub static PAGES_GO: AtomicBool = AtomicBool::new(false);
}

struct Kernel;

impl Upcalls for Kernel {
    fn kmain(info: BootInfo) -> ! {
        mem::init(&info);
        proc::init(info.ncpus, &ABOVE_PROCESSES);
        task::init(info.ncpus);
        kthread::become_idle(&ksync::pin());
        hal::release_cpus();
        kthread::spawn("boot", None, 0, start_init).expect("memory for a thread");
        sched::idle()
    }

    fn ap_main(cpu: usize) -> ! {
        mem::epoch().online(cpu);
        kthread::become_idle(&ksync::pin());
        sched::idle()
    }

    fn timer_expired(from_user: bool) {
        sched::timer_interrupt(from_user);
    }

    fn reschedule_ipi() {
        sched::reschedule_interrupt();
    }

    fn preempt_check() {
        sched::preempt_check();
    }

    fn before_user_return(frame: &mut UserFrame) {
        signal::before_user_return(frame);
    }

    fn page_fault(va: u64, error: u64, _from_user: bool) -> Handled {
        match fault::page_fault(va, error) {
            Ok(()) => Handled::Resolved,
            Err(_) => Handled::Unresolved,
        }
    }

    fn fault_in(va: u64, write: bool) -> Result<(), UserFault> {
        fault::fault_in(va, write)?;
        if PAGES_GO.load(SeqCst) {
            let taken = |space: &Arc<mem::Space>| {
                space.advise(mem::vm(), va & !0xfff, 0x1000, Advice::DontNeed)
            };
            assert!(with_space(taken).is_some_and(|done| done.is_ok()));
        }
        Ok(())
    }
}

hal::upcalls!(Kernel);

/// Makes process 1, which runs the body of the test, with an empty root file system.
fn start_init() {
    let cpus = hal::cpu::count();
    drivers::random::init(cpus);
    vfs::init(cpus);
    let root = tmpfs::new_super(FsKind::Tmpfs, Settings::new(0o755));
    let mounted = root.and_then(context::mount_root);
    assert!(mounted.is_ok(), "memory for a root");
    let made = first::make_init(FdTable::new(), FsContext::boot(), || {
        hal::sim::run_body();
        loop {
            let _ = park::sleep_until(Deadline::Never, Interruptible::No);
        }
    });
    assert!(made.is_ok(), "memory for init");
}

/// Runs `body` as the program of process 1 on a machine with so many CPUs.
pub fn on(cpus: usize, body: impl FnOnce() + Send + 'static) {
    hal::sim::run(Config::small(cpus), body);
}

/// The caller returns to user mode and comes back: signals are taken, and a thread that is killed ends here.
pub fn user_mode() {
    let mut frame = UserFrame::default();
    hal::irq::disable();
    signal::before_user_return(&mut frame);
    hal::irq::enable();
}

/// clone(2): the child begins with this stack, runs `body` and exits with the status that it returns.
pub fn clone_with(
    args: &CloneArgs,
    stack: u64,
    body: impl Fn() -> u8 + Send + Sync + 'static,
) -> Result<u32, ForkError> {
    let at = program::add(move |_| {
        let status = body();
        user_mode();
        exit::exit_group(u32::from(status))
    });
    fork::clone(args, &UserFrame::new_user(at, stack), None)
}

/// Where a thread begins that runs `body` and exits by itself with the code that it returns.
pub fn thread_entry(body: impl Fn() -> u32 + Send + Sync + 'static) -> u64 {
    program::add(move |_| {
        let code = body();
        user_mode();
        exit::exit_thread(code)
    })
}

/// clone(2)'s flags for a thread of the caller's process.
pub const THREAD: u64 =
    (raw::CLONE_VM | raw::CLONE_FS | raw::CLONE_FILES | raw::CLONE_SIGHAND | raw::CLONE_THREAD)
        as u64;

/// clone(2) with these flags: the child runs `body` and exits with the status that it returns.
pub fn clone(flags: u64, body: impl Fn() -> u8 + Send + Sync + 'static) -> Result<u32, ForkError> {
    let args = CloneArgs {
        flags,
        exit_signal: sig::CHLD,
        ..CloneArgs::default()
    };
    clone_with(&args, 0, body)
}

/// fork(2), as [`clone`].
pub fn fork(body: impl Fn() -> u8 + Send + Sync + 'static) -> u32 {
    clone(0, body).expect("memory for a process")
}

/// wait4(2) for `children`. Returns the pid and the status.
pub fn wait(children: Children) -> Result<(u32, u32), WaitError> {
    let options = Options {
        exited: true,
        ..Options::default()
    };
    let report = wait4::wait(children, options)?.expect("the call waits");
    match report.event {
        Event::Exited(status) => Ok((report.pid, status)),
        other => panic!("{other:?}"),
    }
}

/// wait4(2) for any child with WNOHANG.
pub fn poll() -> Result<Option<u32>, WaitError> {
    let options = Options {
        exited: true,
        no_hang: true,
        ..Options::default()
    };
    Ok(wait4::wait(Children::Any, options)?.map(|report| report.pid))
}

/// kill(2) by root.
pub fn kill(pid: u32, signo: u8) -> bool {
    let Some(process) = ids::find_process(pid) else {
        return false;
    };
    signal::send_process(&process, SigInfo::user(signo, code::USER, 1, 0));
    true
}

/// The calling process.
pub fn me() -> Arc<Process> {
    current().process().clone()
}

/// Sleeps so many milliseconds; a kill ends it.
pub fn nap(ms: u64) {
    let _ = park::sleep_until(Deadline::after(ms * 1_000_000), Interruptible::Kill);
}

/// The wait4 status of a process that has exited with `status`.
pub fn exited(status: u8) -> u32 {
    u32::from(status) << 8
}
