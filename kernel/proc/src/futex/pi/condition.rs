//! Conditions: waits for a word that end with a lock. Waiters are moved from the condition's word to the lock without running.

use ksync::atomic::Ordering;

use hal::uaccess::UserRange;
use hal::user;
use mem::FutexWord;
use task::current::current;
use task::park::{Deadline, Interruptible, Step, park};
use task::wait::{Threads, Waiter};

use super::claim::{self, Taken, Want};
use super::{chain, donation, failure, grow, leave, look, queue};
use crate::futex::requeue::Both;
use crate::futex::{
    FutexError, again, bucket, bucket_index, place, place_of, unlock as release, word,
};
use crate::{UserThreadExt, ids};

/// A wait for a condition.
struct Waiting {
    addr: u64,
    value: u32,
    /// The address of the lock.
    lock: u64,
    /// The words of both; `None` once the caller is on a queue.
    words: Option<(FutexWord, FutexWord)>,
}

/// FUTEX_WAIT_REQUEUE_PI: if the word at `addr` is `value`, sleeps until a [`requeue`] to `lock` has given the caller that lock, at once or after a
/// wait for it.
///
/// # Errors
/// The caller does not own the lock. `Changed`: the word has another value, or a signal has come after the caller was moved. `Signal`: before. `Invalid`: both
/// words are one, one is not aligned, or the word at `addr` is a lock for which threads wait. `Fault`, `Timeout`, `NoMemory`.
pub fn wait_requeue(
    addr: u64,
    value: u32,
    lock: u64,
    shared: bool,
    deadline: Deadline,
) -> Result<(), FutexError> {
    if addr == lock {
        return Err(FutexError::Invalid);
    }
    let target = word(lock, shared)?;
    let mut waiting = Waiting {
        addr,
        value,
        lock,
        words: Some((word(addr, shared)?, target)),
    };
    let slept = park(
        &mut waiting,
        deadline,
        Interruptible::Yes,
        |w: &mut Waiting, waiter| w.step(waiter).map_or(Step::Wait, Step::Done),
    );
    slept.unwrap_or_else(|e| {
        // The word has changed by the time that a waiter has been moved, so the call is not begun again.
        let moved = match failure(e) {
            FutexError::Signal => FutexError::Changed,
            why => why,
        };
        leave(lock, failure(e), moved)
    })
}

impl Waiting {
    /// The first run begins to wait. A later one follows a wake-up.
    fn step(&mut self, waiter: &mut Waiter) -> Option<Result<(), FutexError>> {
        let Some((word, target)) = self.words.take() else {
            return look(self.lock, Some(waiter));
        };
        self.begin(word, target, waiter).err().map(Err)
    }

    /// Puts the caller on the queue of the condition. Sleeps for memory and for the word's page.
    fn begin(&self, word: FutexWord, target: FutexWord, waiter: &Waiter) -> Result<(), FutexError> {
        let me = current();
        let i = bucket_index(&word.key);
        loop {
            let mut b = bucket(i).lock();
            if b.pi.room() < queue::NEED {
                drop(b);
                grow(i)?;
                continue;
            }
            let found = user::load_u32(self.addr);
            let refused = match found {
                Err(_) => {
                    release(b);
                    UserRange::new(self.addr, 4).fault_in(false)?;
                    again()?;
                    continue;
                }
                Ok(now) if now != self.value => Some(FutexError::Changed),
                Ok(_) if word.key == target.key => Some(FutexError::Invalid),
                // The word is a lock: its waiters are on the list of its owner.
                Ok(_) if b.pi.owner(&word.key).is_some() => Some(FutexError::Invalid),
                Ok(_) => None,
            };
            if let Some(why) = refused {
                release(b);
                return Err(why);
            }
            let slot = b.pi.add(queue::Waiter {
                word,
                target: Some(target),
                sleeper: waiter.registration(),
                priority: donation::priority_of(&me),
            });
            me.user()
                .futex_place
                .store(place(i, slot), Ordering::Relaxed);
            release(b);
            // Where it was changed between the look at it and the wait.
            chain::adjust(me.tid());
            return Ok(());
        }
    }
}

/// A requeue.
struct Requeue {
    from: u64,
    to: u64,
    words: (FutexWord, FutexWord),
    /// The value that the word at `from` must hold when it begins.
    expected: Option<u32>,
    /// Most waiters that are moved besides the first one.
    moves: u32,
    done: u32,
}

/// What became of one waiter.
enum Moved {
    /// It has been moved, or owns the lock.
    One,
    /// There is none left, or there are enough.
    End,
    /// To be tried again.
    Again,
}

/// FUTEX_CMP_REQUEUE_PI: if the word at `from` is `expected`, locks `to` for the first waiter of [`wait_requeue`] if the lock is free, and makes that one
/// otherwise, and up to `moves` more, wait for it. Returns for how many either was done. Takes the locks of both buckets, for one waiter at a time.
///
/// # Errors
/// `Changed`, `Fault`, `NoMemory`. `Invalid`: both words are one, one is not aligned, or a waiter does not wait for `from` with `to`. As [`lock`](super::lock) for
/// the first waiter that could not be moved, which is where it was; those before it have been moved.
pub fn requeue(
    from: u64,
    to: u64,
    shared: bool,
    wake: u32,
    moves: u32,
    expected: u32,
) -> Result<u32, FutexError> {
    // To wake more than one, which then wait for the lock by themselves, is what this avoids.
    if from == to || wake != 1 {
        return Err(FutexError::Invalid);
    }
    let words = (word(from, shared)?, word(to, shared)?);
    if words.0.key == words.1.key {
        return Err(FutexError::Invalid);
    }
    let mut requeue = Requeue {
        from,
        to,
        words,
        expected: Some(expected),
        moves,
        done: 0,
    };
    loop {
        match requeue.step()? {
            Moved::One => requeue.done += 1,
            Moved::Again => {}
            Moved::End => return Ok(requeue.done),
        }
        // Others may begin to wait all the time.
        if current().kill_pending() {
            return Ok(requeue.done);
        }
    }
}

impl Requeue {
    fn step(&mut self) -> Result<Moved, FutexError> {
        let (from_key, to_key) = (self.words.0.key, self.words.1.key);
        let (i, j) = (bucket_index(&from_key), bucket_index(&to_key));
        let pin = ksync::pin();
        let mut both = Both::lock(i, j);
        if both.to().pi.room() < queue::NEED {
            both.unlock();
            drop(pin);
            grow(j)?;
            return Ok(Moved::Again);
        }
        if let Some(value) = self.expected {
            match user::load_u32(self.from) {
                Ok(now) if now == value => self.expected = None,
                found => {
                    both.unlock();
                    drop(pin);
                    if found.is_ok() {
                        return Err(FutexError::Changed);
                    }
                    UserRange::new(self.from, 4).fault_in(false)?;
                    return Ok(Moved::Again);
                }
            }
        }
        let candidate = self.candidate(&mut both);
        let Ok(Some((slot, tid))) = candidate else {
            both.unlock();
            return candidate.map(|_| Moved::End);
        };
        let want = Want {
            key: &to_key,
            addr: self.to,
            tid,
            more: self.moves > 0,
        };
        match claim::take(&pin, both.to(), &want) {
            Ok(Taken::Owned(owner)) => self.move_one(pin, both, (slot, tid), owner),
            Ok(Taken::Mine) => {
                let (w, _) = claim::remove(&pin, both.from(), slot);
                if let Some(w) = &w {
                    w.sleeper.notify::<Threads>(&pin);
                }
                both.unlock();
                drop((pin, w));
                Ok(Moved::One)
            }
            taken => {
                both.unlock();
                drop(pin);
                if let Taken::Fault = taken? {
                    UserRange::new(self.to, 4).fault_in(true)?;
                }
                Ok(Moved::Again)
            }
        }
    }

    /// The slot and the tid of the waiter that is next, if one is.
    ///
    /// # Errors
    /// `Invalid`: it does not wait for the condition with this lock.
    fn candidate(&self, both: &mut Both) -> Result<Option<(u32, u32)>, FutexError> {
        let (from_key, to_key) = (self.words.0.key, self.words.1.key);
        if self.done > self.moves {
            return Ok(None);
        }
        let Some(slot) = both.from().pi.first(&from_key) else {
            return match both.from().waits_plainly(&from_key) {
                true => Err(FutexError::Invalid),
                false => Ok(None),
            };
        };
        let Some((w, _)) = both.from().pi.waiter(slot) else {
            return Ok(None);
        };
        match &w.target {
            Some(target) if target.key == to_key => Ok(Some((slot, w.sleeper.tid()))),
            _ => Err(FutexError::Invalid),
        }
    }

    /// Makes the waiter wait for the lock that `owner` has, and puts it back if that would make a ring.
    fn move_one(
        &self,
        pin: ksync::CpuPin,
        mut both: Both,
        (slot, tid): (u32, u32),
        owner: u32,
    ) -> Result<Moved, FutexError> {
        let (i, j) = (
            bucket_index(&self.words.0.key),
            bucket_index(&self.words.1.key),
        );
        let Some(t) = ids::thread(&pin, tid) else {
            both.unlock();
            return Ok(Moved::Again);
        };
        let at = &t.user().futex_place;
        let arrival = both.from().pi.waiter(slot).map(|(_, rank)| rank.arrival);
        let (Some(mut w), Some(arrival)) = (claim::remove(&pin, both.from(), slot).0, arrival)
        else {
            both.unlock();
            return Ok(Moved::Again);
        };
        (w.word, w.target) = (self.words.1.clone(), None);
        let sleeper = w.sleeper;
        let changed = match claim::add(&pin, both.to(), owner, w) {
            Ok((slot, changed)) => {
                at.store(place(j, slot), Ordering::Relaxed);
                changed
            }
            Err(w) => {
                // The owner ends. What it has done to the word is seen next time.
                let slot = both.from().pi.add_again(self.as_before(w), arrival);
                at.store(place(i, slot), Ordering::Relaxed);
                both.unlock();
                return Ok(Moved::Again);
            }
        };
        if owner == 0 {
            // It may be its turn.
            sleeper.notify::<Threads>(&pin);
        }
        both.unlock();
        drop(pin);
        chain::adjust(tid);
        if changed {
            chain::adjust(owner);
        }
        if chain::is_ring(tid) && self.move_back(tid, arrival) {
            return Err(FutexError::Deadlock);
        }
        Ok(Moved::One)
    }

    fn as_before(&self, w: queue::Waiter) -> queue::Waiter {
        queue::Waiter {
            word: self.words.0.clone(),
            target: Some(self.words.1.clone()),
            ..w
        }
    }

    /// Puts a waiter back that has been moved; false if it has the lock, or has left.
    fn move_back(&self, tid: u32, arrival: u64) -> bool {
        let (i, j) = (
            bucket_index(&self.words.0.key),
            bucket_index(&self.words.1.key),
        );
        loop {
            let pin = ksync::pin();
            let mut both = Both::lock(i, j);
            // The locks of the buckets keep the place as it is.
            let slot = ids::thread(&pin, tid).and_then(|t| {
                let (bucket, slot) = place_of(&t.user().futex_place);
                (bucket == j).then_some(slot)
            });
            let slot = slot.filter(|&slot| {
                let waiter = both.to().pi.waiter_of(slot, tid);
                waiter.is_some_and(|(w, _)| w.target.is_none() && w.word.key == self.words.1.key)
            });
            let Some(slot) = slot else {
                both.unlock();
                return false;
            };
            if both.from().pi.room() < queue::NEED {
                both.unlock();
                drop(pin);
                // Without memory it waits on: the ring remains, as one that the owner's own wait has made.
                if grow(i).is_err() {
                    return false;
                }
                continue;
            }
            let (w, changed) = claim::remove(&pin, both.to(), slot);
            if let (Some(w), Some(t)) = (w, ids::thread(&pin, tid)) {
                let slot = both.from().pi.add_again(self.as_before(w), arrival);
                t.user()
                    .futex_place
                    .store(place(i, slot), Ordering::Relaxed);
            }
            both.unlock();
            drop(pin);
            if let Some(owner) = changed {
                chain::adjust(owner);
            }
            return true;
        }
    }
}
