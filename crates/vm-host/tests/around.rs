//! Pages that a fault, or a move, maps without being asked for each: which ones, with which rights, and what takes them away.

use std::sync::Arc;

use vm::space::{Chaos, MapArgs, MapFlags};
use vm::{EntryFlags, MapProt, Pfn, Vm};
use vm_host::Sim;
use vm_host::program::{Program, check_frames};

const PAGE: u64 = 4096;
const AT: u64 = 0x7000_0000;

struct Lab {
    vm: Arc<Vm<Sim>>,
    free: usize,
}

impl Lab {
    fn new() -> Lab {
        let vm = Arc::new(Sim::new(2048, 2, 1).into_vm());
        let free = vm.alloc.free_pages();
        Lab { vm, free }
    }

    /// A program that has `pages` pages of anonymous memory, each holding its own number.
    fn program(&self, pages: u64, flags: EntryFlags) -> Program {
        let p = Program::new(&self.vm);
        let args = MapArgs {
            addr: AT,
            flags,
            place: MapFlags {
                fixed: true,
                ..MapFlags::default()
            },
            ..MapArgs::anon(pages * PAGE, MapProt::ALL)
        };
        p.space.map(&self.vm, &args).unwrap();
        p.run(|p| (0..pages).for_each(|n| p.write(AT + n * PAGE, n).unwrap()));
        p
    }

    /// Faults on pages that were there, and pages that came along.
    fn resident(&self) -> (u64, u64) {
        let counts = self.vm.counts();
        (counts.resident, counts.around)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            check_frames(&self.vm, self.free);
        }
    }
}

fn reads_all(p: &Program, pages: u64, plus: u64) {
    (0..pages).for_each(|n| assert_eq!(p.read(AT + n * PAGE), Ok(n + plus)));
}

#[test]
fn neighbours_in_shared_memory_come_along_writable() {
    let lab = Lab::new();
    let p = lab.program(40, EntryFlags::SHARED);
    let child = p.fork().unwrap();
    child.run(|c| {
        reads_all(c, 40, 0);
        assert_eq!(lab.resident(), (3, 37));
        // Two windows were left, and a third that the mapping's end cuts short.
        (0..40).for_each(|n| c.write(AT + n * PAGE, n + 100).unwrap());
        let counts = lab.vm.counts();
        assert_eq!((counts.resident, counts.upgraded), (3, 0));
    });
    p.run(|p| reads_all(p, 40, 100));
}

#[test]
fn the_limit_holds_for_shared_memory() {
    let lab = Lab::new();
    let p = lab.program(40, EntryFlags::SHARED);
    for (bytes, faults) in [(PAGE, 40), (4 * PAGE, 10)] {
        lab.vm.set_fault_around(bytes);
        let before = lab.resident();
        p.fork().unwrap().run(|c| reads_all(c, 40, 0));
        let now = lab.resident();
        assert_eq!((now.0 - before.0, now.1 - before.1), (faults, 40 - faults));
    }
}

#[test]
fn a_protection_holds_for_what_comes_along() {
    let lab = Lab::new();
    let p = lab.program(16, EntryFlags::SHARED);
    let child = p.fork().unwrap();
    let protect = |prot| child.space.protect(&lab.vm, AT, 16 * PAGE, prot).unwrap();
    protect(MapProt::READ);
    child.run(|c| {
        reads_all(c, 16, 0);
        let at = AT + 3 * PAGE;
        assert_eq!(c.write(at, 7), Err(vm::FaultError::Denied));
        protect(MapProt::ALL);
        assert_eq!(c.write(at, 3), Ok(()));
    });
}

#[test]
fn what_forks_have_in_common_comes_alone() {
    let lab = Lab::new();
    let p = lab.program(16, EntryFlags::EMPTY);
    let child = p.fork().unwrap();
    child.run(|c| {
        reads_all(c, 16, 0);
        assert_eq!(lab.resident(), (16, 0));
        (0..16).for_each(|n| c.write(AT + n * PAGE, n + 50).unwrap());
    });
    p.run(|p| reads_all(p, 16, 0));
}

#[test]
fn a_scan_finds_what_came_along() {
    let lab = Lab::new();
    let p = lab.program(16, EntryFlags::SHARED);
    let child = p.fork().unwrap();
    child.run(|c| reads_all(c, 16, 0));
    assert_eq!(lab.resident(), (1, 15));
    let removed = |frame| match lab.vm.chaos_scan(Pfn(frame)) {
        Chaos::Removed(entries) => entries,
        Chaos::Skipped | Chaos::NoObject => 0,
    };
    let all: usize = (0..4096).map(removed).sum();
    assert_eq!(all, 32, "two programs map each of 16 pages");
    child.run(|c| reads_all(c, 16, 0));
    p.run(|p| reads_all(p, 16, 0));
}
