//! Load averages: how many threads ran or were ready to run, over one, five and fifteen minutes.
//!
//! The first tick of any CPU after each five seconds takes a sample. A sample that none has taken two ticks later was due while
//! all CPUs were idle; it is taken with a load of 0 at the next tick, or when the averages are read.

use ksync::atomic::{AtomicU64, Ordering};

use super::cpu::{TICK_NS, runnable};
use crate::time;

const PERIOD: u64 = 5 * time::SECOND;
/// Fixed point: 11 bits of fraction.
const ONE: u64 = 1 << 11;
/// exp(-5 s / 1 min), exp(-5 s / 5 min), exp(-5 s / 15 min).
const DECAY: [u64; 3] = [1884, 2014, 2037];
/// Periods after which the oldest sample has no weight left.
const MEMORY: u64 = 1000;

hal::machine_static! {
    static AVERAGES: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
    /// Periods for which a sample has been taken since boot.
    static SAMPLED: AtomicU64 = AtomicU64::new(0);
}

/// Takes the samples that are due at `now`.
pub(super) fn sample(now: u64) {
    let due = now / PERIOD;
    let done = SAMPLED.load(Ordering::Relaxed);
    if due <= done
        || SAMPLED
            .compare_exchange(done, due, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
    {
        return;
    }
    let late = now % PERIOD > 2 * TICK_NS;
    let active = if late { 0 } else { u64::from(runnable()) * ONE };
    // The last of them is the one that may not be late.
    for missed in (0..(due - done).min(MEMORY)).rev() {
        let active = if missed == 0 { active } else { 0 };
        for (average, decay) in AVERAGES.iter().zip(DECAY) {
            let old = average.load(Ordering::Relaxed);
            average.store(
                (old * decay + active * (ONE - decay)) / ONE,
                Ordering::Relaxed,
            );
        }
    }
}

/// The averages in thousandths.
pub fn load_average() -> [u64; 3] {
    sample(time::monotonic_ns());
    [0, 1, 2].map(|i| AVERAGES[i].load(Ordering::Relaxed) * 1000 / ONE)
}
