//! Spaces, each operation alone, on one simulated CPU: contents, errors, and no lost frame.

use std::sync::Arc;

use ksync::LockClass;
use vm::object::ObjectRef;
use vm::page::BusyPage;
use vm::space::{Advice, COPY_DEPTH, MapArgs, MapFlags, RemapArgs, RemapTarget, Source, Space};
use vm::{Access, EntryFlags, FaultError, MapProt, Vm, VmError};
use vm_host::Sim;
use vm_host::program::{Program, check_frames, used_frames};

const PAGE: u64 = 4096;
const RW: MapProt = MapProt::all();
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

    fn file(&self, words: &[u64]) -> ObjectRef {
        let file = ObjectRef::new_file(&self.vm, None).unwrap();
        for (n, word) in words.iter().enumerate() {
            let write = |bytes: &mut [u8]| {
                bytes.copy_from_slice(&word.to_le_bytes());
                8
            };
            file.write(&self.vm, n as u64 * PAGE, 8, &mut { write })
                .unwrap();
        }
        file.truncate(&self.vm, words.len() as u64 * PAGE);
        file
    }

    fn word(&self, file: &ObjectRef, page: u64) -> u64 {
        let mut word = [0; 8];
        let mut at = 0;
        file.read(&self.vm, page * PAGE, &mut |bytes| {
            let n = bytes.len().min(8 - at);
            word[at..at + n].copy_from_slice(&bytes[..n]);
            at += n;
            n
        });
        u64::from_le_bytes(word)
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

fn fixed(pages: u64) -> MapArgs<'static> {
    MapArgs::anon(pages * PAGE, RW).at(AT)
}

fn shared(pages: u64) -> MapArgs<'static> {
    MapArgs {
        flags: EntryFlags::SHARED,
        ..fixed(pages)
    }
}

fn of(file: &ObjectRef, first: u64, pages: u64, flags: EntryFlags) -> MapArgs<'_> {
    MapArgs {
        flags,
        source: Source::Object(file, first * PAGE),
        ..fixed(pages)
    }
}

/// A fault on a page that is held busy sleeps until it is released, and is woken: it neither spins nor waits for a
/// clock.
#[test]
fn a_fault_on_a_page_in_use_is_woken() {
    let lab = Lab::new();
    let file = lab.file(&[1, 2]);
    let space = Space::new(&lab.vm).unwrap();
    let mut args = fixed(2);
    args.flags = EntryFlags::SHARED;
    args.source = Source::Object(&file, 0);
    space.map(&lab.vm, &args).unwrap();
    let page = lab.vm.pages.get(file.lookup(&ksync::pin(), 0).unwrap());
    let restarts = || lab.vm.counts().restarts;
    let waits = BusyPage::stats();
    let (before, asleep) = (restarts(), waits.report().contended);
    std::thread::scope(|scope| {
        let busy = page.try_hard_busy().expect("nobody holds it");
        let fault = scope.spawn(|| {
            ksync::host::set_cpu(1);
            space.fault(&lab.vm, AT, Access::Write)
        });
        while restarts() == before {
            std::thread::yield_now();
        }
        // Long enough for thousands of attempts.
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(restarts(), before + 1, "the fault sleeps");
        drop(busy);
        assert_eq!(fault.join().unwrap(), Ok(()));
    });
    assert!(restarts() <= before + 2, "the fault was woken once");
    assert!(waits.report().contended > asleep);
    space.clear(&lab.vm);
    file.release(&lab.vm);
}

#[test]
fn fresh_memory_is_zero_and_keeps_what_is_written() {
    let lab = Lab::new();
    let p = lab.program();
    let at = p.space.map(&lab.vm, &MapArgs::anon(3 * PAGE, RW)).unwrap();
    p.run(|p| {
        assert_eq!(p.read(at), Ok(0));
        assert_eq!(p.write(at + 8, 7), Ok(()));
        assert_eq!(p.write(at + 2 * PAGE, 9), Ok(()));
        assert_eq!(
            (p.read(at + 8), p.read(at + PAGE), p.read(at + 2 * PAGE)),
            (Ok(7), Ok(0), Ok(9))
        );
        assert_eq!(p.read(at + 3 * PAGE), Err(FaultError::NotMapped));
        assert_eq!(p.read(at - PAGE), Err(FaultError::NotMapped));
    });
    assert_eq!(lab.vm.counts().zero_fill, 3);
}

#[test]
fn protection_is_what_was_asked_for() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.map(&lab.vm, &fixed(4)).unwrap();
    p.run(|p| {
        (0..4).for_each(|n| p.write(AT + n * PAGE, n).unwrap());
        p.space
            .protect(&lab.vm, AT + PAGE, 2 * PAGE, MapProt::READ)
            .unwrap();
        assert_eq!(p.write(AT + PAGE, 5), Err(FaultError::Denied));
        assert_eq!(p.read(AT + PAGE), Ok(1));
        assert_eq!(p.write(AT, 5), Ok(()));
        assert_eq!(p.write(AT + 3 * PAGE, 5), Ok(()));
        p.space
            .protect(&lab.vm, AT + 2 * PAGE, PAGE, MapProt::empty())
            .unwrap();
        assert_eq!(p.read(AT + 2 * PAGE), Err(FaultError::Denied));
        p.space.protect(&lab.vm, AT, 4 * PAGE, RW).unwrap();
        assert_eq!(
            (p.read(AT), p.read(AT + PAGE), p.read(AT + 2 * PAGE)),
            (Ok(5), Ok(1), Ok(2))
        );
        assert_eq!(p.write(AT + PAGE, 6), Ok(()));
    });
    assert_eq!(p.space.usage(&lab.vm).entries, 1, "the parts are one again");
    assert_eq!(
        p.space.protect(&lab.vm, AT, 5 * PAGE, RW),
        Err(VmError::NotMapped)
    );
}

#[test]
fn unmapping_frees_what_only_that_range_could_reach() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.map(&lab.vm, &fixed(8)).unwrap();
    p.run(|p| {
        (0..8).for_each(|n| p.write(AT + n * PAGE, n + 1).unwrap());
        let before = lab.used();
        p.space.unmap(&lab.vm, AT + 2 * PAGE, 3 * PAGE).unwrap();
        assert_eq!(before - lab.used(), 3);
        assert_eq!(p.read(AT + 2 * PAGE), Err(FaultError::NotMapped));
        assert_eq!((p.read(AT + PAGE), p.read(AT + 5 * PAGE)), (Ok(2), Ok(6)));
        p.space
            .map(
                &lab.vm,
                &MapArgs {
                    addr: AT + 2 * PAGE,
                    len: 3 * PAGE,
                    ..fixed(3)
                },
            )
            .unwrap();
        assert_eq!(
            p.read(AT + 3 * PAGE),
            Ok(0),
            "what comes back comes back as zeroes"
        );
    });
}

#[test]
fn a_fork_copies_on_write_both_ways() {
    let lab = Lab::new();
    let parent = lab.program();
    parent.space.map(&lab.vm, &fixed(4)).unwrap();
    parent.run(|p| (0..3).for_each(|n| p.write(AT + n * PAGE, 10 + n).unwrap()));
    let child = parent.fork().unwrap();
    parent.run(|p| {
        p.write(AT, 20).unwrap();
        p.write(AT + 3 * PAGE, 23).unwrap();
    });
    child.run(|c| {
        assert_eq!(
            (c.read(AT), c.read(AT + PAGE), c.read(AT + 3 * PAGE)),
            (Ok(10), Ok(11), Ok(0))
        );
        c.write(AT + PAGE, 31).unwrap();
        assert_eq!(c.read(AT + PAGE), Ok(31));
    });
    parent.run(|p| {
        assert_eq!(
            (p.read(AT), p.read(AT + PAGE), p.read(AT + 2 * PAGE)),
            (Ok(20), Ok(11), Ok(12))
        )
    });
    drop(child);
    parent.run(|p| {
        p.write(AT + PAGE, 41).unwrap();
        assert_eq!(
            (p.read(AT), p.read(AT + PAGE), p.read(AT + 2 * PAGE)),
            (Ok(20), Ok(41), Ok(12))
        );
    });
}

#[test]
fn an_only_child_gone_leaves_no_layer_behind() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.map(&lab.vm, &fixed(2)).unwrap();
    p.run(|p| p.write(AT, 1).unwrap());
    for n in 0..10 {
        drop(p.fork().unwrap());
        p.run(|p| p.write(AT, n).unwrap());
        assert_eq!(p.space.entry_at(AT).unwrap().depth, 1);
    }
    assert_eq!(lab.vm.counts().cow_copy, 0);
}

#[test]
fn a_page_that_nobody_else_sees_is_moved() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.map(&lab.vm, &fixed(40)).unwrap();
    p.run(|p| (0..40).for_each(|n| p.write(AT + n * PAGE, n).unwrap()));
    let child = p.fork().unwrap();
    p.run(|p| p.write(AT, 100).unwrap());
    drop(child);
    p.run(|p| {
        (1..40).for_each(|n| p.write(AT + n * PAGE, 100 + n).unwrap());
        (0..40).for_each(|n| assert_eq!(p.read(AT + n * PAGE), Ok(100 + n)));
    });
    let counts = lab.vm.counts();
    assert!(counts.cow_move >= 20, "{counts:?}");
    assert_eq!(counts.cow_copy + counts.cow_move, 40);
}

#[test]
fn long_chains_are_folded() {
    let lab = Lab::new();
    let mut line = vec![lab.program()];
    line[0].space.map(&lab.vm, &fixed(20)).unwrap();
    line[0].run(|p| (0..20).for_each(|n| p.write(AT + n * PAGE, n).unwrap()));
    for generation in 1..19 {
        let child = line.last().unwrap().fork().unwrap();
        child.run(|c| {
            c.write(AT + generation * PAGE, 1000 + generation).unwrap();
            (0..20).for_each(|n| {
                let want = if (1..=generation).contains(&n) {
                    1000 + n
                } else {
                    n
                };
                assert_eq!(
                    c.read(AT + n * PAGE),
                    Ok(want),
                    "page {n} in generation {generation}"
                );
            });
        });
        let depth = child.space.entry_at(AT).unwrap().depth;
        assert!(
            depth <= COPY_DEPTH + 1,
            "generation {generation} has {depth} layers"
        );
        line.push(child);
    }
    let counts = lab.vm.counts();
    assert!(counts.collapses > 0 && counts.fold_copy > 0);
    // Each writes another page, so few layers can be dropped without copies.
    assert!(
        counts.fold_copy < 20,
        "one or two old pages for each generation beyond the twelfth"
    );
    for (generation, p) in line.iter().enumerate() {
        p.run(|p| assert_eq!(p.read(AT + 19 * PAGE), Ok(19), "generation {generation}"));
    }
    while !line.is_empty() {
        line.remove(line.len() / 2);
    }
}

#[test]
fn a_folded_chain_keeps_its_file() {
    let lab = Lab::new();
    let file = lab.file(&[1, 2, 3, 4]);
    let mut p = lab.program();
    p.space
        .map(&lab.vm, &of(&file, 0, 4, EntryFlags::empty()))
        .unwrap();
    for n in 0..9 {
        p.run(|p| p.write(AT, n).unwrap());
        let child = p.fork().unwrap();
        child.run(|c| c.write(AT + PAGE, 50 + n).unwrap());
        p = child;
    }
    assert!(lab.vm.counts().collapses > 0);
    p.run(|p| {
        assert_eq!(
            (p.read(AT), p.read(AT + PAGE), p.read(AT + 2 * PAGE)),
            (Ok(8), Ok(58), Ok(3))
        )
    });
    file.punch(&lab.vm, 2 * PAGE, PAGE);
    p.run(|p| {
        assert_eq!(
            (p.read(AT + 2 * PAGE), p.read(AT + 3 * PAGE)),
            (Ok(0), Ok(4))
        )
    });
    drop(p);
    file.release(&lab.vm);
}

#[test]
fn shared_memory_is_shared_with_children() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.map(&lab.vm, &shared(2)).unwrap();
    let child = p.fork().unwrap();
    p.run(|p| p.write(AT, 1).unwrap());
    child.run(|c| {
        assert_eq!(c.read(AT), Ok(1));
        c.write(AT + PAGE, 2).unwrap();
    });
    drop(child);
    p.run(|p| assert_eq!(p.read(AT + PAGE), Ok(2)));
}

#[test]
fn files_are_mapped_shared_and_private() {
    let lab = Lab::new();
    let file = lab.file(&[1, 2, 3]);
    let (a, b) = (lab.program(), lab.program());
    a.space
        .map(&lab.vm, &of(&file, 0, 3, EntryFlags::SHARED))
        .unwrap();
    b.space
        .map(&lab.vm, &of(&file, 1, 3, EntryFlags::empty()))
        .unwrap();
    b.run(|b| {
        assert_eq!((b.read(AT), b.read(AT + PAGE)), (Ok(2), Ok(3)));
        assert_eq!(b.read(AT + 2 * PAGE), Err(FaultError::Bus));
        b.write(AT, 22).unwrap();
    });
    a.run(|a| {
        assert_eq!(a.read(AT + PAGE), Ok(2));
        a.write(AT + 2 * PAGE, 33).unwrap();
    });
    assert_eq!((lab.word(&file, 1), lab.word(&file, 2)), (2, 33));
    b.run(|b| {
        assert_eq!((b.read(AT), b.read(AT + PAGE)), (Ok(22), Ok(33)));
        b.space.advise(&lab.vm, AT, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(b.read(AT), Ok(2));
    });
    drop((a, b));
    file.release(&lab.vm);
}

#[test]
fn truncation_reaches_every_mapping() {
    let lab = Lab::new();
    let file = lab.file(&[1, 2, 3]);
    let (a, b) = (lab.program(), lab.program());
    a.space
        .map(&lab.vm, &of(&file, 0, 3, EntryFlags::SHARED))
        .unwrap();
    b.space
        .map(&lab.vm, &of(&file, 0, 3, EntryFlags::empty()))
        .unwrap();
    b.run(|b| {
        (0..3).for_each(|n| assert_eq!(b.read(AT + n * PAGE), Ok(n + 1)));
        b.write(AT + 2 * PAGE, 30).unwrap();
    });
    a.run(|a| {
        (0..3).for_each(|n| assert_eq!(a.read(AT + n * PAGE), Ok(n + 1)));
        a.write(AT + PAGE + 8, 9).unwrap();
        file.truncate(&lab.vm, PAGE + 8);
        assert_eq!(a.read(AT + 2 * PAGE), Err(FaultError::Bus));
        assert_eq!((a.read(AT + PAGE), a.read(AT + PAGE + 8)), (Ok(2), Ok(0)));
        file.truncate(&lab.vm, 3 * PAGE);
        assert_eq!(a.read(AT + 2 * PAGE), Ok(0));
    });
    b.run(|b| assert_eq!(b.read(AT + 2 * PAGE), Ok(30), "private pages stay"));
    drop((a, b));
    file.release(&lab.vm);
}

#[test]
fn truncation_cuts_private_copies_off() {
    let lab = Lab::new();
    let file = lab.file(&[1, 2, 3]);
    let p = lab.program();
    p.space
        .map(&lab.vm, &of(&file, 0, 3, EntryFlags::empty()))
        .unwrap();
    p.run(|p| {
        (0..3).for_each(|n| p.write(AT + n * PAGE, 30 + n).unwrap());
        file.truncate(&lab.vm, 2 * PAGE);
        assert_eq!(p.read(AT + PAGE), Ok(31));
        assert_eq!(p.read(AT + 2 * PAGE), Err(FaultError::Bus));
        assert_eq!(p.write(AT + 2 * PAGE, 1), Err(FaultError::Bus));
    });
    drop(p);
    file.release(&lab.vm);
}

#[test]
fn a_file_outlives_its_name_while_it_is_mapped() {
    let lab = Lab::new();
    let file = lab.file(&[5]);
    let p = lab.program();
    p.space
        .map(&lab.vm, &of(&file, 0, 1, EntryFlags::SHARED))
        .unwrap();
    file.release(&lab.vm);
    p.run(|p| assert_eq!(p.read(AT), Ok(5)));
}

#[test]
fn neighbours_of_a_file_page_come_along() {
    let lab = Lab::new();
    let file = lab.file(&(0..32).collect::<Vec<_>>());
    let p = lab.program();
    p.space
        .map(&lab.vm, &of(&file, 0, 32, EntryFlags::SHARED))
        .unwrap();
    p.run(|p| (0..32).for_each(|n| assert_eq!(p.read(AT + n * PAGE), Ok(n))));
    let counts = lab.vm.counts();
    assert_eq!((counts.resident, counts.around), (2, 30));
    lab.vm.set_fault_around(PAGE);
    let q = lab.program();
    q.space
        .map(&lab.vm, &of(&file, 0, 32, EntryFlags::empty()))
        .unwrap();
    q.run(|q| (0..32).for_each(|n| assert_eq!(q.read(AT + n * PAGE), Ok(n))));
    assert_eq!(lab.vm.counts().resident, 34);
    drop((p, q));
    file.release(&lab.vm);
}

#[test]
fn remap_grows_shrinks_and_moves() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.map(&lab.vm, &fixed(2)).unwrap();
    let args = |old_len: u64, new_len: u64, target| RemapArgs {
        old: AT,
        old_len: old_len * PAGE,
        new_len: new_len * PAGE,
        target,
        keep_old: false,
    };
    p.run(|p| {
        p.write(AT, 1).unwrap();
        p.write(AT + PAGE, 2).unwrap();
        assert_eq!(
            p.space.remap(&lab.vm, &args(2, 4, RemapTarget::Stay)),
            Ok(AT)
        );
        assert_eq!((p.read(AT), p.read(AT + 3 * PAGE)), (Ok(1), Ok(0)));
        assert_eq!(p.space.usage(&lab.vm).entries, 1);
        let blocker = MapArgs {
            addr: AT + 4 * PAGE,
            ..fixed(1)
        };
        p.space.map(&lab.vm, &blocker).unwrap();
        p.run(|p| p.write(AT + 4 * PAGE, 44).unwrap());
        p.load();
        assert_eq!(
            p.space.protect(&lab.vm, AT + 4 * PAGE, PAGE, MapProt::READ),
            Ok(())
        );
        assert_eq!(
            p.space.remap(&lab.vm, &args(4, 6, RemapTarget::Stay)),
            Err(VmError::NoMemory)
        );
        let to = p
            .space
            .remap(&lab.vm, &args(4, 6, RemapTarget::MayMove))
            .unwrap();
        assert_ne!(to, AT);
        assert_eq!(p.read(AT), Err(FaultError::NotMapped));
        assert_eq!(
            (p.read(to), p.read(to + PAGE), p.read(to + 5 * PAGE)),
            (Ok(1), Ok(2), Ok(0))
        );
        p.write(to + PAGE, 3).unwrap();
        let back = RemapArgs {
            old: to,
            old_len: 6 * PAGE,
            new_len: PAGE,
            target: RemapTarget::Fixed(AT),
            keep_old: false,
        };
        assert_eq!(p.space.remap(&lab.vm, &back), Ok(AT));
        assert_eq!(
            (p.read(AT), p.read(to)),
            (Ok(1), Err(FaultError::NotMapped))
        );
        assert_eq!(p.read(AT + 4 * PAGE), Ok(44));
    });
}

#[test]
fn remap_moves_a_forked_range_and_keeps_an_empty_one() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.map(&lab.vm, &fixed(3)).unwrap();
    p.run(|p| (0..3).for_each(|n| p.write(AT + n * PAGE, n + 1).unwrap()));
    let child = p.fork().unwrap();
    p.run(|p| {
        p.write(AT + PAGE, 20).unwrap();
        let to = AT + 64 * PAGE;
        let args = RemapArgs {
            old: AT,
            old_len: 3 * PAGE,
            new_len: 3 * PAGE,
            target: RemapTarget::Fixed(to),
            keep_old: true,
        };
        assert_eq!(p.space.remap(&lab.vm, &args), Ok(to));
        assert_eq!(
            (p.read(to), p.read(to + PAGE), p.read(to + 2 * PAGE)),
            (Ok(1), Ok(20), Ok(3))
        );
        assert_eq!((p.read(AT), p.read(AT + PAGE)), (Ok(0), Ok(0)));
        p.write(to, 9).unwrap();
    });
    child.run(|c| assert_eq!((c.read(AT), c.read(AT + PAGE)), (Ok(1), Ok(2))));
}

#[test]
fn advice_discards_contents() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.map(&lab.vm, &fixed(4)).unwrap();
    p.run(|p| {
        (0..4).for_each(|n| p.write(AT + n * PAGE, n + 1).unwrap());
        let before = lab.used();
        p.space
            .advise(&lab.vm, AT + PAGE, 2 * PAGE, Advice::DontNeed)
            .unwrap();
        assert_eq!(before - lab.used(), 2);
        assert_eq!(
            (p.read(AT), p.read(AT + PAGE), p.read(AT + 3 * PAGE)),
            (Ok(1), Ok(0), Ok(4))
        );
    });
    let child = p.fork().unwrap();
    child.run(|c| {
        c.space
            .advise(&lab.vm, AT, 2 * PAGE, Advice::DontNeed)
            .unwrap();
        assert_eq!((c.read(AT), c.read(AT + 3 * PAGE)), (Ok(0), Ok(4)));
    });
    p.run(|p| assert_eq!(p.read(AT), Ok(1)));
    assert_eq!(
        p.space.advise(&lab.vm, AT, 9 * PAGE, Advice::DontNeed),
        Err(VmError::NotMapped)
    );
}

#[test]
fn children_get_what_advice_says() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.map(&lab.vm, &fixed(3)).unwrap();
    p.run(|p| (0..3).for_each(|n| p.write(AT + n * PAGE, n + 1).unwrap()));
    p.space.advise(&lab.vm, AT, PAGE, Advice::DontFork).unwrap();
    p.space
        .advise(&lab.vm, AT + PAGE, PAGE, Advice::WipeOnFork)
        .unwrap();
    let child = p.fork().unwrap();
    child.run(|c| {
        assert_eq!(c.read(AT), Err(FaultError::NotMapped));
        assert_eq!((c.read(AT + PAGE), c.read(AT + 2 * PAGE)), (Ok(0), Ok(3)));
    });
    p.run(|p| assert_eq!((p.read(AT), p.read(AT + PAGE)), (Ok(1), Ok(2))));
}

#[test]
fn stacks_grow_down_to_their_limit() {
    let lab = Lab::new();
    let p = lab.program();
    let flags = EntryFlags::GROWSDOWN | EntryFlags::STACK;
    p.space
        .map(&lab.vm, &MapArgs { flags, ..fixed(2) })
        .unwrap();
    lab.vm.machine.set_stack_limit(64 * PAGE);
    p.run(|p| {
        p.write(AT + PAGE, 1).unwrap();
        p.write(AT - 5 * PAGE, 2).unwrap();
        assert_eq!(
            (p.read(AT + PAGE), p.read(AT - 5 * PAGE), p.read(AT - PAGE)),
            (Ok(1), Ok(2), Ok(0))
        );
        assert_eq!(p.read(AT - 63 * PAGE), Err(FaultError::NotMapped));
        assert_eq!(p.write(AT - 62 * PAGE, 3), Ok(()));
    });
    let child = p.fork().unwrap();
    child.run(|c| {
        c.write(AT - 5 * PAGE, 7).unwrap();
        assert_eq!((c.read(AT + PAGE), c.read(AT - 62 * PAGE)), (Ok(1), Ok(3)));
    });
    p.run(|p| assert_eq!(p.read(AT - 5 * PAGE), Ok(2)));
}

/// Pages that relatives bring up into a stack's old layers, in a part that was unmapped and grew again, are not visible
/// in it.
#[test]
fn a_stack_grows_over_no_layer_that_others_fill() {
    let lab = Lab::new();
    let p = lab.program();
    let flags = EntryFlags::GROWSDOWN | EntryFlags::STACK;
    p.space
        .map(&lab.vm, &MapArgs { flags, ..fixed(8) })
        .unwrap();
    // Indexes are counted from the top.
    let at = |page: u64| AT + (7 - page) * PAGE;
    let write = |p: &Program, page| p.run(|p| p.write(at(page), 10 + page).unwrap());
    write(&p, 0);
    write(&p, 5);
    let mut others = Vec::new();
    for page in [1, 2, 3, 0] {
        others.push(p.fork().unwrap());
        write(&p, page);
    }
    let child = p.fork().unwrap();
    others.clear();
    write(&child, 7);
    p.space.unmap(&lab.vm, AT, 4 * PAGE).unwrap();
    write(&p, 0);
    // The oldest layer is shadowed in the rest of the stack, and is dropped.
    drop(p.fork().unwrap());
    assert_eq!(p.space.entry_at(at(0)).unwrap().depth, 4);
    p.run(|p| p.read(at(6)).unwrap());
    // In the child it has a visible page, which is brought up into a layer that both share.
    let before = child.space.entry_at(at(0)).unwrap().depth;
    child.space.maintain(&lab.vm);
    assert_eq!(child.space.entry_at(at(0)).unwrap().depth, before - 1);
    p.run(|p| assert_eq!(p.read(at(5)), Ok(0)));
    child.run(|c| assert_eq!((c.read(at(5)), c.read(at(0))), (Ok(15), Ok(10))));
}

#[test]
fn the_heap_grows_as_one_entry() {
    let lab = Lab::new();
    let p = lab.program();
    let piece = |n: u64| MapArgs {
        addr: AT + n * PAGE,
        flags: EntryFlags::HEAP,
        ..fixed(1)
    };
    p.run(|p| {
        for n in 0..10 {
            p.space.map(&lab.vm, &piece(n)).unwrap();
            p.write(AT + n * PAGE, n).unwrap();
        }
        assert_eq!(p.space.usage(&lab.vm).entries, 1);
        p.space.unmap(&lab.vm, AT + 5 * PAGE, 5 * PAGE).unwrap();
        p.space.map(&lab.vm, &piece(5)).unwrap();
        assert_eq!(
            (p.read(AT + 4 * PAGE), p.read(AT + 5 * PAGE)),
            (Ok(4), Ok(0))
        );
    });
    assert_eq!(p.space.usage(&lab.vm).entries, 1);
}

#[test]
fn places_are_found_from_the_top() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.set_mmap_base(0x7fff_0000_0000);
    let a = p.space.map(&lab.vm, &MapArgs::anon(PAGE, RW)).unwrap();
    assert_eq!(a, 0x7fff_0000_0000 - PAGE);
    let b = p.space.map(&lab.vm, &MapArgs::anon(4 << 20, RW)).unwrap();
    assert_eq!(b % (2 << 20), 0);
    assert!(b + (4 << 20) <= a);
    let c = p
        .space
        .map(
            &lab.vm,
            &MapArgs {
                addr: a,
                ..MapArgs::anon(PAGE, MapProt::READ)
            },
        )
        .unwrap();
    assert_ne!(c, a, "a wish that cannot be met is no order");
    let taken = MapArgs {
        place: MapFlags {
            noreplace: true,
            ..MapFlags::default()
        },
        addr: a,
        ..MapArgs::anon(PAGE, RW)
    };
    assert_eq!(p.space.map(&lab.vm, &taken), Err(VmError::Exists));
    assert_eq!(
        p.space.map(&lab.vm, &MapArgs::anon(0, RW)),
        Err(VmError::Invalid)
    );
    assert_eq!(
        p.space.map(&lab.vm, &MapArgs::anon(1 << 47, RW)),
        Err(VmError::NoMemory)
    );
    let huge = p.space.map(&lab.vm, &MapArgs::anon(20 << 40, RW)).unwrap();
    p.run(|p| {
        p.write(huge, 1).unwrap();
        p.write(huge + (20 << 40) - PAGE, 2).unwrap();
        assert_eq!(p.read(huge + (9 << 40)), Ok(0));
    });
}

#[test]
fn havoc_changes_nothing_that_a_program_sees() {
    let lab = Lab::new();
    let file = lab.file(&[1, 2, 3, 4]);
    let p = lab.program();
    p.space.map(&lab.vm, &fixed(4)).unwrap();
    let shared = MapArgs {
        addr: AT + 16 * PAGE,
        ..of(&file, 0, 4, EntryFlags::SHARED)
    };
    p.space.map(&lab.vm, &shared).unwrap();
    p.run(|p| {
        for round in 0..8 {
            for n in 0..4 {
                p.write(AT + n * PAGE, round * 10 + n).unwrap();
                p.write(AT + (16 + n) * PAGE, round * 20 + n).unwrap();
            }
            let mut removed = 0;
            for pfn in 0..2048 {
                if let vm::space::Chaos::Removed(n) = lab.vm.chaos_scan(vm::Pfn(pfn)) {
                    removed += n;
                }
            }
            assert_eq!(removed, 8, "each page was mapped once");
            for n in 0..4 {
                assert_eq!(p.read(AT + n * PAGE), Ok(round * 10 + n));
                assert_eq!(p.read(AT + (16 + n) * PAGE), Ok(round * 20 + n));
            }
            assert!(p.space.drop_tables(&lab.vm) > 0);
            assert_eq!(p.read(AT + 3 * PAGE), Ok(round * 10 + 3));
        }
    });
    drop(p);
    file.release(&lab.vm);
}

#[test]
fn outsiders_read_and_write_memory() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.map(&lab.vm, &fixed(3)).unwrap();
    let data: Vec<u8> = (0..9000).map(|n| n as u8).collect();
    assert_eq!(p.space.write_at(&lab.vm, AT + 100, &data), Ok(9000));
    let child = p.fork().unwrap();
    assert_eq!(child.space.write_at(&lab.vm, AT + 100, &[7; 50]), Ok(50));
    let mut back = vec![0; 9000];
    assert_eq!(p.space.read_at(&lab.vm, AT + 100, &mut back), Ok(9000));
    assert_eq!(back, data);
    assert_eq!(
        p.space.read_at(&lab.vm, AT + 2 * PAGE, &mut [0; 5000]),
        Ok(4096)
    );
    assert_eq!(
        p.space.read_at(&lab.vm, AT + 3 * PAGE, &mut [0; 8]),
        Err(FaultError::NotMapped)
    );
}

#[test]
fn without_memory_faults_fail_and_nothing_is_lost() {
    let lab = Lab::new();
    let p = lab.program();
    p.space.map(&lab.vm, &fixed(4096)).unwrap();
    p.run(|p| {
        let mut at = AT;
        let why = loop {
            match p.write(at, 1) {
                Ok(()) => at += PAGE,
                Err(why) => break why,
            }
        };
        assert_eq!(why, FaultError::NoMemory);
        assert!((at - AT) / PAGE > 1000);
        p.space.unmap(&lab.vm, AT, 4096 * PAGE).unwrap();
    });
}

#[test]
fn populate_makes_pages_present() {
    let lab = Lab::new();
    let p = lab.program();
    let mut args = fixed(5);
    args.place.populate = true;
    p.space.map(&lab.vm, &args).unwrap();
    assert_eq!(p.space.usage(&lab.vm).resident, 5);
    let mut resident = Vec::new();
    p.space
        .resident(&lab.vm, AT, 5 * PAGE, &mut resident)
        .unwrap();
    assert_eq!(resident, [1; 5]);
    assert_eq!(
        p.space.populate(&lab.vm, AT, 6 * PAGE, Access::Read),
        Err(FaultError::NotMapped)
    );
}

/// The suite notices a scan that skips a backing: the first process keeps a page that was truncated away.
#[test]
#[cfg(not(feature = "listed"))]
fn a_skipped_backing_is_noticed() {
    let seen = |blind: u32| {
        let lab = Lab::new();
        let file = lab.file(&[1]);
        let (a, b) = (lab.program(), lab.program());
        for p in [&a, &b] {
            p.space
                .map(&lab.vm, &of(&file, 0, 1, EntryFlags::SHARED))
                .unwrap();
            p.run(|p| assert_eq!(p.read(AT), Ok(1)));
        }
        lab.vm.rmap.set_blind(blind);
        file.truncate(&lab.vm, 0);
        let found = [&a, &b].map(|p| p.run(|p| p.read(AT)));
        drop((a, b));
        file.release(&lab.vm);
        found
    };
    assert_eq!(seen(0), [Err(FaultError::Bus); 2]);
    assert_ne!(
        seen(2),
        [Err(FaultError::Bus); 2],
        "nobody would notice a missing backing"
    );
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
