//! Which epolls are in which others.
//!
//! Guarantee: the epolls make no cycle, and no chain of more than [`MOST`]; and from no epoll do more ways lead to outer ones than [`WAYS`] says, so
//! that an event is not passed on to too many at once. Mechanism: a table of all pairs, under a lock that is taken only when an epoll is put
//! into another or taken out. A walk goes from an epoll level by level, so it visits each pair a few times at most.

use alloc::collections::{BTreeMap, BTreeSet};

use ksync::Mutex;
use vfs::error::{FsError, Result};

ksync::lock_class!(pub NestingLock, "epoll nesting", rank = 34);

/// The most epolls of which each is in the next.
const MOST: usize = 5;
/// The most ways from an epoll to outer ones over one, two and more pairs; Linux has these limits for the ways from other files.
const WAYS: [u64; MOST - 1] = [500, 100, 50, 10];

struct Pairs {
    /// An epoll and one that is in it, and how many entries there are for that.
    down: BTreeMap<(u64, u64), u32>,
    /// The same pairs, the inner one first.
    up: BTreeSet<(u64, u64)>,
}

hal::machine_static! {
    static PAIRS: Mutex<Pairs, NestingLock> = Mutex::new(Pairs {
        down: BTreeMap::new(),
        up: BTreeSet::new(),
    });
}

impl Pairs {
    /// The number of epolls in the longest chain that begins at `from`, itself included; `None` if a chain leads to `to`, or
    /// is longer than [`MOST`].
    fn levels(&self, from: u64, to: u64, up: bool) -> Option<usize> {
        let mut level = BTreeSet::from([from]);
        let mut levels = 0;
        while !level.is_empty() {
            levels += 1;
            if level.contains(&to) || levels > MOST {
                return None;
            }
            let mut next = BTreeSet::new();
            for id in level {
                let pairs = (id, 0)..=(id, u64::MAX);
                if up {
                    next.extend(self.up.range(pairs).map(|&(_, outer)| outer));
                } else {
                    next.extend(self.down.range(pairs).map(|(&(_, inner), _)| inner));
                }
            }
            level = next;
        }
        Some(levels)
    }

    /// Whether the ways from `inner`, and from each epoll that is in it, are few enough.
    fn few_ways(&self, inner: u64) -> bool {
        let mut level = BTreeSet::from([inner]);
        while !level.is_empty() {
            if !level.iter().all(|&id| self.few_ways_from(id)) {
                return false;
            }
            let below = |id| self.down.range((id, 0)..=(id, u64::MAX));
            let inner = level.into_iter().flat_map(below);
            level = inner.map(|(&(_, inner), _)| inner).collect();
        }
        true
    }

    fn few_ways_from(&self, id: u64) -> bool {
        let mut level = BTreeMap::from([(id, 1)]);
        WAYS.iter().all(|&most| {
            let mut next = BTreeMap::new();
            for (&id, &ways) in &level {
                for &(_, outer) in self.up.range((id, 0)..=(id, u64::MAX)) {
                    let entries = self.down.get(&(outer, id)).copied().unwrap_or(1);
                    *next.entry(outer).or_insert(0) += ways * u64::from(entries);
                }
            }
            level = next;
            level.values().sum::<u64>() <= most
        })
    }

    fn add(&mut self, outer: u64, inner: u64) {
        *self.down.entry((outer, inner)).or_insert(0) += 1;
        self.up.insert((inner, outer));
    }

    fn remove(&mut self, outer: u64, inner: u64) {
        let Some(count) = self.down.get_mut(&(outer, inner)) else {
            debug_assert!(false, "{inner} is not in {outer}");
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.down.remove(&(outer, inner));
            self.up.remove(&(inner, outer));
        }
    }
}

/// Records that `inner` is about to be put into `outer`. Takes the lock of nesting, and may allocate. [`unlink`] must follow when it is
/// taken out.
///
/// # Errors
/// `Loop` if there would be a cycle, or too long a chain; `Invalid` if there would be too many ways. Nothing is recorded then.
pub(super) fn link(outer: u64, inner: u64) -> Result<()> {
    let mut pairs = PAIRS.lock();
    let below = pairs.levels(inner, outer, false).ok_or(FsError::Loop)?;
    let above = pairs.levels(outer, inner, true).ok_or(FsError::Loop)?;
    if below + above > MOST {
        return Err(FsError::Loop);
    }
    pairs.add(outer, inner);
    if pairs.few_ways(inner) {
        return Ok(());
    }
    pairs.remove(outer, inner);
    Err(FsError::Invalid)
}

/// Records that an entry for `inner` was taken out of `outer`. Takes the lock of nesting.
pub(super) fn unlink(outer: u64, inner: u64) {
    PAIRS.lock().remove(outer, inner);
}
