//! Where the VM asks for memory that it does not expect to be refused, the thread can wait for it: preemption is on. What is asked for
//! with preemption off comes out of the kernel's last pages, which are few, and any number of threads may ask at once.
#![cfg(all(not(any(loom, shuttle, feature = "naive-rmap")), feature = "threads"))]

use vm::space::{Advice, RemapTarget};
use vm::{EntryFlags, MapProt};
use vm_host::heap::{Heap, asked_under_locks, learn};
use vm_host::program::Alone;

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;
const SHARED: u64 = 0x5000_0000;
const FILE: u64 = 0x6000_0000;
const TO: u64 = 0x7000_0000;
/// Mappings of private memory, of four pages each: so few that the map's tree stays one node. A node that is divided asks for memory with
/// preemption off.
const MAPPINGS: u64 = 4;

#[global_allocator]
static HEAP: Heap = Heap;

/// The number of blocks that `act` asks for with preemption off.
fn pinned(act: impl FnOnce()) -> usize {
    asked_under_locks();
    learn(act);
    asked_under_locks()
}

/// Runs `act` as a program with private mappings that have pages, shared memory and a file.
fn run<R>(act: impl FnOnce(&Alone) -> R) -> R {
    let program = Alone::new(4096);
    for n in 0..MAPPINGS {
        let at = AT + 8 * n * PAGE;
        program.anon(at, 4 * PAGE, EntryFlags::empty());
        program.store(at, n);
    }
    program.anon(SHARED, 4 * PAGE, EntryFlags::SHARED);
    program.store(SHARED, 7);
    let file = program.file(FILE, 4 * PAGE);
    // One block for 61 retired objects is asked for with preemption off: let this be the first.
    drop(program.fork().expect("memory"));
    program.store(SHARED, 8);
    let space = &program.space;
    let last = AT + 8 * (MAPPINGS - 1) * PAGE;
    space.unmap(&program.lab.vm, last, PAGE).expect("mapped");
    let result = act(&program);
    program.finish(Some(file));
    result
}

#[test]
fn a_fork_can_wait_for_all_of_its_memory() {
    let asked = run(|program| pinned(|| drop(program.fork().expect("memory"))));
    assert_eq!(asked, 0);
}

#[test]
fn a_first_write_can_wait_for_the_object() {
    let asked = run(|program| {
        program.anon(TO, 4 * PAGE, EntryFlags::empty());
        pinned(|| program.store(TO, 1))
    });
    assert_eq!(asked, 0);
}

#[test]
fn a_write_after_a_fork_can_wait_for_the_new_front() {
    let asked = run(|program| {
        let _child = program.fork().expect("memory");
        pinned(|| program.store(AT, 1))
    });
    assert_eq!(asked, 0);
}

#[test]
fn a_division_of_a_mapping_can_wait_for_its_parts() {
    let asked = run(|program| {
        let (space, vm) = (&program.space, &program.lab.vm);
        let protect = || space.protect(vm, AT + PAGE, PAGE, MapProt::READ);
        let advise = || space.advise(vm, AT + 9 * PAGE, PAGE, Advice::DontFork);
        let unmap = || space.unmap(vm, AT + 17 * PAGE, PAGE);
        [
            pinned(|| protect().expect("mapped")),
            pinned(|| advise().expect("mapped")),
            pinned(|| unmap().expect("mapped")),
        ]
    });
    assert_eq!(asked, [0; 3]);
}

#[test]
fn a_move_can_wait_for_the_new_place() {
    let asked = run(|program| {
        [AT, SHARED, FILE].map(|old| {
            let to = TO + old;
            let target = RemapTarget::Fixed(to);
            let moved = || program.remap((old, 4 * PAGE), 4 * PAGE, target, false);
            pinned(|| assert_eq!(moved(), Ok(to)))
        })
    });
    assert_eq!(asked, [0; 3]);
}

#[test]
fn a_long_chain_is_copied_where_its_copier_can_wait() {
    let asked = run(|program| {
        let mut children = Vec::new();
        for n in 0..6 {
            children.push(program.fork().expect("memory"));
            program.store(AT + n % 4 * PAGE, n);
        }
        pinned(|| {
            children.push(program.fork().expect("memory"));
            program.store(AT, 9);
        })
    });
    assert_eq!(asked, 0);
}
