//! Files that report events: [`epoll`], [`inotify`], `dnotify`, [`timerfd`], [`signalfd`], [`pidfd`]; the signals that owners of files get: [`owner`]; System V objects:
//! [`sysv`]; and POSIX message queues: [`mqueue`].

#![no_std]

extern crate alloc;

#[cfg(target_os = "none")]
pub mod aio;
#[cfg(target_os = "none")]
pub mod dnotify;
pub mod epoll;
pub mod inotify;
mod listeners;
pub mod mqueue;
mod numbers;
#[cfg(target_os = "none")]
pub mod owner;
// Tests on the host run threads without the processes of `proc`, with which a stand-in for them cannot be linked.
#[cfg(target_os = "none")]
pub mod pidfd;
#[cfg(target_os = "none")]
pub mod signalfd;
mod sleeper;
pub mod sysv;
pub mod timerfd;

/// Sets the crate up. Called once, at boot, after the files.
pub fn init(ncpus: usize) {
    epoll::init(ncpus);
    inotify::init();
    timerfd::init(ncpus);
    sysv::init();
    #[cfg(target_os = "none")]
    owner::init(ncpus);
    listeners::init();
}

/// Bytes of tables that never shrink, and of objects that stay until they are removed: for the accounting of the heap.
pub fn table_bytes() -> usize {
    let bytes = epoll::table_bytes() + timerfd::table_bytes() + sysv::bytes() + mqueue::bytes();
    #[cfg(target_os = "none")]
    let bytes = bytes + owner::table_bytes();
    bytes
}

/// Frames of System V memory, which stay until it is removed: for the accounting of memory.
pub fn shared_pages() -> usize {
    sysv::shm::totals().resident as usize
}
