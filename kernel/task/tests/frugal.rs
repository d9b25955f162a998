//! What an operation that finds nothing to do must not use: memory, and locks.
#![cfg(not(shuttle))]

mod processes;

use ksync::CpuPin;
use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use processes::on;
use task::id_table::{IdTable, Slot};
use task::idlist::{IdLinks, IdList, NONE, Role};
use vm_host::heap::{Heap, blocks};

#[global_allocator]
static HEAP: Heap = Heap;

struct Place(AtomicU32);

impl Slot for Place {
    const VACANT: Place = Place(AtomicU32::new(0));
}

hal::machine_static! {
    static TABLE: IdTable<Place> = IdTable::new();
    static LINKS: [IdLinks; 4] = [const { IdLinks::new() }; 4];
}

#[test]
fn a_table_of_ids_with_a_slot_for_an_id_does_not_grow() {
    on(1, || {
        assert!(blocks(|| TABLE.grow(7)) > 0);
        assert_eq!(blocks(|| TABLE.grow(8)), 0);
        let place = TABLE
            .slot(&ksync::pin(), 8)
            .map(|place| place.0.load(SeqCst));
        assert_eq!(place, Some(0));
    });
}

enum Listed {}

impl Role for Listed {
    fn links(_: &CpuPin, id: u32) -> Option<&IdLinks> {
        assert_ne!(id, NONE, "nobody has this number");
        let links: &'static [IdLinks; 4] = &LINKS;
        links.get(id as usize)
    }
}

#[test]
fn no_list_asks_for_the_links_of_nobody() {
    on(1, || {
        let pin = ksync::pin();
        let mut list = IdList::<Listed>::new();
        list.rotate(&pin);
        list.remove(&pin, 1);
        assert_eq!((list.pop_front(&pin), list.first()), (None, None));
        list.push_back(&pin, 1);
        list.remove(&pin, 2);
        assert_eq!(list.pop_front(&pin), Some(1));
    });
}
