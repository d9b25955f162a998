//! What the machine layer calls, and the order in which the kernel starts.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::cred::Cap;
use super::signal::{self, SigInfo, code, sig};
use super::{Resource, current, futex, ids, kthread, sched, selftest, space, timer};
use crate::arch::{self, BootInfo, TrapFrame, UserFrame};
use crate::kprintln;

/// What became of a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The access can be tried again.
    Resolved,
    /// It cannot; in user mode the thread has a signal pending.
    Unresolved,
}

/// The other CPUs may look at what the boot CPU has set up.
static READY: AtomicBool = AtomicBool::new(false);
/// CPUs in their idle loops.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// The boot CPU's way into the kernel, on its final stack, interrupts off.
pub fn kmain(info: BootInfo) -> ! {
    let ncpus = info.ncpus;
    crate::mm::init(&info);
    let options = crate::boot::options(info.cmdline);
    ids::init(ncpus);
    timer::init(ncpus);
    sched::init(ncpus);
    space::init(ncpus);
    futex::init(ncpus);
    for cpu in 1..ncpus {
        super::epoch().offline(cpu);
    }
    enter_scheduler();
    READY.store(true, Ordering::Release);
    arch::release_cpus();
    let started = kthread::spawn("boot", None, 0, move || boot_thread(info, options));
    assert!(started.is_ok(), "no memory for the first thread");
    sched::idle()
}

/// Another CPU's way into the kernel, on its final stack, interrupts off.
pub fn ap_main(cpu: usize) -> ! {
    while !READY.load(Ordering::Acquire) {
        arch::cpu::relax();
    }
    super::epoch().online(cpu);
    enter_scheduler();
    sched::idle()
}

/// Makes what runs on this CPU its idle thread.
fn enter_scheduler() {
    let pin = ksync::pin();
    arch::heap::use_own_objects(&pin);
    arch::cpu::set_announcer(&pin, super::epoch().announcer(pin.cpu()));
    let idle = kthread::idle_thread(pin.cpu());
    sched::first_switch(&pin, &idle);
    RUNNING.fetch_add(1, Ordering::SeqCst);
}

/// The rest of the start, where sleeping is possible.
fn boot_thread(info: BootInfo, options: crate::boot::Options) {
    while (RUNNING.load(Ordering::SeqCst) as usize) < info.ncpus {
        sched::yield_now();
    }
    kprintln!("{} CPUs run", info.ncpus);
    crate::mm::start_daemons(&options);
    super::watchdog::start(options.watchdog_seconds);
    if options.selftest {
        selftest::run();
    }
    super::start::init_process(&info, &options);
}

/// A system call, with the registers that all calls save; returns what goes to RAX.  Interrupts and preemption are on.
#[inline]
pub fn syscall(frame: &mut UserFrame) -> u64 {
    crate::syscall::dispatch(frame)
}

/// Whether anything is to be done between a system call and user mode.  A quiescent point; interrupts are off.
#[inline]
pub fn work_after_syscall(result: u64) -> bool {
    arch::cpu::quiescent();
    arch::preempt::need_resched() || current().has_work() || signal::may_want_restart(result)
}

/// A system call for which there is such work, with the whole frame at hand.  Interrupts and preemption are on.
pub fn syscall_whole(frame: &mut UserFrame) {
    crate::syscall::dispatch_whole(frame);
}

/// A page fault at `va`: in user mode, or of a user copy with faults allowed.  Interrupts are on.
pub fn page_fault(va: u64, error: u64, from_user: bool) -> Handled {
    match crate::mm::page_fault(va, error) {
        Ok(()) => Handled::Resolved,
        Err(fault) => {
            if from_user {
                signal::deliver_fault(fault);
            }
            Handled::Unresolved
        }
    }
}

/// An exception in user mode.  Interrupts are on.
pub fn user_exception(frame: &mut TrapFrame, vector: u64, _error: u64) {
    let (signo, code) = match vector {
        0 => (sig::FPE, code::FPE_INTDIV),
        1 => (sig::TRAP, code::TRAP_TRACE),
        // A breakpoint instruction tells no address; a segment that is not there and a stack beyond it are bus errors.
        3 => {
            signal::deliver_fault(SigInfo::kernel(sig::TRAP));
            return;
        }
        11 | 12 => {
            signal::deliver_fault(SigInfo::kernel(sig::BUS));
            return;
        }
        6 => (sig::ILL, code::ILL_ILLOPN),
        16 | 19 => (sig::FPE, float_code(arch::fpu::exceptions(vector == 19))),
        17 => (sig::BUS, code::BUS_ADRALN),
        // Bound and general protection faults have no address to tell.
        _ => {
            signal::deliver_fault(SigInfo::kernel(sig::SEGV));
            return;
        }
    };
    signal::deliver_fault(SigInfo::fault(signo, code, frame.rip));
}

/// What SIGFPE tells of floating-point exceptions: the first of them in Linux's order.
fn float_code(exceptions: u32) -> i32 {
    match exceptions {
        e if e & 1 != 0 => code::FPE_FLTINV,
        e if e & 4 != 0 => code::FPE_FLTDIV,
        e if e & 8 != 0 => code::FPE_FLTOVF,
        // An operand that is denormal, too.
        e if e & 0x12 != 0 => code::FPE_FLTUND,
        e if e & 0x20 != 0 => code::FPE_FLTRES,
        _ => 0,
    }
}

/// The timer's interrupt.  Interrupts are off.
pub fn timer_expired(from_user: bool) {
    let _handler = arch::current::Handler::begin();
    sched::timer_interrupt(from_user);
}

/// Another CPU asks for a look at the run queue.  Interrupts are off.
pub fn reschedule_ipi() {
    let _handler = arch::current::Handler::begin();
    sched::reschedule_interrupt();
}

/// The way back to user mode, a quiescent point.  Interrupts are off on entry and on return.
#[inline]
pub fn before_user_return(frame: &mut UserFrame) {
    arch::cpu::quiescent();
    if arch::preempt::need_resched() || current().has_work() || signal::may_want_restart(frame.rax)
    {
        signal::before_user_return(frame);
    }
}

/// Preemption is possible and wanted.  Interrupts may be on or off, and stay so.
pub fn preempt_check() {
    sched::preempt_check();
}

/// A byte from the console.  Interrupts are off.
pub fn serial_input(byte: u8) {
    let _handler = arch::current::Handler::begin();
    super::serial::received(byte);
}

/// Sleeps until the calling thread is given the token of `ksync`'s locks.
pub fn park() {
    current().park_for_token();
}

/// Gives a thread that token.
pub fn unpark(tid: u32) {
    let pin = ksync::pin();
    if let Some(t) = ids::thread(&pin, tid) {
        t.give_token();
        sched::wake(&pin, t);
    }
}

/// The calling thread begins to sleep for one of `ksync`'s locks, at `ticks`, or has it: 0.
pub fn sleeps_for_lock(ticks: u64) {
    super::watchdog::sleeps_for_lock(ticks);
}

/// The calling thread was unparked, and still waits since `ticks` for the lock `name`, which thread `holder` has.
pub fn still_waits(name: &'static str, holder: u32, ticks: u64) {
    super::watchdog::still_waits(name, holder, ticks);
}

/// This CPU has retired much memory.
pub fn reclaim_soon() {
    sched::reclaim_soon();
}

/// Lets others run for a while, in a loop that waits for a grace period.
pub fn doze() {
    if arch::current::try_current().is_some() && arch::preempt::count() == 0 {
        let soon = super::park::Deadline::after(sched::TICK_NS / 4);
        let _ = super::park::sleep_until(soon, super::park::Interruptible::No);
    } else {
        arch::cpu::relax();
    }
}

/// Whether the running thread is to die.
pub fn must_stop() -> bool {
    arch::current::try_current().is_some_and(|me| me.kill_pending())
}

/// Whether the limits of the running thread's process, as they are now, let a stack grow so. The kernel's own threads have
/// none.
pub fn may_grow(to: &vm::Growth) -> bool {
    let Some(me) = arch::current::try_current().filter(|me| !me.is_kernel()) else {
        return true;
    };
    let within = |bytes, limit| bytes <= me.process().rlimit(limit);
    within(to.stack, Resource::Stack)
        && within(to.space, Resource::As)
        && to.locked.is_none_or(|locked| {
            within(locked, Resource::Memlock) || me.cred().capable(Cap::IpcLock)
        })
}
