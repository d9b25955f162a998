//! Tables of counted objects, read without a lock while they change, grow and are copied: every order that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p ksync --release --test loom_table`
#![cfg(loom)]
#![expect(
    unsafe_code,
    reason = "the models watch raw cells, to see races that the epochs must prevent"
)]

mod model;

use std::sync::atomic::Ordering::SeqCst;

use ksync::{Epoch, EpochRc, RcTable, pin};
use loom::sync::Arc;
use model::{Target, model, spawn};

ksync::lock_class!(pub TestTable, "test table", rank = 5);

type Table = RcTable<Target, (), TestTable>;

/// A table, and whether the object in its last slot lives.
type Made = (Table, std::sync::Arc<std::sync::atomic::AtomicBool>);

/// Gives the table slot `i`, its last, with an object in it.
fn fill(epoch: &Epoch, table: Table, i: usize) -> Made {
    let (target, alive) = Target::new();
    let mut locked = table.lock();
    locked.make(epoch, i).unwrap();
    locked.put(i, EpochRc::new(epoch, target), false);
    drop(locked);
    (table, alive)
}

/// A table of one slot with an object in it.
fn table(epoch: &Epoch) -> Made {
    fill(epoch, Table::new(()), 0)
}

#[test]
fn what_a_reader_finds_in_a_table_lives_while_it_has_it() {
    model(2, || {
        let epoch = Arc::new(Epoch::new(2));
        let (table, alive) = table(&epoch);
        let table = Arc::new(table);
        let reader = spawn(1, {
            let (epoch, table) = (epoch.clone(), table.clone());
            move || {
                // The old one, or none: the reference outlives the section.
                let found = table.get(&pin(), 0);
                epoch.offline(1);
                if let Some(found) = found {
                    found.look();
                }
                // Its drop may be the last.
                epoch.online(1);
            }
        });
        drop(table.lock().take(0));
        epoch.quiescent(&mut pin());
        epoch.reclaim(&pin());
        reader.join().unwrap();
        assert!(!alive.load(SeqCst), "its last user is gone");
    });
}

/// Explores `read` of a table that `make` makes, beside `change` of it.
fn beside(make: fn(&Epoch) -> Made, read: fn(&Table), change: fn(&Epoch, &Table)) {
    model(2, move || {
        let epoch = Epoch::new(2);
        let (table, _) = make(&epoch);
        let table = Arc::new(table);
        let reader = spawn(1, {
            let table = table.clone();
            move || read(&table)
        });
        change(&epoch, &table);
        reader.join().unwrap();
        drop(epoch);
    });
}

#[test]
fn a_reader_finds_something_while_another_takes_its_place() {
    beside(
        table,
        |table| table.get(&pin(), 0).expect("there always is one").look(),
        |epoch, table| {
            let new = EpochRc::new(epoch, Target::new().0);
            let mut locked = table.lock();
            let old = locked.put(0, new, true);
            locked.set_mark(0, false);
            drop(locked);
            drop(old);
        },
    );
}

#[test]
fn a_reader_of_an_array_that_was_replaced_finds_what_lives() {
    beside(
        table,
        |table| {
            if let Some(found) = table.get(&pin(), 0) {
                found.look();
            }
        },
        |epoch, table| {
            let mut locked = table.lock();
            // More than a line of slots.
            locked.make(epoch, 5).unwrap();
            let old = locked.take(0);
            drop(locked);
            drop(old);
        },
    );
}

#[test]
fn who_counts_what_a_table_has_counts_in_an_array_that_is_whole() {
    beside(
        table,
        |table| {
            assert!(table.room(&pin()) >= 1);
            assert_eq!(table.taken(&pin(), 0..1), Some(1));
        },
        |epoch, table| table.lock().make(epoch, 5).unwrap(),
    );
}

/// A table of two slots with an object in each.
fn table_of_two(epoch: &Epoch) -> Made {
    fill(epoch, table(epoch).0, 1)
}

#[test]
fn a_copy_in_steps_has_what_lives() {
    model(2, || {
        let epoch = Epoch::new(2);
        let (table, alive) = table_of_two(&epoch);
        let table = Arc::new(table);
        let other = spawn(1, {
            let table = table.clone();
            move || drop(table.lock().take(1))
        });
        let copy = table.copy(1, |_, _| ()).unwrap();
        other.join().unwrap();
        // Frees what was given up.
        drop(epoch);
        if let Some(found) = copy.get(&pin(), 1) {
            found.look();
        }
        drop(copy);
        assert!(!alive.load(SeqCst), "its last user is gone");
    });
}

/// Explores a copy in one step beside the move of an object from one of two slots to the other.
fn a_move_beside_a_copy<const FROM: usize, const TO: usize>() {
    beside(
        |epoch| {
            let (table, alive) = table_of_two(epoch);
            drop(table.lock().take(TO));
            (table, alive)
        },
        |table| {
            let copy = table.copy(4, |_, _| ()).unwrap();
            assert!(
                copy.taken(&pin(), 0..2) > Some(0),
                "it was in one of the two slots"
            );
        },
        |_, table| {
            let same = table.lock().get(FROM).unwrap();
            table.lock().put(TO, same, false);
            drop(table.lock().take(FROM));
        },
    );
}

#[test]
fn a_copy_in_one_step_has_what_moves() {
    a_move_beside_a_copy::<1, 0>();
}

/// It moves behind the last slot that the copy has found taken.
#[test]
fn a_copy_in_one_step_has_what_moves_on() {
    a_move_beside_a_copy::<0, 1>();
}

#[test]
fn a_copy_in_steps_beside_growth_is_whole() {
    beside(
        table_of_two,
        |table| {
            let copy = table.copy(1, |_, _| ()).unwrap();
            assert_eq!(copy.taken(&pin(), 0..2), Some(2));
        },
        |epoch, table| table.lock().make(epoch, 59).unwrap(),
    );
}

/// Explores a lookup in slot `i` of a table that `make` makes, beside the making of that slot. An array has six slots here.
fn far_slot_beside_lookup(make: fn(&Epoch) -> Made, i: usize) {
    model(2, move || {
        let epoch = Epoch::new(2);
        let table = Arc::new(make(&epoch).0);
        let reader = spawn(1, {
            let table = table.clone();
            move || {
                if let Some(found) = table.get(&pin(), i) {
                    found.look();
                }
            }
        });
        let mut locked = table.lock();
        locked.make(&epoch, i).unwrap();
        locked.put(i, EpochRc::new(&epoch, Target::new().0), false);
        drop(locked);
        reader.join().unwrap();
        drop((table, epoch));
    });
}

#[test]
fn a_reader_finds_the_first_far_slots_whole() {
    far_slot_beside_lookup(table, 7);
}

#[test]
fn a_reader_finds_more_far_slots_whole() {
    far_slot_beside_lookup(far_table, 13);
}

/// A table with an object in its first slot and in a far one.
fn far_table(epoch: &Epoch) -> Made {
    fill(epoch, table(epoch).0, 7)
}

#[test]
fn a_reader_of_far_slots_finds_them_while_more_are_made() {
    beside(
        far_table,
        |table| table.get(&pin(), 7).expect("it stays").look(),
        // Their list has room for six under this model, too.
        |epoch, table| table.lock().make(epoch, 6 * 40).unwrap(),
    );
}

/// Another makes far slots, and fills the first free one, after the copy's arrays were made.
#[test]
fn a_copy_knows_its_first_free_slot() {
    type Table = RcTable<Target, usize, TestTable>;
    model(3, || {
        let epoch = Arc::new(Epoch::new(2));
        let table = Arc::new(Table::new(0));
        let put = |table: &Table, epoch: &Epoch, i| {
            let mut locked = table.lock();
            locked.make(epoch, i).unwrap();
            locked.put(i, EpochRc::new(epoch, Target::new().0), false);
        };
        (0..6).chain([13]).for_each(|i| put(&table, &epoch, i));
        let other = spawn(1, {
            let (epoch, table) = (epoch.clone(), table.clone());
            move || put(&table, &epoch, 6)
        });
        let copy = table.copy(7, |_, free| free).unwrap();
        other.join().unwrap();
        let locked = copy.lock();
        assert!((0..*locked).all(|i| locked.has(i)), "none below is free");
    });
}

#[test]
fn who_changes_a_table_is_alone() {
    type Counted = RcTable<Target, u32, TestTable>;
    fn change(epoch: &Epoch, table: &Counted, place: usize) {
        let mut locked = table.lock();
        locked.make(epoch, 1).unwrap();
        locked.put(place, EpochRc::new(epoch, Target::new().0), false);
        *locked += 1;
    }
    model(2, || {
        let epoch = Arc::new(Epoch::new(2));
        let table = Arc::new(Counted::new(0));
        let other = spawn(1, {
            let (epoch, table) = (epoch.clone(), table.clone());
            move || change(&epoch, &table, 1)
        });
        change(&epoch, &table, 0);
        other.join().unwrap();
        let locked = table.lock();
        assert_eq!((locked.has(0), locked.has(1), *locked), (true, true, 2));
    });
}

/// The last reference and the last weak one end at once, while a third thread may take a reference from the weak one.
#[test]
fn a_weak_reference_and_the_last_other_one_end_at_once() {
    model(2, || {
        let epoch = Epoch::new(2);
        let (target, alive) = Target::new();
        let object = EpochRc::new(&epoch, target);
        let weak = EpochRc::downgrade(&object);
        let other = spawn(1, move || {
            if let Some(object) = weak.upgrade() {
                object.look();
            }
            drop(weak);
        });
        object.look();
        drop(object);
        other.join().unwrap();
        assert!(!alive.load(SeqCst), "its last user is gone");
        assert_eq!(epoch.pending(), 1, "the memory is retired once");
        drop(epoch);
    });
}
