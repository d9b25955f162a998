//! What the out-of-memory killer asks of a process.

use ksync::atomic::Ordering;

use task::ids;

use super::Process;

impl Process {
    /// The exec group for the out-of-memory killer: a value that processes forked from one execve, or from one change of the
    /// real user, share until they do either. So all of them have one real user.
    pub fn exec_group(&self) -> u64 {
        self.exec_group.load(Ordering::Relaxed)
    }

    /// Whether the process's own execve began its family.
    pub fn is_founder(&self) -> bool {
        self.exec_group() % u64::from(ids::ID_LIMIT) == u64::from(self.pid())
    }

    /// Begins a new exec group: the process has called execve, or has changed its real user.
    pub(crate) fn found_exec_group(&self) {
        // The pid and, above it, the time: a later process with the same pid begins another group.
        let span = u64::from(ids::ID_LIMIT);
        let mut exec_group = task::time::monotonic_ns() / span * span + u64::from(self.pid());
        // The time is coarse, and children of the last group that began here are not to be in this one.
        if self.is_founder() {
            exec_group = exec_group.max(self.exec_group() + span);
        }
        self.exec_group.store(exec_group, Ordering::Relaxed);
    }

    /// /proc/PID/oom_score_adj: thousandths of all memory that the out-of-memory killer adds to what the process costs, from -1000 (the
    /// process is never chosen) to 1000 (it is chosen first).
    pub fn oom_adj(&self) -> i32 {
        self.oom_adj.load(Ordering::Relaxed)
    }

    /// The least [`oom_adj`](Process::oom_adj) that an unprivileged process may set.
    pub fn oom_adj_min(&self) -> i32 {
        self.oom_adj_min.load(Ordering::Relaxed)
    }

    /// Sets [`oom_adj`](Process::oom_adj); a `privileged` caller also makes it the least that unprivileged processes may set.
    pub fn set_oom_adj(&self, adj: i32, privileged: bool) {
        self.oom_adj.store(adj, Ordering::Relaxed);
        if privileged {
            self.oom_adj_min.store(adj, Ordering::Relaxed);
        }
    }
}
