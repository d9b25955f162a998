//! Threads that wait for memory.
//!
//! Guarantee: waiting for memory needs none, ends with a kill, and ends by itself after a time that the caller gives; who
//! frees memory wakes as many as it feeds, those first that have waited longest. Mechanism: a list linked by number
//! through the threads.

use ksync::Spin;
use task::current::current;
use task::idlist::IdList;
use task::ids::{self, NeedsMemory};
use task::park::{Deadline, Interruptible, Step, park};
use task::sched;

use crate::lock;

static LIST: Spin<IdList<NeedsMemory>, lock::MemoryWaitersLock> = Spin::new(IdList::new());

/// Sleeps until [`wake`] picks the calling thread, `ns` nanoseconds have passed, or the thread is killed. `ask`, which says that memory is
/// wanted, is called once the thread can be picked: the answer may come before it sleeps.
pub fn wait(ns: u64, ask: impl FnOnce()) {
    let me = current();
    // A waiter whose step waits again stands on the list already.
    let listed = me.memory_links.linked();
    if !listed {
        LIST.lock().push_back(&ksync::pin(), me.tid());
    }
    ask();
    let _ = park(
        &mut (),
        Deadline::after(ns),
        Interruptible::Kill,
        |(), _| {
            let _list = LIST.lock();
            if current().memory_links.linked() {
                Step::Wait
            } else {
                Step::Done(())
            }
        },
    );
    if !listed {
        LIST.lock().remove(&ksync::pin(), me.tid());
    }
}

/// Wakes up to `n` waiters; returns how many there were.
pub fn wake(n: usize) -> usize {
    for told in 0..n {
        let pin = ksync::pin();
        let Some(tid) = LIST.lock().pop_front(&pin) else {
            return told;
        };
        if let Some(t) = ids::thread(&pin, tid) {
            t.round.notify_present();
            sched::wake(&pin, t);
        }
    }
    n
}
