//! The kernel's threads that work on the memory of processes: page tables of those that sleep, and `vmchaos`.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::sync::Arc;

use proc::daemons::{self, chaos};
use proc::wait4::Children;
use proc::{Process, exit, ids};
use programs::{MEMORY, PAGE, load, seeded, store, take_memory, thread};
use support::{exited, fork, kill, nap, on, user_mode, wait};
use task::sched;
use task::thread::flag;

/// A process that has touched its memory; then its first thread does `rest`.
fn program(rest: impl Fn() + Send + Sync + 'static) -> (u32, Arc<Process>) {
    let pid = fork(move || {
        take_memory();
        store(MEMORY, 7);
        rest();
        0
    });
    nap(20);
    let p = ids::find_process(pid).expect("a child that was not waited for");
    assert!(tables(&p) > 0);
    (pid, p)
}

/// Sleeps until it is killed.
fn sleep() {
    nap(1_000_000);
    user_mode();
}

/// How many page tables the process has.
fn tables(p: &Process) -> usize {
    let space = p.space().expect("a process that lives");
    space.pmap().tables()
}

#[test]
fn a_process_all_of_whose_threads_sleep_loses_its_page_tables() {
    on(1, || {
        daemons::start(false);
        let alone = program(sleep);
        let sleepers = program(|| {
            thread(sleep);
            sleep();
        });
        let headless = program(|| {
            thread(sleep);
            exit::exit_thread(0)
        });
        let busy = program(|| {
            thread(|| (0..1000).for_each(|_| nap(300)));
            sleep();
        });
        // The CPU leaves the space of a process when another runs.
        (0..40).for_each(|_| nap(100));
        let left = [&alone, &sleepers, &headless, &busy].map(|(_, p)| tables(p) > 0);
        assert_eq!(left, [false, false, false, true]);
        for (pid, _) in [alone, sleepers, headless, busy] {
            assert!(kill(pid, 9));
            assert_eq!(wait(Children::Pid(pid)), Ok((pid, 9)));
        }
    });
}

#[test]
fn no_program_notices_that_chaos_removes_its_translations() {
    on(2, || {
        daemons::start(true);
        // No process has memory yet.
        nap(20);
        let programs = [1, 2, 3].map(|seed| {
            fork(move || {
                take_memory();
                let mut random = seeded(seed);
                let mut expected = [0; 16];
                for value in 1..600 {
                    let page = random.below(16);
                    let at = MEMORY + page as u64 * PAGE;
                    assert_eq!(load(at), Some(expected[page]));
                    store(at, value);
                    expected[page] = value;
                    if random.one_in(10) {
                        nap(1);
                    }
                }
                0
            })
        });
        for pid in programs {
            assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
        }
        chaos::stop();
        chaos::stop();
    });
}

/// The thread that drops page tables is one of low priority. A lock for which others waited does not change that for long.
#[test]
fn a_kernel_thread_gives_back_the_weight_that_it_was_lent() {
    on(1, || {
        daemons::start(false);
        let mut lent = Vec::new();
        task::ids::each(|pin, t| {
            if t.nice() > 0 {
                sched::lend(pin, t);
                assert!(t.has(flag::LENT));
                lent.push(t.tid());
            }
        });
        assert!(!lent.is_empty(), "there is one");
        nap(1000);
        for tid in lent {
            let t = task::ids::hold_thread(tid).expect("it does not end");
            assert!(!t.has(flag::LENT));
        }
    });
}
