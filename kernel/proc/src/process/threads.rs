//! The threads of a process.

use alloc::sync::Arc;
use ksync::atomic::Ordering;

use ksync::{ArcBorrow, CpuPin};
use task::idlist::IdList;
use task::ids::{self, InProcess};
use task::thread::{Comm, Thread};

use super::Process;

impl Process {
    /// How many threads have not exited.
    pub fn thread_count(&self) -> u32 {
        self.thread_count.load(Ordering::Relaxed)
    }

    /// Threads as ps counts them: a leader that has ended counts as long as other threads live.
    pub fn threads_shown(&self) -> u32 {
        let living = self.thread_count();
        let leader_ended = living > 0 && ids::thread(&ksync::pin(), self.pid()).is_none();
        living + u32::from(leader_ended)
    }

    /// The name that ps shows: the leader's.
    pub fn comm(&self) -> Comm {
        match ids::thread(&ksync::pin(), self.pid()) {
            Some(leader) => leader.comm(),
            None => *self.comm.lock(),
        }
    }

    /// Whether all threads have slept for at least `ns` nanoseconds. A hint: a thread may wake at any moment.
    pub fn sleeps_since(&self, ns: u64) -> bool {
        let now = task::time::monotonic_ns();
        let pin = ksync::pin();
        let sleeps = |tid| ids::thread(&pin, tid).is_none_or(|t| t.sleeps_since(ns, now));
        let all_sleep = || {
            let mut all = true;
            self.threads.lock().each(&pin, |tid| {
                all = sleeps(tid);
                all
            });
            all
        };
        // Most processes have one thread: if it is busy, the lock is not taken.
        sleeps(self.pid()) && all_sleep()
    }

    /// Calls `f` with each living thread until it returns false; no lock is held meanwhile. Threads that come or go during the walk may or
    /// may not be seen; every other thread is seen once.
    pub fn each_thread(&self, mut f: impl FnMut(&Arc<Thread>) -> bool) {
        let mut at = self.first_thread();
        while let Some(t) = at {
            if !f(&t) {
                return;
            }
            at = self.thread_after(&t);
        }
    }

    fn first_thread(&self) -> Option<Arc<Thread>> {
        let pin = ksync::pin();
        let threads = self.threads.lock();
        ids::borrow_thread(&pin, threads.first()?).map(ArcBorrow::hold)
    }

    /// The thread that follows `t` on the list, or would if `t` had not left.
    fn thread_after(&self, t: &Thread) -> Option<Arc<Thread>> {
        let pin = ksync::pin();
        let threads = self.threads.lock();
        if t.group_links.linked() {
            let next = threads.after(&pin, t.tid())?;
            return ids::borrow_thread(&pin, next).map(ArcBorrow::hold);
        }
        // The list is in order of arrival.
        let mut next = None;
        threads.each(&pin, |tid| {
            next = ids::borrow_thread(&pin, tid).filter(|o| o.came_after(t));
            next.is_none()
        });
        next.map(ArcBorrow::hold)
    }

    /// How many threads have left so far.
    pub(crate) fn departures(&self) -> u32 {
        let _threads = self.threads.lock();
        let arrivals = self.arrivals.load(Ordering::Relaxed);
        arrivals.wrapping_sub(self.thread_count())
    }

    /// Adds a thread that does not run yet.
    pub(crate) fn add_thread(&self, pin: &CpuPin, t: &Thread) {
        self.add_thread_to(&mut self.threads.lock(), pin, t);
    }

    /// As [`Process::add_thread`]; `threads` is this process's list, whose lock the caller holds.
    pub(crate) fn add_thread_to(&self, threads: &mut IdList<InProcess>, pin: &CpuPin, t: &Thread) {
        let arrivals = self.arrivals.load(Ordering::Relaxed).wrapping_add(1);
        self.arrivals.store(arrivals, Ordering::Relaxed);
        t.arrives(arrivals);
        threads.push_back(pin, t.tid());
        self.thread_count.fetch_add(1, Ordering::SeqCst);
    }
}
