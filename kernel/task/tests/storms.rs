//! Storms: threads on four CPUs do random things to the same run queues, threads, ids and accounts at once. Then all that was
//! begun has ended, and nothing is left over.
#![cfg(not(shuttle))]

mod processes;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use cred::{Account, Charge, Cred};
use ksync::CpuPin;
use processes::{US, alarm, compute, ended, nap, nap_until, on, rung, spawn, wait_for_ends};
use task::ids::{self, Id};
use task::sched::{self, CpuMask};
use task::time::monotonic_ns;
use task::{Thread, account, current, kthread};
use vm_host::random::Random;

const CPUS: usize = 4;

/// Runs `act` many times on each CPU at once, with random numbers of that CPU's own, until all have ended.
fn storm(rounds: usize, act: impl Fn(&mut Random) + Clone + Send + 'static) {
    let before = ended();
    for cpu in 0..CPUS {
        let act = act.clone();
        spawn(Some(cpu), move || {
            let mut random = Random(0x5701 + cpu as u64);
            (0..rounds).for_each(|_| act(&mut random));
        });
    }
    wait_for_ends(before + CPUS as u32);
}

/// A random set of CPUs, not empty.
fn some_cpus(random: &mut Random) -> CpuMask {
    let mut words = CpuMask::one(0).words();
    words[0] = 1 + random.below_u64((1 << CPUS) - 1);
    CpuMask::from_words(words)
}

/// Short threads, and how many of them have been made and have run.
#[derive(Default)]
struct Children {
    made: AtomicU32,
    ran: AtomicU32,
}

impl Children {
    /// Starts one that is in no hurry, on one CPU or any.
    fn make(self: &Arc<Self>, random: &mut Random) {
        self.made.fetch_add(1, SeqCst);
        let (all, yields) = (self.clone(), random.one_in(2));
        let cpu = (!random.one_in(3)).then(|| random.below(CPUS));
        let body = move || {
            if yields {
                sched::yield_now();
            }
            all.ran.fetch_add(1, SeqCst);
        };
        let tid = kthread::spawn("child", cpu, 10, body).expect("memory for a thread");
        if random.one_in(2) {
            with(tid, sched::hurry);
        }
    }
}

/// Runs `act` on a thread, if it has not ended.
fn with(tid: u32, act: impl FnOnce(&CpuPin, &Thread)) {
    let pin = ksync::pin();
    if let Some(thread) = ids::thread(&pin, tid) {
        act(&pin, thread);
    }
}

/// One thing that a worker of the storm does to itself, a child or another worker.
fn disturb(random: &mut Random, workers: &[AtomicU32], children: &Arc<Children>) {
    let other = workers[random.below(workers.len())].load(SeqCst);
    match random.below_u64(9) {
        0 | 1 => children.make(random),
        2 => with(other, sched::wake),
        3 => with(other, sched::poke),
        4 => with(other, |_, t| t.set_nice(random.below_u64(40) as i8 - 20)),
        5 => with(other, |_, t| {
            assert!(sched::set_affinity(t, &some_cpus(random)));
        }),
        6 => sched::yield_now(),
        7 => nap_until(monotonic_ns() + random.below_u64(100 * US)),
        _ => compute(random.below_u64(2000 * US)),
    }
}

#[test]
fn no_thread_is_lost_between_run_queues() {
    const WORKERS: usize = 6;
    on(CPUS, || {
        let threads = ids::threads();
        let children = Arc::new(Children::default());
        let workers = Arc::new([const { AtomicU32::new(0) }; WORKERS]);
        for n in 0..WORKERS {
            let (children, all) = (children.clone(), workers.clone());
            spawn(None, move || {
                all[n].store(current().tid(), SeqCst);
                let mut random = Random(0xab0 + n as u64);
                (0..1000).for_each(|_| disturb(&mut random, &*all, &children));
            });
        }
        let all = || WORKERS as u32 + children.made.load(SeqCst);
        while ended() < all() {
            wait_for_ends(all());
        }
        let made = children.made.load(SeqCst);
        assert_eq!(children.ran.load(SeqCst), made);
        assert!(made > 800, "{made}");
        assert_eq!(ids::threads(), threads);
        assert_eq!(sched::runnable(), 1, "the body of the test");
    });
}

/// Timers that are armed on one CPU and cancelled on others, which begin and end to be idle meanwhile.
#[test]
fn timers_and_ticks_share_a_wheel() {
    on(CPUS, || {
        let (sets, ends) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (begun, replaced) = (sets.clone(), ends.clone());
        storm(1500, move |random| {
            let pid = random.below_u64(8) as u32;
            let ahead = random.scaled(10..20);
            let due = (!random.one_in(4)).then(|| monotonic_ns() + ahead);
            begun.fetch_add(u32::from(due.is_some()), SeqCst);
            replaced.fetch_add(u32::from(alarm(pid).set(pid, due)), SeqCst);
            match random.below_u64(3) {
                0 => nap_until(monotonic_ns() + random.below_u64(20 * US)),
                1 => sched::yield_now(),
                _ => (),
            }
        });
        nap(50);
        assert_eq!(sets.load(SeqCst), ends.load(SeqCst) + rung() as u32);
        assert!((0..8).all(|pid| !alarm(pid).node().armed()));
    });
}

/// prctl(PR_SET_NAME) and setuid(2) beside readers of /proc: a reader gets one of the names and credentials that were set, whole.
#[test]
fn names_and_credentials_are_read_whole() {
    on(CPUS, || {
        let creds: Arc<[Arc<Cred>]> = (1..=4).map(cred_of_user).collect();
        let tids = Arc::new([const { AtomicU32::new(0) }; CPUS]);
        let (all, set) = (tids.clone(), creds.clone());
        storm(1500, move |random| {
            let me = current();
            all[hal::cpu::id()].store(me.tid(), SeqCst);
            me.set_comm(&[b'a' + random.below_u64(26) as u8; 15]);
            drop(me.replace_cred(set[random.below(set.len())].clone()));
            let other = ids::hold_thread(all[random.below(CPUS)].load(SeqCst));
            other.into_iter().for_each(|other| look_at(&other));
            drop(me.replace_cred(Arc::new(Cred::root())));
        });
        for (n, cred) in creds.iter().enumerate() {
            assert_eq!(Arc::strong_count(cred), 1, "of user {n}");
            cred.payer.give_back(Charge::Threads, 1);
        }
    });
}

fn cred_of_user(uid: u32) -> Arc<Cred> {
    let payer = account::of_thread(uid).expect("memory");
    Arc::new(Cred {
        uid,
        gid: uid,
        payer,
        ..Cred::root()
    })
}

/// Looks at a thread that changes its name and its credentials.
fn look_at(thread: &Thread) {
    let comm = thread.comm();
    let is_first = comm == task::thread::comm_from(b"worker");
    assert!(
        is_first || comm[..15] == [comm[0]; 15] && comm[15] == 0,
        "{comm:?}"
    );
    let cred = thread.cred();
    assert_eq!(cred.uid, cred.gid);
    let payer = |payer: cred::Payer| payer.account().map_or(0, Account::uid);
    assert_eq!(payer(cred.payer), cred.uid);
    assert!(payer(thread.payer()) <= 4);
}

#[test]
fn each_user_has_one_account_however_many_come_and_go() {
    const USERS: u64 = 6;
    on(CPUS, || {
        storm(1500, |random| {
            let uid = 1 + random.below_u64(USERS) as u32;
            let payer = account::of_thread(uid).expect("memory");
            assert_eq!(payer.account().map(Account::uid), Some(uid));
            assert!(payer.held(Charge::Threads) >= 1);
            let mut n = 0;
            account::each(|_| n += 1);
            assert!((1..=USERS).contains(&n), "{n} accounts");
            assert!(account::table_bytes() >= Account::bytes(CPUS));
            payer.give_back(Charge::Threads, 1);
        });
        let mut users = BTreeSet::new();
        account::each(|account| {
            assert!(users.insert(account.uid()), "two accounts of one user");
            assert_eq!(account.held(Charge::Threads), 0);
        });
        assert_eq!(account::table_bytes(), users.len() * Account::bytes(CPUS));
    });
}

#[test]
fn no_two_threads_have_an_id_at_once() {
    on(CPUS, || {
        let taken: Arc<[AtomicBool]> = (0..ids::span()).map(|_| AtomicBool::new(false)).collect();
        let in_use = taken.clone();
        storm(300, move |random| {
            let held: Vec<Id> = (0..random.below(20))
                .map(|_| Id::alloc().expect("an id"))
                .collect();
            for id in &held {
                let was = in_use[id.number() as usize].swap(true, SeqCst);
                assert!(!was, "{} is given out twice", id.number());
            }
            for id in held {
                let last = id.clone();
                drop(id);
                in_use[last.number() as usize].store(false, SeqCst);
            }
        });
        assert!(taken.iter().all(|taken| !taken.load(SeqCst)));
        nap(50);
        assert_eq!(ids::live(), ids::threads() as u64);
    });
}
