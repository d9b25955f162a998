//! Requeueing: waiters of one word become waiters of another without running.

use hal::uaccess::UserRange;
use hal::user;
use ksync::{Visit, Walk};
use mem::FutexWord;

use super::{
    ANY, Bucket, BucketGuard, Entry, FutexError, KEEP, LOOKS, bucket, bucket_index, grow, place,
    wake_rest, wake_some, wake_word, word,
};
use crate::{UserThreadExt, ids};

/// Most waiters that are moved in one hold of the locks.
const MOVES: usize = 512;

/// FUTEX_REQUEUE and FUTEX_CMP_REQUEUE: wakes up to `wake` waiters of `from`, the first ones, and makes up to `move_max` others
/// wait for `to`, if `from` holds `expected` when that begins; `None` expects nothing. Returns how many were woken and how many
/// were moved.
///
/// Waiters are moved first. Where that takes more than one hold of the locks, the others are woken only after it: a
/// thread that is woken may then wake the waiters of `to`. Takes the locks of both buckets together.
///
/// # Errors
/// `Invalid`, also if a waiter of `from` waits for a lock with priority inheritance, `Fault`, `Changed`, or `NoMemory` for the first of them to move: nobody
/// has been moved or woken.
pub fn requeue(
    from: u64,
    to: u64,
    shared: bool,
    wake: u32,
    move_max: u32,
    expected: Option<u32>,
) -> Result<(u32, u32), FutexError> {
    let (from_word, to_word) = (word(from, shared)?, word(to, shared)?);
    let (i, j) = (bucket_index(&from_word.key), bucket_index(&to_word.key));
    let mut moving: Option<Moving> = None;
    // Room is made before the locks are taken: `grow` takes the bucket's lock itself.
    while make_room(moving.as_ref(), &from_word, (i, j), (wake, move_max)) {
        let pin = ksync::pin();
        let mut both = Both::lock(i, j);
        if moving.is_none()
            && let Some(v) = expected
        {
            let now = user::load_u32(from);
            if now != Ok(v) {
                drop(pin);
                both.unlock();
                match now {
                    Ok(_) => return Err(FutexError::Changed),
                    Err(_) => UserRange::new(from, 4).fault_in(false)?,
                }
                continue;
            }
        }
        if moving.is_none() && both.from().pi.has(&from_word.key) {
            both.unlock();
            return Err(FutexError::Invalid);
        }
        let (bf, bt) = both.queues();
        let m = moving.get_or_insert_with(|| Moving {
            walk: bf.queue.begin(),
            skipped: 0,
            moved: 0,
        });
        let more = m.step(&pin, bf, bt, (&from_word, &to_word, j), (wake, move_max));
        if more {
            continue;
        }
        // Most often everything is done in one hold of the locks, and no other thread sees it half done.
        let (mut woken, mut walk, moved) = (0, bf.queue.begin(), m.moved);
        let more = wake_some(&pin, bf, &mut walk, &from_word, ANY, (wake, &mut woken));
        drop(pin);
        both.unlock();
        if more {
            wake_rest(walk, &from_word, ANY, (wake, &mut woken));
        }
        return Ok((woken, moved));
    }
    // No memory to move more waiters: what has been done counts.
    let m = moving.ok_or(FutexError::NoMemory)?;
    let mut both = Both::lock(i, j);
    both.queues().0.queue.end(m.walk);
    both.unlock();
    Ok((wake_word(&from_word, wake, ANY)?, m.moved))
}

/// Makes room in bucket `j` for the waiters that the next step of a requeue can move there from bucket `i`, and not for those of
/// other words. False if there is no memory, or that bucket cannot have so many. Takes the locks of the buckets one by one.
fn make_room(
    moving: Option<&Moving>,
    from: &FutexWord,
    (i, j): (usize, usize),
    (skip, max): (u32, u32),
) -> bool {
    if i == j {
        return true;
    }
    let want = {
        let b = bucket(i).lock();
        let begin = b.queue.begin();
        let (walk, skipped, moved) =
            moving.map_or((&begin, 0, 0), |m| (&m.walk, m.skipped, m.moved));
        let ahead = b.queue.ahead(walk, LOOKS, |e| e.word.key == from.key);
        let movable = ahead.saturating_sub((skip - skipped) as usize);
        movable.min((max - moved) as usize).min(MOVES)
    };
    let (there, room) = {
        let b = bucket(j).lock();
        (b.queue.len(), b.queue.room())
    };
    room >= want || grow(j, there + want.max(there))
}

/// The locks of the buckets of two words, which may be one bucket.
pub struct Both {
    high: Option<BucketGuard>,
    low: BucketGuard,
    /// The first word's bucket is the high one.
    swapped: bool,
}

impl Both {
    /// Locks the buckets `i`, of the first word, and `j`, of the second.
    pub fn lock(i: usize, j: usize) -> Both {
        // The lower index first; the second lock of the same class is nested on purpose.
        let low = bucket(i.min(j)).lock();
        Both {
            high: (i != j).then(|| bucket(i.max(j)).lock_nested()),
            low,
            swapped: i > j,
        }
    }

    /// The first word's bucket, and the second word's if that is another.
    fn queues(&mut self) -> (&mut Bucket, Option<&mut Bucket>) {
        let (low, swapped) = (&mut *self.low, self.swapped);
        match self.high.as_deref_mut() {
            None => (low, None),
            Some(high) if swapped => (high, Some(low)),
            Some(high) => (low, Some(high)),
        }
    }

    /// The first word's bucket.
    pub fn from(&mut self) -> &mut Bucket {
        self.queues().0
    }

    /// The second word's bucket, which may be the same one.
    pub fn to(&mut self) -> &mut Bucket {
        match self.queues() {
            (from, None) => from,
            (_, Some(to)) => to,
        }
    }

    /// As [`unlock`](super::unlock), for both.
    pub fn unlock(mut self) {
        let spare = (
            self.low.spare(KEEP),
            self.high.as_mut().map(|b| b.spare(KEEP)),
        );
        drop((self.high, self.low));
        drop(spare);
    }
}

/// A walk that moves waiters from one word to another.
struct Moving {
    walk: Walk,
    /// Waiters that were passed over, to be woken.
    skipped: u32,
    moved: u32,
}

impl Moving {
    /// Moves some waiters, past the first `skip`, until `max` have been moved in all, with both buckets locked; without `to`,
    /// both words are in one bucket, and an entry keeps its slot. Returns whether there is more to do.
    fn step(
        &mut self,
        pin: &ksync::CpuPin,
        from: &mut Bucket,
        to: Option<&mut Bucket>,
        (from_word, to_word, to_index): (&FutexWord, &FutexWord, usize),
        (skip, max): (u32, u32),
    ) -> bool {
        let room = to.as_ref().map_or(MOVES, |to| to.queue.room().min(MOVES));
        let mut here = 0;
        let (skipped, moved) = (&mut self.skipped, &mut self.moved);
        let other = to.is_some();
        let visit = |e: &mut Entry| {
            if *moved == max {
                return Visit::Stop;
            }
            if e.word.key != from_word.key {
                return Visit::Keep;
            }
            if *skipped < skip {
                *skipped += 1;
                return Visit::Keep;
            }
            if here == room {
                return Visit::Pause;
            }
            here += 1;
            *moved += 1;
            e.word = to_word.clone();
            if other { Visit::Take } else { Visit::Keep }
        };
        let mut to = to;
        from.queue.walk(&mut self.walk, LOOKS, visit, |e| {
            let Some(to) = &mut to else { return };
            let (tid, index) = (e.sleeper.tid(), e.index);
            let slot = to.queue.push_back(e);
            // The thread leaves the bucket before its tid is withdrawn.
            if let Some(t) = ids::thread(pin, tid) {
                t.user().move_futex(index, place(to_index, slot));
            }
        })
    }
}
