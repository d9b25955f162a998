//! Amounts of several kinds that are charged and returned on any CPU, and compared with a limit.
//!
//! Guarantee: a charge or a return writes one line of its CPU. If a charge of less than a batch passes
//! [`Tally::is_over`], it is within the limit, whatever other CPUs charge at the same time. If it is larger, each CPU
//! that charges at the same moment may exceed the limit by less than a batch. A return that happens while the CPUs are
//! summed may be seen too late, so that a charge may be refused although it just fits. [`Tally::outstanding`] is never
//! 0 if something was outstanding all the time.
//!
//! Mechanism: each CPU counts what was charged there and what was returned there in two counters that only grow. A
//! reader sums the returns first. Every return that it sees was charged before, so the difference is never less than
//! what was outstanding between the two sums. The counters may wrap around: only what is outstanding is an amount.
//!
//! So that not every charge needs a sum, a CPU adds its balance to a common word whenever that has changed by a
//! *batch*. As long as the common word is farther from the limit than all CPUs' batches, no sum is made.

use crate::{
    atomic::{AtomicI64, Ordering::*, fence},
    percpu::{CpuPin, Padded, PerCpu},
};

/// The counters of one CPU and one kind. Written by that CPU alone, with preemption off, never by interrupt handlers.
#[derive(Debug, Default)]
struct Count {
    charged: AtomicI64,
    returned: AtomicI64,
    /// The part of the balance that was added to the common word.
    told: AtomicI64,
}

impl Count {
    fn balance(&self) -> i64 {
        self.charged
            .load(Relaxed)
            .wrapping_sub(self.returned.load(Relaxed))
    }
}

/// Amounts of `N` kinds. See the module.
#[derive(Debug)]
pub struct Tally<const N: usize> {
    cpus: PerCpu<[Count; N]>,
    /// Balances as far as they were added. Atomic; written once per batch.
    common: Padded<[AtomicI64; N]>,
    /// How far a CPU's balance may change before it is added. Const.
    batches: [i64; N],
}

impl<const N: usize> Tally<N> {
    /// Nothing is outstanding. `batches`: how far a CPU's balance of each kind may change before it is added to the
    /// common word; `i64::MAX` for a kind without a limit.
    pub fn new(ncpus: usize, batches: [i64; N]) -> Self {
        Self {
            cpus: PerCpu::new(ncpus, |_| core::array::from_fn(|_| Count::default())),
            common: Padded(core::array::from_fn(|_| AtomicI64::new(0))),
            batches,
        }
    }

    /// Bytes that a tally takes for each CPU.
    pub const CPU_BYTES: usize = size_of::<Padded<[Count; N]>>();

    /// Charges `n`.
    #[inline]
    pub fn charge(&self, pin: &CpuPin, kind: usize, n: i64) {
        let count = &self.cpus.get(pin)[kind];
        // Not a read-modify-write: this CPU alone writes it. Relaxed: a CPU that sees a return also sees the charge;
        // otherwise only the amount of a charge matters.
        count
            .charged
            .store(count.charged.load(Relaxed).wrapping_add(n), Relaxed);
        self.tell(count, kind);
    }

    /// Returns `n`, which may have been charged on any CPU.
    #[inline]
    pub fn give_back(&self, pin: &CpuPin, kind: usize, n: i64) {
        let count = &self.cpus.get(pin)[kind];
        // Release: a CPU that sees this also sees the charge, which the caller knows of.
        count
            .returned
            .store(count.returned.load(Relaxed).wrapping_add(n), Release);
        self.tell(count, kind);
    }

    #[inline]
    fn tell(&self, count: &Count, kind: usize) {
        let moved = count.balance().wrapping_sub(count.told.load(Relaxed));
        if moved.unsigned_abs() >= self.batches[kind].unsigned_abs() {
            self.tell_batch(count, kind, moved);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_batch(&self, count: &Count, kind: usize, moved: i64) {
        count
            .told
            .store(count.told.load(Relaxed).wrapping_add(moved), Relaxed);
        self.common.0[kind].fetch_add(moved, Relaxed);
    }

    /// Whether more than `limit` is outstanding, the caller's charge included: the caller then returns its charge.
    #[inline]
    pub fn is_over(&self, kind: usize, limit: i64) -> bool {
        // Twice: a batch that is just being added may be missing in both places.
        let slack = self.batches[kind].saturating_mul(2 * self.cpus.ncpus() as i64);
        self.common.0[kind].load(Relaxed).saturating_add(slack) > limit
            && self.is_over_exactly(kind, limit)
    }

    #[cold]
    #[inline(never)]
    fn is_over_exactly(&self, kind: usize, limit: i64) -> bool {
        // Of two CPUs that charge at once, at least one sees the other's charge.
        fence(SeqCst);
        self.outstanding(kind) > limit
    }

    /// The amount outstanding: not less than at some moment of the call, and exact while there are no charges and
    /// returns.
    pub fn outstanding(&self, kind: usize) -> i64 {
        self.sum(|cpu| &cpu[kind].returned, |cpu| &cpu[kind].charged)
    }

    /// Whether for each kind, one after the other, nothing was outstanding at some moment of the call.
    pub fn is_settled(&self) -> bool {
        (0..N).all(|kind| self.outstanding(kind) == 0)
    }

    fn sum(
        &self,
        returned: impl Fn(&[Count; N]) -> &AtomicI64,
        charged: impl Fn(&[Count; N]) -> &AtomicI64,
    ) -> i64 {
        // Acquire: a reader that sees a return also sees its charge, and all earlier charges.
        let cpus = || self.cpus.iter();
        let back = cpus().map(|cpu| returned(cpu).load(Acquire));
        let back = back.fold(0, i64::wrapping_add);
        let all = cpus().map(|cpu| charged(cpu).load(Relaxed));
        all.fold(0, i64::wrapping_add).wrapping_sub(back)
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

    /// What was charged and returned so far may be more than a counter holds; what is outstanding is not.
    #[test]
    fn counters_wrap_around() {
        const HUGE: i64 = i64::MAX / 2;
        let tally = Tally::<1>::new(2, [8]);
        let pin = pin();
        tally.charge(&pin, 0, 5);
        for _ in 0..5 {
            tally.charge(&pin, 0, HUGE);
            assert_eq!(tally.outstanding(0), HUGE + 5);
            assert!(tally.is_over(0, HUGE));
            tally.give_back(&pin, 0, HUGE);
            assert_eq!(tally.outstanding(0), 5);
            assert!(!tally.is_over(0, 5));
        }
        tally.give_back(&pin, 0, 5);
        assert!(tally.is_settled());
    }
}
