//! Every interleaving of sleepers and wakers.
//!
//! The words of a thread and the queue are the kernel's own; the scheduler is simulated: a thread whose context is
//! saved does not run until the waker that must queue it has done so. After a lost wake-up it never runs again, which
//! loom reports as too many steps.
#![cfg(loom)]
#![expect(
    unsafe_code,
    reason = "the models watch raw cells, to see what a wake-up must make visible"
)]

#[expect(dead_code, reason = "other models watch targets")]
mod model;

use ksync::{
    CpuPin, Registration, Round, RunState, Sleepers, WaitQueue,
    atomic::{AtomicBool, AtomicU32, Ordering::*},
    lock_class, pin,
};
use loom::{cell::UnsafeCell, thread};
use model::{model, spawn};

lock_class!(QueueLock, "model wait queue", rank = 100);

type Queue = WaitQueue<Threads, QueueLock>;

/// A thread as wakers see it.
struct Sleeper {
    round: Round,
    state: RunState,
    queued: AtomicBool,
    /// Written by the CPU that it leaves, read by the CPU on which it is queued.
    context: UnsafeCell<u32>,
}

impl Sleeper {
    fn new() -> Self {
        Sleeper {
            round: Round::after(0),
            state: RunState::new(),
            queued: AtomicBool::new(false),
            context: UnsafeCell::new(0),
        }
    }

    /// Leaves the CPU, if still declared waiting when the context is saved; returns when queued.
    fn block(&self) {
        // SAFETY: the thread is on its CPU; loom checks that it is queued later.
        self.context.with_mut(|c| unsafe { *c += 1 });
        if self.state.settle() {
            while !self.queued.load(Acquire) {
                thread::yield_now();
            }
            self.queued.store(false, Relaxed);
        }
    }

    /// One sleep in a round; the wake-up may be spurious.
    fn sleep(&self) {
        self.state.declare_waiting();
        if self.round.notified() {
            self.state.declare_running();
        } else {
            self.block();
        }
    }

    fn wake(&self) {
        if self.state.wake() {
            // SAFETY: saved before the thread was `Blocked`; loom checks it.
            self.context.with(|c| assert!(unsafe { *c } > 0));
            assert!(!self.queued.swap(true, Release), "queued twice");
        }
    }
}

struct World {
    sleepers: [Sleeper; 3],
    queue: Queue,
    tokens: AtomicU32,
    /// Written by a waker before it notifies, read by the sleeper after.
    word: UnsafeCell<u32>,
}

// SAFETY: the protocol orders the accesses to the cells; loom checks it.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

loom::lazy_static! {
    static ref WORLD: World = World {
        sleepers: [Sleeper::new(), Sleeper::new(), Sleeper::new()],
        queue: Queue::new(),
        tokens: AtomicU32::new(0),
        word: UnsafeCell::new(0),
    };
}

enum Threads {}

impl Sleepers for Threads {
    fn round(_: &CpuPin, tid: u32) -> Option<&Round> {
        Some(&WORLD.sleepers[tid as usize - 1].round)
    }

    fn wake(_: &CpuPin, tid: u32) {
        WORLD.sleepers[tid as usize - 1].wake();
    }
}

fn write_word() {
    // SAFETY: before the wake-up that makes it visible; loom checks it.
    WORLD.word.with_mut(|w| unsafe { *w = 5 });
}

fn read_word() {
    // SAFETY: after that wake-up.
    WORLD.word.with(|w| assert_eq!(unsafe { *w }, 5));
}

/// Takes a token if there is one.
fn take_token() -> bool {
    WORLD
        .tokens
        .fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1))
        .is_ok()
}

/// Sleeps until it has taken a token.
fn wait_for_token(tid: u32) {
    let me = &WORLD.sleepers[tid as usize - 1];
    loop {
        let round = me.round.begin();
        assert!(WORLD.queue.add(Registration::new(tid, round)));
        if take_token() {
            me.round.end();
            return;
        }
        me.sleep();
    }
}

fn give_token() {
    WORLD.tokens.fetch_add(1, Relaxed);
    WORLD.queue.wake_one();
}

#[test]
fn a_wake_up_reaches_who_is_about_to_sleep() {
    model(3, || {
        let sleeper = spawn(1, || wait_for_token(1));
        give_token();
        sleeper.join().unwrap();
    });
}

#[test]
fn two_wake_ups_reach_two_sleepers() {
    model(1, || {
        let sleepers = [1, 2].map(|tid| spawn(tid as usize, move || wait_for_token(tid)));
        give_token();
        give_token();
        sleepers.into_iter().for_each(|s| s.join().unwrap());
    });
}

/// A pipe with two readers, from the moment on at which it has one byte that neither has found before it registered. A
/// writer wakes one reader where the pipe was empty; a reader that leaves bytes wakes the next.
#[test]
fn no_reader_sleeps_beside_a_byte() {
    fn take() -> bool {
        let before = WORLD
            .tokens
            .fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        if before.is_ok_and(|n| n > 1) && !WORLD.queue.is_empty() {
            WORLD.queue.wake_one();
        }
        before.is_ok()
    }
    fn put() {
        if WORLD.tokens.fetch_add(1, Relaxed) == 0 && !WORLD.queue.is_empty() {
            WORLD.queue.wake_one();
        }
    }
    fn read(tid: u32) -> bool {
        let me = &WORLD.sleepers[tid as usize - 1];
        let round = me.round.begin();
        assert!(WORLD.queue.add(Registration::new(tid, round)));
        let taken = take();
        if taken {
            me.round.end_with_success(|| {
                WORLD.queue.wake_one();
            });
        } else {
            me.state.declare_waiting();
        }
        taken
    }
    model(2, || {
        put();
        let second = spawn(1, || read(2));
        let writer = spawn(2, put);
        let first = read(1);
        let second = second.join().unwrap();
        writer.join().unwrap();
        let sleeps = |i: usize, taken: bool| !taken && !WORLD.sleepers[i].round.notified();
        let left = WORLD.tokens.load(Relaxed);
        assert!(left == 0 || !sleeps(0, first) && !sleeps(1, second));
    });
}

/// A thread that gives up must check whether a wake-up was spent on it.
#[test]
fn who_gives_up_passes_a_wake_up_on() {
    model(1, || {
        let quitter = spawn(1, || {
            let me = &WORLD.sleepers[0];
            let round = me.round.begin();
            assert!(WORLD.queue.add(Registration::new(1, round)));
            if me.round.end() {
                WORLD.queue.wake_one();
            }
        });
        let sleeper = spawn(2, || wait_for_token(2));
        give_token();
        quitter.join().unwrap();
        sleeper.join().unwrap();
    });
}

/// What a waker did before is visible to the thread that was woken, and to one that finds its round notified at its
/// end.
#[test]
fn a_wake_up_makes_visible_what_came_before() {
    fn both(wake: fn(u64)) {
        model(3, move || {
            let round = WORLD.sleepers[0].round.begin();
            let waker = spawn(1, move || {
                write_word();
                wake(round);
                WORLD.sleepers[0].wake();
            });
            while !WORLD.sleepers[0].round.notified() {
                WORLD.sleepers[0].sleep();
            }
            read_word();
            waker.join().unwrap();
        });
        model(3, move || {
            let round = WORLD.sleepers[0].round.begin();
            let waker = spawn(1, move || {
                write_word();
                wake(round);
            });
            if WORLD.sleepers[0].round.end() {
                read_word();
            }
            waker.join().unwrap();
        });
    }
    both(|round| {
        assert!(WORLD.sleepers[0].round.notify(round) || !WORLD.sleepers[0].round.goes_on(round))
    });
    both(|_| WORLD.sleepers[0].round.notify_present());
}

/// Wakers with different reasons queue a thread once.
#[test]
fn two_wakers_queue_a_thread_once() {
    model(2, || {
        let me = &WORLD.sleepers[0];
        me.round.begin();
        let wakers = [1, 2].map(|cpu| {
            spawn(cpu, || {
                let _pin = pin();
                WORLD.sleepers[0].round.notify_present();
                WORLD.sleepers[0].wake();
            })
        });
        while !me.round.notified() {
            me.sleep();
        }
        wakers.into_iter().for_each(|w| w.join().unwrap());
        assert!(!me.queued.load(Relaxed), "queued while it runs");
    });
}

fn register(tid: u32) {
    let round = WORLD.sleepers[tid as usize - 1].round.begin();
    assert!(WORLD.queue.add(Registration::new(tid, round)));
}

/// What is done to a queue beside a registration.
const ACTS: [fn(); 4] = [
    || {
        WORLD.queue.wake_one();
    },
    || {
        WORLD.queue.wake_all();
    },
    || {
        WORLD.queue.is_empty();
    },
    || register(3),
];

/// Explores each of them beside a registration, after `set_up`.
fn in_turn(set_up: fn()) {
    for act in ACTS {
        model(2, move || {
            set_up();
            let other = spawn(1, || register(2));
            act();
            other.join().unwrap();
        });
    }
}

/// An operation on a queue has exclusive access to it.
#[test]
fn a_queue_is_changed_in_turn() {
    // So that the next one needs memory.
    in_turn(|| register(1));
}

/// Also one that has just given up the room that many sleepers took.
#[test]
fn a_queue_that_gives_room_back_is_changed_in_turn() {
    in_turn(|| {
        let rounds = [1, 2].map(|tid| (tid, WORLD.sleepers[tid as usize - 1].round.begin()));
        for (tid, round) in rounds.into_iter().cycle().take(50) {
            assert!(WORLD.queue.add(Registration::new(tid, round)));
        }
        WORLD.queue.wake_all();
    });
}
