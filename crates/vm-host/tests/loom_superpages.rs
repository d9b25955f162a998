//! Leaves of 2 MiB with the orderings that hardware may choose. Their frames are a device's, which need no run of pages.
//!
//! As `loom.rs`. `RUSTFLAGS="--cfg loom" cargo test -p vm-host --release --test loom_superpages`
#![cfg(loom)]

use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vm::pmap::Revoke;
use vm::space::Source;
use vm::{Access, Gather, Pfn, Prot, Pte};
use vm_host::explore::{AT, Act, ELSEWHERE, PAGE, World, at_once};
use vm_host::ticket;

const SPAN: u64 = 512 * PAGE;

/// Frames of a device, whose pages nobody reads.
fn leaf(prot: Prot) -> Pte {
    Pte::unmanaged(Pfn(512), prot)
}

/// Fills a leaf, where `check` holds.
fn fill(world: &World, prot: Prot, check: impl FnOnce() -> bool) {
    let (pmap, vm) = (world.space.pmap(), &world.lab.vm);
    let large = leaf(prot).with(Pte::PS);
    assert!(pmap.enter_large(vm, &ksync::pin(), AT, large, check));
}

/// So that there is a root.
fn elsewhere(world: &World) {
    world.map_at(ELSEWHERE, false, Source::Anon);
    world.fault_at(ELSEWHERE, Access::Read);
}

fn remove(world: &World) {
    let mut gather = Gather::new();
    let (pmap, vm) = (world.space.pmap(), &world.lab.vm);
    pmap.remove_range(vm, AT, AT + SPAN, &mut gather);
    gather.finish(vm);
}

/// A fault divides a leaf to make a page writable; an mprotect that finds the leaf, from which it has nothing to take, locks
/// nothing. Either the fault's check sees what the mprotect has changed in the map, or the mprotect finds the table.
#[test]
fn a_fault_that_divides_a_leaf_beside_a_protection_that_finds_the_leaf() {
    loom::lazy_static! { static ref CHANGED: AtomicBool = AtomicBool::new(false); }
    let prepare: Act = |world| {
        elsewhere(world);
        fill(world, Prot::READ, || true);
    };
    let fault: Act = |world| {
        let (pmap, vm) = (world.space.pmap(), &world.lab.vm);
        let room = ticket(vm, pmap);
        let check = || !CHANGED.load(Relaxed);
        let _either = pmap.enter(vm, &ksync::pin(), &room, AT, leaf(Prot::WRITE), check);
    };
    let protect: Act = |world| {
        CHANGED.store(true, Relaxed);
        let revoke = Revoke {
            write: true,
            exec: false,
        };
        let mut gather = Gather::new();
        let (pmap, vm) = (world.space.pmap(), &world.lab.vm);
        pmap.protect_range(vm, AT, AT + SPAN, revoke, &mut gather);
        gather.finish(vm);
    };
    let check: Act = |world| {
        let entry = world.entry(&world.space).expect("nobody removes it");
        assert!(!entry.is_writable(), "writable after the protection");
        remove(world);
    };
    at_once(1, prepare, fault, protect, check);
}

/// A CPU that finds a leaf may read its frames at once. The word represents their bytes, which are written as late as can be.
#[test]
fn a_walk_to_a_leaf_finds_what_was_written_before_it_was_filled() {
    loom::lazy_static! { static ref BYTES: AtomicBool = AtomicBool::new(false); }
    let filled: Act = |world| {
        fill(world, Prot::WRITE, || {
            BYTES.store(true, Relaxed);
            true
        });
    };
    let look: Act = |world| {
        if world.entry(&world.space).is_some() {
            assert!(BYTES.load(Relaxed), "the frames' earlier bytes");
        }
    };
    at_once(1, elsewhere, filled, look, remove);
}
