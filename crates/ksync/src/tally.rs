//! Amounts of several kinds that are charged and given back on any CPU, and compared with a limit.
//!
//! Guarantee: a charge and its return write one line of their CPU. A charge of less than a batch that [`Tally::is_over`] has
//! let pass is within the limit, whatever other CPUs charge at that time; with a larger one, each CPU that charges at the
//! same moment may be beyond it by less than a batch. What comes back while the CPUs are summed may be seen too late, so a
//! charge may be refused that would just have fitted. [`Tally::outstanding`] is never 0 if something was outstanding all the time.
//!
//! Mechanism: each CPU counts what was charged there and what was given back there, apart, and both only grow. A
//! reader sums what was given back first. Whatever he sees given back was charged before, so the difference is never less
//! than what was outstanding when he turned from the one to the other.
//!
//! So that not every charge sums, a CPU tells a common word whenever its own balance has moved by a *batch*. While that
//! word is farther from the limit than all CPUs' batches, nobody sums.

use crate::{
    atomic::{AtomicI64, Ordering::*, fence},
    percpu::{CpuPin, Padded, PerCpu},
};

/// What one CPU has counted of one kind. Written by that CPU alone, with preemption off, never by interrupt handlers.
#[derive(Debug, Default)]
struct Count {
    charged: AtomicI64,
    returned: AtomicI64,
    /// The balance that the common word has.
    told: AtomicI64,
}

impl Count {
    fn balance(&self) -> i64 {
        self.charged.load(Relaxed) - self.returned.load(Relaxed)
    }
}

/// Amounts of `N` kinds. See the module.
#[derive(Debug)]
pub struct Tally<const N: usize> {
    cpus: PerCpu<[Count; N]>,
    /// Balances as far as they have been told. Atomic; written once in a batch.
    common: Padded<[AtomicI64; N]>,
    /// How far a CPU's balance may move untold. Const.
    batches: [i64; N],
}

impl<const N: usize> Tally<N> {
    /// Nothing is outstanding. A kind's batch is how far a CPU's balance moves untold; `i64::MAX` for a kind that has no limit.
    pub fn new(ncpus: usize, batches: [i64; N]) -> Self {
        Self {
            cpus: PerCpu::new(ncpus, |_| core::array::from_fn(|_| Count::default())),
            common: Padded(core::array::from_fn(|_| AtomicI64::new(0))),
            batches,
        }
    }

    /// Bytes that one takes for each CPU.
    pub const CPU_BYTES: usize = size_of::<Padded<[Count; N]>>();

    /// Charges `n`.
    #[inline]
    pub fn charge(&self, pin: &CpuPin, kind: usize, n: i64) {
        let count = &self.cpus.get(pin)[kind];
        // Not a read-modify-write: this CPU alone writes it. Relaxed: who sees a return knows of the charge by that, and
        // nobody else concludes anything from a charge but its amount.
        count
            .charged
            .store(count.charged.load(Relaxed) + n, Relaxed);
        self.tell(count, kind);
    }

    /// Gives `n` back, of what was charged on whatever CPU.
    #[inline]
    pub fn give_back(&self, pin: &CpuPin, kind: usize, n: i64) {
        let count = &self.cpus.get(pin)[kind];
        // Release: who sees this sees the charge, of which the caller knows.
        count
            .returned
            .store(count.returned.load(Relaxed) + n, Release);
        self.tell(count, kind);
    }

    #[inline]
    fn tell(&self, count: &Count, kind: usize) {
        let moved = count.balance() - count.told.load(Relaxed);
        if moved.unsigned_abs() >= self.batches[kind].unsigned_abs() {
            self.tell_batch(count, kind, moved);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_batch(&self, count: &Count, kind: usize, moved: i64) {
        count.told.store(count.told.load(Relaxed) + moved, Relaxed);
        self.common.0[kind].fetch_add(moved, Relaxed);
    }

    /// Whether more than `limit` is outstanding, with what the caller has charged: then it gives that back.
    #[inline]
    pub fn is_over(&self, kind: usize, limit: i64) -> bool {
        // Twice: a batch that is just being told may stand in neither place.
        let slack = self.batches[kind].saturating_mul(2 * self.cpus.ncpus() as i64);
        self.common.0[kind].load(Relaxed).saturating_add(slack) > limit
            && self.is_over_exactly(kind, limit)
    }

    #[cold]
    #[inline(never)]
    fn is_over_exactly(&self, kind: usize, limit: i64) -> bool {
        // Of two who charge at once, one at least sees the other's charge.
        fence(SeqCst);
        self.outstanding(kind) > limit
    }

    /// What is outstanding: not less than it was at some moment of the call, and exact while nobody charges or gives back.
    pub fn outstanding(&self, kind: usize) -> i64 {
        self.sum(|cpu| &cpu[kind].returned, |cpu| &cpu[kind].charged)
    }

    /// Whether of each kind, in their order, nothing was outstanding at some moment of the call.
    pub fn is_settled(&self) -> bool {
        (0..N).all(|kind| self.outstanding(kind) == 0)
    }

    fn sum(
        &self,
        returned: impl Fn(&[Count; N]) -> &AtomicI64,
        charged: impl Fn(&[Count; N]) -> &AtomicI64,
    ) -> i64 {
        // Acquire: with each return that is seen its charge is, and whatever was charged before it.
        let back: i64 = self
            .cpus
            .iter()
            .map(|cpu| returned(cpu).load(Acquire))
            .sum();
        let all: i64 = self.cpus.iter().map(|cpu| charged(cpu).load(Relaxed)).sum();
        all - back
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::percpu::pin;

    #[test]
    fn a_limit_is_kept_to_the_last_unit() {
        let tally = Tally::<2>::new(4, [8, i64::MAX]);
        let pin = pin();
        let mut had = 0;
        loop {
            tally.charge(&pin, 0, 1);
            if tally.is_over(0, 100) {
                tally.give_back(&pin, 0, 1);
                break;
            }
            had += 1;
        }
        assert_eq!(
            (had, tally.outstanding(0), tally.outstanding(1)),
            (100, 100, 0)
        );
        assert!(!tally.is_settled());
        tally.give_back(&pin, 0, 100);
        assert!(tally.is_settled());
        assert!(!tally.is_over(0, 0));
    }

    #[test]
    fn only_what_is_near_the_limit_is_summed() {
        let tally = Tally::<1>::new(1, [8]);
        let pin = pin();
        for _ in 0..7 {
            tally.charge(&pin, 0, 1);
        }
        assert_eq!(tally.common.0[0].load(Relaxed), 0, "untold");
        tally.charge(&pin, 0, 1);
        assert_eq!(tally.common.0[0].load(Relaxed), 8);
        for _ in 0..8 {
            tally.give_back(&pin, 0, 1);
        }
        assert_eq!(tally.common.0[0].load(Relaxed), 0);
        tally.charge(&pin, 0, 1000);
        assert!(tally.is_over(0, 999));
        assert!(!tally.is_over(0, 1000));
    }
}
