//! Load averages: how many threads ran or were ready to run, over one, five and fifteen minutes.
//!
//! CPU 0 takes a sample every five seconds, as in Linux. Samples that were missed because CPU 0 was idle are taken later,
//! with the load of that moment: at its next tick, or when the averages are read.

use ksync::atomic::{AtomicU64, Ordering};

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
    let active = u64::from(super::cpu::runnable()) * ONE;
    for _ in 0..(due - done).min(MEMORY) {
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
