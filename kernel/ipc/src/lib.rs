//! Files that report events: [`epoll`].

#![no_std]

extern crate alloc;

pub mod epoll;

/// Sets the crate up. Called once, at boot, after the files.
pub fn init(ncpus: usize) {
    epoll::init(ncpus);
}
