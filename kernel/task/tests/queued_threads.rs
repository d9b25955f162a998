//! Threads that are queued: in which order they run, which of them go to another CPU, and which CPUs are interrupted for them.
#![cfg(not(shuttle))]

mod support;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use ksync::CpuPin;
use support::{MS, compute, ended, nap, on, spawn, wait_for_ends};
use task::sched::{self, CpuMask, CpuStats};
use task::{Thread, current, ids, kthread};

/// Queues so many threads on CPU 0, which does not give way, and does `act` to the first one. Returns the order in which they run.
fn order(threads: usize, act: impl FnOnce(&CpuPin, &Thread)) -> Vec<usize> {
    let (ran, before) = (Arc::new(Mutex::new(Vec::new())), ended());
    let pin = ksync::pin();
    let queue = |n| {
        let ran = ran.clone();
        spawn(Some(0), move || ran.lock().expect("not poisoned").push(n))
    };
    let tids: Vec<u32> = (0..threads).map(queue).collect();
    act(&pin, ids::thread(&pin, tids[0]).expect("it is queued"));
    drop(pin);
    wait_for_ends(before + threads as u32);
    let ran = ran.lock().expect("not poisoned");
    ran.clone()
}

#[test]
fn threads_that_have_not_run_do_so_in_the_order_of_their_arrival() {
    on(1, || {
        for threads in 2..9 {
            let expected: Vec<usize> = (0..threads).collect();
            assert_eq!(order(threads, |_, _| ()), expected);
        }
    });
}

/// A kill hurries the threads that a nice value or a policy holds back; another one gains no place by it.
#[test]
fn a_thread_of_nice_0_that_is_hurried_keeps_its_place() {
    on(1, || assert_eq!(order(3, sched::hurry), [0, 1, 2]));
}

fn stats(cpu: usize) -> &'static CpuStats {
    sched::stats(cpu).expect("a CPU")
}

fn steals(cpu: usize) -> u64 {
    stats(cpu).steals.load(SeqCst)
}

/// Interrupts that CPU 0 has sent.
fn sent() -> u64 {
    stats(0).ipis.load(SeqCst)
}

/// A thread that runs on CPU 1 and does not give way until it is let go. The caller stays on CPU 0.
struct Holder {
    tid: u32,
    over: Arc<AtomicBool>,
}

impl Holder {
    fn new() -> Self {
        assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
        let over = Arc::new(AtomicBool::new(false));
        let until = over.clone();
        let tid = spawn(Some(1), move || {
            let pin = ksync::pin();
            while !until.load(SeqCst) {
                hal::time::spin_ns(MS / 100);
            }
            drop(pin);
        });
        while sched::running(1) != tid {
            hal::time::spin_ns(MS / 100);
        }
        Holder { tid, over }
    }

    /// Queues a thread on CPU 1 that may run on any. Returns its tid.
    fn queues_one(&self) -> u32 {
        let tid = spawn(Some(1), || ());
        with(tid, |_, thread| {
            assert!(sched::set_affinity(thread, &CpuMask::all()));
        });
        tid
    }

    fn lets_go(self) {
        self.over.store(true, SeqCst);
    }
}

/// Runs `act` on a thread that has not ended.
fn with<R>(tid: u32, act: impl FnOnce(&CpuPin, &Thread) -> R) -> R {
    let pin = ksync::pin();
    act(&pin, ids::thread(&pin, tid).expect("it has not ended"))
}

#[test]
fn a_queued_thread_stays_where_its_new_mask_allows_it() {
    on(2, || {
        let holder = Holder::new();
        let tid = holder.queues_one();
        assert_eq!(with(tid, |_, thread| thread.cpu()), 1);
        holder.lets_go();
        wait_for_ends(2);
    });
}

/// sched_yield(2): with no other thread in its queue, the caller "continues to run".
#[test]
fn a_thread_that_yields_takes_none_from_another_cpu() {
    on(2, || {
        let holder = Holder::new();
        let tid = holder.queues_one();
        let before = steals(0);
        (0..10).for_each(|_| sched::yield_now());
        assert_eq!(steals(0), before);
        assert_eq!(with(tid, |_, thread| thread.cpu()), 1);
        holder.lets_go();
        wait_for_ends(2);
    });
}

#[test]
fn a_cpu_takes_no_thread_from_its_own_queue() {
    on(1, || {
        for _ in 0..4 {
            spawn(None, || compute(100 * MS));
        }
        wait_for_ends(4);
        assert_eq!(steals(0), 0);
    });
}

/// They lie on many lists of the queue, and none of them may be taken.
#[test]
fn an_idle_cpu_leaves_many_threads_that_may_not_run_on_it() {
    on(2, || {
        assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
        for nice in 0..16 {
            let body = || (0..40).for_each(|_| compute(MS / 2));
            kthread::spawn("worker", Some(0), nice, body).expect("memory for a thread");
        }
        spawn(Some(1), || (0..100).for_each(|_| nap(1)));
        wait_for_ends(17);
        assert_eq!(steals(1), 0);
    });
}

#[test]
fn only_a_thread_that_runs_elsewhere_is_poked() {
    on(2, || {
        let sleeper = spawn(Some(1), || nap(100));
        nap(5);
        let holder = Holder::new();
        let sent_by = |act: fn(&CpuPin, &Thread), tid| {
            let before = sent();
            with(tid, act);
            sent() - before
        };
        assert_eq!(sent_by(sched::poke, holder.tid), 1);
        assert_eq!(sent_by(sched::poke, current().tid()), 0);
        assert_eq!(sent_by(sched::poke, sleeper), 0);
        // Nor is a sleeping thread's last CPU told that it may not run there any more.
        let leave = |_: &CpuPin, thread: &Thread| {
            assert!(sched::set_affinity(thread, &CpuMask::one(0)));
        };
        assert_eq!(sent_by(leave, sleeper), 0);
        assert_eq!(sent_by(leave, holder.tid), 1);
        holder.lets_go();
        wait_for_ends(2);
    });
}
