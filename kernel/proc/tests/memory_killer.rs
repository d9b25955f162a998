//! Which processes end when memory is out, and which go on.
#![cfg(not(shuttle))]

mod memory_users;
mod programs;
mod support;

use std::sync::atomic::Ordering::SeqCst;

use mem::vm;
use memory_users::{
    ALL, KILLED, begin, find, hog, holder_of, lives, stay, touch, user_of, with_killer,
};
use proc::oom;
use proc::wait4::Children;
use programs::{MS, become_user, count, install, next, run, take_memory, until, until_asleep};
use support::{exited, fork, kill, me, nap, on, wait};

#[test]
fn the_score_grows_with_the_memory_that_a_process_uses() {
    on(1, || {
        let (small, large) = (user_of(10, 0), user_of(300, 0));
        let total = vm().alloc.total_pages() as u64;
        let score = |pid| oom::score(&find(pid));
        // In thousandths of all memory.
        let more = score(large) - score(small);
        assert!(more.abs_diff(290 * 1000 / total) <= 2, "{more}");
        assert!(score(small) >= 10 * 1000 / total);
        assert!(kill(large, 9));
        nap(20);
        assert_eq!(score(large), 0);
    });
}

#[test]
fn an_adjustment_adds_thousandths_of_the_memory() {
    on(1, || {
        let pid = user_of(50, 0);
        let p = find(pid);
        let base = oom::score(&p);
        for (adj, more) in [(100, 100), (1000, 1000), (-1, -1)] {
            p.set_oom_adj(adj, false);
            let score = oom::score(&p) as i64;
            assert!((score - base as i64 - more).abs() <= 2, "{score} at {adj}");
        }
        p.set_oom_adj(-1000, false);
        assert_eq!(oom::score(&p), 0);
    });
}

#[test]
fn an_adjustment_is_inherited_and_privilege_lowers_its_least_value() {
    on(1, || {
        me().set_oom_adj(300, true);
        assert_eq!((me().oom_adj(), me().oom_adj_min()), (300, 300));
        me().set_oom_adj(500, false);
        assert_eq!((me().oom_adj(), me().oom_adj_min()), (500, 300));
        let child = fork(|| {
            assert_eq!((me().oom_adj(), me().oom_adj_min()), (500, 300));
            me().set_oom_adj(7, true);
            take_memory();
            u8::from((me().oom_adj(), me().oom_adj_min()) == (7, 7))
        });
        assert_eq!(wait(Children::Any), Ok((child, exited(1))));
        assert_eq!(me().oom_adj(), 500);
    });
}

#[test]
fn a_process_that_takes_all_memory_is_killed_and_no_other() {
    with_killer(2, || {
        let others = [user_of(100, 0), user_of(200, 0)];
        let hog = hog(|| false);
        assert_eq!(wait(Children::Any), Ok((hog, KILLED)));
        assert!(others.into_iter().all(lives));
    });
}

#[test]
fn the_adjustment_decides_before_the_size() {
    with_killer(2, || {
        let chosen = user_of(20, 1000);
        let other = user_of(200, 0);
        let hog = hog(move || !lives(chosen));
        assert_eq!(wait(Children::Any), Ok((chosen, KILLED)));
        assert_eq!(wait(Children::Any), Ok((hog, exited(3))));
        assert!(lives(other));
    });
}

#[test]
fn a_process_with_the_least_adjustment_is_never_chosen() {
    with_killer(2, || {
        let immune = user_of(900, -1000);
        let second = user_of(300, 0);
        let hog = hog(move || !lives(second));
        // The second is the largest of those that may be chosen as long as the hog is smaller.
        let (first, status) = wait(Children::Any).expect("a child");
        assert_eq!(status, KILLED);
        assert!(first == second || first == hog);
        nap(100);
        assert!(lives(immune));
    });
}

#[test]
fn processes_forked_from_one_program_end_together_but_for_the_first() {
    with_killer(2, || {
        let other = user_of(250, 0);
        let ended = count();
        let theirs = ended.clone();
        let founder = fork(move || {
            begin();
            let children: Vec<u32> = (0..12)
                .map(|_| {
                    fork(|| {
                        for page in 0..ALL {
                            if !touch(page) {
                                stay();
                            }
                            nap(1);
                        }
                        0
                    })
                })
                .collect();
            let immune = fork(|| {
                me().set_oom_adj(-1000, true);
                stay()
            });
            for _ in &children {
                let (_, status) = wait(Children::Any).expect("a child");
                assert_eq!(status, KILLED);
                next(&theirs);
            }
            assert!(lives(immune));
            0
        });
        assert_eq!(wait(Children::Pid(founder)), Ok((founder, exited(0))));
        assert_eq!(ended.load(SeqCst), 12);
        assert!(lives(other));
    });
}

#[test]
fn processes_are_of_one_group_until_an_execve_or_a_change_of_the_user() {
    on(2, || {
        install("/p", 0o755, |_| {
            assert!(me().is_founder());
            stay()
        });
        let parent = fork(|| {
            take_memory();
            let group = me().exec_group();
            assert!(me().is_founder());
            let same = fork(|| stay());
            let other = fork(|| panic!("{:?}", run("/p")));
            let user = fork(|| {
                become_user(1000);
                stay()
            });
            for pid in [same, other, user] {
                until_asleep(pid);
            }
            assert_eq!(find(same).exec_group(), group);
            assert!(!find(same).is_founder());
            assert_ne!(find(other).exec_group(), group);
            assert_ne!(find(user).exec_group(), group);
            // An execve of the founder leaves its children in the old group.
            take_memory();
            assert_ne!(me().exec_group(), group);
            assert_eq!(find(same).exec_group(), group);
            0
        });
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
    });
}

/// What the kernel holds for descriptors counts as the memory of the processes that have them.
#[test]
fn the_user_for_whose_descriptors_the_kernel_holds_much_pays_first() {
    with_killer(2, || {
        let (_few, many) = (holder_of(1, 1500, || stay()), holder_of(9, 1500, || stay()));
        let other = user_of(100, 0);
        hog(move || !lives(many));
        assert_eq!(wait(Children::Any), Ok((many, KILLED)));
        assert!(lives(other));
    });
}

#[test]
fn memory_that_a_user_holds_is_no_fault_of_another() {
    // As little as the user holds, the largest process is what matters.
    for pages in [20, 60, 200] {
        with_killer(2, move || {
            let holder = holder_of(0, pages, || stay());
            let hog = hog(|| false);
            assert_eq!(wait(Children::Any), Ok((hog, KILLED)));
            assert!(lives(holder));
        });
    }
}

#[test]
fn many_small_programs_that_take_all_memory_lose_some_of_the_youngest() {
    with_killer(2, || {
        let old: Vec<u32> = (0..10).map(|_| user_of(30, 0)).collect();
        nap(5000);
        let young: Vec<u32> = (0..24)
            .map(|_| {
                fork(|| {
                    begin();
                    for page in 0..ALL {
                        if !touch(page) {
                            stay();
                        }
                        nap(1);
                    }
                    0
                })
            })
            .collect();
        let (first, status) = wait(Children::Any).expect("a child");
        assert_eq!(status, KILLED);
        assert!(young.contains(&first));
        nap(50);
        assert!(old.into_iter().all(lives));
        for pid in young.into_iter().filter(|&pid| pid != first) {
            kill(pid, 9);
        }
    });
}

#[test]
fn memory_is_whole_again_after_the_killer_has_worked() {
    with_killer(2, || {
        let spare = || vm().alloc.spare_pages();
        let settle = || {
            nap(3000);
            spare()
        };
        let before = settle();
        for _ in 0..3 {
            let hog = hog(|| false);
            assert_eq!(wait(Children::Any), Ok((hog, KILLED)));
        }
        let after = settle();
        assert!(after + 40 > before, "{before} pages, and then {after}");
        assert!(!vm().alloc.low_memory());
        until(|| task::time::monotonic_ns() > MS);
    });
}
