//! Threads of the host, or of the model checker, with the means to wait.

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, yield_now},
    thread_local,
};
#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Builder, yield_now},
    thread_local,
};
