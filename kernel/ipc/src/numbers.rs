//! Objects by number, as wait queues and timers find them.
//!
//! Guarantee: a lookup takes no lock. A number is given out again after the memory of the object that had it has been freed.
//! Mechanism: that of `task::ids`: a table by number, batches of numbers for each CPU, and a span of numbers that doubles
//! when more than a quarter of it is in use.

use alloc::sync::Arc;
use ksync::atomic::{AtomicU32, Ordering};

use ksync::{ArcBorrow, Counter, CpuPin, EpochPtr, PerCpu, Round, Spin};
use task::id_table::{self, ID_LIMIT, IdTable};

ksync::lock_class!(pub NumbersLock, "ipc numbers", rank = 143);

/// The first span.
const FIRST_SPAN: u32 = 1 << 12;
/// Numbers that a CPU takes at a time.
const BATCH: u32 = 64;

/// A kind of objects that have numbers.
pub(crate) trait Numbered: Send + Sync + Sized + 'static {
    /// The table of the kind; `None` before it is set up.
    fn table() -> Option<&'static Table<Self>>;
    /// The object's number.
    fn number(&self) -> &Number<Self>;
}

struct Slot<T: Send + Sync + 'static> {
    /// 1 while a [`Number`] has it.
    taken: AtomicU32,
    /// What an object has left for the next one with its number.
    heir: AtomicU32,
    object: EpochPtr<Arc<T>>,
}

impl<T: Send + Sync + 'static> id_table::Slot for Slot<T> {
    const VACANT: Slot<T> = Slot {
        taken: AtomicU32::new(0),
        heir: AtomicU32::new(0),
        object: EpochPtr::empty(),
    };
}

/// The numbers that a CPU has taken and not yet given out: `next..end`.
struct Batch {
    next: u32,
    end: u32,
}

/// The objects of one kind.
pub(crate) struct Table<T: Send + Sync + 'static> {
    slots: IdTable<Slot<T>>,
    /// Where the next batch begins, before the wrap at the span.
    cursor: AtomicU32,
    span: AtomicU32,
    batches: PerCpu<Spin<Batch, NumbersLock>>,
    live: Counter,
}

impl<T: Numbered> Table<T> {
    /// An empty table.
    pub fn new(ncpus: usize) -> Self {
        Table {
            slots: IdTable::new(),
            cursor: AtomicU32::new(0),
            span: AtomicU32::new(FIRST_SPAN),
            batches: PerCpu::new(ncpus, |_| Spin::new(Batch { next: 0, end: 0 })),
            live: Counter::new(ncpus),
        }
    }

    /// Bytes of the table, which never shrinks.
    pub fn bytes(&self) -> usize {
        self.slots.bytes()
    }

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

    /// A number that is not in use; `None` if there is none. May allocate a part of the table.
    pub fn alloc(&'static self) -> Option<Number<T>> {
        loop {
            let pin = ksync::pin();
            let mut batch = self.batches.get(&pin).lock();
            if batch.next >= batch.end {
                *batch = self.next_batch()?;
            }
            let number = batch.next;
            batch.next += 1;
            drop(batch);
            if number == 0 {
                continue;
            }
            self.slots.grow(number);
            let slot = self.slots.slot(&pin, number)?;
            // Acquire: what the last object with the number has left.
            let free = slot
                .taken
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
            if free.is_ok() {
                self.live.add(&pin, 1);
                let table = self;
                return Some(Number { table, number });
            }
        }
    }

    /// The object with that number.
    #[inline]
    pub fn get<'p>(&'p self, pin: &'p CpuPin, number: u32) -> Option<&'p T> {
        self.slots.slot(pin, number)?.object.load(pin)
    }

    /// A reference to the object with that number.
    pub fn hold(&self, pin: &CpuPin, number: u32) -> Option<Arc<T>> {
        let slot = self.slots.slot(pin, number)?;
        slot.object.borrow(pin).map(ArcBorrow::hold)
    }

    /// Calls `f` with each object that is in the table throughout.
    pub fn each(&self, mut f: impl FnMut(&T)) {
        // All numbers that were given out are below the span.
        let end = self.span.load(Ordering::Relaxed);
        let mut next = 1;
        while let Some(number) = self.slots.next(next, end) {
            if let Some(object) = self.get(&ksync::pin(), number) {
                f(object);
            }
            next = number + 1;
        }
    }
}

/// A number, which is in use as long as this value exists.
pub(crate) struct Number<T: Send + Sync + 'static> {
    table: &'static Table<T>,
    number: u32,
}

impl<T: Numbered> Number<T> {
    pub fn get(&self) -> u32 {
        self.number
    }

    /// The rounds of a listener that gets this number: none is one of an earlier listener with it.
    pub fn rounds(&self) -> Round {
        let pin = ksync::pin();
        let slot = self.table.slots.slot(&pin, self.number);
        Round::after(slot.map_or(0, |slot| slot.heir.load(Ordering::Relaxed)))
    }
}

impl<T: Send + Sync + 'static> Drop for Number<T> {
    fn drop(&mut self) {
        let pin = ksync::pin();
        if let Some(slot) = self.table.slots.slot(&pin, self.number) {
            slot.taken.store(0, Ordering::Release);
            self.table.live.add(&pin, -1);
        }
    }
}

/// Lets an object be found by its number.
pub(crate) fn publish<T: Numbered>(object: &Arc<T>) {
    let pin = ksync::pin();
    let Number { table, number } = object.number();
    if let Some(slot) = table.slots.slot(&pin, *number) {
        let put = slot.object.set_if_none(object.clone());
        debug_assert!(put.is_ok(), "a number of two objects");
    }
}

/// Takes an object out of the table, which leaves `heir`. The reference there is dropped after a grace period.
pub(crate) fn withdraw<T: Numbered>(object: &T, heir: u32) {
    let pin = ksync::pin();
    let Number { table, number } = object.number();
    if let Some(slot) = table.slots.slot(&pin, *number) {
        slot.heir.store(heir, Ordering::Relaxed);
        slot.object.replace(mem::epoch(), &pin, None);
    }
}
