//! Pipes and fifos.
//!
//! A pipe is a queue of bytes with counts of its readers and writers, under one sleeping lock. The lock is held for one copy
//! at a time, and never while a thread waits. A transfer that need not wait only looks whether the wait queues are empty.
//! Readers and writers are woken when the state changes (from empty to not empty; from too full for an atomic write to not
//! so), one at a time. A woken thread wakes the next one if it leaves something for it. Readers also wait while a thread moves the
//! first bytes elsewhere, see [`splice`].

mod cache;
pub(super) mod end;
mod limits;
pub(super) mod open;
pub mod ring;
pub mod splice;
pub(super) mod state;
mod transfer;

pub use cache::drain;
pub(super) use cache::init;
pub use end::PipeEnd;
pub use limits::{DEFAULT_SIZE, MAX_SIZE, USER_HARD, USER_SOFT};
pub use open::{open_fifo, open_pair, reopen};
pub use ring::PAGE;
pub use state::{OBJECTS, PIPE_BUF, Pipe};
