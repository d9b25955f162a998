//! What is `pv-stock`'s own: the pmap's lock, locks that many lists share, scans that try a pmap.
#![cfg(feature = "pv-stock")]

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use vm::object::ObjectRef;
use vm::pmap::Entered;
use vm::rmap::{Hold, ReverseMap, Visit};
use vm::space::{MapArgs, Space};
use vm::{MapProt, Pmap, Prot, Pte};
use vm_host::runs::{PAGES, Runs};
use vm_host::{Lab, listed};

/// As long as a thread needs to get as far as it can.
const A_WHILE: Duration = Duration::from_millis(30);

/// Plays a CPU of a machine in a thread of its own.
fn on_cpu<R>(vm: &vm::Vm<vm_host::Sim>, cpu: usize, act: impl FnOnce() -> R) -> R {
    ksync::host::set_cpu(cpu);
    vm.epoch.online(cpu);
    let done = act();
    vm.epoch.offline(cpu);
    done
}

/// Enters page 3 of the first run at page `n` of the second run's place, or another page.
fn enter(lab: &Runs, pmap: &Arc<Pmap>, n: usize, page: usize) {
    let (room, leaf) = (
        vm_host::ticket(&lab.vm, pmap),
        Pte::user(lab.frame(0, page), Prot::READ),
    );
    let pin = ksync::pin();
    let entered = pmap.enter(&lab.vm, &pin, &room, Runs::va(1, n), leaf, || true);
    assert_eq!(entered, Ok(Entered::New));
}

/// Page 3 is listed for page 1 of another pmap, and then for page 0 of the lab's own. A scan finds the latter locked, and
/// waits. Returns the visits, as pages, if `act` is done meanwhile.
fn visits(act: impl FnOnce(&Runs, &Arc<Pmap>)) -> Vec<usize> {
    let (lab, other) = (Runs::new(2, 1), Arc::new(Pmap::new()));
    enter(&lab, &lab.pmap, 0, 3);
    enter(&lab, &other, 1, 3);
    let file = ObjectRef::new_file(&lab.vm, None).unwrap();
    let (page, seen) = (lab.vm.pages.get(lab.frame(0, 3)), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        let operation = lab.vm.rmap.begin(&lab.pmap);
        scope.spawn(|| {
            on_cpu(&lab.vm, 1, || {
                let all = lab.vm.rmap.scan(&file, &[page], &mut |_, pmap, va| {
                    let n = (va - Runs::va(1, 0)) as usize / 4096;
                    assert_eq!(Arc::ptr_eq(pmap, &lab.pmap), n == 0);
                    seen.lock().unwrap().push(n);
                    Visit::Keep
                });
                assert!(all);
            });
        });
        thread::sleep(A_WHILE);
        assert_eq!(*seen.lock().unwrap(), [1], "the pmap is locked");
        assert!(
            !lab.vm.rmap.is_list_locked(lab.frame(0, 3)),
            "a list is held by a scan that waits"
        );
        act(&lab, &other);
        lab.vm.rmap.end(operation);
    });
    listed::check(&lab.vm, [&*lab.pmap, &*other].into_iter());
    other.release(&lab.vm);
    file.release(&lab.vm);
    lab.finish();
    seen.into_inner().unwrap()
}

#[test]
fn a_scan_that_waited_for_a_pmap_goes_on_if_its_list_is_the_same() {
    assert_eq!(visits(|_, _| ()), [1, 0]);
    // Under the same lock.
    assert_eq!(visits(|lab, other| enter(lab, other, 2, 4)), [1, 0]);
}

#[test]
fn a_scan_that_waited_for_a_pmap_begins_again_if_its_list_has_changed() {
    let grown = visits(|lab, other| enter(lab, other, 2, 3));
    assert_eq!(grown, [1, 2, 1, 0]);
    // The entry that it waited for.
    let shrunk = visits(|lab, _| {
        let (va, pfn) = (Runs::va(1, 0), lab.frame(0, 3));
        let found = lab.pmap.scan_remove(&lab.vm, &ksync::pin(), va, pfn);
        assert!(found.pte().is_some());
    });
    assert_eq!(shrunk, [1, 1]);
}

/// The visitor has the pmap and the list to itself.
#[test]
fn a_scan_holds_the_pmap_of_each_entry() {
    let (lab, other) = (Runs::new(1, 1), Arc::new(Pmap::new()));
    enter(&lab, &lab.pmap, 0, 3);
    enter(&lab, &other, 1, 3);
    let file = ObjectRef::new_file(&lab.vm, None).unwrap();
    let page = lab.vm.pages.get(lab.frame(0, 3));
    let mut seen = 0;
    lab.vm.rmap.scan(&file, &[page], &mut |_, pmap, _| {
        let ours = Arc::ptr_eq(pmap, &lab.pmap);
        let locked = [&lab.pmap, &other].map(|pmap| pmap.listed().is_locked());
        assert_eq!(locked, [ours, !ours]);
        assert!(lab.vm.rmap.hold(page).is_err());
        seen += 1;
        Visit::Keep
    });
    assert_eq!(seen, 2);
    other.release(&lab.vm);
    file.release(&lab.vm);
    lab.finish();
}

/// Faults and removals of one space wait for an operation on its pmap, and those of another space do not.
#[test]
fn operations_on_one_pmap_exclude_each_other() {
    const AT: u64 = 0x4000_0000;
    let lab = Lab::new(256, 4);
    let spaces = [(); 2].map(|()| Space::new(&lab.vm).unwrap());
    for space in &spaces {
        let args = MapArgs::anon(2 * 4096, MapProt::READ | MapProt::WRITE).at(AT);
        assert_eq!(space.map(&lab.vm, &args), Ok(AT));
        space.fault(&lab.vm, AT, vm::Access::Write).unwrap();
    }
    let [ours, other] = &spaces;
    let operation = lab.vm.rmap.begin(ours.pmap());
    let done = [(); 3].map(|()| AtomicBool::new(false));
    let faults = |space: &Space, cpu: usize| {
        on_cpu(&lab.vm, cpu, || {
            space.fault(&lab.vm, AT + 4096, vm::Access::Write).unwrap();
            done[cpu - 1].store(true, SeqCst);
        });
    };
    thread::scope(|scope| {
        scope.spawn(|| faults(other, 2));
        scope.spawn(|| faults(ours, 1));
        scope.spawn(|| {
            on_cpu(&lab.vm, 3, || {
                ours.unmap(&lab.vm, AT, 4096).unwrap();
                done[2].store(true, SeqCst);
            });
        });
        thread::sleep(A_WHILE);
        let seen = done.each_ref().map(|done| done.load(SeqCst));
        assert_eq!(seen, [false, true, false]);
        lab.vm.rmap.end(operation);
    });
    assert!(done.iter().all(|done| done.load(SeqCst)));
    listed::check(&lab.vm, spaces.iter().map(|space| &**space.pmap()));
    for space in &spaces {
        space.clear(&lab.vm);
    }
    drop(spaces);
    lab.finish();
}

/// All pages of an aligned run of frames share a lock, and the next run's do not.
#[test]
fn a_run_is_held_by_one_lock() {
    let lab = Runs::new(1, 2);
    lab.fill(0, Prot::WRITE);
    assert!(lab.promote(0));
    let rmap = &lab.vm.rmap;
    let page = |run, n| lab.vm.pages.get(lab.frame(run, n));
    let leave = |but| {
        rmap.leave_run(
            &lab.vm.pages,
            lab.frame(0, 0),
            &lab.pmap,
            Runs::va(0, 0),
            but,
        )
    };
    let held = rmap
        .hold(page(0, 300))
        .unwrap_or_else(|why| panic!("{why:?}"));
    assert!(leave(None).is_err());
    // A scan has it already, for whichever page.
    for n in [0, 299, 511] {
        leave(Some(lab.frame(0, n)))
            .unwrap_or_else(|why| panic!("{why:?}"))
            .undo();
    }
    assert!(leave(Some(lab.frame(1, 0))).is_err(), "not of this page");
    held.undo();
    let run = leave(None).unwrap_or_else(|why| panic!("{why:?}"));
    for n in [0, 255, 511] {
        assert!(rmap.hold(page(0, n)).is_err());
        let next = rmap.hold(page(1, n));
        next.unwrap_or_else(|why| panic!("{why:?}")).undo();
    }
    run.undo();
    assert!((0..PAGES).all(|n| !rmap.is_list_locked(lab.frame(0, n))));
    lab.finish();
}

/// The chunks of several pmaps in the domains' lists, from which they go in any order.
#[test]
fn all_chunks_are_in_one_list() {
    let lab = Runs::new(1, 2);
    let others = [(); 3].map(|()| Arc::new(Pmap::new()));
    lab.fill(0, Prot::READ);
    for (n, other) in others.iter().enumerate() {
        enter(&lab, other, n, n);
        lab.fill(1, Prot::READ);
        lab.remove(1, 0..PAGES);
    }
    let check = |left: &[usize]| {
        let others = left.iter().map(|&n| &*others[n]);
        listed::check(&lab.vm, others.chain([&*lab.pmap]));
    };
    assert_eq!(lab.vm.rmap.chunks(&lab.pmap), PAGES.div_ceil(168));
    check(&[0, 1, 2]);
    others[1].release(&lab.vm);
    check(&[0, 2]);
    others[2].release(&lab.vm);
    check(&[0]);
    others[0].release(&lab.vm);
    check(&[]);
    lab.finish();
}
