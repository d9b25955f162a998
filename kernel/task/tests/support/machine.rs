//! What the kernels of these tests share: threads on each CPU, and the calls of the tests. The module above says in `UPCALLS` what
//! processes would add.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use hal::upcalls::{Handled, Upcalls};
use hal::{BootInfo, UserFault, UserFrame};
use ksync::CpuPin;
use task::park::{self, Deadline, Interruptible};
use task::{Thread, current, ids, kthread, sched, time};

hal::machine_static! {
    /// Threads that have ended.
    static ENDED: AtomicU32 = AtomicU32::new(0);
}

/// An ended thread gives up its id.
pub fn release_dead(_pin: &CpuPin, thread: &Thread) {
    ids::withdraw(thread);
    ENDED.fetch_add(1, SeqCst);
}

/// The end of a thread.
pub fn kernel_thread_ends() -> ! {
    current().state.declare_dead();
    sched::switch_away(sched::Reason::Exit);
    unreachable!("a thread that has ended runs")
}

struct Kernel;

impl Upcalls for Kernel {
    fn kmain(info: BootInfo) -> ! {
        mem::init(&info);
        task::upcalls::set(&super::UPCALLS);
        task::init(info.ncpus);
        kthread::become_idle(&ksync::pin());
        hal::release_cpus();
        kthread::spawn("test", None, 0, hal::sim::run_body).expect("memory for a thread");
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

    fn page_fault(_: u64, _: u64, _: bool) -> Handled {
        Handled::Unresolved
    }

    fn fault_in(_: u64, _: bool) -> Result<(), UserFault> {
        Err(UserFault)
    }

    fn before_user_return(_: &mut UserFrame) {}
}

hal::upcalls!(Kernel);

/// Runs `body` in a thread of a machine with so many CPUs.
pub fn on(cpus: usize, body: impl FnOnce() + Send + 'static) {
    hal::sim::run(hal::sim::Config::small(cpus), body);
}

/// Nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;

/// Threads that have ended.
pub fn ended() -> u32 {
    ENDED.load(SeqCst)
}

/// Sleeps until `n` threads have ended, which takes less than two minutes: a thread that sleeps beside a lost wake-up fails the
/// test.
pub fn wait_for_ends(n: u32) {
    let begun = time::monotonic_ns();
    while ended() < n {
        let waits = time::monotonic_ns() - begun;
        assert!(waits < 120 * time::SECOND, "a thread does not end");
        nap(1);
    }
}

/// Counts ends from here on.
pub fn forget_ends() {
    ENDED.store(0, SeqCst);
}

/// Starts a thread, on CPU `cpu` or on any one. Returns its tid.
pub fn spawn(cpu: Option<usize>, body: impl FnOnce() + Send + 'static) -> u32 {
    kthread::spawn("worker", cpu, 0, body).expect("memory for a thread")
}

/// Sleeps so many milliseconds.
pub fn nap(ms: u64) {
    let _ = park::sleep_until(Deadline::after(ms * MS), Interruptible::No);
}

/// Computes for so many nanoseconds.
pub fn compute(ns: u64) {
    let mut left = ns;
    while left > 0 {
        let step = left.min((ns / 50).max(MS / 100));
        hal::time::spin_ns(step);
        left -= step;
    }
}

/// Runs `test` under many schedules of the model checker, as many as `PANTALA_SCHEDULES` says: one half at random, the other
/// with one thread ahead of the rest but for a few switches.
#[cfg(shuttle)]
pub fn explore(test: impl Fn() + Send + Sync + 'static) {
    vm_host::random_schedules::explore(test, vm_host::random_schedules::asked(100) / 2);
}

/// The thread that a schedule stops: its number among the model checker's, after the test and the two CPUs' first threads.
#[cfg(shuttle)]
#[derive(Clone, Copy, Debug)]
pub enum Stopped {
    /// The idle thread of CPU 1.
    Idle = 2,
    /// The thread that runs the body of the test.
    Body = 3,
    /// The first thread that the body starts.
    Other = 4,
    /// The second one.
    Third = 5,
}

/// Runs `test`, on a machine of two CPUs, under each schedule in which that thread is stopped once, while the others run as far
/// as they can.
#[cfg(shuttle)]
pub fn stop_everywhere(stopped: Stopped, test: impl Fn() + Send + Sync + 'static) {
    vm_host::one_stop::everywhere(stopped as usize, test);
}

/// Runs `test` under random schedules, and under those in which one of its two first threads is stopped once.
#[cfg(shuttle)]
pub fn everywhere(test: impl Fn() + Send + Sync + Copy + 'static) {
    explore(test);
    stop_everywhere(Stopped::Body, test);
    stop_everywhere(Stopped::Other, test);
}
