//! Ids of threads, which are the ids of processes, process groups and sessions, too.
//!
//! Guarantee: an id is not given out again while a thread, process, process group or session has it. Mechanism: each [`Id`]
//! value counts as a user of its id in a table's slot. Each CPU takes ids from a batch of its own, so that fork writes a
//! shared cache line only once for each batch.
//!
//! Ids wrap around at a *span* of 32768. The span doubles, up to four million, whenever more than a quarter of it is in use.
//! So the table stays as small as the number of live processes allows.

use alloc::sync::Arc;
use ksync::atomic::{AtomicU32, Ordering};

use ksync::{ArcBorrow, Counter, CpuPin, EpochPtr, Once, PerCpu, Round, Spin};

use crate::id_table::{self, IdTable};
use crate::idlist::{IdLinks, Role};
use crate::lock;
use crate::thread::Thread;

pub use crate::id_table::ID_LIMIT;

/// The first span (Linux's default pid_max).
const FIRST_SPAN: u32 = 1 << 15;
/// Ids that a CPU takes at a time.
const BATCH: u32 = 64;

/// What the table keeps for one id.
struct Slot {
    /// The [`Id`] values with this id that exist.
    users: AtomicU32,
    /// Where the waiting rounds of the next thread with this id begin; see [`Round::after`]. Written when a thread gives the
    /// id up.
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
    /// Marks the id as used; false if it is in use already.
    fn take(&self) -> bool {
        self.users
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

/// The ids that a CPU has taken and not yet given out: `next..end`.
struct Batch {
    next: u32,
    end: u32,
}

struct Ids {
    /// Where the next batch begins, before the wrap at the span.
    cursor: AtomicU32,
    span: AtomicU32,
    batches: PerCpu<Spin<Batch, lock::IdTableLock>>,
    live: Counter,
}

hal::machine_static! {
    static IDS: Once<Ids> = Once::new();

    static TABLE: IdTable<Slot> = IdTable::new();
}

/// Sets the ids up. Called once, by the boot CPU, before any thread is made.
#[inline(never)]
pub(crate) fn init(ncpus: usize) {
    IDS.get_or_init(|| Ids {
        // Id 1, which `alloc` passes over, is taken by `take_init`.
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
    /// The next id of a CPU's batch, which may be in use. Takes the batch's lock.
    fn next(&self, pin: &CpuPin) -> u32 {
        let mut batch = self.batches.get(pin).lock();
        if batch.next >= batch.end {
            *batch = self.next_batch();
        }
        batch.next += 1;
        batch.next - 1
    }

    /// Takes the next batch of ids for a CPU.
    fn next_batch(&self) -> Batch {
        let span = self.span.load(Ordering::Relaxed);
        let start = self.cursor.fetch_add(BATCH, Ordering::Relaxed) % span;
        if start == 0 && span < ID_LIMIT && self.live.sum() as u64 > u64::from(span / 4) {
            // The cursor is taken modulo the span, a power of two, so doubling the span needs no other change.
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

/// Bytes of the table of ids: for the accounting of the heap.
pub fn table_bytes() -> usize {
    TABLE.bytes()
}

/// An id, which is in use as long as this value or a clone of it exists.
pub struct Id(u32);

impl Id {
    /// An id that is not in use; `None` if none is found in twice as many tries as the span has ids. Never 1, which is for
    /// init. Takes the lock of this CPU's batch; may allocate a part of the table, and wait for memory.
    pub fn alloc() -> Option<Id> {
        let ids = ids();
        let span = ids.span.load(Ordering::Relaxed);
        let mut tried = 0;
        loop {
            // Preemption is possible between two ids: where most are in use, the search is long.
            let id = ids.next(&ksync::pin());
            if id > 1 {
                TABLE.grow(id);
                let pin = ksync::pin();
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

    /// Id 1, for init; `None` if it is in use.
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

    /// The id with that number, if it is in use: by a thread, a process, a group or a session, or because somebody else has it.
    pub fn find(number: u32) -> Option<Id> {
        let pin = ksync::pin();
        let slot = TABLE.slot(&pin, number)?;
        let more = |users: u32| users.checked_add(1).filter(|&n| n > 1);
        // Acquire: as for a new id.
        slot.users
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, more)
            .ok()?;
        Some(Id(number))
    }

    /// Id 0, for a CPU's idle thread; it is in no table.
    pub const fn idle() -> Id {
        Id(0)
    }

    /// The id as an integer.
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

/// The thread with that tid.
#[inline]
pub fn thread(pin: &CpuPin, tid: u32) -> Option<&Thread> {
    TABLE.slot(pin, tid)?.thread.load(pin)
}

/// As [`thread`], for a caller that may take a reference.
#[inline]
pub fn borrow_thread(pin: &CpuPin, tid: u32) -> Option<ArcBorrow<'_, Thread>> {
    TABLE.slot(pin, tid)?.thread.borrow(pin)
}

/// A reference to the thread with that tid. Its process may have been waited for already.
pub fn hold_thread(tid: u32) -> Option<Arc<Thread>> {
    borrow_thread(&ksync::pin(), tid).map(ArcBorrow::hold)
}

/// Runs `f` on the slot of an id that is in use. Does nothing for id 0, which idle threads have.
fn with_slot(number: u32, f: impl FnOnce(&Slot, &CpuPin)) {
    let pin = ksync::pin();
    if number != 0
        && let Some(slot) = TABLE.slot(&pin, number)
    {
        f(slot, &pin);
    }
}

/// The state of the waiting rounds for a new thread with that id: it repeats no round of an earlier thread with the same id.
pub fn rounds(id: &Id) -> Round {
    let mut left = 0;
    with_slot(id.0, |slot, _| left = slot.rounds.load(Ordering::Relaxed));
    Round::after(left)
}

/// Puts a thread into the table, by its tid.
pub fn publish(thread: &Arc<Thread>) {
    with_slot(thread.tid(), |slot, pin| {
        slot.thread.replace(mem::epoch(), pin, Some(thread.clone()))
    });
}

/// Takes a thread that will not sleep any more out of the table, whose reference is dropped after a grace period.
pub fn withdraw(thread: &Thread) {
    with_slot(thread.tid(), |slot, pin| {
        // Stored before the id can be given out again, for the thread holds an `Id` until it is freed.
        slot.rounds.store(thread.round.heir(), Ordering::Relaxed);
        slot.thread.replace(mem::epoch(), pin, None)
    });
}

/// Gives `thread`, which is the caller and the only thread of its process, that process's id `pid` as its tid. Returns false
/// as long as the former leader is in the table under `pid`. `relist`, called with preemption off while the table has the thread
/// under both, makes the new tid the thread's and moves the thread to it on its process's list; its argument is the old tid.
///
/// The tid that the thread had stays in use until the thread is freed.
pub fn become_leader(thread: &Arc<Thread>, pid: u32, relist: impl FnOnce(&CpuPin, u32)) -> bool {
    let pin = ksync::pin();
    let tid = thread.tid();
    let (Some(old), Some(new)) = (TABLE.slot(&pin, tid), TABLE.slot(&pin, pid)) else {
        return false;
    };
    // Acquire: the rounds that the former leader stored in `rounds` before it left the slot are read below.
    if new.thread.load(&pin).is_some() {
        return false;
    }
    // The thread is between two rounds, so no registration is lost; its later rounds are new for both ids. This is done
    // before the table has the thread under its new tid: a registration that the former leader has left in a wait queue must
    // not match a round of this thread.
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

/// Calls `f` with each thread, with preemption off. A thread that is added or removed meanwhile may be passed over.
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

/// The number of threads, without the idle ones. Takes time in proportion to the size of the table.
pub fn threads() -> usize {
    let mut n = 0;
    each(|_, _| n += 1);
    n
}

/// The number of ids in use: by processes, groups, sessions and further threads.
pub fn live() -> u64 {
    ids().live.sum().max(0) as u64
}

/// The kind of list of a run queue.
pub enum Runnable {}

impl Role for Runnable {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        thread(pin, id).map(|t| &t.run_links)
    }
}

/// The kind of list of a process's threads.
pub enum InProcess {}

impl Role for InProcess {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        thread(pin, id).map(|t| &t.group_links)
    }
}

/// The kind of list of the threads that wait for memory.
pub enum NeedsMemory {}

impl Role for NeedsMemory {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        thread(pin, id).map(|t| &t.memory_links)
    }
}
