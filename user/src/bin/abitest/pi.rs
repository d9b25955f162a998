//! Futexes with priority inheritance, raw and by the C library.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{JoinHandle, spawn};

use crate::harness::*;
use user::sys;
use user::sys::mutex::{self, Kind};

pub const PRIVATE: u64 = libc::FUTEX_PRIVATE_FLAG as u64;
pub const REALTIME: u64 = libc::FUTEX_CLOCK_REALTIME as u64;
pub const WAIT: u64 = libc::FUTEX_WAIT as u64;
pub const WAKE: u64 = libc::FUTEX_WAKE as u64;
pub const LOCK: u64 = 6;
pub const UNLOCK: u64 = 7;
const TRYLOCK: u64 = 8;
pub const CMP_REQUEUE: u64 = 12;
const LOCK2: u64 = 13;

pub const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;
/// More than the largest tid.
const NOBODY: u32 = 0x3fff_fff0;

pub fn own(op: u64, word: u64) -> Result<u64, i32> {
    sc!(SYS_futex, word, op | PRIVATE, 0, 0, 0, 0)
}

fn shared(op: u64, word: u64) -> Result<u64, i32> {
    sc!(SYS_futex, word, op, 0, 0, 0, 0)
}

fn until(op: u64, word: u64, at: [u64; 2]) -> Result<u64, i32> {
    sc!(SYS_futex, word, op | PRIVATE, 0, at.as_ptr(), 0, 0)
}

pub fn tid() -> u32 {
    sc!(SYS_gettid).unwrap_or(0) as u32
}

pub fn load(word: u64) -> u32 {
    sys::atomic(word).load(SeqCst) as u32
}

fn store(word: u64, value: u32) {
    sys::atomic(word).store(value.into(), SeqCst);
}

fn shared_page() -> Result<u64, i32> {
    sys::mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
}

/// A time of that clock, some milliseconds from now.
pub fn after(clock: i32, ms: u64) -> [u64; 2] {
    let mut now = [0u64; 2];
    let _ = sc!(SYS_clock_gettime, clock, now.as_mut_ptr());
    let ns = now[1] + ms * 1_000_000;
    [now[0] + ns / 1_000_000_000, ns % 1_000_000_000]
}

/// Whether the thread sleeps.
pub fn asleep(tid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.starts_with(" S"))
}

/// A thread that sleeps, and its tid.
pub type Sleeper<T> = (JoinHandle<T>, u32);

/// A thread that runs `body`; it sleeps when this returns.
pub fn sleeper<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<Sleeper<T>, String> {
    let told = Arc::new(AtomicU32::new(0));
    let tells = told.clone();
    let handle = spawn(move || {
        tells.store(tid(), SeqCst);
        body()
    });
    let there = soon(|| told.load(SeqCst) != 0 && asleep(told.load(SeqCst)));
    // It may sleep for something else at first.
    nap_us(20_000);
    let there = there && soon(|| asleep(told.load(SeqCst)));
    there
        .then(|| (handle, told.load(SeqCst)))
        .ok_or_else(|| "a thread does not sleep".into())
}

/// A thread that locks, and returns what the word was then; it waits when this returns.
fn locker(word: u64) -> Result<Sleeper<u32>, String> {
    sleeper(move || {
        let got = own(LOCK, word);
        let seen = load(word);
        if got != Ok(0) || own(UNLOCK, word) != Ok(0) {
            0
        } else {
            seen
        }
    })
}

/// A child that runs `body`, and sleeps when this returns.
fn child(body: impl FnOnce() -> bool) -> Result<u64, String> {
    let pid = sys::fork().map_err(errno_name)?;
    if pid == 0 {
        sys::exit(i32::from(!body()));
    }
    match soon(|| asleep(pid as u32)) {
        true => Ok(pid),
        false => Err("a child does not sleep".into()),
    }
}

fn killed(pid: u64) -> bool {
    sc!(SYS_kill, pid, libc::SIGKILL).is_ok()
        && sys::wait(pid as i64, 0) == Ok((pid, libc::SIGKILL))
}

/// Runs `body` in a thread that the C library has made: in a test's first thread it takes the tid for that of the thread that forked.
fn in_thread<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    spawn(body).join().ok()
}

/// A child of which a thread takes the mutex; it sleeps when this returns.
fn owner_of(at: u64) -> Result<u64, String> {
    child(|| {
        let _ = spawn(move || {
            mutex::lock(at);
            nap_us(9_000_000);
        })
        .join();
        false
    })
}

/// Signals that [`alarm`] has sent.
pub static ALARMS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_alarm(_: i32) {
    ALARMS.fetch_add(1, SeqCst);
}

/// An alarm in 30 milliseconds for the calling thread, whose handler says that calls are not restarted.
pub fn alarm() -> Result<u64, i32> {
    ALARMS.store(0, SeqCst);
    sys::on_signal(libc::SIGALRM, on_alarm as *const () as usize, 0)?;
    ring([0, 0, 0, 30_000])
}

/// Sets the timer that sends SIGALRM: seconds and microseconds from one time to the next, and until the first.
pub fn ring(timer: [u64; 4]) -> Result<u64, i32> {
    sc!(SYS_setitimer, libc::ITIMER_REAL, timer.as_ptr(), 0)
}

tests! { "pi";
    a_free_lock_is_taken_and_given_back {
        let word = ok!(anon(1));
        for op in [LOCK, TRYLOCK, LOCK2] {
            is!(ok!(own(op, word)), 0);
            is!(load(word), tid());
            fails!(own(LOCK, word), EDEADLK);
            fails!(own(TRYLOCK, word), EDEADLK);
            is!(ok!(own(UNLOCK, word)), 0);
            is!(load(word), 0);
        }
        store(word, OWNER_DIED | WAITERS);
        is!(ok!(own(LOCK, word)), 0);
        is!(load(word), OWNER_DIED | tid());
        is!(ok!(own(UNLOCK, word)), 0);
        is!(load(word), 0);
    }
    arguments {
        let word = ok!(anon(1));
        for op in [LOCK, LOCK2, TRYLOCK] {
            fails!(own(op, word + 1), EINVAL);
            fails!(own(op, 8), EFAULT);
            fails!(shared(op, 8), EFAULT);
            store(word, NOBODY);
            fails!(own(op, word), ESRCH);
            is!(load(word), NOBODY | WAITERS);
            store(word, 0);
        }
        fails!(own(UNLOCK, word), EPERM);
        fails!(own(UNLOCK, 8), EFAULT);
        fails!(own(UNLOCK, word + 1), EPERM);
        store(word, tid() + 1);
        fails!(own(UNLOCK, word), EPERM);
        store(word, 0);
        // Thread 2 is one of the kernel's, where this sees it.
        if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.starts_with("kthreadd")) {
            store(word, 2);
            fails!(own(LOCK, word), EPERM);
            store(word, 0);
        }
        for op in [LOCK, UNLOCK, TRYLOCK, CMP_REQUEUE] {
            fails!(own(op | REALTIME, word), ENOSYS);
        }
        fails!(until(LOCK, word, [0, 1_000_000_000]), EINVAL);
        fails!(sc!(SYS_futex, word, LOCK2 | PRIVATE, 0, 8), EFAULT);
        // A lock that is free is taken, whatever the time; TRYLOCK has none.
        is!(ok!(until(LOCK, word, [0, 0])), 0);
        is!(ok!(own(UNLOCK, word)), 0);
        is!(ok!(until(TRYLOCK, word, [0, 1 << 40])), 0);
        is!(ok!(own(UNLOCK, word)), 0);
        let readable = ok!(sys::mmap(0, PAGE, libc::PROT_READ, ANON, -1, 0));
        fails!(own(LOCK, readable), EFAULT);
    }
    a_lock_is_handed_over_in_the_order_of_arrival {
        let word = ok!(anon(1));
        ok!(own(LOCK, word));
        let waiting = [locker(word)?, locker(word)?, locker(word)?];
        is!(load(word), tid() | WAITERS);
        is!(ok!(own(UNLOCK, word)), 0);
        for (handle, tid) in waiting {
            is!(handle.join().ok(), Some(tid | WAITERS));
        }
        is!(load(word), 0);
    }
    the_word_names_the_next_owner_at_once {
        let word = ok!(anon(1));
        ok!(own(LOCK, word));
        let (handle, next) = sleeper(move || own(LOCK, word))?;
        is!(ok!(own(UNLOCK, word)), 0);
        is!(load(word), next | WAITERS);
        fails!(own(UNLOCK, word), EPERM);
        is!(handle.join().ok(), Some(Ok(0)));
    }
    an_attempt_says_that_it_is_waited_for {
        let word = ok!(anon(1));
        ok!(own(LOCK, word));
        is!(spawn(move || own(TRYLOCK, word)).join().ok(), Some(Err(libc::EAGAIN)));
        is!(load(word), tid() | WAITERS);
        is!(ok!(own(UNLOCK, word)), 0);
        is!(load(word), 0);
    }
    rings_of_owners_are_refused {
        let words = { let at = ok!(anon(1)); [at, at + 64, at + 128] };
        ok!(own(LOCK, words[2]));
        let mut threads = Vec::new();
        for n in [1, 0] {
            threads.push(sleeper(move || {
                let done = [own(LOCK, words[n]), own(LOCK, words[n + 1]), own(UNLOCK, words[n + 1]), own(UNLOCK, words[n])];
                done.iter().all(|done| *done == Ok(0))
            })?);
        }
        fails!(own(LOCK, words[0]), EDEADLK);
        fails!(own(LOCK, words[1]), EDEADLK);
        ok!(own(UNLOCK, words[2]));
        for (thread, _) in threads { is!(thread.join().ok(), Some(true)); }
        is!(words.map(load), [0; 3]);
    }
    waits_end_at_their_times {
        let word = ok!(anon(1));
        ok!(own(LOCK, word));
        for (op, clock) in [(LOCK, libc::CLOCK_REALTIME), (LOCK2, libc::CLOCK_MONOTONIC), (LOCK2 | REALTIME, libc::CLOCK_REALTIME)] {
            let took = spawn(move || {
                let began = sys::now_ns();
                (until(op, word, after(clock, 30)), sys::now_ns() - began)
            });
            let Ok((end, ns)) = took.join() else { return Err("a thread panics".into()) };
            fails!(end, ETIMEDOUT);
            holds!((29_000_000..2_000_000_000).contains(&ns));
            is!(spawn(move || until(op, word, [1, 0])).join().ok(), Some(Err(libc::ETIMEDOUT)));
        }
        is!(load(word), tid() | WAITERS);
        is!(ok!(own(UNLOCK, word)), 0);
        is!(load(word), 0);
    }
    a_wait_goes_on_after_a_handler {
        let word = ok!(anon(1));
        let (handle, owner) = sleeper(move || {
            let _ = own(LOCK, word);
            nap_us(150_000);
            own(UNLOCK, word)
        })?;
        is!(load(word), owner);
        ok!(alarm());
        is!(ok!(own(LOCK, word)), 0);
        is!(handle.join().ok(), Some(Ok(0)));
        is!(ALARMS.load(SeqCst), 1);
        is!(ok!(own(UNLOCK, word)), 0);
    }
    an_owner_that_ends_leaves_the_lock_to_the_first_waiter {
        let word = ok!(anon(1));
        let (owner, _) = sleeper(move || { let _ = own(LOCK, word); nap_us(200_000); })?;
        let (first, second) = (locker(word)?, locker(word)?);
        holds!(owner.join().is_ok());
        is!(first.0.join().ok(), Some(first.1 | WAITERS | OWNER_DIED));
        is!(second.0.join().ok(), Some(second.1 | WAITERS));
        is!(load(word), 0);
    }
    a_lock_of_one_that_has_ended_is_lost_unless_robust {
        let word = ok!(shared_page());
        let pid = ok!(sys::fork());
        if pid == 0 { let _ = shared(LOCK, word); sys::exit(0); }
        ok!(sys::wait(pid as i64, 0));
        is!(load(word), pid as u32);
        fails!(shared(LOCK, word), ESRCH);
        // The same with a list, where bit 0 says that the lock is of this kind; one lock is on its way to the list.
        let [list, entry, pending] = [word + 256, word + 512, word + 768];
        let pid = ok!(sys::fork());
        if pid == 0 {
            let _ = (shared(LOCK, entry + 32), shared(LOCK, pending + 32));
            for (at, value) in [(list, entry | 1), (list + 8, 32), (list + 16, pending | 1), (entry, list)] { sys::poke64(at, value); }
            let _ = sc!(SYS_set_robust_list, list, 24);
            sys::exit(0);
        }
        ok!(sys::wait(pid as i64, 0));
        for word in [entry + 32, pending + 32] {
            is!(load(word), OWNER_DIED);
            is!(ok!(shared(LOCK, word)), 0);
            is!(load(word), OWNER_DIED | tid());
            is!(ok!(shared(UNLOCK, word)), 0);
        }
    }
    processes_share_a_lock_and_are_killed {
        let word = ok!(shared_page());
        let owner = child(|| { let _ = shared(LOCK, word); sys::munmap(word, PAGE).is_ok() && { nap_us(9_000_000); false } })?;
        holds!(soon(|| load(word) == owner as u32));
        let waits = child(|| shared(LOCK, word) == Ok(0))?;
        let heir = child(|| shared(LOCK, word) == Ok(0) && load(word) == tid() | WAITERS | OWNER_DIED && shared(UNLOCK, word) == Ok(0))?;
        holds!(soon(|| asleep(heir as u32)));
        nap_us(20_000);
        holds!(killed(waits) && killed(owner));
        is!(ok!(sys::wait(heir as i64, 0)), (heir, 0));
        is!(load(word), 0);
    }
    an_owner_that_executes_a_program_leaves_its_locks {
        let word = ok!(shared_page());
        let program = path("/bin/true");
        let pid = ok!(sys::fork());
        if pid == 0 {
            let _ = shared(LOCK, word);
            nap_us(150_000);
            let _ = sc!(SYS_execve, program, [program, 0].as_ptr(), 0);
            sys::exit(1);
        }
        holds!(soon(|| load(word) == pid as u32));
        is!(ok!(shared(LOCK, word)), 0);
        is!(load(word), tid() | WAITERS | OWNER_DIED);
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        is!(ok!(shared(UNLOCK, word)), 0);
    }
    a_private_lock_is_not_that_of_a_child {
        let word = ok!(anon(1));
        ok!(own(LOCK, word));
        let status = in_child(|| i32::from(own(UNLOCK, word) != Err(libc::EPERM)))?;
        is!(status, 0);
        is!(ok!(own(UNLOCK, word)), 0);
    }
    locks_and_waits_for_wakes_do_not_mix {
        let (word, other) = { let at = ok!(anon(1)); (at, at + 64) };
        ok!(own(LOCK, word));
        let (handle, _) = locker(word)?;
        fails!(sc!(SYS_futex, word, WAKE | PRIVATE, 1), EINVAL);
        fails!(sc!(SYS_futex, word, libc::FUTEX_REQUEUE as u64 | PRIVATE, 0, 1, other), EINVAL);
        fails!(sc!(SYS_futex, other, libc::FUTEX_WAKE_OP as u64 | PRIVATE, 1, 1, word, 0x1100_0000), EINVAL);
        is!(ok!(own(UNLOCK, word)), 0);
        is!(handle.join().is_ok(), true);
        let (handle, _) = sleeper(move || sc!(SYS_futex, other, WAIT | PRIVATE, 0, 0))?;
        fails!(own(LOCK, other), EINVAL);
        store(other, tid());
        fails!(own(UNLOCK, other), EINVAL);
        is!(ok!(sc!(SYS_futex, other, WAKE | PRIVATE, 1)), 1);
        is!(handle.join().ok(), Some(Ok(0)));
    }
    a_word_that_a_program_has_changed_is_refused {
        let word = ok!(anon(1));
        ok!(own(LOCK, word));
        let (handle, next) = locker(word)?;
        for value in [0, next | WAITERS, OWNER_DIED | next, NOBODY] {
            store(word, value);
            is!(spawn(move || own(LOCK, word)).join().ok(), Some(Err(libc::EINVAL)));
            is!(load(word), value);
        }
        is!(spawn(move || { store(word, tid()); own(UNLOCK, word) }).join().ok(), Some(Err(libc::EINVAL)));
        store(word, tid());
        is!(ok!(own(UNLOCK, word)), 0);
        is!(handle.join().ok(), Some(next | WAITERS));
    }
    many_threads_exclude_one_another {
        let word = ok!(anon(1));
        let inside = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..8).map(|n| {
            let inside = inside.clone();
            spawn(move || (0..100).all(|turn| {
                // Some try, and some give up.
                let got = match (n + turn) % 4 {
                    0 => own(TRYLOCK, word),
                    1 => until(LOCK, word, after(libc::CLOCK_REALTIME, 1)),
                    _ => own(LOCK, word),
                };
                match got {
                    Ok(_) => {}
                    Err(libc::EAGAIN | libc::ETIMEDOUT) => return true,
                    Err(_) => return false,
                }
                let alone = inside.fetch_add(1, SeqCst) == 0 && load(word) & !WAITERS == tid();
                inside.fetch_sub(1, SeqCst);
                alone && own(UNLOCK, word) == Ok(0)
            }))
        }).collect();
        for thread in threads { is!(thread.join().ok(), Some(true)); }
        is!(load(word), 0);
    }
    the_c_library_s_mutexes_inherit {
        let at = ok!(anon(1));
        is!(mutex::init(at, Kind { kind: libc::PTHREAD_MUTEX_ERRORCHECK, ..Kind::default() }), 0);
        let count = Arc::new(AtomicU32::new(0));
        let counted = count.clone();
        let done = in_thread(move || -> Result<(), String> {
            is!(mutex::lock(at), 0);
            is!(mutex::lock(at), libc::EDEADLK);
            let others = in_thread(move || [mutex::try_lock(at), mutex::lock_for(at, 20_000_000), mutex::unlock(at)]);
            is!(others, Some([libc::EBUSY, libc::ETIMEDOUT, libc::EPERM]));
            let threads: Vec<_> = (0..4).map(|_| counted.clone()).map(|count| spawn(move || for _ in 0..200 {
                mutex::lock(at);
                // Not atomic as a whole.
                count.store(count.load(SeqCst) + 1, SeqCst);
                mutex::unlock(at);
            })).collect();
            is!(mutex::unlock(at), 0);
            for thread in threads { holds!(thread.join().is_ok()); }
            Ok(())
        });
        is!(done, Some(Ok(())));
        is!(count.load(SeqCst), 800);
    }
    the_c_library_s_conditions_go_with_them {
        let (lock, cond, turn) = { let at = ok!(anon(1)); (at, at + 256, at + 512) };
        is!(mutex::init(lock, Kind::default()), 0);
        let threads: Vec<_> = (0..4).map(|mine| spawn(move || for round in 0..50 {
            mutex::lock(lock);
            while sys::peek64(turn) != round * 4 + mine { mutex::wait(cond, lock); }
            sys::poke64(turn, round * 4 + mine + 1);
            mutex::broadcast(cond);
            mutex::unlock(lock);
        })).collect();
        for thread in threads { holds!(thread.join().is_ok()); }
        is!(sys::peek64(turn), 200);
    }
    the_c_library_s_robust_mutexes_tell_of_the_end_of_their_owner {
        let at = ok!(shared_page());
        is!(mutex::init(at, Kind { robust: true, shared: true, kind: 0 }), 0);
        let mend = move || [mutex::lock(at), mutex::consistent(at), mutex::unlock(at)];
        // Without a waiter, and with one.
        is!(in_thread(move || mutex::lock(at)), Some(0));
        is!(in_thread(mend), Some([libc::EOWNERDEAD, 0, 0]));
        let owner = owner_of(at)?;
        holds!(soon(|| load(at) != 0 || load(at + 8) != 0));
        nap_us(50_000);
        let (handle, _) = sleeper(mend)?;
        holds!(killed(owner));
        is!(handle.join().ok(), Some([libc::EOWNERDEAD, 0, 0]));
        is!(in_thread(move || [mutex::lock(at), mutex::unlock(at)]), Some([0, 0]));
        // An owner that does not make it consistent spoils it for all, those that wait among them.
        let owner = owner_of(at)?;
        nap_us(50_000);
        holds!(killed(owner));
        let (spoiler, _) = sleeper(move || {
            let first = mutex::lock(at);
            nap_us(200_000);
            [first, mutex::unlock(at)]
        })?;
        let (handle, _) = sleeper(move || mutex::lock(at))?;
        is!(spoiler.join().ok(), Some([libc::EOWNERDEAD, 0]));
        is!(handle.join().ok(), Some(libc::ENOTRECOVERABLE));
        is!(in_thread(move || mutex::lock(at)), Some(libc::ENOTRECOVERABLE));
    }
}
