//! The sweep of a large object takes several rounds of the background work, each of which does a part of it.
//!
//! Not with a reverse map that does not find extents: nothing is swept there.
#![cfg(not(feature = "listed"))]

mod family;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

use family::{AT, Lab, PAGE, write};
use vm::Tuning;
use vm::space::Advice;
use vm_host::mmu::FlushHook;
use vm_host::program::{Program, private_page};

const PAGES: u64 = 600;
/// Pages that a round looks at, where one space has the object.
const ROUND: u64 = 32;

fn lab() -> Lab {
    Lab::tuned(Tuning {
        sweep_looks: 8,
        sweep_slices: 4,
        ..Tuning::DEFAULT
    })
}

fn queued(lab: &Lab) -> bool {
    (0..2).any(|cpu| lab.vm.is_queued(cpu))
}

/// Rounds until nothing is queued any more.
fn rounds(lab: &Lab) -> u64 {
    let rounds = (0..1000).take_while(|_| {
        let queued = queued(lab);
        lab.vm.tend();
        queued
    });
    let rounds = rounds.count() as u64;
    assert!(rounds < 1000, "the sweep does not end");
    rounds
}

fn reads(p: &Program, pages: std::ops::Range<u64>) {
    p.run(|p| pages.for_each(|n| assert_eq!(p.read(AT + n * PAGE), Ok(n))));
}

/// Each round does no more than its part, the next goes on where it ended, and all that is unreachable is freed by as many
/// rounds as the object has parts.
#[test]
fn each_round_frees_its_part() {
    let lab = lab();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    lab.unmap(&p, 100..PAGES);
    drop(child);
    let mut left = PAGES;
    for round in 1.. {
        assert!(queued(&lab), "round {round}");
        lab.vm.tend();
        let now = lab.pages_now();
        assert!(left - now <= ROUND, "{} freed at once", left - now);
        let seen = round * ROUND;
        assert_eq!(now, PAGES - seen.clamp(100, PAGES) + 100, "round {round}");
        left = now;
        if seen >= PAGES {
            break;
        }
    }
    assert!(rounds(&lab) <= 2);
    assert_eq!(lab.pages_now(), 100);
    reads(&p, 0..100);
}

/// What has the size of most programs' memory takes one round.
#[test]
fn one_round_is_enough_for_most() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    lab.unmap(&p, 100..PAGES);
    drop(child);
    lab.vm.tend();
    assert_eq!(lab.pages_now(), 100);
}

/// A page becomes unreachable before each round: the sweep gets to the end of the object nevertheless.
#[test]
fn what_happens_meanwhile_does_not_send_it_back() {
    let lab = lab();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    lab.unmap(&p, 500..PAGES);
    lab.unmap(&child, 500..PAGES);
    for n in 0..PAGES / (ROUND / 2) + 4 {
        lab.unmap(&p, n..n + 1);
        lab.vm.tend();
    }
    let end = AT + 500 * PAGE;
    assert!(lab.pages_now() <= 500, "what lies beyond {end:#x} is left");
    reads(&child, 0..500);
}

/// What becomes unreachable where the sweep has been is not forgotten, though its space is queued already.
#[test]
fn what_it_has_behind_it_is_looked_at_again() {
    let lab = lab();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    lab.unmap(&p, 500..PAGES);
    lab.unmap(&child, 500..PAGES);
    (0..4).for_each(|_| lab.vm.tend());
    assert_eq!(lab.pages_now(), PAGES, "it has not got there");
    lab.unmap(&p, 0..10);
    lab.unmap(&child, 0..10);
    rounds(&lab);
    assert_eq!(lab.pages(), 490);
    reads(&p, 10..500);
    reads(&child, 10..500);
}

/// The space whose sweep has come to the middle ends: one that remains goes on, and begins again.
#[test]
fn another_goes_on_where_its_sweeper_ended() {
    for first in [true, false] {
        let lab = lab();
        let p = lab.program_of(PAGES);
        let (one, two) = (p.fork().unwrap(), p.fork().unwrap());
        drop(p);
        lab.unmap(&one, 0..50);
        lab.unmap(&one, 300..PAGES);
        lab.unmap(&two, 550..PAGES);
        (0..5).for_each(|_| lab.vm.tend());
        assert!(queued(&lab), "the sweep is not over");
        let (left, stays) = if first { (one, two) } else { (two, one) };
        drop(left);
        rounds(&lab);
        let seen = if first { 0..550 } else { 50..300 };
        assert_eq!(lab.pages_now(), seen.end - seen.start);
        reads(&stays, seen);
    }
}

/// A sweep that another space's map delays goes on where it was, and not from the beginning.
#[test]
fn a_sweep_that_is_put_off_goes_on() {
    let lab = lab();
    let p = lab.program_of(PAGES);
    let (from, len) = (AT + 100 * PAGE, (PAGES - 100) * PAGE);
    p.space
        .advise(&lab.vm, from, len, Advice::DontFork)
        .unwrap();
    let child = p.fork().unwrap();
    lab.unmap(&p, 100..PAGES);
    (0..12).for_each(|_| lab.vm.tend());
    let before = lab.pages_now();
    assert!((110..PAGES).contains(&before), "{before} pages are left");
    // At the flush of an unmapping the child's map is locked.
    let (vm, tends) = (lab.vm.clone(), Arc::new(AtomicUsize::new(0)));
    let count = tends.clone();
    let tend: FlushHook = Arc::new(move || {
        if count.fetch_add(1, SeqCst) == 0 {
            let (vm, (done, waits)) = (vm.clone(), channel());
            std::thread::spawn(move || {
                ksync::host::set_cpu(1);
                vm.tend();
                done.send(()).unwrap();
            });
            let tended = waits.recv_timeout(Duration::from_secs(20));
            assert!(tended.is_ok(), "the sweep waits for the child's map");
        }
    });
    child.run(|child| {
        assert_eq!(child.read(AT), Ok(0));
        lab.vm.machine.on_flush(Some(tend));
        lab.unmap(child, 0..1);
        lab.vm.machine.on_flush(None);
    });
    assert!(tends.load(SeqCst) > 0);
    assert_eq!(lab.pages_now(), before);
    lab.vm.tend();
    let now = lab.pages_now();
    assert!(
        (1..=ROUND).contains(&(before - now)),
        "{before}, then {now}"
    );
    rounds(&lab);
    assert_eq!(lab.pages_now(), 100);
}

/// A page that was held when the sweep came to it is looked at again, rounds later.
#[test]
fn a_page_that_somebody_held_in_an_earlier_round_is_freed() {
    let lab = lab();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    lab.unmap(&p, 1..PAGES);
    drop(child);
    let busy = private_page(&lab.vm, 7).try_hard_busy().unwrap();
    lab.vm.tend();
    drop(busy);
    rounds(&lab);
    assert_eq!(lab.pages_now(), 1);
}

/// A space that has the object for itself after a sweep of several rounds knows that it leaves nothing to the next: a child
/// that has it and ends queues nobody.
#[test]
fn a_whole_sweep_of_several_rounds_is_whole() {
    let lab = lab();
    let p = lab.program_of(PAGES);
    let child = p.fork().unwrap();
    write(&p, 0..1, 0);
    drop(child);
    assert!(rounds(&lab) > PAGES / ROUND);
    drop(p.fork().unwrap());
    assert!(!queued(&lab));
    // With an end of a child in between it is not: it may have left pages behind where the sweep has been.
    let child = p.fork().unwrap();
    write(&p, 1..2, 0);
    drop(child);
    lab.vm.tend();
    let child = p.fork().unwrap();
    lab.vm.tend();
    drop(child);
    rounds(&lab);
    assert_eq!(lab.pages_now(), PAGES);
}
