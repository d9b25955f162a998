//! Connects that wait for room at their listener: when each is tried again, and when it times out.
//!
//! Guarantee: as with the SYNs of Linux, a client is tried again after a second, three, seven and so on, TCP_SYNCNT times, and then fails with
//! ETIMEDOUT, whether or not a thread waits for it. One that lies in the listener's list need not be tried again: it is connected as soon as there is
//! room. Only this module refers to one for which that list was too long.
//!
//! Mechanism: clients by the time of their next attempt, and a kernel thread. The thread takes a client out for an attempt, and puts it back unless it is known
//! meanwhile how the connect ends. A client that gives up makes that known first, then takes itself out.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use hal::kprintln;
use ksync::Spin;
use ksync::atomic::Ordering::Relaxed;
use task::current::current;
use task::park::{Deadline, Interruptible, Step, park};
use task::time::{SECOND, monotonic_ns};
use task::wait::{WaitQueue, Waiter};
use task::{kthread, sched};
use vfs::error::FsError;

use super::pair::{Pair, TcpListener};
use crate::accept::{Added, Pending};
use crate::error::SocketError;

ksync::lock_class!(pub LateLock, "late connects", rank = 85);

/// The longest time between two attempts, in seconds: Linux's TCP_RTO_MAX.
const LONGEST: u64 = 120;

/// A client that waits for room.
pub(super) struct Late {
    pub pair: Arc<Pair>,
    pub listener: Arc<TcpListener>,
    /// Whether it is in the listener's list.
    pub listed: bool,
    /// How often it was tried again.
    pub tries: u32,
    /// How often it is at most.
    pub most: u32,
}

/// The time of the next attempt, and the address of the pair.
type Key = (u64, usize);

/// Bytes of what is known of a late client.
pub(super) const BYTES: usize = 2 * (size_of::<Key>() + size_of::<Late>());

hal::machine_static! {
    static LATE: Spin<BTreeMap<Key, Late>, LateLock> = Spin::new(BTreeMap::new());
    /// The thread, which sleeps until the first attempt.
    static THREAD: WaitQueue = WaitQueue::new();
}

fn key(pair: &Arc<Pair>) -> Key {
    (pair.due.load(Relaxed), Arc::as_ptr(pair) as usize)
}

/// Adds a client, unless it is known how its connect ends. The caller has waited for memory.
pub(super) fn add(late: Late) {
    let seconds = 1 << late.tries.min(7);
    let at = monotonic_ns().saturating_add(LONGEST.min(seconds) * SECOND);
    let mut all = LATE.lock();
    // Under the lock: a client that gives up later takes it out.
    if late.pair.is_decided() {
        drop(all);
        return;
    }
    late.pair.due.store(at, Relaxed);
    let key = key(&late.pair);
    all.insert(key, late);
    let first = all
        .first_key_value()
        .is_some_and(|(first, _)| *first == key);
    drop(all);
    if first {
        THREAD.wake_all();
    }
}

/// Takes a client out, if it was added, of which it is known how its connect ends.
pub(super) fn remove(pair: &Arc<Pair>) {
    if pair.due.load(Relaxed) > 0 {
        drop(take(|_| Some(key(pair))));
    }
}

/// Takes out the client that `which` chooses under the lock.
fn take(which: impl FnOnce(&BTreeMap<Key, Late>) -> Option<Key>) -> Option<Late> {
    let mut all = LATE.lock();
    let found = which(&all).and_then(|key| all.remove(&key));
    // An empty map keeps a node.
    let map = match all.is_empty() {
        true => core::mem::take(&mut *all),
        false => BTreeMap::new(),
    };
    drop(all);
    drop(map);
    found
}

/// When the next attempt is due.
fn next() -> Option<u64> {
    LATE.lock().first_key_value().map(|((at, _), _)| *at)
}

/// Starts the thread. Called once, at boot.
pub fn start() {
    if kthread::spawn("connects", None, 0, run).is_err() {
        kprintln!("connects: no memory for the thread");
    }
}

fn run() {
    loop {
        let now = monotonic_ns();
        let due = |all: &BTreeMap<Key, Late>| {
            let (key, _) = all.first_key_value()?;
            (key.0 <= now).then_some(*key)
        };
        while let Some(late) = take(due) {
            late.try_again();
        }
        // It has no lock here, and enters no user mode, before which others give back what they were lent.
        sched::give_back(&current());
        let mut until = next();
        let deadline = until.map_or(Deadline::Never, Deadline::At);
        let _ = park(&mut until, deadline, Interruptible::No, sleep);
    }
}

/// A step of the thread's sleep, which is over if there is an earlier attempt.
fn sleep(until: &mut Option<u64>, w: &mut Waiter) -> Step<()> {
    w.listen(&THREAD);
    match next().is_some_and(|at| until.is_none_or(|until| at < until)) {
        true => Step::Done(()),
        false => Step::Wait,
    }
}

impl Late {
    fn try_again(mut self) {
        if self.tries >= self.most {
            if self.pair.fail(FsError::TimedOut) {
                let same = |other: &Arc<Pair>| Arc::ptr_eq(other, &self.pair);
                self.listener.queue.remove_late(same);
            }
            return;
        }
        self.tries += 1;
        if !self.listed {
            match self.listener.offer(&self.pair) {
                Ok(Added::Connected) => return Arc::<Pair>::wake(self.pair),
                Ok(Added::Late) => self.listed = true,
                Err(SocketError::File(FsError::ConnectionRefused)) => {
                    self.pair.fail(FsError::ConnectionRefused);
                    return;
                }
                // No room, or no memory.
                Ok(Added::Dropped) | Err(_) => {}
            }
        }
        add(self);
    }
}
