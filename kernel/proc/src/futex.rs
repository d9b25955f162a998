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

pub mod pi;
mod requeue;
mod robust;
pub mod waitv;

use alloc::vec::Vec;
use ksync::atomic::{AtomicU32, Ordering};

use hal::uaccess::{UserFault, UserRange};
use hal::user;
use ksync::{KeyedQueue, Once, Padded, Registration, Spin, Visit, Walk};
use mem::{FutexKey, FutexWord};
use task::current::{Current, current};
use task::park::{Deadline, Interruptible, ParkError, Step, park};
use task::wait::{Threads, Waiter};

use super::{lock, reference_cache};
use crate::UserThreadExt;

pub use requeue::requeue;
pub(super) use robust::release_robust;

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
    /// The caller would wait for itself.
    Deadlock,
    /// The owner that the word names is no thread.
    NoOwner,
    /// The lock is another thread's, or one of the kernel's.
    NotPermitted,
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

/// The waiters of the words that hash to it. Under the lock that it is in.
#[derive(Default)]
struct Bucket {
    /// Those that wait for a wake-up.
    queue: KeyedQueue<Entry>,
    /// Those that wait for a lock with priority inheritance, or for a condition that goes with one.
    pi: pi::PiQueue,
}

impl Bucket {
    /// The memory that it does not need if it is empty, but for `keep` slots and some; to be dropped without the lock.
    fn spare(&mut self, keep: usize) -> impl Sized + use<> {
        (self.queue.spare(keep), self.pi.spare(keep.min(PI_KEEP)))
    }

    /// Whether threads wait for a wake-up of that word: of the waiters that came first, which are looked at.
    fn waits_plainly(&self, key: &Key) -> bool {
        let walk = self.queue.begin();
        self.queue.ahead(&walk, LOOKS, |e| e.word.key == *key) > 0
    }
}

type Buckets = Vec<Padded<Spin<Bucket, lock::FutexLock>>>;
hal::machine_static! {
    static BUCKETS: Once<Buckets> = Once::new();
}

/// Slots that a bucket without waiters keeps: 1 KiB. There are 64 buckets for each CPU, so more would be much memory.
const KEEP: usize = 8;
/// As [`KEEP`], for locks with priority inheritance.
const PI_KEEP: usize = 4;

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
        return match b.queue.get_mut(slot).filter(|e| e.is(me.tid(), 0)) {
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
        if b.queue.room() == 0 {
            let want = b.queue.len() * 2;
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
                let slot = b.queue.push_back(Entry {
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

/// Locks the bucket that `at`, a place of an entry of a thread, has.
fn lock_at(at: &AtomicU32) -> (BucketGuard, u32) {
    loop {
        let place = at.load(Ordering::Relaxed);
        let b = bucket((place >> slot_bits()) as usize).lock();
        if at.load(Ordering::Relaxed) == place {
            return (b, place_of(at).1);
        }
    }
}

/// Bucket and slot of a place, whose bucket the caller has locked.
fn place_of(at: &AtomicU32) -> (usize, u32) {
    let place = at.load(Ordering::Relaxed);
    let bits = slot_bits();
    ((place >> bits) as usize, place & ((1 << bits) - 1))
}

/// Takes the calling thread's entry off its queue; false if a waker has taken it.
fn unlist() -> bool {
    let me = current();
    let (mut b, slot) = lock_mine(&me);
    let listed = b.queue.get_mut(slot).is_some_and(|e| e.is(me.tid(), 0));
    let entry = listed.then(|| b.queue.remove(slot));
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
    let spare = bucket(i).lock().queue.grow(bigger);
    drop(spare);
    true
}

/// FUTEX_WAKE and FUTEX_WAKE_BITSET: wakes up to `count` waiters whose bitset meets `bits`, those first that have waited longest;
/// returns how many it woke.
///
/// # Errors
/// `Invalid`: `bits` is 0, the word is not aligned, or fewer than `count` wait so, and others wait for a lock with priority inheritance; the former have been
/// woken then. `Fault`.
pub fn wake(addr: u64, shared: bool, count: u32, bits: u32) -> Result<u32, FutexError> {
    if bits == 0 {
        return Err(FutexError::Invalid);
    }
    wake_word(&word(addr, shared)?, count, bits)
}

/// FUTEX_WAKE_OP: changes the word at `other` by `change`. Wakes up to `count` waiters of `addr` and, if `then` holds for the old
/// value, up to `other_count` waiters of `other`. Returns how many it woke. `change` may be called more than once; it is applied
/// in one atomic step, but before, not with, the wake-ups.
///
/// # Errors
/// `Invalid`: a word is not aligned. `Fault`: a word is not accessible, `other` also for writing. Nothing has been changed, and
/// nobody woken. `Invalid` also as for [`wake`]: `other` has been changed.
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
        if let Ok(old) = user::load_u32(other)
            && user::atomic_cmpxchg_u32(other, old, change(old)) == Ok(old)
        {
            break old;
        }
        again()?;
    };
    let woken = wake_word(&first, count, ANY)?;
    let more = if then(old) {
        wake_word(&second, other_count, ANY)?
    } else {
        0
    };
    Ok(woken + more)
}

/// To be called before a call looks again at a word that others have changed, or whose page they have taken away, meanwhile: they may do so
/// for ever.
///
/// # Errors
/// `Signal`, if the caller is to be killed.
fn again() -> Result<(), FutexError> {
    if current().kill_pending() {
        return Err(FutexError::Signal);
    }
    Ok(())
}

/// # Errors
/// As for [`wake`].
fn wake_word(word: &FutexWord, count: u32, bits: u32) -> Result<u32, FutexError> {
    let mut woken = 0;
    let (walk, locks) = {
        let b = bucket(bucket_index(&word.key)).lock();
        (b.queue.begin(), b.pi.has(&word.key))
    };
    wake_rest(walk, word, bits, (count, &mut woken));
    if locks && woken < count {
        return Err(FutexError::Invalid);
    }
    Ok(woken)
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
    b.queue.walk(walk, LOOKS, visit, |e| {
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
            let _ = wake_word(&word, 1, ANY);
        }
    }
}

/// Bits of a lock's word, as glibc and the kernel have them: threads wait; the owner has died; the owner's tid.
const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;
const TID_MASK: u32 = 0x3fff_ffff;
