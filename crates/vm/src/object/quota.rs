//! Limit on the pages of the files of one file system, or on the number of its files.
//!
//! Guarantee: no more units are in use than the limit. A request fails only if no unit is left but those that other
//! CPUs are just moving between pot and purse.
//!
//! Mechanism: units that are not in use are *credits*, each in one place: the common pot, or a CPU's own purse, which
//! exchanges many at a time with the pot. So files on different CPUs share no line while there are enough credits; the
//! other CPUs' purses are emptied only when the pot is empty.
//!
//! All accesses are Relaxed: a credit publishes no data. Credits are taken and moved by read-modify-writes, which read
//! the latest value of their word; and an operation that finds the pot empty moves all purses into it before it tries
//! again.

use ksync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use ksync::{Counter, CpuPin, PerCpu};

/// Credits moved between pot and purse at a time.
const BURST: i64 = 32;

/// The new limit is below the number in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InUse;

/// A limit of pages, or of files. See the module.
pub struct Quota {
    /// Units that may be in use. Atomic; changed by `resize` alone, whose calls the caller serialises.
    limit: AtomicU64,
    /// Credits that no CPU holds. Never negative.
    pot: AtomicI64,
    /// Credits of each CPU; other CPUs take them when the pot is empty.
    purses: PerCpu<AtomicI64>,
    /// Number of objects that refer to the quota.
    objects: Counter,
}

impl Quota {
    /// A quota of `limit` units for a machine of `ncpus`.
    pub fn new(ncpus: usize, limit: u64) -> Quota {
        Quota {
            limit: AtomicU64::new(limit),
            pot: AtomicI64::new(credits(limit)),
            purses: PerCpu::new(ncpus, |_| AtomicI64::new(0)),
            objects: Counter::new(ncpus),
        }
    }

    /// The limit, in units.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Units that are left. Exact while no credits are taken or returned.
    pub fn left(&self) -> u64 {
        let purses: i64 = self.purses.iter().map(|purse| purse.load(Relaxed)).sum();
        (self.pot.load(Relaxed) + purses).max(0) as u64
    }

    /// Units in use.
    pub fn used(&self) -> u64 {
        self.limit().saturating_sub(self.left())
    }

    /// Number of objects that refer to the quota, with or without pages. Exact while none is made or ends.
    pub fn objects(&self) -> usize {
        self.objects.sum().max(0) as usize
    }

    /// Changes the limit. The caller serialises changes.
    ///
    /// # Errors
    /// More is in use; nothing has changed.
    pub fn resize(&self, limit: u64) -> Result<(), InUse> {
        self.collect();
        let change = credits(limit) - credits(self.limit());
        let enough = |pot: i64| (pot + change >= 0).then_some(pot + change);
        self.pot
            .fetch_update(Relaxed, Relaxed, enough)
            .map_err(|_| InUse)?;
        self.limit.store(limit, Relaxed);
        Ok(())
    }

    /// Takes the credit of one unit from any place; false if none is left.
    pub fn charge(&self, pin: &CpuPin) -> bool {
        self.take(pin) || self.take_burst(pin)
    }

    /// Takes the credits of `n` units at once; false, and nobody has missed one meanwhile, if fewer are left.
    pub(super) fn charge_many(&self, n: usize) -> bool {
        let n = n as u64;
        let take = || {
            let many = |pot: i64| (credits(n) <= pot).then(|| pot - credits(n));
            self.pot.fetch_update(Relaxed, Relaxed, many).is_ok()
        };
        take() || {
            // Only where they may be enough: while they are on their way to the pot, others do not find them.
            n <= self.left() && {
                self.collect();
                take()
            }
        }
    }

    /// Takes the credit of one page from the CPU's own purse, if it has one.
    #[inline]
    pub(super) fn take(&self, pin: &CpuPin) -> bool {
        let purse = self.purses.get(pin);
        purse
            .fetch_update(Relaxed, Relaxed, |n| (n > 0).then_some(n - 1))
            .is_ok()
    }

    /// Takes the credit of one page from any place, and more for the CPU's purse; false if none is left.
    pub(super) fn take_burst(&self, pin: &CpuPin) -> bool {
        let burst = |pot: i64| (pot > 0).then(|| pot - pot.min(BURST));
        let taken = match self.pot.fetch_update(Relaxed, Relaxed, burst) {
            Ok(pot) => pot.min(BURST),
            Err(_) => {
                self.collect();
                let last = |pot: i64| (pot > 0).then_some(pot - 1);
                match self.pot.fetch_update(Relaxed, Relaxed, last) {
                    Ok(_) => 1,
                    Err(_) => return false,
                }
            }
        };
        self.purses.get(pin).fetch_add(taken - 1, Relaxed);
        true
    }

    /// Returns the credits of `n` units.
    pub fn give(&self, pin: &CpuPin, n: usize) {
        let purse = self.purses.get(pin);
        let now = purse.fetch_add(n as i64, Relaxed) + n as i64;
        if now > 2 * BURST {
            let surplus = purse.fetch_update(Relaxed, Relaxed, |n| (n > BURST).then_some(BURST));
            self.pot
                .fetch_add(surplus.map_or(0, |n| n - BURST), Relaxed);
        }
    }

    /// Counts a new object (1), or the end of one (-1).
    pub(super) fn count_object(&self, n: i64) {
        self.objects.add(&ksync::pin(), n);
    }

    /// Empties all purses into the pot.
    fn collect(&self) {
        for purse in self.purses.iter() {
            let taken = purse.swap(0, Relaxed);
            self.pot.fetch_add(taken, Relaxed);
        }
    }
}

fn credits(limit: u64) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_and_the_last_one_can_be_had() {
        let quota = Quota::new(1, 100);
        let pin = ksync::pin();
        let take = || quota.take(&pin) || quota.take_burst(&pin);
        let taken = (0..200).filter(|_| take()).count();
        assert_eq!((taken, quota.left(), quota.used()), (100, 0, 100));
        quota.give(&pin, 70);
        assert_eq!(quota.used(), 30);
        assert_eq!(quota.resize(29), Err(InUse));
        assert_eq!(quota.resize(40), Ok(()));
        assert_eq!((quota.left(), quota.limit()), (10, 40));
        let taken = (0..200).filter(|_| take()).count();
        assert_eq!(taken, 10);
    }

    #[test]
    fn many_at_once_come_from_all_places() {
        let quota = Quota::new(2, 1000);
        let pin = ksync::pin();
        // Some are in a purse.
        assert!(quota.charge(&pin));
        assert!(!quota.charge_many(1000));
        assert_eq!(quota.left(), 999);
        assert!(quota.charge_many(999));
        assert_eq!((quota.left(), quota.charge_many(1)), (0, false));
        quota.give(&pin, 1000);
        assert_eq!((quota.left(), quota.charge_many(1000)), (1000, true));
    }

    #[test]
    fn who_asks_for_too_many_takes_none_from_others() {
        let quota = Quota::new(1, 1);
        let others = 20_000;
        let asked = AtomicU64::new(0);
        std::thread::scope(|s| {
            s.spawn(|| {
                (0..others).for_each(|_| {
                    assert!(!quota.charge_many(512));
                    asked.fetch_add(1, Relaxed);
                });
            });
            let (pin, mut denied) = (ksync::pin(), 0);
            while asked.load(Relaxed) < others {
                if quota.charge(&pin) {
                    quota.give(&pin, 1);
                } else {
                    denied += 1;
                }
            }
            assert_eq!(denied, 0);
        });
    }
}
