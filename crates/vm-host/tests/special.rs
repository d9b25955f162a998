//! The special object, which mappings show without a layer: `vm/src/space/special.rs`.
#![cfg(not(any(loom, shuttle)))]

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use vm::object::ObjectRef;
use vm::space::{Advice, MapArgs, RemapArgs, RemapTarget, Source};
use vm::{Access, EntryFlags, FaultError, MapProt, NoMemory, Vm, VmError};
use vm_host::Sim;
use vm_host::program::{Program, check_frames};

const PAGE: u64 = 4096;
/// Frames of the machine; each costs an interpreter time.
const FRAMES: usize = if cfg!(miri) { 256 } else { 2048 };
const AT: u64 = 0x7000_0000;
const PAGES: u64 = 3;
const LEN: u64 = PAGES * PAGE;
const CPUS: usize = 4;

struct Lab {
    vm: Arc<Vm<Sim>>,
    free: usize,
}

/// Stores a word in a file, as write(2) does.
fn put(vm: &Vm<Sim>, file: &ObjectRef, at: u64, word: u64) {
    let copy = &mut |bytes: &mut [u8]| {
        bytes.copy_from_slice(&word.to_ne_bytes());
        bytes.len()
    };
    assert_eq!(file.write(vm, at, 8, copy).ok(), Some(8));
}

impl Lab {
    /// The words of page `n` of the special object begin with `100 + n`.
    fn new() -> Lab {
        let vm = Arc::new(Sim::new(FRAMES, CPUS, 1).into_vm());
        let object = ObjectRef::new_file(&vm, None).unwrap();
        for page in 0..PAGES {
            put(&vm, &object, page * PAGE, 100 + page);
        }
        object.truncate(&vm, LEN);
        assert!(vm.set_special(object).is_ok());
        let second = ObjectRef::new_file(&vm, None).unwrap();
        let second = vm.set_special(second).expect_err("there is one");
        second.release(&vm);
        let free = vm.alloc.free_pages();
        Lab { vm, free }
    }

    fn program(&self) -> Program {
        let program = Program::new(&self.vm);
        let args = MapArgs {
            source: Source::Special,
            ..MapArgs::anon(LEN, MapProt::READ | MapProt::EXEC).at(AT)
        };
        assert_eq!(program.space.map(&self.vm, &args), Ok(AT));
        program
    }

    /// What a CPU does now and then.
    fn tick(&self) {
        self.vm.epoch.quiescent(&mut ksync::pin());
        self.vm.epoch.reclaim(&ksync::pin());
        self.vm.poll_limbo(&ksync::pin());
    }

    /// Repeats `act` until there is memory: a CPU that its host does not run delays the return of what others have freed.
    fn patiently<R, E: PartialEq + Debug>(&self, mut act: impl FnMut() -> Result<R, E>) -> R
    where
        NoMemory: Into<E>,
    {
        loop {
            match act() {
                Ok(done) => return done,
                Err(why) => assert_eq!(why, NoMemory.into()),
            }
            self.tick();
            std::thread::yield_now();
        }
    }

    /// Waits for the other CPUs to leave, too. A CPU that went before would keep, or delay, the memory that others wait for.
    fn leave(&self, left: &AtomicUsize) {
        left.fetch_add(1, Relaxed);
        while left.load(Relaxed) < CPUS {
            self.tick();
            std::thread::yield_now();
        }
    }

    fn protect(&self, program: &Program, prot: MapProt) {
        assert_eq!(program.space.protect(&self.vm, AT, LEN, prot), Ok(()));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            check_frames(&self.vm, self.free);
        }
        let vm = Arc::get_mut(&mut self.vm);
        vm.expect("all programs have ended").end_special();
    }
}

/// The number of layers of the only mapping.
fn layers(program: &Program) -> usize {
    let mut all = Vec::new();
    program.space.for_each_entry(0, &mut |entry| {
        all.push((entry.args.flags, entry.depth));
        true
    });
    let [(flags, layers)] = all[..] else {
        panic!("{all:?} are mapped");
    };
    assert!(flags.contains(EntryFlags::SPECIAL));
    layers
}

#[test]
fn readers_see_the_object_and_have_no_layer() {
    let lab = Lab::new();
    let special = lab.vm.special().unwrap();
    let a = lab.program();
    let child = a.fork().unwrap();
    for p in [&a, &child, &lab.program()] {
        p.run(|p| {
            assert_eq!(p.read(AT + PAGE), Ok(101));
            let faults = lab.vm.counts().resident;
            assert_eq!(p.read(AT), Ok(100));
            assert_eq!(p.read(AT + 2 * PAGE), Ok(102));
            assert_eq!(lab.vm.counts().resident, faults, "one fault enters all");
            put(&lab.vm, special, PAGE + 8, 5);
            assert_eq!(p.read(AT + PAGE + 8), Ok(5), "a store is seen at once");
            assert_eq!(p.write(AT, 1), Err(FaultError::Denied));
            put(&lab.vm, special, PAGE + 8, 0);
        });
        assert_eq!(layers(p), 0);
    }
    assert!(!special.has_writers());
}

#[test]
fn a_private_write_is_private() {
    let lab = Lab::new();
    let special = lab.vm.special().unwrap();
    let (a, b) = (lab.program(), lab.program());
    for p in [&a, &b] {
        p.run(|p| assert_eq!(p.read(AT), Ok(100)));
    }
    lab.protect(&a, MapProt::all());
    a.run(|p| {
        assert_eq!(p.read(AT), Ok(100));
        p.write(AT + 8, 7).unwrap();
        assert_eq!(p.read(AT), Ok(100), "the copy has the rest of the page");
        assert_eq!(p.read(AT + 8), Ok(7));
    });
    assert_eq!(layers(&a), 2);
    let child = a.fork().unwrap();
    put(&lab.vm, special, 16, 8);
    put(&lab.vm, special, PAGE + 16, 9);
    for p in [&a, &child] {
        p.run(|p| {
            assert_eq!(p.read(AT + 8), Ok(7));
            assert_eq!(p.read(AT + 16), Ok(0));
            assert_eq!(p.read(AT + PAGE + 16), Ok(9), "the other pages are shown");
        });
    }
    child.run(|p| p.write(AT + 8, 6).unwrap());
    a.run(|p| assert_eq!(p.read(AT + 8), Ok(7)));
    b.run(|p| {
        assert_eq!(p.read(AT + 8), Ok(0));
        assert_eq!(p.read(AT + 16), Ok(8));
    });
    assert_eq!(layers(&b), 0);
}

#[test]
fn it_is_mapped_whole() {
    let lab = Lab::new();
    let program = lab.program();
    let (vm, space) = (&lab.vm, &program.space);
    let (invalid, part) = (Err(VmError::Invalid), AT + PAGE);
    let check = || program.run(|p| assert_eq!(p.read(AT + 2 * PAGE), Ok(102)));
    for (from, len) in [(AT, PAGE), (part, PAGE), (part, LEN), (AT - PAGE, LEN)] {
        assert_eq!(space.unmap(vm, from, len), invalid);
        let plain = MapArgs::anon(len, MapProt::all()).at(from);
        assert_eq!(space.map(vm, &plain), Err(VmError::NoMemory));
        check();
    }
    assert_eq!(space.protect(vm, part, PAGE, MapProt::READ), invalid);
    assert_eq!(space.advise(vm, AT, PAGE, Advice::DontFork), invalid);
    // Neighbours with the same rights are not merged with it.
    for source in [Source::Anon, Source::Special] {
        let beside = MapArgs {
            source,
            ..MapArgs::anon(LEN, MapProt::READ | MapProt::EXEC).at(AT + LEN)
        };
        space.map(vm, &beside).unwrap();
        let first = if let Source::Anon = source { 0 } else { 100 };
        program.run(|p| assert_eq!(p.read(AT + LEN), Ok(first)));
        check();
        space.unmap(vm, AT + LEN, LEN).unwrap();
    }
}

#[test]
fn it_moves_whole() {
    let lab = Lab::new();
    let program = lab.program();
    let (vm, space) = (&lab.vm, &program.space);
    let shrink = RemapArgs {
        old: AT,
        old_len: LEN,
        new_len: PAGE,
        target: RemapTarget::MayMove,
        keep_old: false,
    };
    let fixed = RemapTarget::Fixed(AT + 16 * PAGE);
    let grow = RemapArgs {
        new_len: LEN + PAGE,
        ..shrink
    };
    let keep = RemapArgs {
        new_len: LEN,
        target: fixed,
        keep_old: true,
        ..shrink
    };
    let some = RemapArgs {
        old_len: PAGE,
        target: fixed,
        ..shrink
    };
    assert_eq!(space.remap(vm, &shrink), Err(VmError::Invalid));
    assert_eq!(space.remap(vm, &grow), Err(VmError::NotMapped));
    assert_eq!(space.remap(vm, &keep), Err(VmError::Invalid));
    assert_eq!(space.remap(vm, &some), Err(VmError::Invalid));
    program.run(|p| assert_eq!(p.read(AT + 2 * PAGE), Ok(102)));
    let moved = RemapArgs {
        new_len: LEN,
        target: fixed,
        ..shrink
    };
    assert_eq!(space.remap(vm, &moved), Ok(AT + 16 * PAGE));
    program.run(|p| {
        assert_eq!(p.read(AT), Err(FaultError::NotMapped));
        assert_eq!(p.read(AT + 18 * PAGE), Ok(102));
    });
    space.unmap(vm, AT + 16 * PAGE, LEN).unwrap();
    program.run(|p| assert_eq!(p.read(AT + 16 * PAGE), Err(FaultError::NotMapped)));
}

#[test]
fn others_read_and_write_it() {
    let lab = Lab::new();
    let program = lab.program();
    let (vm, space) = (&lab.vm, &program.space);
    let mut word = [0; 8];
    assert_eq!(space.read_at(vm, AT + PAGE, &mut word), Ok(8));
    assert_eq!(u64::from_ne_bytes(word), 101);
    let mut resident = Vec::new();
    space.resident(vm, AT, LEN, &mut resident).unwrap();
    assert_eq!(resident, [1, 1, 1]);
    space.populate(vm, AT, LEN, Access::Read).unwrap();
    assert_eq!(layers(&program), 0);
    assert_eq!(space.write_at(vm, AT, &word), Err(FaultError::Denied));
    lab.protect(&program, MapProt::all());
    assert_eq!(space.write_at(vm, AT, &word), Ok(8));
    program.run(|p| {
        assert_eq!(p.read(AT), Ok(101));
        // Tables that are dropped are made again, with the copy.
        p.space.pmap().drop_tables(vm, |_, _| {});
        assert_eq!(p.read(AT), Ok(101));
        assert_eq!(p.read(AT + PAGE), Ok(101));
    });
    space.advise(vm, AT, LEN, Advice::DontNeed).unwrap();
    program.run(|p| assert_eq!(p.read(AT), Ok(100), "the copy is discarded"));
}

/// As on Linux: what changes nothing, and mlock, may name a part; and it is never locked.
#[test]
fn what_changes_nothing_may_name_a_part() {
    let lab = Lab::new();
    let program = lab.program();
    let (vm, space) = (&lab.vm, &program.space);
    let below = MapArgs::anon(PAGE, MapProt::READ).at(AT - PAGE);
    space.map(vm, &below).unwrap();
    let rights = MapProt::READ | MapProt::EXEC;
    for (from, len) in [
        (AT, PAGE),
        (AT + PAGE, PAGE),
        (AT + PAGE, 2 * PAGE),
        (AT - PAGE, 2 * PAGE),
        (AT, LEN),
    ] {
        assert!(space.mark_locked(vm, from, len, true).is_ok());
        assert_eq!(space.advise(vm, from, len, Advice::DoFork), Ok(()));
        let refused = space.advise(vm, from, len, Advice::DontNeed).is_err();
        assert_eq!(refused, from < AT, "a locked page is kept");
        assert!(space.mark_locked(vm, from, len, false).is_ok());
    }
    assert_eq!(space.protect(vm, AT + PAGE, PAGE, rights), Ok(()));
    assert_eq!(
        space.protect(vm, AT + PAGE, PAGE, MapProt::READ),
        Err(VmError::Invalid)
    );
    assert_eq!(
        space.advise(vm, AT, LEN, Advice::DoDump),
        Err(VmError::Invalid)
    );
    space.mark_locked(vm, AT - PAGE, PAGE + LEN, true).unwrap();
    let locked = space.usage(vm).locked;
    assert_eq!(locked, 1, "only the page below");
}

/// A scan of its page is as harmless as of any other, when some mappings show it and others have it as a layer.
#[test]
fn scans_find_what_has_a_layer() {
    let lab = Lab::new();
    let (vm, page) = (
        &lab.vm,
        lab.vm.special().unwrap().lookup(&ksync::pin(), 1).unwrap(),
    );
    let (a, b) = (lab.program(), lab.program());
    for p in [&a, &b] {
        p.run(|p| assert_eq!(p.read(AT + PAGE), Ok(101)));
    }
    vm.chaos_scan(page);
    lab.protect(&a, MapProt::all());
    a.run(|p| p.write(AT, 1).unwrap());
    vm.chaos_scan(page);
    let child = a.fork().unwrap();
    child.run(|p| assert_eq!(p.read(AT + PAGE), Ok(101)));
    vm.chaos_scan(page);
    for p in [&a, &b, &child] {
        p.run(|p| assert_eq!(p.read(AT + PAGE), Ok(101)));
    }
}

/// Three CPUs read, while the mapping gets its layer and a page its copy: none sees the page without a store that it has seen.
#[test]
fn readers_on_other_cpus_see_the_first_write() {
    let lab = Lab::new();
    for round in 0..if cfg!(miri) { 2 } else { 300 } {
        let program = lab.program();
        let (done, left) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let (lab, program, done, left) = (&lab, &program, &done, &left);
            for cpu in 1..CPUS {
                scope.spawn(move || {
                    ksync::host::set_cpu(cpu);
                    lab.vm.epoch.online(cpu);
                    program.load();
                    let mut last = 0;
                    while !done.load(Relaxed) {
                        let now = lab.patiently(|| program.read(AT + 8));
                        assert!(now >= last, "{now} after {last} in round {round}");
                        last = now;
                        assert_eq!(lab.patiently(|| program.read(AT)), 100);
                        assert_eq!(lab.patiently(|| program.read(AT + PAGE)), 101);
                        if cpu == 1 {
                            program.space.pmap().drop_tables(&lab.vm, |_, _| {});
                        }
                        lab.tick();
                    }
                    program.unload();
                    lab.leave(left);
                    lab.vm.epoch.offline(cpu);
                });
            }
            ksync::host::set_cpu(0);
            program.load();
            lab.protect(program, MapProt::all());
            for value in 1..8 {
                lab.patiently(|| program.write(AT + 8, value));
                assert_eq!(lab.patiently(|| program.read(AT + 8)), value);
                let child = lab.patiently(|| program.fork());
                let mut word = [0; 8];
                lab.patiently(|| child.space.read_at(&lab.vm, AT + 8, &mut word));
                assert_eq!(u64::from_ne_bytes(word), value);
                lab.tick();
            }
            done.store(true, Relaxed);
            program.unload();
            lab.leave(left);
        });
    }
}
