//! Leaves of 2 MiB with the orderings that hardware may choose. Their frames are a device's, which need no run of pages.
//!
//! As `loom.rs`. `RUSTFLAGS="--cfg loom" cargo test -p vm-host --release --test loom_superpages`
#![cfg(loom)]

use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vm::pmap::Revoke;
use vm::space::Source;
use vm::{Access, Gather, Pfn, Prot, Pte};
use vm_host::explore::{AT, Act, ELSEWHERE, PAGE, at_once};
use vm_host::ticket;

/// A fault divides a leaf to make a page writable; an mprotect that finds the leaf, from which it has nothing to take, locks
/// nothing. Either the fault's check sees what the mprotect has changed in the map, or the mprotect finds the table.
#[test]
fn a_fault_that_divides_a_leaf_beside_a_protection_that_finds_the_leaf() {
    const SPAN: u64 = 512 * PAGE;
    loom::lazy_static! { static ref CHANGED: AtomicBool = AtomicBool::new(false); }
    /// Frames of a device, whose pages nobody reads.
    fn leaf(prot: Prot) -> Pte {
        Pte::unmanaged(Pfn(512), prot)
    }
    let prepare: Act = |world| {
        world.map_at(ELSEWHERE, false, Source::Anon);
        world.fault_at(ELSEWHERE, Access::Read);
        let (pmap, vm) = (world.space.pmap(), &world.lab.vm);
        let large = leaf(Prot::READ).with(Pte::PS);
        assert!(pmap.enter_large(vm, &ksync::pin(), AT, large, || true));
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
        let mut gather = Gather::new();
        let (pmap, vm) = (world.space.pmap(), &world.lab.vm);
        pmap.remove_range(vm, AT, AT + SPAN, &mut gather);
        gather.finish(vm);
    };
    at_once(1, prepare, fault, protect, check);
}
