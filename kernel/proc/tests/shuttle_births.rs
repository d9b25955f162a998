//! Kills that meet forks, exits and waits, with a switch possible at every access to an atomic.
#![cfg(shuttle)]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use abi::raw::general as raw;
use hal::uaccess::UserPtr;
use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use proc::fork::{CloneArgs, ForkError};
use proc::group::setpgid;
use proc::reaper::set_subreaper;
use proc::signal::{self, SigInfo, SigSet, code, sig};
use proc::wait4::{Children, WaitError};
use proc::{Process, UserThreadExt, ids};
use signals::{
    STACK_TOP, USR1, block, catch, default, exec, idle, ignore, kill_group, run_child, thread,
    until,
};
use support::{clone, clone_with, exited, fork, kill, me, nap, on, poll, user_mode, wait};
use task::current::current;

/// The tasks of the model checker: the test, two CPUs' first threads, the boot thread, init, and what init makes.
const INIT: usize = 4;

/// A kill that finds the child's thread while it is being made ends the child.
#[test]
fn a_kill_reaches_a_child_that_is_being_made() {
    /// Schedules in which the kill found the child.
    static KILLS: AtomicUsize = AtomicUsize::new(0);
    let schedules = vm_host::one_stop::everywhere(INIT, || {
        on(2, || {
            let sent = Arc::new(AtomicU32::new(0));
            // Ids are given out in order.
            let next = Arc::new(AtomicU32::new(u32::MAX));
            let (theirs, target) = (sent.clone(), next.clone());
            let killer = fork(move || {
                let tid = target.load(SeqCst);
                if let Some(thread) = task::ids::hold_thread(tid) {
                    let info = SigInfo::user(sig::KILL, code::USER, 1, 0);
                    signal::send_process(thread.process(), info);
                    theirs.store(1, SeqCst);
                }
                0
            });
            next.store(killer + 1, SeqCst);
            let doomed = sent.clone();
            let child = fork(move || {
                for _ in 0..3 {
                    let killed = doomed.load(SeqCst) == 1;
                    user_mode();
                    assert!(!killed, "a process that was killed returns to user mode");
                    nap(1);
                }
                5
            });
            let (_, first) = wait(Children::Pid(killer)).expect("a child");
            assert_eq!(first, exited(0));
            let (_, status) = wait(Children::Pid(child)).expect("a child");
            let killed = sent.load(SeqCst) == 1;
            KILLS.fetch_add(usize::from(killed), SeqCst);
            assert_eq!(status == u32::from(sig::KILL), killed, "status {status:#x}");
        });
    });
    let kills = KILLS.load(SeqCst);
    assert!(
        kills > 0 && kills < schedules,
        "{kills} of {schedules} kills found a child"
    );
}

/// A fork during which all processes are killed makes no child that lives on.
#[test]
fn no_child_that_a_fork_makes_in_its_parents_group_escapes_a_kill() {
    vm_host::one_stop::everywhere(INIT + 1, || {
        on(2, || {
            fork(|| {
                // The kill may have come first.
                let _ = clone(0, || idle());
                idle()
            });
            ids::each_process(2, |p| kill(p.pid(), sig::KILL));
            while wait(Children::Any).is_ok() {}
        });
    });
}

/// A zombie whose parent ends and is reaped is that of the next parent, until that one waits for it.
#[test]
fn a_zombie_whose_parent_is_reaped_is_reported_by_the_next_one() {
    vm_host::one_stop::everywhere(INIT + 2, || {
        on(2, || {
            let child = Arc::new(AtomicU32::new(0));
            let theirs = child.clone();
            let parent = fork(move || {
                theirs.store(fork(|| 3), SeqCst);
                0
            });
            assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
            // It ends meanwhile.
            nap(1);
            let child = child.load(SeqCst);
            assert_eq!(wait(Children::Pid(child)), Ok((child, exited(3))));
        });
    });
}

/// Waits until each process but init has been reaped.
fn until_no_process_is_left() {
    until(|| {
        let mut left = 0;
        ids::each_process(2, |_| {
            left += 1;
            true
        });
        left == 0
    });
}

/// A reaper that ends gives away a zombie that it has just got, and wants to discard.
#[test]
fn a_zombie_whose_reaper_ends_is_reported_to_the_next_one_or_gone() {
    vm_host::one_stop::everywhere(INIT + 2, || {
        on(2, || {
            fork(|| {
                set_subreaper(&me(), true);
                ignore(sig::CHLD);
                let parent = fork(|| {
                    default(sig::CHLD);
                    let zombie = fork(|| 0);
                    until(|| ids::find_process(zombie).is_some_and(|p| p.is_zombie()));
                    0
                });
                until(|| ids::find_process(parent).is_none_or(|p| p.is_ending()));
                0
            });
            while wait(Children::Any).is_ok() {}
            until_no_process_is_left();
        });
    });
}

/// A child that lives when its parent has begun to discard children does not become a zombie.
#[test]
fn a_child_that_ends_when_its_parent_ignores_that_is_no_zombie() {
    vm_host::one_stop::everywhere(INIT_OF_THREE + 2, || {
        on(CPUS, || {
            run_child(|| {
                fork(|| 0);
                ignore(sig::CHLD);
                if poll() == Ok(None) {
                    assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
                }
            });
        });
    });
}

/// Kills all processes but init, and waits for one of them. False if none is left.
fn wait_while_killing() -> bool {
    ids::each_process(2, |p| kill(p.pid(), sig::KILL));
    wait(Children::Any).is_ok()
}

/// Two processes end, one of which is to get the children of the other.
#[test]
fn an_orphan_goes_to_no_reaper_that_has_ended() {
    vm_host::one_stop::everywhere(INIT + 2, || {
        on(2, || {
            let reaper = fork(|| {
                set_subreaper(&me(), true);
                let parent = fork(|| {
                    fork(|| idle());
                    0
                });
                until(|| ids::find_process(parent).is_none_or(|p| p.is_ending()));
                0
            });
            assert_eq!(wait(Children::Pid(reaper)), Ok((reaper, exited(0))));
            // The orphan is killed once it is a child, and no process is left.
            while wait_while_killing() {}
            until_no_process_is_left();
        });
    });
}

/// A process whose parent ends makes a sibling.
#[test]
fn a_sibling_that_is_made_as_the_parent_ends_is_a_child_of_the_next_parent() {
    vm_host::one_stop::everywhere(INIT + 2, || {
        on(2, || {
            let parent = fork(|| {
                fork(|| {
                    clone(raw::CLONE_PARENT.into(), || 7).expect("memory for a process");
                    0
                });
                0
            });
            assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
            while wait(Children::Any).is_ok() {}
            until_no_process_is_left();
        });
    });
}

/// A machine with a CPU for each process that acts, and the task of init there.
const CPUS: usize = 3;
const INIT_OF_THREE: usize = 2 + CPUS;

/// Whether the process is ending or gone.
fn ends(pid: u32) -> bool {
    ids::find_process(pid).is_none_or(|p| p.is_ending())
}

/// Waits for all children of the caller. Their pids and statuses.
fn wait_for_all() -> Vec<(u32, u32)> {
    core::iter::from_fn(|| wait(Children::Any).ok()).collect()
}

/// Makes a child that makes a child, stores its pid in `orphan` and ends. Returns when it ends.
fn leave_an_orphan(orphan: &Arc<AtomicU32>) {
    let orphan = orphan.clone();
    let parent = fork(move || {
        orphan.store(fork(|| 3), SeqCst);
        0
    });
    until(|| ends(parent));
}

/// The reaper that an orphan is to go to ends, and so does the process between it and the next reaper; both are reaped.
#[test]
fn an_orphan_goes_to_the_next_reaper_when_those_between_are_reaped() {
    vm_host::one_stop::everywhere(INIT_OF_THREE + 4, || {
        on(CPUS, || {
            run_child(|| {
                set_subreaper(&me(), true);
                let orphan = Arc::new(AtomicU32::new(0));
                let theirs = orphan.clone();
                let between = fork(move || {
                    let theirs = theirs.clone();
                    let reaper = fork(move || {
                        set_subreaper(&me(), true);
                        leave_an_orphan(&theirs);
                        0
                    });
                    assert_eq!(wait(Children::Pid(reaper)), Ok((reaper, exited(0))));
                    0
                });
                assert_eq!(wait(Children::Pid(between)), Ok((between, exited(0))));
                let rest = wait_for_all();
                assert!(rest.contains(&(orphan.load(SeqCst), exited(3))), "{rest:?}");
            });
        });
    });
}

/// The parent of a process that ends is reaped while the process looks for a reaper.
#[test]
fn an_orphan_goes_to_the_nearest_reaper_when_the_parent_between_is_reaped() {
    vm_host::one_stop::everywhere(INIT_OF_THREE + 3, || {
        on(CPUS, || {
            run_child(|| {
                set_subreaper(&me(), true);
                let orphan = Arc::new(AtomicU32::new(0));
                let theirs = orphan.clone();
                let between = fork(move || {
                    leave_an_orphan(&theirs);
                    0
                });
                assert_eq!(wait(Children::Pid(between)), Ok((between, exited(0))));
                let rest = wait_for_all();
                assert!(rest.contains(&(orphan.load(SeqCst), exited(3))), "{rest:?}");
            });
        });
    });
}

/// A process that names this one as its parent.
fn child_of(pid: u32) -> Option<u32> {
    let mut child = None;
    ids::each_process(2, |p| {
        child = (p.ppid() == pid).then(|| p.pid());
        child.is_none()
    });
    child
}

/// Until its parent lists it, a child that is made with CLONE_PARENT looks like one of the process that makes it.
#[test]
fn a_wait_for_a_sibling_that_is_being_made_ends() {
    vm_host::one_stop::everywhere(INIT_OF_THREE + 3, || {
        on(CPUS, || {
            run_child(|| {
                let maker = fork(|| {
                    let made = Arc::new(AtomicU32::new(0));
                    let theirs = made.clone();
                    thread(move || {
                        let flags = u64::from(abi::raw::general::CLONE_PARENT);
                        theirs.store(clone(flags, || 3).expect("memory for a process"), SeqCst);
                    });
                    until(|| child_of(me().pid()).is_some() || made.load(SeqCst) != 0);
                    if let Some(seen) = child_of(me().pid()) {
                        assert_eq!(wait(Children::Pid(seen)), Err(WaitError::NoChild));
                    }
                    until(|| made.load(SeqCst) != 0);
                    0
                });
                let ended = wait_for_all();
                assert!(ended.contains(&(maker, exited(0))), "{ended:?}");
                assert_eq!(ended.len(), 2);
            });
        });
    });
}

/// What clone(2) returns.
type Made = Result<u32, ForkError>;

/// One thread forks. Another one finds the child while it is being made and sends a signal to the group, so that it is not made
/// after all. Then it does something with the child, and is told whether the fork has returned. Before that the process prepares
/// itself. Returns how many children were not made.
fn refuse(prepare: fn(), make: fn() -> Made, then: fn(&Process, &AtomicU32)) -> u32 {
    let refused = Arc::new(AtomicUsize::new(0));
    let count = refused.clone();
    vm_host::one_stop::everywhere(INIT + 2, move || {
        let count = count.clone();
        on(2, move || {
            run_child(move || {
                prepare();
                assert_eq!(setpgid(me().pid(), me().pid()), Ok(()));
                catch(USR1);
                let (done, count) = (Arc::new(AtomicU32::new(0)), count.clone());
                let theirs = done.clone();
                thread(move || {
                    if let Err(why) = make() {
                        assert_eq!(why, ForkError::Signal);
                        count.fetch_add(1, SeqCst);
                    }
                    block(&[USR1]);
                    theirs.store(1, SeqCst);
                });
                block(&[USR1]);
                // The other CPU must get to its work.
                (0..3).for_each(|_| hal::cpu::relax());
                until(|| child_of(me().pid()).is_some() || done.load(SeqCst) != 0);
                if let Some(child) = child_of(me().pid()).and_then(ids::find_process) {
                    assert_eq!(kill_group(me().pid(), USR1), Ok(()));
                    then(&child, &done);
                }
                until(|| done.load(SeqCst) != 0);
                signal::take(&current(), SigSet::one(USR1));
                wait_for_all();
            });
        });
    });
    refused.load(SeqCst) as u32
}

fn nothing() {}

/// CLONE_PARENT_SETTID, and CLONE_CHILD_SETTID in memory that both have: the words stay as they are.
#[test]
fn the_tid_of_a_child_that_is_not_made_is_stored_nowhere() {
    const WORD: u64 = STACK_TOP - 64;
    let make = || {
        let flags = raw::CLONE_VM | raw::CLONE_PARENT_SETTID | raw::CLONE_CHILD_SETTID;
        let args = CloneArgs {
            flags: flags.into(),
            exit_signal: sig::CHLD,
            parent_tid: WORD,
            child_tid: WORD + 4,
            ..CloneArgs::default()
        };
        let made = clone_with(&args, 0, || 3);
        let words: [u32; 2] = UserPtr::new(WORD).read().expect("the program's stack");
        assert_eq!(words, [made.unwrap_or(0); 2]);
        made
    };
    assert!(refuse(exec, make, |_, _| {}) > 0);
}

#[test]
fn a_wait_for_a_child_that_a_fork_does_not_publish_ends() {
    let make = || clone(0, || 3);
    let refused = refuse(nothing, make, |child, _| {
        let ended = wait(Children::Pid(child.pid()));
        // If it has been made, the signal may end it.
        let made = ended.map(|(pid, _)| pid == child.pid());
        assert!(
            matches!(made, Ok(true) | Err(WaitError::NoChild)),
            "{ended:?}"
        );
    });
    assert!(refused > 0);
}

#[test]
fn the_space_of_a_process_that_is_not_made_goes_while_another_looks() {
    let make = || clone(0, || 3);
    let refused = refuse(nothing, make, |child, done| {
        for _ in 0..200 {
            drop(child.space());
            hal::cpu::relax();
            if done.load(SeqCst) != 0 {
                break;
            }
        }
    });
    assert!(refused > 0);
}
