//! A fork that fails late: it tells the files of its caller nothing, for no descriptor of the caller was closed; and no thread waits for the process that was
//! not made.
#![cfg(not(shuttle))]

mod programs;
#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use hal::UserFrame;
use proc::fork::{self, CloneArgs, ForkError, Opening};
use proc::futex::{FutexError, pi};
use proc::group::setpgid;
use proc::{Process, with_files};
use programs::{MEMORY, MS, join, load, store, take, take_memory, thread};
use signals::{USR1, as_child, block, catch, kill_group, unblock};
use support::me;
use task::current::current;
use task::park::Deadline;
use task::sched;
use vfs::file::{File, FileOps, Kind, o};

/// A file that counts the descriptors of which it is told that they were closed.
struct Told(Arc<AtomicU32>);

impl FileOps for Told {
    fn flush(&self, _: &File) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// The new process would miss a signal to its group, so it is not made.
struct Signalled;

impl Opening for Signalled {
    fn prepare(&mut self, _: &Arc<Process>) -> Result<(), ForkError> {
        assert_eq!(kill_group(me().pid(), USR1), Ok(()));
        Ok(())
    }

    fn complete(&mut self) {}
}

#[test]
fn a_fork_that_fails_closes_no_descriptor_of_its_caller() {
    as_child(|| {
        assert_eq!(setpgid(me().pid(), me().pid()), Ok(()));
        catch(USR1);
        let told = Arc::new(AtomicU32::new(0));
        let kind = Kind::Other(Box::new(Told(told.clone())));
        let file = File::open(None, kind, o::RDWR);
        let fd = with_files(|files| files.add(file, false, 0, 10))
            .expect("a table")
            .expect("room");
        let made = fork::clone(
            &CloneArgs::default(),
            &UserFrame::default(),
            Some(&mut Signalled),
        );
        assert_eq!((made, told.load(SeqCst)), (Err(ForkError::Signal), 0));
        block(&[USR1]);
        drop(with_files(|files| files.remove(fd)));
        assert_eq!(told.load(SeqCst), 1);
    });
}

/// Rounds of the test below, and how often it has met what it tests before it ends.
const ROUNDS: u32 = 3000;
const MEETINGS: u32 = 20;

/// What a thread that forks tells one that locks, and how often that one has waited for the thread of a process that was not made.
#[derive(Default)]
struct Rounds {
    begun: AtomicU32,
    failed: AtomicU32,
    done: AtomicU32,
    met: AtomicU32,
}

impl Rounds {
    /// Locks in one round after the other.
    fn lock_in_each(&self) {
        for round in 1..=ROUNDS {
            while self.begun.load(SeqCst) < round {
                sched::yield_now();
            }
            loop {
                let failed = self.failed.load(SeqCst) == round;
                match pi::lock(MEMORY, false, Deadline::after(1000 * MS)) {
                    Ok(()) => {
                        let word = load(MEMORY).map(|word| word & !0x8000_0000);
                        assert_eq!(word, Some(0x4000_0000 | current().tid()));
                        assert_eq!(pi::unlock(MEMORY, false), Ok(()));
                        self.met.fetch_add(1, SeqCst);
                        break;
                    }
                    Err(FutexError::NoOwner) if failed => break,
                    end => assert_eq!(end, Err(FutexError::NoOwner)),
                }
            }
            self.done.store(round, SeqCst);
            if self.met.load(SeqCst) == MEETINGS {
                break;
            }
        }
    }
}

/// As [`Signalled`]; the word of a lock names the process's thread before it can be found.
struct Named(Arc<Rounds>, u32);

impl Opening for Named {
    fn prepare(&mut self, process: &Arc<Process>) -> Result<(), ForkError> {
        store(MEMORY, process.pid());
        self.0.begun.store(self.1, SeqCst);
        Signalled.prepare(process)
    }

    fn complete(&mut self) {}
}

/// The thread of the process that is not made can be found for a moment, in which another thread begins to wait for it.
#[test]
fn a_lock_does_not_wait_for_a_process_that_was_not_made() {
    as_child(|| {
        take_memory();
        store(MEMORY, 0);
        assert_eq!(setpgid(me().pid(), me().pid()), Ok(()));
        catch(USR1);
        let rounds = Arc::new(Rounds::default());
        // The signal is for the thread that forks alone.
        block(&[USR1]);
        let locker = thread({
            let rounds = rounds.clone();
            move || rounds.lock_in_each()
        });
        unblock(&[USR1]);
        for round in 1..=ROUNDS {
            let mut named = Named(rounds.clone(), round);
            let frame = UserFrame::default();
            let made = fork::clone(&CloneArgs::default(), &frame, Some(&mut named));
            assert_eq!(made, Err(ForkError::Signal));
            rounds.failed.store(round, SeqCst);
            assert!(take(USR1).is_some());
            while rounds.done.load(SeqCst) < round {
                sched::yield_now();
            }
            if rounds.met.load(SeqCst) == MEETINGS {
                break;
            }
        }
        block(&[USR1]);
        join(locker);
        println!(
            "{} times in {} rounds",
            rounds.met.load(SeqCst),
            rounds.done.load(SeqCst)
        );
    });
}
