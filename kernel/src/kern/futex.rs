//! Futexes: sleeping on a word of user memory.
//!
//! A word is named by a [`Key`]: for a private futex the address space and the address, for a
//! shared one the memory object and the offset.  Keys hash to buckets with a lock each.  A
//! waiter stands in its bucket's list with its key and bitset; a waker takes it off and notifies its waiting
//! round.  The bucket's lock is held while the word is read and the waiter listed, and by wakers, who
//! come after the word was changed: so no wake-up is lost.
//!
//! The word is read under the lock with faults off; where its page is not there, the page is
//! brought in outside and everything begins anew.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use ksync::{Once, Padded, Spin};

use super::park::{Deadline, Interruptible, ParkError, Step, park};
use super::wait::{Registration, Waiter};
use super::{Current, current, kept, lock};
use crate::arch::user;
use crate::mm::{self, FutexKey};
use crate::uaccess::{UserFault, UserPtr, UserRange};

/// The word's identity, whatever it is mapped at.
pub type Key = FutexKey;

/// Matches every bitset.
pub const ANY: u32 = u32::MAX;

/// Why a futex operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutexError {
    /// The word cannot be reached.
    Fault,
    /// The word is not aligned, or the bitset is empty.
    Invalid,
    /// The word does not hold the expected value.
    Changed,
    /// The time is over.
    Timeout,
    /// A signal came.
    Signal,
    /// No memory for the list of waiters.
    NoMemory,
}

impl From<UserFault> for FutexError {
    fn from(_: UserFault) -> Self {
        FutexError::Fault
    }
}

struct Entry {
    key: Key,
    bits: u32,
    who: Registration,
}

#[derive(Default)]
struct Bucket {
    waiters: Vec<Entry>,
}

type Buckets = Vec<Padded<Spin<Bucket, lock::FutexLock>>>;
static BUCKETS: Once<Buckets> = Once::new();

#[inline(never)]
pub(super) fn init(ncpus: usize) {
    let n = (ncpus * 64).next_power_of_two();
    BUCKETS.get_or_init(|| {
        (0..n)
            .map(|_| Padded(Spin::new(Bucket::default())))
            .collect()
    });
}

fn bucket_index(key: &Key) -> usize {
    let n = BUCKETS.get().map_or(1, |b| b.len());
    let mixed = (key.base ^ key.offset.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize & (n - 1)
}

fn bucket(i: usize) -> &'static Spin<Bucket, lock::FutexLock> {
    &BUCKETS.get().expect("set up before any thread")[i].0
}

fn key(addr: u64, shared: bool) -> Result<Key, FutexError> {
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
            base => Ok(Key { base, offset: addr }),
        };
    }
    // The page must be there for its object to be known.
    UserRange::new(addr, 4).fault_in(false)?;
    kept::with_space(|space| mm::futex_key(space, addr))
        .flatten()
        .ok_or(FutexError::Fault)
}

struct Wait {
    addr: u64,
    key: Key,
    value: u32,
    bits: u32,
    /// Listed, so a further step means a wake-up, or another round.
    listed: bool,
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
        key: key(addr, shared)?,
        value,
        bits,
        listed: false,
    };
    let result = park(&mut w, deadline, Interruptible::Yes, wait_step);
    match result {
        Ok(r) => r,
        Err(e) => {
            // A wake-up may have taken the entry at the last moment: then it counts.
            if unlist(&w.key) {
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
    loop {
        let mut b = lock_of_mine(w);
        let tid = waiter.registration().tid;
        if w.listed {
            // A waker takes entries off, whatever key they were moved to.
            return match b.waiters.iter_mut().find(|e| e.who.tid == tid) {
                Some(e) => {
                    e.who = waiter.registration();
                    Step::Wait
                }
                None => Step::Done(Ok(())),
            };
        }
        if b.waiters.len() == b.waiters.capacity() {
            let want = (b.waiters.len() * 2).max(4);
            drop(b);
            if !grow(bucket_index(&w.key), want) {
                return Step::Done(Err(FutexError::NoMemory));
            }
            continue;
        }
        match user::load_u32(w.addr) {
            Ok(v) if v != w.value => return Step::Done(Err(FutexError::Changed)),
            Ok(_) => {
                b.waiters.push(Entry {
                    key: w.key,
                    bits: w.bits,
                    who: waiter.registration(),
                });
                current()
                    .futex_bucket
                    .store(bucket_index(&w.key) as u32, Ordering::SeqCst);
                w.listed = true;
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

/// The bucket that the calling thread's entry is in: requeueing may have moved it.
fn lock_of_mine(w: &Wait) -> BucketGuard {
    if !w.listed {
        return bucket(bucket_index(&w.key)).lock();
    }
    lock_present()
}

fn lock_present() -> BucketGuard {
    let me = current();
    loop {
        let i = me.futex_bucket.load(Ordering::SeqCst);
        let b = bucket(i as usize).lock();
        if me.futex_bucket.load(Ordering::SeqCst) == i {
            return b;
        }
    }
}

/// Takes the calling thread's entry off; false if a waker did before.
fn unlist(_key: &Key) -> bool {
    let tid = current().tid();
    let mut b = lock_present();
    match b.waiters.iter().position(|e| e.who.tid == tid) {
        Some(i) => {
            b.waiters.remove(i);
            true
        }
        None => false,
    }
}

/// Makes room in a bucket, outside its lock; false if there is no memory for it.
fn grow(i: usize, want: usize) -> bool {
    let mut bigger = Vec::new();
    if bigger.try_reserve_exact(want).is_err() {
        return false;
    }
    let mut b = bucket(i).lock();
    if b.waiters.capacity() < want {
        bigger.append(&mut b.waiters);
        core::mem::swap(&mut b.waiters, &mut bigger);
    }
    drop(b);
    true
}

/// FUTEX_WAKE and FUTEX_WAKE_BITSET: wakes up to `count` waiters; returns how many.
pub fn wake(addr: u64, shared: bool, count: u32, bits: u32) -> Result<u32, FutexError> {
    if bits == 0 {
        return Err(FutexError::Invalid);
    }
    Ok(wake_key(&key(addr, shared)?, count, bits))
}

/// FUTEX_WAKE_OP: changes the word at `other` by `change`, wakes up to `count` waiters of `addr`, and up to
/// `other_count` of `other` if `then` holds of what the word was. Returns how many.
pub fn wake_op(
    (addr, count): (u64, u32),
    (other, other_count): (u64, u32),
    shared: bool,
    change: impl Fn(u32) -> u32,
    then: impl Fn(u32) -> bool,
) -> Result<u32, FutexError> {
    let (first, second) = (key(addr, shared)?, key(other, shared)?);
    let old = loop {
        UserRange::new(other, 4).fault_in(true)?;
        let Ok(old) = user::load_u32(other) else {
            continue;
        };
        if user::atomic_cmpxchg_u32(other, old, change(old)) == Ok(old) {
            break old;
        }
    };
    let woken = wake_key(&first, count, ANY);
    let more = if then(old) {
        wake_key(&second, other_count, ANY)
    } else {
        0
    };
    Ok(woken + more)
}

fn wake_key(key: &Key, count: u32, bits: u32) -> u32 {
    let pin = ksync::pin();
    let mut b = bucket(bucket_index(key)).lock();
    wake_locked(&pin, &mut b, key, count, bits)
}

fn wake_locked(pin: &ksync::CpuPin, b: &mut Bucket, key: &Key, count: u32, bits: u32) -> u32 {
    let mut woken = 0;
    let mut i = 0;
    while i < b.waiters.len() && woken < count {
        let e = &b.waiters[i];
        if e.key == *key && e.bits & bits != 0 {
            let e = b.waiters.remove(i);
            // Between two rounds the thread finds its entry gone without being notified.
            e.who.notify(pin);
            woken += 1;
        } else {
            i += 1;
        }
    }
    woken
}

/// FUTEX_REQUEUE and FUTEX_CMP_REQUEUE: wakes up to `wake` waiters of `from` and makes up to `move_max`
/// others wait for `to`, if `from` holds `expected`.  Returns how many were woken or moved.
pub fn requeue(
    from: u64,
    to: u64,
    shared: bool,
    wake: u32,
    move_max: u32,
    expected: Option<u32>,
) -> Result<(u32, u32), FutexError> {
    let (kf, kt) = (key(from, shared)?, key(to, shared)?);
    loop {
        let (i, j) = (bucket_index(&kf), bucket_index(&kt));
        let waiting = bucket(i).lock().waiters.len();
        let there = bucket(j).lock().waiters.len();
        // Not before: `grow` takes the lock itself.
        if !grow(j, there + waiting) {
            return Err(FutexError::NoMemory);
        }
        let pin = ksync::pin();
        // Lower index first; the second of the same class is nested on purpose.
        let (mut first, mut second) = (bucket(i.min(j)).lock(), None);
        if i != j {
            second = Some(bucket(i.max(j)).lock_nested());
        }
        let (bf, bt): (&mut Bucket, Option<&mut Bucket>) = match &mut second {
            None => (&mut first, None),
            Some(s) if i < j => (&mut first, Some(s)),
            Some(s) => (s, Some(&mut first)),
        };
        if let Some(v) = expected {
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
        let woken = wake_locked(&pin, bf, &kf, wake, ANY);
        let moved = move_entries(&pin, bf, bt, (&kf, &kt), move_max, j);
        return Ok((woken, moved));
    }
}

fn move_entries(
    pin: &ksync::CpuPin,
    from: &mut Bucket,
    to: Option<&mut Bucket>,
    keys: (&Key, &Key),
    max: u32,
    to_index: usize,
) -> u32 {
    let mut moved = 0;
    let Some(to) = to else {
        for e in from
            .waiters
            .iter_mut()
            .filter(|e| e.key == *keys.0)
            .take(max as usize)
        {
            e.key = *keys.1;
            moved += 1;
        }
        return moved;
    };
    let mut i = 0;
    // Room was made for all that waited then; who came since stays for the next call.
    while i < from.waiters.len() && moved < max && to.waiters.len() < to.waiters.capacity() {
        if from.waiters[i].key != *keys.0 {
            i += 1;
            continue;
        }
        let mut e = from.waiters.remove(i);
        e.key = *keys.1;
        if let Some(t) = super::ids::thread(pin, e.who.tid) {
            t.futex_bucket.store(to_index as u32, Ordering::SeqCst);
        }
        to.waiters.push(e);
        moved += 1;
    }
    moved
}

/// The kernel cleared a thread's number at its exit: whoever joins it is woken.
pub(super) fn wake_exited(addr: u64) {
    for shared in [false, true] {
        if let Ok(key) = key(addr, shared) {
            wake_key(&key, 1, ANY);
        }
    }
}

const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;
const TID_MASK: u32 = 0x3fff_ffff;
/// Entries of a robust list that exit follows (Linux's limit).
const ROBUST_LIMIT: usize = 2048;

/// Marks the robust futexes that a dying thread holds, and wakes one waiter of each.
pub(super) fn release_robust(me: &Current) {
    let head = me.robust_list.swap(0, Ordering::Relaxed);
    if head == 0 {
        return;
    }
    let Ok([first, offset, pending]) = UserPtr::<[u64; 3]>::new(head).read() else {
        return;
    };
    let mut entry = first;
    for _ in 0..ROBUST_LIMIT {
        // Bit 0 marks a priority-inheritance futex, which there are none of.
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
            // Unlocked, but perhaps before it could wake anyone.
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
