//! Ids of threads, which processes, process groups and sessions bear, too.
//!
//! Guarantee: an id is not given out again while a thread, process, group or session bears it. Mechanism: each [`Id`] counts
//! as a user of its number, in the number's slot of a table. Each CPU takes numbers from a batch of its own, so that fork
//! writes a shared line once in a batch.
//!
//! Numbers wrap at a *span* of 32768 that doubles, up to four million, whenever more than a
//! quarter of it is in use: the table stays as small as the number of live processes allows.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use ksync::{ArcBorrow, Counter, CpuPin, EpochPtr, Once, PerCpu, Round, Spin};

use crate::id_table::{self, IdTable};
use crate::idlist::{IdLinks, Role};
use crate::lock;
use crate::thread::Thread;

pub use crate::id_table::ID_LIMIT;

/// Where numbers wrap at first (Linux's default pid_max).
const FIRST_SPAN: u32 = 1 << 15;
/// Numbers a CPU takes at a time.
const BATCH: u32 = 64;

/// What bears a number.
struct Slot {
    /// [`Id`] values alive.
    users: AtomicU32,
    /// Where the waiting rounds of the next thread of this number begin; see [`Round::after`].  Written by the last one's end.
    rounds: AtomicU32,
    thread: EpochPtr<Arc<Thread>>,
}

impl id_table::Slot for Slot {
    const VACANT: Slot = Slot {
        users: AtomicU32::new(0),
        rounds: AtomicU32::new(0),
        thread: EpochPtr::empty(),
    };
}

impl Slot {
    /// Takes the number if nobody bears it.
    fn take(&self) -> bool {
        self.users
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

/// A CPU's unused numbers: `next..end`.
struct Batch {
    next: u32,
    end: u32,
}

struct Ids {
    /// Where the next batch begins.
    cursor: AtomicU32,
    span: AtomicU32,
    batches: PerCpu<Spin<Batch, lock::IdTableLock>>,
    live: Counter,
}

static IDS: Once<Ids> = Once::new();

static TABLE: IdTable<Slot> = IdTable::new();

/// Sets the table up.  Called once, by the boot CPU, before any thread is made.
#[inline(never)]
pub fn init(ncpus: usize) {
    IDS.get_or_init(|| Ids {
        // 1 is init's, given out by `take`.
        cursor: AtomicU32::new(0),
        span: AtomicU32::new(FIRST_SPAN),
        batches: PerCpu::new(ncpus, |_| Spin::new(Batch { next: 0, end: 0 })),
        live: Counter::new(ncpus),
    });
}

fn ids() -> &'static Ids {
    IDS.get().expect("the id table is set up before any thread")
}

impl Ids {
    /// A batch that no CPU has.
    fn next_batch(&self) -> Batch {
        let span = self.span.load(Ordering::Relaxed);
        let start = self.cursor.fetch_add(BATCH, Ordering::Relaxed) % span;
        if start == 0 && span < ID_LIMIT && self.live.sum() as u64 > u64::from(span / 4) {
            // The cursor runs over a power of two, so a doubled span needs no other change.
            let _ =
                self.span
                    .compare_exchange(span, span * 2, Ordering::Relaxed, Ordering::Relaxed);
        }
        Batch {
            next: start,
            end: start + BATCH,
        }
    }
}

/// Bytes of the table of numbers: for the books of the heap.
pub fn table_bytes() -> usize {
    TABLE.bytes()
}

/// A number that is in use for as long as this value, or a clone of it, lives.
pub struct Id(u32);

impl Id {
    /// A number that nobody bears, or `None` when all are in use.
    pub fn alloc() -> Option<Id> {
        let ids = ids();
        let pin = ksync::pin();
        let mine = ids.batches.get(&pin);
        let span = ids.span.load(Ordering::Relaxed);
        let mut tried = 0;
        loop {
            let mut batch = mine.lock();
            if batch.next >= batch.end {
                *batch = ids.next_batch();
            }
            let id = batch.next;
            batch.next += 1;
            drop(batch);
            if id > 1 {
                TABLE.grow(id);
                if TABLE.slot(&pin, id).is_some_and(Slot::take) {
                    ids.live.add(&pin, 1);
                    return Some(Id(id));
                }
            }
            tried += 1;
            if tried > span.max(FIRST_SPAN) * 2 {
                return None;
            }
        }
    }

    /// Number 1, for init; `None` if it was taken before.
    pub fn take_init() -> Option<Id> {
        let ids = ids();
        let pin = ksync::pin();
        TABLE.grow(1);
        if !TABLE.slot(&pin, 1)?.take() {
            return None;
        }
        ids.live.add(&pin, 1);
        Some(Id(1))
    }

    /// Number 0 for a CPU's idle thread: stands in no table.
    pub const fn idle() -> Id {
        Id(0)
    }

    /// The number.
    pub fn number(&self) -> u32 {
        self.0
    }
}

impl Clone for Id {
    fn clone(&self) -> Id {
        let pin = ksync::pin();
        if self.0 != 0
            && let Some(slot) = TABLE.slot(&pin, self.0)
        {
            slot.users.fetch_add(1, Ordering::Relaxed);
        }
        Id(self.0)
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        if self.0 == 0 {
            return;
        }
        let ids = ids();
        let pin = ksync::pin();
        if let Some(slot) = TABLE.slot(&pin, self.0)
            && slot.users.fetch_sub(1, Ordering::Release) == 1
        {
            ids.live.add(&pin, -1);
        }
    }
}

/// The thread of that number.
#[inline]
pub fn thread(pin: &CpuPin, tid: u32) -> Option<&Thread> {
    TABLE.slot(pin, tid)?.thread.load(pin)
}

/// As [`thread`], for callers that may take a count of it.
#[inline]
pub fn borrow_thread(pin: &CpuPin, tid: u32) -> Option<ArcBorrow<'_, Thread>> {
    TABLE.slot(pin, tid)?.thread.borrow(pin)
}

/// A count of the thread of that number. Its process may have been waited for.
pub fn hold_thread(tid: u32) -> Option<Arc<Thread>> {
    borrow_thread(&ksync::pin(), tid).map(ArcBorrow::hold)
}

/// Runs `f` on the slot of a number in use, other than the idle threads'.
fn with_slot(number: u32, f: impl FnOnce(&Slot, &CpuPin)) {
    let pin = ksync::pin();
    if number != 0
        && let Some(slot) = TABLE.slot(&pin, number)
    {
        f(slot, &pin);
    }
}

/// The waiting rounds of a new thread of that number: none that an earlier one had.
pub fn rounds(id: &Id) -> Round {
    let mut left = 0;
    with_slot(id.0, |slot, _| left = slot.rounds.load(Ordering::Relaxed));
    Round::after(left)
}

/// Makes a thread known by its number.
pub fn publish(thread: &Arc<Thread>) {
    with_slot(thread.tid(), |slot, pin| {
        slot.thread.replace(mem::epoch(), pin, Some(thread.clone()))
    });
}

/// Takes a thread that will not wait any more out of the table.
pub fn withdraw(thread: &Thread) {
    with_slot(thread.tid(), |slot, pin| {
        // The number is given out again only after the thread is freed.
        slot.rounds.store(thread.round.heir(), Ordering::Relaxed);
        slot.thread.replace(mem::epoch(), pin, None)
    });
}

/// Gives `thread`, the caller and the only one of its process, the id of that process, `pid`; false while the last leader
/// has it. `relist` puts the thread on its process's list by the new id; its argument is the old one.
///
/// The id that the thread has had stays taken until the thread has gone.
pub fn become_leader(thread: &Arc<Thread>, pid: u32, relist: impl FnOnce(&CpuPin, u32)) -> bool {
    let pin = ksync::pin();
    let tid = thread.tid();
    let (Some(old), Some(new)) = (TABLE.slot(&pin, tid), TABLE.slot(&pin, pid)) else {
        return false;
    };
    // With Acquire: what the last leader noted in `rounds` before it left is read below.
    if new.thread.load(&pin).is_some() {
        return false;
    }
    // Between two rounds, so no registration is lost; later rounds are new for both numbers.  Before the thread is found by its
    // new number: a registration that the last leader has left must not name a round of this one.
    let heir = thread.round.heir();
    old.rounds.store(heir, Ordering::Relaxed);
    let left = new.rounds.load(Ordering::Relaxed);
    thread.round.go_on_after(heir.max(left));
    if let Err(_mine) = new.thread.set_if_none(thread.clone()) {
        return false;
    }
    relist(&pin, tid);
    old.thread.replace(mem::epoch(), &pin, None);
    true
}

/// One more than the largest id that is given out now.
pub fn span() -> u32 {
    ids().span.load(Ordering::Relaxed)
}

/// Calls `f` with each thread, pinned.  Threads that come or go meanwhile may or may not be seen.
pub fn each(mut f: impl FnMut(&CpuPin, &Thread)) {
    let mut at = 1;
    while let Some(id) = TABLE.next(at, span()) {
        let pin = ksync::pin();
        if let Some(t) = thread(&pin, id) {
            f(&pin, t);
        }
        at = id + 1;
    }
}

/// Threads that exist, idle ones left out. Takes time in proportion to the table.
pub fn threads() -> usize {
    let mut n = 0;
    each(|_, _| n += 1);
    n
}

/// Numbers in use: processes, groups, sessions and further threads.
pub fn live() -> u64 {
    ids().live.sum().max(0) as u64
}

/// Threads on a run queue.
pub enum Runnable {}

impl Role for Runnable {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        thread(pin, id).map(|t| &t.run_links)
    }
}

/// Threads of a process.
pub enum InProcess {}

impl Role for InProcess {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        thread(pin, id).map(|t| &t.group_links)
    }
}

/// Threads that wait for memory.
pub enum NeedsMemory {}

impl Role for NeedsMemory {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        thread(pin, id).map(|t| &t.memory_links)
    }
}
