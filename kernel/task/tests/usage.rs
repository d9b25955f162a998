//! What threads use and users are charged: CPU time, switches, accounts.
#![cfg(not(shuttle))]

mod processes;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use cred::{Charge, Cred, Payer};
use processes::{MS, compute, ended, nap, on, spawn, wait_for_ends};
use task::time::{self, SECOND, monotonic_ns};
use task::usage::Times;
use task::{account, current, ids, kthread, sched};
use vm_host::random::Random;

fn times(user_ns: u64, minor: u64, rss: u32) -> Times {
    Times {
        user_ns,
        sys_ns: 2 * user_ns,
        minor_faults: minor,
        major_faults: 3,
        voluntary: 5 * minor,
        involuntary: 7 * minor,
        max_rss_kib: rss,
    }
}

/// getrusage(2): all of a process's children are summed, but of their resident sets the largest counts.
#[test]
fn times_are_added_and_the_largest_resident_set_is_kept() {
    let mut sum = times(10, 1, 400);
    sum.add(&times(100, 10, 300));
    sum.add(&times(1000, 100, 500));
    assert_eq!((sum.user_ns, sum.sys_ns), (1110, 2220));
    assert_eq!((sum.minor_faults, sum.major_faults), (111, 9));
    assert_eq!((sum.voluntary, sum.involuntary), (555, 777));
    assert_eq!(sum.max_rss_kib, 500);
    sum.add(&times(0, 0, 499));
    assert_eq!(sum.max_rss_kib, 500);
}

#[test]
fn a_resident_set_is_noted_if_it_is_the_largest_so_far() {
    let mut times = Times::default();
    for (kib, largest) in [(7, 7), (3, 7), (8, 8)] {
        times.note_rss(kib);
        assert_eq!(times.max_rss_kib, largest);
    }
    times.note_rss(1 << 40);
    assert_eq!(times.max_rss_kib, u32::MAX, "more than the type holds");
}

/// Whatever ticks a thread gets, the parts of its time add up, and none becomes smaller.
#[test]
fn the_parts_of_the_time_add_up_and_never_shrink() {
    on(1, || {
        let me = current();
        let mut random = Random(0x711e5);
        let mut last = me.times();
        for _ in 0..2000 {
            compute(random.below_u64(MS / 2));
            let ticks = random.below_u64(4) as u32;
            match random.below_u64(4) {
                0 => me.usage.user_ticks.fetch_add(ticks, SeqCst),
                1 => me.usage.sys_ticks.fetch_add(ticks, SeqCst),
                _ => 0,
            };
            let total = me.charge_now();
            let now = me.times();
            assert_eq!(now.user_ns + now.sys_ns, total);
            assert!(now.user_ns >= last.user_ns && now.sys_ns >= last.sys_ns);
            last = now;
        }
        assert!(last.user_ns > 10 * MS && last.sys_ns > 10 * MS, "{last:?}");
    });
}

#[test]
fn ticks_divide_the_time_between_user_mode_and_kernel() {
    on(1, || {
        let tid = spawn(None, || {
            let me = current();
            me.usage.sys_ticks.store(0, SeqCst);
            me.usage.user_ticks.store(3000, SeqCst);
            // The ticks of this time are few beside those.
            (0..100).for_each(|_| compute(MS));
            me.usage.sys_ticks.store(1000, SeqCst);
            me.charge_now();
            nap(10);
        });
        nap(105);
        let thread = ids::hold_thread(tid).expect("it sleeps");
        let times = thread.times();
        let user = times.user_ns / MS;
        assert!((74..=76).contains(&user), "{times:?}");
        drop(thread);
        wait_for_ends(1);
    });
}

#[test]
fn the_ticks_of_a_kernel_thread_are_kernel_time() {
    on(1, || {
        let tid = spawn(None, || {
            (0..100).for_each(|_| compute(MS));
            nap(10);
        });
        nap(105);
        let thread = ids::hold_thread(tid).expect("it sleeps");
        let ticks = u64::from(thread.usage.sys_ticks.load(SeqCst));
        assert!((23..=26).contains(&ticks), "{ticks}");
        assert_eq!(thread.usage.user_ticks.load(SeqCst), 0);
        let times = thread.times();
        assert_eq!(times.user_ns, 0);
        assert!((100 * MS..102 * MS).contains(&times.sys_ns), "{times:?}");
        let stats = sched::stats(0).expect("a CPU");
        assert!(stats.sys_ns.load(SeqCst) >= 23 * sched::TICK_NS);
        assert_eq!(stats.user_ns.load(SeqCst), 0);
        drop(thread);
        wait_for_ends(1);
    });
}

#[test]
fn a_sleeping_thread_uses_no_time() {
    on(1, || {
        let before = current().charge_now();
        nap(10_000);
        let used = current().charge_now() - before;
        assert!(used < MS / 10, "{used}");
    });
}

#[test]
fn the_times_of_all_threads_fill_the_cpu() {
    on(1, || {
        let sum = Arc::new(AtomicU64::new(0));
        let begun = monotonic_ns();
        for n in 0..5 {
            let sum = sum.clone();
            let body = move || {
                (0..40).for_each(|_| compute(MS));
                sum.fetch_add(current().charge_now(), SeqCst);
            };
            kthread::spawn("worker", None, n - 2, body).expect("memory for a thread");
        }
        wait_for_ends(5);
        let (sum, passed) = (sum.load(SeqCst), monotonic_ns() - begun);
        assert!((200 * MS..=passed).contains(&sum), "{sum} of {passed}");
        assert!(passed < 204 * MS, "{passed}");
    });
}

#[test]
fn switches_are_counted_by_their_reason() {
    on(1, || {
        let counts = |tid| {
            let thread = ids::hold_thread(tid).expect("it sleeps");
            (thread.times().voluntary, thread.times().involuntary)
        };
        let sleeper = spawn(None, || (0..21).for_each(|_| nap(10)));
        nap(195);
        assert_eq!(counts(sleeper), (20, 0));
        wait_for_ends(1);
        // Two that share the CPU give it up at each tick and never sleep before the end.
        let pair = [0, 1].map(|_| {
            spawn(None, || {
                (0..100).for_each(|_| compute(MS));
                nap(300);
            })
        });
        nap(300);
        for tid in pair {
            let (voluntary, involuntary) = counts(tid);
            assert_eq!(voluntary, 1);
            assert!((10..=30).contains(&involuntary), "{involuntary}");
        }
        wait_for_ends(3);
    });
}

#[test]
fn faults_are_reported_as_they_were_counted() {
    on(1, || {
        let me = current();
        me.usage.minor_faults.fetch_add(3, SeqCst);
        me.usage.major_faults.fetch_add(2, SeqCst);
        let times = me.times();
        assert_eq!((times.minor_faults, times.major_faults), (3, 2));
        assert_eq!(times.max_rss_kib, 0, "a thread has no resident set");
    });
}

/// clock_settime(2): "The clock is system-wide"; CLOCK_MONOTONIC "is not affected".
#[test]
fn setting_real_time_does_not_move_monotonic_time() {
    on(1, || {
        let (real, mono) = (time::realtime_ns(), monotonic_ns());
        for step in [SECOND, 1000 * SECOND, 3 * SECOND] {
            let to = real + step;
            time::set_realtime(to);
            assert!(time::realtime_ns().abs_diff(to) < MS);
            assert!(monotonic_ns() - mono < MS);
            let at = time::real_to_monotonic(to + SECOND);
            assert!(at.abs_diff(monotonic_ns() + SECOND) < MS);
            assert_eq!(time::monotonic_to_real(at), to + SECOND);
        }
        assert_eq!(time::real_to_monotonic(5), 0, "before the boot");
    });
}

#[test]
fn a_user_has_one_account() {
    on(1, || {
        let payers = [7, 8, 7].map(|uid| account::of_thread(uid).expect("memory"));
        assert!(payers[0].is(payers[2]));
        assert!(!payers[0].is(payers[1]));
        let held = payers.map(|payer| payer.held(Charge::Threads));
        assert_eq!(held, [2, 1, 2]);
        let uids = payers.map(|payer| payer.account().map(|account| account.uid()));
        assert_eq!(uids, [Some(7), Some(8), Some(7)]);
    });
}

#[test]
fn an_account_is_reused_when_nothing_is_charged_to_it() {
    on(1, || {
        let mine = account::of_thread(7).expect("memory");
        mine.charge(Charge::Locks, 1);
        mine.give_back(Charge::Threads, 1);
        let theirs = account::of_thread(8).expect("memory");
        assert!(!theirs.is(mine), "user 7 still has a lock");
        mine.give_back(Charge::Locks, 1);
        let bytes = account::table_bytes();
        let next = account::of_thread(9).expect("memory");
        assert!(next.is(mine), "an unused account is there");
        assert_eq!(account::table_bytes(), bytes);
        // User 7 comes back, and gets another one.
        let again = account::of_thread(7).expect("memory");
        assert!(!again.is(next) && !again.is(theirs));
        assert_eq!(again.held(Charge::Threads), 1);
    });
}

/// A user in use, and its threads and locks.
struct User {
    payer: Payer,
    threads: u64,
    locks: u64,
}

impl User {
    /// A thread of user `uid` begins or ends, or takes or releases a lock.
    fn act(&mut self, uid: u32, random: &mut Random) {
        match random.below_u64(4) {
            0 => {
                assert!(account::of_thread(uid).expect("memory").is(self.payer));
                self.threads += 1;
            }
            1 if self.threads > 0 => {
                self.payer.charge(Charge::Locks, 1);
                self.locks += 1;
            }
            2 if self.locks > 0 => {
                self.payer.give_back(Charge::Locks, 1);
                self.locks -= 1;
            }
            _ if self.threads > 0 => {
                self.payer.give_back(Charge::Threads, 1);
                self.threads -= 1;
            }
            _ => {}
        }
    }
}

/// Threads of random users begin and end, and leave locks behind for a while. Each user in use has one account, which has
/// exactly what the reference says.
#[test]
fn accounts_do_what_a_map_of_users_does() {
    on(1, || {
        let mut random = Random(0xacc);
        let mut users: BTreeMap<u32, User> = BTreeMap::new();
        let mut most = 0;
        for _ in 0..20_000 {
            let uid = random.below_u64(60) as u32;
            let user = users.entry(uid).or_insert_with(|| User {
                payer: account::of_thread(uid).expect("memory"),
                threads: 1,
                locks: 0,
            });
            user.act(uid, &mut random);
            users.retain(|_, user| user.threads + user.locks > 0);
            most = most.max(users.len());
            for (uid, user) in &users {
                let account = user.payer.account().expect("an account");
                assert_eq!(account.uid(), *uid);
                assert_eq!(account.held(Charge::Threads), user.threads);
                assert_eq!(account.held(Charge::Locks), user.locks);
            }
        }
        let mut all = 0;
        account::each(|_| all += 1);
        assert!(most > 20 && (most..=60).contains(&all), "{most}, {all}");
    });
}

#[test]
fn all_accounts_are_passed() {
    on(1, || {
        let payers = [5, 3, 9].map(|uid| account::of_thread(uid).expect("memory"));
        payers[1].give_back(Charge::Threads, 1);
        let mut passed = Vec::new();
        account::each(|account| passed.push((account.uid(), account.held(Charge::Threads))));
        passed.sort();
        assert_eq!(passed, [(3, 0), (5, 1), (9, 1)]);
    });
}

#[test]
fn threads_on_all_cpus_get_one_account_for_a_user() {
    on(4, || {
        let first = account::of_thread(500).expect("memory");
        let failed = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Vec::new()));
        for cpu in 0..4 {
            let (failed, seen) = (failed.clone(), seen.clone());
            spawn(Some(cpu), move || {
                for n in 0..300 {
                    let payer = account::of_thread(500 + n % 3).expect("memory");
                    let uid = payer.account().map(|account| account.uid());
                    failed.fetch_or(uid != Some(500 + n % 3), SeqCst);
                    if n % 3 == 0 {
                        seen.lock().expect("not poisoned").push(payer.is(first));
                    }
                    payer.give_back(Charge::Threads, 1);
                }
            });
        }
        wait_for_ends(4);
        assert!(!failed.load(SeqCst));
        assert!(seen.lock().expect("not poisoned").iter().all(|&same| same));
        assert_eq!(first.held(Charge::Threads), 1);
    });
}

#[test]
fn only_large_objects_are_charged() {
    on(1, || {
        let mut cred = Cred::root();
        cred.payer = account::of_thread(1000).expect("memory");
        let payer = cred.payer;
        drop(current().replace_cred(Arc::new(cred)));
        let small = account::charge_large(hal::PAGE_SIZE - 1);
        assert_eq!((small.bytes(), payer.held(Charge::Memory)), (0, 0));
        let large = account::charge_large(hal::PAGE_SIZE);
        assert_eq!(large.bytes(), hal::PAGE_SIZE);
        assert_eq!(payer.held(Charge::Memory), hal::PAGE_SIZE as u64);
        drop(large);
        assert_eq!(payer.held(Charge::Memory), 0);
        assert_eq!(ended(), 0);
    });
}
