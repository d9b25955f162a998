//! Locks on ranges of a file: who holds what, as fcntl(2) and flock(2) have it.
//!
//! Guarantee: two owners never hold overlapping ranges unless both are shared; an owner's own ranges never overlap, and
//! neighbours of one kind are one range. A call that fails for want of memory changes nothing.

use alloc::vec::Vec;

/// The last byte that a range can have: "to the end, however far that grows".
pub const END: u64 = i64::MAX as u64;

/// A lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Who holds it, by a number that no other owner has.
    pub owner: u64,
    /// The process that asked for it, as others are told.
    pub pid: i32,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub last: u64,
    /// Whether it keeps out shared ones too.
    pub exclusive: bool,
}

impl Lock {
    fn overlaps(&self, other: &Lock) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// Whether the two cannot be held at the same time.
    pub fn conflicts(&self, other: &Lock) -> bool {
        self.owner != other.owner && self.overlaps(other) && (self.exclusive || other.exclusive)
    }

    /// Whether the two are one range: of one owner and kind, overlapping or adjoining.
    fn joins(&self, other: &Lock) -> bool {
        self.owner == other.owner
            && self.exclusive == other.exclusive
            && self.start <= other.last.saturating_add(1)
            && other.start <= self.last.saturating_add(1)
    }
}

/// Memory for the list ran out, or the list is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// Most locks on one file.
const MOST: usize = 1 << 14;

/// The locks on a file.
#[derive(Default)]
pub struct Locks(Vec<Lock>);

impl Locks {
    /// No locks.
    pub const fn new() -> Locks {
        Locks(Vec::new())
    }

    /// The first lock, by where it begins, that keeps `wanted` from being granted.
    pub fn conflict(&self, wanted: &Lock) -> Option<&Lock> {
        self.0
            .iter()
            .filter(|held| held.conflicts(wanted))
            .min_by_key(|held| held.start)
    }

    /// Grants a lock that nothing conflicts with; it replaces what the owner held in its range.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn grant(&mut self, lock: Lock) -> Result<(), TooMany> {
        let mut kept = self.without(&lock, 1)?;
        let mut new = lock;
        kept.retain(|held| {
            let joins = held.joins(&new);
            if joins {
                (new.start, new.last) = (new.start.min(held.start), new.last.max(held.last));
            }
            !joins
        });
        kept.push(new);
        self.0 = kept;
        Ok(())
    }

    /// Ends what the owner of `lock` holds in its range. Returns whether that was anything.
    ///
    /// # Errors
    /// [`TooMany`]: a lock would have to be split.
    pub fn release(&mut self, lock: &Lock) -> Result<bool, TooMany> {
        let touched = |held: &&Lock| held.owner == lock.owner && held.overlaps(lock);
        if self.0.iter().find(touched).is_none() {
            return Ok(false);
        }
        self.0 = self.without(lock, 0)?;
        Ok(true)
    }

    /// Ends all that an owner holds. Returns whether that was anything.
    pub fn release_all(&mut self, owner: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|held| held.owner != owner);
        self.0.len() < before
    }

    /// All locks, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.0.iter()
    }

    /// A copy in which the owner of `hole` holds nothing in its range, with room for `more`.
    fn without(&self, hole: &Lock, more: usize) -> Result<Vec<Lock>, TooMany> {
        let mut kept = Vec::new();
        // A lock may fall into two.
        let room = self.0.len() + 1 + more;
        if room > MOST {
            return Err(TooMany);
        }
        kept.try_reserve_exact(room).map_err(|_| TooMany)?;
        for held in &self.0 {
            if held.owner != hole.owner || !held.overlaps(hole) {
                kept.push(*held);
                continue;
            }
            if held.start < hole.start {
                kept.push(Lock {
                    last: hole.start - 1,
                    ..*held
                });
            }
            if held.last > hole.last {
                kept.push(Lock {
                    start: hole.last + 1,
                    ..*held
                });
            }
        }
        Ok(kept)
    }
}

/// A wait for another owner's lock on a file.
#[derive(Clone, Copy)]
struct Wait {
    waiter: u64,
    holder: u64,
    file: u64,
}

/// Which owners wait for which, to notice that a wait would never end.
#[derive(Default)]
pub struct Waits(Vec<Wait>);

impl Waits {
    /// Nobody waits.
    pub const fn new() -> Waits {
        Waits(Vec::new())
    }

    /// Notes that `waiter` waits for a lock of `holder` on `file`, unless `holder` waits, through others, for `waiter`: then false.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn add(&mut self, waiter: u64, holder: u64, file: u64) -> Result<bool, TooMany> {
        let mut at = holder;
        // As many steps as there are waits, for a circle of others must not hold this up.
        for _ in 0..=self.0.len() {
            if at == waiter {
                return Ok(false);
            }
            match self.0.iter().find(|wait| wait.waiter == at) {
                Some(wait) => at = wait.holder,
                None => break,
            }
        }
        self.0.try_reserve(1).map_err(|_| TooMany)?;
        self.0.push(Wait {
            waiter,
            holder,
            file,
        });
        Ok(true)
    }

    /// `waiter` waits no longer.
    pub fn remove(&mut self, waiter: u64) {
        if let Some(at) = self.0.iter().position(|wait| wait.waiter == waiter) {
            self.0.swap_remove(at);
        }
    }

    /// `holder` has let go of a lock on `file`: what waits for it there is about to look again.
    pub fn let_go(&mut self, holder: u64, file: u64) {
        self.0
            .retain(|wait| (wait.holder, wait.file) != (holder, file));
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(owner: u64, start: u64, last: u64, exclusive: bool) -> Lock {
        Lock {
            owner,
            pid: owner as i32,
            start,
            last,
            exclusive,
        }
    }

    fn held(locks: &Locks, owner: u64) -> Vec<(u64, u64, bool)> {
        let mut all: Vec<_> = locks
            .iter()
            .filter(|l| l.owner == owner)
            .map(|l| (l.start, l.last, l.exclusive))
            .collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn shared_locks_meet_and_exclusive_ones_do_not() {
        let mut locks = Locks::new();
        locks.grant(lock(1, 0, 9, false)).unwrap();
        assert_eq!(locks.conflict(&lock(2, 5, 20, false)), None);
        assert_eq!(
            locks.conflict(&lock(2, 9, 9, true)),
            Some(&lock(1, 0, 9, false))
        );
        assert_eq!(locks.conflict(&lock(2, 10, END, true)), None);
        assert_eq!(locks.conflict(&lock(1, 0, END, true)), None, "one's own");
        locks.grant(lock(2, 10, END, true)).unwrap();
        assert!(locks.conflict(&lock(1, 10, 10, false)).is_some());
    }

    #[test]
    fn an_unlock_in_the_middle_splits() {
        let mut locks = Locks::new();
        locks.grant(lock(1, 0, 99, true)).unwrap();
        assert_eq!(locks.release(&lock(1, 40, 59, true)), Ok(true));
        assert_eq!(held(&locks, 1), [(0, 39, true), (60, 99, true)]);
        assert_eq!(locks.release(&lock(1, 40, 59, true)), Ok(false));
        assert_eq!(locks.release(&lock(2, 0, END, true)), Ok(false));
        locks.grant(lock(1, 40, 59, true)).unwrap();
        assert_eq!(held(&locks, 1), [(0, 99, true)], "neighbours join");
    }

    #[test]
    fn a_change_of_kind_replaces_a_part() {
        let mut locks = Locks::new();
        locks.grant(lock(1, 0, 99, true)).unwrap();
        locks.grant(lock(1, 10, 19, false)).unwrap();
        assert_eq!(
            held(&locks, 1),
            [(0, 9, true), (10, 19, false), (20, 99, true)]
        );
        locks.grant(lock(1, 0, END, false)).unwrap();
        assert_eq!(held(&locks, 1), [(0, END, false)]);
        assert!(locks.release_all(1));
        assert!(!locks.release_all(1));
    }

    #[test]
    fn random_locks_agree_with_a_table_of_bytes() {
        const BYTES: usize = 24;
        let mut seed = 12345_u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        let mut table = [[0_u8; BYTES]; 3];
        let mut locks = Locks::new();
        for _ in 0..20_000 {
            let owner = random(3);
            let (a, b) = (random(BYTES as u64), random(BYTES as u64));
            let wanted = lock(owner, a.min(b), a.max(b), random(2) == 1);
            let range = wanted.start as usize..=wanted.last as usize;
            if random(3) == 0 {
                locks.release(&wanted).unwrap();
                table[owner as usize][range].fill(0);
                continue;
            }
            let kind = 1 + u8::from(wanted.exclusive);
            let free = (0..3).filter(|&o| o != owner as usize).all(|o| {
                table[o][range.clone()]
                    .iter()
                    .all(|&k| k == 0 || k + kind == 2)
            });
            assert_eq!(locks.conflict(&wanted).is_none(), free);
            if free {
                locks.grant(wanted).unwrap();
                table[owner as usize][range].fill(kind);
            }
            let mut from_locks = [[0_u8; BYTES]; 3];
            for l in locks.iter() {
                let cells = &mut from_locks[l.owner as usize][l.start as usize..=l.last as usize];
                assert!(cells.iter().all(|&c| c == 0), "an owner's ranges overlap");
                cells.fill(1 + u8::from(l.exclusive));
            }
            assert_eq!(from_locks, table);
        }
    }

    #[test]
    fn circles_are_noticed() {
        let mut waits = Waits::new();
        assert_eq!(waits.add(1, 2, 7), Ok(true));
        assert_eq!(waits.add(2, 3, 7), Ok(true));
        assert_eq!(waits.add(3, 1, 7), Ok(false));
        assert_eq!(waits.add(3, 4, 7), Ok(true));
        waits.remove(2);
        assert_eq!(waits.add(4, 1, 7), Ok(true));
        assert_eq!(waits.add(5, 5, 7), Ok(false));
    }

    #[test]
    fn a_wait_ends_with_the_lock_it_is_for() {
        let mut waits = Waits::new();
        assert_eq!(waits.add(1, 2, 7), Ok(true));
        waits.let_go(2, 8);
        assert_eq!(waits.add(2, 1, 7), Ok(false), "it was another file's lock");
        waits.let_go(2, 7);
        assert_eq!(waits.add(2, 1, 7), Ok(true), "1 waits for nobody by now");
        assert_eq!(waits.len(), 1);
    }
}
