//! The resources that processes have used: CPU time, faults, switches.

use task::usage::Times;

use super::process::Process;

/// How often the sum over a process's threads is begun anew because a thread left meanwhile.
const TRIES: usize = 8;

impl Process {
    /// CPU time and faults of all threads of the process, ended ones included. The values never decrease.
    pub fn times(&self) -> Times {
        let mut sum = self.times_of_threads();
        if let Some(space) = self.space() {
            sum.note_rss(mem::max_rss_kib(&space));
        }
        sum
    }

    /// As [`Process::times`], without the resident set.
    pub(super) fn times_of_threads(&self) -> Times {
        if self.thread_count() == 0 {
            // No thread will be made any more.
            return self.accounts.lock().dead_threads;
        }
        for _ in 0..TRIES {
            let departures = self.departures();
            let gone = self.accounts.lock().dead_threads;
            let sum = self.plus_living(gone);
            if self.departures() == departures {
                return sum;
            }
            // A thread that left meanwhile may have been counted twice, or not at all.
        }
        // No thread leaves while the lock is held.
        let accounts = self.accounts.lock();
        self.plus_living(accounts.dead_threads)
    }

    fn plus_living(&self, mut sum: Times) -> Times {
        self.each_thread(|t| {
            sum.add(&t.times());
            true
        });
        sum
    }

    /// CPU time and faults of the children that have been reaped.
    pub fn child_times(&self) -> Times {
        self.accounts.lock().children
    }
}
