//! Tables of counted references: reserved slots, and copies.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use ksync::{Epoch, EpochRc, RcTable, host, pin};

ksync::lock_class!(TestTable, "test table", rank = 5);

#[test]
fn a_copy_of_a_table_has_no_reservations() {
    let epoch = Epoch::new(1);
    host::set_cpu(0);
    let table: RcTable<u32, (usize, usize), TestTable> = RcTable::new((0, 0));
    let free = |table: &RcTable<_, _, _>| table.copy(2, |len, free| (len, free)).unwrap();
    assert_eq!(*free(&table).lock(), (0, 0));
    let mut locked = table.lock();
    locked.grow(&epoch, 30).unwrap();
    for i in [0, 1, 3, 4, 9] {
        locked.put(i, EpochRc::new(&epoch, i as u32), i == 4);
    }
    locked.reserve(2);
    locked.reserve(12);
    assert!(locked.is_reserved(2) && !locked.is_free(2) && !locked.has(2) && !locked.is_marked(2));
    assert!(locked.take(2).is_none() && locked.get(2).is_none());
    drop(locked);
    assert_eq!(table.taken(&pin(), 0..30), Some(5));
    assert!(table.get(&pin(), 2).is_none());
    assert_eq!(
        table.first_in(&pin(), 2..30).unwrap().map(|(i, _)| i),
        Some(3)
    );
    assert!(table.first_in(&pin(), 10..30).unwrap().is_none());
    assert!(table.first_in(&pin(), 1000..1001).is_none());
    let copy = free(&table);
    let locked = copy.lock();
    assert!(locked.0 >= 10 && locked.1 == 2 && locked.is_free(2));
    assert!((0..10).all(|i| locked.get(i).is_none_or(|found| *found == i as u32)));
    assert!(locked.has(9) && locked.is_marked(4) && !locked.is_marked(3));
    drop(locked);
    let mut locked = table.lock();
    assert!(locked.put(2, EpochRc::new(&epoch, 2), false).is_none());
    locked.cancel(2);
    locked.cancel(12);
    assert!(locked.has(2) && locked.is_free(12));
    drop(locked);
    assert_eq!(free(&table).lock().1, 5);
    drop((table, copy));
    epoch.drain();
}

#[test]
fn a_copy_in_one_step_has_what_moves_meanwhile() {
    const SLOTS: usize = 30;
    const STEP: usize = 64;
    let epoch = Epoch::new(2);
    host::set_cpu(0);
    let table: RcTable<u32, (), TestTable> = RcTable::new(());
    table.lock().grow(&epoch, SLOTS).unwrap();
    table.lock().put(0, EpochRc::new(&epoch, 7), false);
    let done = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            host::set_cpu(1);
            let mut at = 0;
            while !done.load(SeqCst) {
                let next = (at + 17) % SLOTS;
                let same = table.lock().get(at).unwrap();
                table.lock().put(next, same, false);
                drop(table.lock().take(at));
                at = next;
            }
        });
        let has_it = |_| {
            let copy = table.copy(STEP, |_, _| ()).unwrap();
            matches!(copy.taken(&pin(), 0..SLOTS), Some(1 | 2))
        };
        let always = (0..100_000).all(has_it);
        done.store(true, SeqCst);
        assert!(always);
    });
    drop(table);
    (0..2).for_each(|cpu| epoch.offline(cpu));
    epoch.drain();
}
