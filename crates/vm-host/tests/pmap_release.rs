//! The release of a pmap, concurrent with an operation that removes tables from it.
//!
//! A process exits while another thread drops the tables of its space, or scans a page that it maps: each table must be
//! freed once, by one of them, and the counts must be exact when the release returns.

use std::sync::{Arc, Barrier};

use vm::page::{HardBusy, PAGE_SIZE};
use vm::{Pfn, Pmap, Prot, Pte, Rights, Vm};
use vm_host::Sim;
use vm_host::ticket;

const PAGE: u64 = PAGE_SIZE as u64;
const ROUNDS: usize = 4000;
/// The address of the one page mapped.
const PLACE: u64 = 5 * PAGE;

fn user_page(vm: &Vm<Sim>) -> Pfn {
    let pfn = vm.alloc.alloc(&ksync::pin(), Rights::User).unwrap();
    vm::page::zero_frame(&vm.machine, pfn);
    let page = vm.pages.get(pfn);
    page.set_identity(0x1000, 0);
    drop(HardBusy::of_fresh(page));
    pfn
}

/// A pmap that maps the page at [`PLACE`].
fn pmap_with(vm: &Vm<Sim>, pfn: Pfn) -> Arc<Pmap> {
    let pmap = Arc::new(Pmap::new());
    let leaf = Pte::user(
        pfn,
        Prot {
            write: false,
            exec: false,
        },
    );
    pmap.enter_resident(
        vm,
        &ksync::pin(),
        &ticket(vm, &pmap),
        PLACE,
        leaf,
        || true,
        || true,
    )
    .unwrap();
    pmap
}

/// Runs `other` concurrently with a release, many times; every frame must be freed.
fn against_release(other: impl Fn(&Vm<Sim>, &Arc<Pmap>, Pfn) + Sync) {
    let vm = Sim::new(1024, 2, 1).into_vm();
    let pfn = user_page(&vm);
    let free = vm.alloc.free_pages();
    for round in 0..ROUNDS {
        let pmap = pmap_with(&vm, pfn);
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            let (vm, pmap, start, other) = (&vm, &pmap, &start, &other);
            scope.spawn(move || {
                ksync::host::set_cpu(1);
                vm.epoch.online(1);
                start.wait();
                other(vm, pmap, pfn);
                vm.epoch.offline(1);
            });
            ksync::host::set_cpu(0);
            start.wait();
            // Varies which of the two comes first.
            for _ in 0..round % 64 {
                std::hint::spin_loop();
            }
            pmap.release(vm);
        });
        // Not earlier: if the other was first, it has removed the root and is about to count it.
        assert_eq!(pmap.tables(), 0);
        vm.drain_limbo();
        assert_eq!(vm.alloc.free_pages(), free, "round {round}");
        vm.alloc.check().unwrap();
    }
}

#[test]
fn tables_dropped_during_a_release_are_freed_once() {
    against_release(|vm, pmap, _| pmap.drop_tables(vm, |_, _| ()));
}

#[test]
fn tables_emptied_by_a_scan_during_a_release_are_freed_once() {
    against_release(|vm, pmap, pfn| {
        let _ = pmap.scan_remove(vm, &ksync::pin(), PLACE, pfn);
    });
}
