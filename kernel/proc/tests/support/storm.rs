//! Storms: threads and processes that do random things at once, as programs that return to user mode in between.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use proc::signal::{self, Action};
use vm_host::random::Random;

use crate::signals::{join_all, run_child, thread};
use crate::support::{me, on, user_mode};

/// The CPUs of a storm's machine.
pub const CPUS: usize = 4;
/// The simulated time of a turn besides its calls, in nanoseconds.
const TURN_NS: u64 = 2000;
/// The first of the signals whose actions change; they are not sent.
const CHANGING: u8 = 44;
/// How many of these there are.
const CHANGED: usize = 20;

/// Runs `body` as a child of init on a machine with the CPUs of a storm.
pub fn on_all(body: impl Fn() + Send + Sync + 'static) {
    on(CPUS, move || run_child(body));
}

/// A place where threads wait until so many have come.
#[derive(Clone)]
pub struct Meeting {
    come: Arc<AtomicU32>,
    expected: u32,
}

impl Meeting {
    /// Nobody has come yet.
    pub fn of(expected: usize) -> Self {
        Meeting {
            come: Arc::default(),
            expected: expected as u32,
        }
    }

    /// Comes, and waits for the others; not asleep, so that all go on at the same time.
    pub fn join(&self) {
        self.come.fetch_add(1, SeqCst);
        pass_time_until(|| self.come.load(SeqCst) >= self.expected);
    }
}

/// The random numbers of part `n` of a storm.
fn numbers(n: u64) -> Random {
    Random((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
}

/// Runs `act` in so many new threads of the calling process, which begin at the same time, and waits for their ends. `act`
/// gets the number of its thread, and random numbers of its own.
pub fn storm(threads: usize, act: impl Fn(usize, &mut Random) + Send + Sync + 'static) {
    let act = Arc::new(act);
    let start = Meeting::of(threads);
    for n in 0..threads {
        let (act, start) = (act.clone(), start.clone());
        thread(move || {
            start.join();
            act(n, &mut numbers(n as u64));
        });
    }
    join_all();
}

/// A storm each of whose parts, threads of any processes, goes on until all have done enough.
pub struct Storm {
    start: Meeting,
    finished: AtomicU32,
}

impl Storm {
    /// A storm of so many parts.
    pub fn of(parts: usize) -> Arc<Storm> {
        Arc::new(Storm {
            start: Meeting::of(parts),
            finished: AtomicU32::new(0),
        })
    }

    /// Whether all parts have taken enough turns.
    pub fn is_over(&self) -> bool {
        self.finished.load(SeqCst) >= self.start.expected
    }

    /// Part `n`, in the calling thread: begins when all others do, and takes at least so many turns.
    pub fn part(&self, n: u64, turns: u32, mut turn: impl FnMut(&mut Random)) {
        let mut random = numbers(n);
        self.start.join();
        let mut left = turns;
        meanwhile(
            || !self.is_over(),
            || {
                turn(&mut random);
                hal::time::spin_ns(TURN_NS);
                left = left.saturating_sub(1);
                if left == 0 {
                    self.finished.fetch_add(1, SeqCst);
                    left = u32::MAX;
                }
            },
        );
    }
}

/// Does `act` over and over while `going`, as a program that returns to user mode in between.
pub fn meanwhile(going: impl Fn() -> bool, mut act: impl FnMut()) {
    while going() {
        act();
        user_mode();
        // Time passes.
        let _ = task::time::monotonic_ns();
    }
}

/// Computes for a short time, in user mode.
pub fn pass_time() {
    hal::time::spin_ns(TURN_NS);
    user_mode();
}

/// Computes until `done`. A sleep would take long where other CPUs are busy: the time passes as they compute.
pub fn pass_time_until(done: impl Fn() -> bool) {
    while !done() {
        pass_time();
    }
}

/// A sum that threads add to.
#[derive(Clone, Default)]
pub struct Sum(Arc<AtomicU64>);

impl Sum {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, SeqCst);
    }

    /// What it is.
    pub fn get(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

/// An action whose fields agree.
fn whole(n: u64) -> Action {
    Action {
        handler: 2 + n,
        restorer: 3 + n,
        mask: 4 + n,
        ..Action::default()
    }
}

/// Whether the action is the default one, or was set by [`change_action`], as a whole.
fn is_whole(action: &Action) -> bool {
    let n = action.handler.saturating_sub(2);
    *action == Action::default() || *action == whole(n)
}

/// Sets or reads an action: one that is read was set as a whole.
pub fn change_action(random: &mut Random) {
    let signo = CHANGING + random.below(CHANGED) as u8;
    let seen = match random.below(3) {
        0 => signal::action(&me(), signo),
        _ => signal::set_action(&me(), signo, whole(random.below_u64(1000))),
    };
    assert!(is_whole(&seen), "{seen:?}");
}

/// Whether each action of the caller's process is whole: a copy was made of no half.
pub fn actions_are_whole() -> bool {
    (CHANGING..)
        .take(CHANGED)
        .all(|signo| is_whole(&signal::action(&me(), signo)))
}
