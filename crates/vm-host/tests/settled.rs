//! A page that its slot shows as settled is copied, and the page's record, which belongs to another CPU's cache, is not asked.
#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;
use std::thread;

use vm::space::{MapArgs, Space};
use vm::{Access, MapProt, Pfn};
use vm_host::Lab;

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;
/// Slots beside those that an object has of its own.
const FAR: u64 = 20;

struct Family {
    lab: Lab,
    spaces: Vec<Arc<Space>>,
}

impl Family {
    fn new() -> Family {
        let lab = Lab::new(512, 2);
        let space = Space::new(&lab.vm).unwrap();
        let args = MapArgs::anon(32 * PAGE, MapProt::READ | MapProt::WRITE).at(AT);
        assert_eq!(space.map(&lab.vm, &args), Ok(AT));
        Family {
            lab,
            spaces: vec![space],
        }
    }

    fn fork(&mut self, parent: usize) -> usize {
        let child = self.spaces[parent].fork(&self.lab.vm).unwrap();
        self.spaces.push(child);
        self.spaces.len() - 1
    }

    fn set(&self, space: usize, page: u64, word: u64) {
        let bytes = word.to_le_bytes();
        let written = self.spaces[space].write_at(&self.lab.vm, AT + page * PAGE, &bytes);
        assert_eq!(written, Ok(8));
    }

    fn word(&self, space: usize, page: u64) -> u64 {
        let mut bytes = [0; 8];
        let read = self.spaces[space].read_at(&self.lab.vm, AT + page * PAGE, &mut bytes);
        assert_eq!(read, Ok(8));
        u64::from_le_bytes(bytes)
    }

    fn frame(&self, space: usize, page: u64) -> Pfn {
        let pmap = self.spaces[space].pmap();
        let entry = pmap.lookup(&self.lab.vm, &ksync::pin(), AT + page * PAGE);
        entry.expect("the page is mapped").pfn()
    }

    /// Whether `space` copies a page whose frame is `pfn` while this thread holds its record busy. If not, the record is given up,
    /// so that the copy ends.
    fn copies_a_held_page(&self, space: usize, page: u64, pfn: Pfn) -> bool {
        let restarts = || self.lab.vm.counts().restarts;
        let before = restarts();
        let busy = self.lab.vm.pages.get(pfn).try_hard_busy();
        assert!(busy.is_some(), "nobody else holds the page");
        thread::scope(|scope| {
            let copier = scope.spawn(|| {
                let fault = || {
                    let va = AT + page * PAGE;
                    self.spaces[space].fault(&self.lab.vm, va, Access::Write)
                };
                assert_eq!(self.lab.join(1, fault), Ok(()));
            });
            while !copier.is_finished() && restarts() == before {
                thread::yield_now();
            }
            let waits = restarts() != before;
            drop(busy);
            copier.join().unwrap();
            assert_ne!(self.frame(space, page), pfn, "it is a copy");
            !waits
        })
    }

    fn end(self) {
        for space in &self.spaces {
            space.clear(&self.lab.vm);
        }
        self.lab.finish();
    }
}

#[test]
fn a_page_of_zeroes_is_settled_once_it_is_entered() {
    let mut family = Family::new();
    family.set(0, 1, 5);
    // The slot of a node's first page is made on the way, and not looked up again.
    family.set(0, FAR, 6);
    family.set(0, FAR + 1, 7);
    let child = family.fork(0);
    for (page, word) in [(1, 5), (FAR + 1, 7)] {
        let pfn = family.frame(0, page);
        assert!(family.copies_a_held_page(child, page, pfn));
        assert_eq!(family.word(child, page), word);
    }
    family.end();
}

#[test]
fn a_copy_is_settled_once_it_is_entered() {
    let mut family = Family::new();
    (1..3).for_each(|page| family.set(0, page, page));
    (FAR..FAR + 2).for_each(|page| family.set(0, page, page));
    let child = family.fork(0);
    (1..3).for_each(|page| family.set(child, page, 7));
    (FAR..FAR + 2).for_each(|page| family.set(child, page, 7));
    let grandchild = family.fork(child);
    for page in [1, 2, FAR + 1] {
        let pfn = family.frame(child, page);
        assert!(
            family.copies_a_held_page(grandchild, page, pfn),
            "page {page}"
        );
        assert_eq!(family.word(grandchild, page), 7);
    }
    // The slot of this copy was made on the way, and was not looked up again.
    let pfn = family.frame(child, FAR);
    assert!(!family.copies_a_held_page(grandchild, FAR, pfn));
    assert_eq!(family.word(grandchild, FAR), 7);
    family.end();
}

#[test]
fn a_page_that_was_taken_over_is_settled() {
    let mut family = Family::new();
    (1..3).for_each(|page| family.set(0, page, page));
    let child = family.fork(0);
    // A front layer of its own, into which the page of the layer below is taken over once nobody shares that.
    family.set(0, 3, 3);
    family.spaces[child].clear(&family.lab.vm);
    let moved = family.lab.vm.counts().cow_move;
    family.set(0, 1, 8);
    assert_eq!(family.lab.vm.counts().cow_move, moved + 1);
    let second = family.fork(0);
    let pfn = family.frame(0, 1);
    assert!(family.copies_a_held_page(second, 1, pfn));
    assert_eq!(family.word(second, 1), 8);
    family.end();
}

/// The mark goes with the page: it is not there when the slot is filled again.
#[test]
fn what_is_settled_leaves_as_any_page() {
    let mut family = Family::new();
    for round in 0..3 {
        family.set(0, 1, round);
        let child = family.fork(0);
        family.set(0, 1, round + 10);
        assert_eq!(family.word(child, 1), round);
        family.spaces[child].clear(&family.lab.vm);
        let gone = family.spaces[0].unmap(&family.lab.vm, AT, 2 * PAGE);
        assert_eq!(gone, Ok(()));
        let args = MapArgs::anon(2 * PAGE, MapProt::READ | MapProt::WRITE).at(AT);
        assert_eq!(family.spaces[0].map(&family.lab.vm, &args), Ok(AT));
        assert_eq!(family.word(0, 1), 0);
    }
    family.end();
}
