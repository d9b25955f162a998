//! The locks of this crate, outermost first. `doc/locks.md` explains them.
//!
//! Locks that interrupts take come after all locks that only threads take.

ksync::lock_class!(pub BreakLock, "heap break", rank = 38);
ksync::lock_class!(pub GroupSignalLock, "signals to a process group", rank = 57);
ksync::lock_class!(pub FamilyLock, "process family", rank = 140);
ksync::lock_class!(pub SessionLock, "session", rank = 141);
ksync::lock_class!(pub GroupLock, "process group members", rank = 142);
ksync::lock_class!(pub ProcessLock, "process", rank = 144);
ksync::lock_class!(pub FutexLock, "futex bucket", rank = 145);
ksync::lock_class!(pub HeldFutexesLock, "held futexes", rank = 146);
ksync::lock_class!(pub ActionLock, "signal actions", rank = 146);
ksync::lock_class!(pub UserThreadLock, "user thread", rank = 147);
ksync::lock_class!(pub ActiveSpaceLock, "active space", rank = 148);
ksync::lock_class!(pub MemoryWaitersLock, "waiters for memory", rank = 149);
ksync::lock_class!(pub RealTimerLock, "real interval timer", rank = 150);
ksync::lock_class!(pub TimersLock, "POSIX timers", rank = 150);
ksync::lock_class!(pub CpuWatchLock, "waits for CPU time", rank = 151);
ksync::lock_class!(pub SignalLock, "process signals", rank = 151);
ksync::lock_class!(pub ThreadListLock, "process threads", rank = 152);
ksync::lock_class!(pub PendingLock, "pending signals", rank = 153);
