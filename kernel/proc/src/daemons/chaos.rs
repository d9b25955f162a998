//! `vmchaos`: while anything runs, random pages lose all their translations and random spaces their
//! page tables.  Both are always legal, so no program may notice.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU8, AtomicU64};

use hal::kprintln;
use mem::vm;
use task::kthread;
use task::park::{Deadline, Interruptible, sleep_until};
use vm::Pfn;
use vm::space::Chaos;

use crate::ids;

/// Pages tried between two pauses.
const BURST: u32 = 64;
/// Pause between two bursts.
const PAUSE_NS: u64 = 1_000_000;

/// Pages looked at, pages that belonged to an object, translations removed, table pages dropped.  Atomic; written
/// by the chaos thread.
static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// What the thread does: nothing, its work, or its last round.
const OFF: u8 = 0;
const ON: u8 = 1;
const ENDING: u8 = 2;
/// One of these. Atomic: set to `ON` at boot, to `ENDING` by who ends it, to `OFF` by the thread.
static STATE: AtomicU8 = AtomicU8::new(OFF);

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

/// Ends the thread, if it runs, and tells what it did. Sleeps.
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
        // xorshift64: any spread will do.
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

/// Drops the tables of one process.
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

/// Prints the counters: what a boot test reads.
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
