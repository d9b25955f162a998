//! Files that report events: [`epoll`], [`timerfd`], [`signalfd`], [`pidfd`].

#![no_std]

extern crate alloc;

pub mod epoll;
mod numbers;
// Tests on the host run threads without the processes of `proc`, with which a stand-in for them cannot be linked.
#[cfg(target_os = "none")]
pub mod pidfd;
#[cfg(target_os = "none")]
pub mod signalfd;
pub mod timerfd;

/// Sets the crate up. Called once, at boot, after the files.
pub fn init(ncpus: usize) {
    epoll::init(ncpus);
    timerfd::init(ncpus);
}

/// Bytes of tables that never shrink: for the accounting of the heap.
pub fn table_bytes() -> usize {
    epoll::table_bytes() + timerfd::table_bytes()
}
