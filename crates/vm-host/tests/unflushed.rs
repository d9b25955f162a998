//! A page leaves its file, or is to be written out, while an operation that has taken its entries out is still on its way to
//! its flush.

use std::sync::Arc;

use vm::object::ObjectRef;
use vm::space::{Advice, MapArgs, Source, Space};
use vm::{EntryFlags, Gather, MapProt, rmap};
use vm_host::{Access, Lab};

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;

/// A space that has a file's page mapped, writable, which CPU 1 has written to.
struct World {
    lab: Lab,
    space: Arc<Space>,
    file: ObjectRef,
}

fn world() -> World {
    let lab = Lab::new(256, 2);
    let (space, file) = (
        Space::new(&lab.vm).expect("memory"),
        ObjectRef::new_file(&lab.vm, None).expect("memory"),
    );
    assert_eq!(file.allocate(&lab.vm, 0, PAGE, true), Ok(()));
    let args = MapArgs {
        source: Source::Object(&file, 0),
        flags: EntryFlags::SHARED,
        ..MapArgs::anon(PAGE, MapProt::READ | MapProt::WRITE)
    };
    assert_eq!(space.map(&lab.vm, &args.at(AT)), Ok(AT));
    lab.play_all();
    ksync::host::set_cpu(1);
    lab.run(&space);
    ksync::host::set_cpu(0);
    let written = lab.touch(&space, 1, AT, Access::Write, |_| ());
    assert_eq!(written, Ok(()));
    World { lab, space, file }
}

/// Whether CPU 1 can write to the page after `act`, beside a removal that has not flushed.
fn writes_after(act: impl FnOnce(&World)) -> bool {
    let world = world();
    let (vm, mut removal) = (&world.lab.vm, Gather::new());
    let pmap = world.space.pmap();
    pmap.remove_range(vm, AT, AT + PAGE, &mut removal);
    assert_eq!(vm.machine.write(1, AT, 8), Ok(()), "not flushed yet");
    act(&world);
    let written = vm.machine.write(1, AT, 9);
    removal.finish(vm);
    let World { lab, space, file } = world;
    ksync::host::set_cpu(1);
    lab.stop(&space);
    ksync::host::set_cpu(0);
    space.clear(&lab.vm);
    file.release(&lab.vm);
    lab.finish();
    written.is_ok()
}

#[test]
fn nobody_writes_to_a_page_that_a_hole_has_freed() {
    assert!(!writes_after(|world| {
        world.file.punch(&world.lab.vm, 0, PAGE)
    }));
}

#[test]
fn nobody_writes_to_a_page_that_a_truncation_has_freed() {
    assert!(!writes_after(|world| {
        world.file.truncate(&world.lab.vm, 0)
    }));
}

#[test]
fn nobody_writes_to_a_page_that_was_protected() {
    assert!(!writes_after(|world| {
        let pfn = world.file.lookup(&ksync::pin(), 0).expect("a page");
        let busy = world.lab.vm.pages.get(pfn).try_hard_busy();
        rmap::write_protect_all(&world.lab.vm, &world.file, 0, pfn);
        drop(busy);
    }));
}

/// Shared memory that is no file: a hole in it, made by the parent, while the child's removal has not flushed. It is announced over all
/// addresses, and its index 0 is mapped at [`AT`].
#[test]
fn nobody_writes_to_shared_memory_that_a_hole_has_freed() {
    let lab = Lab::new(256, 2);
    let parent = Space::new(&lab.vm).expect("memory");
    let args = MapArgs {
        flags: EntryFlags::SHARED,
        ..MapArgs::anon(2 * PAGE, MapProt::READ | MapProt::WRITE)
    };
    assert_eq!(parent.map(&lab.vm, &args.at(AT)), Ok(AT));
    let child = parent.fork(&lab.vm).expect("memory");
    lab.play_all();
    let on_cpu_1 = |act: &dyn Fn()| {
        ksync::host::set_cpu(1);
        act();
        ksync::host::set_cpu(0);
    };
    on_cpu_1(&|| lab.run(&child));
    for at in [AT, AT + PAGE] {
        let written = lab.touch(&child, 1, at, Access::Write, |_| ());
        assert_eq!(written, Ok(()));
    }
    let (vm, mut removal) = (&lab.vm, Gather::new());
    child
        .pmap()
        .remove_range(vm, AT, AT + 2 * PAGE, &mut removal);
    assert_eq!(vm.machine.write(1, AT, 8), Ok(()), "not flushed yet");
    assert_eq!(parent.advise(vm, AT, 2 * PAGE, Advice::Remove), Ok(()));
    let written = [AT, AT + PAGE].map(|at| vm.machine.write(1, at, 9).is_ok());
    removal.finish(vm);
    assert_eq!(written, [false; 2]);
    on_cpu_1(&|| lab.stop(&child));
    child.clear(vm);
    parent.clear(vm);
    lab.finish();
}
