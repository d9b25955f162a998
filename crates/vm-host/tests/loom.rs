//! Two concurrent operations on the real VM. loom explores every interleaving up to a bound on preemptions and every
//! order that the memory model allows, and checks that the locks order every access to the data that they guard.
//!
//! The fences and locks of `doc/vm.md` must ensure that one operation sees the other, so each test states what must
//! hold when both are over. Frames are few, and the models small: the other tests have longer runs.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vm-host --release --test loom`
#![cfg(loom)]

use vm::object::ObjectRef;
use vm::page::Flags;
use vm::space::{Advice, MapArgs, RemapArgs, RemapTarget, Source};
use vm::{Access, MapProt, Pfn, Rights};
use vm_host::explore::{AT, Act, ELSEWHERE, PAGE, World, at_once, explore};

#[test]
fn two_faults_make_one_page() {
    at_once(
        2,
        World::anon,
        |world| world.fault(Access::Write),
        |world| world.fault(Access::Write),
        |world| assert_eq!(world.resident(), 1),
    );
}

#[test]
fn a_fault_beside_munmap_leaves_nothing() {
    at_once(
        2,
        World::anon,
        World::unmap,
        |world| world.fault(Access::Write),
        |world| assert_eq!(world.resident(), 0),
    );
}

#[test]
fn a_fault_beside_mprotect_leaves_nothing_writable() {
    at_once(
        2,
        World::anon,
        World::protect,
        |world| world.fault(Access::Write),
        |world| {
            let entry = world.entry(&world.space);
            assert!(entry.is_none_or(|pte| !pte.is_writable()));
        },
    );
}

#[test]
fn a_fault_beside_truncation_leaves_nothing() {
    let check: Act = |world| {
        assert_eq!(world.resident(), 0);
        assert_eq!(world.file.resident(), 0);
    };
    let truncate: Act = |world| world.file.truncate(&world.lab.vm, 0);
    at_once(
        2,
        World::shared,
        truncate,
        |world| world.fault(Access::Read),
        check,
    );
    // The same if the page does not exist yet.
    at_once(
        2,
        |world| {
            world.shared();
            world.file.punch(&world.lab.vm, 0, 2 * PAGE);
        },
        truncate,
        |world| world.fault(Access::Write),
        check,
    );
}

/// The file's page is what is mapped: an entry that a scan missed would map a freed page.
fn shows_no_freed_page(world: &World) {
    for index in 0..2 {
        let va = AT + u64::from(index) * PAGE;
        let entry = world.space.pmap().lookup(&world.lab.vm, &ksync::pin(), va);
        assert!(entry.is_none_or(|pte| Some(pte.pfn()) == world.file.lookup(&ksync::pin(), index)));
    }
}

fn punch(world: &World) {
    world.file.punch(&world.lab.vm, 0, PAGE);
}

/// Both pages were mapped writable before and are in no table now: a fault sets no flag of theirs, because that would
/// be a fence.
fn mapped_before(world: &World) {
    world.shared();
    for va in [AT, AT + PAGE] {
        let done = world.space.fault(&world.lab.vm, va, Access::Write);
        assert_eq!(done, Ok(()));
    }
    world.space.drop_tables(&world.lab.vm);
}

#[test]
fn a_fault_beside_a_hole_shows_no_freed_page() {
    let read: Act = |world| world.fault(Access::Read);
    at_once(2, World::shared, punch, read, shows_no_freed_page);
    at_once(1, mapped_before, punch, read, shows_no_freed_page);
}

#[test]
fn a_first_write_beside_a_hole_shows_no_freed_page() {
    let read: Act = |world| {
        world.shared();
        world.fault(Access::Read);
    };
    let write: Act = |world| world.fault(Access::Write);
    at_once(1, read, punch, write, shows_no_freed_page);
    let before: Act = |world| {
        mapped_before(world);
        world.fault(Access::Read);
    };
    at_once(1, before, punch, write, shows_no_freed_page);
}

/// Makes the entries of the first page read-only, as before it is written out.
fn write_protect(world: &World) {
    let vm = &*world.lab.vm;
    let pfn = world.file.lookup(&ksync::pin(), 0).expect("a page");
    let page = vm.pages.get(pfn);
    let _busy = page
        .try_hard_busy()
        .expect("faults on a page that is there do not hold it");
    vm::rmap::write_protect_all(vm, &world.file, 0, pfn);
}

#[test]
fn a_write_beside_write_protection_is_noted_or_prevented() {
    let noted: Act = |world| {
        let page = world
            .file
            .lookup(&ksync::pin(), 0)
            .map(|pfn| world.lab.vm.pages.get(pfn));
        let entry = world.entry(&world.space);
        let writable = entry.is_some_and(|pte| pte.is_writable());
        assert!(!writable || page.is_some_and(|page| page.has(Flags::WRITEABLE)));
    };
    let write: Act = |world| world.fault(Access::Write);
    at_once(1, mapped_before, write_protect, write, noted);
    let read: Act = |world| {
        mapped_before(world);
        world.fault(Access::Read);
    };
    at_once(1, read, write_protect, write, noted);
}

/// The last mapping of a file without a name is removed while a page is inserted.
#[test]
fn a_fault_beside_the_end_of_a_file_leaves_no_page() {
    let nameless: Act = |world| {
        let vm = &world.lab.vm;
        let file = ObjectRef::new_file(vm, None).unwrap();
        file.allocate(vm, 0, 2 * PAGE, true).unwrap();
        file.punch(vm, 0, 2 * PAGE);
        world.map_at(AT, true, Source::Object(&file, 0));
        file.release(vm);
    };
    let write: Act = |world| world.fault(Access::Write);
    at_once(2, nameless, World::unmap, write, |_| ());
}

/// As for a shared futex: the word's object is looked up under a pin, and released at once.
fn key(world: &World) {
    if let Some((object, _)) = world.space.shared_object(AT) {
        object.release(&world.lab.vm);
    }
}

#[test]
fn a_key_of_shared_memory_beside_its_end_ends_it_once() {
    let nameless: Act = |world| {
        world.map_at(AT, true, Source::Anon);
        world.fault(Access::Write);
    };
    at_once(2, nameless, World::unmap, key, |_| ());
}

#[test]
fn faulting_around_a_hole_shows_no_freed_page() {
    let around: Act = |world| {
        world.shared();
        world.lab.vm.set_fault_around(4 * PAGE);
    };
    let read: Act = |world| world.fault(Access::Read);
    at_once(1, around, punch, read, shows_no_freed_page);
    let before: Act = |world| {
        mapped_before(world);
        world.lab.vm.set_fault_around(4 * PAGE);
    };
    let punch_beside: Act = |world| world.file.punch(&world.lab.vm, PAGE, PAGE);
    at_once(1, before, punch_beside, read, shows_no_freed_page);
}

/// Fault-around enters a neighbour while a scan, which does not remove the page, looks for its entries. Either the scan
/// removes the entry, or the page is marked MAPPED for the next scan. The page was mapped before, so that the fault
/// finds the mark set.
#[test]
fn a_neighbour_beside_a_scan_is_found_by_the_next_one() {
    let prepare: Act = |world| {
        mapped_before(world);
        world.lab.vm.set_fault_around(2 * PAGE);
    };
    let scan: Act = |world| {
        let pfn = world.file.lookup(&ksync::pin(), 1).expect("a page");
        world.lab.vm.chaos_scan(pfn);
    };
    let read: Act = |world| world.fault(Access::Read);
    let check: Act = |world| {
        let (vm, pmap) = (&world.lab.vm, world.space.pmap());
        let page = vm
            .pages
            .get(world.file.lookup(&ksync::pin(), 1).expect("a page"));
        let neighbour = pmap.lookup(vm, &ksync::pin(), AT + PAGE);
        assert!(neighbour.is_none() || page.has(Flags::MAPPED));
    };
    at_once(1, prepare, scan, read, check);
}

fn carry(world: &World) {
    let args = RemapArgs {
        old: AT,
        old_len: 2 * PAGE,
        new_len: 2 * PAGE,
        target: RemapTarget::Fixed(ELSEWHERE),
        keep_old: false,
    };
    assert_eq!(world.space.remap(&world.lab.vm, &args), Ok(ELSEWHERE));
}

fn elsewhere(world: &World) -> Option<Pfn> {
    let entry = world
        .space
        .pmap()
        .lookup(&world.lab.vm, &ksync::pin(), ELSEWHERE);
    entry.map(|pte| pte.pfn())
}

#[test]
fn a_move_beside_a_hole_shows_no_freed_page() {
    let read: Act = |world| {
        world.shared();
        world.fault(Access::Read);
    };
    let check: Act = |world| {
        assert!(world.entry(&world.space).is_none());
        assert!(
            elsewhere(world).is_none_or(|pfn| Some(pfn) == world.file.lookup(&ksync::pin(), 0))
        );
    };
    at_once(1, read, punch, carry, check);
}

/// A page of a private file mapping is copied while it is moved.
#[test]
fn a_move_beside_a_copy_shows_no_original() {
    let write: Act = |world| world.fault(Access::Write);
    let check: Act = |world| {
        let carried = elsewhere(world);
        let read = world.space.fault(&world.lab.vm, ELSEWHERE, Access::Read);
        assert_eq!(read, Ok(()));
        assert!(carried.is_none() || carried == elsewhere(world));
    };
    at_once(1, World::beside_a_copy, write, carry, check);
}

/// Parent and child never share a page that one of them can write.
#[test]
fn a_fault_beside_fork_writes_to_no_shared_page() {
    let fork: Act = |world| {
        let child = world.space.fork(&world.lab.vm).unwrap();
        child.fault(&world.lab.vm, AT, Access::Read).unwrap();
        let (own, seen) = (world.entry(&world.space), world.entry(&child));
        if let (Some(own), Some(seen)) = (own, seen) {
            assert!(own.pfn() != seen.pfn() || !own.is_writable());
        }
        child.clear(&world.lab.vm);
    };
    let write: Act = |world| world.fault(Access::Write);
    let nothing: Act = |_| ();
    at_once(1, World::anon, fork, write, nothing);
    let touched: Act = |world| {
        world.anon();
        world.fault(Access::Write);
    };
    at_once(2, touched, fork, write, nothing);
}

#[test]
fn tables_are_dropped_beside_faults_scans_and_each_other() {
    let read: Act = |world| {
        world.shared();
        world.fault(Access::Read);
    };
    let drop_tables: Act = |world| {
        world.space.drop_tables(&world.lab.vm);
    };
    let scan: Act = |world| {
        let found = world.file.lookup(&ksync::pin(), 0);
        if let Some(pfn) = found {
            world.lab.vm.chaos_scan(pfn);
        }
    };
    let fault: Act = |world| world.fault(Access::Read);
    let nothing: Act = |_| ();
    at_once(1, read, drop_tables, fault, |world| {
        assert!(world.resident() <= 1)
    });
    at_once(1, read, drop_tables, drop_tables, |world| {
        assert_eq!(world.resident(), 0)
    });
    at_once(1, read, drop_tables, scan, nothing);
    at_once(1, read, scan, fault, nothing);
    let clear: Act = |world| {
        world.space.clear(&world.lab.vm);
    };
    at_once(1, read, clear, scan, nothing);
    at_once(1, read, clear, fault, nothing);
}

/// A CPU that begins to run a space gets the flush request, or finds the entry gone.
#[test]
fn a_cpu_that_joins_keeps_nothing_that_is_unmapped() {
    let run: Act = |world| {
        world.lab.run(&world.space);
        world.lab.vm.machine.speculate(1, AT);
    };
    let check: Act = |world| {
        let reached = world
            .lab
            .vm
            .machine
            .access(1, AT, vm_host::Access::Read, |_| ());
        assert!(reached.is_err(), "CPU 1 still reaches the page");
        ksync::host::set_cpu(1);
        world.lab.stop(&world.space);
        ksync::host::set_cpu(0);
    };
    let read: Act = |world| {
        world.shared();
        world.fault(Access::Read);
    };
    let truncate: Act = |world| world.file.truncate(&world.lab.vm, 0);
    explore(2, None, read, World::unmap, run, check);
    explore(2, None, read, truncate, run, check);
    // It has run the space before, and keeps the translations.
    let away: Act = |world| {
        world.shared();
        world.fault(Access::Read);
        ksync::host::set_cpu(1);
        world.lab.run(&world.space);
        world.lab.vm.machine.speculate(1, AT);
        world.lab.stop(&world.space);
        ksync::host::set_cpu(0);
    };
    explore(1, None, away, World::unmap, run, check);
    explore(1, None, away, truncate, run, check);
}

/// A CPU that begins to run a space without tables is told to load the first root, or finds it.
#[test]
fn a_cpu_that_joins_learns_of_the_first_table() {
    let run: Act = |world| world.lab.run(&world.space);
    let write: Act = |world| world.fault(Access::Write);
    let check: Act = |world| {
        let root = world.lab.vm.machine.loaded_root(1);
        assert_eq!(root, world.space.pmap().root());
        ksync::host::set_cpu(1);
        world.lab.stop(&world.space);
        ksync::host::set_cpu(0);
    };
    explore(2, None, World::anon, write, run, check);
}

/// The map of a space, and everything reachable from it, is seen in the state after its last change.
#[test]
fn all_that_looks_at_a_map_looks_in_turn() {
    // In a cleared space nothing can be mapped.
    let map: Act = |world| {
        let mut args = MapArgs::anon(2 * PAGE, MapProt::READ);
        args.addr = ELSEWHERE;
        args.place.fixed = true;
        let _either = world.space.map(&world.lab.vm, &args);
    };
    let mapped: Act = |world| assert!(world.space.mapped() >= 2 * PAGE);
    let others: [Act; 24] = [
        |world| {
            world.space.unmap(&world.lab.vm, AT, PAGE).unwrap();
        },
        World::protect,
        |world| {
            let args = MapArgs::anon(PAGE, MapProt::READ);
            world.space.map(&world.lab.vm, &args).unwrap();
        },
        |world| {
            let args = MapArgs::anon(PAGE, MapProt::READ);
            world.space.map_all(&world.lab.vm, &[args]).unwrap();
        },
        |world| {
            world.space.is_free(ELSEWHERE, PAGE);
        },
        |world| {
            world.space.is_used(ELSEWHERE, PAGE);
        },
        |world| {
            world.space.is_one_mapping(AT, ELSEWHERE);
        },
        |world| {
            // A copy leaves a page to sweep. The lookup that finds no more pages is the last step.
            world.fault(Access::Write);
            let child = world.space.fork(&world.lab.vm).unwrap();
            world.fault(Access::Write);
            child.clear(&world.lab.vm);
            world.lab.vm.tend();
        },
        |world| world.space.set_mmap_base(0x6000_0000_0000),
        |world| {
            world.space.mapped();
        },
        |world| {
            world.space.usage(&world.lab.vm);
        },
        |world| {
            world.space.cost();
        },
        |world| {
            let vm = &world.lab.vm;
            world.space.resident(vm, AT, PAGE, &mut Vec::new()).unwrap();
        },
        |world| world.space.for_each_entry(0, &mut |_| true),
        |world| {
            world
                .space
                .fork(&world.lab.vm)
                .unwrap()
                .clear(&world.lab.vm);
        },
        |world| {
            world.space.maintain(&world.lab.vm);
        },
        |world| {
            world
                .space
                .advise(&world.lab.vm, AT, PAGE, Advice::DontNeed)
                .unwrap();
        },
        |world| {
            world
                .space
                .advise(&world.lab.vm, AT, PAGE, Advice::DontFork)
                .unwrap();
        },
        |world| {
            world
                .space
                .set_locked(&world.lab.vm, AT, PAGE, true)
                .unwrap();
        },
        |world| {
            let args = RemapArgs {
                old: AT,
                old_len: 2 * PAGE,
                new_len: 3 * PAGE,
                target: RemapTarget::MayMove,
                keep_old: false,
            };
            world.space.remap(&world.lab.vm, &args).unwrap();
        },
        |world| {
            world.space.clear(&world.lab.vm);
        },
        |world| {
            world.space.entry_at(ELSEWHERE);
        },
        |world| {
            world.space.shared_object(ELSEWHERE);
        },
        |world| {
            // Private memory is no file: fails after a lookup.
            let vm = &world.lab.vm;
            let _refused = world.space.remove_file_pages(vm, AT, PAGE, &mut |_, free| {
                free();
                true
            });
        },
    ];
    for other in others {
        let check = if std::ptr::fn_addr_eq(other, others[20]) {
            (|_| ()) as Act
        } else {
            mapped
        };
        explore(1, Some(12), World::anon, map, other, check);
        explore(1, Some(12), World::anon, other, map, check);
    }
}

#[test]
fn a_file_that_two_make_longer_is_as_long_as_both_say() {
    let check: Act = |world| assert_eq!(world.file.size(), 2 * PAGE);
    let allocate = |to: Act, other: Act| at_once(2, |_| (), to, other, check);
    allocate(
        |world| world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap(),
        |world| {
            world
                .file
                .allocate(&world.lab.vm, PAGE, PAGE, true)
                .unwrap()
        },
    );
    fn write(world: &World, at: u64) {
        let all = |bytes: &mut [u8]| bytes.len();
        let written = world.file.write(&world.lab.vm, at, PAGE, &mut { all });
        assert_eq!(written, Ok(PAGE));
    }
    allocate(|world| write(world, 0), |world| write(world, PAGE));
}

#[test]
fn frames_and_runs_are_taken_in_turn() {
    let take: Act = |world| {
        let pin = ksync::pin();
        let run = world
            .lab
            .vm
            .alloc
            .alloc_order(&pin, 2, Rights::Kernel)
            .unwrap();
        world.lab.vm.alloc.free_order(&pin, run, 2);
    };
    let look: Act = |world| {
        let _in_motion = world.lab.vm.alloc.check();
    };
    let nothing: Act = |_| ();
    explore(1, Some(20), nothing, take, take, nothing);
    explore(1, Some(20), nothing, take, look, nothing);
}

/// Frames that one CPU retires are freed by another.
#[test]
fn retired_frames_are_freed_in_turn() {
    let retire: Act = |world| {
        world.space.drop_tables(&world.lab.vm);
        world.lab.vm.epoch.offline(0);
    };
    let read: Act = |world| {
        world.shared();
        world.fault(Access::Read);
    };
    explore(
        1,
        Some(40),
        read,
        retire,
        |world| world.lab.vm.drain_limbo(),
        |_| (),
    );
    let before: Act = |world| {
        world.shared();
        world.fault(Access::Read);
        world.space.drop_tables(&world.lab.vm);
        world.fault(Access::Read);
    };
    // There is no full fence after the moments at which a draining CPU reaches this CPU's frames: loom would treat it
    // as an ordering.
    let again: Act = |world| {
        let frame = world.lab.vm.alloc.alloc(&ksync::pin(), Rights::User);
        for _ in 0..8 {
            world.lab.vm.epoch.quiescent(&mut ksync::pin());
            ksync::relax();
        }
        world.lab.vm.retire_frame(frame.unwrap());
        world.lab.vm.epoch.offline(0);
    };
    for retire in [retire, again] {
        explore(
            1,
            Some(40),
            before,
            retire,
            |world| world.lab.vm.drain_limbo(),
            |_| (),
        );
    }
}
