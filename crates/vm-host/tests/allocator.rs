//! The page allocator on simulated CPUs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use ksync::host::set_cpu;
use ksync::pin;
use vm::alloc::{Census, Inconsistency, MAX_ORDER, Pressure};
use vm::page::{Flags, HardBusy, State};
use vm::{NoMemory, PageAllocator, Pfn, Rights};
use vm_host::{Arena, Random};

/// Runs `f` as CPU `cpu`.
fn on<R>(cpu: usize, f: impl FnOnce(&ksync::CpuPin) -> R) -> R {
    set_cpu(cpu);
    f(&pin())
}

fn take_all(frames: &PageAllocator, cpu: usize, rights: Rights) -> Vec<Pfn> {
    on(cpu, |pin| {
        std::iter::from_fn(|| frames.alloc(pin, rights).ok()).collect()
    })
}

fn drain_all(frames: &PageAllocator, cpus: usize) {
    (0..cpus).for_each(|cpu| on(cpu, |pin| frames.drain(pin)));
}

#[test]
fn a_fresh_page_is_busy_and_nobody_s() {
    let arena = Arena::new(1024, 1, 1);
    let frames = arena.allocator();
    let pfn = on(0, |pin| frames.alloc(pin, Rights::User)).unwrap();
    let page = frames.pages().get(pfn);
    assert!(page.is_hard_busy());
    assert_eq!(
        (page.object(), page.state(), page.flags()),
        (0, State::Allocated, Flags::empty())
    );
}

#[test]
fn every_frame_is_accounted_for() {
    let arena = Arena::new(1000, 2, 1);
    let frames = arena.allocator();
    assert_eq!((frames.total_pages(), frames.free_pages()), (1000, 1000));
    let one = on(0, |pin| frames.alloc(pin, Rights::User)).unwrap();
    assert_eq!(frames.free_pages(), 999, "pages of the magazine are free");
    assert_eq!(
        frames.check(),
        Ok(Census {
            listed: 968,
            in_magazines: 31,
            reserved: 0,
            allocated: 1
        })
    );
    on(1, |pin| frames.free(pin, one));
    assert_eq!(
        frames.check(),
        Ok(Census {
            listed: 968,
            in_magazines: 32,
            reserved: 0,
            allocated: 0
        })
    );
    drain_all(&frames, 2);
    assert_eq!(
        frames.check(),
        Ok(Census {
            listed: 1000,
            in_magazines: 0,
            reserved: 0,
            allocated: 0
        })
    );
}

#[test]
fn frames_given_late_are_counted() {
    let arena = Arena::new(1000, 1, 1);
    let range = arena.ranges()[0];
    let early = vm::alloc::FreeRange {
        end: Pfn(range.end.0 - 10),
        ..range
    };
    let frames = PageAllocator::new(&arena, arena.pages(), &[early]);
    assert_eq!(frames.domain_pages(0), (990, 990));
    for n in early.end.0..range.end.0 {
        on(0, |pin| frames.adopt(pin, Pfn(n)));
    }
    drain_all(&frames, 1);
    assert_eq!((frames.total_pages(), frames.free_pages()), (1000, 1000));
    assert_eq!(frames.domain_pages(0), (1000, 1000));
    assert_eq!(frames.check().map(|c| c.allocated), Ok(0));
}

#[test]
fn rights_stop_at_their_marks() {
    let arena = Arena::new(20_000, 1, 1);
    let frames = arena.allocator();
    let mark = 64 + 20_000 / 200;
    assert_eq!(frames.pressure(), Pressure::None);
    let mut held = take_all(&frames, 0, Rights::User);
    assert_eq!(frames.free_pages(), mark);
    assert_eq!(frames.pressure(), Pressure::Severe);
    assert!(frames.low_memory());
    for (rights, left) in [
        (Rights::Kernel, mark / 2),
        (Rights::Table, mark / 4),
        (Rights::Reserve, 0),
    ] {
        held.extend(take_all(&frames, 0, rights));
        assert_eq!(frames.free_pages(), left, "{rights:?}");
    }
    on(0, |pin| frames.free_bulk(pin, &held));
    drain_all(&frames, 1);
    assert_eq!(frames.pressure(), Pressure::None);
    assert_eq!(
        frames.check(),
        Ok(Census {
            listed: 20_000,
            in_magazines: 0,
            reserved: 0,
            allocated: 0
        })
    );
}

#[test]
fn users_do_not_get_what_the_kernel_took_from_the_reserve() {
    let arena = Arena::new(20_000, 1, 1);
    let frames = arena.allocator();
    let mut held = take_all(&frames, 0, Rights::User);
    let reserve = frames.free_pages();
    for n in 1..=20 {
        held.push(on(0, |pin| frames.alloc(pin, Rights::Kernel)).unwrap());
        // The refill took four pages at once; three of them are in the magazine now.
        assert_eq!(on(0, |pin| frames.alloc(pin, Rights::User)), Err(NoMemory));
        assert_eq!(frames.free_pages(), reserve - n);
    }
    // With one page above the mark, users get a page again.
    on(0, |pin| {
        held.drain(..21).for_each(|pfn| frames.free(pin, pfn))
    });
    held.push(on(0, |pin| frames.alloc(pin, Rights::User)).unwrap());
    assert_eq!(on(0, |pin| frames.alloc(pin, Rights::User)), Err(NoMemory));
}

#[test]
fn memory_comes_from_near_and_goes_back_there() {
    let arena = Arena::new(8192, 4, 2);
    let frames = arena.allocator();
    let domain = |pfn: Pfn| frames.pages().get(pfn).domain();
    for cpu in 0..4 {
        let pfns: Vec<Pfn> = (0..100)
            .map(|_| on(cpu, |pin| frames.alloc(pin, Rights::User)).unwrap())
            .collect();
        assert!(pfns.iter().all(|&pfn| domain(pfn) == cpu / 2));
        // Freed by a distant CPU, they are not allocated there as local memory.
        let far = 3 - cpu;
        on(far, |pin| {
            pfns.iter().for_each(|&pfn| frames.free(pin, pfn))
        });
        let pfn = on(far, |pin| frames.alloc(pin, Rights::User)).unwrap();
        assert_eq!(domain(pfn), far / 2);
        on(far, |pin| frames.free(pin, pfn));
    }
    drain_all(&frames, 4);
    assert_eq!(frames.check().map(|census| census.listed), Ok(8192));
    for domain in 0..2 {
        assert_eq!(frames.domain_pages(domain), (4096, 4096));
    }
    let stats = frames.cpu_stats(0);
    assert!(
        stats.taken_local >= 100 && stats.taken_remote == 0,
        "{stats:?}"
    );

    // When the near domain is exhausted, the other one is used before the reserves.
    let held = take_all(&frames, 0, Rights::Kernel);
    let first_far = held
        .iter()
        .position(|&pfn| domain(pfn) == 1)
        .expect("far memory");
    let mark = (64 + 8192 / 200) / 2;
    assert_eq!(first_far, 4096 - mark);
    assert!(frames.cpu_stats(0).taken_remote > 3000);
    on(3, |pin| frames.free_bulk(pin, &held));
    drain_all(&frames, 4);
    assert_eq!(frames.check().map(|census| census.listed), Ok(8192));
}

#[test]
fn memory_stays_with_the_cpu_that_used_it_while_there_is_plenty() {
    // Two blocks of the highest order for each CPU.
    let arena = Arena::new(4 << MAX_ORDER, 2, 1);
    let frames = arena.allocator();
    let take = |cpu, n| -> Vec<Pfn> {
        on(cpu, |pin| {
            (0..n)
                .map(|_| frames.alloc(pin, Rights::User).unwrap())
                .collect()
        })
    };
    let give = |cpu, pfns: &[Pfn]| {
        on(cpu, |pin| {
            pfns.iter().for_each(|&pfn| frames.free(pin, pfn))
        })
    };
    let mine = take(0, 600);
    give(0, &mine);
    on(0, |pin| frames.drain(pin));
    let others = take(1, 600);
    assert!(others.iter().all(|pfn| !mine.contains(pfn)));
    // Once they have left the magazine, it does not matter which CPU frees them.
    give(0, &others);
    on(0, |pin| frames.drain(pin));
    assert!(take(0, 600).iter().all(|pfn| !others.contains(pfn)));
    // A CPU that needs more gets it.
    on(1, |pin| frames.drain(pin));
    assert!(take_all(&frames, 0, Rights::Reserve).len() > 3 << MAX_ORDER);
    assert_eq!(frames.free_pages(), 0);
    assert_eq!(frames.check().map(|c| c.listed), Ok(0));
}

#[test]
fn runs_are_aligned_and_merge_again() {
    let arena = Arena::new(8192, 1, 1);
    let frames = arena.allocator();
    let mut held = Vec::new();
    for order in (0..=MAX_ORDER).chain([9, 5, 3, 1, 0]) {
        let pfn = on(0, |pin| frames.alloc_order(pin, order, Rights::Kernel)).unwrap();
        assert_eq!(pfn.0 % (1 << order), 0);
        assert_eq!(frames.pages().get(pfn).order(), order);
        held.push((pfn, order));
    }
    assert_eq!(
        on(0, |pin| frames.alloc_order(
            pin,
            MAX_ORDER + 1,
            Rights::Reserve
        )),
        Err(NoMemory)
    );
    on(0, |pin| {
        held.iter()
            .for_each(|&(pfn, order)| frames.free_order(pin, pfn, order))
    });
    drain_all(&frames, 1);
    assert_eq!(frames.check().map(|census| census.listed), Ok(8192));
    // Frame 16 is the first, so 1024.. holds seven runs of the highest order.
    let whole: Vec<_> = (0..7)
        .map(|_| on(0, |pin| frames.alloc_order(pin, MAX_ORDER, Rights::Reserve)))
        .collect();
    assert!(whole.iter().all(Result::is_ok));
    assert!(on(0, |pin| frames.alloc_order(pin, MAX_ORDER, Rights::Reserve)).is_err());
}

#[test]
fn a_run_respects_the_marks() {
    let arena = Arena::new(8192, 1, 1);
    let frames = arena.allocator();
    while on(0, |pin| frames.alloc_order(pin, 4, Rights::User)).is_ok() {}
    let mark = 64 + 8192 / 200;
    assert!((mark..mark + 16).contains(&frames.free_pages()));
    assert!(on(0, |pin| frames.alloc_order(pin, 4, Rights::Kernel)).is_ok());
}

#[test]
fn the_injector_fails_every_nth_request() {
    let arena = Arena::new(4096, 2, 1);
    let frames = arena.allocator();
    let tries = |cpu, rights| -> Vec<bool> {
        (0..9)
            .map(|_| on(cpu, |pin| frames.alloc(pin, rights)).is_ok())
            .collect()
    };
    // Magazines are warm: injection must reach those requests too.
    assert!(tries(0, Rights::User).iter().all(|&ok| ok));
    frames.set_injector(3, 0);
    assert_eq!(
        tries(0, Rights::User),
        [true, true, false, true, true, false, true, true, false]
    );
    assert!(tries(0, Rights::Reserve).iter().all(|&ok| ok));
    assert_eq!(tries(0, Rights::Kernel)[..3], [true, true, false]);
    frames.set_injector(3, 1);
    assert_eq!(
        tries(1, Rights::Table),
        [true, false, true, true, false, true, true, false, true]
    );
    frames.set_injector(1, 0);
    assert!(on(0, |pin| frames.alloc_order(pin, 2, Rights::Kernel)).is_err());
    assert!(on(0, |pin| frames.inject(pin)));
    frames.set_injector(0, 0);
    assert!(tries(0, Rights::User).iter().all(|&ok| ok));
    assert!(on(0, |pin| !frames.inject(pin)));
}

#[test]
fn magazines_empty_on_request() {
    let arena = Arena::new(4096, 3, 1);
    let frames = arena.allocator();
    let held: Vec<Pfn> = (0..3)
        .map(|cpu| on(cpu, |pin| frames.alloc(pin, Rights::User)).unwrap())
        .collect();
    assert_eq!(frames.check().unwrap().in_magazines, 3 * 31);
    frames.request_drain();
    on(1, |pin| frames.poll(pin));
    assert_eq!(frames.check().unwrap().in_magazines, 2 * 31);
    on(1, |pin| frames.poll(pin));
    // An allocation empties the magazine as well.
    let another = on(2, |pin| frames.alloc(pin, Rights::User)).unwrap();
    on(0, |pin| frames.poll(pin));
    assert_eq!(frames.check().unwrap().in_magazines, 31);
    on(0, |pin| {
        frames.free_bulk(pin, &[&held[..], &[another]].concat())
    });
    assert_eq!(frames.free_pages(), 4096);
}

#[test]
fn a_warm_cpu_takes_no_lock() {
    let arena = Arena::new(4096, 1, 1);
    let frames = arena.allocator();
    on(0, |pin| {
        let pfn = frames.alloc(pin, Rights::User).unwrap();
        frames.free(pin, pfn);
        let before = frames.cpu_stats(0);
        for _ in 0..1000 {
            let held: [Pfn; 20] = std::array::from_fn(|_| frames.alloc(pin, Rights::User).unwrap());
            held.iter().for_each(|&pfn| frames.free(pin, pfn));
        }
        assert_eq!(frames.cpu_stats(0), before);
        // Crossing either end of the magazine repeatedly costs a burst now and then, not each time.
        for _ in 0..100 {
            let held: [Pfn; 33] = std::array::from_fn(|_| frames.alloc(pin, Rights::User).unwrap());
            held.iter().for_each(|&pfn| frames.free(pin, pfn));
        }
        let after = frames.cpu_stats(0);
        assert!(
            after.refills + after.drains - before.refills - before.drains <= 4,
            "{after:?}"
        );
    });
}

#[test]
fn the_check_finds_what_is_wrong() {
    let broken = |damage: &dyn Fn(&PageAllocator, Pfn)| {
        let arena = Arena::new(1024, 1, 1);
        let frames = arena.allocator();
        let pfn = on(0, |pin| frames.alloc_order(pin, 3, Rights::Kernel)).unwrap();
        on(0, |pin| frames.free_order(pin, pfn, 3));
        damage(&frames, pfn);
        frames.check()
    };
    assert!(broken(&|_, _| ()).is_ok());
    let unbusied = broken(&|frames, pfn| drop(HardBusy::of_fresh(frames.pages().get(pfn))));
    assert!(matches!(unbusied, Err(Inconsistency::InUse(_))));
    let owned = broken(&|frames, pfn| frames.pages().get(pfn).set_identity(4096, 0));
    assert!(matches!(owned, Err(Inconsistency::InUse(_))));
    let marked = broken(&|frames, pfn| {
        frames
            .pages()
            .get(pfn.add(1))
            .init_flags(State::Free, Flags::empty())
    });
    assert!(matches!(marked, Err(Inconsistency::BadRun(_))));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "freed twice")]
fn freeing_twice_is_noticed() {
    let arena = Arena::new(1024, 1, 1);
    let frames = arena.allocator();
    on(0, |pin| {
        let pfn = frames.alloc(pin, Rights::User).unwrap();
        frames.free(pin, pfn);
        frames.free(pin, pfn);
    });
}

/// The owner of each frame, recorded apart from the allocator's own records.
struct Owners(Vec<AtomicBool>);

impl Owners {
    fn take(&self, pfn: Pfn, order: u8) {
        for n in 0..1 << order {
            assert!(
                !self.0[pfn.add(n).index()].swap(true, SeqCst),
                "{pfn:?}+{n} handed out twice"
            );
        }
    }

    fn give(&self, pfn: Pfn, order: u8) {
        for n in 0..1 << order {
            assert!(self.0[pfn.add(n).index()].swap(false, SeqCst));
        }
    }
}

/// One CPU's part of the stress test: allocates and frees at random, and frees many pages of other CPUs.
fn storm(
    frames: &PageAllocator,
    owners: &Owners,
    shared: &Mutex<Vec<(Pfn, u8)>>,
    cpu: usize,
    rounds: usize,
) {
    set_cpu(cpu);
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (cpu as u64) << 32);
    let mut held: Vec<(Pfn, u8)> = Vec::new();
    let rights = [
        Rights::User,
        Rights::User,
        Rights::Kernel,
        Rights::Table,
        Rights::Reserve,
    ];
    // Begin by exhausting memory, so that every run includes marks, fallback and failure.
    while let Ok(pfn) = frames.alloc(&pin(), Rights::User) {
        owners.take(pfn, 0);
        held.push((pfn, 0));
    }
    for round in 0..rounds {
        match random.below(100) {
            0..50 => {
                let order = if random.below(8) == 0 {
                    random.below(6) as u8
                } else {
                    0
                };
                let rights = rights[random.below(rights.len())];
                if let Ok(pfn) = frames.alloc_order(&pin(), order, rights) {
                    owners.take(pfn, order);
                    held.push((pfn, order));
                }
            }
            50..85 if !held.is_empty() => {
                let (pfn, order) = held.swap_remove(random.below(held.len()));
                owners.give(pfn, order);
                frames.free_order(&pin(), pfn, order);
            }
            85..92 => {
                let at = random.below(held.len() + 1);
                let mut shared = shared.lock().unwrap();
                shared.extend(held.drain(at..));
                let keep = shared.len() - shared.len().min(random.below(40));
                held.extend(shared.drain(keep..));
            }
            92..96 => {
                let (single, other): (Vec<_>, Vec<_>) =
                    held.drain(..).partition(|&(_, order)| order == 0);
                held = other;
                single.iter().for_each(|&(pfn, _)| owners.give(pfn, 0));
                frames.free_bulk(
                    &pin(),
                    &single.iter().map(|&(pfn, _)| pfn).collect::<Vec<_>>(),
                );
            }
            96 => frames.request_drain(),
            97 if round % 8 == 0 => frames.drain(&pin()),
            _ => frames.poll(&pin()),
        }
    }
    shared.lock().unwrap().append(&mut held);
}

#[test]
fn no_frame_is_handed_out_twice() {
    const CPUS: usize = 4;
    // Little memory, so that marks, fallback and failure occur all the time.
    let arena = Arena::new(360, CPUS, 2);
    let frames = arena.allocator();
    let before = frames.check().unwrap();
    let owners = Owners(
        (0..frames.pages().len())
            .map(|_| AtomicBool::new(false))
            .collect(),
    );
    let shared = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (frames, owners, shared) = (&frames, &owners, &shared);
            scope.spawn(move || storm(frames, owners, shared, cpu, 60_000));
        }
    });
    let held = shared.into_inner().unwrap();
    let held_pages: usize = held.iter().map(|&(_, order)| 1 << order).sum();
    assert_eq!(
        frames.check().map(|census| census.allocated),
        Ok(held_pages)
    );
    assert_eq!(frames.free_pages() + held_pages, frames.total_pages());
    on(0, |pin| {
        held.iter()
            .for_each(|&(pfn, order)| frames.free_order(pin, pfn, order))
    });
    drain_all(&frames, CPUS);
    assert_eq!(frames.check(), Ok(before));
    assert!((0..CPUS).all(|cpu| frames.cpu_stats(cpu).drains > 0));
}
