//! The locks of this part of the kernel, outermost first.  `doc/locks.md` explains them.

ksync::lock_class!(pub FamilyLock, "process family", rank = 100);
ksync::lock_class!(pub GroupLock, "process group members", rank = 104);
ksync::lock_class!(pub SessionLock, "session", rank = 102);
ksync::lock_class!(pub IdTableLock, "id table", rank = 106);
ksync::lock_class!(pub ProcessLock, "process", rank = 108);
ksync::lock_class!(pub FutexLock, "futex bucket", rank = 110);
ksync::lock_class!(pub SignalLock, "process signals", rank = 120);
ksync::lock_class!(pub ActionLock, "signal actions", rank = 122);
ksync::lock_class!(pub ThreadListLock, "process threads", rank = 121);
ksync::lock_class!(pub ThreadLock, "thread", rank = 124);
ksync::lock_class!(pub WaitQueueLock, "wait queue", rank = 130);
ksync::lock_class!(pub TimerLock, "timer wheel", rank = 136);
ksync::lock_class!(pub RunQueueLock, "run queue", rank = 140);
ksync::lock_class!(pub PendingLock, "pending signals", rank = 125);
