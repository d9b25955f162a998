//! The locks of this crate, outermost first. `doc/locks.md` explains them.
//!
//! Locks that interrupt handlers take have higher ranks than all that only threads take.

ksync::lock_class!(pub AccountLock, "accounts", rank = 86);
ksync::lock_class!(pub IdTableLock, "id batch", rank = 143);
ksync::lock_class!(pub ThreadLock, "thread", rank = 147);
ksync::lock_class!(pub WaitQueueLock, "wait queue", rank = 154);
ksync::lock_class!(pub TimerLock, "timer wheel", rank = 156);
ksync::lock_class!(pub RunQueueLock, "run queue", rank = 158);
