//! Threads that wait for memory.
//!
//! Guarantee: a wait for memory needs no memory, ends when the thread is killed, and ends by itself after a time that
//! the caller gives. The killer wakes the threads first that have waited longest. Mechanism: a list through the
//! threads, linked by tid.

use ksync::Spin;
use task::current::current;
use task::idlist::IdList;
use task::ids::{self, NeedsMemory};
use task::park::{Deadline, Interruptible, Step, park};
use task::sched;

use crate::lock;

hal::machine_static! {
    static LIST: Spin<IdList<NeedsMemory>, lock::MemoryWaitersLock> = Spin::new(IdList::new());
}

/// Sleeps until [`wake`] takes the calling thread off the list, `ns` nanoseconds have passed, or the thread is killed.
/// `ask` asks for memory. It is called once the thread is on the list, so the answer may come before the thread sleeps.
pub fn wait(ns: u64, ask: impl FnOnce()) {
    let me = current();
    // The caller may be on the list already, by an outer wait of its own, which then takes it off.
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

/// Wakes up to `n` waiters; returns how many it woke.
pub fn wake(n: usize) -> usize {
    for woken in 0..n {
        let pin = ksync::pin();
        let Some(tid) = LIST.lock().pop_front(&pin) else {
            return woken;
        };
        if let Some(t) = ids::thread(&pin, tid) {
            t.round.notify_present();
            sched::wake(&pin, t);
        }
    }
    n
}
