//! `vmchaos`: random pages lose all their translations and random address spaces their page tables, while other threads
//! run. Both are legal at any time, so no program may notice.

use ksync::atomic::Ordering::{Relaxed, SeqCst};
use ksync::atomic::{AtomicU8, AtomicU64};

use hal::kprintln;
use mem::vm;
use task::kthread;
use task::park::{Deadline, Interruptible, sleep_until};
use vm::Pfn;
use vm::space::Chaos;

use crate::ids;

/// Pages that are tried between two pauses.
const BURST: u32 = 64;
/// Pause between two bursts, in nanoseconds.
const PAUSE_NS: u64 = 1_000_000;

hal::machine_static! {
    /// How many pages were tried, how many of them belonged to an object, how many translations were removed and how many
    /// table pages dropped. Atomic; written by the chaos thread.
    static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
}

/// The thread does not run, works, or is asked to end.
const OFF: u8 = 0;
const ON: u8 = 1;
const ENDING: u8 = 2;
hal::machine_static! {
    /// One of these. Atomic: `ON` is written at boot, `ENDING` by [`stop`], `OFF` by the thread.
    static STATE: AtomicU8 = AtomicU8::new(OFF);
}

fn bump(i: usize, n: u64) {
    COUNTS[i].fetch_add(n, Relaxed);
}

/// Starts the thread.
pub(super) fn start() {
    STATE.store(ON, SeqCst);
    if kthread::spawn("vmchaos", None, 0, run).is_err() {
        STATE.store(OFF, SeqCst);
        kprintln!("vmchaos: no memory for its thread");
    }
}

/// Ends the thread if it runs, and prints what it did. Sleeps.
pub fn stop() {
    if STATE.compare_exchange(ON, ENDING, SeqCst, SeqCst).is_err() {
        return;
    }
    while STATE.load(SeqCst) != OFF {
        let _ = sleep_until(Deadline::after(PAUSE_NS), Interruptible::No);
    }
    report();
}

fn run() {
    let mut random = hal::time::ticks() | 1;
    let mut next = move || {
        // xorshift64: any distribution will do.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    while STATE.load(SeqCst) == ON {
        for _ in 0..BURST {
            let pfn = Pfn((next() % vm().pages.len() as u64) as u32);
            bump(0, 1);
            if let Chaos::Removed(n) = vm().chaos_scan(pfn) {
                bump(1, 1);
                bump(2, n as u64);
            }
        }
        drop_some_tables(next());
        let _ = sleep_until(Deadline::after(PAUSE_NS), Interruptible::No);
    }
    STATE.store(OFF, SeqCst);
}

/// Drops the page tables of one process, chosen at random.
fn drop_some_tables(random: u64) {
    let mut spaces = 0u64;
    ids::each_process(0, |p| {
        spaces += u64::from(p.space().is_some());
        true
    });
    if spaces == 0 {
        return;
    }
    let (chosen, mut at, mut found) = (random % spaces, 0, None);
    ids::each_process(0, |p| {
        if let Some(space) = p.space() {
            if at == chosen {
                found = Some(space);
            }
            at += 1;
        }
        at <= chosen
    });
    if let Some(space) = found {
        bump(3, space.drop_tables(vm()) as u64);
    }
}

/// Prints the counters, for a boot test to read.
fn report() {
    let c: [u64; 4] = core::array::from_fn(|i| COUNTS[i].load(Relaxed));
    kprintln!(
        "vmchaos: pages={} scanned={} removed={} tables={}",
        c[0],
        c[1],
        c[2],
        c[3]
    );
}
