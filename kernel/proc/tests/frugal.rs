//! What an operation that finds nothing to do must not use: locks that others need, and memory.
#![cfg(not(shuttle))]

mod futex_waiters;
mod programs;
mod support;

#[path = "support/signals.rs"]
mod signals;

use futex_waiters::{Results, waiter, wake};
use proc::rlimit::Limit;
use proc::signal::{Action, ActionTable, sig};
use proc::wait4::Children;
use proc::{Resource, UserThreadExt, with_files};
use programs::{MEMORY, install, run, store, with_memory};
use signals::{
    RT, USR1, block, catch, idle, idler, ignore, job, kill_pid, queue, run_child, thread,
    until_asleep,
};
use support::{exited, fork, me, nap, on, wait};
use task::current::current;
use vm_host::frugal::{alone, locks};
use vm_host::heap::{Heap, asked_under_locks, blocks, learn, with_each};

#[global_allocator]
static HEAP: Heap = Heap;

/// Runs `body` as a child of init on a machine with one CPU, as the only test of the program.
fn alone_on_one(body: impl Fn() + Send + Sync + 'static) {
    alone(|| on(1, || run_child(body)));
}

#[test]
fn a_signal_that_is_not_pending_is_ignored_without_a_look_at_the_queues() {
    alone_on_one(|| assert_eq!(locks("pending signals", || ignore(USR1)), 0));
}

#[test]
fn a_signal_for_a_sleeper_goes_through_no_list_of_threads() {
    alone_on_one(|| {
        let child = fork(|| {
            catch(USR1);
            nap(1000);
            0
        });
        until_asleep(child);
        let sent = || kill_pid(child, USR1).expect("a child");
        assert_eq!(locks("process threads", sent), 0);
        // It has no stack for a handler, and ends.
        assert!(wait(Children::Any).is_ok());
    });
}

#[test]
fn a_queue_with_room_does_not_grow() {
    alone_on_one(|| {
        block(&[RT]);
        let own = me().pid();
        let queued = |value| move || queue(own, RT, value).expect("room");
        assert!(blocks(queued(1)) > 0);
        assert_eq!(blocks(queued(2)), 0);
    });
}

#[test]
fn cached_references_are_used_without_a_lock() {
    alone_on_one(|| {
        with_files(|_| ());
        assert_eq!(locks("process", || with_files(|_| ()).expect("files")), 0);
    });
}

/// How often the turn to signal a group is taken while a child of the caller's group ends.
fn turns_of_an_end() -> u64 {
    locks("signals to a process group", || run_child(|| ()))
}

#[test]
fn a_process_of_a_group_that_never_stopped_ends_without_a_turn() {
    alone_on_one(|| {
        assert_eq!(turns_of_an_end(), 0);
        let stopped = idler();
        kill_pid(stopped, sig::STOP).expect("a child");
        assert_eq!(turns_of_an_end(), 1);
    });
}

#[test]
fn a_group_that_a_process_joins_has_stopped_only_if_its_old_one_has() {
    alone_on_one(|| {
        let child = job(|| {
            assert_eq!(turns_of_an_end(), 0);
            0
        });
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
    });
}

/// How often a lock of this class is taken from the end of a parent that leaves a child, in a group of its own, to its being
/// reaped.
fn locks_of_a_parents_end(class: &str) -> u64 {
    let parent = fork(|| {
        job(|| {
            nap(1000);
            0
        });
        nap(300);
        0
    });
    nap(100);
    locks(class, || {
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
    })
}

#[test]
fn a_child_of_a_group_that_never_stopped_is_left_without_a_look_at_the_group() {
    alone_on_one(|| assert_eq!(locks_of_a_parents_end("process group members"), 1));
}

#[test]
fn the_only_thread_of_a_process_ends_without_the_lock_of_its_signals() {
    alone_on_one(|| assert_eq!(locks("process signals", || run_child(|| ())), 4));
}

#[test]
fn a_child_that_has_ended_is_reaped_without_a_look_for_its_threads() {
    alone_on_one(|| {
        let child = fork(|| 0);
        nap(100);
        let reaped = || assert_eq!(wait(Children::Any), Ok((child, exited(0))));
        assert_eq!(locks("process threads", reaped), 0);
    });
}

#[test]
fn a_killed_thread_looks_for_no_other() {
    // How often the list of threads is taken while a process with so many more threads is killed.
    let lists = |threads: u32| {
        let child = fork(move || {
            for _ in 0..threads {
                thread(|| idle());
            }
            idle()
        });
        nap(100);
        locks("process threads", || {
            kill_pid(child, sig::KILL).expect("a child");
            assert!(wait(Children::Pid(child)).is_ok());
        })
    };
    alone_on_one(move || {
        let (few, many) = (lists(4), lists(20));
        assert_eq!(many - few, 16, "each takes itself off");
    });
}

#[test]
fn a_bucket_is_not_locked_for_more_than_some_wakes() {
    alone(|| {
        with_memory(1, || {
            store(MEMORY, 0);
            let results = Results::default();
            let woken = |threads| {
                for name in 0..threads {
                    waiter(MEMORY, name, &results);
                }
                locks("futex bucket", || {
                    assert_eq!(wake(MEMORY, threads), threads)
                })
            };
            let (few, many) = (woken(8), woken(72));
            assert_eq!(many - few, 2);
        });
    });
}

#[test]
fn a_thread_without_a_list_of_robust_futexes_reads_no_memory() {
    alone(|| {
        with_memory(1, || {
            let ends = |head| {
                let class = "vm map";
                locks(class, || {
                    run_child(move || current().set_robust_list(head));
                })
            };
            assert_eq!(ends(8) - ends(0), 1);
        });
    });
}

fn set_soft(resource: Resource, soft: u64) {
    let limit = Limit {
        soft,
        hard: u64::MAX,
    };
    assert!(me().set_limit(resource, limit, true).is_ok());
}

#[test]
fn a_limit_of_cpu_time_that_is_none_costs_a_child_no_memory() {
    alone_on_one(|| {
        let child = || {
            blocks(|| {
                fork(|| 0);
            })
        };
        set_soft(Resource::Cpu, u64::MAX);
        let without = child();
        set_soft(Resource::Cpu, 100);
        assert_eq!(child(), without + 1);
        for _ in 0..2 {
            assert!(wait(Children::Any).is_ok());
        }
    });
}

#[test]
fn a_program_without_limits_of_memory_is_not_measured() {
    alone(|| {
        with_memory(1, || {
            install("/p", 0o755, |_| 0);
            let looks = |limit| {
                locks("vm map", || {
                    run_child(move || {
                        set_soft(Resource::Data, limit);
                        panic!("{:?}", run("/p"))
                    });
                })
            };
            assert_eq!(looks(1 << 40), looks(u64::MAX) + 1);
        });
    });
}

/// A handler at this address.
fn handler(at: u64) -> Action {
    Action {
        handler: at,
        ..Action::default()
    }
}

hal::machine_static! {
    /// Actions that another thread changes while the table grows or is copied.
    static TABLE: ActionTable = ActionTable::new();
}

/// What another thread does meanwhile: it adds three actions.
fn others() {
    for signal in 20..23 {
        TABLE.set(signal, handler(7));
    }
}

#[test]
fn a_table_of_actions_that_others_fill_does_not_grow_under_its_lock() {
    alone_on_one(|| {
        TABLE.set(1, handler(1));
        assert_eq!(learn_with(|| TABLE.set(2, handler(2))), Action::default());
        let set = [1, 2, 20, 22].map(|signal| TABLE.get(signal).handler);
        assert_eq!((set, asked_under_locks()), ([1, 2, 7, 7], 0));
    });
}

#[test]
fn a_table_of_actions_that_others_fill_is_copied_with_no_growth_under_its_lock() {
    alone_on_one(|| {
        TABLE.set(1, handler(1));
        let copy = learn_with(|| TABLE.fork());
        let set = [1, 20, 22].map(|signal| copy.get(signal).handler);
        assert_eq!((set, asked_under_locks()), ([1, 7, 7], 0));
    });
}

/// Does `act`, with [`others`] at each block that it asks for. Blocks under locks are counted.
fn learn_with<R>(act: impl FnOnce() -> R) -> R {
    learn(|| with_each(others, act))
}
