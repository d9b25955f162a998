//! The buddy system against a reference: the set of free frames.

use std::collections::BTreeSet;
use std::vec::Vec;

use proptest::prelude::*;

use super::MAX_ORDER;
use super::buddy::{Buddy, COLOURS};
use super::marks::{Marks, Pressure, Rights};
use crate::page::tests::records;
use crate::page::{Flags, PageArray, Pfn, State};

/// Frames of the second domain start here, in the middle of a run of the highest order.
const FOREIGN: u32 = 2000;
const FRAMES: u32 = 3000;

fn pages() -> PageArray {
    let pages = records(FRAMES as usize);
    pages.add_range(Pfn(0), Pfn(FOREIGN), 0);
    pages.add_range(Pfn(FOREIGN), Pfn(FRAMES), 1);
    for n in 0..FRAMES {
        pages
            .get(Pfn(n))
            .init_flags(State::Allocated, Flags::empty());
    }
    pages
}

/// The free frames, after checking that runs are aligned, disjoint and merged.
fn free_frames(buddy: &Buddy, pages: PageArray) -> BTreeSet<u32> {
    let mut frames = BTreeSet::new();
    let mut runs = BTreeSet::new();
    buddy.for_each_run(pages, |pfn, order| {
        assert_eq!(pfn.0 % (1 << order), 0, "aligned");
        assert_eq!(
            (pages.get(pfn).state(), pages.get(pfn).order()),
            (State::Free, order)
        );
        assert!(runs.insert((pfn.0, order)));
        for n in 0..1 << order {
            assert!(frames.insert(pfn.0 + n), "in two runs");
            assert!(n == 0 || pages.get(pfn.add(n)).state() != State::Free);
        }
    });
    for &(pfn, order) in &runs {
        let mergeable = order < MAX_ORDER && runs.contains(&(pfn ^ 1 << order, order));
        assert!(!mergeable, "free buddies are merged");
    }
    assert_eq!(frames.len(), buddy.free());
    frames
}

#[derive(Clone, Debug)]
enum Op {
    Take(u8),
    TakeColour(u32),
    /// Puts back the run at this position, modulo the runs held.
    Put(usize),
    /// Puts back the run at this position page by page.
    PutSingly(usize),
    /// Puts back the frames of two runs in one list, the second downwards, with one frame moved to the end.
    PutPages(usize, usize, usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0..=MAX_ORDER).prop_map(Op::Take),
        3 => Just(Op::Take(0)),
        1 => (0..2 * COLOURS).prop_map(Op::TakeColour),
        3 => any::<usize>().prop_map(Op::Put),
        1 => any::<usize>().prop_map(Op::PutSingly),
        2 => any::<(usize, usize, usize)>().prop_map(|(a, b, moved)| Op::PutPages(a, b, moved)),
    ];
    prop::collection::vec(op, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    #[cfg_attr(miri, ignore = "long, and safe code on one thread")]
    fn buddy_agrees_with_a_set(start in 0u32..600, end in 600u32..=FOREIGN, ops in ops()) {
        let pages = pages();
        let mut buddy = Buddy::new();
        // Frames of the other domain are free too; they must not be merged with those of this one.
        Buddy::new().add_range(pages, Pfn(FOREIGN), Pfn(FRAMES));
        buddy.add_range(pages, Pfn(start), Pfn(end));
        let mut free: BTreeSet<u32> = (start..end).collect();
        let mut held: Vec<(Pfn, u8)> = Vec::new();
        for op in ops {
            match op {
                Op::Take(order) => match buddy.take(pages, order) {
                    Some(pfn) => {
                        prop_assert_eq!(pfn.0 % (1 << order), 0);
                        for n in 0..1 << order {
                            prop_assert!(free.remove(&(pfn.0 + n)), "handed out twice");
                        }
                        held.push((pfn, order));
                    }
                    None => prop_assert!(!has_run(&free, order), "refused what it has"),
                },
                Op::TakeColour(from) => {
                    if let Some(pfn) = buddy.take_single(pages, from) {
                        prop_assert!(free.remove(&pfn.0));
                        held.push((pfn, 0));
                    }
                }
                Op::Put(at) if !held.is_empty() => {
                    let (pfn, order) = held.swap_remove(at % held.len());
                    buddy.put(pages, pfn, order);
                    free.extend(pfn.0..pfn.0 + (1 << order));
                }
                Op::PutSingly(at) if !held.is_empty() => {
                    let (pfn, order) = held.swap_remove(at % held.len());
                    (0..1 << order).for_each(|n| buddy.put(pages, pfn.add(n), 0));
                    free.extend(pfn.0..pfn.0 + (1 << order));
                }
                Op::PutPages(a, b, moved) if held.len() > 1 => {
                    let frames = |(pfn, order): (Pfn, u8)| (pfn.0..pfn.0 + (1 << order)).map(Pfn);
                    let up = frames(held.swap_remove(a % held.len()));
                    let down = frames(held.swap_remove(b % held.len()));
                    let mut list: Vec<Pfn> = up.chain(down.rev()).collect();
                    let moved = list.remove(moved % list.len());
                    list.push(moved);
                    buddy.put_pages(pages, &list);
                    free.extend(list.iter().map(|pfn| pfn.0));
                }
                Op::Put(_) | Op::PutSingly(_) | Op::PutPages(..) => {}
            }
            prop_assert_eq!(&free_frames(&buddy, pages), &free);
        }
    }
}

/// Whether the free frames contain an aligned run of `order`.
fn has_run(free: &BTreeSet<u32>, order: u8) -> bool {
    let size = 1 << order;
    free.iter()
        .filter(|&&pfn| pfn % size == 0)
        .any(|&pfn| free.range(pfn..pfn + size).count() as u32 == size)
}

#[test]
fn single_pages_come_in_the_order_of_their_colours() {
    let pages = pages();
    let mut buddy = Buddy::new();
    // Every second frame, so that nothing merges: 32 pages, of the even colours only.
    (0..64).step_by(2).for_each(|n| buddy.put(pages, Pfn(n), 0));
    let mut colour = 5;
    for expected in [6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 0, 2, 4, 6] {
        let pfn = buddy
            .take_single(pages, colour)
            .expect("a page of some colour");
        assert_eq!(pfn.0 % COLOURS, expected);
        colour = pfn.0 + 1;
    }
}

#[test]
fn an_empty_buddy_gives_nothing() {
    let pages = pages();
    let mut buddy = Buddy::new();
    assert!((0..=MAX_ORDER).all(|order| buddy.take(pages, order).is_none()));
    assert!(buddy.take_single(pages, 3).is_none());
}

#[test]
fn marks_rise_with_memory_and_fall_with_rights() {
    // 256 MiB in two domains of different size.
    let marks = Marks::new(49152, 65536);
    let all = [Rights::User, Rights::Kernel, Rights::Table, Rights::Reserve]
        .map(|rights| marks.of(rights));
    assert_eq!(
        all,
        [
            (64 + 327) * 3 / 4,
            (64 + 327) * 3 / 8,
            (64 + 327) * 3 / 16,
            0
        ]
    );
    assert_eq!(
        Marks::new(0, 65536).of(Rights::User),
        0,
        "a domain without memory"
    );
    assert_eq!(Marks::new(0, 0).of(Rights::User), 0);
}

#[test]
fn pressure_has_three_levels() {
    let levels = [0, 100, 101, 200, 201].map(|free| Pressure::of(free, 100));
    assert_eq!(
        levels,
        [
            Pressure::Severe,
            Pressure::Severe,
            Pressure::Low,
            Pressure::Low,
            Pressure::None
        ]
    );
}
