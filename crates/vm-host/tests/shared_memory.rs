//! Shared anonymous memory: an object of a fixed size, which keeps its pages even where they are unmapped.

use std::sync::Arc;

use vm::space::{Advice, MapArgs, RemapArgs, RemapTarget};
use vm::{EntryFlags, FaultError, MapProt, Vm};
use vm_host::Sim;
use vm_host::program::{Program, check_frames, used_frames};

const PAGE: u64 = 4096;
/// Frames of the machine; each costs an interpreter time.
const FRAMES: usize = if cfg!(miri) { 256 } else { 2048 };
const AT: u64 = 0x7000_0000;
const TO: u64 = 0x7100_0000;

/// Four pages of shared memory at [`AT`] with 20, 21, 22, 23 in them.
struct Lab {
    vm: Arc<Vm<Sim>>,
    free: usize,
}

impl Lab {
    fn new() -> Lab {
        let vm = Arc::new(Sim::new(FRAMES, 2, 1).into_vm());
        let free = vm.alloc.free_pages();
        Lab { vm, free }
    }

    fn program(&self) -> Program {
        let program = Program::new(&self.vm);
        let args = MapArgs {
            flags: EntryFlags::SHARED,
            ..MapArgs::anon(4 * PAGE, MapProt::all()).at(AT)
        };
        program.space.map(&self.vm, &args).unwrap();
        program.run(|p| (0..4).for_each(|n| p.write(AT + n * PAGE, 20 + n).unwrap()));
        program
    }

    fn remap(&self, p: &Program, old: u64, old_len: u64, new_len: u64, target: RemapTarget) -> u64 {
        let args = RemapArgs {
            old,
            old_len: old_len * PAGE,
            new_len: new_len * PAGE,
            target,
            keep_old: false,
        };
        p.space.remap(&self.vm, &args).unwrap()
    }

    fn used(&self) -> usize {
        used_frames(&self.vm, self.free)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            check_frames(&self.vm, self.free);
        }
    }
}

fn words(p: &Program, at: u64, pages: u64) -> Vec<Result<u64, FaultError>> {
    p.run(|p| (0..pages).map(|n| p.read(at + n * PAGE)).collect())
}

const ALL: [Result<u64, FaultError>; 4] = [Ok(20), Ok(21), Ok(22), Ok(23)];

#[test]
fn what_was_cut_off_is_there_when_the_mapping_grows_back() {
    let lab = Lab::new();
    let p = lab.program();
    lab.remap(&p, AT, 4, 2, RemapTarget::Stay);
    assert_eq!(words(&p, AT, 4)[2], Err(FaultError::NotMapped));
    lab.remap(&p, AT, 2, 4, RemapTarget::Stay);
    assert_eq!(words(&p, AT, 4), ALL);
}

#[test]
fn a_second_mapping_shows_what_the_first_one_has_unmapped() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.unmap(&lab.vm, AT + 2 * PAGE, 2 * PAGE).unwrap();
    let second = lab.remap(&p, AT, 0, 4, RemapTarget::MayMove);
    assert_eq!(words(&p, second, 4), ALL);
    p.space.unmap(&lab.vm, AT, 2 * PAGE).unwrap();
    p.space.unmap(&lab.vm, second, PAGE).unwrap();
    let third = lab.remap(&p, second + PAGE, 0, 3, RemapTarget::Fixed(TO));
    assert_eq!(words(&p, third, 3), ALL[1..]);
}

#[test]
fn a_moved_part_grows_into_what_was_unmapped_beside_it() {
    let lab = Lab::new();
    let p = lab.program();
    lab.remap(&p, AT, 1, 1, RemapTarget::Fixed(TO));
    p.space.unmap(&lab.vm, AT + PAGE, 3 * PAGE).unwrap();
    let moved = lab.remap(&p, TO, 1, 4, RemapTarget::MayMove);
    assert_eq!(words(&p, moved, 4), ALL);
}

#[test]
fn a_hole_in_the_middle_can_be_mapped_again() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.unmap(&lab.vm, AT + PAGE, PAGE).unwrap();
    lab.remap(&p, AT, 1, 2, RemapTarget::Stay);
    assert_eq!(words(&p, AT, 4), ALL);
}

#[test]
fn the_memory_ends_where_it_ended_when_it_was_made() {
    let lab = Lab::new();
    let p = lab.program();
    let grown = lab.remap(&p, AT, 4, 6, RemapTarget::MayMove);
    let end = [Err(FaultError::Bus); 2];
    assert_eq!(words(&p, grown, 6), [&ALL[..], &end].concat());
    let write = p.run(|p| p.write(grown + 4 * PAGE, 1));
    assert_eq!(write, Err(FaultError::Bus));
    let mut word = [0; 8];
    let read = p.space.read_at(&lab.vm, grown + 4 * PAGE, &mut word);
    assert_eq!(read, Err(FaultError::Bus));
}

#[test]
fn a_child_finds_what_its_parent_has_unmapped() {
    let lab = Lab::new();
    let p = lab.program();
    let child = p.fork().unwrap();
    p.space.unmap(&lab.vm, AT, 4 * PAGE).unwrap();
    lab.remap(&child, AT, 4, 1, RemapTarget::Stay);
    lab.remap(&child, AT, 1, 4, RemapTarget::Stay);
    assert_eq!(words(&child, AT, 4), ALL);
}

#[test]
fn holes_and_the_end_give_the_pages_back() {
    let lab = Lab::new();
    let p = lab.program();
    let before = lab.used();
    let remove = |at: u64, pages: u64| {
        p.space
            .advise(&lab.vm, at, pages * PAGE, Advice::Remove)
            .unwrap();
    };
    remove(AT + PAGE, 2);
    assert_eq!(lab.used(), before - 2);
    assert_eq!(words(&p, AT, 4), [Ok(20), Ok(0), Ok(0), Ok(23)]);
    let before = lab.used();
    p.space.unmap(&lab.vm, AT + 2 * PAGE, 2 * PAGE).unwrap();
    assert_eq!(lab.used(), before, "munmap freed pages of shared memory");
    p.space.unmap(&lab.vm, AT, 2 * PAGE).unwrap();
    drop(p);
    assert_eq!(lab.used(), 0);
}

#[test]
fn a_look_for_use_counts_and_clears_the_signs_of_each_mapping() {
    let lab = Lab::new();
    let p = lab.program();
    let child = p.fork().expect("memory");
    child.run(|child| assert_eq!(child.read(AT), Ok(20)));
    let entry = p.space.pmap().lookup(&lab.vm, &ksync::pin(), AT);
    let pfn = entry.expect("an entry").pfn();
    let page = lab.vm.pages.get(pfn);
    let _referenced = page.clear_flag(vm::page::Flags::REFERENCED);
    let busy = page.try_hard_busy().expect("idle");
    assert_eq!(lab.vm.look_for_use(pfn), None);
    drop(busy);
    assert_eq!(lab.vm.look_for_use(pfn), Some(2));
    assert_eq!(lab.vm.look_for_use(pfn), Some(0));
    assert_eq!(lab.vm.look_for_use(vm::Pfn(u32::MAX - 1)), None);
}

/// One look is stopped between the page's list and a table, with the list held; another one, of the same page, comes to its end
/// meanwhile, and has cleared what the first one has not come to.
#[test]
#[cfg(feature = "pv-obm")]
fn two_looks_for_use_share_the_list_of_a_page() {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    let lab = Lab::new();
    let p = lab.program();
    let entry = p.space.pmap().lookup(&lab.vm, &ksync::pin(), AT);
    let pfn = entry.expect("an entry").pfn();
    let _referenced = lab
        .vm
        .pages
        .get(pfn)
        .clear_flag(vm::page::Flags::REFERENCED);
    let [second, shared] = [(); 2].map(|()| AtomicBool::new(false));
    let one = || {
        ksync::host::set_cpu(1);
        lab.vm.epoch.online(1);
        assert_eq!(lab.vm.look_for_use(pfn), Some(0));
        shared.store(second.load(SeqCst), SeqCst);
        lab.vm.epoch.offline(1);
    };
    let other = || {
        assert_eq!(lab.vm.look_for_use(pfn), Some(1));
        second.store(true, SeqCst);
    };
    let patience = std::time::Duration::from_secs(2);
    let reached = vm_host::runs::stopped(&lab.vm.machine, (1, None), patience, one, other);
    assert!(reached && shared.into_inner(), "the second one waited");
}
