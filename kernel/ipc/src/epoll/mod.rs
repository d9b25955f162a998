//! epoll(7). `doc/epoll.md` has the guarantees, the order of locks, and the time lines.
//!
//! [`mod@file`] is the open file of an epoll; [`control`] changes its set of entries, [`wait`] reports those that are ready. Beneath them: `set` has
//! the entries and the ready list, `entry` one entry, `numbers` the table by which wait queues find entries, `nesting` the epolls that
//! are in others.

pub mod control;
mod entry;
pub mod event;
pub mod file;
mod nesting;
mod numbers;
mod scan;
mod set;
pub mod wait;

use core::sync::atomic::{AtomicU64, Ordering};

pub use self::event::{Event, flag};
pub use self::file::EpollFile;
pub(crate) use self::numbers::{heard, round, table_bytes};

hal::machine_static! {
    /// The most entries of one user's epolls. Atomic.
    pub static MAX_WATCHES: AtomicU64 = AtomicU64::new(0);
}

/// Bytes of memory for each entry that one user may have: 4 % of the memory is for entries, at about 200 bytes each.
const SHARE: u64 = 200 * 25;
/// The most entries that one user may have on machines with much memory: a quarter of the numbers that there are.
const MOST: u64 = task::ids::ID_LIMIT as u64 / 4;

pub(crate) fn init(ncpus: usize) {
    numbers::init(ncpus);
    MAX_WATCHES.store((mem::memory().total / SHARE).min(MOST), Ordering::Relaxed);
}
