//! Keyed queues against a plain list, with walks that pause while members come and go.
#![cfg(not(any(loom, shuttle)))]

use std::collections::VecDeque;

use ksync::{KeyedQueue, Visit, Walk};

/// Changes of a queue, fewer under an interpreter.
const CHANGES: u32 = if cfg!(miri) { 600 } else { 60_000 };

fn push(queue: &mut KeyedQueue<u32>, member: u32) -> u32 {
    if queue.room() == 0 {
        let more = Vec::with_capacity(queue.len() * 2 + 1);
        drop(queue.grow(more));
    }
    queue.push_back(member)
}

#[test]
fn members_leave_from_anywhere() {
    let mut queue = KeyedQueue::default();
    let slots: Vec<u32> = (0..5).map(|n| push(&mut queue, n)).collect();
    for at in [2, 0, 4] {
        assert_eq!(queue.remove(slots[at]), Some(at as u32));
        assert_eq!(queue.remove(slots[at]), None);
    }
    assert_eq!(queue.get_mut(slots[3]).copied(), Some(3));
    assert_eq!(queue.get_mut(99), None);
    push(&mut queue, 7);
    let mut seen = Vec::new();
    let mut walk = queue.begin();
    assert!(!queue.walk(&mut walk, 99, |_| Visit::Take, |n| seen.push(n)));
    assert_eq!(seen, [1, 3, 7]);
    assert!(queue.is_empty());
}

#[test]
fn an_empty_queue_gives_back_what_many_needed() {
    let mut queue = KeyedQueue::default();
    let slots: Vec<u32> = (0..1000).map(|n| push(&mut queue, n)).collect();
    assert_eq!(queue.spare(0).capacity(), 0, "in use");
    for &at in &slots {
        queue.remove(at);
    }
    let has = queue.room();
    assert!(has >= 1000);
    assert_eq!(queue.spare(has).capacity(), 0, "to be kept");
    assert_eq!(queue.spare(has - 1).capacity(), has);
    assert_eq!(queue.room(), 0);
    assert_eq!(queue.remove(slots[3]), None);
    assert_eq!(push(&mut queue, 5), 0);
}

#[test]
fn what_a_walk_has_yet_to_visit_can_be_counted() {
    let mut queue = KeyedQueue::default();
    let slots: Vec<u32> = (0..10).map(|n| push(&mut queue, n)).collect();
    let mut walk = queue.begin();
    push(&mut queue, 10);
    assert_eq!(queue.ahead(&walk, 99, |_| true), 10);
    assert_eq!(queue.ahead(&walk, 3, |_| true), 3);
    assert_eq!(queue.ahead(&walk, 99, |n| n % 2 == 0), 5);
    // The walk pauses at a member that then leaves.
    assert!(queue.walk(&mut walk, 4, |_| Visit::Keep, |_| ()));
    queue.remove(slots[4]);
    queue.remove(slots[6]);
    assert_eq!(queue.ahead(&walk, 99, |_| true), 4);
    assert_eq!(queue.ahead(&walk, 99, |n| n % 2 == 0), 1);
    queue.end(walk);
}

/// A walk that pauses, in terms of the plain list: the members that it has yet to visit.
struct Pausing {
    walk: Walk,
    ahead: VecDeque<u32>,
}

#[test]
fn walks_see_each_member_that_was_there_once() {
    let mut random = 1u64;
    let mut below = |n: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % n
    };
    let mut queue = KeyedQueue::default();
    let mut list: Vec<(u32, u32)> = Vec::new();
    let mut walks: Vec<Pausing> = Vec::new();
    for name in 0..CHANGES {
        match below(10) {
            0..4 => {
                let at = push(&mut queue, name);
                list.push((name, at));
            }
            4..7 if !list.is_empty() => {
                let (gone, at) = list.remove(below(list.len()));
                assert_eq!(queue.remove(at), Some(gone));
                for walk in &mut walks {
                    walk.ahead.retain(|&n| n != gone);
                }
            }
            7 if walks.len() < 3 => walks.push(Pausing {
                walk: queue.begin(),
                ahead: list.iter().map(|&(n, _)| n).collect(),
            }),
            _ if !walks.is_empty() => {
                let i = below(walks.len());
                let mut walk = walks.swap_remove(i);
                let (looks, stops) = (1 + below(5), below(4));
                let mut left = looks;
                let mut taken = Vec::new();
                let more = queue.walk(
                    &mut walk.walk,
                    looks,
                    |&mut n| {
                        if left == stops {
                            return Visit::Pause;
                        }
                        left -= 1;
                        assert_eq!(walk.ahead.pop_front(), Some(n));
                        if n % 3 == 0 { Visit::Take } else { Visit::Keep }
                    },
                    |n| taken.push(n),
                );
                for gone in taken {
                    list.retain(|&(n, _)| n != gone);
                    for other in &mut walks {
                        other.ahead.retain(|&n| n != gone);
                    }
                }
                if more && below(9) == 0 {
                    queue.end(walk.walk);
                } else if more {
                    walks.push(walk);
                } else {
                    assert!(walk.ahead.is_empty(), "a member was passed over");
                }
            }
            _ => {}
        }
        if walks.is_empty() {
            assert_eq!(queue.len(), list.len());
        }
        drop(queue.spare(64));
    }
}
