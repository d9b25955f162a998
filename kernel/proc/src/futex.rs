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

mod requeue;
pub mod waitv;

use alloc::vec::Vec;
use ksync::atomic::{AtomicU32, Ordering};

use hal::uaccess::{UserFault, UserPtr, UserRange};
use hal::user;
use ksync::{KeyedQueue, Once, Padded, Registration, Spin, Visit, Walk};
use mem::{FutexKey, FutexWord};
use task::current::{Current, current};
use task::park::{Deadline, Interruptible, ParkError, Step, park};
use task::wait::{Threads, Waiter};

use super::{lock, reference_cache};
use crate::UserThreadExt;

pub use requeue::requeue;

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
    /// No memory for the list of waiters, or that is as long as it may be.
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
    sleeper: Registration,
    /// Which of the thread's words this is for, counted from 1, where it waits for several; else 0.
    index: u8,
}

impl Entry {
    /// Whether it is the entry of that thread for that word.
    fn is(&self, tid: u32, index: u8) -> bool {
        self.sleeper.tid() == tid && self.index == index
    }
}

type Bucket = KeyedQueue<Entry>;

type Buckets = Vec<Padded<Spin<Bucket, lock::FutexLock>>>;
hal::machine_static! {
    static BUCKETS: Once<Buckets> = Once::new();
}

/// Slots that a bucket without waiters keeps: 1 KiB. There are 64 buckets for each CPU, so more would be much memory.
const KEEP: usize = 8;

/// Most waiters that are looked at and woken in one hold of a bucket's lock.
const LOOKS: usize = 1024;
const WAKES: usize = 32;

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

/// The word at `addr` of the current process. For `shared`, its page is faulted in: that may sleep.
///
/// # Errors
/// `Invalid`: it is not aligned. `Fault`: no user address, or, for `shared`, nothing readable is mapped there.
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

/// FUTEX_WAIT and FUTEX_WAIT_BITSET: if the word at `addr` is `value`, sleeps until a waker takes the thread off its queue, which
/// is all that success means.
///
/// # Errors
/// [`FutexError`]: no waker has taken the thread, and it is on no queue.
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

/// The first run puts the caller on the queue if the word has the value, both under the bucket's lock. A later one follows a
/// wake-up, or renews the registration of a caller that is still on the queue. Sleeps for memory and for the word's page, without
/// the lock.
fn wait_step(w: &mut Wait, waiter: &mut Waiter) -> Step<Result<(), FutexError>> {
    let me = current();
    let Some(word) = w.word.take() else {
        // If the entry is gone, a waker has taken it, whatever key it had been moved to.
        let (mut b, slot) = lock_mine(&me);
        return match b.get_mut(slot).filter(|e| e.is(me.tid(), 0)) {
            Some(e) => {
                e.sleeper = waiter.registration();
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
            Ok(v) if v != w.value => {
                unlock(b);
                return Step::Done(Err(FutexError::Changed));
            }
            Ok(_) => {
                let slot = b.push_back(Entry {
                    word,
                    bits: w.bits,
                    sleeper: waiter.registration(),
                    index: 0,
                });
                me.user()
                    .futex_place
                    .store(place(i, slot), Ordering::Relaxed);
                return Step::Wait;
            }
            Err(_) => {
                unlock(b);
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
    lock_at(&me.user().futex_place)
}

/// Locks the bucket that `at`, a place of an entry of the calling thread, has.
fn lock_at(at: &AtomicU32) -> (BucketGuard, u32) {
    loop {
        let place = at.load(Ordering::Relaxed);
        let b = bucket((place >> slot_bits()) as usize).lock();
        if at.load(Ordering::Relaxed) == place {
            return (b, place & ((1 << slot_bits()) - 1));
        }
    }
}

/// Takes the calling thread's entry off its queue; false if a waker has taken it.
fn unlist() -> bool {
    let me = current();
    let (mut b, slot) = lock_mine(&me);
    let listed = b.get_mut(slot).is_some_and(|e| e.is(me.tid(), 0));
    let entry = listed.then(|| b.remove(slot));
    unlock(b);
    drop(entry);
    listed
}

/// Releases a bucket's lock, and then frees the memory that it does not need if it is empty.
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

/// Makes room for `want` waiters, at least 4, in a bucket, whose lock the caller does not hold. False if there is no memory, or a
/// bucket cannot have so many waiters. Other threads may take the room first.
fn grow(i: usize, want: usize) -> bool {
    let mut bigger = Vec::new();
    let fits = want <= 1 << slot_bits() && bigger.try_reserve_exact(want.max(4)).is_ok();
    if !fits {
        return false;
    }
    let spare = bucket(i).lock().grow(bigger);
    drop(spare);
    true
}

/// FUTEX_WAKE and FUTEX_WAKE_BITSET: wakes up to `count` waiters whose bitset meets `bits`, those first that have waited longest;
/// returns how many it woke.
///
/// # Errors
/// `Invalid`: `bits` is 0, or the word is not aligned. `Fault`.
pub fn wake(addr: u64, shared: bool, count: u32, bits: u32) -> Result<u32, FutexError> {
    if bits == 0 {
        return Err(FutexError::Invalid);
    }
    let word = word(addr, shared)?;
    Ok(wake_word(&word, count, bits))
}

/// FUTEX_WAKE_OP: changes the word at `other` by `change`. Wakes up to `count` waiters of `addr` and, if `then` holds for the old
/// value, up to `other_count` waiters of `other`. Returns how many it woke. `change` may be called more than once; it is applied
/// in one atomic step, but before, not with, the wake-ups.
///
/// # Errors
/// `Invalid`: a word is not aligned. `Fault`: a word is not accessible, `other` also for writing. Nothing has been changed, and
/// nobody woken.
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

/// One step, up to [`LOOKS`] looks and [`WAKES`] wake-ups, of a walk that wakes waiters until `count` have been woken. Returns
/// whether there is more to do. The caller holds the lock of `b`, the bucket of `word`; no entry's reference to that is the last.
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
        e.sleeper.notify::<Threads>(pin);
        *woken += 1;
    })
}

/// Wakes one waiter of the word at `addr` as a private one and one as a shared one, for an exiting thread that has changed it. In
/// private memory both name the same word, of which two waiters may be woken.
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

/// Marks the robust futexes that `me`, which exits or calls execve, holds, and wakes waiters of each that has some. Follows the
/// list in user memory, which may sleep, up to [`ROBUST_LIMIT`] entries and as far as it is accessible. After that the thread has
/// no list.
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
        // Read before the word is marked: then another thread may take the futex and change the entry.
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

/// Marks the robust futex at `addr` if `me` holds it. A `pending` one is that which the thread was locking or unlocking. Fails if
/// the word is not accessible.
fn mark_dead(me: &Current, addr: u64, pending: bool) -> Result<(), UserFault> {
    loop {
        // Fails also if the word is not aligned.
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
