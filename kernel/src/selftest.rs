//! Tests of the scheduler that run at boot, before init, if the command line has `selftest`.
//!
//! Each prints one line. A failure panics, which ends the boot.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use hal::kprintln;
use task::current::current;
use task::park::{Deadline, Interruptible, ParkError, Step, park, sleep_until};
use task::wait::{WaitQueue, Waiter};
use task::{kthread, time};

/// Runs all tests; returns when all have passed.
pub(super) fn run() {
    ping_pong();
    thundering_herd();
    sleeps();
    spread();
    mutex_contention();
    watchdog();
    kprintln!(
        "selftest: a thread takes {} bytes, a process {}",
        size_of::<task::thread::Thread>(),
        size_of::<proc::Process>()
    );
    kprintln!("selftest: scheduler passed on {} CPUs", hal::cpu::count());
}

/// A count of threads that have not finished yet, and a queue to wait on until it is 0.
struct Latch {
    left: AtomicU32,
    queue: WaitQueue,
}

impl Latch {
    fn new(n: u32) -> Arc<Self> {
        Arc::new(Latch {
            left: AtomicU32::new(n),
            queue: WaitQueue::new(),
        })
    }

    fn arrive(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.queue.wake_all();
        }
    }

    fn wait(self: &Arc<Self>, what: &str) {
        let mut me = self.clone();
        let end = Deadline::after(60 * time::SECOND);
        let done = park(&mut me, end, Interruptible::No, |l, waiter: &mut Waiter| {
            waiter.listen(&l.queue);
            if l.left.load(Ordering::SeqCst) == 0 {
                Step::Done(())
            } else {
                Step::Wait
            }
        });
        assert!(
            done.is_ok(),
            "selftest: {what} hangs, {} threads left",
            self.left.load(Ordering::SeqCst)
        );
    }
}

fn spawn(name: &str, cpu: Option<usize>, f: impl FnOnce() + Send + 'static) {
    assert!(
        kthread::spawn(name, cpu, 0, f).is_ok(),
        "selftest: no thread"
    );
}

struct Ball {
    turn: AtomicU32,
    queues: [WaitQueue; 2],
}

/// Pairs of threads pass a token back and forth.
fn ping_pong() {
    const ROUNDS: u32 = 2000;
    let pairs = hal::cpu::count() as u32 * 2;
    let latch = Latch::new(pairs * 2);
    let start = time::monotonic_ns();
    for _ in 0..pairs {
        let ball = Arc::new(Ball {
            turn: AtomicU32::new(0),
            queues: [WaitQueue::new(), WaitQueue::new()],
        });
        for side in 0..2u32 {
            let (ball, latch) = (ball.clone(), latch.clone());
            spawn("pingpong", None, move || {
                for round in 0..ROUNDS {
                    let mut state = (ball.clone(), round * 2 + side, side as usize);
                    let r = park(
                        &mut state,
                        Deadline::Never,
                        Interruptible::No,
                        |s, w: &mut Waiter| {
                            w.listen(&s.0.queues[s.2]);
                            if s.0.turn.load(Ordering::SeqCst) == s.1 {
                                Step::Done(())
                            } else {
                                Step::Wait
                            }
                        },
                    );
                    assert!(r.is_ok());
                    ball.turn.fetch_add(1, Ordering::SeqCst);
                    ball.queues[1 - side as usize].wake_one();
                }
                latch.arrive();
            });
        }
    }
    latch.wait("ping-pong");
    let ns = time::monotonic_ns() - start;
    kprintln!(
        "selftest: ping-pong: {} pairs, {} ns a hand-over",
        pairs,
        ns / u64::from(pairs * ROUNDS * 2)
    );
}

struct Gate {
    open: AtomicBool,
    queue: WaitQueue,
}

/// Many threads wait on one queue; one `wake_all` wakes them all.
fn thundering_herd() {
    const N: u32 = 100;
    let gate = Arc::new(Gate {
        open: AtomicBool::new(false),
        queue: WaitQueue::new(),
    });
    let latch = Latch::new(N);
    for _ in 0..N {
        let (mut gate, latch) = (gate.clone(), latch.clone());
        spawn("herd", None, move || {
            let r = park(
                &mut gate,
                Deadline::Never,
                Interruptible::No,
                |g, w: &mut Waiter| {
                    w.listen(&g.queue);
                    if g.open.load(Ordering::SeqCst) {
                        Step::Done(())
                    } else {
                        Step::Wait
                    }
                },
            );
            assert!(r.is_ok());
            latch.arrive();
        });
    }
    let _ = sleep_until(Deadline::after(time::SECOND / 20), Interruptible::No);
    gate.open.store(true, Ordering::SeqCst);
    gate.queue.wake_all();
    latch.wait("herd");
    kprintln!("selftest: herd: {} threads released", N);
}

/// Sleeps last at least as long as asked, and a wait with a deadline times out.
fn sleeps() {
    let latch = Latch::new(16);
    let worst = Arc::new(AtomicU64::new(0));
    for i in 0..16u64 {
        let (latch, worst) = (latch.clone(), worst.clone());
        spawn("sleep", None, move || {
            for round in 0..4 {
                let end = time::monotonic_ns() + 1_000_000 * (1 + i * 7 + round * 3) + 12_345;
                assert!(sleep_until(Deadline::At(end), Interruptible::No).is_ok());
                let now = time::monotonic_ns();
                assert!(now >= end, "selftest: woke {} ns early", end - now);
                worst.fetch_max(now - end, Ordering::Relaxed);
            }
            latch.arrive();
        });
    }
    latch.wait("sleeps");
    let mut none = WaitQueue::new();
    let r = park(
        &mut none,
        Deadline::after(1_000_000),
        Interruptible::No,
        |q, w: &mut Waiter| {
            w.listen(q);
            Step::<()>::Wait
        },
    );
    assert_eq!(r, Err(ParkError::Timeout));
    kprintln!(
        "selftest: sleeps: latest by {} us",
        worst.load(Ordering::Relaxed) / 1000
    );
}

/// Busy threads spread over all CPUs, and threads bound to a CPU stay there.
fn spread() {
    let n = hal::cpu::count();
    let seen = Arc::new(AtomicU64::new(0));
    let latch = Latch::new(n as u32 * 2);
    for cpu in 0..n {
        let (s, l) = (seen.clone(), latch.clone());
        spawn("busy", None, move || {
            let end = time::monotonic_ns() + 10 * time::SECOND;
            let all = u64::MAX >> (64 - n.min(64));
            while time::monotonic_ns() < end && s.load(Ordering::Relaxed) != all {
                s.fetch_or(1 << (ksync::pin().cpu() % 64), Ordering::Relaxed);
            }
            l.arrive();
        });
        let l = latch.clone();
        spawn("tied", Some(cpu), move || {
            for _ in 0..100 {
                assert_eq!(ksync::pin().cpu(), cpu, "selftest: strayed");
                task::sched::yield_now();
            }
            l.arrive();
        });
    }
    latch.wait("spread");
    let used = seen.load(Ordering::Relaxed).count_ones();
    assert!(
        used as usize == n.min(64),
        "selftest: busy threads used {used} of {n} CPUs"
    );
    kprintln!("selftest: spread: all {} CPUs used", n);
}

ksync::lock_class!(TestLock, "selftest", rank = 10);

/// A counter under a sleeping lock loses no increment.
fn mutex_contention() {
    const ROUNDS: u64 = 500;
    let n = hal::cpu::count() as u64 * 3;
    let shared: Arc<ksync::Mutex<u64, TestLock>> = Arc::new(ksync::Mutex::new(0));
    let latch = Latch::new(n as u32);
    for _ in 0..n {
        let (shared, latch) = (shared.clone(), latch.clone());
        spawn("mutex", None, move || {
            for i in 0..ROUNDS {
                let mut count = shared.lock();
                *count += 1;
                if i % 16 == 0 {
                    task::sched::yield_now();
                }
            }
            latch.arrive();
        });
    }
    latch.wait("mutex");
    assert_eq!(*shared.lock(), n * ROUNDS);
    assert!(current().held().is_empty());
    kprintln!("selftest: mutex: {} acquisitions", n * ROUNDS);
}

ksync::lock_class!(StuckLock, "selftest stuck", rank = 159);
ksync::lock_class!(SlowLock, "selftest slow", rank = 30);

/// The watchdog reports a CPU that keeps interrupts off, a CPU that spins for that one's lock, and a thread that
/// sleeps for a lock for too long. Runs only where its limit is a second at most: with the boot option
/// `watchdog_thresh=1`.
fn watchdog() {
    let Some(limit) = task::watchdog::limit_ns().filter(|&ns| ns <= time::SECOND) else {
        return;
    };
    let ncpus = hal::cpu::count();
    // The threads of the earlier tests have just ended. The thread that frees their stacks waits until all CPUs have
    // taken an interrupt, and the watchdog's thread waits for that thread.
    let _ = sleep_until(Deadline::after(time::SECOND / 2), Interruptible::No);
    let before = (task::watchdog::still(), task::watchdog::asleep());
    keep_interrupts_off(ncpus);
    keep_lock(limit);
    assert!(
        ncpus == 1 || task::watchdog::still() > before.0,
        "selftest: no report of a CPU"
    );
    assert!(
        task::watchdog::asleep() > before.1,
        "selftest: no report of a lock"
    );
    kprintln!("selftest: the watchdog saw what it should");
}

/// Longest wait for a report, in nanoseconds: a busy host delays reports.
const REPORT_PATIENCE_NS: u64 = 40 * time::SECOND;

/// Keeps interrupts off on CPU 1, under a lock, until the watchdog has reported that CPU 2 spins for it. CPU 0 stays
/// free, so that it can notice. With a single CPU the lock is released at once.
fn keep_interrupts_off(ncpus: usize) {
    static STUCK: ksync::IrqSpin<(), StuckLock> = ksync::IrqSpin::new(());
    static HELD: AtomicBool = AtomicBool::new(false);
    static WANTED: AtomicBool = AtomicBool::new(false);
    let latch = Latch::new(2);
    let [holder, waiter] = [1, 2].map(|cpu| cpu.min(ncpus - 1));
    let arrival = latch.clone();
    spawn("stuck", Some(holder), move || {
        let held = STUCK.lock();
        HELD.store(true, Ordering::Release);
        let deadline = time::monotonic_ns() + REPORT_PATIENCE_NS;
        let mut unseen = task::watchdog::still();
        // Waits for two reports after the other CPU has come to the lock: the first may have begun before that.
        while ncpus > 1 && task::watchdog::still() < unseen + 2 && time::monotonic_ns() < deadline {
            if holder != waiter && !WANTED.load(Ordering::Acquire) {
                unseen = task::watchdog::still();
            }
            hal::time::spin_ns(time::SECOND / 1000);
        }
        drop(held);
        arrival.arrive();
    });
    let arrival = latch.clone();
    spawn("stuck", Some(waiter), move || {
        while !HELD.load(Ordering::Acquire) {
            task::sched::yield_now();
        }
        WANTED.store(true, Ordering::Release);
        drop(STUCK.lock());
        arrival.arrive();
    });
    latch.wait("a CPU that kept interrupts off");
}

/// Holds a sleeping lock for which another thread waits, until the watchdog has reported that.
fn keep_lock(limit: u64) {
    static SLOW: ksync::Mutex<(), SlowLock> = ksync::Mutex::new(());
    let latch = Latch::new(2);
    for first in [true, false] {
        let latch = latch.clone();
        spawn("slow", None, move || {
            let _ = sleep_until(
                Deadline::after(if first { 1 } else { limit / 4 }),
                Interruptible::No,
            );
            let held = SLOW.lock();
            let deadline = time::monotonic_ns() + REPORT_PATIENCE_NS;
            let before = task::watchdog::asleep();
            while first && task::watchdog::asleep() == before && time::monotonic_ns() < deadline {
                let _ = sleep_until(Deadline::after(limit / 10), Interruptible::No);
            }
            drop(held);
            latch.arrive();
        });
    }
    latch.wait("a lock that was held for long");
}
