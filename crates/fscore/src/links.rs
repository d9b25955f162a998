//! The number of names of a file.
//!
//! Guarantee: a name that is counted before it exists can be taken back, whichever other names were counted and taken back
//! in the meantime.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

/// Flag: the file never had a name, and may get one. It stays while names are counted that do not exist yet.
const LINKABLE: u32 = 1 << 31;

/// Why a name was not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The file has lost its last name, or may get none.
    Gone,
    /// It has as many as it may have.
    TooMany,
}

/// The number of names. Atomic.
pub struct Links(AtomicU32);

impl Links {
    /// A count of `n` names.
    pub const fn new(n: u32) -> Links {
        Links(AtomicU32::new(n))
    }

    /// The number now. What was done before names were subtracted is visible.
    pub fn count(&self) -> u32 {
        self.0.load(Acquire) & !LINKABLE
    }

    /// Makes it the count of a new file without a name. `linkable` says whether it may get one later.
    pub fn set_none(&self, linkable: bool) {
        self.0.store(if linkable { LINKABLE } else { 0 }, Relaxed);
    }

    /// Adds `n`.
    pub fn add(&self, n: u32) {
        self.0.fetch_add(n, Relaxed);
    }

    /// Subtracts `n`. Returns the number before.
    pub fn take(&self, n: u32) -> u32 {
        self.0.fetch_sub(n, Release) & !LINKABLE
    }

    /// Counts a name that does not exist yet: [`named`](Self::named) says that it does, and [`take`](Self::take) that it
    /// never will. `gone` says that a file without a name cannot be kept any more. Returns whether it is the only name: for
    /// the first name of a file that never had one, `max` does not count.
    ///
    /// # Errors
    /// [`Refused`]: `TooMany` if there are `max` names; `Gone` if there is none, and none may come. Nothing is counted.
    pub fn add_name(&self, max: u32, gone: bool) -> Result<bool, Refused> {
        let more = |n| match n {
            LINKABLE if !gone => Some(n + 1),
            0 | LINKABLE => None,
            n => (n & !LINKABLE < max).then_some(n + 1),
        };
        match self.0.fetch_update(Relaxed, Relaxed, more) {
            Ok(old) => Ok(old == LINKABLE),
            Err(0 | LINKABLE) => Err(Refused::Gone),
            Err(_) => Err(Refused::TooMany),
        }
    }

    /// The name that was counted exists: once all names are gone, the file can get none.
    pub fn named(&self) {
        if self.0.load(Relaxed) & LINKABLE != 0 {
            self.0.fetch_and(!LINKABLE, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_back_leaves_the_others() {
        let links = Links::new(1);
        links.set_none(true);
        assert_eq!(links.add_name(9, false), Ok(true));
        assert_eq!(links.add_name(9, false), Ok(false));
        // The first link fails after the second has begun.
        assert_eq!(links.take(1), 2);
        links.named();
        assert_eq!(links.count(), 1);
        assert_eq!(links.take(1), 1);
        assert_eq!(links.add_name(9, false), Err(Refused::Gone));
    }

    #[test]
    fn a_file_without_a_name_stays_linkable_until_it_gets_one() {
        let links = Links::new(1);
        links.set_none(true);
        for _ in 0..2 {
            assert_eq!(links.add_name(9, false), Ok(true));
            assert_eq!(links.add_name(9, false), Ok(false));
            assert_eq!((links.take(1), links.take(1)), (2, 1));
            assert_eq!(links.count(), 0);
        }
        assert_eq!(links.add_name(9, true), Err(Refused::Gone));
        assert_eq!(links.add_name(2, false), Ok(true));
        assert_eq!(links.add_name(2, false), Ok(false));
        assert_eq!(links.add_name(2, false), Err(Refused::TooMany));
        links.named();
        links.take(2);
        assert_eq!(links.add_name(2, false), Err(Refused::Gone));
        links.set_none(false);
        assert_eq!(links.add_name(2, false), Err(Refused::Gone));
    }
}
