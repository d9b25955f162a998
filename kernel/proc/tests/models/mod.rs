//! Models of threads of one process, each of which is stopped once at each of its steps.
#![allow(dead_code, reason = "no model uses all of it")]

use std::sync::Arc;

use proc::exit;
use proc::wait4::Children;

use crate::programs::try_thread;
use crate::support::{fork, on, user_mode, wait};

/// The first task that a process of the model begins, on so many CPUs: before it are the test, the CPUs' first threads, the boot
/// thread, init, and the process's first thread.
const fn first_task(cpus: usize) -> usize {
    4 + cpus
}

/// What a thread does.
pub type Body = Arc<dyn Fn() + Send + Sync>;

/// The parts of one schedule.
pub struct Model {
    /// What the process's first thread does before it makes the others and ends.
    pub begin: Body,
    /// What the others do.
    pub threads: Vec<Body>,
    /// What must hold at the end, for the status of the process.
    pub check: Box<dyn FnOnce(u32) + Send>,
}

/// Runs the model in each schedule in which one of its threads is stopped once, while the others run as far as they can.
/// Nothing that a thread does may wait for another without a wake-up. Returns the number of schedules.
pub fn everywhere(make: impl Fn() -> Model + Copy + Send + Sync + 'static) -> usize {
    everywhere_on(2, 0, make)
}

/// As [`everywhere`], on so many CPUs, where `begin` makes so many other tasks. With a CPU for each thread, one that is stopped
/// where it cannot be preempted holds up no other.
pub fn everywhere_on(
    cpus: usize,
    made: usize,
    make: impl Fn() -> Model + Copy + Send + Sync + 'static,
) -> usize {
    let threads = make().threads.len();
    let stop = |n| {
        let run = move || run(cpus, make());
        vm_host::one_stop::everywhere(first_task(cpus) + made + n, run)
    };
    (0..threads).map(stop).sum()
}

/// As [`everywhere`], in schedules at random.
pub fn at_random(make: impl Fn() -> Model + Copy + Send + Sync + 'static) {
    shuttle::check_random(move || run(2, make()), vm_host::random_schedules::asked(60));
}

fn run(cpus: usize, model: Model) {
    let Model {
        begin,
        threads,
        check,
    } = model;
    on(cpus, move || {
        let child = fork(move || {
            begin();
            for body in &threads {
                let body = body.clone();
                let body = move || body();
                if let Err(why) = try_thread(body) {
                    // The threads made so far may have ended it.
                    user_mode();
                    panic!("memory for a thread: {why:?}");
                }
            }
            exit::exit_thread(0)
        });
        let (pid, status) = wait(Children::Any).expect("a child");
        assert_eq!(pid, child);
        check(status);
    });
}
