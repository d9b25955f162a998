//! The watchdog: reports CPUs that stand still and long waits for locks.
//!
//! Guarantee: if a CPU takes no interrupt for [`limit`](start) seconds while another CPU runs, or a thread sleeps three times
//! as long for a lock of `ksync`, a report is printed on the console: what every CPU does, the lock, and its holder. The
//! watchdog only reports; it repairs nothing.
//!
//! Mechanism: kernel threads on the first two CPUs look five times in each limit. A CPU whose count of interrupts has not
//! grown is sent one, which an idle CPU takes, too. For a report, a non-maskable interrupt asks every CPU what it does.
//! Threads are searched only while some thread sleeps for a lock. A thread that has slept too long prints its own report: the
//! watchdog only unparks it, and so reads nothing of a lock that may be gone. On a machine with one CPU only locks are
//! watched.
//!
//! What it misses: if the first CPU itself waits with preemption off for the CPU that stands still (for an answer to a flush,
//! say), the watchdog's thread there does not run; and the CPU that stands still may be the second, on which the other thread
//! would run.

use alloc::vec::Vec;
use ksync::atomic::AtomicU64;
use ksync::atomic::Ordering::{Acquire, Relaxed, Release};

use hal::kprintln;
use ksync::{Counter, Once};

use crate::current::current;
use crate::park::{Deadline, Interruptible, sleep_until};
use crate::platform::unpark;
use crate::thread::Comm;
use crate::{ids, kthread, sched, time};

/// What the watchdog was started with, and its counters.
struct Limits {
    /// Nanoseconds that a CPU may go without an interrupt.
    cpu_ns: u64,
    /// Nanoseconds that a sleep for a lock may take.
    lock_ns: u64,
    /// The number of sleeps for locks in progress.
    sleeping: Counter,
    /// CPUs found standing still; each is counted after its report has been printed.
    still: AtomicU64,
    /// Sleeps found too long, counted likewise.
    asleep: AtomicU64,
}

hal::machine_static! {
    static LIMITS: Once<Limits> = Once::new();
}

/// Starts the watchdog with a limit of `seconds` for CPUs; 0 starts none. Called once, after the scheduler has been set up.
pub fn start(seconds: u32) {
    if seconds == 0 {
        return;
    }
    let ncpus = hal::cpu::count();
    let cpu_ns = u64::from(seconds) * time::SECOND;
    LIMITS.get_or_init(|| Limits {
        cpu_ns,
        lock_ns: 3 * cpu_ns,
        sleeping: Counter::new(ncpus),
        still: AtomicU64::new(0),
        asleep: AtomicU64::new(0),
    });
    // Each thread watches the CPU of the other one, so one of two CPUs that stand still is noticed unless all do.
    for cpu in 0..ncpus.min(2) {
        if kthread::spawn("watchdog", Some(cpu), 0, move || watch(cpu)).is_err() {
            kprintln!("watchdog: no memory for the thread");
        }
    }
}

/// Nanoseconds that a CPU may go without an interrupt; `None` without a watchdog.
pub fn limit_ns() -> Option<u64> {
    LIMITS.get().map(|limits| limits.cpu_ns)
}

/// CPUs that were found standing still, and whose reports have been printed.
pub fn still() -> u64 {
    LIMITS.get().map_or(0, |limits| limits.still.load(Acquire))
}

/// Sleeps that were found too long, and whose reports have been printed.
pub fn asleep() -> u64 {
    LIMITS.get().map_or(0, |limits| limits.asleep.load(Acquire))
}

/// The interrupt count of a CPU, as last read.
#[derive(Clone, Copy, Default)]
struct Heard {
    count: u64,
    /// When the count was found changed, in nanoseconds.
    since_ns: u64,
}

/// What the watchdog's thread on CPU `here`, 0 or 1, does. Does not return.
fn watch(here: usize) {
    let Some(limits) = LIMITS.get() else { return };
    let now = time::monotonic_ns();
    let mut heard: Vec<Heard> = (0..hal::cpu::count())
        .map(|_| Heard {
            count: 0,
            since_ns: now,
        })
        .collect();
    loop {
        let _ = sleep_until(Deadline::after(limits.cpu_ns / 5), Interruptible::No);
        // The second thread watches the CPU of the first.
        let watched = if here == 0 { 0..heard.len() } else { 0..1 };
        for cpu in watched.filter(|&cpu| cpu != here) {
            look_at(limits, cpu, &mut heard[cpu]);
        }
        if here == 0 && limits.sleeping.sum() > 0 {
            look_at_sleepers(limits);
        }
    }
}

/// Sends `cpu` an interrupt if it has taken none since the last look, as `heard` says, and reports it once for each limit that
/// has passed without one.
fn look_at(limits: &Limits, cpu: usize, heard: &mut Heard) {
    let now = time::monotonic_ns();
    let count = hal::percpu::interrupt_counts(cpu).map_or(0, |counts| counts.iter().sum());
    if count != heard.count {
        *heard = Heard {
            count,
            since_ns: now,
        };
        return;
    }
    hal::ipi::reschedule(cpu);
    let silent = now.saturating_sub(heard.since_ns);
    if silent >= limits.cpu_ns {
        kprintln!(
            "watchdog: CPU {cpu} has taken no interrupt for {} s",
            silent / time::SECOND
        );
        heard.since_ns = now;
        report();
        limits.still.fetch_add(1, Release);
    }
}

/// Makes each thread that has slept too long for a lock report that.
fn look_at_sleepers(limits: &Limits) {
    let now = hal::time::ticks();
    ids::each(|_, t| {
        let since = t.sleeps_for_lock.load(Relaxed);
        let slept = hal::time::ticks_to_ns(now.saturating_sub(since));
        if since != 0 && slept > limits.lock_ns {
            unpark(t.tid());
        }
    });
}

/// Records that the calling thread begins to sleep for a lock at `ticks` (of the TSC), or with 0 that it has the lock.
pub fn sleeps_for_lock(ticks: u64) {
    let Some(limits) = LIMITS.get() else { return };
    let me = current();
    let was = me.sleeps_for_lock.load(Relaxed);
    if was == 0 && ticks == 0 {
        // The thread has slept since before the watchdog was started.
        return;
    }
    me.sleeps_for_lock.store(ticks, Relaxed);
    limits
        .sleeping
        .add(&ksync::pin(), if ticks == 0 { -1 } else { 1 });
}

/// Reports, if the limit has passed, that the calling thread has slept for the lock `name` since `ticks`. Thread `holder`
/// holds it, if not 0.
pub fn still_waits(name: &'static str, holder: u32, ticks: u64) {
    let Some(limits) = LIMITS.get() else { return };
    let ns = hal::time::ticks_to_ns(hal::time::ticks().saturating_sub(ticks));
    if ns <= limits.lock_ns {
        return;
    }
    let me = current();
    // The next report is due after the same time again.
    me.sleeps_for_lock.store(hal::time::ticks(), Relaxed);
    kprintln!(
        "watchdog: thread {} ({}) has slept {} s for lock \"{name}\"",
        me.tid(),
        name_of(&me.comm()),
        ns / time::SECOND
    );
    match (holder != 0).then(|| ids::hold_thread(holder)).flatten() {
        Some(t) => kprintln!(
            "watchdog: held by thread {holder} ({}), {} on CPU {}",
            name_of(&t.comm()),
            t.state_letter() as char,
            t.cpu()
        ),
        None => kprintln!("watchdog: its holder is not known"),
    }
    report();
    limits.asleep.fetch_add(1, Release);
}

fn name_of(comm: &Comm) -> &str {
    let len = comm.iter().position(|&b| b == 0).unwrap_or(comm.len());
    core::str::from_utf8(&comm[..len]).unwrap_or("?")
}

/// Prints what every CPU does, and in debug builds which locks its thread holds.
fn report() {
    hal::snapshot::report(|cpu| {
        let tid = sched::running(cpu);
        match ids::hold_thread(tid) {
            Some(t) => {
                kprintln!("  thread {tid} ({})", name_of(&t.comm()));
                for class in t.held().iter() {
                    kprintln!("  holds \"{}\"", class.name());
                }
            }
            None => kprintln!("  idle"),
        }
    });
}
