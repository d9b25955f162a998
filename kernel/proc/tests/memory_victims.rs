//! Which processes end when memory is out while others are dying or may not be killed, and how long that takes.
#![cfg(not(shuttle))]

mod memory_users;
mod programs;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use abi::raw::general as raw;
use memory_users::{
    KILLED, REFUSED, begin, hog, holder_of, lives, stay, stay_on, touch, user_of, user_that,
    with_killer,
};
use proc::group::{Session, Terminal, setsid};
use proc::ids;
use proc::wait4::Children;
use programs::{MS, cell, count, take_memory, until, until_asleep};
use support::{clone, exited, fork, kill, me, nap, wait};
use task::park::{Deadline, Interruptible, sleep_until};
use task::time::monotonic_ns;

/// Waits until the process is being killed.
fn until_killed(pid: u32) {
    until(|| ids::find_process(pid).is_none_or(|p| p.is_ending()));
}

/// Milliseconds since boot.
fn now_ms() -> u64 {
    monotonic_ns() / MS
}

/// When the process ends, which it does soon; the caller does not wait for it.
fn time_of_end(pid: u32) -> u64 {
    let begun = now_ms();
    until(|| !lives(pid) || now_ms() - begun > 30_000);
    assert!(!lives(pid));
    now_ms()
}

#[test]
fn a_victim_that_dies_slowly_is_waited_for_and_no_other_is_killed() {
    with_killer(2, || {
        let slow = user_that(100, 1000, || stay_on(300));
        let other = user_of(300, 0);
        let longest = cell();
        let theirs = longest.clone();
        let last = Arc::new(AtomicU64::new(now_ms()));
        let hog = hog(move || {
            let now = now_ms();
            theirs.fetch_max(now - last.swap(now, SeqCst), SeqCst);
            !lives(slow)
        });
        assert_eq!(wait(Children::Any), Ok((slow, KILLED)));
        assert_eq!(wait(Children::Any), Ok((hog, exited(3))));
        assert!(lives(other));
        // It went on as soon as there was memory.
        let longest = longest.load(SeqCst);
        assert!(longest < 400, "{longest} ms");
    });
}

#[test]
fn a_victim_that_does_not_die_saves_no_other() {
    with_killer(2, || {
        let stuck = user_that(100, 1000, || stay_on(60_000));
        let second = user_of(60, 1000);
        let hog = hog(move || !lives(second));
        assert_eq!(wait(Children::Any), Ok((second, KILLED)));
        assert_eq!(wait(Children::Any), Ok((hog, exited(3))));
        assert_eq!(wait(Children::Any), Ok((stuck, KILLED)));
    });
}

#[test]
fn victims_follow_one_another_as_fast_as_the_memory_is_used() {
    with_killer(2, || {
        let victims = [100, 60].map(|pages| user_of(pages, 1000));
        let hog = hog(move || !lives(victims[1]));
        let ends = victims.map(time_of_end);
        assert!(ends[1] - ends[0] < 500, "{ends:?}");
        assert_eq!(wait(Children::Pid(hog)), Ok((hog, exited(3))));
    });
}

/// The victim is killed, and then there is one more process that shares its space, as if it had just been forked.
#[test]
fn a_process_that_shares_the_space_of_a_victim_is_killed_after_it() {
    with_killer(2, || {
        let shares = count();
        let theirs = shares.clone();
        let victim = user_that(100, 1000, move || {
            let own = me().pid();
            let sharer = clone(raw::CLONE_VM.into(), move || {
                me().set_oom_adj(-1000, true);
                until_killed(own);
                me().set_oom_adj(1000, true);
                stay()
            });
            theirs.store(sharer.expect("memory for a process"), SeqCst);
            stay()
        });
        until(|| shares.load(SeqCst) != 0);
        let sharer = shares.load(SeqCst);
        until(|| memory_users::find(sharer).oom_adj() == -1000);
        let hog = hog(move || !lives(sharer));
        let ends = [victim, sharer].map(time_of_end);
        assert!(ends[1] - ends[0] < 1000, "{ends:?}");
        assert_eq!(wait(Children::Pid(hog)), Ok((hog, exited(3))));
    });
}

/// A terminal that takes long to hang up.
struct Slow;

impl Terminal for Slow {
    fn number(&self) -> u64 {
        0
    }

    fn foreground(&self) -> u32 {
        0
    }

    fn leader_exited(&self, _session: &Session) {
        let _ = sleep_until(Deadline::after(3000 * MS), Interruptible::No);
    }

    fn hang_up(&self) {}
}

/// Makes the caller a process that takes long to end once it has left its memory.
fn end_slowly() {
    setsid().expect("the leader of no group");
    let session = me().session().expect("its own");
    session.set_terminal(Some(Arc::new(Slow)));
}

#[test]
fn a_victim_that_has_left_its_memory_is_not_waited_for() {
    with_killer(2, || {
        let first = user_that(100, 1000, || {
            end_slowly();
            stay()
        });
        let second = user_of(60, 1000);
        let victim = memory_users::find(first);
        let hog = hog(move || !lives(second));
        until(|| victim.space().is_none());
        let begun = now_ms();
        let ended = time_of_end(second);
        assert!(lives(first), "it takes long to end");
        assert!(ended - begun < 500, "{} ms", ended - begun);
        assert_eq!(wait(Children::Pid(hog)), Ok((hog, exited(3))));
    });
}

/// It has no memory any more.
#[test]
fn a_process_that_takes_long_to_end_is_not_waited_for_when_others_are_the_victims() {
    with_killer(2, || {
        let other = fork(|| {
            take_memory();
            end_slowly();
            0
        });
        let ends = || memory_users::find(other).space().is_none();
        until(ends);
        let victims = [100, 60].map(|pages| user_of(pages, 1000));
        let hog = hog(move || !lives(victims[1]));
        let times = victims.map(time_of_end);
        assert!(lives(other), "it takes long to end");
        assert!(times[1] - times[0] < 500, "{times:?}");
        assert_eq!(wait(Children::Pid(hog)), Ok((hog, exited(3))));
    });
}

/// The youngest programs are the victims while others, which are younger still, begin and end.
#[test]
fn processes_that_begin_after_the_victims_were_killed_are_not_waited_for() {
    with_killer(2, || {
        let small = || {
            fork(|| {
                begin();
                (0..30).for_each(|page| assert!(touch(page)));
                stay()
            })
        };
        let old: Vec<u32> = (0..24).map(|_| small()).collect();
        nap(5000);
        let young: Vec<u32> = (0..8).map(|_| small()).collect();
        young.iter().for_each(|&pid| until_asleep(pid));
        let killed = young.clone();
        // It takes long to end, whenever it has begun.
        fork(move || {
            until(|| killed.iter().any(|&pid| !lives(pid)));
            fork(|| {
                let _ = kill(me().pid(), 9);
                stay_on(2500)
            });
            stay()
        });
        let more = old.clone();
        fork(move || {
            begin();
            me().set_oom_adj(-1000, true);
            let next = |page: &u64| more.iter().all(|&pid| lives(pid)) && touch(*page);
            let _ = (0..memory_users::ALL).take_while(next).count();
            stay()
        });
        let first_end = |pids: &[u32]| {
            until(|| pids.iter().any(|&pid| !lives(pid)));
            now_ms()
        };
        let ends = [first_end(&young), first_end(&old)];
        assert!(ends[1] - ends[0] < 1000, "{ends:?}");
    });
}

#[test]
fn processes_that_may_not_be_killed_are_no_group_of_victims() {
    with_killer(2, || {
        let founder = fork(|| {
            take_memory();
            me().set_oom_adj(-1000, true);
            let members: Vec<u32> = (0..12)
                .map(|_| {
                    fork(|| {
                        memory_users::map_heap();
                        (0..120).for_each(|page| assert!(touch(page)));
                        stay()
                    })
                })
                .collect();
            members.into_iter().for_each(until_asleep);
            stay()
        });
        until_asleep(founder);
        let hog = hog(|| false);
        assert_eq!(wait(Children::Any), Ok((hog, KILLED)));
        assert!(lives(founder));
    });
}

#[test]
fn a_program_that_may_not_be_killed_is_refused_memory_in_the_end() {
    with_killer(2, || {
        let other = fork(|| {
            take_memory();
            me().set_oom_adj(-1000, true);
            stay()
        });
        until_asleep(other);
        let immune = fork(|| {
            begin();
            me().set_oom_adj(-1000, true);
            let first = (0..memory_users::ALL).find(|&page| !touch(page));
            if first.is_some() { REFUSED } else { 0 }
        });
        let begun = now_ms();
        assert_eq!(wait(Children::Any), Ok((immune, exited(REFUSED))));
        // Some twenty seconds.
        let waited = now_ms() - begun;
        assert!((10_000..40_000).contains(&waited), "{waited} ms");
        assert!(lives(other));
    });
}

/// Descriptors of processes that cannot be killed, or are dying, do not make others have few.
#[test]
fn of_a_user_s_processes_those_that_can_be_killed_are_compared() {
    for is_dying in [false, true] {
        with_killer(2, move || {
            let most = holder_of(40, 1400, move || {
                if !is_dying {
                    me().set_oom_adj(-1000, true);
                }
                stay_on(60_000)
            });
            let ordinary = holder_of(4, 1600, || stay());
            if is_dying {
                assert!(kill(most, 9));
            }
            hog(move || !lives(ordinary));
            assert_eq!(wait(Children::Any), Ok((ordinary, KILLED)));
        });
    }
}

#[test]
fn victims_are_first_those_that_cost_more_than_the_descriptors_of_a_user() {
    with_killer(2, || {
        let holder = holder_of(4, 700, || stay());
        let large = user_of(300, 1000);
        hog(move || !lives(large));
        assert_eq!(wait(Children::Any), Ok((large, KILLED)));
        assert!(lives(holder));
    });
}

#[test]
fn processes_with_fewer_descriptors_are_killed_once_the_others_are_gone() {
    with_killer(2, || {
        let few = holder_of(1, 1500, || stay());
        let many = holder_of(9, 1500, || stay_on(2000));
        hog(move || !lives(few));
        // A zombie that its parent does not wait for has no memory.
        let ends = [many, few].map(time_of_end);
        assert!((1..1000).contains(&(ends[1] - ends[0])), "{ends:?}");
        nap(10);
    });
}

#[test]
fn the_youngest_programs_are_waited_for_before_older_ones_are_killed() {
    with_killer(2, || {
        let small = |slow_ms| {
            fork(move || {
                begin();
                (0..30).for_each(|page| assert!(touch(page)));
                if slow_ms == 0 {
                    stay()
                } else {
                    stay_on(slow_ms)
                }
            })
        };
        let old: Vec<u32> = (0..24).map(|_| small(0)).collect();
        nap(5000);
        let young: Vec<u32> = (0..8).map(|_| small(2000)).collect();
        young.iter().for_each(|&pid| until_asleep(pid));
        let last = young.clone();
        fork(move || {
            begin();
            me().set_oom_adj(-1000, true);
            for page in 0..memory_users::ALL {
                if last.iter().any(|&pid| !lives(pid)) || !touch(page) {
                    break;
                }
            }
            stay()
        });
        until(|| young.iter().any(|&pid| !lives(pid)));
        assert!(old.into_iter().all(lives));
    });
}
