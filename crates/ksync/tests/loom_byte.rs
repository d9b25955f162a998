//! Every interleaving of the byte mutex's protocol, up to a bound on preemptions.
//!
//! Under loom a byte counts two readers, and all bytes share one list of waiters.
#![cfg(loom)]
#![expect(
    unsafe_code,
    reason = "the models watch raw cells, to see races that the locks must prevent"
)]

#[expect(dead_code, reason = "other models watch targets")]
mod model;

use std::sync::atomic::{AtomicBool as StdBool, AtomicUsize as StdUsize, Ordering::SeqCst};

use ksync::{ByteMutex, ByteRun, lock_class};
use loom::{cell::UnsafeCell, sync::Arc, thread::JoinHandle};
use model::{model, spawn};

lock_class!(Low, "model low", rank = 20);

/// Two bytes, and what each guards.
struct Small {
    bytes: [ByteMutex; 2],
    data: [UnsafeCell<usize>; 2],
    /// Readers of each at this moment; not part of the model.
    readers: [StdUsize; 2],
}

// SAFETY: `data` is used under its byte; loom checks it.
unsafe impl Sync for Small {}
// SAFETY: as above.
unsafe impl Send for Small {}

impl Small {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            bytes: [ByteMutex::new(), ByteMutex::new()],
            data: [UnsafeCell::new(0), UnsafeCell::new(0)],
            readers: [StdUsize::new(0), StdUsize::new(0)],
        })
    }

    /// For a writer.
    fn bump(&self, i: usize) {
        assert_eq!(self.readers[i].load(SeqCst), 0);
        // SAFETY: the byte is held; loom checks it.
        self.data[i].with_mut(|n| unsafe { *n += 1 });
    }

    /// For a holder of either kind.
    fn see(&self, i: usize) -> usize {
        // SAFETY: the byte is held; loom checks it.
        self.data[i].with(|n| unsafe { *n })
    }

    fn write(&self, i: usize) {
        let _guard = self.bytes[i].lock::<Low>();
        self.bump(i);
    }

    fn read(&self, i: usize) -> usize {
        let _guard = self.bytes[i].read::<Low>();
        assert!(self.readers[i].fetch_add(1, SeqCst) < 2, "too many readers");
        let seen = self.see(i);
        self.readers[i].fetch_sub(1, SeqCst);
        seen
    }

    fn try_write(&self, i: usize) -> bool {
        let guard = self.bytes[i].try_lock::<Low>();
        guard.iter().for_each(|_| self.bump(i));
        guard.is_some()
    }

    /// All threads are done: the bytes are free, and the writers were so many.
    fn ends(&self, threads: impl IntoIterator<Item = JoinHandle<()>>, writers: [usize; 2]) {
        threads.into_iter().for_each(|t| t.join().unwrap());
        for (i, writers) in writers.into_iter().enumerate() {
            let _guard = self.bytes[i].try_lock::<Low>().expect("free");
            assert_eq!(self.see(i), writers);
        }
    }
}

/// A thread that does `work`.
fn beside(small: &Arc<Small>, cpu: usize, work: impl FnOnce(&Small) + 'static) -> JoinHandle<()> {
    let small = small.clone();
    spawn(cpu, move || work(&small))
}

#[test]
fn writers_of_two_bytes_of_one_list() {
    model(2, || {
        let small = Small::new();
        let others = [1, 2].map(|cpu| beside(&small, cpu, move |s| s.write(cpu % 2)));
        small.write(0);
        small.write(1);
        let tried = small.try_write(0);
        small.ends(others, [2 + usize::from(tried), 2]);
    });
}

#[test]
fn readers_and_writers_of_two_bytes_of_one_list() {
    model(2, || {
        let small = Small::new();
        let first = small.bytes[0].try_lock::<Low>().expect("free");
        let second = small.bytes[1].try_read::<Low>().expect("free");
        let others = [
            beside(&small, 1, |s| assert_eq!(s.read(0), 1)),
            beside(&small, 2, |s| s.write(1)),
        ];
        small.bump(0);
        drop(first);
        assert_eq!(small.see(1), 0);
        drop(second);
        small.ends(others, [1, 1]);
    });
}

#[test]
fn the_last_reader_beside_a_waiting_writer() {
    model(2, || {
        let small = Small::new();
        let first = small.bytes[0].read::<Low>();
        let others = [
            beside(&small, 1, |s| {
                s.read(0);
            }),
            beside(&small, 2, |s| s.write(0)),
        ];
        assert_eq!(small.see(0), 0);
        drop(first);
        small.ends(others, [1, 0]);
    });
}

#[test]
fn a_released_writer_beside_a_reader_and_a_writer_that_arrive() {
    model(2, || {
        let small = Small::new();
        let first = small.bytes[0].lock::<Low>();
        let others = [
            beside(&small, 1, |s| assert!(s.read(0) >= 1)),
            beside(&small, 2, |s| s.write(0)),
        ];
        small.bump(0);
        drop(first);
        small.ends(others, [2, 0]);
    });
}

#[test]
fn a_released_writer_beside_two_readers_that_arrive() {
    model(2, || {
        let small = Small::new();
        let first = small.bytes[0].lock::<Low>();
        let others = [1, 2].map(|cpu| beside(&small, cpu, |s| assert_eq!(s.read(0), 1)));
        small.bump(0);
        drop(first);
        small.ends(others, [1, 0]);
    });
}

/// The count is full; the third reader is not counted, and not forgotten.
#[test]
fn a_reader_beyond_a_full_count() {
    model(3, || {
        let small = Small::new();
        let both = [(); 2].map(|()| small.bytes[0].try_read::<Low>().expect("room"));
        assert!(small.bytes[0].try_read::<Low>().is_none());
        let [first, second] = both;
        let other = beside(&small, 1, |s| assert_eq!(s.read(0), 0));
        drop(first);
        drop(second);
        small.ends([other], [0, 0]);
    });
}

/// As before, where both readers leave at once, and a writer comes.
#[test]
fn readers_and_a_writer_beyond_a_full_count() {
    model(2, || {
        let small = Small::new();
        let first = small.bytes[0].read::<Low>();
        let others = [
            beside(&small, 1, |s| {
                s.read(0);
            }),
            beside(&small, 2, |s| {
                s.read(0);
                s.write(0);
            }),
        ];
        drop(first);
        small.read(0);
        small.ends(others, [1, 0]);
    });
}

/// Three readers wait for a writer: two are let in, the third after them.
#[test]
fn more_readers_wait_than_are_counted() {
    model(1, || {
        let small = Small::new();
        let first = small.bytes[0].lock::<Low>();
        let others = [1, 2, 3].map(|cpu| beside(&small, cpu, |s| assert_eq!(s.read(0), 1)));
        small.bump(0);
        drop(first);
        small.ends(others, [1, 0]);
    });
}

/// Two that wait do not stand in each other's way, nor in that of a third thread.
#[test]
fn those_that_wait_leave_the_byte_free() {
    for shared in [false, true] {
        model(2, move || {
            let small = Small::new();
            let (writer, reader) = match shared {
                true => (None, small.bytes[0].try_read::<Low>()),
                false => (small.bytes[0].try_lock::<Low>(), None),
            };
            // Not part of the model.
            let released = std::sync::Arc::new(StdBool::new(false));
            let others = [1, 2].map(|cpu| {
                let released = released.clone();
                beside(&small, cpu, move |s| {
                    s.bytes[0].wait::<Low>();
                    assert!(released.load(SeqCst), "the byte was held all the time");
                })
            });
            released.store(true, SeqCst);
            drop((writer, reader));
            assert!(small.try_write(0), "handed to one that only waits");
            small.ends(others, [1, 0]);
        });
    }
}

#[test]
fn one_that_waits_beside_a_writer() {
    model(2, || {
        let small = Small::new();
        let first = small.bytes[0].lock::<Low>();
        let others = [
            beside(&small, 1, |s| {
                s.bytes[0].wait::<Low>();
                s.try_write(1);
            }),
            beside(&small, 2, |s| s.write(0)),
        ];
        small.bump(0);
        drop(first);
        small.ends(others, [2, 1]);
    });
}

/// A thread that finds the byte free after others were told so sees what its last holder did.
#[test]
fn a_byte_that_becomes_free_is_seen_whole() {
    model(3, || {
        let small = Small::new();
        let first = small.bytes[0].lock::<Low>();
        let others = [
            beside(&small, 1, |s| s.bytes[0].wait::<Low>()),
            beside(&small, 2, |s| {
                if let Some(_guard) = s.bytes[0].try_read::<Low>() {
                    assert_eq!(s.see(0), 1);
                }
            }),
        ];
        small.bump(0);
        drop(first);
        small.ends(others, [1, 0]);
    });
}

/// A thread that gets a byte by trying sees what its last holders did.
#[test]
fn a_byte_that_was_tried_for_excludes_too() {
    let works: [(fn(&Small), fn(&Small)); 3] = [
        (
            |s| s.write(0),
            |s| {
                s.try_write(0);
            },
        ),
        (
            |s| s.write(0),
            |s| {
                if let Some(_guard) = s.bytes[0].try_read::<Low>() {
                    s.see(0);
                }
            },
        ),
        (
            |s| {
                s.read(0);
            },
            |s| {
                s.try_write(0);
            },
        ),
    ];
    for (wait, attempt) in works {
        model(2, move || {
            let small = Small::new();
            let other = beside(&small, 1, wait);
            attempt(&small);
            other.join().unwrap();
            assert!(!small.bytes[0].is_locked());
        });
    }
}

#[test]
fn a_run_beside_those_that_want_its_bytes() {
    model(2, || {
        let small = Small::new();
        let others = [
            beside(&small, 1, |s| s.write(0)),
            beside(&small, 2, |s| {
                s.read(1);
            }),
        ];
        let mut run = ByteRun::<Low>::new();
        let taken = small.bytes.iter().take_while(|b| run.try_lock(b)).count();
        for i in 0..taken {
            small.bump(i);
            run.unlock(&small.bytes[i]);
        }
        drop(run);
        small.ends(others, [1 + taken.min(1), taken / 2]);
    });
}

/// Such a guard is made by a fault of memory, and is noticed.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "(byte 0x0), which no reader holds")]
fn a_reader_that_is_not_counted_cannot_leave() {
    model(0, || {
        let small = Small::new();
        let guard = small.bytes[0].read::<Low>();
        // Another byte of the class is held, so that the class is.
        std::mem::forget(small.bytes[1].try_read::<Low>());
        // SAFETY: a guard is a reference; the test is about the second drop.
        drop(unsafe { std::ptr::read(&guard) });
        drop(guard);
    });
}
