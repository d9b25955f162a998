//! The kernel of tests that need what processes add to threads: stand-ins for their signals and their timers.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};

use cred::Cred;
use hal::upcalls::{Handled, Upcalls};
use hal::{BootInfo, UserFault, UserFrame};
use ksync::{CpuPin, IrqSpin};
use task::ids::{self, Id};
use task::park::{self, Deadline, Interruptible};
use task::sched::{self, CpuMask, Entity, Policy};
use task::thread::{NewThread, comm_from, flag};
use task::timer::{self, TimerNode};
use task::{Thread, current, kthread, time};

ksync::lock_class!(pub AlarmLock, "test alarm", rank = 100);

/// Timers of processes, which have the pids from 0 on.
pub const ALARMS: usize = if cfg!(shuttle) { 4 } else { 600 };

hal::machine_static! {
    /// Threads that have ended.
    static ENDED: AtomicU32 = AtomicU32::new(0);
    /// Ticks that have found a thread running.
    static TICKS: AtomicUsize = AtomicUsize::new(0);
    /// Expiries of all alarms.
    static RUNG: AtomicUsize = AtomicUsize::new(0);
    static ALL: Box<[Alarm]> = (0..ALARMS).map(|_| Alarm::default()).collect();
}

hal::upper_type! {
    /// What a process would keep for a thread: whether a signal is pending.
    static SIGNAL: AtomicBool
}

/// One expiry of an alarm: when it was due and when it came, in nanoseconds, and the CPU.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    pub due: u64,
    pub at: u64,
    pub cpu: usize,
}

/// The state of an alarm.
#[derive(Default)]
pub struct Setting {
    /// When it is due, if it is set.
    pub due: Option<u64>,
    pub rings: Vec<Ring>,
    /// Expiries that found the alarm off or set anew.
    pub stale: u32,
}

/// The timer of a process, as an interval timer uses it: one lock orders its settings and its expiry.
#[derive(Default)]
pub struct Alarm {
    node: TimerNode,
    setting: IrqSpin<Setting, AlarmLock>,
}

/// The alarm of process `pid`.
pub fn alarm(pid: u32) -> &'static Alarm {
    let all: &'static [Alarm] = &ALL;
    &all[pid as usize]
}

impl Alarm {
    /// Sets the alarm of process `pid` to `due`, or turns it off. Returns whether it was set.
    pub fn set(&self, pid: u32, due: Option<u64>) -> bool {
        let mut setting = self.setting.lock();
        timer::cancel_process(pid, &self.node);
        if let Some(at) = due {
            timer::arm_process(pid, &self.node, at);
        }
        let was = setting.due;
        setting.due = due;
        was.is_some()
    }

    /// As an interval timer without a lock would do it.
    pub fn set_without_lock(&self, pid: u32, due: u64) {
        timer::cancel_process(pid, &self.node);
        timer::arm_process(pid, &self.node, due);
        self.setting.lock().due = Some(due);
    }

    /// The node on the wheel.
    pub fn node(&self) -> &TimerNode {
        &self.node
    }

    /// Looks at the setting.
    pub fn look<R>(&self, f: impl FnOnce(&Setting) -> R) -> R {
        f(&self.setting.lock())
    }

    /// The expiries so far.
    pub fn rings(&self) -> Vec<Ring> {
        self.look(|setting| setting.rings.clone())
    }

    fn expired(&self, pin: &CpuPin) {
        let mut setting = self.setting.lock();
        match setting.due {
            Some(due) if !self.node.armed() => {
                setting.due = None;
                RUNG.fetch_add(1, SeqCst);
                setting.rings.push(Ring {
                    due,
                    at: time::monotonic_ns(),
                    cpu: pin.cpu(),
                });
            }
            _ => setting.stale += 1,
        }
    }
}

/// Expiries of all alarms so far.
pub fn rung() -> usize {
    RUNG.load(SeqCst)
}

static PROCESSES: task::upcalls::Upcalls = task::upcalls::Upcalls {
    signal_pending: |t| t.kill_pending() || SIGNAL.get(t.upper()).load(SeqCst),
    cpu_tick: |_| {
        TICKS.fetch_add(1, SeqCst);
    },
    process_timer: alarm_node,
    process_timer_expired: |pin, pid| alarm(pid).expired(pin),
    enter_space: |_| (),
    release_dead,
    kernel_thread_ends,
    kernel_part: || SIGNAL.wrap(Box::new(AtomicBool::new(false))),
    kernel_thread_made: |_, _| (),
};

fn alarm_node(_pin: &CpuPin, pid: u32) -> Option<&TimerNode> {
    Some(alarm(pid).node())
}

fn release_dead(_pin: &CpuPin, thread: &Thread) {
    ids::withdraw(thread);
    ENDED.fetch_add(1, SeqCst);
}

fn kernel_thread_ends() -> ! {
    current().state.declare_dead();
    sched::switch_away(sched::Reason::Exit);
    unreachable!("a thread that has ended runs")
}

struct Kernel;

impl Upcalls for Kernel {
    fn kmain(info: BootInfo) -> ! {
        mem::init(&info);
        task::upcalls::set(&PROCESSES);
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
    let config = hal::sim::Config { cpus, frames: 2048 };
    hal::sim::run(config, move || {
        // A CPU that has not started yet counts as one that halts.
        if cfg!(not(shuttle)) {
            (1..cpus).for_each(|cpu| {
                spawn(Some(cpu), || ());
            });
            wait_for_ends(cpus as u32 - 1);
            ENDED.store(0, SeqCst);
        }
        body();
    });
}

/// Nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;

/// Nanoseconds of a microsecond.
pub const US: u64 = 1_000;

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

/// Ticks that have found a thread running, on all CPUs.
pub fn ticks() -> usize {
    TICKS.load(SeqCst)
}

/// Starts a thread, on CPU `cpu` or on any one. Returns its tid.
pub fn spawn(cpu: Option<usize>, body: impl FnOnce() + Send + 'static) -> u32 {
    kthread::spawn("worker", cpu, 0, body).expect("memory for a thread")
}

/// A thread with the id `id`, which may have been that of a thread before. It does not run yet.
pub fn make(id: &Id, body: impl FnOnce() + Send + 'static) -> Arc<Thread> {
    let sched = Entity::new(hal::cpu::id(), 0, Policy::Other, &CpuMask::all());
    let machine = hal::context::ThreadState::new(sched::thread_start, false);
    let thread = Thread::new(NewThread {
        id: id.clone(),
        upper: SIGNAL.wrap(Box::new(AtomicBool::new(false))),
        comm: comm_from(b"worker"),
        cred: Arc::new(Cred::root()),
        sched,
        machine: machine.expect("memory for a thread"),
        flags: flag::KERNEL,
        entry: Some(Box::new(body)),
    });
    ids::publish(&thread);
    thread
}

/// Starts a thread with the id `id`.
pub fn spawn_as(id: &Id, body: impl FnOnce() + Send + 'static) {
    sched::start(&make(id, body));
}

/// Sends the thread a signal that it neither blocks nor ignores.
pub fn interrupt(tid: u32) {
    notify(tid, |t| SIGNAL.get(t.upper()).store(true, SeqCst));
}

/// The calling thread takes its signal.
pub fn take_signal() {
    SIGNAL.get(current().upper()).store(false, SeqCst);
}

/// Kills the thread.
pub fn kill(tid: u32) {
    notify(tid, |t| t.set(flag::KILLED));
}

fn notify(tid: u32, what: impl FnOnce(&Thread)) {
    let pin = ksync::pin();
    if let Some(thread) = ids::thread(&pin, tid) {
        what(thread);
        sched::wake(&pin, thread);
    }
}

/// Sleeps so many milliseconds.
pub fn nap(ms: u64) {
    let _ = park::sleep_until(Deadline::after(ms * MS), Interruptible::No);
}

/// Sleeps until `at`, in nanoseconds.
pub fn nap_until(at: u64) {
    let _ = park::sleep_until(Deadline::At(at), Interruptible::No);
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

/// A small generator of pseudo-random numbers (xorshift). Its state is not 0.
pub struct Random(pub u64);

impl Random {
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % n
    }

    /// A number below `n`.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// A number below a power of two, whose exponent is a random one of `bits`: small numbers as often as large ones.
    pub fn scaled(&mut self, bits: core::ops::Range<u64>) -> u64 {
        let exponent = bits.start + self.below(bits.end - bits.start);
        self.below(1 << exponent)
    }

    /// Whether one of `n` equal chances comes.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Runs `test` under many schedules of the model checker, as many as `PANTALA_SCHEDULES` says: one half at random, the other
/// with one thread ahead of the rest but for a few switches.
#[cfg(shuttle)]
pub fn explore(test: impl Fn() + Send + Sync + 'static) {
    const SWITCHES: usize = 3;
    let said = std::env::var("PANTALA_SCHEDULES").ok();
    let half = said.and_then(|n| n.parse().ok()).unwrap_or(100usize) / 2;
    let test = Arc::new(test);
    let again = test.clone();
    shuttle::check_random(move || test(), half);
    shuttle::check_pct(move || again(), half, SWITCHES);
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
