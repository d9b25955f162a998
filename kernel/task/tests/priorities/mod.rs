//! Threads with real-time priorities, as tests use them.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use ksync::CpuPin;
use task::sched::{self, Policy, Setting};
use task::{Thread, ids};

use crate::processes::{MS, compute, nap, spawn};

pub const fn setting(policy: Policy, priority: u8) -> Setting {
    Setting {
        policy,
        priority,
        reset_on_fork: false,
    }
}

pub const fn fifo(priority: u8) -> Setting {
    setting(Policy::Fifo, priority)
}

pub const fn round_robin(priority: u8) -> Setting {
    setting(Policy::RoundRobin, priority)
}

pub const OTHER: Setting = Setting::ordinary(Policy::Other);

/// Runs `act` on a thread that has not ended.
pub fn with<R>(tid: u32, act: impl FnOnce(&CpuPin, &Thread) -> R) -> R {
    let pin = ksync::pin();
    act(&pin, ids::thread(&pin, tid).expect("it has not ended"))
}

pub fn give(tid: u32, new: Setting) {
    with(tid, |_, t| t.set_setting(new));
}

pub fn lend(tid: u32, priority: u8) {
    with(tid, |pin, t| sched::lend_priority(pin, t, priority));
}

/// Starts a thread that does `body` with that setting, on CPU `cpu`.
pub fn start(cpu: usize, new: Setting, body: impl FnOnce() + Send + 'static) -> u32 {
    let pin = ksync::pin();
    let tid = spawn(Some(cpu), body);
    ids::thread(&pin, tid).expect("it is new").set_setting(new);
    tid
}

/// A thread that computes on one CPU until it is let go.
pub struct Spinner {
    pub tid: u32,
    over: Arc<AtomicBool>,
}

impl Spinner {
    pub fn new(cpu: usize, new: Setting) -> Self {
        let [over, begun] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (until, begins) = (over.clone(), begun.clone());
        let tid = start(cpu, new, move || {
            begins.store(true, SeqCst);
            while !until.load(SeqCst) {
                compute(MS / 100);
            }
        });
        while !begun.load(SeqCst) {
            nap(1);
        }
        Spinner { tid, over }
    }

    pub fn lets_go(self) {
        self.over.store(true, SeqCst);
    }
}
