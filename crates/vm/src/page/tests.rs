use std::sync::Mutex;
use std::vec::Vec;

use super::{Flags, HardBusy, Page, PageArray, PageList, Pfn, State, Wanted};

/// Records of `count` frames, for ever: on a list, so that a search for leaks does not find them.
pub(crate) fn records(count: usize) -> PageArray {
    static ALL: Mutex<Vec<&[Page]>> = Mutex::new(Vec::new());
    let records: Vec<Page> = (0..count).map(|_| Page::absent()).collect();
    let records = records.leak();
    ALL.lock().expect("no test fails here").push(records);
    PageArray::new(records)
}

fn pages(count: usize) -> PageArray {
    let pages = records(count);
    pages.add_range(Pfn(0), Pfn(count as u32), 0);
    pages
}

fn idle_page() -> &'static Page {
    let page = pages(1).get(Pfn(0));
    drop(HardBusy::of_fresh(page));
    page
}

#[test]
fn frames_exist_only_where_added() {
    let pages = records(8);
    pages.add_range(Pfn(2), Pfn(5), 3);
    let existing: Vec<u32> = (0..10).filter(|&n| pages.find(Pfn(n)).is_some()).collect();
    assert_eq!(existing, [2, 3, 4]);
    assert_eq!(pages.get(Pfn(4)).domain(), 3);
    assert_eq!(pages.get(Pfn(4)).state(), State::Reserved);
    assert!(pages.get(Pfn(4)).is_hard_busy());
    assert_eq!(pages.pfn(pages.get(Pfn(7))), Pfn(7));
}

#[test]
fn hard_busy_excludes_all() {
    let page = idle_page();
    let held = page.try_hard_busy().unwrap();
    assert!(page.try_hard_busy().is_none());
    assert!(page.try_soft_busy().is_none());
    assert!(!page.try_upgrade_busy());
    assert!(page.is_hard_busy(), "a refused attempt changes nothing");
    drop(held);
    assert!(!page.is_hard_busy());
}

#[test]
fn soft_busy_is_shared_and_excludes_hard() {
    let page = idle_page();
    let (one, other) = (page.try_soft_busy().unwrap(), page.try_soft_busy().unwrap());
    assert_eq!(page.soft_count(), 2);
    assert!(page.try_hard_busy().is_none());
    let one = one.try_upgrade().err().expect("two holders");
    assert_eq!(page.soft_count(), 2);
    drop(other);
    let held = one.try_upgrade().ok().expect("the only holder");
    assert!(page.is_hard_busy());
    let one = held.downgrade();
    assert_eq!((page.soft_count(), page.is_hard_busy()), (1, false));
    drop(one);
    assert!(page.try_hard_busy().is_some());
}

#[test]
fn waiters_are_reported_once() {
    let page = idle_page();
    let wanted = |what| page.want(what, || true);
    assert!(!wanted(Wanted::Free), "nobody is in the way");
    assert!(page.take_hard_busy());
    assert!(wanted(Wanted::Free) && wanted(Wanted::Soft) && wanted(Wanted::Kept));
    assert!(page.hard_unbusy(), "somebody waits");
    assert!(page.take_soft_busy() && page.take_soft_busy());
    assert!(!wanted(Wanted::Soft), "soft holders are not in its way");
    assert!(wanted(Wanted::Free));
    assert!(!page.soft_unbusy(), "one soft holder is left");
    assert!(
        !page.take_soft_busy(),
        "soft holders do not follow one another for ever"
    );
    assert!(wanted(Wanted::Soft), "it waits, too");
    assert!(
        !wanted(Wanted::Kept),
        "a thread that holds nothing need not wait"
    );
    assert!(page.soft_unbusy(), "the last one wakes");
    assert!(page.take_hard_busy());
    assert!(!page.hard_unbusy(), "nobody waits any more");
}

#[test]
fn a_mark_survives_a_change_of_holder_and_goes_with_its_page() {
    let page = idle_page();
    assert!(page.take_soft_busy());
    assert!(page.want(Wanted::Free, || true));
    assert!(page.try_upgrade_busy());
    assert!(page.downgrade_busy(), "the waiter may run as a soft holder");
    assert!(!page.soft_unbusy());

    assert!(page.take_hard_busy());
    assert!(!page.want(Wanted::Soft, || false), "it is elsewhere by now");
    assert!(!page.hard_unbusy(), "a waiter that gave up left no mark");

    let held = page.try_hard_busy().unwrap();
    assert!(page.want(Wanted::Soft, || true));
    held.into_free();
    // Returns at once: the page is free, and its mark gone.
    page.wait();
    assert!(page.is_hard_busy());
    assert!(!page.hard_unbusy());
}

#[test]
fn identity_comes_and_goes() {
    let page = idle_page();
    let held = page.try_hard_busy().unwrap();
    assert!(!page.is(0x1000, 7));
    page.set_identity(0x1000, 7);
    assert!(page.is(0x1000, 7) && !page.is(0x1000, 8) && !page.is(0x2000, 7));
    page.move_identity(0x2000, 9);
    assert!(page.is(0x2000, 9) && !page.is(0x1000, 7));
    held.into_free();
    assert_eq!(page.object(), 0);
    assert!(page.is_hard_busy(), "as every free frame is");
}

#[test]
#[should_panic(expected = "identity changes under hard busy")]
fn identity_needs_hard_busy() {
    idle_page().set_identity(0x1000, 0);
}

#[test]
fn flags_report_changes() {
    let page = idle_page();
    page.init_flags(State::Anon, Flags::VALID);
    assert!(page.set_flag(Flags::DIRTY | Flags::REFERENCED));
    assert!(!page.set_flag(Flags::DIRTY), "nothing new");
    assert!(page.has(Flags::VALID | Flags::DIRTY));
    assert_eq!(page.state(), State::Anon, "flags leave the state alone");
    assert!(page.clear_flag(Flags::DIRTY | Flags::MAPPED));
    assert!(!page.clear_flag(Flags::DIRTY | Flags::MAPPED));
    assert_eq!(page.flags(), Flags::VALID | Flags::REFERENCED);
    page.set_state(State::File);
    assert_eq!(page.state(), State::File);
    assert_eq!(
        page.flags(),
        Flags::VALID | Flags::REFERENCED,
        "the state leaves the flags alone"
    );
}

#[test]
fn every_state_reads_back() {
    let page = idle_page();
    let states = [
        State::Absent,
        State::Free,
        State::Allocated,
        State::Table,
        State::Slab,
        State::Reserved,
        State::Anon,
        State::File,
        State::Kernel,
    ];
    for from in states {
        for to in states {
            page.init_flags(from, Flags::MULTI);
            page.set_state(to);
            assert_eq!((page.state(), page.flags()), (to, Flags::MULTI));
        }
    }
}

#[test]
fn wirings_are_counted() {
    let page = idle_page();
    assert_eq!((page.wire(), page.wire()), (0, 1));
    assert_eq!((page.unwire(), page.unwire()), (1, 0));
    assert_eq!(page.wire_count(), 0);
}

#[test]
#[cfg_attr(
    miri,
    ignore = "Miri models no atomics of different sizes that share memory, and stops with an error of its own"
)]
fn a_new_table_is_empty_whatever_the_frame_was() {
    use core::sync::atomic::Ordering::Relaxed;
    let page = idle_page();
    (1..4).for_each(|n| page.slab_word(n).store(u32::MAX, Relaxed));
    let table = page.table();
    table.init();
    assert_eq!(table.live.load(Relaxed), 0);
    assert_eq!(table.groups.load(Relaxed), 0);
    assert!(!table.lock.is_locked());
}

#[test]
fn slab_words_are_distinct() {
    use core::sync::atomic::Ordering::Relaxed;
    let page = idle_page();
    for n in 0..super::SLAB_WORDS {
        page.slab_word(n).store(n as u32 + 1, Relaxed);
    }
    for n in 0..super::SLAB_WORDS {
        assert_eq!(page.slab_word(n).load(Relaxed), n as u32 + 1);
    }
    assert_eq!(page.object(), 0, "identity checks never see slab words");
}

#[test]
fn lists_link_and_unlink_anywhere() {
    let pages = pages(4);
    let mut list = PageList::new();
    (0..4).for_each(|n| list.push(pages, Pfn(n)));
    let order = |list: &PageList| list.iter(pages).map(|pfn| pfn.0).collect::<Vec<_>>();
    assert_eq!(order(&list), [3, 2, 1, 0]);
    list.remove(pages, Pfn(2));
    assert_eq!(order(&list), [3, 1, 0]);
    list.remove(pages, Pfn(0));
    assert_eq!(order(&list), [3, 1]);
    assert_eq!(list.pop(pages), Some(Pfn(3)));
    assert_eq!(list.pop(pages), Some(Pfn(1)));
    assert_eq!(list.pop(pages), None);
    assert!(list.is_empty());
}
