//! Processes that change while others look at them, on several CPUs at once: each look sees a change as a whole or not at all.
#![cfg(not(shuttle))]

mod programs;
#[path = "support/signals.rs"]
mod signals;
#[path = "support/storm.rs"]
mod storms;
mod support;

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use abi::raw::general as raw;
use cred::{Cred, LookAs};
use proc::process::{Brk, flag};
use proc::rlimit::Limit;
use proc::signal::sig;
use proc::uts::{NAME_MAX, Which};
use proc::wait4::Children;
use proc::{CredentialsExt, Process, Resource, UserThreadExt, ids};
use programs::{
    become_user, count, create, install, join, next, run, take_memory, thread, until, with_memory,
};
use storms::{CPUS, Storm, pass_time, pass_time_until};
use support::{clone, exited, fork, kill, me, wait};
use task::current::current;
use task::kthread;
use task::thread::Thread;
use vm_host::random::Random;

/// A user of the tests.
const USER: u32 = 1000;
/// Turns that each part of a storm takes at least.
const TURNS: u32 = 500;
/// Children that each of two threads makes at least.
const CHILDREN: u32 = 12;

/// The processes that a storm looks at, by their pids; 0 for none.
#[derive(Clone, Default)]
struct Subjects(Arc<[AtomicU32; 3]>);

impl Subjects {
    /// The process of the storm's threads.
    const PARENT: usize = 0;
    /// The child that it has made last.
    const CHILD: usize = 1;
    /// A process whose leader has exited.
    const HEADLESS: usize = 2;

    fn set(&self, which: usize, pid: u32) {
        self.0[which].store(pid, SeqCst);
    }

    fn any(&self, random: &mut Random) -> Option<Arc<Process>> {
        ids::find_process(self.0[random.below(3)].load(SeqCst))
    }
}

/// Bytes between the bounds of each heap of a storm.
const HEAP: u64 = 4096;

fn change_heap(random: &mut Random) {
    let p = me();
    let _changing = p.lock_brk();
    let before = p.brk();
    assert!(is_whole_heap(before));
    let start = random.below_u64(1 << 30);
    p.set_brk(Brk {
        start,
        end: start + HEAP,
    });
}

/// A heap that was set as one, or that of a program that has just begun.
fn is_whole_heap(heap: Brk) -> bool {
    heap.end - heap.start == HEAP || heap.end == heap.start
}

/// The distance of each hard limit of a storm from the soft one.
const MARGIN: u64 = 77;

fn change_limit(random: &mut Random) {
    let soft = random.below_u64(1000);
    let hard = soft + MARGIN;
    let old = me().set_limit(Resource::Fsize, Limit { soft, hard }, true);
    assert!(is_whole_limit(old.expect("a privileged caller")));
}

fn is_whole_limit(limit: Limit) -> bool {
    limit.hard == u64::MAX || limit.hard - limit.soft == MARGIN
}

/// The caller, which leads its process, becomes one of another group.
fn change_group(random: &mut Random) {
    let gid = 1 + random.below(1000) as u32;
    let cred = Cred {
        gid,
        egid: gid,
        ..(*current().cred()).clone()
    };
    current().set_cred(cred).expect("memory for credentials");
}

fn change_hostname(random: &mut Random) {
    let letter = b'a' + random.below(26) as u8;
    Which::Host.set(&[letter; 40][..10 + random.below(30)]);
}

/// Reads the host name, all of whose letters are the same but for that of a new system.
fn read_hostname() {
    let mut name = [0; NAME_MAX];
    let len = Which::Host.get(&mut name);
    let (name, rest) = name.split_at(len);
    assert!(name == b"pantala" || name.iter().all(|c| *c == name[0]));
    assert!(rest.iter().all(|c| *c == 0));
}

/// Looks at one part of a process.
fn look_at(p: &Process, random: &mut Random) {
    match random.below(13) {
        0 => assert!(is_whole_limit(p.limit(Resource::Fsize))),
        1 => {
            let cred = p.cred();
            assert_eq!(cred.gid, cred.egid);
            assert!(p.payer().is(cred.payer));
        }
        2 => assert!(is_whole_heap(p.brk())),
        3 | 12 => {
            let image = p.image_shown(None, LookAs::Real);
            assert!(is_whole_heap(image.expect("a privileged caller").brk));
        }
        4 => drop((p.space(), p.fs())),
        5 => assert!(p.open_file(0).is_some() || p.open_descriptors() == 0 || p.is_zombie()),
        6 => assert!(p.next_open_file(0).is_none_or(|(fd, _)| fd == 0)),
        7 => {
            let (first, then) = (p.times(), p.times());
            assert!(first.sys_ns + first.user_ns <= then.sys_ns + then.user_ns);
        }
        8 => drop(p.child_times()),
        9 => {
            let mut threads = 0;
            p.each_thread(|t| {
                assert_eq!(t.process().pid(), p.pid());
                threads += 1;
                true
            });
            assert!(threads <= 5);
        }
        10 => assert_eq!(&p.comm()[..6], b"plain\0"),
        _ => {
            let init = ids::find_process(1).expect("init");
            assert!(init.sleeps_since(0));
            p.sleeps_since(0);
            kill(p.pid(), sig::URG);
        }
    }
}

/// A process that looks at the others.
fn onlooker(storm: &Arc<Storm>, subjects: &Subjects, seed: u64) -> u32 {
    let (storm, subjects) = (storm.clone(), subjects.clone());
    fork(move || {
        storm.part(seed, TURNS, |random| {
            if let Some(p) = subjects.any(random) {
                (0..4).for_each(|_| look_at(&p, random));
            }
            read_hostname();
        });
        0
    })
}

/// What a child of the storm does: it uses what it has, becomes another program, and ends.
fn short_life() -> u8 {
    for _ in 0..3 {
        proc::forget_files();
        let files = proc::with_files(|files| files.get(0).is_ok());
        assert_eq!(files, Some(true));
        assert!(proc::with_fs(|_| ()).is_some());
        pass_time();
    }
    take_memory();
    pass_time();
    0
}

/// Makes a child that shares some of what the caller has, and waits for its end.
fn have_child(subjects: &Subjects, random: &mut Random) {
    let shared = [
        0,
        raw::CLONE_FILES,
        raw::CLONE_FS,
        raw::CLONE_VM | raw::CLONE_SIGHAND,
    ];
    let flags = shared[random.below(shared.len())];
    let theirs = subjects.clone();
    let child = clone(flags.into(), move || {
        theirs.set(Subjects::CHILD, me().pid());
        short_life()
    });
    let child = child.expect("memory for a process");
    let p = ids::find_process(child).expect("a child that was not waited for");
    pass_time_until(|| p.is_zombie());
    (0..5).for_each(|_| pass_time());
    assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
}

/// A process whose leader has exited, and whose other thread lives until the storm is over.
fn headless(storm: &Arc<Storm>) -> u32 {
    let storm = storm.clone();
    let pid = fork(move || {
        let storm = storm.clone();
        thread(move || pass_time_until(|| storm.is_over()));
        proc::exit::exit_thread(0)
    });
    until(|| ids::find_thread(pid).is_none());
    pid
}

#[test]
fn looks_at_processes_beside_their_changes_see_each_change_as_a_whole() {
    with_memory(CPUS, || {
        let file = create("/file", 0o600);
        let added = proc::with_files(|files| files.add(file, false, 0, 100));
        assert!(matches!(added, Some(Ok(0))));
        let (storm, subjects) = (Storm::of(7), Subjects::default());
        subjects.set(Subjects::PARENT, me().pid());
        let headless = headless(&storm);
        subjects.set(Subjects::HEADLESS, headless);
        let onlookers = [1, 2].map(|seed| onlooker(&storm, &subjects, seed));
        let changers = [3, 4].map(|seed| {
            let storm = storm.clone();
            thread(move || {
                storm.part(seed, TURNS, |random| match random.below(4) {
                    0 => change_heap(random),
                    1 => change_limit(random),
                    2 => change_hostname(random),
                    _ => look_at(&me(), random),
                })
            })
        });
        let parents = [5, 6].map(|seed| {
            let (storm, subjects) = (storm.clone(), subjects.clone());
            thread(move || storm.part(seed, CHILDREN, |random| have_child(&subjects, random)))
        });
        storm.part(7, TURNS, |random| match random.below(3) {
            0 => change_group(random),
            1 => change_heap(random),
            _ => change_limit(random),
        });
        changers.into_iter().chain(parents).for_each(join);
        for pid in onlookers.into_iter().chain([headless]) {
            assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
        }
    });
}

/// Whether the caller has the same program as another process.
fn runs_program_of(pid: u32) -> bool {
    let other = ids::find_process(pid).expect("a process that lives");
    let (own, others) = (me().image().program, other.image().program);
    assert!(others.args.0 != 0 && others.env().1 >= others.args.1);
    (own.args, own.env(), own.stack_start) == (others.args, others.env(), others.stack_start)
}

#[test]
fn children_of_a_process_that_others_look_at_have_its_program() {
    with_memory(CPUS, || {
        install("/program", 0o755, |_| {
            let (storm, parent) = (Storm::of(4), me().pid());
            let onlookers = [1, 2].map(|seed| {
                let storm = storm.clone();
                fork(move || {
                    storm.part(seed, TURNS, |_| assert!(runs_program_of(parent)));
                    0
                })
            });
            let parents = [3, 4].map(|seed| {
                let storm = storm.clone();
                let one_more = move |_: &mut Random| {
                    let child = fork(move || u8::from(runs_program_of(parent)));
                    assert_eq!(wait(Children::Pid(child)), Ok((child, exited(1))));
                };
                thread(move || storm.part(seed, 4 * CHILDREN, one_more))
            });
            parents.into_iter().for_each(join);
            for pid in onlookers {
                assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
            }
            0
        });
        panic!("{:?}", run("/program"));
    });
}

/// A hidden process executes a program that its user may look at, and has a file open that the program does not get.
#[test]
fn a_program_is_shown_once_its_caller_s_files_are_closed() {
    with_memory(CPUS, || {
        let storm = Storm::of(3);
        // Odd during an execve.
        let (calls, theirs) = (count(), storm.clone());
        let counted = calls.clone();
        let program = fork(move || {
            let file = create("/secret", 0o600);
            become_user(USER);
            theirs.part(1, 20 * TURNS, |_| {
                me().set_switch(flag::DUMPABLE, false);
                let added = proc::with_files(|files| files.add(file.clone(), true, 0, 100));
                assert!(matches!(added, Some(Ok(0))));
                next(&counted);
                take_memory();
                next(&counted);
            });
            0
        });
        let onlookers = [2, 3].map(|seed| {
            let (storm, calls) = (storm.clone(), calls.clone());
            fork(move || {
                become_user(USER);
                let p = ids::find_process(program).expect("it has not been waited for");
                storm.part(seed, TURNS, |_| {
                    let call = calls.load(SeqCst);
                    let shown = p.image_shown(None, LookAs::Real).is_ok();
                    let open = p.open_file(0).is_some();
                    let ended = call % 2 == 0 || calls.load(SeqCst) != call;
                    assert!(ended || !shown || !open);
                });
                0
            })
        });
        for pid in onlookers.into_iter().chain([program]) {
            assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
        }
    });
}

/// The kernel's own process.
fn kernel_process() -> Arc<Process> {
    let process = Arc::new(Mutex::new(None));
    let theirs = process.clone();
    let tid = kthread::spawn("worker", None, 0, move || {
        *theirs.lock().unwrap() = Some(me());
    });
    let tid = tid.expect("memory for a thread");
    until(|| ids::find_thread(tid).is_none());
    let process = process.lock().unwrap().take();
    process.expect("the process of that thread")
}

#[test]
fn kernel_threads_that_are_made_at_once_are_listed_as_long_as_they_live() {
    with_memory(CPUS, || {
        let storm = Storm::of(3);
        let ran = count();
        let kernel = kernel_process();
        let before = kernel.thread_count();
        let made = count();
        let makers = [1, 2].map(|seed| {
            let (storm, ran, made) = (storm.clone(), ran.clone(), made.clone());
            thread(move || {
                storm.part(seed, 4 * CHILDREN, |_| {
                    let ran = ran.clone();
                    let run = move || _ = next(&ran);
                    let spawned = kthread::spawn("worker", None, 0, run);
                    next(&made);
                    let tid = spawned.expect("memory for a thread");
                    pass_time_until(|| ids::find_thread(tid).is_none());
                })
            })
        });
        storm.part(3, TURNS, |_| {
            // A walk may meet any number of workers, one after the other, but none twice.
            let mut listed: Vec<Arc<Thread>> = Vec::new();
            kernel.each_thread(|t| {
                assert!(t.is_kernel());
                assert!(!listed.iter().any(|other| Arc::ptr_eq(other, t)));
                listed.push(t.clone());
                true
            });
            assert!(listed.len() >= before as usize, "{}", listed.len());
        });
        makers.into_iter().for_each(join);
        assert_eq!(ran.load(SeqCst), made.load(SeqCst));
        until(|| kernel.thread_count() == before);
    });
}
