//! Tables of counted references: reserved slots, far slots, and copies.

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
    locked.make(&epoch, 29).unwrap();
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
    table.lock().make(&epoch, SLOTS - 1).unwrap();
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
        let copies = if cfg!(miri) { 20 } else { 100_000 };
        let always = (0..copies).all(has_it);
        done.store(true, SeqCst);
        assert!(always);
    });
    drop(table);
    (0..2).for_each(|cpu| epoch.offline(cpu));
    epoch.drain();
}

/// Slots of an array that does not grow any more.
const CHUNK: usize = 4093;

/// Slots far apart, some at the ends of the arrays that they are in.
const FAR: [usize; 7] = {
    let (high, highest) = if cfg!(miri) {
        (16_400, 25_000)
    } else {
        (500_000, 1_048_575)
    };
    [0, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK, high, highest]
};

/// A table of objects that tell their number, in the slots of that number.
fn far_table(epoch: &Epoch) -> RcTable<usize, usize, TestTable> {
    let table = RcTable::new(0);
    for i in FAR {
        let mut locked = table.lock();
        locked.make(epoch, i).unwrap();
        assert!(locked.put(i, EpochRc::new(epoch, i), i % 2 == 1).is_none());
    }
    table
}

/// Looks whether a table is as `far_table` makes it.
fn check_far(table: &RcTable<usize, usize, TestTable>) {
    for i in FAR {
        assert_eq!(table.get(&pin(), i).map(|found| *found), Some(i));
        let locked = table.lock();
        assert_eq!(locked.is_marked(i), i % 2 == 1);
        assert!(locked.is_free(i + 1) || FAR.contains(&(i + 1)));
    }
    let mut seen = Vec::new();
    for from in (0..).step_by(4096) {
        let Some(taken) = table.taken(&pin(), from..from + 4096) else {
            break;
        };
        let before = seen.len();
        let mut at = from;
        while let Some(Some((i, _))) = table.first_in(&pin(), at..from + 4096) {
            seen.push(i);
            at = i + 1;
        }
        assert_eq!(seen.len() - before, taken);
    }
    assert_eq!(seen, FAR);
}

#[test]
fn far_slots_are_made_alone() {
    let epoch = Epoch::new(1);
    host::set_cpu(0);
    let table = far_table(&epoch);
    check_far(&table);
    let locked = table.lock();
    // Five arrays, and none for what lies between.
    assert_eq!(locked.count(), 5 * CHUNK);
    assert_eq!(locked.len(), (FAR[6] / CHUNK + 1) * CHUNK);
    assert!(
        locked.exists(2 * CHUNK + 1) && !locked.exists(3 * CHUNK) && !locked.exists(usize::MAX)
    );
    assert!(locked.is_free(3 * CHUNK) && !locked.has(3 * CHUNK));
    drop(locked);
    let mut table = table;
    assert!(table.drain().map(|found| *found).eq(FAR));
    drop(table);
    epoch.drain();
}

#[test]
fn a_copy_has_far_slots_and_no_more_than_it_needs() {
    let epoch = Epoch::new(1);
    host::set_cpu(0);
    let table = far_table(&epoch);
    let copy = table.copy(4096, |count, free| count + free).unwrap();
    check_far(&copy);
    assert_eq!(*copy.lock(), 5 * CHUNK + 1);
    for i in &FAR[3..] {
        drop(table.lock().take(*i));
    }
    // What is left lies in the first two arrays.
    let small = table.copy(4096, |count, _| count).unwrap();
    assert_eq!(*small.lock(), 2 * CHUNK);
    assert_eq!(small.get(&pin(), CHUNK).map(|found| *found), Some(CHUNK));
    drop(table.lock().take(CHUNK));
    drop(table.lock().take(CHUNK - 1));
    let smallest = table.copy(4096, |count, _| count).unwrap();
    assert!(*smallest.lock() < 64 && smallest.get(&pin(), 0).is_some());
    drop((table, small, smallest));
    check_far(&copy);
    drop(copy);
    epoch.drain();
}

#[test]
fn readers_find_what_stays_while_far_slots_are_made() {
    let epoch = Epoch::new(2);
    host::set_cpu(0);
    let table: RcTable<usize, usize, TestTable> = RcTable::new(0);
    table.lock().make(&epoch, 5000).unwrap();
    table.lock().put(5000, EpochRc::new(&epoch, 5000), false);
    let done = AtomicBool::new(false);
    thread::scope(|s| {
        let reader = s.spawn(|| {
            host::set_cpu(1);
            let mut all = true;
            while !done.load(SeqCst) {
                epoch.quiescent(&mut pin());
                all &= table.get(&pin(), 5000).is_some_and(|found| *found == 5000);
            }
            all
        });
        let arrays = if cfg!(miri) { 8 } else { 200 };
        for i in (0..arrays).map(|i| i * CHUNK + i) {
            let mut locked = table.lock();
            locked.make(&epoch, i).unwrap();
            locked.put(i, EpochRc::new(&epoch, i), false);
            drop(locked);
            epoch.quiescent(&mut pin());
            epoch.reclaim(&pin());
        }
        done.store(true, SeqCst);
        assert!(reader.join().unwrap());
    });
    drop(table);
    (0..2).for_each(|cpu| epoch.offline(cpu));
    epoch.drain();
}
