//! futex_waitv(2): sleeping on several words at once.
//!
//! The thread has an entry in a bucket's queue for each word, made as that of a wait on one word is, under the bucket's lock, with the word
//! read. Each entry has a place of its own, which a requeue changes. A waker takes one entry off; the thread then takes off the others, and
//! what another waker has taken meanwhile is lost to it, as in Linux.

use alloc::sync::Arc;
use alloc::vec::Vec;
use ksync::atomic::{AtomicU32, Ordering};

use hal::uaccess::UserRange;
use hal::user;
use mem::FutexWord;
use task::current::current;
use task::park::{Deadline, Interruptible, ParkError, Step, park};
use task::wait::Waiter;

use super::{ANY, Entry, FutexError, bucket, bucket_index, grow, lock_at, place, unlock, word};
use crate::UserThreadExt;

/// The most words of one wait.
pub const MOST: usize = 128;

/// One of several words.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its address.
    pub addr: u64,
    /// Whether other processes may wake its waiters.
    pub shared: bool,
    /// What it must hold.
    pub value: u32,
}

struct Several {
    words: Vec<(Wanted, FutexWord)>,
    /// The place of each entry; the thread has them, too.
    places: Arc<[AtomicU32]>,
    /// Whether the entries are in the queues.
    listed: bool,
}

/// Sleeps until a waker takes the thread off the queue of one of the words, if all have their values; returns the index of that word, of several
/// the last. There are 1 to [`MOST`] words. May sleep.
///
/// # Errors
/// [`FutexError`], as for a wait on one word: no waker has taken the thread, and it is on no queue.
pub fn wait_any(wanted: &[Wanted], deadline: Deadline) -> Result<usize, FutexError> {
    let mut words = Vec::new();
    let mut places = Vec::new();
    let room = words.try_reserve_exact(wanted.len()).is_ok()
        && places.try_reserve_exact(wanted.len()).is_ok();
    if !room || mem::admit().is_err() {
        return Err(FutexError::NoMemory);
    }
    for one in wanted {
        words.push((*one, word(one.addr, one.shared)?));
        places.push(AtomicU32::new(0));
    }
    let places: Arc<[AtomicU32]> = places.into();
    let me = current();
    me.user().set_futex_places(Some(places.clone()));
    let mut several = Several {
        words,
        places,
        listed: false,
    };
    let slept = park(&mut several, deadline, Interruptible::Yes, Several::step);
    let result = slept.unwrap_or_else(|e| match several.unlist(several.words.len()) {
        // A waker may have taken an entry at the last moment: then the thread counts as woken.
        Some(woken) => Ok(woken),
        None if e == ParkError::Timeout => Err(FutexError::Timeout),
        None => Err(FutexError::Signal),
    });
    me.user().set_futex_places(None);
    result
}

impl Several {
    /// The first run puts the caller on all queues. A later one follows a wake-up, or renews the registrations.
    fn step(&mut self, waiter: &mut Waiter) -> Step<Result<usize, FutexError>> {
        let count = self.words.len();
        if !self.listed {
            for i in 0..count {
                if let Err(why) = self.list(i, waiter) {
                    let woken = self.unlist(i);
                    return Step::Done(woken.ok_or(why));
                }
            }
            self.listed = true;
            return Step::Wait;
        }
        for i in 0..count {
            if !self.renew(i, waiter) {
                let woken = self.unlist(count);
                return Step::Done(woken.ok_or(FutexError::Changed));
            }
        }
        Step::Wait
    }

    /// Puts the entry for word `i` into its queue if the word has its value. Sleeps for memory and for the word's page, without the lock.
    ///
    /// # Errors
    /// `Changed`, `Fault`, `NoMemory`.
    fn list(&self, i: usize, waiter: &Waiter) -> Result<(), FutexError> {
        let (wanted, word) = &self.words[i];
        let at = bucket_index(&word.key);
        loop {
            let mut b = bucket(at).lock();
            if b.queue.room() == 0 {
                let want = b.queue.len() * 2;
                drop(b);
                if !grow(at, want) {
                    return Err(FutexError::NoMemory);
                }
                continue;
            }
            match user::load_u32(wanted.addr) {
                Ok(v) if v != wanted.value => {
                    unlock(b);
                    return Err(FutexError::Changed);
                }
                Ok(_) => {
                    let slot = b.queue.push_back(Entry {
                        word: word.clone(),
                        bits: ANY,
                        sleeper: waiter.registration(),
                        index: i as u8 + 1,
                    });
                    self.places[i].store(place(at, slot), Ordering::Relaxed);
                    return Ok(());
                }
                Err(_) => {
                    unlock(b);
                    UserRange::new(wanted.addr, 4).fault_in(false)?;
                }
            }
        }
    }

    /// Renews the registration of entry `i`; false if a waker has taken it.
    fn renew(&self, i: usize, waiter: &Waiter) -> bool {
        let me = current();
        let (mut b, slot) = lock_at(&self.places[i]);
        let entry = b
            .queue
            .get_mut(slot)
            .filter(|e| e.is(me.tid(), i as u8 + 1));
        let listed = entry.map(|e| e.sleeper = waiter.registration()).is_some();
        drop(b);
        listed
    }

    /// Takes the first `count` entries off their queues; returns the last one that a waker has taken.
    fn unlist(&self, count: usize) -> Option<usize> {
        let me = current();
        let mut woken = None;
        for i in 0..count {
            let (mut b, slot) = lock_at(&self.places[i]);
            let mine = b
                .queue
                .get_mut(slot)
                .is_some_and(|e| e.is(me.tid(), i as u8 + 1));
            let entry = mine.then(|| b.queue.remove(slot));
            unlock(b);
            drop(entry);
            if !mine {
                woken = Some(i);
            }
        }
        woken
    }
}
