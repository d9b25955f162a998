//! What a space costs: the memory that its end frees, for the memory killer.

use std::sync::Arc;

use vm::space::MapArgs;
use vm::{Access, EntryFlags, MapProt, Vm};
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

    fn program(&self) -> Program {
        Program::new(&self.vm)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            check_frames(&self.vm, self.free);
        }
    }
}

fn fixed(pages: u64) -> MapArgs<'static> {
    MapArgs::anon(pages * PAGE, MapProt::all()).at(AT)
}

#[test]
fn a_map_of_many_entries_costs_what_its_entries_take() {
    let lab = Lab::new();
    let p = lab.program();
    assert_eq!(p.space.cost().tables, 0);
    p.space.map(&lab.vm, &fixed(4096)).unwrap();
    // Every other page is another process's, though none is ever accessed.
    for n in 0..2048 {
        let at = AT + n * 2 * PAGE;
        p.space.protect(&lab.vm, at, PAGE, MapProt::READ).unwrap();
    }
    let entries = p.space.usage(&lab.vm).entries;
    assert_eq!(entries, 4096);
    let cost = p.space.cost();
    assert_eq!((cost.own, cost.shared), (0, 0));
    assert!(cost.tables >= entries * 64 / PAGE, "{cost:?}");
    p.space.unmap(&lab.vm, AT, 4096 * PAGE).unwrap();
    assert_eq!(p.space.cost().tables, 0);
}

/// Shared memory keeps its pages where they are not mapped any more, and the end of its last mapping frees them all.
#[test]
fn shared_memory_costs_as_much_when_most_of_it_is_unmapped() {
    let lab = Lab::new();
    let p = lab.program();
    let args = MapArgs {
        flags: EntryFlags::SHARED,
        ..fixed(64)
    };
    p.space.map(&lab.vm, &args).unwrap();
    for n in 0..64 {
        let at = AT + n * PAGE;
        assert_eq!(p.space.fault(&lab.vm, at, Access::Write), Ok(()));
    }
    let all = |p: &Program| {
        let cost = p.space.cost();
        cost.own + cost.shared
    };
    assert_eq!(p.space.cost().own, 64);
    p.space.unmap(&lab.vm, AT + PAGE, 62 * PAGE).unwrap();
    assert_eq!(all(&p), 64, "two mappings of one object");
    p.space.unmap(&lab.vm, AT, PAGE).unwrap();
    assert_eq!(p.space.cost().own, 64);
    p.space.unmap(&lab.vm, AT + 63 * PAGE, PAGE).unwrap();
    assert_eq!(all(&p), 0);
}
