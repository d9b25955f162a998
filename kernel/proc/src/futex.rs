//! Futexes: sleeping on a word of user memory.
//!
//! A [`Key`] names a word: for a private futex the address space and the address, for a shared one the memory object
//! and the offset. Keys hash to buckets, each with a lock. A waiter is in its bucket's queue, with its key and bitset;
//! a waker takes it off the queue and notifies its waiting round. A waiter holds the bucket's lock while it reads the
//! word and joins the queue. A waker takes the lock after the word was changed. So no wake-up is lost.
//!
//! However many threads wait, a bucket's lock is held for a bounded time: a waiter is taken off in O(1), and threads
//! that wake or move waiters walk the queue in steps ([`KeyedQueue`]) and release the lock between two steps.
//!
//! The word is read under the lock with faults disabled. Where its page is not present, the page is faulted in without
//! the lock, and the operation begins again.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use hal::uaccess::{UserFault, UserPtr, UserRange};
use hal::user;
use ksync::{KeyedQueue, Once, Padded, Registration, Spin, Visit, Walk};
use mem::{FutexKey, FutexWord};
use task::current::{Current, current};
use task::park::{Deadline, Interruptible, ParkError, Step, park};
use task::wait::{Threads, Waiter};

use super::{lock, reference_cache};
use crate::UserThreadExt;

/// The identity of a futex word, wherever it is mapped.
pub type Key = FutexKey;

/// The bitset that matches every bitset.
pub const ANY: u32 = u32::MAX;

/// Why a futex operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutexError {
    /// The word is not accessible.
    Fault,
    /// The word is not aligned, or the bitset is empty.
    Invalid,
    /// The word does not hold the expected value.
    Changed,
    /// The wait timed out.
    Timeout,
    /// A signal is pending.
    Signal,
    /// No memory for the list of waiters.
    NoMemory,
}

impl From<UserFault> for FutexError {
    fn from(_: UserFault) -> Self {
        FutexError::Fault
    }
}

/// A waiter in a bucket's queue.
struct Entry {
    /// The word that it waits for. Holding it keeps the key from naming another word.
    ///
    /// Dropping the last reference to a word may free memory, which must not happen under the bucket's lock. Operations
    /// that take off or move the entries of other threads hold the word themselves; a thread drops its own entry
    /// without the lock.
    word: FutexWord,
    bits: u32,
    who: Registration,
}

type Bucket = KeyedQueue<Entry>;

type Buckets = Vec<Padded<Spin<Bucket, lock::FutexLock>>>;
static BUCKETS: Once<Buckets> = Once::new();

/// Slots that a bucket without waiters keeps: 1 KiB. There are 64 buckets for each CPU, so more would be much memory.
const KEEP: usize = 8;

/// Most waiters that are looked at, woken and moved in one hold of a bucket's lock.
const LOOKS: usize = 1024;
const WAKES: usize = 32;
const MOVES: usize = 512;

#[inline(never)]
pub(super) fn init(ncpus: usize) {
    let n = (ncpus * 64).next_power_of_two();
    BUCKETS.get_or_init(|| {
        (0..n)
            .map(|_| Padded(Spin::new(Bucket::default())))
            .collect()
    });
}

fn buckets() -> &'static Buckets {
    BUCKETS.get().expect("set up before any thread")
}

fn bucket_index(key: &Key) -> usize {
    let mixed = (key.base ^ key.offset.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize & (buckets().len() - 1)
}

fn bucket(i: usize) -> &'static Spin<Bucket, lock::FutexLock> {
    &buckets()[i].0
}

/// How many bits of a futex place are the slot. They limit the waiters of a bucket: to 2^26 with 64 buckets.
fn slot_bits() -> u32 {
    u32::BITS - buckets().len().trailing_zeros()
}

/// Bucket and slot in one word, as `UserThread::futex_place` stores them.
fn place(bucket: usize, slot: u32) -> u32 {
    (bucket as u32) << slot_bits() | slot
}

fn word(addr: u64, shared: bool) -> Result<FutexWord, FutexError> {
    if !addr.is_multiple_of(4) {
        return Err(FutexError::Invalid);
    }
    if !user::in_range(addr, 4) {
        return Err(FutexError::Fault);
    }
    let me = current();
    if !shared {
        return match me.process().space_address() as u64 {
            0 => Err(FutexError::Fault),
            space => Ok(FutexWord::private(space, addr)),
        };
    }
    // The page must be present for its object to be known.
    UserRange::new(addr, 4).fault_in(false)?;
    reference_cache::with_space(|space| mem::futex_word(space, addr))
        .flatten()
        .ok_or(FutexError::Fault)
}

struct Wait {
    addr: u64,
    /// `None` once the entry is in the queue: a further step then follows a wake-up, or begins another round.
    word: Option<FutexWord>,
    value: u32,
    bits: u32,
}

/// FUTEX_WAIT and FUTEX_WAIT_BITSET.
pub fn wait(
    addr: u64,
    shared: bool,
    value: u32,
    bits: u32,
    deadline: Deadline,
) -> Result<(), FutexError> {
    if bits == 0 {
        return Err(FutexError::Invalid);
    }
    let mut w = Wait {
        addr,
        word: Some(word(addr, shared)?),
        value,
        bits,
    };
    let result = park(&mut w, deadline, Interruptible::Yes, wait_step);
    match result {
        Ok(r) => r,
        Err(e) => {
            // A waker may have taken the entry at the last moment: then the thread counts as woken.
            if unlist() {
                Err(if e == ParkError::Timeout {
                    FutexError::Timeout
                } else {
                    FutexError::Signal
                })
            } else {
                Ok(())
            }
        }
    }
}

fn wait_step(w: &mut Wait, waiter: &mut Waiter) -> Step<Result<(), FutexError>> {
    let me = current();
    let Some(word) = w.word.take() else {
        // If the entry is gone, a waker has taken it, whatever key it had been moved to.
        let (mut b, slot) = lock_mine(&me);
        return match b.get_mut(slot).filter(|e| e.who.tid() == me.tid()) {
            Some(e) => {
                e.who = waiter.registration();
                Step::Wait
            }
            None => Step::Done(Ok(())),
        };
    };
    let i = bucket_index(&word.key);
    loop {
        let mut b = bucket(i).lock();
        if b.room() == 0 {
            let want = b.len() * 2;
            drop(b);
            if !grow(i, want) {
                return Step::Done(Err(FutexError::NoMemory));
            }
            continue;
        }
        match user::load_u32(w.addr) {
            Ok(v) if v != w.value => return Step::Done(Err(FutexError::Changed)),
            Ok(_) => {
                let slot = b.push_back(Entry {
                    word,
                    bits: w.bits,
                    who: waiter.registration(),
                });
                me.user()
                    .futex_place
                    .store(place(i, slot), Ordering::Relaxed);
                return Step::Wait;
            }
            Err(_) => {
                drop(b);
                if UserRange::new(w.addr, 4).fault_in(false).is_err() {
                    return Step::Done(Err(FutexError::Fault));
                }
            }
        }
    }
}

type BucketGuard = ksync::SpinGuard<'static, Bucket, lock::FutexLock>;

/// Locks the bucket that the calling thread's entry is in, or was in: requeueing may have moved it.
fn lock_mine(me: &Current) -> (BucketGuard, u32) {
    loop {
        let place = me.user().futex_place.load(Ordering::Relaxed);
        let b = bucket((place >> slot_bits()) as usize).lock();
        if me.user().futex_place.load(Ordering::Relaxed) == place {
            return (b, place & ((1 << slot_bits()) - 1));
        }
    }
}

/// Takes the calling thread's entry off its queue; false if a waker has taken it.
fn unlist() -> bool {
    let me = current();
    let (mut b, slot) = lock_mine(&me);
    let listed = b.get_mut(slot).is_some_and(|e| e.who.tid() == me.tid());
    let entry = listed.then(|| b.remove(slot));
    unlock(b);
    drop(entry);
    listed
}

/// Releases a bucket's lock, and frees memory that an emptied bucket does not need.
fn unlock(mut b: BucketGuard) {
    let spare = b.spare(KEEP);
    drop(b);
    drop(spare);
}

/// Frees the memory of buckets without waiters, for the exact accounting of memory.
pub fn drain() {
    for bucket in buckets() {
        let spare = bucket.0.lock().spare(0);
        drop(spare);
    }
}

/// Makes room for `want` waiters in a bucket, whose lock the caller does not hold. False if there is no memory, or a
/// bucket cannot have so many waiters.
fn grow(i: usize, want: usize) -> bool {
    let mut bigger = Vec::new();
    if want > 1 << slot_bits() {
        return false;
    }
    if bigger.try_reserve_exact(want.max(4)).is_err() {
        return false;
    }
    let spare = bucket(i).lock().grow(bigger);
    drop(spare);
    true
}

/// FUTEX_WAKE and FUTEX_WAKE_BITSET: wakes up to `count` waiters; returns how many it woke.
pub fn wake(addr: u64, shared: bool, count: u32, bits: u32) -> Result<u32, FutexError> {
    if bits == 0 {
        return Err(FutexError::Invalid);
    }
    let word = word(addr, shared)?;
    Ok(wake_word(&word, count, bits))
}

/// FUTEX_WAKE_OP: changes the word at `other` by `change`. Wakes up to `count` waiters of `addr` and, if `then` holds
/// for the old value, up to `other_count` waiters of `other`. Returns how many it woke.
pub fn wake_op(
    (addr, count): (u64, u32),
    (other, other_count): (u64, u32),
    shared: bool,
    change: impl Fn(u32) -> u32,
    then: impl Fn(u32) -> bool,
) -> Result<u32, FutexError> {
    let (first, second) = (word(addr, shared)?, word(other, shared)?);
    let old = loop {
        UserRange::new(other, 4).fault_in(true)?;
        let Ok(old) = user::load_u32(other) else {
            continue;
        };
        if user::atomic_cmpxchg_u32(other, old, change(old)) == Ok(old) {
            break old;
        }
    };
    let woken = wake_word(&first, count, ANY);
    let more = if then(old) {
        wake_word(&second, other_count, ANY)
    } else {
        0
    };
    Ok(woken + more)
}

fn wake_word(word: &FutexWord, count: u32, bits: u32) -> u32 {
    let mut woken = 0;
    let walk = bucket(bucket_index(&word.key)).lock().begin();
    wake_rest(walk, word, bits, (count, &mut woken));
    woken
}

/// Continues a walk that wakes waiters, until `count` have been woken.
fn wake_rest(mut walk: Walk, word: &FutexWord, bits: u32, (count, woken): (u32, &mut u32)) {
    loop {
        let pin = ksync::pin();
        let mut b = bucket(bucket_index(&word.key)).lock();
        let more = wake_some(&pin, &mut b, &mut walk, word, bits, (count, woken));
        unlock(b);
        if !more {
            return;
        }
    }
}

/// One step of a walk that wakes waiters until `count` have been woken. Returns whether there is more to do.
fn wake_some(
    pin: &ksync::CpuPin,
    b: &mut Bucket,
    walk: &mut Walk,
    word: &FutexWord,
    bits: u32,
    (count, woken): (u32, &mut u32),
) -> bool {
    let left = (count - *woken) as usize;
    let mut here = 0;
    let visit = |e: &mut Entry| {
        if here == left {
            return Visit::Stop;
        }
        if e.word.key != word.key || e.bits & bits == 0 {
            return Visit::Keep;
        }
        if here == WAKES {
            return Visit::Pause;
        }
        here += 1;
        Visit::Take
    };
    b.walk(walk, LOOKS, visit, |e| {
        // A thread between two rounds is not notified; it finds its entry gone.
        e.who.notify::<Threads>(pin);
        *woken += 1;
    })
}

/// FUTEX_REQUEUE and FUTEX_CMP_REQUEUE: wakes up to `wake` waiters of `from` and makes up to `move_max` others wait for
/// `to`, if `from` holds `expected`. Returns how many were woken and how many were moved.
///
/// Waiters are moved first. Where that takes more than one hold of the locks, the others are woken only after it: a
/// thread that is woken may then wake the waiters of `to`.
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
    loop {
        let waiting = bucket(i).lock().len().min(MOVES);
        let there = bucket(j).lock().len();
        // Room is made before the locks are taken: `grow` takes the bucket's lock itself.
        if i != j && bucket(j).lock().room() < waiting && !grow(j, there + waiting.max(there)) {
            break;
        }
        let pin = ksync::pin();
        // The lower index first; the second lock of the same class is nested on purpose.
        let (mut first, mut second) = (bucket(i.min(j)).lock(), None);
        if i != j {
            second = Some(bucket(i.max(j)).lock_nested());
        }
        let (bf, bt): (&mut Bucket, Option<&mut Bucket>) = match &mut second {
            None => (&mut first, None),
            Some(s) if i < j => (&mut first, Some(s)),
            Some(s) => (s, Some(&mut first)),
        };
        if moving.is_none()
            && let Some(v) = expected
        {
            match user::load_u32(from) {
                Ok(now) if now == v => {}
                Ok(_) => return Err(FutexError::Changed),
                Err(_) => {
                    drop((second, first, pin));
                    UserRange::new(from, 4).fault_in(false)?;
                    continue;
                }
            }
        }
        let m = moving.get_or_insert_with(|| Moving {
            walk: bf.begin(),
            skipped: 0,
            moved: 0,
        });
        let more = m.step(&pin, bf, bt, (&from_word, &to_word, j), (wake, move_max));
        if more {
            continue;
        }
        // Most often everything is done in one hold of the locks, and no other thread sees it half done.
        let (mut woken, mut walk, moved) = (0, bf.begin(), m.moved);
        let more = wake_some(&pin, bf, &mut walk, &from_word, ANY, (wake, &mut woken));
        drop((second, first, pin));
        if more {
            wake_rest(walk, &from_word, ANY, (wake, &mut woken));
        }
        return Ok((woken, moved));
    }
    // No memory to move more waiters: what has been done counts.
    let m = moving.ok_or(FutexError::NoMemory)?;
    bucket(i).lock().end(m.walk);
    Ok((wake_word(&from_word, wake, ANY), m.moved))
}

/// A walk that moves waiters from one word to another.
struct Moving {
    walk: Walk,
    /// Waiters that were passed over, to be woken.
    skipped: u32,
    moved: u32,
}

impl Moving {
    /// Moves some waiters, with both buckets locked. Returns whether there is more to do.
    fn step(
        &mut self,
        pin: &ksync::CpuPin,
        from: &mut Bucket,
        to: Option<&mut Bucket>,
        (from_word, to_word, to_index): (&FutexWord, &FutexWord, usize),
        (skip, max): (u32, u32),
    ) -> bool {
        let room = to.as_ref().map_or(MOVES, |to| to.room().min(MOVES));
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
        from.walk(&mut self.walk, LOOKS, visit, |e| {
            let Some(to) = &mut to else { return };
            let tid = e.who.tid();
            let slot = to.push_back(e);
            // The thread leaves the bucket before its tid is withdrawn.
            if let Some(t) = super::ids::thread(pin, tid) {
                t.user()
                    .futex_place
                    .store(place(to_index, slot), Ordering::Relaxed);
            }
        })
    }
}

/// Wakes one waiter of the word at `addr`, which an exiting thread has changed.
pub(super) fn wake_exited(addr: u64) {
    for shared in [false, true] {
        if let Ok(word) = word(addr, shared) {
            wake_word(&word, 1, ANY);
        }
    }
}

const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;
const TID_MASK: u32 = 0x3fff_ffff;
/// Most entries of a robust list that exit follows (Linux's limit).
const ROBUST_LIMIT: usize = 2048;

/// Marks the robust futexes that the exiting thread `me` holds, and wakes one waiter of each.
pub(super) fn release_robust(me: &Current) {
    let head = me.user().robust_list.swap(0, Ordering::Relaxed);
    if head == 0 {
        return;
    }
    let Ok([first, offset, pending]) = UserPtr::<[u64; 3]>::new(head).read() else {
        return;
    };
    let mut entry = first;
    for _ in 0..ROBUST_LIMIT {
        // Bit 0 marks a priority-inheritance futex; those are not supported.
        let at = entry & !1;
        if at == head {
            break;
        }
        let next = UserPtr::<u64>::new(at).read();
        if at != pending & !1 && mark_dead(me, at.wrapping_add(offset), false).is_err() {
            break;
        }
        match next {
            Ok(n) => entry = n,
            Err(_) => break,
        }
    }
    if pending & !1 != 0 {
        let _ = mark_dead(me, (pending & !1).wrapping_add(offset), true);
    }
}

fn mark_dead(me: &Current, addr: u64, pending: bool) -> Result<(), UserFault> {
    if !addr.is_multiple_of(4) {
        return Err(UserFault);
    }
    loop {
        let old = user::load_u32(addr)?;
        if pending && old == 0 {
            // The thread unlocked the futex, but perhaps died before it could wake a waiter.
            wake_exited(addr);
            return Ok(());
        }
        if old & TID_MASK != me.tid() {
            return Ok(());
        }
        let new = old & WAITERS | OWNER_DIED;
        if user::atomic_cmpxchg_u32(addr, old, new)? == old {
            if old & WAITERS != 0 {
                wake_exited(addr);
            }
            return Ok(());
        }
    }
}
