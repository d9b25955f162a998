//! Locks on ranges of a file, and their owners, as in fcntl(2) and flock(2).
//!
//! Guarantee: two owners never hold overlapping ranges unless both are shared. Ranges of one owner never overlap, and
//! adjacent ones of the same kind are merged. A call that fails, for lack of memory or because its user may not have
//! more locks, changes nothing.

use alloc::vec::Vec;

/// The last byte that a range can have: "to the end, however far the file grows".
pub const END: u64 = i64::MAX as u64;

/// A lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The owner's number, which no other owner has.
    pub owner: u64,
    /// The process that requested it, as reported to others.
    pub pid: i32,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub last: u64,
    /// Whether it also excludes shared locks.
    pub exclusive: bool,
}

impl Lock {
    fn overlaps(&self, other: &Lock) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    fn covers(&self, other: &Lock) -> bool {
        self.start <= other.start && other.last <= self.last
    }

    /// Whether it begins before the other and ends after it.
    fn surrounds(&self, other: &Lock) -> bool {
        self.start < other.start && other.last < self.last
    }

    /// Whether the two cannot be held at the same time.
    pub fn conflicts(&self, other: &Lock) -> bool {
        self.owner != other.owner && self.overlaps(other) && (self.exclusive || other.exclusive)
    }

    /// Whether the two can be merged: of one owner and kind, overlapping or adjacent.
    fn joins(&self, other: &Lock) -> bool {
        self.owner == other.owner
            && self.exclusive == other.exclusive
            && self.start <= other.last.saturating_add(1)
            && other.start <= self.last.saturating_add(1)
    }
}

/// No memory for the list, the list is too long, or the user may not have more locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// Most locks on one file. Every call looks at all of them, and the caller holds a spin lock meanwhile: a call that replaces
/// them all takes some 130 instructions for each.
pub const MOST: usize = 1 << 11;

/// A lock that is held, and its charge.
struct Held<C> {
    lock: Lock,
    /// Returned when it is dropped.
    charge: C,
}

/// The locks on a file. Each has its own charge, a `C` that its drop returns.
pub struct Locks<C>(Vec<Held<C>>);

impl<C> Default for Locks<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> Locks<C> {
    /// No locks.
    pub const fn new() -> Self {
        Locks(Vec::new())
    }

    /// The first lock, by its start, that conflicts with `wanted`.
    pub fn conflict(&self, wanted: &Lock) -> Option<&Lock> {
        self.iter()
            .filter(|held| held.conflicts(wanted))
            .min_by_key(|held| held.start)
    }

    /// The first lock, by its start, that the owner of `range` has in that range.
    pub fn own(&self, range: &Lock) -> Option<&Lock> {
        self.iter()
            .filter(|held| held.owner == range.owner && held.overlaps(range))
            .min_by_key(|held| held.start)
    }

    /// Grants a lock that nothing conflicts with, as the caller has checked. It replaces the owner's locks in its range, and
    /// is merged with those of its kind that it touches. `pay` gets the number of locks on the file, and returns a charge,
    /// or `None` if the caller may not have more locks; it is asked again for the second half of a lock that is split.
    ///
    /// # Errors
    /// [`TooMany`], also if the file has [`MOST`] locks and this one would replace some. Nothing has changed.
    pub fn grant(&mut self, lock: Lock, pay: impl Fn(usize) -> Option<C>) -> Result<(), TooMany> {
        let own = |held: &Lock| held.owner == lock.owner;
        let splits = |held: &Lock| own(held) && !held.joins(&lock) && held.surrounds(&lock);
        let goes = |held: &Lock| own(held) && (held.joins(&lock) || lock.covers(held));
        let split = self.iter().any(splits);
        let replaces = self.iter().any(goes);
        let mut charge = pay(self.0.len());
        // The charge of a lock that is replaced can be reused.
        if charge.is_none() && !replaces {
            return Err(TooMany);
        }
        let spare = self.prepare(split, 1, pay)?;
        let mut new = lock;
        self.cut(
            &lock,
            spare,
            |held| {
                let joins = held.lock.joins(&new);
                if joins {
                    (new.start, new.last) =
                        (new.start.min(held.lock.start), new.last.max(held.lock.last));
                }
                joins
            },
            &mut charge,
        );
        // There is one: that from `pay`, or that of a lock that was replaced.
        let charge = charge.ok_or(TooMany)?;
        self.0.push(Held { lock: new, charge });
        Ok(())
    }

    /// Releases the owner's locks in the range of `lock`. Returns whether there were any. `pay` as for a grant: a lock
    /// may be split in two.
    ///
    /// # Errors
    /// [`TooMany`]: a lock would have to be split, but the user, or the file, may not have more, or there is no memory.
    /// Nothing has changed.
    pub fn release(
        &mut self,
        lock: &Lock,
        pay: impl Fn(usize) -> Option<C>,
    ) -> Result<bool, TooMany> {
        let touched = |held: &Lock| held.owner == lock.owner && held.overlaps(lock);
        if !self.iter().any(touched) {
            return Ok(false);
        }
        let split = self
            .iter()
            .any(|held| touched(held) && held.surrounds(lock));
        let spare = self.prepare(split, 0, pay)?;
        self.cut(lock, spare, |_| false, &mut None);
        self.shrink();
        Ok(true)
    }

    /// Releases all locks of an owner. Returns whether there were any.
    pub fn release_all(&mut self, owner: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|held| held.lock.owner != owner);
        self.shrink();
        self.0.len() < before
    }

    /// All locks, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.0.iter().map(|held| &held.lock)
    }

    /// Makes room for `more` locks and, if a lock is to be split in two, for another one, whose charge it returns.
    fn prepare(
        &mut self,
        split: bool,
        more: usize,
        pay: impl Fn(usize) -> Option<C>,
    ) -> Result<Option<C>, TooMany> {
        let more = more + usize::from(split);
        if self.0.len() + more > MOST {
            return Err(TooMany);
        }
        self.0.try_reserve(more).map_err(|_| TooMany)?;
        match split {
            true => pay(self.0.len()).map(Some).ok_or(TooMany),
            false => Ok(None),
        }
    }

    /// Takes the range of `hole` out of the owner's locks: removes those within it, and shortens or splits those that reach
    /// beyond it. Also removes those for which `joins` is true. Stores the charge of a removed lock in `freed` if that has
    /// none. `spare` is the charge for the second half of a split lock.
    fn cut(
        &mut self,
        hole: &Lock,
        mut spare: Option<C>,
        mut joins: impl FnMut(&Held<C>) -> bool,
        freed: &mut Option<C>,
    ) {
        let mut i = 0;
        while let Some(held) = self.0.get_mut(i) {
            let own = held.lock.owner == hole.owner;
            let joined = own && joins(held);
            if joined || own && hole.covers(&held.lock) {
                let gone = self.0.swap_remove(i);
                freed.get_or_insert(gone.charge);
                continue;
            }
            i += 1;
            if !own || !held.lock.overlaps(hole) {
                continue;
            }
            let whole = held.lock;
            if whole.start < hole.start {
                held.lock.last = hole.start - 1;
            } else {
                held.lock.start = hole.last + 1;
            }
            if whole.surrounds(hole)
                && let Some(charge) = spare.take()
            {
                let start = hole.last + 1;
                let lock = Lock { start, ..whole };
                self.0.push(Held { lock, charge });
            }
        }
    }

    /// Frees memory after most locks were removed.
    fn shrink(&mut self) {
        if self.0.is_empty() {
            self.0 = Vec::new();
        } else {
            drop(shorten(&mut self.0));
        }
    }
}

/// Replaces a list most of whose room is not needed any more by a smaller one, and returns the larger one, empty, for the
/// caller to free. If there is no memory for the smaller one, the list stays.
fn shorten<T>(list: &mut Vec<T>) -> Option<Vec<T>> {
    if list.capacity() <= 64 || list.len() >= list.capacity() / 4 {
        return None;
    }
    let mut fewer = Vec::new();
    fewer.try_reserve(2 * list.len()).ok()?;
    fewer.append(list);
    Some(core::mem::replace(list, fewer))
}

/// A wait for another owner's lock on a file.
#[derive(Clone, Copy)]
struct Wait {
    waiter: u64,
    holder: u64,
    file: u64,
}

/// The waits of owners for each other's locks, to detect deadlocks. Sorted by waiter, which each has one wait at most.
#[derive(Default)]
pub struct Waits(Vec<Wait>);

/// Owners through which a chain of waits is followed: the caller holds a spin lock, and owners may be as many as
/// processes. Linux gives up after ten.
const CHAIN: usize = 256;

impl Waits {
    /// No waits.
    pub const fn new() -> Waits {
        Waits(Vec::new())
    }

    /// The index of the wait of `waiter`, or that where it belongs.
    fn place(&self, waiter: u64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&waiter, |wait| wait.waiter)
    }

    /// Records that `waiter` waits for a lock of `holder` on `file`; this replaces an earlier wait of `waiter`. Returns
    /// false, and changes nothing, if `holder` is `waiter`, or waits for it through a chain of at most `CHAIN` owners,
    /// `holder` included. A longer cycle is not noticed.
    ///
    /// # Errors
    /// [`TooMany`]: no memory. Nothing has changed.
    pub fn add(&mut self, waiter: u64, holder: u64, file: u64) -> Result<bool, TooMany> {
        let mut at = holder;
        // The walk may come into a cycle of other owners that was too long to be noticed.
        for _ in 0..=CHAIN {
            if at == waiter {
                return Ok(false);
            }
            match self.place(at) {
                Ok(found) => at = self.0[found].holder,
                Err(_) => break,
            }
        }
        let wait = Wait {
            waiter,
            holder,
            file,
        };
        match self.place(waiter) {
            Ok(found) => self.0[found] = wait,
            Err(to) => {
                self.0.try_reserve(1).map_err(|_| TooMany)?;
                self.0.insert(to, wait);
            }
        }
        Ok(true)
    }

    /// Removes the wait of `waiter`.
    pub fn remove(&mut self, waiter: u64) {
        if let Ok(at) = self.place(waiter) {
            self.0.remove(at);
        }
    }

    /// `holder` has released a lock on `file`: removes the waits for it there, because the waiters will try again.
    pub fn let_go(&mut self, holder: u64, file: u64) {
        self.0
            .retain(|wait| (wait.holder, wait.file) != (holder, file));
    }

    /// Once most waits have ended: takes out memory that is not needed any more, for the caller to free.
    pub fn spare(&mut self) -> Option<Waits> {
        shorten(&mut self.0).map(Waits)
    }

    /// Number of waits.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no waits.
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

    /// Charges without a limit.
    fn free(_: usize) -> Option<()> {
        Some(())
    }

    fn held<C>(locks: &Locks<C>, owner: u64) -> Vec<(u64, u64, bool)> {
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
        locks.grant(lock(1, 0, 9, false), free).unwrap();
        assert_eq!(locks.conflict(&lock(2, 5, 20, false)), None);
        assert_eq!(
            locks.conflict(&lock(2, 9, 9, true)),
            Some(&lock(1, 0, 9, false))
        );
        assert_eq!(locks.conflict(&lock(2, 10, END, true)), None);
        assert_eq!(locks.conflict(&lock(1, 0, END, true)), None, "one's own");
        locks.grant(lock(2, 10, END, true), free).unwrap();
        assert!(locks.conflict(&lock(1, 10, 10, false)).is_some());
    }

    #[test]
    fn an_unlock_in_the_middle_splits() {
        let mut locks = Locks::new();
        locks.grant(lock(1, 0, 99, true), free).unwrap();
        assert_eq!(locks.release(&lock(1, 40, 59, true), free), Ok(true));
        assert_eq!(held(&locks, 1), [(0, 39, true), (60, 99, true)]);
        assert_eq!(locks.release(&lock(1, 40, 59, true), free), Ok(false));
        assert_eq!(locks.release(&lock(2, 0, END, true), free), Ok(false));
        locks.grant(lock(1, 40, 59, true), free).unwrap();
        assert_eq!(held(&locks, 1), [(0, 99, true)], "neighbours join");
    }

    #[test]
    fn a_change_of_kind_replaces_a_part() {
        let mut locks = Locks::new();
        locks.grant(lock(1, 0, 99, true), free).unwrap();
        locks.grant(lock(1, 10, 19, false), free).unwrap();
        assert_eq!(
            held(&locks, 1),
            [(0, 9, true), (10, 19, false), (20, 99, true)]
        );
        locks.grant(lock(1, 0, END, false), free).unwrap();
        assert_eq!(held(&locks, 1), [(0, END, false)]);
        assert!(locks.release_all(1));
        assert!(!locks.release_all(1));
    }

    #[test]
    fn each_lock_has_one_charge_and_a_refusal_changes_nothing() {
        use alloc::rc::Rc;
        use core::cell::Cell;
        struct Charge(Rc<Cell<usize>>);
        impl Drop for Charge {
            fn drop(&mut self) {
                self.0.set(self.0.get() - 1);
            }
        }
        let had = Rc::new(Cell::new(0));
        let pay = |_| {
            (had.get() < 3).then(|| {
                had.set(had.get() + 1);
                Charge(had.clone())
            })
        };
        let mut locks = Locks::new();
        locks.grant(lock(1, 0, 99, true), pay).unwrap();
        assert_eq!(locks.release(&lock(1, 10, 19, true), pay), Ok(true));
        assert_eq!(locks.release(&lock(1, 30, 39, true), pay), Ok(true));
        let three = [(0, 9, true), (20, 29, true), (40, 99, true)];
        assert_eq!((held(&locks, 1), had.get()), (three.to_vec(), 3));
        // Another lock, a split by an unlock, and a split by a lock of another kind.
        assert_eq!(locks.grant(lock(1, 200, 300, true), pay), Err(TooMany));
        assert_eq!(locks.grant(lock(2, 12, 13, true), pay), Err(TooMany));
        assert_eq!(locks.release(&lock(1, 50, 59, true), pay), Err(TooMany));
        assert_eq!(locks.grant(lock(1, 50, 59, false), pay), Err(TooMany));
        assert_eq!((held(&locks, 1), had.get()), (three.to_vec(), 3));
        // Locks that are replaced or merged free their charge.
        locks.grant(lock(1, 0, 9, false), pay).unwrap();
        locks.grant(lock(1, 25, 34, true), pay).unwrap();
        locks.grant(lock(1, 50, 59, true), pay).unwrap();
        let three = [(0, 9, false), (20, 34, true), (40, 99, true)];
        assert_eq!((held(&locks, 1), had.get()), (three.to_vec(), 3));
        locks.grant(lock(1, 0, END, true), pay).unwrap();
        assert_eq!((held(&locks, 1), had.get()), ([(0, END, true)].to_vec(), 1));
        locks.grant(lock(2, 0, 1, false), pay).unwrap();
        assert!(locks.release_all(1) && had.get() == 1);
        drop(locks);
        assert_eq!(had.get(), 0);
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
                locks.release(&wanted, free).unwrap();
                table[owner as usize][range].fill(0);
                continue;
            }
            let kind = 1 + u8::from(wanted.exclusive);
            let may = (0..3).filter(|&o| o != owner as usize).all(|o| {
                table[o][range.clone()]
                    .iter()
                    .all(|&k| k == 0 || k + kind == 2)
            });
            assert_eq!(locks.conflict(&wanted).is_none(), may);
            if may {
                locks.grant(wanted, free).unwrap();
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
    fn long_chains_and_cycles_end_and_leave_no_memory() {
        let mut waits = Waits::new();
        for owner in 0..20_000 {
            assert_eq!(waits.add(owner, owner + 1, 7), Ok(true));
        }
        let cycle = CHAIN as u64;
        assert_eq!(waits.add(20_000, 20_000 - cycle, 7), Ok(false));
        assert_eq!(
            waits.add(20_000, 20_000 - cycle - 1, 7),
            Ok(true),
            "too long"
        );
        assert_eq!(
            waits.add(30_000, 0, 7),
            Ok(true),
            "a walk around a cycle ends"
        );
        for owner in 0..=30_000 {
            waits.remove(owner);
            drop(waits.spare());
        }
        assert!(waits.is_empty() && waits.0.capacity() <= 64);
    }

    #[test]
    fn a_file_with_as_many_locks_as_it_may_have_gives_them_back() {
        let mut locks = Locks::new();
        for n in 0..MOST as u64 {
            locks
                .grant(lock(1, 4 * n, 4 * n + 2, true), |_| Some(()))
                .unwrap();
        }
        assert_eq!(locks.grant(lock(2, 3, 3, true), |_| Some(())), Err(TooMany));
        assert_eq!(
            locks.release(&lock(1, 1, 1, true), |_| Some(())),
            Err(TooMany)
        );
        assert_eq!(locks.release(&lock(1, 0, 2, true), |_| Some(())), Ok(true));
        assert_eq!(locks.release(&lock(1, 5, 5, true), |_| Some(())), Ok(true));
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
