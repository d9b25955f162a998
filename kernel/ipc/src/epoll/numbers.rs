//! The numbers of entries, by which wait queues find them.
//!
//! Guarantee: a lookup takes no lock, and no round of an entry is a round of an earlier one with its number. A number is given out
//! again after its entry's memory has been freed. Mechanism: that of `task::ids`: a table by number, batches of
//! numbers for each CPU, and a span of numbers that doubles when more than a quarter of it is in use.

use alloc::sync::Arc;
use ksync::atomic::{AtomicU32, Ordering};

use ksync::{ArcBorrow, Counter, CpuPin, EpochPtr, Once, PerCpu, Round, Spin};
use task::id_table::{self, ID_LIMIT, IdTable};
use task::idlist::{IdLinks, Role};
use task::wait::{Listeners, set_listeners};

use super::entry::Entry;

ksync::lock_class!(pub NumbersLock, "epoll numbers", rank = 143);

/// The first span.
const FIRST_SPAN: u32 = 1 << 12;
/// Numbers that a CPU takes at a time.
const BATCH: u32 = 64;

struct Slot {
    /// 1 while a [`Number`] has it.
    taken: AtomicU32,
    /// Where the rounds of the next entry begin; see [`Round::after`]. Written when an entry is taken out.
    rounds: AtomicU32,
    entry: EpochPtr<Arc<Entry>>,
}

impl id_table::Slot for Slot {
    const VACANT: Slot = Slot {
        taken: AtomicU32::new(0),
        rounds: AtomicU32::new(0),
        entry: EpochPtr::empty(),
    };
}

/// The numbers that a CPU has taken and not yet given out: `next..end`.
struct Batch {
    next: u32,
    end: u32,
}

struct Numbers {
    /// Where the next batch begins, before the wrap at the span.
    cursor: AtomicU32,
    span: AtomicU32,
    batches: PerCpu<Spin<Batch, NumbersLock>>,
    live: Counter,
}

hal::machine_static! {
    static NUMBERS: Once<Numbers> = Once::new();

    static TABLE: IdTable<Slot> = IdTable::new();
}

static LISTENERS: Listeners = Listeners {
    round: |pin, number| Some(&get(pin, number)?.round),
    call: |pin, number| get(pin, number).is_some_and(Entry::heard),
};

pub(super) fn init(ncpus: usize) {
    NUMBERS.get_or_init(|| Numbers {
        cursor: AtomicU32::new(0),
        span: AtomicU32::new(FIRST_SPAN),
        batches: PerCpu::new(ncpus, |_| Spin::new(Batch { next: 0, end: 0 })),
        live: Counter::new(ncpus),
    });
    set_listeners(&LISTENERS);
}

/// Bytes of the table, which never shrinks: for the accounting of the heap.
pub fn table_bytes() -> usize {
    TABLE.bytes()
}

impl Numbers {
    /// The next batch for a CPU; `None` if more than half of all numbers are in use.
    fn next_batch(&self) -> Option<Batch> {
        let span = self.span.load(Ordering::Relaxed);
        let start = self.cursor.fetch_add(BATCH, Ordering::Relaxed) % span;
        let live = self.live.sum() as u64;
        if live > u64::from(span / 4) && span < ID_LIMIT {
            // The cursor is taken modulo the span, a power of two, so doubling the span needs no other change.
            let _ =
                self.span
                    .compare_exchange(span, span * 2, Ordering::Relaxed, Ordering::Relaxed);
        }
        (live < u64::from(ID_LIMIT / 2)).then_some(Batch {
            next: start,
            end: start + BATCH,
        })
    }
}

/// A number, which is in use as long as this value exists.
pub(super) struct Number(u32);

impl Number {
    /// One that is not in use; `None` if there is none. May allocate a part of the table.
    pub fn alloc() -> Option<Number> {
        let numbers = NUMBERS.get()?;
        loop {
            let pin = ksync::pin();
            let mut batch = numbers.batches.get(&pin).lock();
            if batch.next >= batch.end {
                *batch = numbers.next_batch()?;
            }
            let number = batch.next;
            batch.next += 1;
            drop(batch);
            if number == 0 {
                continue;
            }
            TABLE.grow(number);
            let slot = TABLE.slot(&pin, number)?;
            // Acquire: what the last entry with the number has left in `rounds`.
            let free = slot
                .taken
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
            if free.is_ok() {
                numbers.live.add(&pin, 1);
                return Some(Number(number));
            }
        }
    }

    pub fn get(&self) -> u32 {
        self.0
    }

    /// The rounds of an entry that gets this number.
    pub fn rounds(&self) -> Round {
        let slot = TABLE
            .slot(&ksync::pin(), self.0)
            .map(|s| s.rounds.load(Ordering::Relaxed));
        Round::after(slot.unwrap_or(0))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let pin = ksync::pin();
        if let (Some(slot), Some(numbers)) = (TABLE.slot(&pin, self.0), NUMBERS.get()) {
            slot.taken.store(0, Ordering::Release);
            numbers.live.add(&pin, -1);
        }
    }
}

/// The entry with that number.
pub(super) fn get(pin: &CpuPin, number: u32) -> Option<&Entry> {
    TABLE.slot(pin, number)?.entry.load(pin)
}

/// A reference to the entry with that number.
pub(super) fn hold(pin: &CpuPin, number: u32) -> Option<Arc<Entry>> {
    TABLE
        .slot(pin, number)?
        .entry
        .borrow(pin)
        .map(ArcBorrow::hold)
}

/// Lets wait queues find an entry.
pub(super) fn publish(entry: &Arc<Entry>) {
    let pin = ksync::pin();
    if let Some(slot) = TABLE.slot(&pin, entry.number.get()) {
        let put = slot.entry.set_if_none(entry.clone());
        debug_assert!(put.is_ok(), "a number of two entries");
    }
}

/// Takes a dead entry out of the table. The reference there is dropped after a grace period.
pub(super) fn withdraw(entry: &Entry) {
    let pin = ksync::pin();
    if let Some(slot) = TABLE.slot(&pin, entry.number.get()) {
        slot.rounds.store(entry.round.heir(), Ordering::Relaxed);
        slot.entry.replace(mem::epoch(), &pin, None);
    }
}

/// The ready list of an epoll.
pub(super) enum OnReady {}

impl Role for OnReady {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        Some(&get(pin, id)?.links)
    }
}
