//! Work on behalf of all that ask for it, done seldom.
//!
//! Guarantee: a call returns after a round of the work that began after the call. Two rounds begin `pause` apart at least, however many
//! threads call: those that come meanwhile sleep, and share the next round. Mechanism: rounds are numbered as they begin, and a caller
//! that finds one ended whose number is greater than the last at its arrival needs none of its own.

use ksync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::park::{Deadline, Interruptible, sleep_until};
use crate::time;

/// The rounds of one kind of work.
#[derive(Default)]
pub struct Pace {
    /// When the last round began, in nanoseconds of the monotonic clock. Atomic.
    began: AtomicU64,
    /// The number of the last round that has begun. Atomic.
    first: AtomicU64,
    /// The greatest number of a round that has ended. Atomic.
    ended: AtomicU64,
}

impl Pace {
    /// No round has begun.
    pub const fn new() -> Self {
        Pace {
            began: AtomicU64::new(0),
            first: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    /// Returns once a round that began after the call has ended, with at least `pause` nanoseconds between two rounds: `round`, or that of
    /// another caller. Sleeps; a thread that is killed may return early. No lock held.
    pub fn share(&self, pause: u64, round: impl FnOnce()) {
        let came = self.first.load(SeqCst);
        while self.ended.load(SeqCst) <= came {
            let (last, now) = (self.began.load(SeqCst), time::monotonic_ns());
            let next = if last == 0 {
                0
            } else {
                last.saturating_add(pause)
            };
            if now < next {
                if sleep_until(Deadline::At(next), Interruptible::Kill).is_err() {
                    return;
                }
                continue;
            }
            let turn = self.began.compare_exchange(last, now, SeqCst, SeqCst);
            if turn.is_ok() {
                let number = self.first.fetch_add(1, SeqCst) + 1;
                round();
                self.ended.fetch_max(number, SeqCst);
                return;
            }
        }
    }
}
