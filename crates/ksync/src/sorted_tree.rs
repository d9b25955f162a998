//! A tree whose members are in the order of a key, and bring their own memory.
//!
//! Guarantee: adding, removing and finding take time in proportion to the logarithm of the number of members, in the worst case, and neither
//! allocate nor free. So nothing grows or shrinks while a lock is held, however many members there are: that is the difference to
//! [`SortedQueue`](crate::SortedQueue), which has one array for all members.
//!
//! Mechanism: an AVL tree of boxes, which move in with a member and out with it.

use alloc::boxed::Box;
use core::cmp::Ordering;

use crate::try_box;

/// The memory of a member, in a tree or not.
pub struct TreeNode<K, E> {
    key: K,
    member: E,
    /// The subtrees of lesser and of greater keys; none outside of a tree.
    below: [Link<K, E>; 2],
    height: u8,
}

type Link<K, E> = Option<Box<TreeNode<K, E>>>;

impl<K: Copy, E> TreeNode<K, E> {
    /// A node in no tree; `None` without memory.
    pub fn new(key: K, member: E) -> Option<Box<Self>> {
        let node = TreeNode {
            key,
            member,
            below: [None, None],
            height: 1,
        };
        try_box(node).ok()
    }

    /// The key with which it is, or was last, in a tree.
    pub fn key(&self) -> K {
        self.key
    }

    /// The member.
    pub fn member(&self) -> &E {
        &self.member
    }

    /// The member, to be changed.
    pub fn member_mut(&mut self) -> &mut E {
        &mut self.member
    }

    fn measure(&mut self) {
        let [less, greater] = &self.below;
        self.height = 1 + height(less).max(height(greater));
    }
}

/// The tree; it is the data of the lock that guards it.
pub struct SortedTree<K, E> {
    root: Link<K, E>,
}

impl<K, E> Default for SortedTree<K, E> {
    fn default() -> Self {
        SortedTree { root: None }
    }
}

impl<K: Ord + Copy, E> SortedTree<K, E> {
    /// Adds a node under a key that no other one has.
    pub fn insert(&mut self, key: K, mut node: Box<TreeNode<K, E>>) {
        node.key = key;
        node.measure();
        self.root = Some(insert_below(self.root.take(), node));
    }

    /// Removes the node with that key.
    pub fn remove(&mut self, key: &K) -> Option<Box<TreeNode<K, E>>> {
        let (rest, removed) = remove_below(self.root.take(), key);
        self.root = rest;
        removed
    }

    /// The member with that key.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut E> {
        let mut at = self.root.as_deref_mut();
        while let Some(node) = at {
            at = match key.cmp(&node.key) {
                Ordering::Equal => return Some(&mut node.member),
                Ordering::Less => node.below[0].as_deref_mut(),
                Ordering::Greater => node.below[1].as_deref_mut(),
            };
        }
        None
    }

    /// The node with the least key that is not less than `from`.
    pub fn first_from(&self, from: &K) -> Option<&TreeNode<K, E>> {
        let (mut at, mut found) = (self.root.as_deref(), None);
        while let Some(node) = at {
            if node.key < *from {
                at = node.below[1].as_deref();
            } else {
                found = Some(node);
                at = node.below[0].as_deref();
            }
        }
        found
    }
}

fn height<K, E>(at: &Link<K, E>) -> u8 {
    at.as_ref().map_or(0, |node| node.height)
}

/// Adds `new` to the tree `at`; returns the tree's new root.
fn insert_below<K: Ord + Copy, E>(at: Link<K, E>, new: Box<TreeNode<K, E>>) -> Box<TreeNode<K, E>> {
    let Some(mut at) = at else { return new };
    let side = usize::from(new.key > at.key);
    at.below[side] = Some(insert_below(at.below[side].take(), new));
    balance(at)
}

/// Takes the node with that key out of the tree `at`; returns the tree's new root, and the node.
fn remove_below<K: Ord + Copy, E>(at: Link<K, E>, key: &K) -> (Link<K, E>, Link<K, E>) {
    let Some(mut at) = at else {
        return (None, None);
    };
    if *key != at.key {
        let side = usize::from(*key > at.key);
        let (rest, removed) = remove_below(at.below[side].take(), key);
        at.below[side] = rest;
        return (Some(balance(at)), removed);
    }
    let rest = match [at.below[0].take(), at.below[1].take()] {
        [None, one] | [one, None] => one,
        [less, Some(greater)] => {
            let (mut next, rest) = take_least(greater);
            next.below = [less, rest];
            Some(balance(next))
        }
    };
    (rest, Some(at))
}

/// Takes the least node out of the tree `at`; returns it, and the tree's new root.
fn take_least<K: Copy, E>(mut at: Box<TreeNode<K, E>>) -> (Box<TreeNode<K, E>>, Link<K, E>) {
    match at.below[0].take() {
        None => {
            let rest = at.below[1].take();
            (at, rest)
        }
        Some(less) => {
            let (least, rest) = take_least(less);
            at.below[0] = rest;
            (least, Some(balance(at)))
        }
    }
}

/// Balances the tree `at`, whose subtrees are balanced and differ by up to two in height; returns its new root.
fn balance<K: Copy, E>(mut at: Box<TreeNode<K, E>>) -> Box<TreeNode<K, E>> {
    let heights = [height(&at.below[0]), height(&at.below[1])];
    let high = usize::from(heights[1] > heights[0]);
    if heights[high] > heights[1 - high] + 1
        && let Some(child) = at.below[high].take()
    {
        let child = if height(&child.below[1 - high]) > height(&child.below[high]) {
            rotate(child, 1 - high)
        } else {
            child
        };
        at.below[high] = Some(child);
        return rotate(at, high);
    }
    at.measure();
    at
}

/// Makes the child on that side the root of the tree `at`.
fn rotate<K: Copy, E>(mut at: Box<TreeNode<K, E>>, side: usize) -> Box<TreeNode<K, E>> {
    let Some(mut child) = at.below[side].take() else {
        return at;
    };
    at.below[side] = child.below[1 - side].take();
    at.measure();
    child.below[1 - side] = Some(at);
    child.measure();
    child
}
