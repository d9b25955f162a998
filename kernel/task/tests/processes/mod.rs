//! The kernel of tests that need what processes add to threads: stand-ins for their signals and their timers.
#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

#[path = "../support/machine.rs"]
mod machine;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

use cred::Cred;
use ksync::{CpuPin, IrqSpin};
use task::ids::{self, Id};
use task::park::{self, Deadline, Interruptible};
use task::sched::{self, CpuMask, Entity, Policy};
use task::thread::{NewThread, comm_from, flag};
use task::timer::{self, TimerNode};
use task::{Thread, current, time};

pub use machine::{MS, compute, ended, nap, spawn, wait_for_ends};
#[cfg(shuttle)]
pub use machine::{Stopped, everywhere, explore, stop_everywhere};
use machine::{kernel_thread_ends, release_dead};

ksync::lock_class!(pub AlarmLock, "test alarm", rank = 100);

/// Timers of processes, which have the pids from 0 on.
pub const ALARMS: usize = if cfg!(shuttle) { 4 } else { 600 };

hal::machine_static! {
    /// Ticks that have found a thread running.
    static TICKS: AtomicUsize = AtomicUsize::new(0);
    /// Nanoseconds that each expiry takes.
    static EXPIRY_NS: AtomicU64 = AtomicU64::new(0);
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
        hal::time::spin_ns(EXPIRY_NS.load(SeqCst));
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

/// Lets each expiry of an alarm take so many nanoseconds.
pub fn expiries_take(ns: u64) {
    EXPIRY_NS.store(ns, SeqCst);
}

/// Expiries of all alarms so far.
pub fn rung() -> usize {
    RUNG.load(SeqCst)
}

static UPCALLS: task::upcalls::Upcalls = task::upcalls::Upcalls {
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

/// Runs `body` in a thread of a machine with so many CPUs.
pub fn on(cpus: usize, body: impl FnOnce() + Send + 'static) {
    machine::on(cpus, move || {
        // A CPU that has not halted yet does not count as idle.
        if cfg!(not(shuttle)) {
            (1..cpus).for_each(|cpu| {
                spawn(Some(cpu), || ());
            });
            wait_for_ends(cpus as u32 - 1);
            machine::forget_ends();
        }
        body();
    });
}

/// Nanoseconds of a microsecond.
pub const US: u64 = 1_000;

/// Ticks that have found a thread running, on all CPUs.
pub fn ticks() -> usize {
    TICKS.load(SeqCst)
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

/// Sleeps until `at`, in nanoseconds.
pub fn nap_until(at: u64) {
    let _ = park::sleep_until(Deadline::At(at), Interruptible::No);
}
