//! Futexes with priority inheritance: locks of which the kernel knows the owner. `doc/futexes.md` explains them.
//!
//! Guarantee: a lock that has waiters is handed to the first of them, by priority and then by arrival, and its word names that one then.
//! Only where the owner ends does the heir write the word, which its owner may have lost; no other thread takes the lock meanwhile, unless it
//! has a higher priority. A wait that fails leaves nothing behind.
//!
//! Files: `queue` has the waiters, `donation` their priorities, `chain` walks from owner to owner, `claim` is what one hold of a bucket's
//! lock does, `condition` moves waiters of conditions.

mod chain;
mod claim;
mod condition;
mod donation;
mod queue;

use alloc::vec::Vec;
use ksync::atomic::Ordering;

use hal::uaccess::{UserPtr, UserRange};
use hal::user;
use mem::FutexWord;
use task::current::{Current, current};
use task::idlist::IdList;
use task::park::{Deadline, Interruptible, ParkError, Step, park};
use task::thread::Thread;
use task::wait::{Threads, Waiter};

use super::{
    FutexError, OWNER_DIED, TID_MASK, WAITERS, again, bucket, bucket_index, lock_at, lock_mine,
    place, unlock as release, word,
};
use crate::{UserThreadExt, ids};
use claim::{Claim, Taken, Want};

pub use chain::adjust;
pub use condition::{requeue, wait_requeue};
pub use donation::priority_of;
pub(super) use queue::PiQueue;

/// Gives a thread whose real-time priority has changed its new place where it waits, and lends it on. Takes the locks of buckets.
pub fn priority_changed(t: &Thread) {
    adjust(t.tid());
}

/// A call that locks.
struct Locking {
    addr: u64,
    word: FutexWord,
    queued: bool,
}

/// FUTEX_LOCK_PI: makes the caller the owner of the lock at `addr`, and its word name it, if need be after a sleep.
///
/// # Errors
/// The caller does not own the lock, and does not wait for it; the word may say that a thread waits. `Deadlock`: the caller owns it, or waited for
/// itself. `NoOwner`: no thread has the tid in the word. `NotPermitted`: a thread of the kernel has it. `Invalid`: the word is not aligned, or contradicts
/// what the kernel knows, or threads wait there that do not lock. `Fault`, `Timeout`, `Signal`, `NoMemory`.
pub fn lock(addr: u64, shared: bool, deadline: Deadline) -> Result<(), FutexError> {
    let word = word(addr, shared)?;
    let mut locking = Locking {
        addr,
        word,
        queued: false,
    };
    let slept = park(
        &mut locking,
        deadline,
        Interruptible::Yes,
        |l: &mut Locking, waiter| l.step(waiter).map_or(Step::Wait, Step::Done),
    );
    slept.unwrap_or_else(|e| leave(addr, failure(e), failure(e)))
}

fn failure(e: ParkError) -> FutexError {
    match e {
        ParkError::Timeout => FutexError::Timeout,
        ParkError::Signal => FutexError::Signal,
    }
}

impl Locking {
    /// The first run takes the lock, or begins to wait. A later one follows a wake-up.
    fn step(&mut self, waiter: &mut Waiter) -> Option<Result<(), FutexError>> {
        if self.queued {
            return look(self.addr, Some(waiter));
        }
        let owner = match self.begin(waiter) {
            Ok(Some(owner)) => owner,
            Ok(None) => return Some(Ok(())),
            Err(why) => return Some(Err(why)),
        };
        self.queued = true;
        let tid = current().tid();
        // Where it was changed between the look at it and the wait.
        chain::adjust(tid);
        match owner {
            0 => look(self.addr, Some(waiter)),
            _ if chain::is_ring(tid) => {
                let why = FutexError::Deadlock;
                Some(leave(self.addr, why, why))
            }
            _ => None,
        }
    }

    /// Takes the lock, or waits: then returns the owner, 0 if the lock has none at the moment. Sleeps for memory and for the word's page.
    fn begin(&self, waiter: &Waiter) -> Result<Option<u32>, FutexError> {
        let me = current();
        let want = Want {
            key: &self.word.key,
            addr: self.addr,
            tid: me.tid(),
            more: false,
        };
        let i = bucket_index(want.key);
        loop {
            let pin = ksync::pin();
            let mut b = bucket(i).lock();
            if b.pi.room() < queue::NEED {
                drop(b);
                drop(pin);
                grow(i)?;
                continue;
            }
            let owner = match claim::take(&pin, &b, &want)? {
                Taken::Mine => {
                    release(b);
                    return Ok(None);
                }
                Taken::Owned(owner) => owner,
                Taken::Again => {
                    release(b);
                    again()?;
                    continue;
                }
                Taken::Fault => {
                    release(b);
                    drop(pin);
                    UserRange::new(self.addr, 4).fault_in(true)?;
                    again()?;
                    continue;
                }
            };
            let added = queue::Waiter {
                word: self.word.clone(),
                target: None,
                sleeper: waiter.registration(),
                priority: donation::priority_of(&me),
            };
            let Ok((slot, changed)) = claim::add(&pin, &mut b, owner, added) else {
                // The owner ends. What it has done to the word is seen next time.
                release(b);
                again()?;
                continue;
            };
            me.user()
                .futex_place
                .store(place(i, slot), Ordering::Relaxed);
            release(b);
            if changed {
                chain::adjust(owner);
            }
            return Ok(Some(owner));
        }
    }
}

/// Whether the caller, which waited, owns its lock now. It takes it, and writes the word at `addr`, where the lock has no owner and the caller is the first
/// waiter; may sleep for the page. `None`: it still waits, and wakes as `waiter` if there is one.
fn look(addr: u64, waiter: Option<&Waiter>) -> Option<Result<(), FutexError>> {
    let me = current();
    loop {
        let pin = ksync::pin();
        let (mut b, slot) = lock_mine(&me);
        if b.pi.waiter_of(slot, me.tid()).is_none() {
            release(b);
            return Some(Ok(()));
        }
        match claim::inherit(&pin, &mut b, slot, addr) {
            Claim::Done(w) => {
                release(b);
                // It may have the last reference to the object of the word.
                drop((pin, w));
                return Some(Ok(()));
            }
            Claim::Not => {
                if let Some(waiter) = waiter {
                    b.pi.renew(slot, waiter.registration());
                }
                release(b);
                return None;
            }
            Claim::Again => release(b),
            Claim::Fault => {
                release(b);
                drop(pin);
                if UserRange::new(addr, 4).fault_in(true).is_err() {
                    return Some(forgo(FutexError::Fault, FutexError::Fault));
                }
            }
        }
        if again().is_err() {
            return Some(forgo(FutexError::Signal, FutexError::Signal));
        }
    }
}

/// Ends the caller's wait, because of `why`, or of `moved` if it waits for a lock; unless it has been handed the lock, or is to be: then it owns it.
fn leave(addr: u64, why: FutexError, moved: FutexError) -> Result<(), FutexError> {
    look(addr, None).unwrap_or_else(|| forgo(why, moved))
}

/// As [`leave`], but leaves a lock without an owner to the next waiter.
fn forgo(why: FutexError, moved: FutexError) -> Result<(), FutexError> {
    let me = current();
    let pin = ksync::pin();
    let (mut b, slot) = lock_mine(&me);
    if b.pi.waiter_of(slot, me.tid()).is_none() {
        release(b);
        return Ok(());
    }
    let (w, owner) = claim::remove(&pin, &mut b, slot);
    release(b);
    drop(pin);
    if let Some(owner) = owner {
        chain::adjust(owner);
    }
    let for_condition = w.as_ref().is_some_and(|w| w.target.is_some());
    drop(w);
    Err(if for_condition { why } else { moved })
}

/// FUTEX_TRYLOCK_PI: as [`lock`], but does not wait.
///
/// # Errors
/// As for [`lock`], `Signal` only if the caller is to be killed; `Changed`: another thread owns the lock. The word says then that a thread waits.
pub fn try_lock(addr: u64, shared: bool) -> Result<(), FutexError> {
    let word = word(addr, shared)?;
    let want = Want {
        key: &word.key,
        addr,
        tid: current().tid(),
        more: false,
    };
    loop {
        let pin = ksync::pin();
        let b = bucket(bucket_index(want.key)).lock();
        let taken = claim::take(&pin, &b, &want);
        release(b);
        drop(pin);
        match taken? {
            Taken::Mine => return Ok(()),
            Taken::Owned(_) => return Err(FutexError::Changed),
            Taken::Again => {}
            Taken::Fault => UserRange::new(addr, 4).fault_in(true)?,
        }
        again()?;
    }
}

/// FUTEX_UNLOCK_PI: hands the lock at `addr`, which the caller owns, to its first waiter, or makes its word 0 if it has none.
///
/// # Errors
/// `NotPermitted`: the word does not name the caller. `Invalid`: it contradicts what the kernel knows, or threads wait there that do not lock. `Changed`: the word
/// was changed meanwhile. `Fault`; `Signal`, if the caller is to be killed. Nothing has been changed.
pub fn unlock(addr: u64, shared: bool) -> Result<(), FutexError> {
    let tid = current().tid();
    if !addr.is_multiple_of(4) {
        let odd = UserPtr::<u32>::new(addr).read()?;
        return Err(match odd & TID_MASK == tid {
            true => FutexError::Invalid,
            false => FutexError::NotPermitted,
        });
    }
    loop {
        let old = user::load_u32(addr)?;
        if old & TID_MASK != tid {
            return Err(FutexError::NotPermitted);
        }
        let word = word(addr, shared)?;
        let pin = ksync::pin();
        let mut b = bucket(bucket_index(&word.key)).lock();
        let first = b.pi.first(&word.key);
        let new = match first {
            Some(_) if b.pi.owner(&word.key) != Some(tid) => Err(FutexError::Invalid),
            Some(at) => Ok(b.pi.tid(at).map_or(0, |heir| heir | WAITERS)),
            None if b.waits_plainly(&word.key) => Err(FutexError::Invalid),
            None => Ok(0),
        };
        let new = match new {
            Ok(new) => new,
            Err(why) => {
                release(b);
                return Err(why);
            }
        };
        let found = user::atomic_cmpxchg_u32(addr, old, new);
        let heir = match (found, first) {
            (Ok(now), Some(at)) if now == old => claim::hand_over(&pin, &mut b, at),
            _ => None,
        };
        if let Some(heir) = &heir {
            heir.sleeper.notify::<Threads>(&pin);
        }
        release(b);
        drop(pin);
        match found {
            Ok(now) if now == old => return Ok(()),
            // A thread that tries, or begins to wait, has said so in the word.
            Ok(now) if now & TID_MASK == tid => {}
            Ok(_) if first.is_some() => return Err(FutexError::Invalid),
            Ok(_) => return Err(FutexError::Changed),
            Err(_) => UserRange::new(addr, 4).fault_in(true)?,
        }
        again()?;
    }
}

/// Makes room for one more waiter in bucket `i`, whose lock the caller does not hold.
fn grow(i: usize) -> Result<(), FutexError> {
    let want = {
        let b = bucket(i).lock();
        (b.pi.len() * 2).max(2 * queue::NEED)
    };
    let mut bigger = Vec::new();
    let fits = want <= 1 << super::slot_bits() && bigger.try_reserve_exact(want).is_ok();
    if !fits {
        return Err(FutexError::NoMemory);
    }
    let spare = bucket(i).lock().pi.grow(bigger);
    drop(spare);
    Ok(())
}

/// The locks that `me`, which ends or calls execve, owns and others wait for have no owner from here on; the first waiter of each is woken to take it. `me`
/// takes no more until [`reopen`]. After the words that it has in its robust list have been marked: a thread that finds `me` gone looks at the
/// word again.
pub fn disown(me: &Thread) {
    let held = &me.user().held.list;
    held.lock().closed = true;
    loop {
        let pin = ksync::pin();
        let first = held.lock().waiters.first();
        let Some(first) = first else {
            donation::end(me);
            return;
        };
        let Some(t) = ids::thread(&pin, first) else {
            debug_assert!(false, "thread {first} waits and is gone");
            held.lock().waiters = IdList::default();
            continue;
        };
        let (mut b, slot) = lock_at(&t.user().futex_place);
        claim::orphan(&pin, &mut b, slot, (first, me.tid()));
        release(b);
    }
}

/// The end of an execve: `me` may own locks again.
pub fn reopen(me: &Current) {
    me.user().held.list.lock().closed = false;
}

/// What a word says if its owner has died, and `tid` takes it while others may wait.
fn inherited(tid: u32) -> u32 {
    OWNER_DIED | WAITERS | tid
}
