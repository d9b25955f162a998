//! The upcalls of `hal`, the machine layer, and of `proc`; and the order in which the kernel starts.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cred::Cap;
use hal::current::Handler;
use hal::upcalls::{Handled, Upcalls};
use hal::{BootInfo, TrapFrame, UserFault, UserFrame, kprintln};
use proc::signal::{self, SigInfo, code, sig};
use proc::{Resource, SignalExt, UserThreadExt, daemons, fault};
use task::current::{current, try_current};
use task::{kthread, sched};
use vm::{SharedSuperpages, Superpages};

use crate::{leak, selftest, shutdown};

/// Whether the boot CPU has set up what the other CPUs need.
static READY: AtomicBool = AtomicBool::new(false);
/// Number of CPUs that have entered the scheduler.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// The upcalls of `proc`.
static ABOVE_PROCESSES: proc::upcalls::Upcalls = proc::upcalls::Upcalls {
    init_exited: shutdown::init_exited,
};

/// The upcalls of `hal`.
struct Kernel;

impl Upcalls for Kernel {
    fn kmain(info: BootInfo) -> ! {
        let ncpus = info.ncpus;
        mem::init(&info);
        proc::init(ncpus, &ABOVE_PROCESSES);
        let options = crate::boot::options(info.cmdline);
        task::init(ncpus);
        for cpu in 1..ncpus {
            mem::epoch().offline(cpu);
        }
        enter_scheduler();
        READY.store(true, Ordering::Release);
        hal::release_cpus();
        let started = kthread::spawn("boot", None, 0, move || boot_thread(info, options));
        assert!(started.is_ok(), "no memory for the first thread");
        sched::idle()
    }

    fn ap_main(cpu: usize) -> ! {
        while !READY.load(Ordering::Acquire) {
            hal::cpu::relax();
        }
        mem::epoch().online(cpu);
        enter_scheduler();
        sched::idle()
    }

    #[inline]
    fn syscall(frame: &mut UserFrame) -> u64 {
        syscall::dispatch(frame)
    }

    #[inline]
    fn work_after_syscall(result: u64) -> bool {
        hal::cpu::quiescent();
        hal::preempt::need_resched() || current().has_work() || signal::may_want_restart(result)
    }

    fn syscall_full_frame(frame: &mut UserFrame) {
        syscall::dispatch_full_frame(frame);
    }

    fn page_fault(va: u64, error: u64, from_user: bool) -> Handled {
        match fault::page_fault(va, error) {
            Ok(()) => Handled::Resolved,
            Err(fault) => {
                if from_user {
                    signal::deliver_fault(fault);
                }
                Handled::Unresolved
            }
        }
    }

    fn fault_in(va: u64, write: bool) -> Result<(), UserFault> {
        fault::fault_in(va, write)
    }

    fn user_exception(frame: &mut TrapFrame, vector: u64, _error: u64) {
        let (signo, code) = match vector {
            0 => (sig::FPE, code::FPE_INTDIV),
            1 => (sig::TRAP, code::TRAP_TRACE),
            // SIGTRAP of a breakpoint carries no address. A segment that is not present (11) and a stack-segment
            // fault (12) are bus errors without address.
            3 => {
                signal::deliver_fault(SigInfo::kernel(sig::TRAP));
                return;
            }
            11 | 12 => {
                signal::deliver_fault(SigInfo::kernel(sig::BUS));
                return;
            }
            6 => (sig::ILL, code::ILL_ILLOPN),
            16 | 19 => (sig::FPE, float_code(hal::fpu::exceptions(vector == 19))),
            17 => (sig::BUS, code::BUS_ADRALN),
            // Bound-range (5) and general protection faults (13) have no address.
            _ => {
                signal::deliver_fault(SigInfo::kernel(sig::SEGV));
                return;
            }
        };
        signal::deliver_fault(SigInfo::fault(signo, code, frame.rip));
    }

    fn timer_expired(from_user: bool) {
        sched::timer_interrupt(from_user);
    }

    fn reschedule_ipi() {
        sched::reschedule_interrupt();
    }

    #[inline]
    fn before_user_return(frame: &mut UserFrame) {
        hal::cpu::quiescent();
        if hal::preempt::need_resched()
            || current().has_work()
            || signal::may_want_restart(frame.rax)
        {
            signal::before_user_return(frame);
        }
    }

    fn preempt_check() {
        sched::preempt_check();
    }

    fn serial_input(byte: u8) {
        let _handler = Handler::begin();
        drivers::serial::received(byte);
    }

    fn must_stop() -> bool {
        try_current().is_some_and(|me| me.kill_pending())
    }

    // Kernel threads have no limits.
    fn may_grow(to: &vm::Growth) -> bool {
        let Some(me) = try_current().filter(|me| !me.is_kernel()) else {
            return true;
        };
        let within = |bytes, limit| bytes <= me.process().rlimit(limit);
        within(to.stack, Resource::Stack)
            && within(to.space, Resource::As)
            && to.locked.is_none_or(|locked| {
                within(locked, Resource::Memlock) || me.cred().capable(Cap::IpcLock)
            })
    }
}

hal::upcalls!(Kernel);

/// Makes the code that runs on this CPU the CPU's idle thread.
fn enter_scheduler() {
    let pin = ksync::pin();
    mem::heap::use_own_objects(&pin);
    hal::cpu::set_announcer(&pin, mem::epoch().announcer(pin.cpu()));
    kthread::become_idle(&pin);
    RUNNING.fetch_add(1, Ordering::SeqCst);
}

/// The rest of the start, in a thread, which may sleep.
fn boot_thread(info: BootInfo, options: crate::boot::Options) {
    while (RUNNING.load(Ordering::SeqCst) as usize) < info.ncpus {
        sched::yield_now();
    }
    kprintln!("{} CPUs run", info.ncpus);
    leak::enable(options.leakcheck);
    // By default only programs that ask pay the memory that superpages may take.
    mem::vm().set_superpages(options.superpages.unwrap_or(Superpages::Advised));
    let shared = options.shmem_superpages;
    mem::vm().set_shmem_superpages(shared.unwrap_or(SharedSuperpages::Advised));
    #[cfg(any(feature = "pv-obm", feature = "pv-stock"))]
    mem::vm().rmap.limit_chunks(options.pv_chunks);
    daemons::start(options.vmchaos);
    task::watchdog::start(options.watchdog_seconds);
    if options.selftest {
        selftest::run();
    }
    super::start::init_process(&info, &options);
}

/// The code of SIGFPE for floating-point exceptions: that of the first one in Linux's order.
fn float_code(exceptions: u32) -> i32 {
    match exceptions {
        e if e & 1 != 0 => code::FPE_FLTINV,
        e if e & 4 != 0 => code::FPE_FLTDIV,
        e if e & 8 != 0 => code::FPE_FLTOVF,
        // As on Linux, a denormal operand counts as underflow.
        e if e & 0x12 != 0 => code::FPE_FLTUND,
        e if e & 0x20 != 0 => code::FPE_FLTRES,
        _ => 0,
    }
}
