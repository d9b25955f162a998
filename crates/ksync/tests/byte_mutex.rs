//! Byte mutexes on the host: exclusion, a full count, order, hand-over, waits, runs, misuse, statistics.
#![cfg(not(any(loom, shuttle)))]

mod threads;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::*},
    },
    thread::{self, Scope},
    time::Duration,
};

use ksync::{ByteMutex, ByteRun, ClassReport, host, lock_class};
#[cfg(debug_assertions)]
use threads::complaint;
use threads::{ROUNDS, on_cpus};

lock_class!(Low, "test byte", rank = 20);

/// Readers that a byte counts.
const MOST: usize = 125;

/// Lets a thread that was just made begin to wait.
fn settle() {
    thread::sleep(Duration::from_millis(50));
}

/// A thread that does `work` behind those that wait already.
fn behind<'s>(s: &'s Scope<'s, '_>, work: impl FnOnce() + Send + 's) {
    s.spawn(work);
    settle();
}

#[test]
fn byte_mutexes_exclude() {
    struct Small {
        lock: [ByteMutex; 8],
        inside: [AtomicUsize; 8],
    }
    assert_eq!(size_of::<ByteMutex>(), 1);
    let small = Small {
        lock: Default::default(),
        inside: Default::default(),
    };
    on_cpus(|cpu| {
        for i in 0..ROUNDS {
            let at = (i * 7 + cpu) % 8;
            let _guard = small.lock[at].lock::<Low>();
            assert_eq!(small.inside[at].fetch_add(1, SeqCst), 0);
            if i % 16 == 0 {
                thread::yield_now();
            }
            small.inside[at].fetch_sub(1, SeqCst);
        }
    });
    assert!(small.lock.iter().all(|l| !l.is_locked()));
}

#[test]
fn readers_share_a_byte_and_exclude_writers() {
    let bytes: [ByteMutex; 4] = Default::default();
    let inside: [(AtomicUsize, AtomicUsize); 4] = Default::default();
    let shared = AtomicBool::new(false);
    on_cpus(|cpu| {
        for i in 0..ROUNDS {
            let at = (i * 3 + cpu) % 4;
            let (readers, writers) = &inside[at];
            if (i + cpu) % 4 == 0 {
                let _guard = bytes[at].lock::<Low>();
                assert_eq!(writers.fetch_add(1, SeqCst), 0);
                assert_eq!(readers.load(SeqCst), 0);
                thread::yield_now();
                writers.fetch_sub(1, SeqCst);
            } else {
                let _guard = bytes[at].read::<Low>();
                shared.fetch_or(readers.fetch_add(1, SeqCst) > 0, Relaxed);
                thread::yield_now();
                assert_eq!(writers.load(SeqCst), 0);
                readers.fetch_sub(1, SeqCst);
            }
        }
    });
    assert!(bytes.iter().all(|l| !l.is_locked()));
    assert!(cfg!(miri) || shared.into_inner(), "no two readers at once");
}

#[test]
fn a_byte_that_was_tried_is_shared_or_alone() {
    let byte = ByteMutex::new();
    let writer = byte.try_lock::<Low>().unwrap();
    assert!(byte.try_lock::<Low>().is_none() && byte.try_read::<Low>().is_none());
    assert!(byte.is_locked());
    drop(writer);
    let readers = [(); 2].map(|()| byte.try_read::<Low>().unwrap());
    assert!(byte.try_lock::<Low>().is_none() && byte.is_locked());
    drop(readers);
    assert!(!byte.is_locked() && host::holds_nothing());
    assert!(byte.try_lock::<Low>().is_some());
}

/// Threads hold as many readers as a byte counts; more have to wait, and all of these get in.
#[test]
fn a_full_count_makes_readers_wait() {
    // A thread of a debug build holds 24 locks at most.
    const EACH: usize = 21;
    let (byte, taken, late) = (ByteMutex::new(), AtomicUsize::new(0), AtomicUsize::new(0));
    let (tried, release) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|s| {
        for _ in 0..MOST / EACH + 1 {
            s.spawn(|| {
                let guards: Vec<_> = (0..EACH).filter_map(|_| byte.try_read::<Low>()).collect();
                taken.fetch_add(guards.len(), SeqCst);
                tried.fetch_add(1, SeqCst);
                while !release.load(SeqCst) {
                    thread::yield_now();
                }
            });
        }
        while tried.load(SeqCst) < MOST / EACH + 1 {
            thread::yield_now();
        }
        assert_eq!(taken.load(SeqCst), MOST);
        assert!(byte.try_lock::<Low>().is_none());
        for _ in 0..3 {
            s.spawn(|| {
                let _guard = byte.read::<Low>();
                late.fetch_add(1, SeqCst);
            });
        }
        settle();
        assert_eq!(late.load(SeqCst), 0);
        release.store(true, SeqCst);
    });
    assert_eq!(late.load(SeqCst), 3);
    assert!(!byte.is_locked());
}

/// A release lets in as many waiting readers as the byte counts, and no more.
#[test]
#[cfg_attr(miri, ignore = "many threads")]
fn waiting_readers_are_let_in_up_to_a_full_count() {
    let (byte, inside, ever) = (ByteMutex::new(), AtomicUsize::new(0), AtomicUsize::new(0));
    let writer = byte.lock::<Low>();
    thread::scope(|s| {
        for _ in 0..MOST + 5 {
            s.spawn(|| {
                let _guard = byte.read::<Low>();
                assert!(inside.fetch_add(1, SeqCst) < MOST);
                ever.fetch_add(1, SeqCst);
                while ever.load(SeqCst) < MOST {
                    thread::sleep(Duration::from_millis(1));
                }
                inside.fetch_sub(1, SeqCst);
            });
        }
        settle();
        assert_eq!(ever.load(SeqCst), 0);
        drop(writer);
    });
    assert_eq!(ever.load(SeqCst), MOST + 5);
    assert!(!byte.is_locked());
}

#[test]
fn a_writer_behind_readers_is_not_overtaken() {
    let (byte, written) = (ByteMutex::new(), AtomicBool::new(false));
    let reader = byte.read::<Low>();
    thread::scope(|s| {
        s.spawn(|| {
            let _guard = byte.lock::<Low>();
            settle();
            written.store(true, SeqCst);
        });
        while byte.try_read::<Low>().is_some() {
            thread::yield_now();
        }
        behind(s, || {
            let _guard = byte.read::<Low>();
            assert!(written.load(SeqCst), "a reader came first");
        });
        assert!(!written.load(SeqCst));
        drop(reader);
    });
    assert!(!byte.is_locked());
}

/// Beside waiters of another byte of the same list, which stay.
#[test]
#[cfg_attr(miri, ignore = "an interpreter's thread may not have begun to wait")]
fn a_byte_is_handed_over_in_order_of_arrival() {
    let bytes: Vec<ByteMutex> = (0..1024).map(|_| ByteMutex::new()).collect();
    // The hash almost always puts bytes so far apart into one list.
    for other in [374, 748] {
        let order = Mutex::new(Vec::new());
        let come = |what| order.lock().unwrap().push(what);
        let (writer, alien) = (bytes[0].lock::<Low>(), bytes[other].try_lock::<Low>());
        thread::scope(|s| {
            behind(s, || drop(bytes[other].lock::<Low>()));
            for _ in 0..2 {
                behind(s, || {
                    let _guard = bytes[0].read::<Low>();
                    come("reader");
                    settle();
                });
            }
            behind(s, || {
                let _guard = bytes[0].lock::<Low>();
                come("writer");
                settle();
            });
            behind(s, || {
                let _guard = bytes[0].read::<Low>();
                come("late reader");
            });
            drop(writer);
            settle();
            assert!(bytes[other].is_locked());
            drop(alien);
        });
        let order = order.into_inner().unwrap();
        assert_eq!(order, ["reader", "reader", "writer", "late reader"]);
    }
    assert!(bytes.iter().all(|b| !b.is_locked()));
}

#[test]
fn a_wait_ends_when_the_byte_is_free_and_leaves_it_free() {
    let (byte, released) = (ByteMutex::new(), AtomicBool::new(false));
    byte.wait::<Low>();
    assert!(!byte.is_locked() && host::holds_nothing());
    for shared in [false, true] {
        released.store(false, SeqCst);
        let (writer, reader) = match shared {
            true => (None, byte.try_read::<Low>()),
            false => (byte.try_lock::<Low>(), None),
        };
        assert!(writer.is_some() || reader.is_some());
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    byte.wait::<Low>();
                    assert!(released.load(SeqCst), "the byte was held all the time");
                    assert!(host::holds_nothing());
                });
            }
            settle();
            released.store(true, SeqCst);
            drop((writer, reader));
            // It is not handed to those that waited: the first to try has it.
            let _guard = byte.try_lock::<Low>().expect("free");
        });
    }
}

/// Those that wait have their turn among those that take the byte.
#[test]
#[cfg_attr(miri, ignore = "an interpreter's thread may not have begun to wait")]
fn a_wait_ends_in_order_of_arrival() {
    let (byte, order) = (ByteMutex::new(), Mutex::new(Vec::new()));
    let come = |what| order.lock().unwrap().push(what);
    let look = |what| {
        byte.wait::<Low>();
        come(what);
    };
    let holder = byte.lock::<Low>();
    thread::scope(|s| {
        behind(s, || look("first"));
        behind(s, || {
            let _guard = byte.lock::<Low>();
            settle();
            // The first was told when this thread was.
            come("writer");
        });
        behind(s, || look("second"));
        behind(s, || {
            let _guard = byte.read::<Low>();
            settle();
            come("reader");
        });
        behind(s, || look("third"));
        drop(holder);
    });
    let order = order.into_inner().unwrap();
    // The third is told when the reader is let in, as no writer is between them.
    assert_eq!(order[..2], ["first", "writer"]);
    assert_eq!(order[4], "reader");
    assert!(!byte.is_locked());
}

#[test]
fn a_run_of_bytes_counts_as_one_lock() {
    lock_class!(Above, "test above byte", rank = 30);
    let bytes: Vec<ByteMutex> = (0..512).map(|_| ByteMutex::new()).collect();
    let (above, told) = (ByteMutex::new(), AtomicBool::new(false));
    let mut run = ByteRun::<Low>::new();
    assert!(bytes.iter().all(|b| run.try_lock(b)));
    drop(above.lock::<Above>());
    let mut second = ByteRun::<Low>::default();
    assert!(!second.try_lock(&bytes[500]));
    drop(second);
    assert!(bytes.iter().all(ByteMutex::is_locked));
    thread::scope(|s| {
        behind(s, || {
            let _guard = bytes[3].lock::<Low>();
            assert!(told.load(SeqCst));
        });
        told.store(true, SeqCst);
        bytes.iter().for_each(|b| run.unlock(b));
    });
    assert!(!host::holds_nothing() || !cfg!(debug_assertions));
    drop(run);
    assert!(host::holds_nothing() && bytes.iter().all(|b| !b.is_locked()));
}

#[test]
#[cfg(debug_assertions)]
fn what_is_not_held_cannot_be_released() {
    use std::mem::ManuallyDrop;
    let (byte, shared) = (ByteMutex::new(), ByteMutex::new());
    let others: [ByteMutex; 3] = Default::default();
    let [theirs, ours]: [[ByteMutex; 8]; 2] = Default::default();
    // A run with one byte, which is lost where releasing panics.
    let run = |byte| {
        let mut run = ManuallyDrop::new(ByteRun::<Low>::new());
        assert!(run.try_lock(byte));
        run
    };
    let text = complaint(|| {
        let _guard = byte.try_lock::<Low>().unwrap();
        // Wrongly: it is the guard's.
        run(&others[0]).unlock(&byte);
    });
    assert!(
        text.contains("releasing \"test byte\" (byte 0x0), which no writer holds"),
        "{text}"
    );
    // Another thread's. Where a byte of another test has overwritten the record, once more.
    let noticed = theirs.iter().zip(&ours).any(|(byte, own)| {
        let guard = byte.try_lock::<Low>().unwrap();
        let text = complaint(|| {
            run(own).unlock(byte);
            std::panic::panic_any("nothing".to_owned());
        });
        let noticed = text.contains("releasing \"test byte\", which thread ");
        if noticed {
            drop(guard);
        } else {
            std::mem::forget(guard);
        }
        noticed
    });
    assert!(noticed, "a thread may release what another one holds");
    let reader = shared.try_read::<Low>().unwrap();
    let text = complaint(|| run(&others[1]).unlock(&shared));
    assert!(text.contains("(byte 0x1), which no writer holds"), "{text}");
    drop(reader);
    let text = complaint(|| ByteRun::<Low>::new().unlock(&others[1]));
    assert!(
        text.contains("releasing \"test byte\" of an empty run"),
        "{text}"
    );
    let text = complaint(|| drop(ManuallyDrop::into_inner(run(&others[2]))));
    assert!(
        text.contains("a run ends with 1 of \"test byte\" held"),
        "{text}"
    );
}

#[test]
#[cfg(debug_assertions)]
fn bytes_are_taken_in_order_of_rank_where_they_may_sleep() {
    let bytes: [ByteMutex; 2] = Default::default();
    let works: [fn(&ByteMutex); 3] = [
        |b| drop(b.lock::<Low>()),
        |b| drop(b.read::<Low>()),
        ByteMutex::wait::<Low>,
    ];
    for work in works {
        let text = complaint(|| {
            let _pin = ksync::pin();
            work(&bytes[0]);
        });
        assert!(text.contains("\"test byte\" with preemption off"), "{text}");
        let text = complaint(|| {
            let _guard = bytes[0].read::<Low>();
            work(&bytes[1]);
        });
        assert!(text.contains("(rank 20) while holding"), "{text}");
        let text = complaint(|| {
            let mut run = ByteRun::<Low>::new();
            assert!(run.try_lock(&bytes[0]));
            run.unlock(&bytes[0]);
            work(&bytes[1]);
        });
        assert!(text.contains("(rank 20) while holding"), "{text}");
    }
    assert!(bytes.iter().all(|b| !b.is_locked()));
}

fn report(name: &str) -> Option<ClassReport> {
    let mut found = None;
    ksync::for_each_class(|c| {
        if c.name == name {
            found = Some(c);
        }
    });
    found
}

#[test]
#[cfg_attr(miri, ignore = "an interpreter's thread may not have begun to wait")]
fn waits_for_a_byte_are_booked_by_class() {
    lock_class!(Busy, "test byte stalls", rank = 21);
    let byte = ByteMutex::new();
    let works: [fn(&ByteMutex); 3] = [
        |b| drop(b.lock::<Busy>()),
        |b| drop(b.read::<Busy>()),
        ByteMutex::wait::<Busy>,
    ];
    for (before, work) in works.into_iter().enumerate() {
        // On a busy host a thread may begin only after the byte is free again: then try once more.
        for tries in 1.. {
            let guard = byte.try_lock::<Busy>().unwrap();
            thread::scope(|s| {
                s.spawn(|| work(&byte));
                thread::sleep(Duration::from_millis(50 * tries));
                drop(guard);
            });
            let waits = report("test byte stalls").map_or(0, |r| r.contended);
            if waits == before as u64 + 1 {
                break;
            }
            assert!(waits == before as u64 && tries < 50, "{waits} waits");
        }
    }
    assert!(report("test byte stalls").unwrap().stall_ticks > 0);
}

#[test]
fn the_profile_counts_bytes_and_measures_each_hold() {
    lock_class!(Written, "test byte holds", rank = 22);
    lock_class!(Shared, "test shared byte holds", rank = 23);
    lock_class!(Long, "test byte run", rank = 24);
    let bytes: Vec<ByteMutex> = (0..64).map(|_| ByteMutex::new()).collect();
    // Host ticks are nanoseconds. A hold is lost where a byte of another test shares its stamp: then another byte.
    let measured = |name, hold: &dyn Fn(&[ByteMutex])| {
        for (before, some) in bytes.chunks(4).enumerate() {
            hold(some);
            let report = report(name).unwrap();
            assert_eq!(report.acquired, 2 * (before as u64 + 1));
            if report.longest_hold_ticks >= 19_000_000 {
                return;
            }
        }
        panic!("no hold is measured");
    };
    let long = || thread::sleep(Duration::from_millis(20));
    ksync::profile::switch(true);
    measured("test byte holds", &|some| {
        let _guard = some[0].lock::<Written>();
        long();
        drop(some[1].try_lock::<Written>());
    });
    measured("test byte run", &|some| {
        for backwards in [false, true] {
            let mut run = ByteRun::<Long>::new();
            assert!(some.iter().all(|b| run.try_lock(b)));
            if backwards {
                some.iter().rev().for_each(|b| run.unlock(b));
            } else {
                long();
                some.iter().for_each(|b| run.unlock(b));
            }
        }
    });
    // Another reader of the byte does not end the hold, nor begin it anew.
    measured("test shared byte holds", &|some| {
        let _guard = some[0].read::<Shared>();
        long();
        thread::scope(|s| _ = s.spawn(|| drop(some[0].try_read::<Shared>())));
    });
    bytes[0].wait::<Shared>();
    ksync::profile::switch(false);
}
