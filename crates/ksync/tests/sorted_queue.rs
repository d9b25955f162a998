//! Sorted queues against an ordered map.
#![cfg(not(any(loom, shuttle)))]

use std::collections::BTreeMap;

use ksync::SortedQueue;

/// Changes of a queue, fewer under an interpreter.
const CHANGES: u32 = if cfg!(miri) { 600 } else { 60_000 };

type Queue = SortedQueue<u32, u64>;

fn insert(queue: &mut Queue, key: u32, member: u64) -> u32 {
    if queue.room() == 0 {
        let more = Vec::with_capacity(queue.len() * 2 + 1);
        drop(queue.grow(more));
    }
    queue.insert(key, member)
}

/// All keys, in order.
fn keys(queue: &Queue) -> Vec<u32> {
    let mut keys = Vec::new();
    let mut at = queue.first_from(&0);
    while let Some(slot) = at {
        let key = queue.key(slot).expect("a member");
        keys.push(key);
        at = queue.first_from(&(key + 1));
    }
    keys
}

#[test]
fn members_are_in_order_and_keep_their_slots() {
    let mut queue = Queue::default();
    let slots: Vec<u32> = [5, 1, 9, 3, 7]
        .into_iter()
        .map(|key| insert(&mut queue, key, u64::from(key) * 10))
        .collect();
    assert_eq!(keys(&queue), [1, 3, 5, 7, 9]);
    assert_eq!(queue.get(slots[2]), Some(&90));
    assert_eq!(queue.remove(slots[0]), Some(50));
    assert_eq!(queue.remove(slots[0]), None);
    assert_eq!(queue.get(slots[0]), None);
    assert_eq!(queue.key(slots[0]), None);
    assert_eq!(queue.get_mut(slots[4]).copied(), Some(70));
    assert_eq!(queue.first_from(&4), Some(slots[4]));
    assert_eq!(queue.first_from(&10), None);
    assert_eq!(queue.get(99), None);
}

#[test]
fn random_changes_leave_what_a_map_has() {
    let mut queue = Queue::default();
    let mut map = BTreeMap::new();
    let mut random = 0x1234_5678_9abc_def1u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for n in 0..CHANGES {
        // First it grows, then it shrinks, and so on.
        let adds = if n / 500 % 2 == 0 { 7 } else { 3 };
        let key = next(900) as u32;
        if next(10) < adds {
            let member = u64::from(n);
            map.entry(key).or_insert_with(|| {
                let slot = insert(&mut queue, key, member);
                (slot, member)
            });
        } else if let Some((slot, member)) = map.remove(&key) {
            assert_eq!(queue.remove(slot), Some(member));
        }
        assert_eq!(queue.len(), map.len());
        let from = next(1000) as u32;
        let expected = map.range(from..).next().map(|(_, &(slot, _))| slot);
        assert_eq!(queue.first_from(&from), expected);
    }
    let expected: Vec<u32> = map.keys().copied().collect();
    assert_eq!(keys(&queue), expected);
    for (slot, member) in map.values() {
        assert_eq!(queue.get(*slot), Some(member));
    }
}

/// A tree that is a list would overflow the stack, or take the square of the time.
#[test]
fn members_that_come_in_order_are_found_as_fast() {
    const MANY: u32 = if cfg!(miri) { 300 } else { 100_000 };
    let mut queue = Queue::default();
    let slots: Vec<u32> = (0..MANY).map(|key| insert(&mut queue, key, 0)).collect();
    for (key, slot) in slots.iter().enumerate() {
        assert_eq!(queue.first_from(&(key as u32)), Some(*slot));
        assert!(queue.remove(*slot).is_some());
    }
    assert!(queue.is_empty());
    assert!(queue.spare(8).capacity() >= MANY as usize);
    assert_eq!(queue.room(), 0);
}
