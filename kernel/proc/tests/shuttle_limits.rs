//! Two threads that set one resource limit, with a switch possible at every access to an atomic: what is enforced is what prlimit(2)
//! reports.
#![cfg(shuttle)]

#[path = "support/signals.rs"]
mod signals;
mod support;

use proc::Resource;
use proc::rlimit::{INFINITY, Limit};
use proc::signal::sig;
use signals::{RT, block, join_all, pending, queue, run_child, thread};
use support::{me, on, user_mode};

const CPUS: usize = 3;
/// The first of the two among the tasks of the model checker. Before it are the test, the CPUs' first threads, the boot thread, init, and
/// the process's first thread.
const SETTER: usize = 4 + CPUS;
/// A second, in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Two threads set the soft limit of `r` to these values; then `check` gets the one that is in force.
fn set_by_two(r: Resource, softs: [u64; 2], check: fn(u64)) {
    vm_host::one_stop::everywhere(SETTER, move || {
        on(CPUS, move || {
            run_child(move || {
                for soft in softs {
                    thread(move || {
                        let hard = me().limit(r).hard;
                        let set = me().set_limit(r, Limit { soft, hard }, false);
                        set.expect("below the hard limit");
                    });
                }
                join_all();
                check(me().rlimit(r));
            });
        });
    });
}

#[test]
fn as_many_signals_are_queued_as_the_limit_says() {
    set_by_two(Resource::Sigpending, [1, 3], |soft| {
        block(&[RT]);
        let queued = (0..).take_while(|&n| queue(me().pid(), RT, n).is_ok());
        assert_eq!(queued.count() as u64, soft);
    });
}

#[test]
fn a_process_is_warned_of_the_cpu_time_that_the_limit_says() {
    set_by_two(Resource::Cpu, [INFINITY, 1], |soft| {
        block(&[sig::XCPU]);
        for _ in 0..12 {
            hal::time::spin_ns(SECOND / 10);
            user_mode();
        }
        assert_eq!(pending().has(sig::XCPU), soft == 1);
    });
}
