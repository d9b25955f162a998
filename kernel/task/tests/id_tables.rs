//! Ids, and the tables and lists that find threads by them, compared with plain sets and lists.
#![cfg(not(shuttle))]

mod processes;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use ksync::CpuPin;
use processes::{make, nap, on, spawn, wait_for_ends};
use task::id_table::{ArcTable, ID_LIMIT, IdTable, Slot};
use task::idlist::{IdLinks, IdList, Role};
use task::ids::{self, Id};
use task::{current, sched};
use vm_host::random::Random;

/// Ids that the first wrap-around comes after.
const FIRST_SPAN: u32 = 32_768;

#[test]
fn ids_of_one_cpu_come_in_order() {
    on(1, || {
        let first = Id::alloc().expect("an id").number();
        for n in 1..1000 {
            assert_eq!(Id::alloc().map(|id| id.number()), Some(first + n));
        }
    });
}

#[test]
fn after_a_wrap_around_the_free_ids_come_in_order() {
    on(1, || {
        let mut held: Vec<Id> = (0..1000).filter_map(|_| Id::alloc()).collect();
        let last = held[999].number();
        let even = |id: &Id| id.number().is_multiple_of(2);
        let mut free: Vec<u32> = held.iter().filter(|id| even(id)).map(Id::number).collect();
        held.retain(|id| !even(id));
        free.push(last + 1);
        let mut before = last;
        let first = loop {
            let next = Id::alloc().expect("an id").number();
            if next < before {
                break next;
            }
            assert_eq!(next, before + 1);
            before = next;
        };
        assert_eq!(before, FIRST_SPAN - 1, "the last before the wrap-around");
        let mut given = vec![first];
        given.extend((1..free.len()).filter_map(|_| Id::alloc().map(|id| id.number())));
        assert_eq!(given, free);
    });
}

#[test]
fn ids_0_and_1_are_not_given_out() {
    on(1, || {
        for _ in 0..3 * FIRST_SPAN {
            assert!(Id::alloc().expect("an id").number() > 1);
        }
        assert_eq!(Id::idle().number(), 0);
        // The idle thread's id is in no table, and may be cloned and dropped by each CPU.
        let live = ids::live();
        drop(Id::idle().clone());
        assert_eq!(ids::live(), live);
    });
}

#[test]
fn sixty_five_thousand_ids_are_different_and_counted() {
    const N: u32 = 65_000;
    on(1, || {
        let live = ids::live();
        let held: Vec<Id> = (0..N).filter_map(|_| Id::alloc()).collect();
        let numbers: BTreeSet<u32> = held.iter().map(Id::number).collect();
        assert_eq!(numbers.len() as u32, N);
        assert_eq!(ids::live(), live + u64::from(N));
        assert!(numbers.last() < Some(&ids::span()));
        // The table is not larger than four times the ids, and what one more step needs.
        assert!(
            ids::span() <= (4 * N).next_power_of_two(),
            "{}",
            ids::span()
        );
        drop(held);
        assert_eq!(ids::live(), live);
    });
}

#[test]
fn the_span_stays_as_long_as_few_ids_are_in_use() {
    on(1, || {
        let _held: Vec<Id> = (0..FIRST_SPAN / 4 - 10)
            .filter_map(|_| Id::alloc())
            .collect();
        for _ in 0..4 * FIRST_SPAN {
            assert!(Id::alloc().expect("an id").number() < FIRST_SPAN);
        }
        assert_eq!(ids::span(), FIRST_SPAN);
    });
}

/// With all of the four million in use there is none, and one that is given back is found.
#[test]
fn when_all_ids_are_in_use_there_is_none_until_one_is_free() {
    on(1, || {
        let mut held: Vec<Id> = std::iter::from_fn(Id::alloc).collect();
        assert_eq!(ids::span(), ID_LIMIT);
        // All but 0 and 1, and those of the threads that run.
        let others = 2 + ids::threads();
        assert_eq!(held.len(), ID_LIMIT as usize - others);
        let given_back = held.swap_remove(1_000_000).number();
        let next = Id::alloc();
        assert_eq!(next.as_ref().map(Id::number), Some(given_back));
    });
}

/// Ids are taken, cloned and dropped at random; the reference counts the values of each.
#[test]
fn an_id_is_in_use_as_long_as_a_value_has_it() {
    on(1, || {
        let mut random = Random(0x1d5);
        let before = ids::live();
        let mut held: Vec<Id> = Vec::new();
        let mut values = HashMap::new();
        for _ in 0..200_000 {
            match random.below_u64(5) {
                0 | 1 => {
                    let id = Id::alloc().expect("an id");
                    assert_eq!(values.insert(id.number(), 1), None, "in use");
                    held.push(id);
                }
                2 if !held.is_empty() => {
                    let id = held[random.below(held.len())].clone();
                    *values.get_mut(&id.number()).expect("in use") += 1;
                    held.push(id);
                }
                _ if !held.is_empty() => {
                    let id = held.swap_remove(random.below(held.len()));
                    let left = values.get_mut(&id.number()).expect("in use");
                    *left -= 1;
                    if *left == 0 {
                        values.remove(&id.number());
                    }
                }
                _ => {}
            }
            assert_eq!(ids::live(), before + values.len() as u64);
        }
    });
}

#[test]
fn cpus_give_out_different_ids_at_once() {
    on(4, || {
        let taken = Arc::new(Mutex::new(BTreeSet::new()));
        for cpu in 0..4 {
            let taken = taken.clone();
            spawn(Some(cpu), move || {
                let mut random = Random(0x99 + cpu as u64);
                let mut held = VecDeque::new();
                for _ in 0..3000 {
                    let id = Id::alloc().expect("an id");
                    let fresh = taken.lock().expect("not poisoned").insert(id.number());
                    assert!(fresh, "{} is in use", id.number());
                    held.push_back(id);
                    if held.len() > 200 || random.one_in(3) {
                        let id = held.pop_front().expect("just added");
                        taken.lock().expect("not poisoned").remove(&id.number());
                    }
                }
                let mut taken = taken.lock().expect("not poisoned");
                held.iter().for_each(|id| {
                    taken.remove(&id.number());
                });
            });
        }
        wait_for_ends(4);
        // A thread that has ended has its id until it is freed, a grace period later.
        let mut naps = 0;
        while ids::live() != ids::threads() as u64 {
            assert!(naps < 100, "{} ids are in use", ids::live());
            naps += 1;
            nap(1);
        }
    });
}

#[test]
fn a_thread_is_found_from_its_publication_to_its_end() {
    on(1, || {
        let id = Id::alloc().expect("an id");
        let number = id.number();
        assert!(ids::hold_thread(number).is_none(), "an id without a thread");
        let threads = ids::threads();
        let made = make(&id, || nap(5));
        drop(id);
        assert_eq!(ids::hold_thread(number).map(|t| t.tid()), Some(number));
        assert_eq!(ids::threads(), threads + 1);
        sched::start(&made);
        nap(2);
        assert!(ids::thread(&ksync::pin(), number).is_some());
        wait_for_ends(1);
        assert!(ids::thread(&ksync::pin(), number).is_none());
        assert_eq!(ids::threads(), threads);
        // The holder of a reference may still look at the thread, whose id is in use as long.
        assert_eq!(made.tid(), number);
        for _ in 0..2 * FIRST_SPAN {
            assert_ne!(Id::alloc().map(|id| id.number()), Some(number));
        }
    });
}

#[test]
fn no_thread_is_found_beyond_the_table() {
    on(1, || {
        for tid in [0, 1, 40_000, ID_LIMIT - 1, ID_LIMIT, u32::MAX] {
            assert!(ids::hold_thread(tid).is_none(), "{tid}");
            assert!(ids::borrow_thread(&ksync::pin(), tid).is_none());
        }
        let me = current().tid();
        let found = ids::borrow_thread(&ksync::pin(), me).map(|t| t.tid());
        assert_eq!(found, Some(me));
    });
}

#[test]
fn each_thread_is_passed_once() {
    on(1, || {
        // Far from one another in the table.
        let spread: Vec<Id> = (0..9000).filter_map(|_| Id::alloc()).collect();
        let made: Vec<_> = spread
            .iter()
            .step_by(1000)
            .map(|id| make(id, || ()))
            .collect();
        let mut passed = Vec::new();
        ids::each(|_, thread| passed.push(thread.tid()));
        let mut expected: Vec<u32> = made.iter().map(|thread| thread.tid()).collect();
        expected.insert(0, current().tid());
        assert_eq!(passed, expected);
        made.iter().for_each(|thread| sched::start(thread));
        drop(made);
        wait_for_ends(9);
    });
}

/// A slot that counts.
struct Count(AtomicU32);

impl Slot for Count {
    const VACANT: Count = Count(AtomicU32::new(0));
}

#[test]
fn a_table_has_the_slots_that_it_has_grown_to() {
    on(1, || {
        let table = IdTable::<Count>::new();
        let mut random = Random(0x7ab1e);
        let mut grown = BTreeMap::new();
        assert_eq!((table.bytes(), table.next(0, ID_LIMIT)), (0, None));
        for _ in 0..300 {
            let id = random.scaled(1..23) as u32;
            let leaf = id / 256;
            table.grow(id);
            let pin = ksync::pin();
            let slot = table.slot(&pin, id).expect("just grown");
            slot.0.fetch_add(1, SeqCst);
            *grown
                .entry(leaf)
                .or_insert_with(BTreeMap::new)
                .entry(id)
                .or_insert(0) += 1;
            let other = random.scaled(1..24) as u32;
            let found = table.slot(&pin, other).map(|slot| slot.0.load(SeqCst));
            let expected = grown
                .get(&(other / 256))
                .map(|leaf| leaf.get(&other).copied().unwrap_or(0));
            assert_eq!(found, expected, "slot {other}");
            let next = grown.range(other / 256..).next();
            let next = next.map(|(leaf, _)| (leaf * 256).max(other));
            assert_eq!(table.next(other, ID_LIMIT), next);
        }
        let leaves = grown.len() * 256 * size_of::<Count>();
        let tops = grown.keys().map(|leaf| leaf / 256).collect::<BTreeSet<_>>();
        let pointers = tops.len() * 256 * size_of::<usize>();
        assert_eq!(table.bytes(), leaves + pointers);
    });
}

#[test]
fn a_table_of_objects_does_what_a_map_does() {
    on(1, || {
        let table = ArcTable::<u32>::new();
        let mut random = Random(0xa7c);
        let mut map = BTreeMap::new();
        for n in 0..3000 {
            let id = random.scaled(1..12) as u32;
            if random.one_in(2) {
                let published = table.publish(id, Arc::new(n));
                assert_eq!(published, !map.contains_key(&id), "publish {id}");
                map.entry(id).or_insert(n);
            } else {
                table.withdraw(id);
                map.remove(&id);
            }
            let other = random.scaled(1..12) as u32;
            let expected = map.get(&other).copied();
            let pin = ksync::pin();
            assert_eq!(table.get(&pin, other).copied(), expected);
            assert_eq!(table.borrow(&pin, other).map(|object| *object), expected);
            drop(pin);
            assert_eq!(table.hold(other).map(|object| *object), expected);
        }
        map.keys().for_each(|&id| table.withdraw(id));
    });
}

#[test]
fn an_object_outlives_its_place_in_the_table() {
    on(1, || {
        let table = ArcTable::<u32>::new();
        let object = Arc::new(5);
        assert!(table.publish(300, object.clone()));
        let held = table.hold(300).expect("published");
        let pin = ksync::pin();
        let seen = table.get(&pin, 300).expect("published");
        table.withdraw(300);
        assert_eq!(table.get(&pin, 300), None);
        // The table's reference is dropped once no CPU may see the object any more.
        assert_eq!((*seen, *held, Arc::strong_count(&object)), (5, 5, 3));
        drop(pin);
        for _ in 0..5 {
            nap(1);
            mem::epoch().reclaim_all(&mut ksync::pin());
        }
        assert_eq!(Arc::strong_count(&object), 2);
    });
}

const MEMBERS: usize = 40;

hal::machine_static! {
    static LINKS: [IdLinks; MEMBERS] = [const { IdLinks::new() }; MEMBERS];
}

enum Listed {}

impl Role for Listed {
    fn links(_: &CpuPin, id: u32) -> Option<&IdLinks> {
        let links: &'static [IdLinks; MEMBERS] = &LINKS;
        links.get(id as usize)
    }
}

#[test]
fn a_list_does_what_a_deque_does() {
    on(1, || {
        let pin = ksync::pin();
        let mut random = Random(0x1157);
        let mut list = IdList::<Listed>::new();
        let mut deque = VecDeque::new();
        for _ in 0..20_000 {
            let id = 1 + random.below_u64(MEMBERS as u64 - 1) as u32;
            match random.below_u64(7) {
                0..=2 if !deque.contains(&id) => {
                    list.push_back(&pin, id);
                    deque.push_back(id);
                }
                // Of a member of the list, and of one that is on no list.
                3 => {
                    list.remove(&pin, id);
                    deque.retain(|&member| member != id);
                }
                4 => assert_eq!(list.pop_front(&pin), deque.pop_front()),
                5 if !deque.is_empty() => {
                    list.rotate(&pin);
                    deque.rotate_left(1);
                }
                _ => {}
            }
            same(&pin, &list, &deque, id);
        }
    });
}

fn same(pin: &CpuPin, list: &IdList<Listed>, deque: &VecDeque<u32>, id: u32) {
    let mut members = Vec::new();
    list.each(pin, |member| {
        members.push(member);
        true
    });
    assert_eq!(*deque, members);
    assert_eq!(list.first(), deque.front().copied());
    assert_eq!(list.is_empty(), deque.is_empty());
    assert_eq!(LINKS[id as usize].linked(), deque.contains(&id));
    if let Some(at) = deque.iter().position(|&member| member == id) {
        assert_eq!(list.after(pin, id), deque.get(at + 1).copied());
    }
}

#[test]
fn a_walk_of_a_list_ends_where_it_is_told_to() {
    on(1, || {
        let pin = ksync::pin();
        let mut list = IdList::<Listed>::new();
        (1..10).for_each(|id| list.push_back(&pin, id));
        let mut members = Vec::new();
        list.each(&pin, |member| {
            members.push(member);
            member < 4
        });
        assert_eq!(members, [1, 2, 3, 4]);
        assert_eq!(list.after(&pin, 20), None, "it is on no list");
        assert_eq!(list.after(&pin, 1000), None, "it is in no table");
    });
}
