//! Private memory that no mapping reaches any more is freed in the background, and nothing else is.
//!
//! Not with a reverse map that does not find extents: see `lists.rs` for what becomes of such memory there.
#![cfg(not(feature = "listed"))]

mod family;

use std::sync::Arc;

use family::{AT, Lab, PAGE, write};
use vm::Access;
use vm::space::{Advice, RemapArgs, RemapTarget, Space};
use vm_host::program::{Program, private_page};

const TO: u64 = 0x7800_0000;
/// Number of pages at the start of each test: more than a slice of a sweep looks at.
const PAGES: u64 = 600;

/// Checks that each page from `at` on contains its number plus `plus`.
fn reads(p: &Program, at: u64, pages: std::ops::Range<u64>, plus: u64) {
    p.run(|p| {
        for (to, n) in pages.enumerate() {
            assert_eq!(p.read(at + to as u64 * PAGE), Ok(n + plus), "page {n}");
        }
    });
}

#[test]
fn what_the_parent_unmapped_goes_with_the_child() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    lab.unmap(&p, 100..PAGES);
    assert_eq!(lab.pages(), PAGES, "the child has it all");
    reads(&child, AT, 0..PAGES, 0);
    drop(child);
    assert_eq!(lab.pages(), 100);
    reads(&p, AT, 0..100, 0);
}

#[test]
fn what_the_child_was_not_given_goes_with_the_parent() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let (from, len) = (AT + 100 * PAGE, (PAGES - 100) * PAGE);
    p.space
        .advise(&lab.vm, from, len, Advice::DontFork)
        .unwrap();
    let child = p.fork().unwrap();
    assert_eq!(lab.pages(), PAGES, "the parent has it all");
    drop(p);
    assert_eq!(lab.pages(), 100);
    reads(&child, AT, 0..100, 0);
}

/// The part that is left out comes before the part that the child gets: no other space has its layers by then.
#[test]
fn what_the_child_was_not_given_at_the_beginning_goes_with_the_parent() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    p.space
        .advise(&lab.vm, AT, 100 * PAGE, Advice::DontFork)
        .unwrap();
    let child = p.fork().unwrap();
    drop(p);
    assert_eq!(lab.pages(), PAGES - 100);
    reads(&child, AT + 100 * PAGE, 100..PAGES, 0);
}

/// A part that was moved has a layer of its own, on the same memory as the rest.
#[test]
fn what_was_moved_and_not_given_goes_with_the_parent() {
    for advice in [Advice::DontFork, Advice::WipeOnFork] {
        let lab = Lab::new();
        let p = lab.program_of(PAGES);
        let (from, len) = (AT + 100 * PAGE, (PAGES - 100) * PAGE);
        let args = RemapArgs {
            old: from,
            old_len: len,
            new_len: len,
            target: RemapTarget::Fixed(TO),
            keep_old: false,
        };
        assert_eq!(p.space.remap(&lab.vm, &args), Ok(TO));
        assert_eq!(lab.pages(), PAGES, "one space has it all");
        p.space.advise(&lab.vm, TO, len, advice).unwrap();
        let child = p.fork().unwrap();
        drop(p);
        assert_eq!(lab.pages(), 100);
        reads(&child, AT, 0..100, 0);
    }
}

#[test]
fn what_the_child_unmapped_goes_with_the_parent() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    lab.unmap(&child, 100..200);
    lab.unmap(&child, 300..PAGES);
    drop(p);
    assert_eq!(lab.pages(), 200);
    reads(&child, AT, 0..100, 0);
    reads(&child, AT + 200 * PAGE, 200..300, 0);
}

#[test]
fn what_both_unmapped_goes_at_once() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    lab.unmap(&p, 100..400);
    lab.unmap(&child, 200..PAGES);
    assert_eq!(lab.pages(), 400);
    reads(&p, AT, 0..100, 0);
    reads(&p, AT + 400 * PAGE, 400..PAGES, 0);
    reads(&child, AT, 0..200, 0);
}

#[test]
fn a_part_that_was_moved_and_unmapped_is_freed() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let args = RemapArgs {
        old: AT + 100 * PAGE,
        old_len: 200 * PAGE,
        new_len: 200 * PAGE,
        target: RemapTarget::Fixed(TO),
        keep_old: false,
    };
    p.space.remap(&lab.vm, &args).unwrap();
    assert_eq!(lab.pages(), PAGES);
    reads(&p, TO, 100..300, 0);
    p.space.unmap(&lab.vm, TO + 50 * PAGE, 150 * PAGE).unwrap();
    assert_eq!(lab.pages(), PAGES - 150);
    reads(&p, TO, 100..150, 0);
    p.space.unmap(&lab.vm, TO, 50 * PAGE).unwrap();
    assert_eq!(lab.pages(), PAGES - 200);
    reads(&p, AT, 0..100, 0);
    reads(&p, AT + 300 * PAGE, 300..PAGES, 0);
}

#[test]
fn what_the_parent_has_written_anew_goes_with_the_child() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    write(&p, 0..500, 1000);
    assert_eq!(lab.pages(), PAGES + 500);
    reads(&child, AT, 0..PAGES, 0);
    drop(child);
    assert_eq!(lab.pages(), PAGES);
    reads(&p, AT, 0..500, 1000);
    reads(&p, AT + 500 * PAGE, 500..PAGES, 0);
}

#[test]
fn what_both_have_written_anew_goes_while_both_live() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    write(&p, 0..400, 1000);
    write(&child, 200..PAGES, 2000);
    // Pages 200 to 400 of the shared memory are unreachable.
    assert_eq!(lab.pages(), PAGES + 400 + 400 - 200);
    reads(&p, AT, 0..400, 1000);
    reads(&p, AT + 400 * PAGE, 400..PAGES, 0);
    reads(&child, AT, 0..200, 0);
    reads(&child, AT + 200 * PAGE, 200..PAGES, 2000);
    let third = p.fork().unwrap();
    drop(p);
    drop(child);
    assert_eq!(lab.pages(), PAGES);
    reads(&third, AT, 0..400, 1000);
    reads(&third, AT + 400 * PAGE, 400..PAGES, 0);
}

/// A page that every living child but one has left behind is freed when that one ends.
#[test]
fn what_several_left_goes_with_the_last_that_has_it() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let children: Vec<Program> = (0..3).map(|_| p.fork().unwrap()).collect();
    lab.unmap(&p, 0..500);
    lab.unmap(&children[0], 0..400);
    assert_eq!(lab.pages(), PAGES);
    lab.unmap(&children[1], 0..300);
    assert_eq!(lab.pages(), PAGES);
    let mut children = children.into_iter();
    let (first, second, third) = (children.next(), children.next(), children.next());
    drop(third);
    assert_eq!(lab.pages(), PAGES - 300);
    drop(second);
    assert_eq!(lab.pages(), PAGES - 400);
    reads(first.as_ref().unwrap(), AT + 400 * PAGE, 400..PAGES, 0);
    drop(first);
    assert_eq!(lab.pages(), 100);
    reads(&p, AT + 500 * PAGE, 500..PAGES, 0);
}

/// More spaces share the memory than one sweep locks; it is freed when enough of them have ended.
#[test]
fn many_children_may_share_it() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let mut children: Vec<Program> = (0..30).map(|_| p.fork().unwrap()).collect();
    lab.unmap(&p, 0..PAGES - 1);
    children
        .iter()
        .for_each(|child| lab.unmap(child, 0..PAGES - 1));
    lab.pages();
    children.truncate(12);
    assert_eq!(lab.pages(), 1);
    reads(&children[11], AT + (PAGES - 1) * PAGE, PAGES - 1..PAGES, 0);
}

/// A fork in progress, or a map that is being changed, delays a sweep but does not cancel it.
#[test]
fn a_page_that_somebody_holds_is_freed_in_a_later_turn() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    lab.unmap(&p, 1..PAGES);
    drop(child);
    let busy = private_page(&lab.vm, 7).try_hard_busy().unwrap();
    assert_eq!(lab.pages(), 2);
    drop(busy);
    assert_eq!(lab.pages(), 1);
}

/// A page that a fault is inserting above another one, and may take back, does not hide that one yet.
#[test]
fn a_page_under_one_that_is_not_settled_stays() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    write(&p, 0..10, 1000);
    drop(child);
    let frames = lab.vm.pages;
    let copies: Vec<_> = (0..8192)
        .map(vm::Pfn)
        .filter_map(|pfn| frames.find(pfn))
        .filter(|page| page.state() == vm::page::State::Anon && page.index() == 3)
        .filter_map(|page| page.try_hard_busy())
        .collect();
    assert_eq!(copies.len(), 2, "the page and its copy");
    // The lower one is released, so that only the upper one is held busy.
    let upper = copies.into_iter().last().unwrap();
    assert_eq!(lab.pages(), PAGES + 1);
    drop(upper);
    assert_eq!(lab.pages(), PAGES);
}

/// Folding leaves page-table entries of older pages; they are removed with those pages.
#[test]
fn no_table_keeps_a_page_that_was_freed() {
    let lab = Lab::new();
    lab.vm.machine.be_strict();
    let p = lab.program_of(PAGES);
    let mut family = Vec::new();
    for round in 1..=7 {
        family.push(p.fork().unwrap());
        write(&p, 0..10, 1000 * round);
    }
    p.run(|q| {
        reads(&p, AT + 10 * PAGE, 10..PAGES, 0);
        q.space.maintain(&lab.vm);
        lab.vm.tend();
        reads(&p, AT + 10 * PAGE, 10..PAGES, 0);
    });
    family.clear();
    lab.pages();
    reads(&p, AT, 0..10, 7000);
    reads(&p, AT + 10 * PAGE, 10..PAGES, 0);
    while p.space.maintain(&lab.vm) {}
    assert_eq!(lab.pages(), PAGES);
}

#[test]
fn a_space_that_has_ended_waits_for_nothing() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    lab.unmap(&p, 100..PAGES);
    let space: Arc<Space> = p.space.clone();
    drop(p);
    drop(space);
    reads(&child, AT, 0..PAGES, 0);
    assert_eq!(lab.pages(), PAGES);
    assert_eq!(child.space.fault(&lab.vm, AT, Access::Write), Ok(()));
}
