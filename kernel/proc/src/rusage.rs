//! The resources that processes have used: CPU time, faults, switches.

use ksync::atomic::Ordering;

use task::usage::Times;

use super::process::{Process, flag};

/// Clock ticks a second, as programs see them (AT_CLKTCK, times(2), /proc).
pub const CLOCK_TICKS: u64 = 100;

/// How often the sum over a process's threads is begun anew because a thread left meanwhile. Then threads that leave wait
/// for the sum, for a short time.
const TRIES: usize = 8;

impl Process {
    /// CPU time and faults of all threads of the process, ended ones included, which never decrease; and, as the maximum, the
    /// resident set of now. May sleep for the lock of the map.
    pub fn times(&self) -> Times {
        let mut sum = self.times_of_threads();
        if let Some(space) = self.space() {
            sum.note_rss(mem::max_rss_kib(&space));
        }
        sum
    }

    /// As [`Process::times`], without the resident set. Does not sleep; where threads go on leaving, it makes them wait a short
    /// time.
    pub(super) fn times_of_threads(&self) -> Times {
        if self.thread_count() == 0 {
            // No thread will be made any more.
            return self.accounts.lock().dead_threads;
        }
        for _ in 0..TRIES {
            if let Some(sum) = self.try_times() {
                return sum;
            }
        }
        loop {
            self.flags.fetch_or(flag::SUMMING_USAGE, Ordering::SeqCst);
            let sum = self.try_times();
            // Whichever thread has set it: one that gets no CPU time must hold up neither those that leave nor other sums.
            self.flags.fetch_and(!flag::SUMMING_USAGE, Ordering::SeqCst);
            self.group_wait.wake_all();
            if let Some(sum) = sum {
                return sum;
            }
        }
    }

    /// `None` if a thread has left meanwhile: it may have been counted twice, or not at all.
    fn try_times(&self) -> Option<Times> {
        let departures = self.departures();
        let gone = self.accounts.lock().dead_threads;
        let sum = self.plus_living(gone);
        (self.departures() == departures).then_some(sum)
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
