//! The purpose of single orderings: what one operation did before a step is visible to an operation that sees the step.
//!
//! As `loom.rs`. loom does not see the bytes of frames, nor the translations cached by the simulated cores, so an
//! atomic word represents them: it is written without ordering where the bytes are written, or where the cores flush.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vm-host --release --test loom_orders`
#![cfg(loom)]

use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use vm::Access;
use vm::page::{Flags, HardBusy, Page};
use vm::pmap::{EnterError, Entered};
use vm::rmap::ReverseMap;
use vm::space::Source;
use vm::{Gather, Pfn, Prot, Pte, Rights, rmap};
use vm_host::explore::{AT, Act, ELSEWHERE, PAGE, World, at_once};
use vm_host::ticket;

loom::lazy_static! {
    /// Represents eight bytes of a frame.
    static ref BYTES: AtomicU64 = AtomicU64::new(0);
    /// Whether a flush has reached the cores.
    static ref FLUSHED: AtomicBool = AtomicBool::new(false);
    /// Whether a hook is active.
    static ref HOOKED: AtomicBool = AtomicBool::new(false);
}

fn nothing(_: &World) {}

fn write(world: &World) {
    world.fault(Access::Write);
}

fn drop_tables(world: &World) {
    world.space.drop_tables(&world.lab.vm);
}

/// Writes eight bytes to the file.
fn write_bytes(world: &World) {
    let written = world.file.write(&world.lab.vm, 0, 8, &mut |piece| {
        BYTES.store(7, Relaxed);
        piece.len()
    });
    assert_eq!(written, Ok(8));
}

#[test]
fn who_sees_that_a_file_has_grown_sees_what_was_written_before() {
    const SHORT: usize = 8;
    // A reader that sees the file at this length sees the bytes.
    fn read(world: &World, long: usize) {
        world.file.read(&world.lab.vm, 0, &mut |piece| {
            assert!(piece.len() < long || BYTES.load(Relaxed) == 7);
            piece.len()
        });
    }
    let short: Act = |world| read(world, SHORT);
    let long: Act = |world| read(world, 2 * SHORT);
    at_once(1, nothing, write_bytes, short, nothing);
    let prepare: Act = |world| {
        world
            .file
            .allocate(&world.lab.vm, 0, 2 * PAGE, false)
            .unwrap();
        world.file.truncate(&world.lab.vm, SHORT as u64);
    };
    let allocate: Act = |world| {
        write_bytes(world);
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
    };
    at_once(1, prepare, allocate, long, nothing);
    let truncate: Act = |world| {
        write_bytes(world);
        world.file.truncate(&world.lab.vm, PAGE);
    };
    at_once(1, prepare, truncate, long, nothing);
}

#[test]
fn a_page_that_is_found_in_its_slot_is_whole() {
    let allocate: Act = |world| world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
    let look: Act = |world| {
        let pin = ksync::pin();
        if let Some(pfn) = world.file.lookup(&ksync::pin(), 0) {
            // Set after the page was filled.
            assert!(world.lab.vm.pages.get(pfn).has(Flags::VALID));
        }
        drop(pin);
    };
    at_once(3, nothing, allocate, look, nothing);
}

/// From here on flushes are recorded, and this CPU runs the space.
fn watch(world: &World) {
    world.lab.run(&world.space);
    let sign = || FLUSHED.store(true, Relaxed);
    let machine = &world.lab.vm.machine;
    machine.on_flush(Some(std::sync::Arc::new(sign)));
}

fn stop(world: &World) {
    world.lab.vm.machine.on_flush(None);
    world.lab.stop(&world.space);
}

fn is_flushed() {
    assert!(FLUSHED.load(Relaxed), "a core may still use what has gone");
}

/// A page of a file, mapped writable.
fn mapped(world: &World) {
    world.shared();
    world.fault(Access::Write);
    watch(world);
}

fn page(world: &World, index: u32) -> (&'static Page, Pfn) {
    let pfn = world.file.lookup(&ksync::pin(), index).expect("a page");
    (world.lab.vm.pages.get(pfn), pfn)
}

#[test]
fn a_slot_is_empty_when_the_translations_of_its_page_are_gone() {
    loom::lazy_static! { static ref BEFORE: AtomicU64 = AtomicU64::new(0); }
    let prepare: Act = |world| {
        mapped(world);
        BEFORE.store(u64::from(page(world, 0).1.0), Relaxed);
    };
    let punch: Act = |world| world.file.punch(&world.lab.vm, 0, PAGE);
    let fill: Act = |world| {
        let pin = ksync::pin();
        let before = BEFORE.load(Relaxed);
        drop(pin);
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
        let now = world.file.lookup(&ksync::pin(), 0);
        if now.is_some_and(|pfn| u64::from(pfn.0) != before) {
            is_flushed();
        }
    };
    at_once(1, prepare, punch, fill, stop);
}

#[test]
fn a_fault_that_finds_an_entry_gone_finds_that_its_flush_is_due_or_over() {
    let read: Act = |world| {
        let resident = || world.lab.vm.counts().resident;
        let before = resident();
        world.fault(Access::Read);
        if resident() != before {
            is_flushed();
        }
    };
    at_once(1, mapped, drop_tables, read, stop);
}

#[test]
fn a_scan_that_finds_an_entry_gone_finds_that_its_flush_is_due_or_over() {
    let scan: Act = |world| {
        let (page, pfn) = page(world, 0);
        let _busy = page.try_hard_busy().expect("nobody else takes it");
        rmap::remove_all(&world.lab.vm, &world.file, 0, pfn);
        is_flushed();
    };
    at_once(1, mapped, drop_tables, scan, stop);
}

fn remove<'p>(world: &'p World, va: u64, gather: &mut Gather<'p>) {
    let pmap = world.space.pmap();
    pmap.remove_range(&world.lab.vm, va, va + PAGE, gather);
}

/// Two operations, of which the second ends first, and a question whether a flush is due: answered by the count if
/// there is one operation, by the list if there are two.
#[test]
fn an_operation_that_is_not_listed_any_more_has_flushed() {
    let prepare: Act = |world| {
        both_writable(world);
        world.map_at(ELSEWHERE, false, Source::Anon);
        world.fault_at(ELSEWHERE, Access::Write);
        world.fault_at(ELSEWHERE + PAGE, Access::Write);
        watch(world);
    };
    let one: Act = |world| {
        let mut gather = Gather::new();
        remove(world, AT, &mut gather);
        gather.finish(&world.lab.vm);
    };
    let two: Act = |world| {
        let (mut first, mut second) = (Gather::new(), Gather::new());
        remove(world, ELSEWHERE, &mut first);
        remove(world, AT, &mut second);
        second.finish(&world.lab.vm);
        first.finish(&world.lab.vm);
    };
    // Not a fault, which has a full fence after the question.
    let enter: Act = |world| {
        let leaf = Pte::user(page(world, 0).1, Prot::WRITE);
        let (pmap, vm) = (world.space.pmap(), &world.lab.vm);
        if pmap.enter(vm, &ksync::pin(), &ticket(vm, pmap), AT, leaf, || true) == Ok(Entered::New) {
            is_flushed();
        }
    };
    at_once(1, prepare, one, enter, stop);
    at_once(1, prepare, two, enter, stop);
}

#[test]
fn a_scan_that_finds_no_tables_finds_that_their_flush_is_due_or_over() {
    let release: Act = |world| {
        world.space.pmap().release(&world.lab.vm);
    };
    let scan: Act = |world| {
        let (page, pfn) = page(world, 0);
        let _busy = page.try_hard_busy().expect("nobody else takes it");
        rmap::remove_all(&world.lab.vm, &world.file, 0, pfn);
        is_flushed();
    };
    at_once(1, mapped, release, scan, stop);
}

/// A CPU that keeps translations compares generations.
#[test]
fn a_cpu_that_finds_a_generation_finds_the_root_that_came_with_it() {
    let prepare: Act = |world| {
        world.anon();
        world.fault(Access::Write);
    };
    let join: Act = |world| {
        let (pmap, vm, pin) = (world.space.pmap(), &world.lab.vm, ksync::pin());
        let info = pmap.activate(vm, &pin);
        assert!(info.generation == 0 || info.root == vm.pmaps.empty_root());
        pmap.deactivate(&pin);
    };
    at_once(1, prepare, drop_tables, join, nothing);
}

/// Two pages of a file, of which the second is mapped, so that there are tables.
fn with_tables(world: &World) {
    world.shared();
    world.fault_at(AT + PAGE, Access::Write);
}

#[test]
fn who_finds_an_entry_finds_what_was_done_before_it_was_entered() {
    let enter: Act = |world| {
        let leaf = Pte::user(page(world, 0).1, Prot::WRITE);
        BYTES.store(7, Relaxed);
        let (pmap, vm) = (world.space.pmap(), &world.lab.vm);
        let entered = pmap.enter(vm, &ksync::pin(), &ticket(vm, pmap), AT, leaf, || true);
        entered.expect("nothing is in the way");
    };
    let look: Act = |world| {
        let (pmap, vm) = (world.space.pmap(), &world.lab.vm);
        if pmap.lookup(vm, &ksync::pin(), AT).is_some() {
            assert_eq!(BYTES.load(Relaxed), 7);
        }
    };
    let check: Act = |world| {
        let mut gather = Gather::new();
        remove(world, AT, &mut gather);
        gather.finish(&world.lab.vm);
    };
    at_once(1, with_tables, enter, look, check);
}

/// A removal hands A and D on to the page before a scan finds the entry gone.
#[test]
fn who_finds_an_entry_harvested_finds_what_was_in_it() {
    let harvest: Act = |world| {
        let mut gather = Gather::new();
        let pmap = world.space.pmap();
        let note = |_, _| BYTES.store(7, Relaxed);
        pmap.harvest_range(&world.lab.vm, AT, AT + PAGE, &mut gather, note);
        gather.finish(&world.lab.vm);
    };
    let scan: Act = |world| {
        let (page, pfn) = page(world, 0);
        let _busy = page.try_hard_busy().expect("nobody else takes it");
        if rmap::remove_all(&world.lab.vm, &world.file, 0, pfn) == 0 {
            assert_eq!(BYTES.load(Relaxed), 7);
        }
    };
    at_once(1, mapped, harvest, scan, stop);
}

/// A copy is mapped, which the scans of the file's pages do not find.
#[test]
fn a_truncation_that_finds_a_copy_gone_finds_that_its_flush_is_due_or_over() {
    let copy: Act = |world| {
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
        world.map_at(AT, false, Source::Object(&world.file, 0));
        world.fault(Access::Write);
        watch(world);
    };
    let truncate: Act = |world| {
        world.file.truncate(&world.lab.vm, 0);
        is_flushed();
    };
    at_once(1, copy, drop_tables, truncate, stop);
}

#[test]
fn a_hole_that_finds_a_page_copied_finds_that_its_flush_is_due_or_over() {
    let both: Act = |world| {
        world.beside_a_copy();
        watch(world);
    };
    let punch: Act = |world| {
        world.file.punch(&world.lab.vm, 0, PAGE);
        is_flushed();
    };
    at_once(1, both, write, punch, stop);
}

fn protect_high(world: &World) {
    let mut gather = Gather::new();
    let pmap = world.space.pmap();
    pmap.write_protect_high(&world.lab.vm, &ksync::pin(), &mut gather);
    gather.finish(&world.lab.vm);
}

fn both_writable(world: &World) {
    world.shared();
    world.fault_at(AT, Access::Write);
    world.fault_at(AT + PAGE, Access::Write);
}

/// A core may have a writable translation of an entry that fork or mprotect finds gone.
#[test]
fn a_protection_that_finds_entries_gone_finds_that_their_flush_is_due_or_over() {
    let all: Act = |world| {
        protect_high(world);
        is_flushed();
    };
    at_once(1, mapped, drop_tables, all, stop);
    let one: Act = |world| {
        world.protect();
        is_flushed();
    };
    at_once(1, mapped, drop_tables, one, stop);
}

/// A walk that finds the upper levels writable finds the leaves protected.
#[test]
fn protection_that_is_pushed_down_protects_throughout() {
    let prepare: Act = |world| {
        both_writable(world);
        protect_high(world);
    };
    let look: Act = |world| {
        let pmap = world.space.pmap();
        let neighbour = pmap.lookup(&world.lab.vm, &ksync::pin(), AT + PAGE);
        assert!(neighbour.is_some_and(|pte| !pte.is_writable()));
    };
    at_once(1, prepare, write, look, nothing);
}

/// Between the protection of the whole space and its flush, a fault pushes it down.
#[test]
#[cfg_attr(feature = "pv-stock", ignore = "a fault in a pinned hook")]
fn a_scan_that_finds_an_entry_protected_finds_that_its_flush_is_due_or_over() {
    let protect: Act = |world| {
        both_writable(world);
        watch(world);
        let (space, vm) = (
            world.space.clone(),
            std::sync::Arc::downgrade(&world.lab.vm),
        );
        let push_down = move || {
            if let Some(vm) = vm.upgrade()
                && ksync::pin().cpu() == 0
                && !HOOKED.swap(true, Relaxed)
            {
                assert_eq!(space.fault(&vm, AT, Access::Write), Ok(()));
            }
            FLUSHED.store(true, Relaxed);
        };
        let machine = &world.lab.vm.machine;
        machine.on_flush(Some(std::sync::Arc::new(push_down)));
    };
    let scan: Act = |world| {
        let (page, pfn) = page(world, 1);
        let _busy = page.try_hard_busy().expect("nobody else takes it");
        rmap::write_protect_all(&world.lab.vm, &world.file, 1, pfn);
        is_flushed();
    };
    at_once(1, protect, protect_high, scan, stop);
}

/// The page of shared memory at `va`.
fn shared_page(world: &World, va: u64) -> Pfn {
    let (object, offset) = world.space.shared_object(va).expect("shared memory");
    let pfn = object
        .lookup(&ksync::pin(), (offset / PAGE) as u32)
        .expect("a page");
    object.release(&world.lab.vm);
    pfn
}

/// The entry beside the written one loses its right when protection is pushed down, with no fence between that and the
/// listing of the protecting operation. The page was not written to since it was mapped, so that the scan finds nothing
/// to change.
#[test]
fn a_scan_that_finds_protection_pushed_down_finds_that_its_flush_is_due_or_over() {
    let prepare: Act = |world| {
        world.map_at(AT, true, Source::Anon);
        world.fault(Access::Read);
        world.fault_at(AT + PAGE, Access::Read);
        drop_tables(world);
        world.fault_at(AT + PAGE, Access::Read);
        watch(world);
    };
    let protect_and_enter: Act = |world| {
        let (pmap, vm) = (world.space.pmap(), &world.lab.vm);
        let leaf = Pte::user(shared_page(world, AT), Prot::WRITE);
        let mut gather = Gather::new();
        pmap.write_protect_high(vm, &ksync::pin(), &mut gather);
        loop {
            let entered = pmap.enter(vm, &ksync::pin(), &ticket(vm, pmap), AT, leaf, || true);
            match entered {
                // The scan holds the lock of both pages' lists.
                Err(EnterError::Blocked(why)) => vm.rmap.wait(why),
                entered => {
                    assert!(entered.is_ok(), "{entered:?}");
                    break;
                }
            }
        }
        gather.finish(vm);
    };
    let scan: Act = |world| {
        let (object, _) = world.space.shared_object(AT).expect("shared memory");
        let pfn = shared_page(world, AT + PAGE);
        let busy = world.lab.vm.pages.get(pfn).try_hard_busy();
        rmap::write_protect_all(&world.lab.vm, &object, 1, pfn);
        is_flushed();
        drop(busy.expect("nobody else takes it"));
        object.release(&world.lab.vm);
    };
    let end: Act = |world| {
        let mut gather = Gather::new();
        remove(world, AT, &mut gather);
        gather.finish(&world.lab.vm);
        stop(world);
    };
    at_once(1, prepare, protect_and_enter, scan, end);
}

/// The page was made writable and not written to since, so that the scan finds nothing to change.
#[test]
fn a_scan_that_finds_an_entry_as_it_is_to_be_finds_that_its_flush_is_due_or_over() {
    let clean: Act = |world| {
        world.map_at(AT, true, Source::Anon);
        world.fault(Access::Read);
        drop_tables(world);
        world.fault(Access::Read);
        watch(world);
    };
    let scan: Act = |world| {
        let (object, _) = world.space.shared_object(AT).expect("shared memory");
        let pfn = object.lookup(&ksync::pin(), 0).expect("a page");
        let busy = world.lab.vm.pages.get(pfn).try_hard_busy();
        rmap::write_protect_all(&world.lab.vm, &object, 0, pfn);
        is_flushed();
        drop(busy.expect("nobody else takes it"));
        object.release(&world.lab.vm);
    };
    at_once(1, clean, World::protect, scan, stop);
}

/// Between a removal and its flush a neighbour's fault claims the slot and withdraws the claim.
#[test]
#[cfg(not(feature = "listed"))]
fn a_scan_that_finds_a_claim_finds_that_the_flush_before_it_is_due_or_over() {
    let prepare: Act = |world| {
        world.shared();
        world.map_at(AT + 16 * PAGE, false, Source::Anon);
        world.fault(Access::Read);
        // Keeps the table alive.
        world.fault_at(AT + 16 * PAGE, Access::Write);
        world.lab.vm.set_fault_around(2 * PAGE);
        watch(world);
        let (space, vm) = (
            world.space.clone(),
            std::sync::Arc::downgrade(&world.lab.vm),
        );
        let claim = move || {
            if let Some(vm) = vm.upgrade()
                && ksync::pin().cpu() == 0
                && !HOOKED.swap(true, Relaxed)
            {
                assert_eq!(space.fault(&vm, AT + PAGE, Access::Read), Ok(()));
            }
            FLUSHED.store(true, Relaxed);
        };
        let machine = &world.lab.vm.machine;
        machine.on_flush(Some(std::sync::Arc::new(claim)));
    };
    let removes: Act = |world| {
        let mut gather = Gather::new();
        remove(world, AT, &mut gather);
        gather.finish(&world.lab.vm);
    };
    let scan: Act = |world| {
        let (page, pfn) = page(world, 0);
        let _busy = page.try_hard_busy().expect("nobody else takes it");
        rmap::remove_all(&world.lab.vm, &world.file, 0, pfn);
        is_flushed();
    };
    vm_host::explore::explore(1, None, prepare, removes, scan, stop);
}

/// An insertion takes its page back, and the frame is used elsewhere. At no moment did the page belong to the object
/// while it was free.
#[test]
fn a_page_that_never_was_settled_is_not_held() {
    let prepare: Act = |world| {
        let pfn = world.lab.vm.alloc.alloc(&ksync::pin(), Rights::User);
        let pfn = pfn.expect("a frame");
        let page = world.lab.vm.pages.get(pfn);
        page.set_identity(world.file.identity(), 0);
        world.runs.lock().unwrap().push((pfn, 0));
    };
    fn fresh(world: &World) -> &'static Page {
        world.lab.vm.pages.get(world.runs.lock().unwrap()[0].0)
    }
    let holds: Act = |world| assert!(!world.file.holds(fresh(world), 0));
    let use_elsewhere: Act = |world| {
        let page = fresh(world);
        page.clear_identity();
        page.set_identity(world.file.identity(), 1);
        drop(HardBusy::of_fresh(page));
    };
    let give_back: Act = |world| {
        let busy = fresh(world).try_hard_busy().expect("nobody holds it");
        busy.into_free();
    };
    at_once(1, prepare, holds, use_elsewhere, give_back);
}

/// A write that copies, concurrent with a sweep: afterwards the original is unreachable, and one of the two has freed
/// or queued it.
#[test]
#[cfg(not(feature = "listed"))]
fn what_is_copied_beside_a_sweep_is_swept() {
    fn tend(world: &World) {
        world.lab.vm.tend();
    }
    let prepare: Act = |world| {
        world.anon();
        let both = || [AT, AT + PAGE].map(|va| world.fault_at(va, Access::Write));
        both();
        world.fork();
        // Makes the front layer, and asks in vain whether only this space can see the old layer: the next writes do not
        // ask.
        world.fault_at(AT + PAGE, Access::Write);
        let children = world.children.lock().unwrap().split_off(0);
        for child in children {
            child.clear(&world.lab.vm);
        }
    };
    let check: Act = |world| {
        tend(world);
        tend(world);
        world.lab.vm.epoch.drain();
        world.lab.vm.drain_limbo();
        let mut pages = 0;
        let anon = vm::page::State::Anon;
        let count = &mut |_, page: &Page| pages += usize::from(page.state() == anon);
        let alloc = &world.lab.vm.alloc;
        alloc.check_and_visit(count).expect("consistent lists");
        assert_eq!(pages, 2, "a page that nothing maps");
    };
    vm_host::explore::explore(1, None, prepare, tend, write, check);
}
