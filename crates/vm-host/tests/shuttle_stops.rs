//! Operations that are stopped once, at each of their steps in turn, while others run.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle_stops`
#![cfg(shuttle)]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use vm::space::{Advice, Source, Space};
use vm::{Access, Gather, Pfn, Rights};
use vm_host::schedules::{AT, PAGE, TO, World, join, program, spawn, stop_everywhere};

/// Two pages of private memory with a word in the first, below a front layer of the space's own: the spaces that shared
/// the old layer have ended, so that a write moves the page to the front.
fn left_alone(world: &World) {
    world.map(false, Source::Anon);
    world.set_word_at(&world.space, AT, 7);
    let child = world.space.fork(&world.lab.vm).unwrap();
    world.set_word_at(&world.space, AT + PAGE, 8);
    child.clear(&world.lab.vm);
}

fn moves(world: &World) {
    let _either = world.space.fault(&world.lab.vm, AT, Access::Write);
}

#[test]
fn munmap_frees_a_page_that_a_fault_moves() {
    let tried = stop_everywhere(|world| {
        left_alone(world);
        let fault = spawn(world, 1, moves);
        let unmapper = spawn(world, 2, |world| {
            assert_eq!(world.space.unmap(&world.lab.vm, AT, PAGE), Ok(()));
        });
        join([fault, unmapper]);
        assert_eq!(world.private_pages(), 1, "a page that nothing maps");
    });
    println!("{tried} schedules");
}

/// The frame of a page that a fault is about to copy, without holding the page, is freed, and it is the only one that the
/// fault can get for the copy.
#[test]
fn no_page_is_copied_to_its_own_frame() {
    stop_everywhere(|world| {
        world.map(false, Source::Anon);
        world.set_word_at(&world.space, AT, 7);
        let child = world.space.fork(&world.lab.vm).unwrap();
        world.set_word_at(&world.space, AT + PAGE, 8);
        let before = frame_at(world, &child);
        let fault = spawn(world, 1, moves);
        let hoard = Arc::new(Mutex::new(Vec::new()));
        let theirs = hoard.clone();
        let others = spawn(world, 2, move |world| {
            let alloc = &world.lab.vm.alloc;
            child.clear(&world.lab.vm);
            assert_eq!(world.space.unmap(&world.lab.vm, AT, PAGE), Ok(()));
            let mut hoard = theirs.lock().unwrap();
            hoard.extend(std::iter::from_fn(|| {
                alloc.alloc(&ksync::pin(), Rights::User).ok()
            }));
            if let Some(at) = hoard.iter().position(|&pfn| pfn == before) {
                alloc.free(&ksync::pin(), hoard.swap_remove(at));
                alloc.drain(&ksync::pin());
            }
        });
        join([fault, others]);
        for pfn in hoard.lock().unwrap().drain(..) {
            world.lab.vm.alloc.free(&ksync::pin(), pfn);
        }
        assert_eq!(world.private_pages(), 1, "a page that nothing maps");
    });
}

/// The frame that `space` reads at [`AT`].
fn frame_at(world: &World, space: &Space) -> Pfn {
    assert_eq!(space.fault(&world.lab.vm, AT, Access::Read), Ok(()));
    let entry = space.pmap().lookup(&world.lab.vm, &ksync::pin(), AT);
    entry.expect("a fault enters a page").pfn()
}

/// The fault is made by another process, such as a debugger.
#[test]
fn the_end_of_a_space_frees_a_page_that_a_fault_moves() {
    stop_everywhere(|world| {
        left_alone(world);
        let fault = spawn(world, 1, moves);
        let end = spawn(world, 2, |world| {
            world.space.clear(&world.lab.vm);
        });
        join([fault, end]);
        assert_eq!(world.private_pages(), 0, "a page that nothing maps");
    });
}

/// A fault moves a page to the front layer; a child that was forked since has dropped that layer and sees the page
/// below.
#[test]
fn a_page_is_moved_to_no_layer_that_a_relative_has_given_up() {
    stop_everywhere(|world| {
        left_alone(world);
        let fault = spawn(world, 1, moves);
        let child = Arc::new(Mutex::new(None));
        let theirs = child.clone();
        let forker = spawn(world, 2, move |world| {
            let child = world.space.fork(&world.lab.vm).unwrap();
            world.set_word_at(&child, AT + PAGE, 9);
            child.maintain(&world.lab.vm);
            *theirs.lock().unwrap() = Some(child);
        });
        join([fault, forker]);
        let child = child.lock().unwrap().take().expect("a fork");
        assert_eq!(world.word(&child), 7);
        assert_eq!(world.word(&world.space), 7);
        child.clear(&world.lab.vm);
    });
}

/// A page leaves its file while a fault copies it, and the space has seen the hole when the copy is entered.
#[test]
fn a_copy_of_a_page_that_has_gone_comes_over_no_hole() {
    stop_everywhere(|world| {
        let vm = &world.lab.vm;
        let written = world.file.write(vm, 0, 2 * PAGE, &mut |piece| {
            piece.fill(7);
            piece.len()
        });
        assert_eq!(written, Ok(2 * PAGE));
        world.map(false, Source::Object(&world.file, 0));
        // The front layer exists.
        world.set_word_at(&world.space, AT + PAGE, 8);
        let fault = spawn(world, 1, moves);
        let seen = Arc::new(Mutex::new(0));
        let theirs = seen.clone();
        let puncher = spawn(world, 2, move |world| {
            world.file.punch(&world.lab.vm, 0, PAGE);
            *theirs.lock().unwrap() = world.word(&world.space);
        });
        join([fault, puncher]);
        if *seen.lock().unwrap() == 0 {
            assert_eq!(world.word(&world.space), 0, "what was punched is back");
        }
    });
}

/// A mapping is moved while its file is truncated, and a write that copies nothing leaves a page beyond the end.
#[test]
fn a_move_brings_no_page_along_that_lies_beyond_the_end() {
    stop_everywhere(|world| {
        world.file.truncate(&world.lab.vm, 2 * PAGE);
        world.map(true, Source::Object(&world.file, 0));
        let mapped = world.space.fault(&world.lab.vm, AT + PAGE, Access::Read);
        assert_eq!(mapped, Ok(()));
        let mover = spawn(world, 1, |world| world.carry(AT + PAGE, TO));
        let cutter = spawn(world, 2, |world| {
            world.file.truncate(&world.lab.vm, PAGE);
            let written = world.file.write(&world.lab.vm, PAGE, 8, &mut |_| 0);
            assert_eq!(written, Ok(0));
        });
        join([mover, cutter]);
        let vm = &world.lab.vm;
        let left = world.space.pmap().lookup(vm, &ksync::pin(), TO);
        assert_eq!(left, None, "a page beyond the end is mapped");
    });
}

/// While a fault is in progress its page becomes unreachable, and the sweep has already looked at the place to which it
/// is moved.
#[test]
#[cfg(not(feature = "listed"))]
fn a_page_that_is_moved_for_nobody_is_freed_in_the_background() {
    stop_everywhere(|world| {
        left_alone(world);
        let fault = spawn(world, 1, moves);
        let others = spawn(world, 2, |world| {
            let child = world.space.fork(&world.lab.vm).unwrap();
            for space in [&world.space, &child] {
                assert_eq!(space.unmap(&world.lab.vm, AT, PAGE), Ok(()));
            }
            child.clear(&world.lab.vm);
            tend(world);
        });
        join([fault, others]);
        tend(world);
        assert_eq!(world.private_pages(), 1, "a page that nothing maps");
    });
}

/// Two runs of the background work.
#[cfg(not(feature = "listed"))]
fn tend(world: &World) {
    (0..2).for_each(|_| world.lab.vm.tend());
}

/// Between two slices of a sweep the space forks and ends: pages that the sweep has not looked at belong to its child.
#[test]
#[cfg(not(feature = "listed"))]
fn what_a_sweep_has_not_seen_goes_although_its_space_has_ended() {
    stop_everywhere(|world| {
        world.map_pages(6, false, Source::Anon);
        (0..6).for_each(|n| world.set_word_at(&world.space, AT + n * PAGE, n));
        let child = world.space.fork(&world.lab.vm).unwrap();
        let unmapped = world.space.unmap(&world.lab.vm, AT + 3 * PAGE, 3 * PAGE);
        assert_eq!(unmapped, Ok(()));
        child.clear(&world.lab.vm);
        let sweep = spawn(world, 1, |world| world.lab.vm.tend());
        let third = Arc::new(Mutex::new(None));
        let forker = spawn(world, 2, {
            let third = third.clone();
            move |world| {
                *third.lock().unwrap() = Some(world.space.fork(&world.lab.vm).unwrap());
                world.space.clear(&world.lab.vm);
            }
        });
        join([sweep, forker]);
        tend(world);
        assert_eq!(world.private_pages(), 3, "pages that nothing maps");
        let third = third.lock().unwrap().take().expect("a fork");
        (0..3).for_each(|n| assert_eq!(world.word_at(&third, AT + n * PAGE), n));
        third.clear(&world.lab.vm);
    });
}

/// The sweep must free what a relative leaves behind, although the remaining child's fork is still in progress.
#[test]
#[cfg(not(feature = "listed"))]
fn what_is_left_to_a_space_that_is_being_forked_goes_once_it_is_there() {
    stop_everywhere(|world| {
        let (vm, space) = (&world.lab.vm, &world.space);
        world.map_pages(6, false, Source::Anon);
        (0..6).for_each(|n| set(world, n, n));
        let relative = space.fork(vm).unwrap();
        assert_eq!(space.unmap(vm, AT + 3 * PAGE, 3 * PAGE), Ok(()));
        tend(world);
        let child = Arc::new(Mutex::new(None));
        let theirs = child.clone();
        let forker = spawn(world, 1, move |world| {
            *theirs.lock().unwrap() = Some(world.space.fork(&world.lab.vm).unwrap());
        });
        let others = spawn(world, 2, move |world| {
            relative.clear(&world.lab.vm);
            world.lab.vm.tend();
        });
        join([forker, others]);
        tend(world);
        assert_eq!(world.private_pages(), 3, "pages that nothing maps");
        let child = child.lock().unwrap().take().expect("a fork");
        child.clear(vm);
    });
}

/// The pages of [`knows_its_own`]: one of the oldest layer; those of the next one, too many to be moved up; the one of
/// the layer above.
const OLDEST: u64 = 0;
const OWN: Range<u64> = 1..8;
const LAST: u64 = 8;

fn set(world: &World, page: u64, word: u64) {
    world.set_word_at(&world.space, AT + page * PAGE, word);
}

/// A space over the layers [front, empty, its own, shared], and a space that shares the fourth.
fn knows_its_own(world: &World) -> Arc<Space> {
    let (vm, space) = (&world.lab.vm, &world.space);
    world.map_pages(12, false, Source::Anon);
    set(world, OLDEST, 10);
    [10, 11].into_iter().for_each(|page| set(world, page, page));
    let sharer = space.fork(vm).unwrap();
    OWN.for_each(|page| set(world, page, page));
    let second = space.fork(vm).unwrap();
    set(world, LAST, LAST);
    let third = space.fork(vm).unwrap();
    set(world, 11, 12);
    second.clear(vm);
    third.clear(vm);
    // Faults that copy ask whether only this space can see a layer, and then move its page. Every second one tries to
    // fold.
    let moved = vm.counts().cow_move;
    [1, 2, LAST]
        .into_iter()
        .for_each(|page| set(world, page, page));
    assert_eq!(vm.counts().cow_move, moved + 3);
    assert_eq!(vm.counts().collapses, 0);
    sharer
}

/// A fault that moves a page of the space's own layer, and finds that the layer above has no page left.
fn folds(world: &World) {
    set(world, 3, 3);
}

/// A fault that copies the page of the oldest layer.
fn copies(world: &World) {
    world.touched(Access::Write);
}

fn keeps(world: &World, sharer: Arc<Space>) {
    assert_eq!(world.lab.vm.counts().collapses, 1);
    assert_eq!(
        world.word(&sharer),
        10,
        "a page was taken from a space that shares it"
    );
    sharer.clear(&world.lab.vm);
    for (page, word) in [(OLDEST, 10), (1, 1), (2, 2), (LAST, LAST)] {
        assert_eq!(world.word_at(&world.space, AT + page * PAGE), word);
    }
}

/// What a fault has found out about the layer at a depth is not used for another chain.
#[test]
fn a_layer_that_folding_brings_to_a_depth_is_not_taken_for_its_own() {
    stop_everywhere(|world| {
        let sharer = knows_its_own(world);
        join([spawn(world, 1, folds), spawn(world, 2, copies)]);
        keeps(world, sharer);
    });
    stop_everywhere(|world| {
        let sharer = knows_its_own(world);
        join([spawn(world, 1, copies), spawn(world, 2, folds)]);
        keeps(world, sharer);
    });
}

/// A family over the same four layers, none of which shadows another, and the contents that each sees.
struct Family {
    spaces: Vec<Arc<Space>>,
    seen: Vec<Vec<u64>>,
}

const PAGES: u64 = 12;

impl Family {
    /// The pages of the four layers, the oldest first.
    fn over(world: &World, layers: [Range<u64>; 4]) -> Family {
        let mut family = Family {
            spaces: Vec::new(),
            seen: Vec::new(),
        };
        world.map_pages(PAGES, false, Source::Anon);
        let parent = world.space.clone();
        family.join(parent);
        for pages in layers {
            pages.for_each(|page| family.set(world, 0, page, 10 + page));
            family.fork(world, 0);
        }
        // The last child gets a layer of its own; the parent gets one with its next write.
        let last = family.last();
        family.set(world, last, PAGES - 1, 1);
        family
    }

    fn last(&self) -> usize {
        self.spaces.len() - 1
    }

    fn join(&mut self, space: Arc<Space>) {
        self.spaces.push(space);
        self.seen.push(vec![0; PAGES as usize]);
    }

    fn fork(&mut self, world: &World, parent: usize) {
        let child = self.spaces[parent].fork(&world.lab.vm).unwrap();
        self.spaces.push(child);
        self.seen.push(self.seen[parent].clone());
    }

    fn set(&mut self, world: &World, space: usize, page: u64, word: u64) {
        world.set_word_at(&self.spaces[space], AT + page * PAGE, word);
        self.seen[space][page as usize] = word;
    }

    /// Checks that all see the same contents as before.
    fn end(self, world: &World, more: Vec<(usize, Arc<Space>)>) {
        let family = self.spaces.iter().enumerate();
        let all = family.chain(more.iter().map(|(like, space)| (*like, space)));
        for (like, space) in all {
            let word = |page| world.word_at(space, AT + page * PAGE);
            let seen: Vec<u64> = (0..PAGES).map(word).collect();
            assert_eq!(seen, self.seen[like]);
        }
        for space in self
            .spaces
            .iter()
            .skip(1)
            .chain(more.iter().map(|(_, space)| space))
        {
            space.clear(&world.lab.vm);
        }
    }
}

/// Two spaces that share layers fold them at once: each brings pages up into a layer that the other one looks at, and
/// drops the layer below.
#[test]
fn relatives_fold_the_same_layers_at_once() {
    stop_everywhere(|world| {
        let mut family = Family::over(world, [0..4, 4..6, 6..7, 7..8]);
        let last = family.last();
        family.set(world, 0, 8, 1);
        assert_eq!(world.lab.vm.counts().collapses, 0);
        let children = Arc::new(Mutex::new(Vec::new()));
        let forks = [(1, 0), (2, last)].map(|(cpu, like)| {
            let (space, children) = (family.spaces[like].clone(), children.clone());
            spawn(world, cpu, move |world| {
                let child = space.fork(&world.lab.vm).unwrap();
                children.lock().unwrap().push((like, child));
            })
        });
        // Another relative reads from the layer from which both bring up, and the last one copies from it.
        let (reader, writer) = (family.spaces[2].clone(), family.spaces[last].clone());
        let faults = spawn(world, 3, move |world| {
            for page in 0..4 {
                let at = AT + page * PAGE;
                assert_eq!(reader.fault(&world.lab.vm, at, Access::Read), Ok(()));
            }
            assert_eq!(writer.fault(&world.lab.vm, AT, Access::Write), Ok(()));
        });
        join(forks.into_iter().chain([faults]));
        assert!(
            world.lab.vm.counts().fold_copy > 0,
            "nothing was brought up"
        );
        let children = std::mem::take(&mut *children.lock().unwrap());
        family.end(world, children);
    });
}

/// A write shadows the last visible page of a layer that is to be dropped; before the next layer is looked at, a
/// relative brings that one's page up into it.
#[test]
fn a_layer_that_is_to_go_shadows_nothing_although_others_fill_it() {
    stop_everywhere(|world| {
        let mut family = Family::over(world, [9..10, 10..11, 0..1, 1..9]);
        let last = family.last();
        (1..8).for_each(|page| family.set(world, 0, page, 100 + page));
        assert_eq!(world.lab.vm.counts().collapses, 0);
        family.seen[0][8] = 108;
        let shadow = spawn(world, 1, |world| {
            world.set_word_at(&world.space, AT + 8 * PAGE, 108);
            world.space.maintain(&world.lab.vm);
        });
        let (space, child) = (family.spaces[last].clone(), Arc::new(Mutex::new(None)));
        let theirs = child.clone();
        let fork = spawn(world, 2, move |world| {
            *theirs.lock().unwrap() = Some(space.fork(&world.lab.vm).unwrap());
        });
        join([shadow, fork]);
        let child = child.lock().unwrap().take().expect("a fork");
        family.end(world, vec![(last, child)]);
    });
}

/// A reader looks a page up while folding drops a layer above it, into which a relative then brings that page up: the
/// reader's space has the layer no more, so that no scan would find its entry.
#[test]
fn a_layer_that_has_gone_brings_no_page_although_others_fill_it() {
    stop_everywhere(|world| {
        let mut family = Family::over(world, [9..10, 10..11, 0..1, 1..9]);
        let last = family.last();
        (1..8).for_each(|page| family.set(world, 0, page, 100 + page));
        world.space.drop_tables(&world.lab.vm);
        assert_eq!(world.lab.vm.counts().collapses, 0);
        family.seen[0][8] = 108;
        let reader = spawn(world, 1, |world| world.touched(Access::Read));
        let (space, child) = (family.spaces[last].clone(), Arc::new(Mutex::new(None)));
        let theirs = child.clone();
        let others = spawn(world, 2, move |world| {
            let vm = &world.lab.vm;
            world.set_word_at(&world.space, AT + 8 * PAGE, 108);
            world.space.maintain(vm);
            let (collapses, copies) = (vm.counts().collapses, vm.counts().fold_copy);
            *theirs.lock().unwrap() = Some(space.fork(vm).unwrap());
            assert_eq!(collapses, 1);
            assert!(vm.counts().fold_copy > copies, "nothing was brought up");
        });
        join([reader, others]);
        shows_what_a_fault_brings(world);
        let child = child.lock().unwrap().take().expect("a fork");
        family.end(world, vec![(last, child)]);
    });
}

/// The page that is mapped first is the one that a fault in an empty table would enter.
fn shows_what_a_fault_brings(world: &World) {
    let entry = || {
        let pmap = world.space.pmap();
        pmap.lookup(&world.lab.vm, &ksync::pin(), AT)
            .map(|pte| pte.pfn())
    };
    if let Some(seen) = entry() {
        world.space.drop_tables(&world.lab.vm);
        world.touched(Access::Read);
        assert_eq!(entry(), Some(seen), "a page of another time is mapped");
    }
}

/// A reader has found a page in a layer that a child shares. A copy is inserted above it, so that folding drops the
/// reader's layer, and is then discarded: the reader's page is no longer part of the space.
#[test]
fn a_page_of_a_layer_that_has_gone_is_not_entered() {
    stop_everywhere(|world| {
        let (vm, space) = (&world.lab.vm, &world.space);
        world.map_pages(4, false, Source::Anon);
        set(world, 0, 6);
        let first = space.fork(vm).unwrap();
        set(world, 0, 7);
        let second = space.fork(vm).unwrap();
        set(world, 1, 7);
        space.drop_tables(vm);
        let reader = spawn(world, 1, |world| world.touched(Access::Read));
        let others = spawn(world, 2, |world| {
            let (vm, space) = (&world.lab.vm, &world.space);
            set(world, 0, 8);
            assert_eq!(vm.counts().collapses, 2, "one layer is left");
            assert_eq!(space.advise(vm, AT, PAGE, Advice::DontNeed), Ok(()));
        });
        join([reader, others]);
        shows_what_a_fault_brings(world);
        for (space, word) in [(space, 0), (&first, 6), (&second, 7)] {
            assert_eq!(world.word(space), word);
        }
        first.clear(vm);
        second.clear(vm);
    });
}

/// A reader of private memory is about to enter its file's page, and first makes a flush that is due. Meanwhile another
/// CPU stores to a copy that is being discarded: its entry was removed, and that CPU may still use the translation when
/// the reader continues.
#[test]
fn a_page_of_a_file_comes_over_no_copy_that_is_being_discarded() {
    stop_everywhere(|world| {
        let (vm, space) = (&world.lab.vm, &world.space);
        world.file.allocate(vm, 0, 2 * PAGE, true).unwrap();
        world.map(false, Source::Object(&world.file, 0));
        set(world, 1, 1);
        world.touched(Access::Read);
        let mut gather = Gather::new();
        let pmap = space.pmap();
        pmap.remove_range(vm, AT, AT + PAGE, &mut gather);
        let [discards, has_read] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        vm.machine.on_flush(Some(Arc::new({
            let (discards, has_read) = (discards.clone(), has_read.clone());
            move || {
                // The reader continues, unless it has to start again.
                let mut patience = 1_000;
                let waits = || discards.load(SeqCst) && !has_read.load(SeqCst);
                while ksync::pin().cpu() == 2 && waits() && patience > 0 {
                    ksync::relax();
                    patience -= 1;
                }
            }
        })));
        let reader = program(world, 1, move |world| {
            // Without a yield, which would give up its turn for good.
            while world.lab.vm.machine.read(1, AT).is_err() {
                world.touched(Access::Read);
            }
            has_read.store(true, SeqCst);
        });
        let other = program(world, 2, move |world| {
            assert_eq!(world.add(2), Ok(1));
            discards.store(true, SeqCst);
            let done = world
                .space
                .advise(&world.lab.vm, AT, PAGE, Advice::DontNeed);
            assert_eq!(done, Ok(()));
        });
        join([reader, other]);
        gather.finish(vm);
        vm.machine.on_flush(None);
    });
}
