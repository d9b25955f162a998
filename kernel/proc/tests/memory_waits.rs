//! Waits for memory: which threads wait, for how long, and which take from the reserve instead.
#![cfg(not(shuttle))]

mod memory_users;
mod programs;
mod support;

use std::alloc::Layout;
use std::cell::RefCell;
use std::sync::atomic::Ordering::SeqCst;

use mem::{NoMemory, last_resort};
use memory_users::{give_back, hoard, in_need, stay_on, user_that, with_killer};
use proc::oom::wait_for_reserve;
use proc::wait4::Children;
use programs::{MS, count, next, until};
use support::{exited, fork, kill, me, nap, wait};
use task::current::current;
use task::kthread;
use task::time::monotonic_ns;
use vm::Rights;

/// Runs `body` as a process that the killer does not choose.
fn immune(body: impl Fn() -> u8 + Send + Sync + 'static) -> u32 {
    fork(move || {
        me().set_oom_adj(-1000, true);
        body()
    })
}

/// Runs `body` in a process that was killed, while memory is low.
fn killed_in_need(body: impl Fn() + Send + Sync + 'static) {
    with_killer(2, move || {
        let child = immune(move || {
            assert!(kill(me().pid(), 9));
            in_need(&body);
            1
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, 9)));
    });
}

/// How many milliseconds `act` takes.
fn ms_of(act: impl FnOnce()) -> u64 {
    let begun = monotonic_ns();
    act();
    (monotonic_ns() - begun) / MS
}

/// The rights with which the kernel's heap asks for a block when there is none, if the requests with `given` rights succeed.
fn asked(bytes: usize, given: &[Rights]) -> (bool, Vec<Rights>) {
    asked_until(bytes, |rights, _| given.contains(&rights))
}

/// As above, if a request succeeds when `given` says so, which is told how many there were before.
fn asked_until(bytes: usize, given: impl Fn(Rights, usize) -> bool) -> (bool, Vec<Rights>) {
    let asked = RefCell::new(Vec::new());
    let layout = Layout::from_size_align(bytes, 8).expect("a size");
    let block = last_resort(layout, |rights| {
        let before = asked.borrow().len();
        asked.borrow_mut().push(rights);
        match given(rights, before) {
            true => core::ptr::dangling_mut::<u64>().cast(),
            false => core::ptr::null_mut(),
        }
    });
    (!block.is_null(), asked.into_inner())
}

#[test]
fn a_wait_for_memory_that_is_there_ends_at_once() {
    with_killer(2, || {
        assert_eq!(ms_of(wait_for_reserve), 0);
        assert_eq!(mem::admit_process(), Ok(()));
    });
}

#[test]
fn a_process_is_admitted_as_soon_as_there_is_memory() {
    with_killer(2, || {
        let child = immune(|| {
            let pages = hoard();
            let ended = count();
            let theirs = ended.clone();
            let giver = kthread::spawn("giver", None, 0, move || {
                nap(700);
                give_back(pages.clone());
                next(&theirs);
            });
            assert!(giver.is_ok());
            let took = ms_of(|| assert_eq!(mem::admit_process(), Ok(())));
            assert!((600..1300).contains(&took), "{took} ms");
            until(|| ended.load(SeqCst) == 1);
            0
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

#[test]
fn a_process_is_refused_when_there_is_no_memory_for_a_long_time() {
    with_killer(2, || {
        let child = immune(|| {
            let took = in_need(|| ms_of(|| assert_eq!(mem::admit_process(), Err(NoMemory))));
            assert!((2000..4000).contains(&took), "{took} ms");
            0
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

#[test]
fn init_goes_on_without_memory_after_some_time() {
    with_killer(2, || {
        let took = in_need(|| ms_of(wait_for_reserve));
        assert!((2000..4000).contains(&took), "{took} ms");
    });
}

#[test]
fn a_process_that_owes_memory_ends_if_no_other_can_give_any() {
    with_killer(2, || {
        let child = immune(|| {
            in_need(wait_for_reserve);
            assert!(current().kill_pending());
            1
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, 9)));
    });
}

#[test]
fn a_killed_thread_does_not_wait_for_memory() {
    killed_in_need(|| {
        assert_eq!(ms_of(wait_for_reserve), 0);
        assert_eq!(mem::admit_process(), Err(NoMemory));
        let (got, rights) = asked(64, &[Rights::Kernel, Rights::Reserve]);
        assert_eq!((got, rights), (true, vec![Rights::Reserve]));
    });
}

#[test]
fn the_heap_takes_from_the_reserve_what_it_cannot_wait_for() {
    with_killer(2, || {
        let all = [Rights::Kernel, Rights::Reserve];
        // Memory is not low: others have given some back meanwhile.
        assert_eq!(asked(64, &all), (true, vec![Rights::Reserve]));
        let child = immune(move || {
            in_need(|| {
                // More than a page.
                assert_eq!(asked(8192, &all), (false, vec![]));
                // After a wait.
                assert_eq!(asked(64, &all), (true, vec![Rights::Kernel]));
                // After six waits.
                let some = [Rights::Reserve];
                let (got, rights) = asked(4096, &some);
                assert!(got);
                assert_eq!(rights.len(), 7);
                assert_eq!(rights[6], Rights::Reserve);
                // Not with preemption off.
                let pin = ksync::pin();
                assert_eq!(asked(64, &all), (true, vec![Rights::Reserve]));
                drop(pin);
            });
            0
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

/// The killer waits five seconds for each victim, longer than a thread tries for more than the reserve.
#[test]
fn a_thread_that_may_be_killed_leaves_the_last_pages_to_others() {
    with_killer(2, || {
        for pages in [300, 400, 500] {
            user_that(pages, 500, || stay_on(20_000));
        }
        let child = fork(|| {
            // The others are killed first; what they give is taken, too.
            me().set_oom_adj(-999, true);
            let more = RefCell::new(Vec::new());
            let (got, rights) = in_need(|| {
                asked_until(64, |rights, _| {
                    more.borrow_mut().extend(hoard());
                    rights != Rights::Kernel
                })
            });
            give_back(more.into_inner());
            assert!(got);
            assert_eq!(
                rights,
                [[Rights::Kernel; 6].as_slice(), &[Rights::Table]].concat()
            );
            0
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

#[test]
fn a_killed_thread_sleeps_until_there_is_a_last_page() {
    killed_in_need(|| {
        let begun = monotonic_ns();
        let (got, rights) = asked_until(64, |_, before| before == 3);
        assert!(got && (monotonic_ns() - begun) / MS >= 30);
        assert_eq!(rights, [Rights::Reserve; 4]);
        // Not where it cannot sleep.
        let pin = ksync::pin();
        let refused = asked_until(64, |_, before| before == 3);
        drop(pin);
        assert_eq!(refused, (false, vec![Rights::Reserve]));
    });
}
