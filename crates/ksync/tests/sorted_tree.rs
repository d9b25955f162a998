//! Sorted trees against an ordered map.
#![cfg(not(any(loom, shuttle)))]

use std::collections::BTreeMap;

use ksync::{SortedTree, TreeNode};

/// Changes of a tree, fewer under an interpreter.
const CHANGES: u64 = if cfg!(miri) { 600 } else { 60_000 };

type Tree = SortedTree<u32, u64>;

fn insert(tree: &mut Tree, key: u32, member: u64) {
    tree.insert(key, TreeNode::new(0, member).expect("memory"));
}

fn remove(tree: &mut Tree, key: u32) -> Option<u64> {
    let node = tree.remove(&key)?;
    assert_eq!(node.key(), key);
    Some(*node.member())
}

fn first_from(tree: &Tree, from: u32) -> Option<(u32, u64)> {
    let node = tree.first_from(&from)?;
    Some((node.key(), *node.member()))
}

#[test]
fn members_are_in_order_and_take_their_memory_along() {
    let mut tree = Tree::default();
    for key in [5, 1, 9, 3, 7] {
        insert(&mut tree, key, u64::from(key) * 10);
    }
    let mut keys = Vec::new();
    while let Some((key, _)) = first_from(&tree, keys.last().map_or(0, |last| last + 1)) {
        keys.push(key);
    }
    assert_eq!(keys, [1, 3, 5, 7, 9]);
    *tree.get_mut(&7).expect("a member") += 1;
    assert_eq!(tree.get_mut(&8), None);
    let mut node = tree.remove(&7).expect("a member");
    assert_eq!(tree.remove(&7).map(|_| ()), None);
    *node.member_mut() += 1;
    let place = &raw const *node;
    tree.insert(4, node);
    let node = tree.first_from(&4).expect("a member");
    assert_eq!(
        (node.key(), *node.member(), &raw const *node),
        (4, 72, place)
    );
}

#[test]
fn random_changes_leave_what_a_map_has() {
    let mut tree = Tree::default();
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
            map.entry(key).or_insert_with(|| {
                insert(&mut tree, key, n);
                n
            });
        } else {
            assert_eq!(remove(&mut tree, key), map.remove(&key));
        }
        assert_eq!(tree.get_mut(&key).copied(), map.get(&key).copied());
        let from = next(1000) as u32;
        let expected = map
            .range(from..)
            .next()
            .map(|(&key, &member)| (key, member));
        assert_eq!(first_from(&tree, from), expected);
    }
}

/// A tree that is a list would overflow the stack, or take the square of the time.
#[test]
fn members_that_come_in_order_are_found_as_fast() {
    const MANY: u32 = if cfg!(miri) { 300 } else { 100_000 };
    for comes_last_first in [false, true] {
        let mut tree = Tree::default();
        for n in 0..MANY {
            insert(
                &mut tree,
                if comes_last_first { MANY - n } else { n + 1 },
                0,
            );
        }
        for key in 1..=MANY {
            assert_eq!(first_from(&tree, 0), Some((key, 0)));
            assert_eq!(remove(&mut tree, key), Some(0));
        }
        assert_eq!(first_from(&tree, 0), None);
    }
}
