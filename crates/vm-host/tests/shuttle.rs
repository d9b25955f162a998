//! Faults, concurrent with operations that remove pages, under a scheduler that switches at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle`; `PANTALA_SCHEDULES` says how many
//! schedules each test tries. A failure prints the schedule to replay.
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use shuttle::thread;
use vm::space::{Advice, MapArgs, Source, Space};
use vm::{FaultError, MapProt};
use vm_host::Access;
use vm_host::schedules::{AT, PAGE, TO, World, explore, join, program, spawn, stop_everywhere};

#[test]
fn nothing_is_reached_after_munmap() {
    explore(|world| {
        world.map(false, Source::Anon);
        let worker = program(world, 1, |world| {
            for _ in 0..3 {
                let done = world.add(1).map(drop);
                assert!(
                    matches!(done, Ok(()) | Err(FaultError::NotMapped)),
                    "{done:?}"
                );
            }
        });
        let unmapper = spawn(world, 2, |world| {
            assert_eq!(world.space.unmap(&world.lab.vm, AT, 2 * PAGE), Ok(()));
            world.unreachable(1, Access::Read);
        });
        join([worker, unmapper]);
    });
}

#[test]
fn nothing_is_written_after_mprotect() {
    explore(|world| {
        world.map(true, Source::Anon);
        let worker = program(world, 1, |world| {
            for _ in 0..3 {
                let done = world.add(1).map(drop);
                assert!(matches!(done, Ok(()) | Err(FaultError::Denied)), "{done:?}");
            }
        });
        let protector = spawn(world, 2, |world| {
            assert_eq!(
                world.space.protect(&world.lab.vm, AT, PAGE, MapProt::READ),
                Ok(())
            );
            world.unreachable(1, Access::Write);
            let before = world.word(&world.space);
            assert_eq!(world.word(&world.space), before);
        });
        join([worker, protector]);
    });
}

#[test]
fn nothing_is_reached_after_truncation() {
    explore(|world| {
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
        world.map(true, Source::Object(&world.file, 0));
        let worker = program(world, 1, |world| {
            for _ in 0..3 {
                let done = world.add(1).map(drop);
                assert!(matches!(done, Ok(()) | Err(FaultError::Bus)), "{done:?}");
            }
        });
        let truncater = spawn(world, 2, |world| {
            world.file.truncate(&world.lab.vm, 0);
            world.unreachable(1, Access::Read);
            assert_eq!(world.file.resident(), 0);
        });
        join([worker, truncater]);
    });
}

/// Keys of shared futexes are taken under a pin, without the map's lock, while the last mapping of the memory is
/// removed.
#[test]
fn keys_taken_beside_munmap_end_the_memory_once() {
    explore(|world| {
        world.map(true, Source::Anon);
        assert_eq!(
            world.space.fault(&world.lab.vm, AT, vm::Access::Write),
            Ok(())
        );
        let keys = [1, 2].map(|cpu| {
            spawn(world, cpu, |world| {
                for _ in 0..2 {
                    if let Some((object, _)) = world.space.shared_object(AT) {
                        object.release(&world.lab.vm);
                    }
                }
            })
        });
        let unmapper = spawn(world, 3, |world| {
            assert_eq!(world.space.unmap(&world.lab.vm, AT, 2 * PAGE), Ok(()));
        });
        join(keys.into_iter().chain([unmapper]));
    });
}

#[test]
fn scans_lose_no_store() {
    explore(|world| {
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
        world.map(true, Source::Object(&world.file, 0));
        let adders = [1, 2].map(|cpu| {
            program(world, cpu, move |world| {
                for _ in 0..2 {
                    world.add(cpu).unwrap();
                }
            })
        });
        let scanner = spawn(world, 3, |world| {
            for _ in 0..2 {
                world.scan(&world.file);
            }
            world.space.drop_tables(&world.lab.vm);
        });
        join(adders.into_iter().chain([scanner]));
        assert_eq!(world.word(&world.space), 4);
        world.scan(&world.file);
        assert_eq!(
            world.space.pmap().resident(&world.lab.vm),
            0,
            "a scan missed a mapping"
        );
    });
}

#[test]
fn a_child_keeps_what_it_saw() {
    explore(|world| {
        world.map(false, Source::Anon);
        let worker = program(world, 1, |world| {
            for _ in 0..3 {
                world.add(1).unwrap();
            }
        });
        let forker = spawn(world, 2, |world| {
            let child = world.space.fork(&world.lab.vm).unwrap();
            let first = world.word(&child);
            assert!(first <= 3);
            thread::yield_now();
            assert_eq!(world.word(&child), first, "a child saw a later store");
            assert_eq!(
                child.write_at(&world.lab.vm, AT, &77_u64.to_le_bytes()),
                Ok(8)
            );
            assert_eq!(world.word(&child), 77);
            child.clear(&world.lab.vm);
        });
        join([worker, forker]);
        assert_eq!(world.word(&world.space), 3);
    });
}

#[test]
fn moves_lose_no_store() {
    explore(|world| {
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
        world.map(true, Source::Object(&world.file, 0));
        let adder = program(world, 1, |world| {
            for n in 1..=3 {
                // It is at one of the two addresses; which one may change between two reads.
                let mut tries = [AT, TO].into_iter().cycle();
                let counted = tries.find_map(|at| {
                    let add = |word: &std::sync::atomic::AtomicU64| word.fetch_add(1, SeqCst) + 1;
                    match world.lab.touch(&world.space, 1, at, Access::Write, add) {
                        Err(FaultError::NotMapped) => None,
                        done => Some(done),
                    }
                });
                assert_eq!(counted, Some(Ok(n)));
            }
        });
        let mover = spawn(world, 2, |world| {
            world.carry(AT, TO);
            world.unreachable_at(AT, 1, Access::Read);
            world.carry(TO, AT);
            world.unreachable_at(TO, 1, Access::Read);
        });
        let scanner = spawn(world, 3, |world| world.scan(&world.file));
        join([adder, mover, scanner]);
        assert_eq!(world.word(&world.space), 3);
        world.scan(&world.file);
        assert_eq!(
            world.space.pmap().resident(&world.lab.vm),
            0,
            "a scan missed a mapping"
        );
    });
}

/// A program writes to the first page at [`AT`], which it has read, while another of its threads moves that page. A
/// store that was made is in the page afterwards.
fn keeps_a_store_beside_a_move(world: &Arc<World>) {
    let stored = Arc::new(AtomicBool::new(false));
    let theirs = stored.clone();
    let mover = program(world, 1, |world| world.carry(AT, TO));
    let writer = program(world, 2, move |world| match world.add(2) {
        Err(FaultError::NotMapped) => {}
        done => theirs.store(done.is_ok_and(|word| word == 8), SeqCst),
    });
    join([mover, writer]);
    let expected = if stored.load(SeqCst) { 8 } else { 7 };
    let reader = program(world, 1, move |world| {
        let load = |word: &AtomicU64| word.load(SeqCst);
        let seen = world.lab.touch(&world.space, 1, TO, Access::Read, load);
        assert_eq!(seen, Ok(expected), "what the program reads");
        world.unreachable_at(AT, 1, Access::Read);
    });
    join([reader]);
    assert_eq!(world.word_at(&world.space, TO), expected);
}

/// A page of a private mapping that has a front layer, but no copy of this page.
fn a_page_of_a_file(world: &World) {
    let word = 7_u64.to_le_bytes();
    let written = world.file.write(&world.lab.vm, 0, 2 * PAGE, &mut |piece| {
        piece[..8].copy_from_slice(&word);
        piece.len()
    });
    assert_eq!(written, Ok(2 * PAGE));
    world.map(false, Source::Object(&world.file, 0));
    world.set_word_at(&world.space, AT + PAGE, 1);
    world.touched(vm::Access::Read);
}

/// A page in a layer that a child shares, below a layer of this space's own.
fn a_page_that_a_child_shares(world: &World) -> Arc<Space> {
    world.map(false, Source::Anon);
    world.set_word_at(&world.space, AT, 7);
    let child = world.space.fork(&world.lab.vm).unwrap();
    world.set_word_at(&world.space, AT + PAGE, 1);
    world.touched(vm::Access::Read);
    child
}

#[test]
fn a_copy_beside_a_move_is_kept() {
    let of_file = stop_everywhere(|world| {
        a_page_of_a_file(world);
        keeps_a_store_beside_a_move(world);
    });
    let shared = stop_everywhere(|world| {
        let child = a_page_that_a_child_shares(world);
        keeps_a_store_beside_a_move(world);
        assert_eq!(world.word(&child), 7);
        child.clear(&world.lab.vm);
    });
    // The page is moved to the front without a copy.
    let alone = stop_everywhere(|world| {
        a_page_that_a_child_shares(world).clear(&world.lab.vm);
        keeps_a_store_beside_a_move(world);
    });
    println!("{of_file}, {shared} and {alone} schedules");
    explore(|world| {
        a_page_of_a_file(world);
        keeps_a_store_beside_a_move(world);
    });
}

#[test]
fn nothing_is_reached_after_a_move_and_truncation() {
    explore(|world| {
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
        world.map(true, Source::Object(&world.file, 0));
        let mover = program(world, 1, |world| {
            let _either = world.add(1);
            world.carry(AT, TO);
        });
        let truncater = spawn(world, 2, |world| {
            world.file.truncate(&world.lab.vm, 0);
            world.unreachable_at(AT, 1, Access::Read);
            world.unreachable_at(TO, 1, Access::Read);
            assert_eq!(world.file.resident(), 0);
        });
        join([mover, truncater]);
        assert_eq!(world.space.pmap().resident(&world.lab.vm), 0);
    });
}

/// Rounds of one schedule: the failure needs two switches, each at one of a few instructions.
const ROUNDS: usize = 12;
/// A reader that finds no page may have come after the truncation that removed it: there is no hole then, but the end.
#[test]
fn a_reader_takes_no_page_that_is_cut_off_for_a_hole() {
    let schedules = stop_everywhere(|world| {
        let bytes = [7; 8];
        let written = world.file.write(&world.lab.vm, 0, 8, &mut |piece| {
            piece.copy_from_slice(&bytes);
            piece.len()
        });
        assert_eq!(written, Ok(8));
        let reader = spawn(world, 1, move |world| {
            let mut seen = Vec::new();
            let read = world.file.read(&world.lab.vm, 0, &mut |piece| {
                seen.extend_from_slice(piece);
                piece.len()
            });
            assert_eq!((read, &seen[..]), (seen.len() as u64, &bytes[..seen.len()]));
        });
        let truncater = spawn(world, 2, |world| world.file.truncate(&world.lab.vm, 0));
        join([reader, truncater]);
    });
    assert!(schedules > 10, "{schedules}");
}

/// A value that no reader of the file may see.
const SECRET: u64 = 0x5ec2_e700;

/// A fault inserts a page into a hole of a file, finds that the file was truncated meanwhile, and removes the page
/// again. A reader that has found the page copies from its frame under a pin alone; the next owner of the frame may
/// have stored to it by then.
#[test]
fn a_reader_sees_no_frame_of_another_space() {
    explore(|world| {
        let file = world.file.clone();
        file.truncate(&world.lab.vm, PAGE);
        world.map(true, Source::Object(&world.file, 0));
        let other = Space::new(&world.lab.vm).unwrap();
        let word = SECRET.to_le_bytes();
        let at = other
            .map(
                &world.lab.vm,
                &MapArgs::anon(ROUNDS as u64 * PAGE, MapProt::all()),
            )
            .unwrap();
        // The tables exist, so that the next frame is used for a page.
        other.write_at(&world.lab.vm, at, &word).unwrap();
        let done = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let faulter = spawn(world, 1, {
            let (other, done) = (other.clone(), done.clone());
            move |world| {
                for round in 1..ROUNDS {
                    let faulted = world.space.fault(&world.lab.vm, AT, vm::Access::Read);
                    assert!(matches!(faulted, Ok(()) | Err(FaultError::Bus)));
                    let page = at + round as u64 * PAGE;
                    other.write_at(&world.lab.vm, page, &word).unwrap();
                    done.store(round, SeqCst);
                }
            }
        });
        let truncater = spawn(world, 2, |world| {
            for _ in 1..ROUNDS {
                world.file.truncate(&world.lab.vm, 0);
                world.file.truncate(&world.lab.vm, PAGE);
            }
        });
        let reader = spawn(world, 3, {
            let done = done.clone();
            move |world| {
                while done.load(SeqCst) < ROUNDS - 1 {
                    world.file.read(&world.lab.vm, 0, &mut |bytes| {
                        let start = bytes.as_ptr();
                        if vm::Machine::frame_of(&world.lab.vm.machine, start).is_none() {
                            // A hole.
                            return bytes.len();
                        }
                        // Gives other threads time, except those that wait for this section to end.
                        let round = done.load(SeqCst);
                        for _ in 0..400 {
                            if done.load(SeqCst) > round {
                                break;
                            }
                            thread::yield_now();
                        }
                        let seen = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                        assert_eq!(seen, 0, "a reader of a file saw another space's word");
                        bytes.len()
                    });
                    thread::yield_now();
                }
            }
        });
        join([faulter, truncater, reader]);
        other.clear(&world.lab.vm);
        file.release(&world.lab.vm);
    });
}

/// Parent and child write, move mappings and exit, while the background frees unreachable pages and a fork makes a
/// third space.
#[test]
fn the_background_frees_nothing_that_is_reached() {
    explore(|world| {
        world.map(false, Source::Anon);
        world.lab.join(1, || {
            for (page, word) in [(0, 10_u64), (1, 20)] {
                let at = AT + page * PAGE;
                let bytes = word.to_le_bytes();
                assert_eq!(world.space.write_at(&world.lab.vm, at, &bytes), Ok(8));
            }
        });
        let word = |world: &World, space: &Space, page: u64| {
            let mut bytes = [0; 8];
            let at = AT + page * PAGE;
            assert_eq!(space.read_at(&world.lab.vm, at, &mut bytes), Ok(8));
            u64::from_le_bytes(bytes)
        };
        let child = world.space.fork(&world.lab.vm).unwrap();
        let parent = program(world, 1, move |world| {
            for n in 11..=12 {
                assert_eq!(world.add(1), Ok(n));
                assert_eq!(word(world, &world.space, 1), 20);
            }
        });
        let other = spawn(world, 2, move |world| {
            assert_eq!(word(world, &child, 0), 10);
            let write = child.write_at(&world.lab.vm, AT + PAGE, &21_u64.to_le_bytes());
            assert_eq!(write, Ok(8));
            assert_eq!((word(world, &child, 0), word(world, &child, 1)), (10, 21));
            assert_eq!(child.unmap(&world.lab.vm, AT, PAGE), Ok(()));
            assert_eq!(word(world, &child, 1), 21);
            child.clear(&world.lab.vm);
        });
        let background = spawn(world, 3, move |world| {
            world.lab.vm.tend();
            let third = world.space.fork(&world.lab.vm).unwrap();
            let seen = word(world, &third, 0);
            assert!((10..=12).contains(&seen), "a page is gone: {seen}");
            world.lab.vm.tend();
            assert_eq!((word(world, &third, 0), word(world, &third, 1)), (seen, 20));
            third.clear(&world.lab.vm);
            world.lab.vm.tend();
        });
        join([parent, other, background]);
        assert_eq!(word(world, &world.space, 0), 12);
        assert_eq!(word(world, &world.space, 1), 20);
        // Nothing runs any more, and the remaining pages are those that can be read, if the others are swept.
        world.lab.vm.tend();
        world.lab.vm.tend();
        if cfg!(not(feature = "listed")) {
            assert_eq!(world.space.cost().own, 2);
        }
    });
}

/// The kernel's stores to the parent are not visible in a child made before; the parent's CPUs see them.
#[test]
fn a_child_sees_no_later_store_of_the_kernel() {
    explore(|world| {
        world.map(false, Source::Anon);
        world.touched(vm::Access::Write);
        let stored = Arc::new(AtomicU64::new(0));
        let writer = spawn(world, 1, {
            let stored = stored.clone();
            move |world| {
                for n in 1..=3_u64 {
                    let done = world.space.write_at(&world.lab.vm, AT, &n.to_le_bytes());
                    assert_eq!(done, Ok(8));
                    stored.store(n, SeqCst);
                }
            }
        });
        let reader = program(world, 2, move |world| {
            for _ in 0..2 {
                let before = stored.load(SeqCst);
                let load = |word: &AtomicU64| word.load(SeqCst);
                let seen = world.lab.touch(&world.space, 2, AT, Access::Read, load);
                assert!(seen.expect("memory") >= before);
            }
        });
        let forker = spawn(world, 3, |world| {
            let child = world.space.fork(&world.lab.vm).unwrap();
            let before = world.word(&child);
            thread::yield_now();
            assert_eq!(world.word(&child), before, "a child saw a later store");
            child.clear(&world.lab.vm);
        });
        join([writer, reader, forker]);
        assert_eq!(world.word(&world.space), 3);
    });
}

/// Two entries share the older layer, whose end waits for the page while the fault has it; the front layer has ended by then.
#[test]
fn a_page_is_moved_to_no_layer_that_has_ended() {
    stop_everywhere(|world| {
        let (vm, second) = (&world.lab.vm, AT + 2 * PAGE);
        world.map_pages(4, false, Source::Anon);
        world.set_word_at(&world.space, AT, 7);
        let split = world.space.advise(vm, second, 2 * PAGE, Advice::DontDump);
        assert_eq!(split, Ok(()));
        let child = world.space.fork(vm).unwrap();
        world.set_word_at(&world.space, AT + PAGE, 9);
        world.set_word_at(&world.space, second + PAGE, 10);
        child.clear(vm);
        let fault = spawn(world, 1, |world| {
            let _either = world.space.fault(&world.lab.vm, AT, vm::Access::Write);
        });
        let end = spawn(world, 2, |world| {
            world.space.clear(&world.lab.vm);
        });
        join([fault, end]);
        assert_eq!(world.private_pages(), 0, "a page that nothing maps");
    });
}
