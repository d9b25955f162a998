//! Grace periods, epoch pointers and other lock-free publication: every order that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p ksync --release --test loom_epoch`
#![cfg(loom)]
#![expect(
    unsafe_code,
    reason = "the models watch raw cells, to see races that the epochs must prevent"
)]

mod model;

use ksync::{
    Epoch, EpochPtr, HubRef, HubValue, MemberSlot, Once, PerCpuRef, Tally,
    atomic::{AtomicBool, Ordering::*},
    pin,
};
use loom::{cell::UnsafeCell, sync::Arc, thread};
use model::{Target, model, spawn};

/// One given interleaving, for which every order that the memory model allows is explored. The turns themselves order
/// nothing: the effects of one step are visible to the next only through the code under test.
#[derive(Clone, Default)]
struct Turns(std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl Turns {
    /// Runs `step` when steps `0..n` are over.
    fn take<R>(&self, n: usize, step: impl FnOnce() -> R) -> R {
        while self.0.load(SeqCst) < n {
            thread::yield_now();
        }
        let result = step();
        self.0.store(n + 1, SeqCst);
        result
    }

    /// Explores `f`, all of whose threads take turns.
    fn model(f: impl Fn(Turns) + Sync + Send + 'static) {
        model(0, move || f(Turns::default()));
    }
}

fn target() -> Box<Target> {
    Box::new(Target::new().0)
}

fn counted() -> std::sync::Arc<Target> {
    std::sync::Arc::new(Target::new().0)
}

fn look(ptr: &EpochPtr<Box<Target>>) {
    if let Some(target) = ptr.load(&pin()) {
        target.look();
    }
}

#[test]
fn a_reader_sees_a_new_target_whole() {
    model(2, || {
        let epoch = Epoch::new(2);
        let ptr = Arc::new(EpochPtr::new(Some(target())));
        let reader = spawn(1, {
            let ptr = ptr.clone();
            move || look(&ptr)
        });
        ptr.replace(&epoch, &pin(), Some(target()));
        reader.join().unwrap();
    });
    model(2, || {
        let ptr = Arc::new(EpochPtr::empty());
        let reader = spawn(1, {
            let ptr = ptr.clone();
            move || look(&ptr)
        });
        assert!(ptr.set_if_none(target()).is_ok());
        reader.join().unwrap();
    });
}

#[test]
fn who_takes_a_count_sees_a_new_target_whole() {
    model(2, || {
        let epoch = Epoch::new(2);
        let place = Arc::new(EpochPtr::<std::sync::Arc<Target>>::empty());
        let reader = spawn(1, {
            let place = place.clone();
            move || {
                if let Some(target) = place.get(&pin()) {
                    target.look();
                }
            }
        });
        place.replace(&epoch, &pin(), Some(counted()));
        reader.join().unwrap();
    });
}

/// Moving a target passes on what its maker did.
#[test]
fn a_reader_sees_a_target_that_moved_whole() {
    Turns::model(|turns| {
        let epoch = Arc::new(Epoch::new(3));
        let places = Arc::new([EpochPtr::empty(), EpochPtr::empty()]);
        let maker = spawn(1, {
            let (turns, epoch, places) = (turns.clone(), epoch.clone(), places.clone());
            move || turns.take(0, || places[0].replace(&epoch, &pin(), Some(counted())))
        });
        let reader = spawn(2, {
            let (turns, places) = (turns.clone(), places.clone());
            move || {
                turns.take(2, || {
                    places[1].load(&pin()).into_iter().for_each(Target::look);
                });
            }
        });
        // SAFETY: both live to the end of the model.
        turns.take(1, || unsafe {
            places[0].move_to(&places[1], &epoch, &pin())
        });
        maker.join().unwrap();
        reader.join().unwrap();
    });
}

/// The last reference is dropped by the thread that ended the per-CPU counting, or by another: all uses came before.
#[test]
fn the_last_of_a_per_cpu_count_comes_after_all_looks() {
    for (mine_at, first_at) in [(3, 4), (4, 3)] {
        Turns::model(move |turns| {
            let epoch = Arc::new(Epoch::new(2));
            let first = PerCpuRef::new(2, *target());
            let other = spawn(1, {
                let (turns, epoch, mine) = (turns.clone(), epoch.clone(), first.clone());
                move || {
                    turns.take(0, || epoch.offline(1));
                    turns.take(2, || epoch.online(1));
                    turns.take(mine_at, move || {
                        mine.look();
                        drop(mine);
                    });
                }
            });
            turns.take(1, || first.kill(&epoch));
            turns.take(first_at, move || {
                first.look();
                drop(first);
            });
            other.join().unwrap();
        });
    }
}

/// A thread that sums the references at step `n`: three at least. It returns its own.
fn sum_at(
    n: usize,
    turns: &Turns,
    first: &PerCpuRef<()>,
) -> impl FnOnce() -> PerCpuRef<()> + use<> {
    let (turns, mine) = (turns.clone(), first.clone());
    move || {
        turns.take(n, || assert!(mine.references() >= 3));
        mine
    }
}

/// A sum that has a drop has its take, which came before it on the same CPU.
#[test]
fn a_sum_of_references_is_never_too_low() {
    Turns::model(|turns| {
        let first = PerCpuRef::new(3, ());
        let user = spawn(1, {
            let (turns, mine) = (turns.clone(), first.clone());
            move || {
                turns.take(0, || drop(mine.clone()));
                mine
            }
        });
        let looker = spawn(2, sum_at(1, &turns, &first));
        drop((user.join().unwrap(), looker.join().unwrap()));
    });
}

/// As above, while the count is being switched: the take is on a line, and the drop in the one count.
#[test]
fn a_sum_of_references_is_not_too_low_during_a_kill() {
    Turns::model(|turns| {
        let epoch = Arc::new(Epoch::new(3));
        epoch.offline(2);
        let first = PerCpuRef::new(3, ());
        let user = spawn(1, {
            let (turns, epoch, mine) = (turns.clone(), epoch.clone(), first.clone());
            move || {
                let more = turns.take(0, || mine.clone());
                while !mine.is_killed() {
                    thread::yield_now();
                }
                turns.take(1, || drop(more));
                // Until then the grace period of the kill is not over.
                turns.take(3, || epoch.offline(1));
                mine
            }
        });
        let looker = spawn(2, sum_at(2, &turns, &first));
        while turns.0.load(SeqCst) == 0 {
            thread::yield_now();
        }
        first.kill(&epoch);
        drop((user.join().unwrap(), looker.join().unwrap()));
        assert_eq!(first.references(), 1);
    });
}

#[test]
fn everybody_sees_what_was_made_once_whole() {
    model(3, || {
        let once = Arc::new(Once::new());
        let other = spawn(1, {
            let once = once.clone();
            move || once.get_or_init(|| *target()).look()
        });
        if let Some(target) = once.get() {
            target.look();
        }
        once.get_or_init(|| *target()).look();
        other.join().unwrap();
    });
}

/// How a CPU announces that it is in no section.
type Announce = fn(&Epoch);

const ANNOUNCE: [Announce; 3] = [
    |epoch| epoch.quiescent(&mut pin()),
    |epoch| {
        let cpu = pin().cpu();
        epoch.announcer(cpu).quiescent();
    },
    |epoch| {
        let cpu = pin().cpu();
        epoch.offline(cpu);
        epoch.online(cpu);
    },
];

/// The earliest possible free: the stamp is as old as possible, because the reader's own CPU took the first step before
/// the unlink, and no other CPU delays the epoch.
#[test]
fn the_earliest_free_comes_after_the_last_look() {
    for announce in ANNOUNCE {
        Turns::model(move |turns| {
            let epoch = Arc::new(Epoch::new(2));
            let ptr = Arc::new(EpochPtr::new(Some(target())));
            let reader = spawn(1, {
                let (turns, epoch, ptr) = (turns.clone(), epoch.clone(), ptr.clone());
                move || {
                    let section = turns.take(0, || {
                        epoch.advance();
                        announce(&epoch);
                        pin()
                    });
                    let found = turns.take(3, || {
                        let found = ptr.load(&section);
                        found.into_iter().for_each(Target::look);
                        found
                    });
                    turns.take(5, || found.into_iter().for_each(Target::look));
                    drop(section);
                    turns.take(6, || announce(&epoch));
                    turns.take(8, || epoch.offline(1));
                }
            });
            turns.take(1, || ptr.replace(&epoch, &pin(), None));
            turns.take(2, || epoch.quiescent(&mut pin()));
            turns.take(4, || epoch.reclaim(&pin()));
            turns.take(7, || {
                epoch.quiescent(&mut pin());
                epoch.reclaim(&pin());
            });
            reader.join().unwrap();
        });
    }
}

/// What the reader of [`four`] does.
#[derive(Clone, Copy, PartialEq)]
enum Reader {
    /// It finds its target before its last announcement.
    Early,
    /// It looks for a target after that.
    Late,
    /// It uses an object that is freed by stamps of the epoch, not by the epoch itself.
    ByStamp,
}

/// Four CPUs: one unlinks (0), one takes all steps (1), one reads (2), and one that is offline frees (3). The reader
/// sees the unlink through the steps, and the freeing CPU sees the end of the reader's use the same way.
fn four(announce: Announce, kind: Reader) {
    Turns::model(move |turns| {
        let epoch = Arc::new(Epoch::new(4));
        epoch.offline(3);
        let ptr = Arc::new(EpochPtr::new(Some(target())));
        let stamped = Arc::new(UnsafeCell::new(0));
        let stamp = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let all = || (turns.clone(), epoch.clone());
        let (stepper, reader, freer) = (
            all(),
            (all(), ptr.clone(), stamped.clone()),
            (all(), stamped),
        );
        let threads = [
            spawn(1, move || {
                let (turns, epoch) = stepper;
                for turn in [1, 4, 7] {
                    turns.take(turn, || {
                        epoch.advance();
                        announce(&epoch);
                    });
                }
            }),
            spawn(2, move || {
                let ((turns, epoch), ptr, stamped) = reader;
                turns.take(2, || announce(&epoch));
                turns.take(6, || {
                    match kind {
                        Reader::Early => look(&ptr),
                        Reader::Late => {}
                        // SAFETY: written by the freeing CPU, when all uses are over; loom checks it.
                        Reader::ByStamp => assert_eq!(stamped.with(|n| unsafe { *n }), 0),
                    }
                    announce(&epoch);
                });
                let section = pin();
                let found = (kind == Reader::Late).then(|| ptr.load(&section)).flatten();
                turns.take(9, || found.into_iter().for_each(Target::look));
            }),
            spawn(3, {
                let stamp = stamp.clone();
                move || {
                    let ((turns, epoch), stamped) = freer;
                    turns.take(8, || {
                        if kind != Reader::ByStamp {
                            epoch.reclaim_of(&pin(), 0);
                        } else if epoch.current() >= stamp.load(SeqCst) + 3 {
                            // SAFETY: as above.
                            stamped.with_mut(|n| unsafe { *n = 1 });
                        }
                    });
                }
            }),
        ];
        turns.take(0, || {
            ptr.replace(&epoch, &pin(), None);
            stamp.store(epoch.current(), SeqCst);
        });
        turns.take(3, || announce(&epoch));
        turns.take(5, || announce(&epoch));
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn who_announced_twice_since_an_unlink_finds_nothing() {
    ANNOUNCE
        .into_iter()
        .for_each(|announce| four(announce, Reader::Late));
}

#[test]
fn who_frees_for_another_cpu_comes_after_all_looks() {
    ANNOUNCE
        .into_iter()
        .for_each(|announce| four(announce, Reader::Early));
}

#[test]
fn who_frees_by_stamps_comes_after_all_looks() {
    ANNOUNCE
        .into_iter()
        .for_each(|announce| four(announce, Reader::ByStamp));
}

/// Four CPUs: one unlinks (0), one reads (1), one checks whether the last step can be made and finds that it must wait
/// for another (2), which continues that check, makes the step and frees (3): it knows of the reader's announcement
/// only through the check that was given up.
#[test]
fn who_goes_on_with_a_look_comes_after_all_looks_at_the_target() {
    for announce in ANNOUNCE {
        Turns::model(move |turns| {
            let epoch = Arc::new(Epoch::new(4));
            let ptr = Arc::new(EpochPtr::new(Some(target())));
            let all = || (turns.clone(), epoch.clone());
            let (reader, stepper, freer) = ((all(), ptr.clone()), all(), all());
            let threads = [
                spawn(1, move || {
                    let ((turns, epoch), ptr) = reader;
                    turns.take(2, || announce(&epoch));
                    turns.take(7, || {
                        look(&ptr);
                        announce(&epoch);
                    });
                }),
                spawn(2, move || {
                    let (turns, epoch) = stepper;
                    for turn in [1, 5] {
                        turns.take(turn, || {
                            epoch.advance();
                            announce(&epoch);
                        });
                    }
                    // CPU 3 is missing.
                    turns.take(8, || epoch.advance());
                }),
                spawn(3, move || {
                    let (turns, epoch) = freer;
                    turns.take(4, || announce(&epoch));
                    turns.take(9, || {
                        announce(&epoch);
                        epoch.reclaim_of(&pin(), 0);
                    });
                }),
            ];
            turns.take(0, || ptr.replace(&epoch, &pin(), None));
            turns.take(3, || announce(&epoch));
            turns.take(6, || announce(&epoch));
            threads.into_iter().for_each(|t| t.join().unwrap());
        });
    }
}

#[test]
fn synchronize_waits_for_open_sections() {
    model(3, || {
        let epoch = Arc::new(Epoch::new(2));
        let open = Arc::new((AtomicBool::new(true), UnsafeCell::new(0)));
        let reader = spawn(1, {
            let (epoch, open) = (epoch.clone(), open.clone());
            move || {
                for _ in 0..3 {
                    {
                        let _section = pin();
                        if open.0.load(Relaxed) {
                            // SAFETY: written after all sections that find it open; loom checks it.
                            assert_eq!(open.1.with(|n| unsafe { *n }), 0);
                        }
                    }
                    // A waiting thread may loop meanwhile.
                    thread::yield_now();
                    thread::yield_now();
                    epoch.quiescent(&mut pin());
                    epoch.advance();
                }
                epoch.offline(1);
            }
        });
        open.0.store(false, Relaxed);
        epoch.synchronize();
        // SAFETY: as above.
        open.1.with_mut(|n| unsafe { *n = 1 });
        reader.join().unwrap();
    });
}

struct Nothing;

impl HubValue for Nothing {}

/// A member may outlive its epoch, which ends when no CPU is in a section any more: the member is then freed at once,
/// after everything that was done in sections.
#[test]
fn a_member_that_outlives_its_epoch_goes_after_all_looks() {
    Turns::model(|turns| {
        let epoch = Epoch::new(3);
        let hub: HubRef<Nothing, Target> = HubRef::new(&epoch, Nothing).ok().unwrap();
        let slot = Arc::new(MemberSlot::new(hub.attach(*target()).ok().unwrap()));
        drop(hub);
        let dropper = spawn(2, {
            let (turns, slot) = (turns.clone(), slot.clone());
            move || turns.take(2, || drop(slot.take()))
        });
        let reader = spawn(1, {
            let (turns, slot) = (turns.clone(), slot.clone());
            move || turns.take(0, || slot.value(&pin()).expect("attached").look())
        });
        reader.join().unwrap();
        turns.take(1, || drop(epoch));
        dropper.join().unwrap();
    });
}

#[test]
fn who_withdraws_a_target_sees_it_whole() {
    model(2, || {
        let epoch = Epoch::new(2);
        // The thread that made it reads nothing, so no grace period waits for it.
        epoch.offline(1);
        let ptr = Arc::new(EpochPtr::new(None));
        let maker = spawn(1, {
            let ptr = ptr.clone();
            move || assert!(ptr.set_if_none(target()).is_ok())
        });
        if let Some(found) = ptr.withdraw(&epoch) {
            found.look();
        }
        maker.join().unwrap();
    });
}

/// A unit is charged on one CPU to replace another one that is returned elsewhere: a CPU that sees the return sees the
/// new charge.
#[test]
fn with_a_return_all_is_seen_that_was_charged_before() {
    Turns::model(|turns| {
        let tally = Arc::new(Tally::<1>::new(3, [i64::MAX]));
        let handed = Arc::new(AtomicBool::new(false));
        tally.charge(&pin(), 0, 1);
        let keeper = spawn(1, {
            let (turns, tally, handed) = (turns.clone(), tally.clone(), handed.clone());
            move || {
                turns.take(0, || {
                    tally.charge(&pin(), 0, 1);
                    handed.store(true, Release);
                });
            }
        });
        let returner = spawn(2, {
            let (turns, tally, handed) = (turns.clone(), tally.clone(), handed.clone());
            move || {
                turns.take(1, || {
                    if handed.load(Acquire) {
                        tally.give_back(&pin(), 0, 1);
                    }
                });
            }
        });
        // Not this thread, which made the words: loom shows it no values older than its wait.
        let looker = spawn(0, move || {
            turns.take(2, || assert!(!tally.is_settled()));
        });
        for thread in [keeper, returner, looker] {
            thread.join().unwrap();
        }
    });
}
