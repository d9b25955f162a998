//! Entries by number, as wait queues find them.

use alloc::sync::Arc;

use ksync::{CpuPin, Once, Round};
use task::idlist::{IdLinks, Role};

use super::entry::Entry;
use crate::numbers::{self, Numbered, Table};

hal::machine_static! {
    static ENTRIES: Once<Table<Entry>> = Once::new();
}

impl Numbered for Entry {
    fn table() -> Option<&'static Table<Self>> {
        ENTRIES.get()
    }

    fn number(&self) -> &numbers::Number<Self> {
        &self.number
    }
}

/// The number of an entry.
pub(super) type Number = numbers::Number<Entry>;

pub(super) fn init(ncpus: usize) {
    ENTRIES.get_or_init(|| Table::new(ncpus));
}

/// The rounds of the entry with that number.
pub(crate) fn round(pin: &CpuPin, number: u32) -> Option<&Round> {
    Some(&get(pin, number)?.round)
}

/// A queue of the file of that entry was woken; returns whether that has woken a thread.
pub(crate) fn heard(pin: &CpuPin, number: u32) -> bool {
    get(pin, number).is_some_and(Entry::heard)
}

/// Bytes of the table, which never shrinks: for the accounting of the heap.
pub(crate) fn table_bytes() -> usize {
    Entry::table().map_or(0, Table::bytes)
}

/// A number that is not in use; `None` if there is none. May allocate.
pub(super) fn alloc() -> Option<Number> {
    Entry::table()?.alloc()
}

/// The entry with that number.
pub(super) fn get(pin: &CpuPin, number: u32) -> Option<&Entry> {
    Entry::table()?.get(pin, number)
}

/// A reference to the entry with that number.
pub(super) fn hold(pin: &CpuPin, number: u32) -> Option<Arc<Entry>> {
    Entry::table()?.hold(pin, number)
}

/// Lets wait queues find an entry.
pub(super) fn publish(entry: &Arc<Entry>) {
    numbers::publish(entry);
}

/// Takes a dead entry out of the table. No round of it is one of the next entry with its number.
pub(super) fn withdraw(entry: &Entry) {
    numbers::withdraw(entry, entry.round.heir());
}

/// The ready list of an epoll.
pub(super) enum OnReady {}

impl Role for OnReady {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        Some(&get(pin, id)?.links)
    }
}
